//! `vmlane ports`.

use std::process::ExitCode;

use vmlane_api::{Connection, Ports, call};

use super::control::{Show, bytes, table, teams};
use super::mirror::mirrors;
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane ports
  vmlane ports --watch 1
  vmlane ports --macs
  vmlane ports --json | jq -r '.connections[] | select(.server_port == 5000) | .client_vm'
  vmlane ports --json | jq -r '.switch[] | select(.dropped > 0) | .name'

TX and RX: frames in the guest's view; `vmlane stats` shows why frames were dropped. BYTES are in units of 1024. MACS: addresses learned on this port; --macs lists them. SWITCH, if there are several: the one that the port is on, or wire:NAME (`vmlane wire list`). WORKER, if there are several: the one that serves the port (switch-N in `vmlane top`). Mirrors and teams are listed below the ports. STATE of a team: which uplinks are in use, and why others are not. FAILOVERS: links lost while in use.";

/// Shows the stream connections between VMs and the ports of the switch
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// List the addresses of each port: its own, and those learned on it
    #[arg(long)]
    macs: bool,
    #[command(flatten)]
    show: Show,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let text = if self.macs { addresses } else { plain };
        self.show.report(|client| client.call(&call::Ports {}), |ports| Ok(text(ports)))
    }
}

/// A table of stream connections.
pub fn connections(connections: &[Connection]) -> String {
    let mut rows = vec![row!["CLIENT", "ADDRESS", "SERVER", "ADDRESS", "STATE"]];
    for connection in connections {
        rows.push(row![
            connection.client_vm,
            format!("{}:{}", connection.client_cid, connection.client_port),
            connection.server_vm,
            format!("{}:{}", connection.server_cid, connection.server_port),
            connection.state,
        ]);
    }
    table(&rows)
}

pub fn plain(ports: &Ports) -> String {
    let mut text = connections(&ports.connections);
    if !ports.switch.is_empty() {
        text += &format!("\n{}\n{}", states(ports), traffic(ports));
    }
    if !ports.mirrors.is_empty() {
        text += "\n";
        text += &mirrors(&ports.mirrors);
    }
    text + &teams(&ports.teams)
}

/// A line for each port: what it is, and whether frames pass.
fn states(ports: &Ports) -> String {
    let mut rows = vec![row!["PORT", "GROUP", "VLAN", "MAC", "ACTIVE", "LINK", "MACS"]];
    // With one of them it is of no use.
    let switches = switches(ports);
    rows.iter_mut().filter(|_| switches).for_each(|header| header.push("SWITCH".into()));
    for port in &ports.switch {
        let active = if port.active { "yes" } else { "no" };
        let link = if port.link_down { "down" } else { "up" };
        let mut row = row![port.name, port.group, port.vlan, port.mac, active, link, port.learned.len()];
        row.extend(switches.then(|| port.switch.clone()));
        rows.push(row);
    }
    table(&rows)
}

/// A line for each port: what passed it.
fn traffic(ports: &Ports) -> String {
    let mut rows = vec![row!["PORT", "TX", "TX BYTES", "RX", "RX BYTES", "DROPPED"]];
    let several = ports.switch.iter().any(|port| port.worker > 0);
    rows.iter_mut().filter(|_| several).for_each(|header| header.push("WORKER".into()));
    for port in &ports.switch {
        let (tx, rx) = (bytes(port.tx_bytes as f64), bytes(port.rx_bytes as f64));
        let mut row = row![port.name, port.tx_frames, tx, port.rx_frames, rx, port.dropped];
        row.extend(several.then(|| port.worker.to_string()));
        rows.push(row);
    }
    table(&rows)
}

/// Are ports on several switches?
fn switches(ports: &Ports) -> bool {
    let mut names = ports.switch.iter().map(|port| &port.switch);
    names.next().is_some_and(|first| names.any(|other| other != first))
}

/// A line for each address.
pub fn addresses(ports: &Ports) -> String {
    let mut rows = vec![row!["PORT", "GROUP", "MAC", "VLAN", "HOW", "SECONDS"]];
    for port in &ports.switch {
        let own = (port.kind == "nic").then_some((&port.mac, "configured"));
        let used = port
            .mac_in_use
            .iter()
            .filter(|used| **used != port.mac)
            .map(|used| (used, "chosen by its guest"));
        for (mac, how) in own.into_iter().chain(used) {
            rows.push(row![port.name, port.group, mac, "-", how, "-"]);
        }
        for learned in &port.learned {
            let vlan = if learned.vlan == 0 { "-".into() } else { learned.vlan.to_string() };
            rows.push(row![port.name, port.group, learned.mac, vlan, "learned", learned.seconds]);
        }
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use vmlane_api::{LearnedMac, Mirror, SwitchPort, TeamMemberStatus, TeamStatus};

    use super::*;

    #[test]
    fn addresses_are_listed_with_how_they_are_known() {
        let learned = vec![LearnedMac { mac: "02:00:00:00:00:99".into(), vlan: 10, seconds: 7 }];
        let port = SwitchPort {
            name: "web/nic0".into(),
            kind: "nic".into(),
            group: "default".into(),
            switch: "default".into(),
            vlan: "trunk".into(),
            mac: "52:54:00:00:00:01".into(),
            active: true,
            link_down: false,
            worker: 1,
            tx_frames: 1,
            rx_frames: 2,
            dropped: 3,
            tx_bytes: 60,
            rx_bytes: 2048,
            drops: Default::default(),
            mac_in_use: Some("52:54:00:00:00:02".into()),
            learned,
        };
        let mirror = Mirror {
            name: "ids".into(),
            from: vec!["prod".into(), "lan".into()],
            ports: vec!["web/nic0".into(), "lan".into()],
            to: "far".into(),
            direction: "in".into(),
            vlan: Some(900),
            snap: None,
            configured: true,
            frames: 5,
            bytes: 640,
            dropped: 6,
            drops: Default::default(),
        };
        let member = |uplink: &str, standby, active, why: &str| TeamMemberStatus {
            uplink: uplink.into(),
            standby,
            active,
            why: why.into(),
        };
        let team = TeamStatus {
            name: "lan".into(),
            policy: "mac".into(),
            failback: true,
            notify: true,
            members: vec![member("up0", false, false, "link down"), member("up1", true, true, "active")],
            counters: [("failovers", 7)].into_iter().collect(),
        };
        let mirrors = vec![mirror];
        let ports =
            Ports { connections: vec![], switch: vec![port], wires: vec![], mirrors, teams: vec![team] };
        let text = addresses(&ports);
        for words in
            ["52:54:00:00:00:01  -     configured", ":02  -     chosen by its guest", ":99  10    learned"]
        {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
        let text = plain(&ports);
        assert!(text.contains("2.0 KiB") && text.contains("up"), "{text}");
        assert!(
            text.contains("ids     prod,lan  far  in          900  -          5  640 B        6"),
            "{text}"
        );
        for words in ["lan   mac     up0     link down", "up1     active, for one that failed          7"] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
    }
}
