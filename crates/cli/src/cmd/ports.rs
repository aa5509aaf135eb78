//! `vmlane ports`.

use std::process::ExitCode;

use vmlane_api::{Client, Ports};

use super::control::{Show, table};
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane ports
  vmlane ports --json | jq -r '.connections[] | select(.server_port == 5000) | .client_vm'";

/// Shows the stream connections between VMs
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
    table(&rows)
}
