//! `vmlane import vhost-device-vsock`: its options and its YAML (version 0.3.0) as a configuration of ours.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use vmlane_config::Config;
use yaml_rust2::{Yaml, YamlLoader};

use crate::cmd::control::{json, print};

const EXAMPLES: &str = "Examples:
  vmlane import vhost-device-vsock --config vsock.yaml > /etc/vmlane/vmlane.toml
  vmlane import vhost-device-vsock \\
    --vm guest-cid=3,socket=/tmp/vhost3.socket,uds-path=/tmp/vm3.vsock,groups=a \\
    --vm guest-cid=4,socket=/tmp/vhost4.socket,uds-path=/tmp/vm4.vsock,groups=a
  vmlane import vhost-device-vsock --guest-cid=4 --socket=/tmp/vhost4.socket --uds-path=/tmp/vm4.vsock
  vmlane import vhost-device-vsock --config vsock.yaml --json | jq -r .toml

Give the arguments with which vhost-device-vsock was started. VMs are named vmCID. Comments in the output name the sockets that have new paths: vmlane's are in the runtime directory, and `ln -s` keeps the old paths working. Sizes of buffers and queues are ignored: vmlane has no such settings. VMs in several groups are accepted if one group per VM can express who reaches
whom.";

const DEFAULT_CID: u64 = 3;
const DEFAULT_GROUP: &str = "default";
/// The host, for a Nitro enclave.
const PARENT: u64 = 3;

/// Takes the command line, or the YAML, of vhost-device-vsock.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The YAML file of vhost-device-vsock
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vm", "socket"])]
    config: Option<PathBuf>,
    /// A VM, as keys and values (may be given several times)
    #[arg(long, value_name = "KEY=VALUE,...", conflicts_with = "socket")]
    vm: Vec<String>,
    /// The CID of the VM
    #[arg(long, value_name = "CID")]
    guest_cid: Option<u64>,
    /// Its vhost-user socket
    #[arg(long, value_name = "PATH", required_unless_present_any = ["config", "vm"])]
    socket: Option<String>,
    /// The Unix socket through which programs of the host reach the VM
    #[arg(long, value_name = "PATH")]
    uds_path: Option<String>,
    /// The CID that the VM's connections to CID 2 are forwarded to
    #[arg(long, value_name = "CID")]
    forward_cid: Option<u64>,
    /// The ports of CID 2 that are forwarded to it
    #[arg(long, value_name = "PORT+PORT...")]
    forward_listen: Option<String>,
    /// Bytes of its buffers (ignored)
    #[arg(long, value_name = "BYTES")]
    tx_buffer_size: Option<u64>,
    /// Descriptors of its queues (ignored)
    #[arg(long, value_name = "DESCRIPTORS")]
    queue_size: Option<u64>,
    /// The groups of the VM
    #[arg(long, value_name = "NAME+NAME...")]
    groups: Option<String>,
    /// Print a JSON object; its key "toml" is the text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    toml: String,
}

/// One VM as it was.
#[derive(Debug, Default)]
struct Vm {
    cid: Option<u64>,
    socket: String,
    uds_path: Option<String>,
    forward_cid: Option<u64>,
    forward_listen: Vec<u64>,
    groups: BTreeSet<String>,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let json_wanted = self.json;
        let toml = toml(&self.vms()?)?;
        // What we print is what the daemon takes.
        Config::parse(Path::new("the imported configuration"), &toml)?;
        print(&if json_wanted { json(&Report { toml })? } else { toml })?;
        Ok(ExitCode::SUCCESS)
    }

    fn vms(self) -> anyhow::Result<Vec<Vm>> {
        if let Some(path) = &self.config {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("reading {}", path.display()))?;
            return yaml(&text).with_context(|| path.display().to_string());
        }
        if !self.vm.is_empty() {
            return self.vm.iter().map(|text| line(text).with_context(|| format!("--vm {text}"))).collect();
        }
        let mut vm = Vm { cid: self.guest_cid, uds_path: self.uds_path, ..Vm::default() };
        vm.socket = self.socket.unwrap_or_default();
        vm.forward_cid = self.forward_cid;
        let mut given = |key, value: Option<String>| value.map_or(Ok(()), |value| vm.set(key, &value));
        given("forward_listen", self.forward_listen)?;
        given("groups", self.groups)?;
        Ok(vec![vm])
    }
}

impl Vm {
    fn set(&mut self, key: &str, value: &str) -> anyhow::Result<()> {
        let number = |word: &str| word.parse().with_context(|| format!("{key}={value}: not a number"));
        match key.replace('-', "_").as_str() {
            "guest_cid" => self.cid = Some(number(value)?),
            "socket" => self.socket = value.trim().into(),
            "uds_path" => self.uds_path = Some(value.trim().into()),
            "forward_cid" => self.forward_cid = Some(number(value)?),
            "forward_listen" => {
                self.forward_listen = value.trim().split('+').map(number).collect::<Result<_, _>>()?;
            }
            "groups" => self.groups = value.trim().split('+').map(str::to_owned).collect(),
            // Memory of the device's own; ours has none.
            "tx_buffer_size" | "queue_size" => drop(number(value)?),
            _ => bail!(
                "unknown key {key}; known are guest-cid, socket, uds-path, forward-cid, forward-listen, \
                 tx-buffer-size, queue-size, groups"
            ),
        }
        Ok(())
    }

    fn cid(&self) -> u64 {
        self.cid.unwrap_or(DEFAULT_CID)
    }

    fn name(&self) -> String {
        format!("vm{}", self.cid())
    }

    fn groups(&self) -> BTreeSet<&str> {
        if self.groups.is_empty() {
            return BTreeSet::from([DEFAULT_GROUP]);
        }
        self.groups.iter().map(String::as_str).collect()
    }

    fn reaches(&self, other: &Vm) -> bool {
        !self.groups().is_disjoint(&other.groups())
    }
}

fn line(text: &str) -> anyhow::Result<Vm> {
    let mut vm = Vm::default();
    for pair in text.trim().split(',') {
        let (key, value) = pair.split_once('=').with_context(|| format!("{pair}: write it as key=value"))?;
        vm.set(key, value)?;
    }
    ensure!(!vm.socket.is_empty(), "socket is missing");
    Ok(vm)
}

fn yaml(text: &str) -> anyhow::Result<Vec<Vm>> {
    let documents = YamlLoader::load_from_str(text)?;
    // What vhost-device-vsock would not read is not passed over: VMs could be in it.
    ensure!(documents.len() < 2, "{} YAML documents: give them one by one", documents.len());
    let mut keys = documents.first().and_then(|document| document.as_hash()).into_iter().flatten();
    if let Some((key, _)) = keys.find(|(key, _)| key.as_str() != Some("vms")) {
        bail!(
            "{:?}: is no key of vhost-device-vsock's; it has the list \"vms\"",
            key.as_str().unwrap_or("?")
        );
    }
    let vms = documents.first().and_then(|document| document["vms"].as_vec());
    let vms = vms.filter(|vms| !vms.is_empty()).context("there is no list \"vms\", or nothing in it")?;
    let one = |(number, entry): (usize, &Yaml)| -> anyhow::Result<Vm> {
        let keys = entry.as_hash().with_context(|| format!("vms[{number}] is not a table"))?;
        let mut vm = Vm::default();
        for (key, value) in keys {
            let key = key.as_str().with_context(|| format!("vms[{number}]: a key that is no text"))?;
            let value = match value {
                Yaml::String(text) => text.clone(),
                Yaml::Integer(number) => number.to_string(),
                _ => bail!("vms[{number}]: {key}: neither text nor a number"),
            };
            vm.set(key, &value).with_context(|| format!("vms[{number}]"))?;
        }
        ensure!(!vm.socket.is_empty(), "vms[{number}]: socket is missing");
        Ok(vm)
    };
    vms.iter().enumerate().map(one).collect()
}

/// Groups such that exactly those who shared one share one: a name for each VM.
fn groups(vms: &[Vm]) -> anyhow::Result<Vec<String>> {
    for a in vms {
        for b in vms.iter().filter(|b| a.reaches(b)) {
            if let Some(c) = vms.iter().find(|c| b.reaches(c) && !a.reaches(c)) {
                bail!(
                    "CID {} reaches {} and {1} reaches {}, but {0} does not reach {2}: a VM has one group, which \
                     cannot express this; change the groups first",
                    a.cid(),
                    b.cid(),
                    c.cid()
                );
            }
        }
    }
    let name = |vm: &Vm| {
        let members: Vec<&Vm> = vms.iter().filter(|other| vm.reaches(other)).collect();
        let mut names: BTreeSet<&str> = members.iter().flat_map(|member| member.groups()).collect();
        // One that all have is the best name.
        let shared = names.iter().find(|name| members.iter().all(|member| member.groups().contains(*name)));
        shared.copied().or_else(|| names.pop_first()).unwrap_or(DEFAULT_GROUP).to_owned()
    };
    Ok(vms.iter().map(name).collect())
}

fn toml(vms: &[Vm]) -> anyhow::Result<String> {
    let quoted = |text: &str| serde_json::to_string(text);
    let groups = groups(vms)?;
    let mut text =
        String::from("# From the arguments of vhost-device-vsock. RUN is the daemon's --runtime-dir.\n");
    for (vm, group) in vms.iter().zip(groups) {
        let name = vm.name();
        writeln!(text, "\n[[vm]]\nname = {}", quoted(&name)?)?;
        writeln!(text, "cid = {}\nvsock = \"virtio\"", vm.cid())?;
        if group != DEFAULT_GROUP {
            writeln!(text, "group = {}", quoted(&group)?)?;
        }
        // Connections forwarded to this VM's host arrive at the VM's own neighbours.
        let listens = vms.iter().filter(|other| other.forward_cid == Some(vm.cid()));
        let forward: Vec<String> = listens
            .flat_map(|other| {
                let ports = other.forward_listen.iter();
                ports.map(|port| format!("{{ port = {port}, to = \"{}:{port}\" }}", other.name()))
            })
            .collect();
        if !forward.is_empty() {
            writeln!(text, "forward = [ {} ]", forward.join(", "))?;
        }
        if vm.forward_cid.is_some() && vms.iter().all(|other| other.cid() != PARENT) {
            writeln!(text, "parent_cid = {PARENT} # what an enclave calls its parent by")?;
        }
        notes(&mut text, vms, vm)?;
    }
    Ok(text)
}

/// The sockets that have moved, as comments.
fn notes(text: &mut String, vms: &[Vm], vm: &Vm) -> anyhow::Result<()> {
    let name = vm.name();
    writeln!(text, "# {} is RUN/vm/{name}/vsock.sock: ln -s RUN/vm/{name}/vsock.sock {0}", word(&vm.socket))?;
    if let Some(path) = &vm.uds_path {
        let path = word(path);
        writeln!(text, "# {path} is RUN/vm/{name}/vsock.uds: ln -s RUN/vm/{name}/vsock.uds {path}")?;
        writeln!(text, "# programs that listened at {path}_PORT listen at RUN/vm/{name}/vsock.uds_PORT")?;
    }
    if let Some(cid) = vm.forward_cid {
        if vms.iter().any(|other| other.cid() == cid) {
            writeln!(
                text,
                "# forward-cid {cid}: name the ports, forward = [ {{ port = P, to = \"vm{cid}:P\" }} ]"
            )?;
        } else {
            writeln!(text, "# forward-cid {cid}: programs of the host that listen run under `vmlane run`")?;
        }
    }
    for port in &vm.forward_listen {
        writeln!(
            text,
            "# forward-listen {port}: programs of the host connect under `vmlane run` to {}",
            vm.cid()
        )?;
    }
    Ok(())
}

/// A path as a line of comments and a shell may have it.
fn word(path: &str) -> String {
    vmlane_attach::qemu::shell_quoted(&path.replace(['\n', '\r'], "?"))
}
