//! `vmlane proxmox-args`: what a VM of Proxmox VE needs. Needs the configuration, no running daemon.

use std::process::ExitCode;

use serde::Serialize;
use vmlane_attach::proxmox;
use vmlane_attach::qemu::check_sockets;

use super::control::{json, print};
use super::target::{Report, Target};

const EXAMPLES: &str = r#"Examples:
  qm set 100 --machine q35 --memory 2048 --numa 0 --args "$(vmlane proxmox-args web --mem 2048)"
  vmlane proxmox-args web --mem 2048 --json | jq -r .args
  echo "args: $(vmlane proxmox-args web --mem 2048)" >> /etc/pve/qemu-server/100.conf

The VM's memory and --mem must be the same number. Ballooning may stay on; NUMA and hugepages must be off in Proxmox,
because these arguments define the memory. VMCI and VMXNET3 need QEMU 10.1 or newer
(pve-qemu-kvm), virtio devices any. Proxmox does not migrate VMs that have args."#;

/// Prints the value of `args` for a VM of Proxmox VE.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Print a JSON object; its key "args" is the value
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Value {
    args: String,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (vm, paths) = self.target.find()?;
        check_sockets(&vm)?;
        let args = proxmox::args(&paths, &vm, self.target.mem)?;
        let text = if self.json { json(&Report::new(&vm, &paths, Value { args })?)? } else { args + "\n" };
        print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
