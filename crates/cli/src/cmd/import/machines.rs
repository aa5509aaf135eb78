//! `vmlane import vmx`, `ovf` and `libvirt`: VMs of other systems as a configuration of ours.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use vmlane_attach::qemu::shell_quoted;
use vmlane_config::Config;
use vmlane_import::{Error, MOST_BYTES, Machine, Options, PortGroup};

use super::images;
use crate::cmd::control::{json, print};

const HELP: &str = "The configuration goes to standard output; comments in it name what is left out or changed.
Network cards keep their MAC addresses, port groups and PCI slots (slot = 192: Linux calls the card ens192 again). VMs keep their CIDs.
Networks that were apart stay apart: each virtual switch becomes a [[switch]], and a network whose VLAN or switch is not known gets one of its own,
with a comment. Nothing leads out of a switch until you add an [[uplink]] to it. VMCI reaches other VMs only where it did before (vmci0.unrestricted); else the VM is restricted.

A VM's description does not contain the VLANs of its port groups. On the ESXi host, one of these prints them:
  esxcli network vswitch standard portgroup list > portgroups.txt
  esxcfg-vswitch -l > portgroups.txt

With --qemu the output is QEMU's arguments for processors, firmware and disks, a line for each VM, and the comments go to standard error; `vmlane qemu-args VM` prints those for its memory and vmlane's devices. Convert a disk first if it shall be qcow2: qemu-img convert -O qcow2 web.vmdk
web.qcow2. Disks in the folder of their description are examined: a note names files outside of it that they refer to, which QEMU would open.

Examples:
  vmlane import vmx web.vmx db.vmx --port-groups portgroups.txt > /etc/vmlane/vmlane.toml
  vmlane import vmx web.vmx --qemu
  vmlane import ovf appliance.ovf --cid 100 --group tenant-1
  vmlane import ovf appliance.ovf --configuration small
  virsh dumpxml web | vmlane import libvirt -
  vmlane import vmx web.vmx --json | jq -r '.notes[] | .what + \": \" + .then'";

/// Turns descriptions of VMs into a configuration for vmlane.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct MachineArgs {
    /// The descriptions; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The CID of the first VM with VMCI or vsock; the others get the next ones [default: each VM's own]
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..=2147483647))]
    cid: Option<u32>,
    /// The isolation group of the VMs
    #[arg(long, value_name = "NAME", value_parser = group_name)]
    group: Option<String>,
    /// The port groups of the old host, with their VLANs, as esxcli or esxcfg-vswitch prints them
    #[arg(long, value_name = "FILE")]
    port_groups: Option<PathBuf>,
    /// Print QEMU's arguments for everything but vmlane's devices instead, quoted for a shell
    #[arg(long)]
    qemu: bool,
    /// Print a JSON object: "toml", "vms" with QEMU's arguments, "notes"
    #[arg(long, conflicts_with = "qemu")]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    toml: String,
    vms: Vec<Vm>,
    notes: Vec<Note>,
}

#[derive(Serialize)]
struct Vm {
    name: String,
    memory_mib: Option<u64>,
    qemu: Vec<String>,
}

#[derive(Serialize)]
struct Note {
    what: String,
    then: String,
}

/// Turns OVF envelopes into a configuration for vmlane: they have a choice that other descriptions do not.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Ovf {
    #[command(flatten)]
    args: MachineArgs,
    /// The deployment configuration of the envelope [default: the envelope's]
    #[arg(long, value_name = "NAME")]
    configuration: Option<String>,
}

impl Ovf {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Ovf { args, configuration } = self;
        args.run(|file| vmlane_import::ovf_with(file, configuration.as_deref()))
    }
}

/// Names of groups are as those of VMs.
fn group_name(name: &str) -> Result<String, String> {
    if vmlane_import::is_name(name) {
        return Ok(name.to_owned());
    }
    Err("use up to 64 letters, digits, '.', '_' and '-', a letter or digit first".into())
}

impl MachineArgs {
    pub fn run(self, parse: impl Fn(&[u8]) -> Result<Vec<Machine>, Error>) -> anyhow::Result<ExitCode> {
        let mut machines = Vec::new();
        for file in &self.files {
            let mut described = parse(&bytes(file)?).with_context(|| format!("{}", file.display()))?;
            described.iter_mut().for_each(|machine| images::note(file, machine));
            machines.extend(described);
        }
        let port_groups = match &self.port_groups {
            Some(file) => {
                vmlane_import::port_groups(bytes(file)?).with_context(|| format!("{}", file.display()))?
            }
            None => Vec::<PortGroup>::new(),
        };
        let options = Options { group: self.group, cid: self.cid, port_groups };
        let done = vmlane_import::configuration(&machines, &options);
        // Nothing in a description should lead to that; if it does, the lines that are named are to be seen.
        Config::parse(Path::new("the configuration"), &done.toml).with_context(|| {
            format!(
                "the descriptions do not make a configuration that vmlane takes; it would be:\n{}",
                done.toml
            )
        })?;
        let output = if self.json {
            let vm = |(name, machine): (&Option<String>, &Machine)| {
                let name = name.clone()?;
                let qemu = vmlane_import::words(&name, machine);
                Some(Vm { name, memory_mib: machine.memory_mib, qemu })
            };
            let vms = done.names.iter().zip(&machines).filter_map(vm).collect();
            let note = |note: vmlane_import::Note| Note { what: note.what, then: note.then };
            let notes = done.notes.into_iter().map(note).collect();
            json(&Report { toml: done.toml, vms, notes })?
        } else if self.qemu {
            done.notes.iter().for_each(|note| eprintln!("vmlane: note: {}", one_line(&note.to_string())));
            let vms = done.names.iter().zip(&machines);
            vms.filter_map(|(name, machine)| Some(line(name.as_ref()?, machine))).collect()
        } else {
            let comment = |note: &vmlane_import::Note| format!("# {}\n", one_line(&note.to_string()));
            let comments: String = done.notes.iter().map(comment).collect();
            let gap = if comments.is_empty() { "" } else { "\n" };
            format!("{comments}{gap}{}", done.toml.trim_end()) + "\n"
        };
        print(&output)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn bytes(file: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = MOST_BYTES as u64 + 1;
    if file == Path::new("-") {
        std::io::stdin().take(most).read_to_end(&mut bytes).context("cannot read standard input")?;
    } else {
        let open = std::fs::File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
        open.take(most).read_to_end(&mut bytes).with_context(|| format!("cannot read {}", file.display()))?;
    }
    ensure!(bytes.len() <= MOST_BYTES, "{}: a description has {MOST_BYTES} bytes at most", file.display());
    Ok(bytes)
}

/// The command that boots a VM.
fn line(name: &str, machine: &Machine) -> String {
    let words: Vec<String> =
        vmlane_import::words(name, machine).iter().map(|word| shell_quoted(word)).collect();
    let memory = machine.memory_mib.unwrap_or_else(|| {
        eprintln!("vmlane: note: {name}: memory: its description has no size; change --mem 1024");
        1024
    });
    format!(
        "qemu-system-x86_64 -accel kvm -cpu host {} $(vmlane qemu-args {name} --words --mem {memory})\n",
        words.join(" ")
    )
}

fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}
