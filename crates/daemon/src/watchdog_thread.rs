//! The watchdog's thread: several times a second it looks for stuck workers and for VMs whose devices fail too
//! often. It may wait for sessions and workers, so neither may wait for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::assembly::Daemon;
use crate::notify::notify;

const INTERVAL: Duration = Duration::from_millis(200);
/// Checks between two signs of life to systemd, which wants one within twice that time (`WatchdogSec`).
const CHECKS_A_SIGN: u32 = 10;

/// The thread; dropping it ends it.
pub struct WatchdogThread {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WatchdogThread {
    pub fn start(daemon: Arc<Daemon>) -> std::io::Result<WatchdogThread> {
        let over = Arc::new(AtomicBool::new(false));
        let stop = over.clone();
        let systemd_waits = std::env::var_os("WATCHDOG_USEC").is_some();
        let check = move || {
            let mut checks = 0u32;
            while !stop.load(Ordering::Acquire) {
                // Never ended by a fault of its own.
                let well = catch_unwind(AssertUnwindSafe(|| daemon.check_health())).unwrap_or(false);
                checks = checks.wrapping_add(1);
                if systemd_waits && well && checks.is_multiple_of(CHECKS_A_SIGN) {
                    notify("WATCHDOG=1");
                }
                std::thread::park_timeout(INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(check)?;
        Ok(WatchdogThread { over, thread: Some(thread) })
    }
}

impl Drop for WatchdogThread {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
