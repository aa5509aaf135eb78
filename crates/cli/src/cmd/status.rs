//! `vmlane status`.

use std::process::ExitCode;

use vmlane_api::{ClientError, Status, call};

use super::control::{Show, bytes, ovn, peers, table, teams, waiting};
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane status
  vmlane status --json | jq -r '.vms[] | select(.ready) | .name'
  vmlane status --interval 2

ATTACHED: whether a VMM is connected. VSOCK: the kind of the VM's socket device. STATE of that device and of each NIC:
  ready      the guest's driver has set it up
  booting    no driver has set it up since the VM was started or reset
  stopped    a driver used it before and does not now: the guest is paused or reboots, or the driver was unloaded
  no driver  no driver uses it: booting or stopped, which a VMCI device or a VMXNET3 card does not distinguish
  absent     no VMM is connected
  lost       a virtio-vsock device for which no daemon came in time (`hold` in [daemon]): restart its QEMU
While no daemon runs, the error names the devices whose sessions the keeper holds for the next one.

CONNS: connections that the VM's programs opened. PAIRS: queue pairs of VMCI, with their memory. `vmlane vm show VM` shows sockets, and all else about a VM. HOW: the way in which an uplink carries frames, or why it is not attached. LOGICAL PORT: of OVN, as in `vmlane ovn status`. PEER: another host, as in `vmlane route status`.";

/// Shows the daemon and its VMs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    show: Show,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let status = self.show.report(|client| client.call(&call::Status {}), |status| Ok(plain(status)));
        status.map_err(|error| match error.downcast_ref() {
            Some(ClientError::NoDaemon { .. }) => match waiting(&self.show.place.runtime_dir) {
                Some(sessions) => error.context(sessions),
                None => error,
            },
            _ => error,
        })
    }
}

pub fn plain(status: &Status) -> String {
    let mut rows =
        vec![row!["VM", "CID", "GROUP", "VSOCK", "ATTACHED", "STATE", "CONNS", "PAIRS", "PAIR BYTES"]];
    for vm in &status.vms {
        rows.push(row![
            vm.name,
            vm.cid.map_or_else(|| "-".into(), |cid| cid.to_string()),
            vm.group,
            vm.vsock,
            yes(vm.attached),
            vm.state,
            vm.connections,
            vm.queue_pairs,
            bytes(vm.queue_pair_bytes as f64),
        ]);
    }
    let troubles = troubles(status);
    let mut nics = vec![row!["NIC", "MAC", "SWITCH", "PORT GROUP", "PROFILE", "STATE"]];
    for (vm, nic) in status.vms.iter().flat_map(|vm| vm.nics.iter().map(move |nic| (vm, nic))) {
        nics.push(row![
            format!("{}/{}", vm.name, nic.name),
            nic.mac,
            if nic.ovn.is_some() { "-" } else { &nic.switch },
            if nic.ovn.is_some() { "-" } else { &nic.port_group },
            nic.profile,
            nic.state,
        ]);
    }
    let nics = if nics.len() > 1 { format!("\n{}", table(&nics)) } else { String::new() };
    let teams = teams(&status.teams);
    let mut uplinks = vec![row!["UPLINK", "SWITCH", "TO", "ATTACHED", "HOW"]];
    uplinks.extend(
        status
            .uplinks
            .iter()
            .map(|uplink| row![uplink.name, uplink.switch, uplink.to, yes(uplink.attached), uplink.how]),
    );
    let (ovn, peers) = (ovn(status), peers(&status.peers));
    let uplinks = if uplinks.len() > 1 { format!("\n{}", table(&uplinks)) } else { String::new() };
    format!(
        "vmlane {}, pid {}, up {:.0} s, {} worker{} ({}{}), configuration {}\nconfined: {}\n{}{nics}{ovn}{uplinks}{teams}{peers}{troubles}",
        status.daemon,
        status.pid,
        status.uptime_seconds,
        status.workers,
        if status.workers == 1 { "" } else { "s" },
        status.mode,
        placement(status),
        status.config,
        status.confined,
        table(&rows)
    )
}

/// Why there are so many workers.
fn placement(status: &Status) -> String {
    if status.placement.is_empty() { String::new() } else { format!("; {}", status.placement) }
}

/// What an operator should check.
fn troubles(status: &Status) -> String {
    let vms = status.vms.iter().filter(|vm| vm.quarantined).map(|vm| {
        format!("{}: in quarantine after {} faults; `vmlane release {}`\n", vm.name, vm.faults, vm.name)
    });
    let second = status.vms.iter().filter_map(|vm| {
        let (name, pid) = (&vm.name, vm.refused_vmm_pid?);
        let first = vm.vmm_pid.map_or_else(|| "another one".into(), |pid| format!("process {pid}"));
        Some(format!("{name}: process {pid} was turned away: a VM has one VMM, and {first} is attached\n"))
    });
    let workers = status.watched.iter().filter_map(|worker| {
        let serving = worker.serving.as_deref().unwrap_or("nothing");
        Some(format!("{}: stuck for {:.0} s, serving {serving}\n", worker.name, worker.stuck_seconds?))
    });
    let survival =
        status.survival_lost.iter().map(|why| format!("VMCI streams will not outlive the daemon: {why}\n"));
    let lines: String = vms.chain(second).chain(workers).chain(survival).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

fn yes(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(survival_lost: Option<&str>) -> Status {
        serde_json::from_value(serde_json::json!({
            "daemon": "0", "pid": 1, "uptime_seconds": 1.0, "config": "", "runtime_dir": "", "workers": 1,
            "mode": "adaptive", "spin_us": 500, "fault_injection": false, "vms": [], "survival_lost": survival_lost
        }))
        .expect("a status")
    }

    #[test]
    fn a_second_vmm_is_shown_with_the_reason() {
        let mut status = status(None);
        let vm = serde_json::json!({
            "name": "web", "cid": 3, "group": "default", "vsock": "vmci", "attached": true, "ready": true, "sockets": [],
            "queue_pairs": 0, "queue_pair_bytes": 0, "connections": 0, "doorbells": 0, "inbox_bytes": 0, "faults": 0,
            "quarantined": false, "nics": [], "vmm_pid": 7, "refused_vmm_pid": 8
        });
        status.vms.push(serde_json::from_value(vm).expect("a VM"));
        let shown = plain(&status);
        assert!(
            shown.contains("web: process 8 was turned away: a VM has one VMM, and process 7 is attached"),
            "{shown}"
        );
    }

    #[test]
    fn survival_that_is_lost_is_shown() {
        assert!(
            plain(&status(Some("the disk is full"))).contains("not outlive the daemon: the disk is full")
        );
        let mut other = status(None);
        assert!(!plain(&other).contains("outlive") && !plain(&other).contains("UPLINK"));
        let uplink = serde_json::json!({
            "name": "lan", "to": "interface = \"eth1\"", "switch": "san", "attached": true, "how": "XDP generic, copy, 1 queue"
        });
        other.uplinks = vec![serde_json::from_value(uplink).unwrap()];
        assert!(
            plain(&other).contains("lan     san     interface = \"eth1\"  yes       XDP generic, copy"),
            "{}",
            plain(&other)
        );
    }
}
