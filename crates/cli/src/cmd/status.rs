//! `vmlane status`.

use std::process::ExitCode;

use vmlane_api::{Client, Status};

use super::control::{Show, bytes, table};
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane status
  vmlane status --json | jq -r '.vms[] | select(.ready) | .name'
  vmlane status --interval 2

attached: a VMM is connected. ready: the guest's driver has set the device up.";

/// Shows the daemon and its VMs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    show: Show,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.show.report(Client::status, |status| Ok(plain(status)))
    }
}

fn plain(status: &Status) -> String {
    let mut rows = vec![row![
        "VM",
        "CID",
        "GROUP",
        "ATTACHED",
        "READY",
        "CONNECTIONS",
        "QUEUE PAIRS",
        "QUEUES",
        "SOCKET"
    ]];
    for vm in &status.vms {
        rows.push(row![
            vm.name,
            vm.cid,
            vm.group,
            yes(vm.attached),
            yes(vm.ready),
            vm.connections,
            vm.queue_pairs,
            bytes(vm.queue_pair_bytes as f64),
            vm.sockets.join(" "),
        ]);
    }
    format!(
        "vmlane {}, pid {}, up {:.0} s, {} worker{} ({}), configuration {}\n{}",
        status.daemon,
        status.pid,
        status.uptime_seconds,
        status.workers,
        if status.workers == 1 { "" } else { "s" },
        status.mode,
        status.config,
        table(&rows)
    )
}

fn yes(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}
