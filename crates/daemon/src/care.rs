//! The thread that looks after things several times a second: stuck workers, VMs whose devices fail too
//! often. It may wait for sessions and workers, so neither may wait for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::assembly::Daemon;
use crate::notify::notify;

const LOOKS: Duration = Duration::from_millis(200);
/// systemd wants a sign of life within twice this time (`WatchdogSec`), if it wants one at all.
const SIGNS: u32 = 10;

/// The thread; dropping it ends it.
pub struct Care {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Care {
    pub fn start(daemon: Arc<Daemon>) -> std::io::Result<Care> {
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let signs = std::env::var_os("WATCHDOG_USEC").is_some();
        let look_after = move || {
            let mut looks = 0u32;
            while !seen.load(Ordering::Acquire) {
                // Never ended by a fault of its own.
                let well = catch_unwind(AssertUnwindSafe(|| daemon.look_after())).unwrap_or(false);
                looks = looks.wrapping_add(1);
                if signs && well && looks.is_multiple_of(SIGNS) {
                    notify("WATCHDOG=1");
                }
                std::thread::park_timeout(LOOKS);
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(look_after)?;
        Ok(Care { over, thread: Some(thread) })
    }
}

impl Drop for Care {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
