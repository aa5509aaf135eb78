//! `vmlane libvirt-hook`: what libvirt asks before it starts a domain. packaging/libvirt/qemu calls it.

use std::io::{self, Read};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use vmlane_access::Accounts;
use vmlane_api::{Client, VmStatus, call};
use vmlane_attach::libvirt::MOST_BYTES;
use vmlane_attach::libvirt::hook::{Operation, Start, concerns, judge};
use vmlane_config::VmConfig;
use vmlane_config::paths::Paths;

use super::target::ConfigPlace;

/// libvirt waits for its hooks, and the administrator for libvirt.
const TIMEOUT: Duration = Duration::from_secs(5);

const EXAMPLES: &str = r#"Examples:
  ln -s /usr/share/vmlane/libvirt/qemu /etc/libvirt/hooks/qemu.d/vmlane && systemctl restart libvirtd
  virsh dumpxml --inactive web | vmlane libvirt-hook web prepare begin -

Before it starts a domain, libvirt runs the hook with the domain's name, an operation and its part, and the domain's XML on
standard input; if the hook fails, the domain does not start, and libvirt's error has the reason.

A domain is the VM of its name, or the one whose configuration has domain = "NAME" or domain = "UUID". The hook refuses a
domain that uses sockets of another VM or lacks some of its own, that has another MAC address, another user (<seclabel
model='dac'>) or memory that is not shared, that runs as the owner of a VM without being it, and one whose daemon does not
run or has not applied the configuration. It refuses to restore or migrate a VM unless that has nothing but virtio NICs.
Domains that have nothing to do with vmlane start as ever. CID, group and port groups come from vmlane's configuration."#;

/// Judges a domain that libvirt is about to start.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the domain
    domain: String,
    /// What libvirt is about to do: prepare, restore and migrate are checked, all else is accepted
    operation: String,
    /// Part of the operation: begin, end or -
    #[arg(default_value = "-")]
    part: String,
    /// Further arguments of libvirt
    #[arg(hide = true)]
    rest: Vec<String>,
    #[command(flatten)]
    place: ConfigPlace,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Some(operation) = Operation::of(&self.operation, &self.part) else {
            return Ok(ExitCode::SUCCESS);
        };
        self.judge(operation).with_context(|| format!("domain {:?} does not start", self.domain))?;
        Ok(ExitCode::SUCCESS)
    }

    fn judge(&self, operation: Operation) -> anyhow::Result<()> {
        let mut xml = String::new();
        io::stdin().take(MOST_BYTES as u64 + 1).read_to_string(&mut xml).context("its XML")?;
        let paths = Paths::new(&self.place.runtime_dir)?;
        let config = match self.place.config() {
            Ok((config, _)) => config,
            // Domains of others must not wait for vmlane's configuration to be right.
            Err(_) if !concerns(&xml, &paths) => return Ok(()),
            Err(error) => return Err(error),
        };
        let start = Start { name: &self.domain, operation, xml: &xml };
        let Some(vm) = judge(&config, &paths, &Accounts::host(), start)? else { return Ok(()) };
        let mut client = Client::connect(paths.runtime())
            .with_context(|| format!("VM {} needs the daemon (systemctl start vmlane)", vm.name))?
            .with_timeout(TIMEOUT);
        let status = client.call(&call::Status {})?;
        let served = status.vms.iter().find(|served| served.name == vm.name);
        let Some(served) = served else {
            bail!("the daemon does not serve VM {} yet: run `vmlane reload`", vm.name);
        };
        in_force(vm, served)
    }
}

/// The daemon serves the VM as the configuration has it, and it can be attached.
fn in_force(vm: &VmConfig, served: &VmStatus) -> anyhow::Result<()> {
    let name = &vm.name;
    let cid = (vm.cid != 0).then_some(vm.cid);
    let nics = vm.nics.iter().map(|nic| (nic.mac.to_string(), nic.port_group.as_str()));
    let now = served.nics.iter().map(|nic| (nic.mac.clone(), nic.port_group.as_str()));
    if (cid, vm.group.as_str()) != (served.cid, served.group.as_str()) || !nics.eq(now) {
        bail!(
            "the daemon serves VM {name} with another CID, group or NIC than in the configuration: run `vmlane reload`"
        );
    }
    if served.quarantined {
        bail!(
            "VM {name} is in quarantine because its devices failed too often: see the daemon's log, then run `vmlane release {name}`"
        );
    }
    Ok(())
}
