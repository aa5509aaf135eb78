//! `vmlane vm show`: what the daemon reports of one VM, on one screen.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;
use vmlane_api::{Client, ClientError, Connection, ListedVm, NicStatus, SwitchPort, VmStats, VmStatus, call};

use super::control::{Show, bytes, table, unknown};
use super::ports::connections;
use super::stats;
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane vm show web
  vmlane vm show web --watch 2
  vmlane vm show web --json | jq '.ports[].drops'

TX and RX: frames in the guest's view. LOST OR REFUSED: counters of `vmlane stats web` that are not 0 and count something that did not succeed. BOUND: what the VM may use, as in `vmlane stats web`, where something was refused. The states are those of `vmlane status --help`. NETWORK: the port group (with its switch, if it is not the default one), the wire, or OVN's logical port.";

/// Show all about one VM: configuration, devices, connections, losses, how to attach it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the VM
    vm: String,
    #[command(flatten)]
    show: Show,
}

/// All about one VM, each part as its own command has it.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Shown {
    /// As in `vmlane vm list`.
    listed: ListedVm,
    status: VmStatus,
    stats: VmStats,
    connections: Vec<Connection>,
    ports: Vec<SwitchPort>,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.show.report(|client| ask(client, &self.vm), |shown| Ok(plain(shown)))
    }
}

fn ask(client: &mut Client, name: &str) -> Result<Shown, ClientError> {
    let mut list = client.call(&call::VmList {})?.vms;
    let (status, stats) = (client.call(&call::Status {})?, client.call(&call::Stats {})?);
    let ports = client.call(&call::Ports {})?;
    let index = list.iter().position(|vm| vm.name == name);
    let parts = (
        index.map(|index| list.swap_remove(index)),
        status.vms.into_iter().find(|vm| vm.name == name),
        stats.vms.into_iter().find(|vm| vm.name == name),
    );
    let (Some(listed), Some(status), Some(stats)) = parts else {
        return Err(unknown("VM", name, list.iter().map(|vm| vm.name.as_str())));
    };
    let connections = ports.connections.into_iter();
    let connections = connections.filter(|one| one.client_vm == name || one.server_vm == name);
    let of_it = |port: &SwitchPort| port.name.rsplit_once('/').is_some_and(|(vm, _)| vm == name);
    let ports = ports.switch.into_iter().filter(of_it);
    Ok(Shown { listed, status, stats, connections: connections.collect(), ports: ports.collect() })
}

pub fn plain(shown: &Shown) -> String {
    let bounds = stats::bounds([&shown.stats], |bound| bound.refused > 0);
    let parts = [head(shown), nics(shown), frames(shown), links(shown), losses(shown), bounds];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// What is configured, who is attached, and the device for sockets.
fn head(Shown { listed, status, stats, .. }: &Shown) -> String {
    let mut lines: Vec<(&str, String)> = Vec::new();
    let cid = listed.cid.map_or_else(String::new, |cid| format!("CID {cid}, "));
    lines.push(("VM", format!("{}: {cid}group {}", listed.name, listed.group)));
    let added = if listed.added { "added at run time, " } else { "" };
    lines.push(("described", format!("{added}{}:{}", listed.file, listed.line)));
    lines.extend(listed.owner.iter().map(|owner| ("owner", owner.clone())));
    let by = match (status.attached, status.vmm_pid) {
        (false, _) => "no".into(),
        (true, None) => "yes".into(),
        (true, Some(pid)) => format!("yes, process {pid}"),
    };
    lines.push(("attached", by));
    lines.extend(
        status.refused_vmm_pid.map(|pid| ("turned away", format!("process {pid}: a VM has one VMM"))),
    );
    if listed.vsock == "none" {
        lines.push(("vsock", "none".into()));
    } else {
        let pairs = match (listed.vsock.as_str(), bytes(status.queue_pair_bytes as f64)) {
            ("vmci", size) => format!(", {} queue pairs of {size}", status.queue_pairs),
            _ => String::new(),
        };
        lines.push(("vsock", format!("{}, {}{pairs}", listed.vsock, status.state)));
        // It has a device of one kind.
        let of = |vmci, vsock| bytes((stats.vmci.get(vmci) + stats.vsock.get(vsock)) as f64);
        let sent = of("stream_bytes_sent", "bytes_sent");
        let received = of("stream_bytes_received", "bytes_received");
        let open = status.connections;
        lines.push((
            "streams",
            format!("sent {sent}, received {received}, {open} connections (opened by it)"),
        ));
    }
    lines.extend(status.sockets.iter().map(|socket| ("socket", socket.clone())));
    lines.extend(status.nics.iter().map(|nic| ("socket", nic.socket.clone())));
    lines.extend(
        listed.forwards.iter().map(|one| ("forward", format!("CID 2, port {} to {}", one.port, one.to))),
    );
    if status.quarantined {
        let faults = status.faults;
        lines
            .push(("quarantine", format!("after {faults} faults; `vmlane release {}` ends it", listed.name)));
    }
    let vmm = if listed.vsock == "hybrid" { "firecracker" } else { "qemu" };
    lines.push(("to attach", format!("vmlane attach {} --for {vmm}", listed.name)));
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{:13}{value}", format!("{name}:"));
        text
    })
}

/// Where a NIC leads.
fn network(nic: &NicStatus) -> String {
    match (&nic.ovn, nic.switch.as_str()) {
        (Some(ovn), _) => format!("ovn:{}", ovn.port),
        (None, wire) if wire.starts_with("wire:") => wire.to_owned(),
        (None, "" | "default") => nic.port_group.clone(),
        (None, switch) => format!("{switch} {}", nic.port_group),
    }
}

/// A VMXNET3 card of the usual kind or of another profile, or a virtio one.
fn model(nic: &NicStatus) -> String {
    match nic.profile.as_str() {
        known @ ("vmxnet3" | "virtio-net") => known.to_owned(),
        profile => format!("vmxnet3 {profile}"),
    }
}

fn nics(Shown { status, ports, listed, .. }: &Shown) -> String {
    let mut rows = vec![row!["NIC", "MODEL", "MAC", "NETWORK", "VLAN", "LINK", "STATE"]];
    for nic in &status.nics {
        let name = format!("{}/{}", listed.name, nic.name);
        let vlan = ports.iter().find(|port| port.name == name).map_or("-", |port| port.vlan.as_str());
        let link = if nic.link_down { "down" } else { "up" };
        rows.push(row![nic.name, model(nic), nic.mac, network(nic), vlan, link, nic.state]);
    }
    if rows.len() > 1 { table(&rows) } else { String::new() }
}

fn frames(Shown { stats, .. }: &Shown) -> String {
    let mut rows = vec![row!["NIC", "TX", "TX BYTES", "RX", "RX BYTES", "DROPPED"]];
    for nic in &stats.nics {
        let (count, size) = (|name| nic.port.get(name), |name| bytes(nic.port.get(name) as f64));
        let drops = nic.port.iter().filter(|(name, _)| name.starts_with("drop_"));
        let dropped: u64 = drops.map(|(_, value)| value).sum();
        let (tx, rx) = (count("tx_frames"), count("rx_frames"));
        rows.push(row![nic.name, tx, size("tx_bytes"), rx, size("rx_bytes"), dropped]);
    }
    if rows.len() > 1 { table(&rows) } else { String::new() }
}

fn links(Shown { connections: all, .. }: &Shown) -> String {
    if all.is_empty() { String::new() } else { connections(all) }
}

/// Beginnings of counters that count what did not succeed.
const LOSSES: [&str; 17] = [
    "bad_",
    "broken_",
    "connects_refused",
    "drop_",
    "errors",
    "forged",
    "late",
    "lost_",
    "malformed",
    "multicast_refused",
    "not_owner",
    "over_",
    "panics",
    "protocol_errors",
    "refused",
    "resets_sent",
    "stalled",
];

fn losses(Shown { stats, .. }: &Shown) -> String {
    let mut rows = vec![row!["LOST OR REFUSED", "VALUE"]];
    for (part, list) in stats::lists(stats) {
        let of_loss = |name: &str| LOSSES.iter().any(|start| name.starts_with(start));
        let met = list.iter().filter(|(name, value)| *value > 0 && of_loss(name));
        rows.extend(met.map(|(name, value)| row![format!("{part}.{name}"), value]));
    }
    if rows.len() > 1 { table(&rows) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn losses_and_bounds_have_the_names_that_stats_has() {
        let listed = json!({"name": "web", "group": "default", "vsock": "vmci", "nics": 1, "attached": false,
                            "added": false, "file": "vmlane.toml", "line": 1, "forwards": []});
        let status = json!({"name": "web", "cid": 3, "group": "default", "vsock": "vmci", "attached": false,
                            "ready": false, "sockets": [], "queue_pairs": 0, "queue_pair_bytes": 0,
                            "connections": 0, "doorbells": 0, "inbox_bytes": 0, "nics": []});
        let stats = json!({
            "name": "web", "cid": 3, "vmci": {"refused_full": 3, "datagrams_sent": 9}, "session": {},
            "nics": [{"name": "nic0", "device": {}, "session": {}, "port": {"drop_no_buffers": 7}}],
            "bounds": [{"name": "queue_pairs", "used": 4, "limit": 4, "refused": 2},
                       {"name": "connections", "used": 1, "limit": 9, "refused": 0}]
        });
        let shown =
            json!({"listed": listed, "status": status, "stats": stats, "connections": [], "ports": []});
        let shown: Shown = from_value(shown).unwrap();
        let text = losses(&shown);
        let names: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names, ["web.vmci.refused_full", "web.nic0.port.drop_no_buffers"]);
        let whole = stats::plain(
            &vmlane_api::Stats { vms: vec![shown.stats.clone()], ..Default::default() },
            None,
            false,
            false,
        );
        assert!(names.iter().all(|name| whole.contains(name)), "{whole}");
        let text = plain(&shown);
        assert!(
            text.ends_with("BOUND            USED  LIMIT  REFUSED\nweb.queue_pairs     4      4        2\n"),
            "{text}"
        );
    }
}
