//! `vmlane import`: configurations of other programs as one of ours.

mod esxi;
mod images;
mod machines;
mod vhost_device_vsock;

use std::process::ExitCode;

use clap::Subcommand;

const EXAMPLES: &str = "Examples:
  vmlane import vmx web.vmx --listing esx1.txt > /etc/vmlane/vmlane.toml
  vmlane import esxi esx1.txt esx2.txt > /etc/vmlane/conf.d/10-networks.toml
  vmlane import ovf appliance.ovf --group tenant-1
  virsh dumpxml web | vmlane import libvirt -
  vmlane import vhost-device-vsock --config vsock.yaml > vmlane.toml
  vmlane import vhost-device-vsock --help";

/// Turns the configuration of another program into one of vmlane's.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// Convert VMware's configuration files (.vmx)
    Vmx(machines::MachineArgs),
    /// Convert the networks of ESXi hosts, as their tools print them
    Esxi(esxi::Args),
    /// Convert OVF envelopes (.ovf), as VMware exports them
    Ovf(machines::Ovf),
    /// Convert libvirt's domains (virsh dumpxml)
    Libvirt(machines::MachineArgs),
    /// Convert the command line, or the YAML, of vhost-device-vsock
    VhostDeviceVsock(vhost_device_vsock::Args),
}

impl ImportArgs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.from {
            From::Vmx(args) => args.run(|file| vmlane_import::vmx(file).map(|machine| vec![machine])),
            From::Esxi(args) => args.run(),
            From::Ovf(args) => args.run(),
            From::Libvirt(args) => args.run(|file| vmlane_import::libvirt(file).map(|machine| vec![machine])),
            From::VhostDeviceVsock(args) => args.run(),
        }
    }
}
