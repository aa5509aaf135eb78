//! `vmlane ports`.

use std::process::ExitCode;

use vmlane_api::{Client, Ports};

use super::control::{Show, table};
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane ports
  vmlane ports --json | jq -r '.connections[] | select(.server_port == 5000) | .client_vm'
  vmlane ports --json | jq -r '.switch[] | select(.dropped > 0) | .name'

TX and RX are frames as the guest sees them; `vmlane stats` says why frames were dropped.";

/// Shows the stream connections between VMs and the ports of the switch
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    show: Show,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.show.report(Client::ports, |ports| Ok(plain(ports)))
    }
}

fn plain(ports: &Ports) -> String {
    let mut rows = vec![row!["CLIENT", "ADDRESS", "SERVER", "ADDRESS", "STATE"]];
    for connection in &ports.connections {
        rows.push(row![
            connection.client_vm,
            format!("{}:{}", connection.client_cid, connection.client_port),
            connection.server_vm,
            format!("{}:{}", connection.server_cid, connection.server_port),
            connection.state,
        ]);
    }
    let mut text = table(&rows);
    if !ports.switch.is_empty() {
        let mut rows =
            vec![row!["PORT", "KIND", "GROUP", "VLAN", "MAC", "ACTIVE", "LINK", "TX", "RX", "DROPPED"]];
        for port in &ports.switch {
            let active = if port.active { "yes" } else { "no" };
            rows.push(row![
                port.name,
                port.kind,
                port.group,
                port.vlan,
                port.mac,
                active,
                if port.link_down { "down" } else { "up" },
                port.tx_frames,
                port.rx_frames,
                port.dropped,
            ]);
        }
        text += "\n";
        text += &table(&rows);
    }
    text
}
