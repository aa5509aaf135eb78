//! `vmlane import vmx`, `ovf` and `libvirt`: VMs of other systems as a configuration of ours.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use vmlane_daemon::config::Config;
use vmlane_daemon::qemu::shell_quoted;
use vmlane_import::{Error, MOST_BYTES, Machine, Options, PortGroup};

use crate::cmd::control::{json, print};

const HELP: &str = "The configuration goes to standard output; what does not come along, or comes along otherwise than it was, is said there in comments.
Network cards keep their MAC addresses, port groups and PCI slots (slot = 192: Linux calls the card ens192 again). VMs keep their CIDs.

The VLANs of port groups are in no description of a VM. On the ESXi host, one of these prints them:
  esxcli network vswitch standard portgroup list > portgroups.txt
  esxcfg-vswitch -l > portgroups.txt

With --qemu the output is QEMU's words for processors, firmware and disks, a line for each VM; vmlane qemu-args VM has those for its memory and
vmlane's devices. Convert a disk first if it is to be QEMU's own: qemu-img convert -O qcow2 web.vmdk web.qcow2.

Examples:
  vmlane import vmx web.vmx db.vmx --port-groups portgroups.txt > /etc/vmlane/vmlane.toml
  vmlane import vmx web.vmx --qemu
  vmlane import ovf appliance.ovf --cid 100 --group tenant-1
  virsh dumpxml web | vmlane import libvirt -
  vmlane import vmx web.vmx --json | jq -r '.notes[] | .what + \": \" + .then'";

/// Turns descriptions of VMs into a configuration for vmlane.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The descriptions; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The CID of the first VM with VMCI or vsock, the others get the next ones; else each keeps its own
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..=2147483647))]
    cid: Option<u32>,
    /// The isolation group of the VMs
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// The port groups of the old host, with their VLANs, as esxcli or esxcfg-vswitch prints them
    #[arg(long, value_name = "FILE")]
    port_groups: Option<PathBuf>,
    /// Print what QEMU needs beside vmlane's devices instead, quoted for a shell
    #[arg(long)]
    qemu: bool,
    /// Print a JSON object: "toml", "vms" with QEMU's words, "notes"
    #[arg(long, conflicts_with = "qemu")]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    version: u32,
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

impl Args {
    pub fn run(self, parse: impl Fn(&str) -> Result<Vec<Machine>, Error>) -> anyhow::Result<ExitCode> {
        let mut machines = Vec::new();
        for file in &self.files {
            machines.extend(parse(&text(file)?).with_context(|| format!("{}", file.display()))?);
        }
        let port_groups = match &self.port_groups {
            Some(file) => {
                vmlane_import::port_groups(&text(file)?).with_context(|| format!("{}", file.display()))?
            }
            None => Vec::<PortGroup>::new(),
        };
        let options = Options { group: self.group, cid: self.cid, port_groups };
        let done = vmlane_import::configuration(&machines, &options);
        // Two VMs with one CID or MAC address, for instance.
        Config::parse(Path::new("the configuration"), &done.toml)
            .context("the descriptions do not make a configuration that vmlane takes; change what is named, or give --cid")?;
        let output = if self.json {
            let vm = |(name, machine): (&Option<String>, &Machine)| {
                let name = name.clone()?;
                let qemu = vmlane_import::words(&name, machine);
                Some(Vm { name, memory_mib: machine.memory_mib, qemu })
            };
            let vms = done.names.iter().zip(&machines).filter_map(vm).collect();
            let note = |note: vmlane_import::Note| Note { what: note.what, then: note.then };
            let notes = done.notes.into_iter().map(note).collect();
            json(&Report { version: 1, toml: done.toml, vms, notes })?
        } else if self.qemu {
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

fn text(file: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let most = MOST_BYTES as u64 + 1;
    if file == Path::new("-") {
        std::io::stdin().take(most).read_to_end(&mut bytes).context("cannot read standard input")?;
    } else {
        let open = std::fs::File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
        open.take(most).read_to_end(&mut bytes).with_context(|| format!("cannot read {}", file.display()))?;
    }
    ensure!(bytes.len() <= MOST_BYTES, "{}: a description has {MOST_BYTES} bytes at most", file.display());
    // Old files are in the code page of their host; what is not UTF-8 is shown as such.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The command that boots a VM.
fn line(name: &str, machine: &Machine) -> String {
    let words: Vec<String> =
        vmlane_import::words(name, machine).iter().map(|word| shell_quoted(word)).collect();
    let memory = machine.memory_mib.unwrap_or(1024);
    format!(
        "qemu-system-x86_64 -accel kvm -cpu host {} $(vmlane qemu-args {name} --words --mem {memory})\n",
        words.join(" ")
    )
}

fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}
