//! The vmlane daemon of a lab: its configuration, and what it wants on QEMU's command line.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

use crate::device::Device;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::spec::{GuestSpec, LabSpec};
use crate::test_host;

/// Writes the configuration that the spec amounts to.
pub fn write_config(plan: &Plan) -> Result<()> {
    let mut config = generate(&plan.spec);
    if let Some(path) = &plan.spec.daemon_config {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the daemon configuration {}", path.display()))?;
        let more: Table = text.parse().with_context(|| path.display().to_string())?;
        merge_config(&mut config, more);
    }
    let path = plan.daemon_config();
    fs::write(&path, toml::to_string(&config)?).with_context(|| format!("cannot write {}", path.display()))
}

fn generate(spec: &LabSpec) -> Table {
    let vms = spec.guests().into_iter().filter(GuestSpec::has_ours).map(|guest| {
        let mut vm = Table::new();
        vm.insert("name".into(), guest.name.clone().into());
        if let Some(group) = &guest.group {
            vm.insert("group".into(), group.clone().into());
        }
        let vsock = guest.devices.iter().find_map(|device| match device {
            Device::Vmci => Some("vmci"),
            Device::VirtioVsock => Some("virtio"),
            _ => None,
        });
        if let (Some(cid), Some(_)) = (guest.cid, vsock) {
            vm.insert("cid".into(), i64::from(cid).into());
        }
        vm.insert("vsock".into(), vsock.unwrap_or("none").into());
        if guest.machine == Machine::Uml && guest.devices.iter().any(Device::is_pci) {
            vm.insert("uml_pci".into(), true.into());
        }
        let nics: Vec<Value> =
            our_nics(&guest.devices).map(|(card, nic)| nic_table(card, nic, &guest).into()).collect();
        if !nics.is_empty() {
            vm.insert("nic".into(), nics.into());
        }
        let forwards: Vec<Value> = spec
            .forwards
            .iter()
            .filter(|f| f.from == guest.name)
            .map(|f| {
                let mut forward = Table::new();
                forward.insert("port".into(), i64::from(f.port).into());
                forward.insert("to".into(), format!("{}:{}", f.to, f.to_port).into());
                Value::Table(forward)
            })
            .collect();
        if !forwards.is_empty() {
            vm.insert("forward".into(), forwards.into());
        }
        Value::Table(vm)
    });
    let mut config = Table::new();
    let mut daemon = Table::new();
    if let Some(coalesce) = spec.coalesce {
        daemon.insert("coalesce".into(), coalesce.into());
    }
    if let Some(workers) = spec.workers {
        daemon.insert("workers".into(), i64::from(workers).into());
    }
    config.insert("daemon".into(), daemon.into());
    let networks = spec.networks();
    let ours = networks.iter().enumerate().filter_map(|(net, cards)| Some((net, cards.first()?)));
    let ours = ours.filter(|(_, card)| card.is_on_switch());
    let groups: Vec<Value> = ours.map(|(net, card)| port_group(net, card).into()).collect();
    if !groups.is_empty() {
        config.insert("port_group".into(), groups.into());
    }
    if spec.uplinks > 0 && spec.has_switch() {
        let uplinks: Vec<Value> = (0..spec.uplinks).map(|uplink| uplink_table(uplink, spec).into()).collect();
        config.insert("uplink".into(), uplinks.into());
    }
    config.insert("vm".into(), vms.collect::<Vec<_>>().into());
    config
}

/// The cards of a guest that are ports of our switch.
fn our_nics(devices: &[Device]) -> impl Iterator<Item = (usize, &Device)> {
    let nics = devices.iter().filter(|device| device.is_nic());
    nics.enumerate().filter(|(_, device)| device.is_on_switch())
}

/// One uplink leads to the first network; of several, each to a network of its own.
fn uplink_table(uplink: u32, spec: &LabSpec) -> Table {
    let mut table = Table::new();
    table.insert("name".into(), if uplink == 0 { "host".into() } else { format!("host{uplink}").into() });
    table.insert("tap".into(), test_host::tap(&spec.name, uplink).into());
    if let Some(group) = spec.groups.first() {
        table.insert("group".into(), group.clone().into());
    }
    if spec.uplinks > 1 {
        table.insert("vlan".into(), segment(uplink as usize).into());
    }
    table
}

/// Each network is a segment of its own: the first untagged, the others distinguished by VLANs that
/// guests and hosts do not see.
fn segment(net: usize) -> i64 {
    if net == 0 { 0 } else { 3000 + net as i64 }
}

fn port_group(net: usize, nic: &Device) -> Table {
    let vlan = nic.vlan().map_or(segment(net), i64::from);
    Table::from_iter([
        ("name".to_owned(), Value::from(format!("net{net}"))),
        ("vlan".to_owned(), vlan.into()),
    ])
}

fn nic_table(card: usize, device: &Device, guest: &GuestSpec) -> Table {
    let (model, keys) = match device {
        Device::Vmxnet3(nic) => ("vmxnet3", Table::try_from(nic)),
        Device::VirtioNet(nic) => ("virtio-net", Table::try_from(nic)),
        _ => return Table::new(),
    };
    let mut table = keys.unwrap_or_default();
    table.insert("model".into(), model.into());
    // The VLAN is its port group's; a VMXNET3 card's MTU is what its guest sets.
    table.remove("vlan");
    if model == "vmxnet3" {
        table.remove("mtu");
    }
    if let Some(known) = guest.nics.get(card) {
        table.insert("port_group".into(), format!("net{}", known.network).into());
        table.insert("mac".into(), known.mac.clone().into());
    }
    table
}

/// Merges a configuration over another: tables key by key, `[[vm]]` and `[[port_group]]` entries by their
/// name; all else is replaced.
pub fn merge_config(base: &mut Table, more: Table) {
    for (key, value) in more {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge_config(old, new),
            (Some(Value::Array(old)), Value::Array(new)) if ["vm", "port_group"].contains(&key.as_str()) => {
                for vm in new {
                    let same = old.iter_mut().find(|o| o.get("name") == vm.get("name"));
                    match (same, vm) {
                        (Some(Value::Table(old)), Value::Table(vm)) => merge_config(old, vm),
                        (_, vm) => old.push(vm),
                    }
                }
            }
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// The command that runs the daemon.
pub fn command(plan: &Plan) -> Result<Command> {
    let mut command = Command::new(program(plan)?);
    command.arg("daemon").args(paths(plan));
    Ok(command)
}

/// What has faults on request, and a PCI bus for User Mode Linux. It is beside vmlane where it was built, and
/// is not installed.
const LABDAEMON: &str = "vmlane-labdaemon";

/// vmlane, unless the configuration asks for what only [`LABDAEMON`] has.
fn program(plan: &Plan) -> Result<PathBuf> {
    let path = plan.daemon_config();
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let Some(key) = key_of_labdaemon(&text.parse().with_context(|| path.display().to_string())?) else {
        return Ok(plan.vmlane.clone());
    };
    let vmlane = plan.vmlane.canonicalize().unwrap_or_else(|_| plan.vmlane.clone());
    let program = vmlane.with_file_name(LABDAEMON);
    if !program.is_file() {
        bail!(
            "{key} needs {}, which is missing: build it from vmlane's sources (`cargo build --release -p {LABDAEMON}`) and \
             use the vmlane beside it; without it, leave {key} out",
            program.display()
        );
    }
    Ok(program)
}

/// The first key of a configuration that vmlane itself cannot obey.
fn key_of_labdaemon(config: &Table) -> Option<&'static str> {
    let is_on = |table: &Value, key: &str| table.get(key).and_then(Value::as_bool) == Some(true);
    if config.get("daemon").is_some_and(|daemon| is_on(daemon, "fault_injection")) {
        return Some("fault_injection = true");
    }
    let mut vms = config.get("vm").and_then(Value::as_array).into_iter().flatten();
    vms.any(|vm| is_on(vm, "uml_pci")).then_some("a VMCI or VMXNET3 device under User Mode Linux")
}

fn paths(plan: &Plan) -> [String; 4] {
    let text = |p: &Path| p.display().to_string();
    ["--config".into(), text(&plan.daemon_config()), "--runtime-dir".into(), text(&plan.daemon_runtime())]
}

/// Whether the daemon accepts control connections.
pub fn answers(plan: &Plan) -> bool {
    UnixStream::connect(plan.daemon_runtime().join("control.sock")).is_ok()
}

/// The process that answers there.
pub fn pid(plan: &Plan) -> Option<u32> {
    let client = vmlane_api::Client::connect(&plan.daemon_runtime()).ok()?;
    Some(client.with_timeout(std::time::Duration::from_secs(2)).call(&vmlane_api::call::Ping {}).ok()?.pid)
}

/// The QEMU arguments that attach `guest` to the daemon.
pub fn qemu_args(plan: &Plan, guest: &GuestSpec) -> Result<Vec<String>> {
    let (name, version) = (guest.name.as_str(), plan.assets.qemu_version());
    let output = Command::new(&plan.vmlane)
        .args(["qemu-args", name])
        .args(paths(plan))
        .args(["--mem", &plan.spec.mem_mib.to_string(), "--json"])
        .args(["--machine", guest.machine.name(), "--qemu", version, "--accel", plan.assets.accel.name()])
        .output()
        .context("cannot run vmlane qemu-args")?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("vmlane qemu-args {name}: {}", stderr.trim());
    }
    let value: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("vmlane qemu-args --json")?;
    // A plain array, or an object with the array and a version.
    let list = if value.is_array() { &value } else { &value["args"] };
    serde_json::from_value(list.clone()).context("vmlane qemu-args --json: no list of arguments")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_every_vm_and_takes_more() {
        let mut spec = LabSpec::new("t").device("vmci").unwrap();
        spec.groups = vec!["red".into(), "blue".into()];
        spec.forwards = vec!["a:5000=b:6000".parse().unwrap()];
        let mut config = generate(&spec);
        let more = "[daemon]\nmode = \"poll\"\n[[vm]]\nname = \"b\"\ncid = 9\n";
        merge_config(&mut config, more.parse().unwrap());
        assert_eq!(key_of_labdaemon(&config), None);
        merge_config(&mut config, "[daemon]\nfault_injection = true\n".parse().unwrap());
        assert_eq!(key_of_labdaemon(&config), Some("fault_injection = true"));
        let text = toml::to_string(&config).unwrap();
        let back: Table = text.parse().unwrap();
        assert_eq!(back["daemon"]["mode"].as_str(), Some("poll"));
        assert_eq!(back["vm"][0]["forward"][0]["to"].as_str(), Some("b:6000"));
        assert_eq!(back["vm"][1]["group"].as_str(), Some("blue"));
        assert_eq!(back["vm"][1]["cid"].as_integer(), Some(9));
        assert_eq!(back["vm"].as_array().unwrap().len(), 2);
    }
}
