//! `vmlane release`.

use std::process::ExitCode;

use vmlane_api::call;

use super::control::Where;

const EXAMPLES: &str = "Examples:
  vmlane status --json | jq -r '.vms[] | select(.quarantined) | .name'
  vmlane release web

A VM is put in quarantine when its devices fail too often (fault_limit faults within fault_window_s seconds, table [daemon]
of the configuration): its devices still answer the guest but do nothing. After the release the guest's drivers must set the devices up again: by `ip link set DEV up`, a reload of the driver's module, or a reboot.";

/// Takes a VM's devices back into service after a quarantine
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the VM
    vm: String,
    #[command(flatten)]
    place: Where,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.place.connect()?.call(&call::Release { vm: self.vm })?;
        Ok(ExitCode::SUCCESS)
    }
}
