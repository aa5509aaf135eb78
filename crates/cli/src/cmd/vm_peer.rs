//! Which VM a program of the host means, and why it cannot be reached.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::io::Errno;
use vmlane_api::{Client, Status, VmStatus, call};

/// The CID by which VMs reach the host.
const HOST: u32 = 2;
/// How long the daemon may take to report the state of its VMs.
const TIMEOUT: Duration = Duration::from_secs(2);

fn status(runtime_dir: &Path) -> anyhow::Result<Status> {
    Ok(Client::connect(runtime_dir)?.with_timeout(TIMEOUT).call(&call::Status {})?)
}

/// The CID of a VM that is named by its name or by its CID.
pub fn cid_of(vm: &str, runtime_dir: &Path) -> anyhow::Result<u32> {
    if let Ok(cid) = vm.parse() {
        return Ok(cid);
    }
    let status = status(runtime_dir).with_context(|| format!("the CID of VM {vm:?} (a CID works, too)"))?;
    let Some(found) = status.vms.iter().find(|other| other.name == vm) else {
        bail!("there is no VM {vm:?}; {}", known(&status));
    };
    found.cid.ok_or_else(|| anyhow!("VM {vm:?} has vsock = \"none\", so nothing can connect to it"))
}

/// Why a connection to a port of a VM failed.
pub fn explain(error: &io::Error, cid: u32, port: u32, runtime_dir: &Path) -> String {
    // A user who may not ask for the state of VMs gets the error alone.
    let status = status(runtime_dir).ok();
    why(error, cid, port, status.as_ref()).map_or_else(|| error.to_string(), |why| format!("{why} ({error})"))
}

fn why(error: &io::Error, cid: u32, port: u32, status: Option<&Status>) -> Option<String> {
    let errno = Errno::from_io_error(error)?;
    if errno == Errno::ACCESS {
        return Some("this user may not; add a [[host]] rule for it to the daemon's configuration".into());
    }
    if cid == HOST {
        return Some(format!("CID {HOST} is this host, which VMs connect to; name a VM"));
    }
    let vm = status.and_then(|status| status.vms.iter().find(|vm| vm.cid == Some(cid)));
    if let (None, Some(status)) = (vm, status)
        && status.peers.is_empty()
    {
        return Some(format!("there is no VM with CID {cid}; {}", known(status)));
    }
    if let Some(state) = vm.and_then(unreachable) {
        return Some(state);
    }
    let whom = vm.map_or_else(|| format!("CID {cid}"), |vm| format!("VM {:?}", vm.name));
    match errno {
        Errno::CONNRESET | Errno::CONNREFUSED => Some(format!("no program listens at port {port} of {whom}")),
        Errno::TIMEDOUT => Some(format!("{whom} did not answer in time; -w SECONDS waits longer")),
        Errno::NODEV => {
            Some(format!("there is no VM with CID {cid}, or its guest's driver is not up (`vmlane status`)"))
        }
        _ => None,
    }
}

/// Why no program in a VM can be reached, if none can.
fn unreachable(vm: &VmStatus) -> Option<String> {
    let name = &vm.name;
    let driver = if vm.vsock == "vmci" { "vmw_vsock_vmci_transport" } else { "vmw_vsock_virtio_transport" };
    match vm {
        _ if vm.quarantined => Some(format!("VM {name:?} is in quarantine (`vmlane release {name}`)")),
        _ if vm.state == "lost" => Some(format!(
            "VM {name:?} has lost its device, because no daemon came in time (`hold` in [daemon]): restart its QEMU"
        )),
        _ if !vm.attached => Some(format!("VM {name:?} is not running: no VMM is attached to it")),
        _ if vm.state == "stopped" => Some(format!(
            "the driver of VM {name:?} has stopped: its guest is paused or reboots, or has unloaded {driver}"
        )),
        _ if !vm.ready => Some(format!(
            "the driver of VM {name:?} is not up: its guest boots, or lacks the module {driver} (`modprobe {driver}`)"
        )),
        _ => None,
    }
}

fn known(status: &Status) -> String {
    let vms = status.vms.iter().filter_map(|vm| Some(format!("{} (CID {})", vm.name, vm.cid?)));
    let vms: Vec<String> = vms.collect();
    if vms.is_empty() { "there are none".into() } else { format!("there are {}", vms.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(vms: &[(&str, u32, bool, bool)]) -> Status {
        let vms: Vec<_> = vms
            .iter()
            .map(|(name, cid, attached, ready)| {
                serde_json::json!({
                    "name": name, "cid": cid, "group": "default", "vsock": "vmci", "attached": attached, "ready": ready,
                    "sockets": [], "queue_pairs": 0, "queue_pair_bytes": 0, "connections": 0, "doorbells": 0, "inbox_bytes": 0,
                    "faults": 0, "quarantined": false, "nics": []
                })
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "daemon": "0", "pid": 1, "uptime_seconds": 1.0, "config": "", "runtime_dir": "", "workers": 1,
            "mode": "adaptive", "spin_us": 500, "fault_injection": false, "vms": vms
        }))
        .expect("a status")
    }

    #[test]
    fn what_stands_in_the_way_is_named() {
        let status = status(&[("web", 3, true, true), ("db", 4, false, false), ("app", 5, true, false)]);
        for (errno, cid, words) in [
            (Errno::NODEV, 7, "there is no VM with CID 7; there are web (CID 3), db (CID 4), app (CID 5)"),
            (Errno::NODEV, 4, "VM \"db\" is not running"),
            (Errno::NODEV, 5, "the driver of VM \"app\" is not up"),
            (Errno::CONNRESET, 3, "no program listens at port 80 of VM \"web\""),
            (Errno::TIMEDOUT, 3, "VM \"web\" did not answer in time"),
            (Errno::ACCESS, 3, "[[host]]"),
        ] {
            let message = why(&errno.into(), cid, 80, Some(&status)).unwrap();
            assert!(message.contains(words), "{message}");
        }
        let message = why(&Errno::CONNRESET.into(), 3, 80, None).unwrap();
        assert!(message.contains("no program listens at port 80 of CID 3"), "{message}");
        let message = why(&Errno::NODEV.into(), 2, 80, Some(&status)).unwrap();
        assert!(message.contains("CID 2 is this host"), "{message}");
    }
}
