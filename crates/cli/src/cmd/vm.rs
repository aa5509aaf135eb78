//! `vmlane vm`: VMs that are added and removed while the daemon runs.

use std::fs::File;
use std::io::{Read, stdin};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use vmlane_api::{VmList, call};
use vmlane_config::added::MOST_BYTES;

use super::control::{Show, Where, json, print, table};
use super::vm_show;
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane vm add app.toml
  vmlane vm add --name app --cid 7 --nic 'model = \"virtio-net\", port_group = \"prod\"'
  vmlane attach app --for qemu
  vmlane vm list
  vmlane vm show app
  vmlane vm remove app

A VM that is added is served at once and by every later daemon, even after kill -9: the daemon keeps it in its state directory (/var/lib/vmlane/vms.d). The configuration's files are neither written nor read again, and a reload of them leaves
such VMs alone. Only administrators may add and remove VMs.";

const ADD_EXAMPLES: &str = "Examples:
  vmlane vm add app.toml
  vmlane vm add - < app.toml
  vmlane vm add --name app --cid 7 --group tenant-1 --owner libvirt-qemu
  vmlane vm add --name app --vsock none --nic 'model = \"vmxnet3\"' --nic 'model = \"virtio-net\", port_group = \"prod\"'

The file has one table [[vm]] as in a configuration, with all its keys, 16 KiB at most. What it refers to (port groups, VMs of forwards) must exist already. A name, CID or MAC address that another VM has is refused; the error names that VM and the file that describes it.";

/// Lists, shows, adds and removes VMs while the daemon runs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct VmArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    List(ListArgs),
    Show(vm_show::Args),
    Add(AddArgs),
    Remove(RemoveArgs),
}

/// Add a VM; it is kept across restarts
#[derive(Debug, clap::Args)]
#[command(after_help = ADD_EXAMPLES)]
struct AddArgs {
    /// File with the table [[vm]]; - is standard input
    #[arg(required_unless_present = "name")]
    file: Option<PathBuf>,
    #[command(flatten)]
    keys: Keys,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Where,
}

/// The usual keys of `[[vm]]`.
#[derive(Debug, clap::Args)]
#[group(conflicts_with = "file", multiple = true)]
struct Keys {
    /// Name of the VM
    #[arg(long)]
    name: Option<String>,
    /// Its CID
    #[arg(long, requires = "name", value_name = "NUMBER")]
    cid: Option<u32>,
    /// Its isolation group
    #[arg(long, requires = "name")]
    group: Option<String>,
    /// Its socket device: vmci, virtio, hybrid (the VMM's own) or none
    #[arg(long, requires = "name", value_name = "KIND")]
    vsock: Option<String>,
    /// Who may open its sockets: USER, USER:GROUP or :GROUP
    #[arg(long, requires = "name")]
    owner: Option<String>,
    /// A network card, by its keys as in the configuration (may be given several times)
    #[arg(long, requires = "name", value_name = "KEYS")]
    nic: Vec<String>,
}

/// Remove a VM that was added
#[derive(Debug, clap::Args)]
struct RemoveArgs {
    /// Name of the VM
    name: String,
    /// Remove it even if a VMM is attached: the VM loses its devices for good and must be shut down
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Where,
}

/// List all VMs, with the file that describes each
#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    show: Show,
}

/// How long the daemon may take.
const TIMEOUT: Duration = Duration::from_secs(60);

impl VmArgs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Add(args) => args.run(),
            What::Remove(args) => args.run(),
            What::Show(args) => args.run(),
            What::List(args) => {
                args.show.report(|client| client.call(&call::VmList {}), |list| Ok(plain(list)))
            }
        }
    }
}

impl AddArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        let text = match &self.file {
            Some(file) => read(file)?,
            None => self.keys.text(),
        };
        let mut client = self.place.connect()?.with_timeout(TIMEOUT);
        let added = client.call(&call::VmAdd { description: text })?;
        if self.json {
            print(&json(&added)?)?;
        } else {
            print(&format!("vm {:?}: added, and kept in {}\n", added.name, added.file))?;
            added.warnings.iter().for_each(|warning| eprintln!("{warning}"));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl RemoveArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        let mut client = self.place.connect()?.with_timeout(TIMEOUT);
        let removed = client.call(&call::VmRemove { name: self.name, force: Some(self.force) })?;
        if self.json {
            print(&json(&removed)?)?;
        } else {
            print(&format!("vm {:?}: removed\n", removed.name))?;
            removed.warnings.iter().for_each(|warning| eprintln!("{warning}"));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A description, of a length that the daemon takes.
fn read(file: &PathBuf) -> anyhow::Result<String> {
    let is_stdin = file.as_os_str() == "-";
    let shown = if is_stdin { "standard input".into() } else { file.display().to_string() };
    let mut text = String::new();
    let mut input: Box<dyn Read> = match is_stdin {
        true => Box::new(stdin()),
        false => Box::new(File::open(file).with_context(|| shown.clone())?),
    };
    let length =
        input.by_ref().take(MOST_BYTES + 1).read_to_string(&mut text).with_context(|| shown.clone())?;
    ensure!(length as u64 <= MOST_BYTES, "{shown}: a description may have {MOST_BYTES} bytes; shorten it");
    Ok(text)
}

impl Keys {
    /// The table that they stand for.
    fn text(&self) -> String {
        let mut text = "[[vm]]\n".to_owned();
        let texts =
            [("name", &self.name), ("group", &self.group), ("vsock", &self.vsock), ("owner", &self.owner)];
        for (key, value) in texts {
            value.iter().for_each(|value| text += &format!("{key} = {}\n", quoted(value)));
        }
        self.cid.iter().for_each(|cid| text += &format!("cid = {cid}\n"));
        if !self.nic.is_empty() {
            let nics = self.nic.iter().map(|keys| format!("{{ {keys} }}"));
            text += &format!("nic = [{}]\n", nics.collect::<Vec<_>>().join(", "));
        }
        text
    }
}

/// A TOML string.
fn quoted(value: &str) -> String {
    let mut text = "\"".to_owned();
    for letter in value.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            control if control.is_control() => text += &format!("\\u{:04X}", u32::from(control)),
            plain => text.push(plain),
        }
    }
    text + "\""
}

pub fn plain(list: &VmList) -> String {
    let mut rows = vec![row!["VM", "CID", "GROUP", "VSOCK", "NICS", "ATTACHED", "DESCRIBED IN"]];
    for vm in &list.vms {
        rows.push(row![
            vm.name,
            vm.cid.map_or_else(|| "-".into(), |cid| cid.to_string()),
            vm.group,
            vm.vsock,
            vm.nics,
            if vm.attached { "yes" } else { "no" },
            format!("{}:{}", vm.file, vm.line),
        ]);
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use vmlane_config::Config;

    use super::*;

    #[test]
    fn options_become_a_table_and_no_value_leaves_its_place() {
        let keys = Keys {
            name: Some("app".into()),
            cid: Some(7),
            group: Some("t-1".into()),
            vsock: Some("virtio".into()),
            owner: Some("7:8".into()),
            nic: vec!["model = \"vmxnet3\"".into(), "model = \"virtio-net\", mtu = 1500".into()],
        };
        let config = Config::parse(Path::new("t"), &keys.text()).unwrap();
        let vm = &config.vms[0];
        assert_eq!(
            (vm.name.as_str(), vm.cid, vm.group.as_str(), vm.vsock.name()),
            ("app", 7, "t-1", "virtio")
        );
        assert_eq!((vm.nics.len(), vm.nics[1].mtu, vm.owner.unwrap().gid), (2, 1500, Some(8)));
        let name = "a\"\ncid = 9\n[[control]]\nuid = 1\u{7f}\\\t";
        let keys =
            Keys { name: Some(name.into()), cid: None, group: None, vsock: None, owner: None, nic: vec![] };
        let read: toml::Table = keys.text().parse().unwrap();
        assert_eq!((read.len(), read["vm"][0]["name"].as_str()), (1, Some(name)));
    }
}
