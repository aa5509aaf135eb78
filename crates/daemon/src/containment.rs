//! What the daemon does about faults: it counts those of its own threads, watches its workers, takes a VM
//! whose devices fail too often out of service, and takes it back on request.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use vmlane_api::{Done, Failure, WorkerStatus};

use crate::host::Host;
use crate::served::Served;
use crate::vm::ServedVm;
use crate::watchdog::{DaemonStats, TIMEOUT, Watchdog};

/// What is known of the daemon's own faults.
pub struct Health {
    watchdog: Mutex<Watchdog>,
    pub counts: DaemonStats,
    /// Mappings that had lost their memory when sessions were checked last.
    poisonings: AtomicU64,
}

impl Health {
    /// Watches all workers of `host`.
    pub fn of(host: &Host) -> Health {
        let mut dog = Watchdog::new(TIMEOUT);
        for (number, heartbeat) in host.workers.heartbeats().iter().enumerate() {
            dog.watch(format!("worker-{number}"), heartbeat.clone(), |stream| format!("stream {stream}"));
        }
        let alone = host.switch.heartbeats().len() == 1;
        for (number, heartbeat) in host.switch.heartbeats().enumerate() {
            let name = if alone { "switch".into() } else { format!("switch-{number}") };
            dog.watch(name, heartbeat.clone(), |port| format!("port {port}"));
        }
        for (name, heartbeat) in host.vsock_workers.heartbeats() {
            dog.watch(name.into(), heartbeat.clone(), |_| "virtio-vsock guests".into());
        }
        let (counts, poisonings) = (DaemonStats::default(), AtomicU64::new(0));
        Health { watchdog: Mutex::new(dog), counts, poisonings }
    }

    /// Puts VMs into quarantine whose devices fail too often. True if every worker is well. To be called
    /// several times a second, by a thread that may wait for sessions and workers.
    pub fn check(&self, host: &Host, served: &Mutex<Served>) -> bool {
        let now = Instant::now();
        // VMMs whose memory is lost may never send anything again, and their ports would stay.
        let poisonings = vmlane_mem::poisonings();
        if self.poisonings.swap(poisonings, Ordering::Relaxed) != poisonings {
            served.lock().vms.iter().for_each(ServedVm::check_memory);
        }
        let well = self.watchdog.lock().check(&self.counts, now);
        // Quarantine waits for the workers: not while one of them is stuck.
        if well {
            self.quarantine(host, &mut served.lock(), now);
        }
        well
    }

    fn quarantine(&self, host: &Host, served: &mut Served, now: Instant) {
        let limit = served.config.daemon.fault_limit;
        for vm in &mut served.vms {
            let faults = vm.faults(&host.switch);
            if !vm.record.add(faults, limit, now) || vm.quarantined {
                continue;
            }
            vm.set_quarantined(host, true);
            self.counts.quarantines.inc();
            tracing::error!(
                vm = vm.name(),
                faults,
                "{} faults within {} s: its devices are out of service; `vmlane release {}` takes them back",
                limit.faults,
                limit.within.as_secs(),
                vm.name()
            );
        }
    }

    /// Runs a part of the daemon's own work whose failure must not end the rest.
    pub fn contained(&self, what: &str, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            self.counts.panics.inc();
            tracing::error!("{what} panicked; the daemon continues");
        }
    }

    /// How each worker is.
    pub fn status(&self, now: Instant) -> Vec<WorkerStatus> {
        self.watchdog.lock().status(now)
    }
}

/// Takes a VM's devices back into service.
pub fn release(served: &mut Served, host: &Host, name: &str) -> Result<Done, Failure> {
    let vm = served.vm_mut(name)?;
    vm.record.clear();
    if vm.quarantined {
        vm.set_quarantined(host, false);
        tracing::info!(vm = name, "released from quarantine");
    }
    Ok(Done {})
}
