//! Looks at the workers' heartbeats: one that is busy and gets no round done is stuck. Nothing can be
//! done about that from inside, but it is reported and counted, and systemd's watchdog is not fed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_api::WorkerStatus;
use vmlane_stats::counters;
use vmlane_worker::{Heartbeat, HeartbeatReading};

/// A round takes microseconds; a worker that others keep from running still has one within this time.
pub const TIMEOUT: Duration = Duration::from_secs(2);
/// A worker that stays stuck is reported again after this long.
const AGAIN: Duration = Duration::from_secs(30);

counters! {
    /// What went wrong in the daemon itself, and what it did with VMs' memory.
    pub struct DaemonStats {
        /// Times a worker was found stuck.
        stuck_workers,
        /// Times a VM's devices were taken out of service for their faults.
        quarantines,
        /// Faults contained in the daemon's own threads.
        panics,
        /// Times that 2 MiB of VMs' memory were put into a huge page.
        huge_pages,
    }
}

struct Watched {
    name: String,
    heartbeat: Arc<Heartbeat>,
    /// Names what it serves.
    serves: fn(u32) -> String,
    last: HeartbeatReading,
    /// Since when `last` has not changed.
    since: Instant,
    reported: Option<Instant>,
}

/// All workers of the daemon.
pub struct Watchdog {
    workers: Vec<Watched>,
    timeout: Duration,
}

impl Watchdog {
    pub fn new(timeout: Duration) -> Watchdog {
        Watchdog { workers: Vec::new(), timeout }
    }

    /// Watches one more worker.
    pub fn watch(&mut self, name: String, heartbeat: Arc<Heartbeat>, serves: fn(u32) -> String) {
        let last = heartbeat.read();
        self.workers.push(Watched { name, heartbeat, serves, last, since: Instant::now(), reported: None });
    }

    /// To be called several times a second. True if every worker is well.
    pub fn check(&mut self, stats: &DaemonStats, now: Instant) -> bool {
        let mut well = true;
        for worker in &mut self.workers {
            let reading = worker.heartbeat.read();
            if !reading.busy || reading.rounds != worker.last.rounds {
                if worker.reported.take().is_some() {
                    let seconds = now.duration_since(worker.since).as_secs_f64();
                    tracing::warn!(worker = worker.name, seconds, "makes progress again");
                }
                (worker.last, worker.since) = (reading, now);
                continue;
            }
            worker.last = reading;
            if now.duration_since(worker.since) < self.timeout {
                continue;
            }
            well = false;
            if worker.reported.is_none() {
                stats.stuck_workers.inc();
            }
            if worker.reported.is_none_or(|reported| now.duration_since(reported) >= AGAIN) {
                worker.reported = Some(now);
                let seconds = now.duration_since(worker.since).as_secs_f64();
                let serving = (worker.serves)(reading.serving);
                tracing::error!(worker = worker.name, serving, seconds, "stuck: gets no round done");
            }
        }
        well
    }

    pub fn status(&self, now: Instant) -> Vec<WorkerStatus> {
        let seconds = |nanoseconds| Duration::from_nanos(nanoseconds).as_secs_f64();
        let status = |worker: &Watched| {
            let reading = worker.heartbeat.read();
            WorkerStatus {
                name: worker.name.clone(),
                stuck_seconds: worker.reported.map(|_| now.duration_since(worker.since).as_secs_f64()),
                serving: worker.reported.map(|_| (worker.serves)(worker.last.serving)),
                busy_seconds: seconds(reading.worked),
                spin_seconds: seconds(reading.spun),
                yield_seconds: seconds(reading.yielded),
                nap_seconds: seconds(reading.napped),
            }
        };
        self.workers.iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_busy_worker_without_rounds_is_stuck() {
        let stats = DaemonStats::default();
        let mut dog = Watchdog::new(Duration::from_secs(2));
        let (busy, asleep) = (Arc::new(Heartbeat::default()), Arc::new(Heartbeat::default()));
        dog.watch("busy".into(), busy.clone(), |port| format!("port {port}"));
        dog.watch("asleep".into(), asleep, |port| format!("port {port}"));
        let begun = Instant::now();
        let second = |second| begun + Duration::from_secs(second);
        busy.set_busy(true);
        busy.serve(7);
        assert!(dog.check(&stats, begun) && dog.check(&stats, second(1)));
        busy.round();
        assert!(dog.check(&stats, second(2)) && dog.check(&stats, second(3)));
        assert!(!dog.check(&stats, second(5)) && !dog.check(&stats, second(6)));
        assert_eq!(stats.stuck_workers.get(), 1);
        let status = dog.status(second(6));
        assert_eq!(status[0].serving.as_deref(), Some("port 7"));
        assert_eq!((status[0].stuck_seconds, status[1].stuck_seconds), (Some(4.0), None));
        busy.round();
        assert!(dog.check(&stats, second(7)));
        assert_eq!(dog.status(second(7))[0].stuck_seconds, None);
    }
}
