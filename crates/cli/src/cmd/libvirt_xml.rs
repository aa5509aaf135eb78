//! `vmlane libvirt-xml`: a libvirt domain for a configured VM. Needs the configuration, no running daemon.

use std::process::ExitCode;

use serde::Serialize;
use vmlane_daemon::vmm::libvirt;

use super::attach::{Report, Target};
use super::control::{json, print};

const EXAMPLES: &str = r#"Examples:
  vmlane libvirt-xml web > web.xml && virt-xml-validate web.xml domain
  vmlane libvirt-xml web --mem 4096 > web.xml && virsh define web.xml
  vmlane libvirt-xml web --json | jq -r .xml
  virt-xml-validate <(vmlane libvirt-xml web) domain

The domain is complete except for a disk: add one (virsh edit), or copy into an existing domain what that lacks:
<memoryBacking>, <interface type='vhostuser'>, <qemu:commandline> and the namespace of <domain>.

virtio NICs are ordinary libvirt interfaces. VMCI and VMXNET3 (vfio-user, QEMU 10.1 or newer) and
virtio-vsock over vhost-user have no element in libvirt and are in <qemu:commandline>; libvirt
marks such a domain as tainted and does not migrate these devices. Where AppArmor or SELinux confine
QEMU, allow it the sockets under the runtime directory. libvirt runs QEMU as a user of its own (libvirt-qemu
or qemu): give the VM owner = "libvirt-qemu" in the configuration."#;

/// Prints a libvirt domain for a VM of the configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Print a JSON object; its key "xml" is the text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Xml {
    xml: String,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (vm, paths) = self.target.find()?;
        let xml = libvirt::domain(&paths, &vm, self.target.mem)?;
        print(&if self.json { json(&Report::new(&vm, &paths, Xml { xml })?)? } else { xml })?;
        Ok(ExitCode::SUCCESS)
    }
}
