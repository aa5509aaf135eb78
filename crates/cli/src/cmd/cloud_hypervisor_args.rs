//! `vmlane cloud-hypervisor-args`: how Cloud Hypervisor attaches a configured VM. Needs the configuration, no
//! running daemon.

use std::process::ExitCode;

use vmlane_attach::cloud_hypervisor;
use vmlane_attach::qemu::shell_quoted;

use super::control::{json, print};
use super::target::{Arguments, Report, Target};

const EXAMPLES: &str = r#"Examples:
  vmlane cloud-hypervisor-args web --mem 2048
  eval "cloud-hypervisor --kernel vmlinux --disk path=web.raw $(vmlane cloud-hypervisor-args web)"
  vmlane cloud-hypervisor-args web --json | jq -r '.args[]'

The arguments are quoted for a shell: `eval` them, or use --json. Do not pass --memory, --net, --vsock,
--generic-vhost-user or --user-device yourself, or merge the values: each option may be given only once.
virtio NICs need no particular version; virtio-vsock needs one with --generic-vhost-user (version 52
calls the key virtio_id, later ones device_type).
With vsock = "hybrid", the device is Cloud Hypervisor's own (--vsock): start it with umask 007. VMCI and VMXNET3 go through --user-device.
This has not been tested with Cloud Hypervisor yet."#;

/// Prints Cloud Hypervisor's arguments for a VM of the configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Print a JSON object; its key "args" is the list of arguments
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (vm, paths) = self.target.find()?;
        let args = cloud_hypervisor::arguments(&paths, &vm, self.target.mem)?;
        let text = if self.json {
            json(&Report::new(&vm, &paths, Arguments { args: &args })?)?
        } else {
            args.iter().map(|word| shell_quoted(word)).collect::<Vec<_>>().join(" ") + "\n"
        };
        print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
