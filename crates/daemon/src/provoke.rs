//! Faults on request, for tests: parts of the daemon that serve a VM go wrong, where `fault_injection` is on.

use std::time::Duration;

use vmlane_api::{Done, ErrorCode, Failure};
use vmlane_port::wrap::{Fault, Impairment};

use crate::host::Host;
use crate::nic::ServedNic;
use crate::served::Served;
use crate::vm::ServedVm;

/// The longest stall on request.
const LONGEST_STALL: Duration = Duration::from_secs(60);
/// The longest delay of frames on request.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// Makes a part of the daemon that serves a VM go wrong.
pub fn fault(served: &Served, host: &Host, name: &str, at: &str, fault: Fault) -> Result<Done, Failure> {
    let vm = vm(served, name)?;
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
    if inject(host, vm, at, fault) {
        return Ok(Done {});
    }
    let known = "vmci, virtio (once its driver is loaded), stream, nicN, nicN-port (active NICs only), control";
    Err(bad(format!("vm {name:?} has no {at:?} now; known are {known}")))
}

/// Loses, delays or reorders frames on their way to a VM's NIC.
pub fn impair(served: &Served, name: &str, at: &str, impairment: Impairment) -> Result<Done, Failure> {
    let vm = vm(served, name)?;
    if impairment.loss > 1000 || impairment.reorder > 1000 {
        return Err(bad("loss and reorder are numbers of frames in 1000".into()));
    }
    if impairment.delay > LONGEST_DELAY {
        return Err(bad(format!("frames may be delayed by {} s", LONGEST_DELAY.as_secs())));
    }
    nic(vm, at)?
        .impair(impairment)
        .map_err(|error| Failure::internal(format!("memory for held frames: {error}")))?;
    Ok(Done {})
}

/// Has another worker move the frames of a VM's NIC.
pub fn move_nic(served: &Served, host: &Host, name: &str, at: &str, worker: u32) -> Result<Done, Failure> {
    let nic = nic(vm(served, name)?, at)?;
    let count = host.switch.heartbeats().len();
    if worker as usize >= count {
        return Err(bad(format!("there is no worker {worker}; the switch has {count}, from 0 on")));
    }
    if !nic.move_to(&host.switch, worker as usize) {
        return Err(bad(format!(
            "{name}/{at} stays: it is that worker's, or is joined to an uplink, or frames on their way to or from it come to no end"
        )));
    }
    Ok(Done {})
}

/// The VM `name`, if faults may be provoked.
fn vm<'s>(served: &'s Served, name: &str) -> Result<&'s ServedVm, Failure> {
    if !served.config.daemon.fault_injection {
        let message = "faults on request need fault_injection = true in the table [daemon] of the \
                       configuration, and a restart";
        return Err(Failure { code: ErrorCode::Forbidden, message: message.into() });
    }
    served.vm(name)
}

/// The NIC whose port is named.
fn nic<'v>(vm: &'v ServedVm, at: &str) -> Result<&'v ServedNic, Failure> {
    let nic = at.strip_suffix("-port").and_then(|nic| vm.nics.iter().find(|served| served.name() == nic));
    nic.ok_or_else(|| bad(format!("vm {:?} has no {at:?}; known are nicN-port", vm.name())))
}

fn inject(host: &Host, vm: &ServedVm, at: &str, fault: Fault) -> bool {
    match at {
        "vmci" | "virtio" => vm.inject(at, fault),
        "stream" => {
            let owner = vm.cid().and_then(|cid| host.hypervisor.stream_owner(cid));
            let faulty = host.faulty_streams.as_ref().zip(owner);
            faulty.inspect(|(streams, owner)| streams.arm(owner, fault)).is_some()
        }
        nic => {
            let (nic, in_worker) = nic.strip_suffix("-port").map_or((nic, false), |nic| (nic, true));
            let nic = vm.nics.iter().find(|served| served.name() == nic);
            nic.is_some_and(|nic| nic.inject(fault, in_worker))
        }
    }
}

fn bad(message: String) -> Failure {
    Failure { code: ErrorCode::BadRequest, message }
}
