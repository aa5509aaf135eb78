//! `vmlane libvirt-xml`: a libvirt domain for a configured VM. Needs the configuration, no running daemon.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::Serialize;
use vmlane_attach::libvirt::{Attach, MOST_BYTES};
use vmlane_attach::qemu::{Qemu, check_sockets};
use vmlane_config::VmConfig;

use super::control::{json, print};
use super::emulator::version_of;
use super::target::{Report, Target};

const EXAMPLES: &str = r#"Examples:
  vmlane libvirt-xml web > web.xml && virsh define web.xml
  vmlane libvirt-xml web --mem 4096 --emulator /opt/qemu/bin/qemu-system-x86_64 > web.xml
  virsh dumpxml --inactive web | vmlane libvirt-xml web --into - > web.xml && virsh define web.xml
  vmlane libvirt-xml web --json | jq -r '.xml, .notes[]'
  virt-xml-validate <(vmlane libvirt-xml web) domain

The domain that is printed is complete except for a disk. --into prints an existing domain with the VM's devices put in:
shared memory, the VM's owner as the user of QEMU (<seclabel model='dac'>), an interface of type vhostuser for each
virtio NIC, and all other devices in <qemu:commandline>. An interface that has the MAC address of one of the VM's NICs is
replaced by it. Everything else stays as it is, and a second time changes nothing.

VMCI and VMXNET3 (vfio-user) need QEMU 10.1 or newer as the domain's <emulator>. libvirt marks a domain with
<qemu:commandline> as tainted. Give each VM an owner of its own in the configuration (owner = "vm-web"): libvirt then runs
its QEMU as that user, and no other domain can open its sockets. docs/guide/libvirt.md has the details."#;

/// Prints a libvirt domain for a VM of the configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Print this domain with the VM's devices put in; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "mem")]
    into: Option<PathBuf>,
    /// The domain's QEMU program, whose version is used
    #[arg(long, value_name = "PATH")]
    emulator: Option<PathBuf>,
    /// Print a JSON object; its key "xml" is the text, "notes" lists remarks on it
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Xml {
    xml: String,
    notes: Vec<String>,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (config, vm, paths) = self.target.find_in()?;
        check_sockets(&vm)?;
        if let Some(path) = &self.emulator {
            judge(path, &vm)?;
        }
        let attach = Attach { config: &config, paths: &paths, vm: &vm, emulator: self.emulator.as_deref() };
        let domain = match &self.into {
            None => attach.domain(self.target.mem)?,
            Some(file) => {
                let existing = read(file).with_context(|| format!("domain {}", file.display()))?;
                attach.put_into(&existing).with_context(|| file.display().to_string())?
            }
        };
        let (xml, notes) = (domain.xml, domain.notes);
        if self.json {
            print(&json(&Report::new(&vm, &paths, Xml { xml, notes })?)?)?;
        } else {
            notes.iter().for_each(|note| eprintln!("vmlane: note: {note}"));
            print(&xml)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A domain's text, or standard input's.
fn read(file: &Path) -> anyhow::Result<String> {
    let input: Box<dyn Read> =
        if file == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(file)?) };
    let mut text = String::new();
    input.take(MOST_BYTES as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// Asks a QEMU for its version, and judges whether that has the VM's devices.
fn judge(emulator: &Path, vm: &VmConfig) -> anyhow::Result<()> {
    let name = emulator.display();
    if !emulator.is_absolute() {
        bail!("--emulator {name}: libvirt needs an absolute path");
    }
    let version = version_of(emulator)?;
    Ok(Qemu { version, ..Qemu::default() }.check(vm)?)
}
