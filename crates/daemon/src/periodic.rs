//! Threads that do something again and again: the watchdog's, which several times a second checks for stuck
//! workers and for VMs whose devices fail too often, the one that moves ports to other workers, the one that
//! puts VMs' memory into huge pages, and the one that logs which VMs and drivers come and go. All may wait
//! for sessions, workers or the kernel, so neither of these may wait for them.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmlane_mem::HugePages;
use vmlane_switch::{Balancer, Switch};

use crate::assembly::Daemon;
use crate::notify::notify;
use crate::presence::Presence;

const CHECK: Duration = Duration::from_millis(500);
/// Checks between two signs of life to systemd, which wants one within twice that time (`WatchdogSec`).
const CHECKS_A_SIGN: u32 = 4;
const BALANCE: Duration = Duration::from_secs(1);
const HUGE_PAGES: Duration = Duration::from_secs(1);
const PRESENCE: Duration = Duration::from_secs(1);

/// Such a thread; dropping it ends it.
pub struct PeriodicThread {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PeriodicThread {
    /// Calls `work` at once, and then `interval` after the end of each call. It is never ended by a fault of
    /// its own.
    fn start(
        name: &str,
        interval: Duration,
        mut work: impl FnMut() + Send + 'static,
    ) -> io::Result<PeriodicThread> {
        let over = Arc::new(AtomicBool::new(false));
        let stop = over.clone();
        let repeat = move || {
            while !stop.load(Ordering::Acquire) {
                let _ = catch_unwind(AssertUnwindSafe(&mut work));
                std::thread::park_timeout(interval);
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(repeat)?;
        Ok(PeriodicThread { over, thread: Some(thread) })
    }
}

impl Drop for PeriodicThread {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Starts the watchdog.
pub fn watchdog(daemon: Arc<Daemon>) -> io::Result<PeriodicThread> {
    let systemd_waits = std::env::var_os("WATCHDOG_USEC").is_some();
    let mut checks = 0u32;
    PeriodicThread::start("watchdog", CHECK, move || {
        let well = daemon.health.check(&daemon.host, &daemon.served);
        checks = checks.wrapping_add(1);
        if systemd_waits && well && checks.is_multiple_of(CHECKS_A_SIGN) {
            notify("WATCHDOG=1");
        }
    })
}

/// Has NICs go to other workers of the switch where that helps. None: there is one worker, or they are to
/// stay where they are.
pub fn balance(daemon: Arc<Daemon>) -> io::Result<Option<PeriodicThread>> {
    if !daemon.served.lock().config.daemon.balance || daemon.host.switch.heartbeats().len() < 2 {
        return Ok(None);
    }
    let mut balancer = Balancer::over(daemon.host.placement.distances().to_vec());
    PeriodicThread::start("balance", BALANCE, move || {
        relieve(&daemon.host.switch, &mut balancer, Instant::now());
    })
    .map(Some)
}

/// Moves NICs to other workers if that helps.
fn relieve(switch: &Switch, balancer: &mut Balancer, now: Instant) {
    let Some(relief) = balancer.poll(switch, now) else { return };
    let loads = relief.loads.iter().map(|load| format!("{:.0} %", load * 100.0));
    let loads = loads.collect::<Vec<_>>().join(", ");
    for (id, to) in relief.moves {
        let Some(port) = switch.ports().into_iter().find(|port| port.id == id) else { continue };
        let (name, from) = (port.spec.name, port.worker);
        if switch.move_port(id, to) {
            tracing::info!(
                port = name,
                from,
                to,
                loads,
                "its frames are another worker's to move from now on"
            );
        } else {
            tracing::debug!(port = name, from, to, loads, "stays: frames are on their way to or from it");
        }
    }
}

/// Logs which VMs and drivers come and go.
pub fn presence(daemon: Arc<Daemon>) -> io::Result<PeriodicThread> {
    let mut presence = Presence::default();
    PeriodicThread::start("presence", PRESENCE, move || presence.log_changes(&daemon.host, &daemon.served))
}

/// Has memory of VMs that the daemon uses much put into huge pages.
pub fn huge_pages(daemon: Arc<Daemon>, mut pages: HugePages) -> io::Result<PeriodicThread> {
    let mut reported = None;
    PeriodicThread::start("huge-pages", HUGE_PAGES, move || {
        let before = pages.made();
        let outcome = pages.step();
        daemon.health.counts.huge_pages.add(pages.made() - before);
        let problem = outcome.err().map(|error| error.to_string());
        if let Some(problem) = problem.filter(|problem| reported.as_ref() != Some(problem)) {
            tracing::warn!(
                problem,
                bytes = pages.bytes(),
                "huge_pages: some of VMs' memory stays in small pages"
            );
            reported = Some(problem);
        }
    })
}
