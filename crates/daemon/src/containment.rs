//! What the daemon does about faults: it takes a VM whose devices fail too often out of service, takes it
//! back on request, and provokes faults for tests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vmlane_api::{Done, ErrorCode, Failure, LinkSet};
use vmlane_port::wrap::{Fault, Impairment};

use crate::assembly::{Daemon, State};
use crate::nic::ServedNic;
use crate::serve::device_name;
use crate::vm::ServedVm;

/// The longest stall on request.
const LONGEST_STALL: Duration = Duration::from_secs(60);
/// The longest delay of frames on request.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

impl Daemon {
    /// Puts VMs into quarantine whose devices fail too often. True if every worker is well. To be called several
    /// times a second, by a thread that may wait for sessions and workers.
    pub fn check_health(&self) -> bool {
        let now = Instant::now();
        self.check_memory();
        let well = self.watchdog.lock().look(&self.faults, now);
        // Quarantine waits for the workers: not while one of them is stuck.
        if well {
            self.quarantine(now);
        }
        well
    }

    /// Ends sessions whose memory is lost: their VMMs may never say anything again, and their ports would stay.
    fn check_memory(&self) {
        let poisonings = vmlane_mem::poisonings();
        if self.poisonings.swap(poisonings, Ordering::Relaxed) != poisonings {
            self.state.lock().vms.iter().for_each(ServedVm::check_memory);
        }
    }

    /// Runs a part of the daemon's own work whose failure must not end the rest.
    pub fn contained(&self, what: &str, work: impl FnOnce(&Daemon)) {
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            self.faults.panics.inc();
            tracing::error!("{what} panicked; the daemon continues");
        }
    }

    fn quarantine(&self, now: Instant) {
        let mut state = self.state.lock();
        let limit = state.config.daemon.fault_limit;
        let host = self.host();
        for vm in &mut state.vms {
            let faults = vm.faults(&self.switch);
            if !vm.record.add(faults, limit, now) || vm.quarantined {
                continue;
            }
            vm.set_quarantined(&host, true);
            self.faults.quarantines.inc();
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

    /// Takes a VM's devices back into service.
    pub(crate) fn release(&self, name: &str) -> Result<Done, Failure> {
        let mut state = self.state.lock();
        let names = state.config.names();
        let host = self.host();
        let vm = state.vms.iter_mut().find(|vm| vm.name() == name).ok_or_else(|| unknown(name, &names))?;
        vm.record.clear();
        if vm.quarantined {
            vm.set_quarantined(&host, false);
            tracing::info!(vm = name, "released from quarantine");
        }
        Ok(Done {})
    }

    /// Sets the link of a VM's NIC up or down.
    pub(crate) fn set_link(&self, name: &str, nic: &str, up: bool) -> Result<LinkSet, Failure> {
        let state = self.state.lock();
        let vm = state.vms.iter().find(|vm| vm.name() == name);
        let vm = vm.ok_or_else(|| unknown(name, &state.config.names()))?;
        let Some(served) = vm.nics.iter().find(|served| served.name() == nic) else {
            let known: Vec<&str> = vm.nics.iter().map(ServedNic::name).collect();
            return Err(bad(format!("vm {name:?} has no {nic:?}; its NICs are {}", known.join(", "))));
        };
        let guest_told = served.set_link(&self.host(), name, up);
        tracing::info!(device = device_name(name, nic), up, "link set by the operator");
        Ok(LinkSet { port: format!("{name}/{nic}"), link: if up { "up" } else { "down" }.into(), guest_told })
    }

    /// Sets the link of an uplink up or down.
    pub(crate) fn set_uplink_link(&self, name: &str, up: bool) -> Result<LinkSet, Failure> {
        let mut state = self.state.lock();
        if !state.uplinks.set_link(&self.switch, name, up) {
            return Err(bad(format!(
                "there is no uplink {name:?}; known are {}; a card is named VM/nicN",
                state.uplinks.names()
            )));
        }
        tracing::info!(uplink = name, up, "link set by the operator");
        Ok(LinkSet { port: name.into(), link: if up { "up" } else { "down" }.into(), guest_told: false })
    }

    /// Makes a part of the daemon that serves a VM go wrong.
    pub(crate) fn debug_fault(&self, name: &str, at: &str, fault: Fault) -> Result<Done, Failure> {
        let state = self.state.lock();
        let vm = state.vm_to_debug(name)?;
        if matches!(fault, Fault::Stall(time) if time > LONGEST_STALL) {
            return Err(bad(format!("a stall may last {} s", LONGEST_STALL.as_secs())));
        }
        if at == "control" {
            return match fault {
                Fault::Panic | Fault::Stall(_) => {
                    fault.happen();
                    Ok(Done {})
                }
                Fault::Trespass => Err(Failure::internal("the control plane looks at files".into())),
            };
        }
        if inject(self, vm, at, fault) {
            return Ok(Done {});
        }
        let known =
            "vmci, virtio (once its driver is loaded), stream, nicN, nicN-port (active NICs only), control";
        Err(bad(format!("vm {name:?} has no {at:?} now; known are {known}")))
    }

    /// Loses, delays or reorders frames on their way to a VM's NIC.
    pub(crate) fn debug_impair(&self, name: &str, at: &str, impairment: Impairment) -> Result<Done, Failure> {
        let state = self.state.lock();
        let vm = state.vm_to_debug(name)?;
        if impairment.loss > 1000 || impairment.reorder > 1000 {
            return Err(bad("loss and reorder are numbers of frames in 1000".into()));
        }
        if impairment.delay > LONGEST_DELAY {
            return Err(bad(format!("frames may be delayed by {} s", LONGEST_DELAY.as_secs())));
        }
        nic_to_debug(vm, at)?
            .impair(impairment)
            .map_err(|error| Failure::internal(format!("memory for held frames: {error}")))?;
        Ok(Done {})
    }

    /// Has another worker move the frames of a VM's NIC.
    pub(crate) fn debug_move(&self, name: &str, at: &str, worker: u32) -> Result<Done, Failure> {
        let state = self.state.lock();
        let nic = nic_to_debug(state.vm_to_debug(name)?, at)?;
        let count = self.switch.heartbeats().len();
        if worker as usize >= count {
            return Err(bad(format!("there is no worker {worker}; the switch has {count}, from 0 on")));
        }
        if !nic.move_to(&self.switch, worker as usize) {
            return Err(bad(format!(
                "{name}/{at} stays: it is that worker's, or is joined to an uplink, or frames on their way to or from it come to no end"
            )));
        }
        Ok(Done {})
    }
}

/// The NIC whose port is named.
fn nic_to_debug<'v>(vm: &'v ServedVm, at: &str) -> Result<&'v ServedNic, Failure> {
    let nic = at.strip_suffix("-port").and_then(|nic| vm.nics.iter().find(|served| served.name() == nic));
    nic.ok_or_else(|| bad(format!("vm {:?} has no {at:?}; known are nicN-port", vm.name())))
}

impl State {
    /// The VM `name`, if faults may be provoked.
    fn vm_to_debug(&self, name: &str) -> Result<&ServedVm, Failure> {
        if !self.config.daemon.fault_injection {
            let message = "faults on request need fault_injection = true in the table [daemon] of the \
                           configuration, and a restart";
            return Err(Failure { code: ErrorCode::Forbidden, message: message.into() });
        }
        let vm = self.vms.iter().find(|vm| vm.name() == name);
        vm.ok_or_else(|| unknown(name, &self.config.names()))
    }
}

fn bad(message: String) -> Failure {
    Failure { code: ErrorCode::BadRequest, message }
}

fn inject(daemon: &Daemon, vm: &ServedVm, at: &str, fault: Fault) -> bool {
    match at {
        "vmci" | "virtio" => vm.inject(at, fault),
        "stream" => {
            let owner = vm.cid().and_then(|cid| daemon.hypervisor.stream_owner(cid));
            let faulty = daemon.faulty_streams.as_ref().zip(owner);
            faulty.inspect(|(streams, owner)| streams.arm(owner, fault)).is_some()
        }
        nic => {
            let (nic, in_worker) = nic.strip_suffix("-port").map_or((nic, false), |nic| (nic, true));
            let nic = vm.nics.iter().find(|served| served.name() == nic);
            nic.is_some_and(|nic| nic.inject(fault, in_worker))
        }
    }
}

fn unknown(name: &str, known: &str) -> Failure {
    let message = format!("vm {name:?} is not served; known are {known}");
    Failure { code: ErrorCode::UnknownVm, message }
}
