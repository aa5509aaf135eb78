//! `vmlane import vmx`, `ovf` and `libvirt`: VMs of other systems as a configuration of ours.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use vmlane_attach::qemu::shell_quoted;
use vmlane_config::Config;
use vmlane_import::{Configuration, Error, Host, MOST_BYTES, Machine, Options};

use super::images;
use crate::cmd::control::{json, print};

const HELP: &str = "The configuration goes to standard output; comments in it name what is left out or changed.
Network cards keep their MAC addresses, port groups and PCI slots (slot = 192: Linux calls the card ens192 again). VMs keep their CIDs.
Networks that were apart stay apart: each virtual switch becomes a [[switch]], and a network whose VLAN or switch is not known gets one of its own,
with a comment. Nothing leads out of a switch until you add an [[uplink]] to it. VMCI reaches other VMs only where it did before (vmci0.unrestricted); else the VM is restricted.

A VM's description does not contain the VLANs of its port groups: the hosts' listings do, which --listing reads (a file for each host).
`vmlane import esxi --help` names the commands that print them.

With --qemu the output is QEMU's arguments for processors, firmware and disks, a line for each VM, and the comments go to standard error; `vmlane attach VM --for qemu` prints those for its memory and vmlane's devices. Convert a disk first if it shall be qcow2: qemu-img convert -O qcow2 web.vmdk
web.qcow2. Disks in the folder of their description are examined: a note names files outside of it that they refer to, which QEMU would open.

Examples:
  vmlane import vmx web.vmx db.vmx --listing esx1.txt > /etc/vmlane/vmlane.toml
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
    /// What an old host's tools print of its networks; once for each host: see `vmlane import esxi --help`
    #[arg(long, value_name = "FILE")]
    listing: Vec<PathBuf>,
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
pub struct Vm {
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
        let hosts = hosts(&self.listing)?;
        let options = Options { group: self.group, cid: self.cid, hosts };
        let done = configuration(&machines, &options)?;
        let output = if self.json {
            let vm = |(name, machine): (&Option<String>, &Machine)| {
                let name = name.clone()?;
                let qemu = vmlane_import::words(&name, machine);
                Some(Vm { name, memory_mib: machine.memory_mib, qemu })
            };
            let vms: Vec<Vm> = done.names.iter().zip(&machines).filter_map(vm).collect();
            report(done, vms)?
        } else if self.qemu {
            done.notes.iter().for_each(|note| eprintln!("vmlane: note: {}", one_line(&note.to_string())));
            let vms = done.names.iter().zip(&machines);
            vms.filter_map(|(name, machine)| Some(line(name.as_ref()?, machine))).collect()
        } else {
            commented(&done)
        };
        print(&output)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The networks of hosts, a file each.
pub fn hosts(files: &[PathBuf]) -> anyhow::Result<Vec<Host>> {
    let host = |file: &PathBuf| {
        let name = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy();
        let name = if *file == Path::new("-") { "standard input" } else { &name };
        vmlane_import::host(name, bytes(file)?).with_context(|| format!("{}", file.display()))
    };
    files.iter().map(host).collect()
}

pub fn configuration(machines: &[Machine], options: &Options) -> anyhow::Result<Configuration> {
    let done = vmlane_import::configuration(machines, options);
    // Nothing in a description should lead to that; if it does, the lines that are named are to be seen.
    Config::parse(Path::new("the configuration"), &done.toml).with_context(|| {
        format!("the descriptions do not make a configuration that vmlane takes; it would be:\n{}", done.toml)
    })?;
    Ok(done)
}

/// The configuration, and what was changed or left out as comments at its head.
pub fn commented(done: &Configuration) -> String {
    let comment = |note: &vmlane_import::Note| format!("# {}\n", one_line(&note.to_string()));
    let comments: String = done.notes.iter().map(comment).collect();
    let gap = if comments.is_empty() { "" } else { "\n" };
    format!("{comments}{gap}{}", done.toml.trim_end()) + "\n"
}

/// The same as JSON.
pub fn report(done: Configuration, vms: Vec<Vm>) -> anyhow::Result<String> {
    let note = |note: vmlane_import::Note| Note { what: note.what, then: note.then };
    let notes = done.notes.into_iter().map(note).collect();
    Ok(json(&Report { toml: done.toml, vms, notes })?)
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
        "qemu-system-x86_64 -accel kvm -cpu host {} $(vmlane attach {name} --for qemu --words --mem {memory})\n",
        words.join(" ")
    )
}

fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}
