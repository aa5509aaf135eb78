//! Whether a domain may start: what libvirt's hook is asked before each start.
//!
//! The domain may be a tenant's text. What it is let have follows from the configuration alone: the domain is
//! a VM by its name or UUID (`domain` in `[[vm]]`), and it may use the sockets of that VM, with that VM's
//! addresses and as that VM's owner. CID, group and port groups are the configuration's; nothing in a domain
//! can name them.

use std::collections::BTreeSet;
use std::path::Path;

use vmlane_access::Accounts;
use vmlane_config::paths::{Paths, TooLong};
use vmlane_config::{Config, NicModel, VmConfig, Vsock};

use super::document::{Element, XmlError, parse};
use super::label::{self, Label};
use super::sockets;

/// What libvirt is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Start it.
    Prepare,
    /// Start it from a file with its memory.
    Restore,
    /// Start it with its memory coming from another host.
    Migrate,
}

impl Operation {
    /// None: nothing that can be refused.
    pub fn of(operation: &str, part: &str) -> Option<Operation> {
        match (operation, part) {
            ("prepare", "begin") => Some(Operation::Prepare),
            ("restore", "begin") => Some(Operation::Restore),
            ("migrate", "begin") => Some(Operation::Migrate),
            _ => None,
        }
    }
}

/// Why a domain may not start.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    #[error("its XML: {0}")]
    Xml(#[from] XmlError),
    #[error(
        "it uses {socket} of VM {vm}, and is that VM neither by name nor by UUID: set domain = {name:?} in the [[vm]] of {vm}, or remove the device"
    )]
    NoVm { socket: String, vm: String, name: String },
    #[error("it is VM {vm}, and uses {socket}, which belongs to VM {other}: remove the device")]
    OtherVm { vm: String, socket: String, other: String },
    #[error(
        "it is VM {vm}, and lacks the device of {sockets}: put it in with `vmlane attach {vm} --for libvirt --into DOMAIN.xml`"
    )]
    Lacks { vm: String, sockets: String },
    #[error(
        "its interface at {socket} has the MAC address {has}, and VM {vm} has {wanted} there: put the VM in again with `vmlane attach {vm} --for libvirt --into DOMAIN.xml`"
    )]
    Mac { vm: String, socket: String, has: String, wanted: String },
    #[error(
        "its memory is not shared, and the daemon has to map it: put VM {vm} in with `vmlane attach {vm} --for libvirt --into DOMAIN.xml`"
    )]
    Memory { vm: String },
    #[error(
        "it runs as {has}, and the owner of VM {vm} is {wanted}: put the VM in again with `vmlane attach {vm} --for libvirt --into DOMAIN.xml`"
    )]
    Label { vm: String, has: String, wanted: String },
    #[error(
        "it runs as {has}, which is the owner of VM {vm} and could open its sockets: remove <seclabel model='dac'>, or set domain = {name:?} in the [[vm]] of {vm}"
    )]
    OthersLabel { vm: String, has: String, name: String },
    #[error(
        "VM {vm} has VMCI, VMXNET3 or virtio-vsock devices, whose state QEMU cannot save or move: start it anew (virsh start --force-boot); only VMs with nothing but virtio NICs can be restored or migrated"
    )]
    State { vm: String },
    #[error(transparent)]
    Path(#[from] TooLong),
}

/// A domain that is about to start.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    pub name: &'a str,
    pub operation: Operation,
    pub xml: &'a str,
}

/// Whether a domain's text names any VM's sockets: all that can be found without a configuration.
pub fn concerns(xml: &str, paths: &Paths) -> bool {
    match parse(xml) {
        Ok(domain) => !sockets::named(&domain, paths).is_empty(),
        Err(_) => true,
    }
}

/// The VM that the domain is; None: it has nothing to do with vmlane.
///
/// # Errors
/// It must not start.
pub fn judge<'c>(
    config: &'c Config,
    paths: &Paths,
    accounts: &Accounts,
    start: Start<'_>,
) -> Result<Option<&'c VmConfig>, Denied> {
    let domain = parse(start.xml)?;
    let used: BTreeSet<_> = sockets::named(&domain, paths);
    let uuid = domain.first("uuid").map(|uuid| uuid.text.trim().to_ascii_lowercase());
    let vm = config.vms.iter().find(|vm| match &vm.domain {
        Some(wanted) => wanted == start.name || Some(wanted) == uuid.as_ref(),
        None => vm.name == start.name,
    });
    let has = label_of(&domain, accounts);
    // A VM's name alone does not make a domain of it that has none of its devices.
    let Some(vm) = vm.filter(|vm| vm.domain.is_some() || !used.is_empty()) else {
        return stranger(config, paths, start.name, &used, has).map(|()| None);
    };
    let name = || vm.name.clone();
    let of_other = used.iter().find(|socket| sockets::vm_of(socket, paths) != Some(&vm.name));
    if let Some(socket) = of_other {
        let other = sockets::vm_of(socket, paths).unwrap_or_default().to_owned();
        return Err(Denied::OtherVm { vm: name(), socket: socket.display().to_string(), other });
    }
    let lacks: Vec<String> =
        expected(vm, paths)?.into_iter().filter(|socket| !used.contains(Path::new(socket))).collect();
    if !lacks.is_empty() {
        return Err(Denied::Lacks { vm: name(), sockets: lacks.join(", ") });
    }
    addresses(&domain, vm, paths)?;
    if !is_shared(&domain) {
        return Err(Denied::Memory { vm: name() });
    }
    if let Ok(wanted) = label::of(vm, accounts)
        && has.map(|(label, _)| label.uid) != Some(wanted.uid)
    {
        let has = has.map_or_else(|| "libvirt's own user".to_owned(), |(label, _)| label.to_string());
        return Err(Denied::Label { vm: name(), has, wanted: wanted.to_string() });
    }
    let is_virtio = |model| matches!(model, NicModel::VirtioNet(_));
    let movable = !vm.vsock.is_device() && vm.nics.iter().all(|nic| is_virtio(nic.model));
    if start.operation != Operation::Prepare && !movable {
        return Err(Denied::State { vm: name() });
    }
    Ok(Some(vm))
}

/// A domain that is no VM: it may neither use a VM's sockets nor run as a VM's owner.
fn stranger(
    config: &Config,
    paths: &Paths,
    name: &str,
    used: &BTreeSet<std::path::PathBuf>,
    has: Option<(Label, bool)>,
) -> Result<(), Denied> {
    let name = name.to_owned();
    if let Some(socket) = used.first() {
        let vm = sockets::vm_of(socket, paths).unwrap_or_default().to_owned();
        return Err(Denied::NoVm { socket: socket.display().to_string(), vm, name });
    }
    // A label that libvirt made is its own user's, and as whom that is is for the administrator to decide.
    let Some((label, true)) = has else { return Ok(()) };
    let owns = |vm: &&VmConfig| {
        vm.owner.is_some_and(|owner| owner.uid == Some(label.uid) || owner.gid == Some(label.gid))
    };
    match config.vms.iter().find(owns) {
        Some(vm) => Err(Denied::OthersLabel { vm: vm.name.clone(), has: label.to_string(), name }),
        None => Ok(()),
    }
}

/// As whom the domain runs, and whether its own text sets that.
fn label_of(domain: &Element, accounts: &Accounts) -> Option<(Label, bool)> {
    let label = domain.all("seclabel").find(|label| label.attribute("model") == Some("dac"))?;
    let parsed = Label::parse(&label.first("label")?.text, accounts)?;
    Some((parsed, label.attribute("type") == Some("static")))
}

/// The sockets of the VM's devices.
fn expected(vm: &VmConfig, paths: &Paths) -> Result<Vec<String>, TooLong> {
    let mut sockets = Vec::new();
    match vm.vsock {
        Vsock::Vmci => sockets.push(paths.vmci(&vm.name)?),
        Vsock::Virtio { .. } => sockets.push(paths.vsock(&vm.name)?),
        Vsock::Hybrid(_) | Vsock::None => {}
    }
    for number in 0..vm.nics.len() {
        sockets.push(paths.nic(&vm.name, number)?);
    }
    Ok(sockets.into_iter().map(|socket| socket.display().to_string()).collect())
}

/// Guests of virtio NICs have the address that QEMU gives them, and the switch refuses another one's frames.
fn addresses(domain: &Element, vm: &VmConfig, paths: &Paths) -> Result<(), Denied> {
    let interfaces = domain.first("devices").into_iter().flat_map(|devices| devices.all("interface"));
    for interface in interfaces.filter(|interface| interface.attribute("type") == Some("vhostuser")) {
        let socket = interface.of_first("source", "path").unwrap_or_default();
        for (number, nic) in vm.nics.iter().enumerate() {
            let (has, wanted) =
                (interface.of_first("mac", "address").unwrap_or_default(), nic.mac.to_string());
            if paths.nic(&vm.name, number)? == Path::new(socket) && !has.eq_ignore_ascii_case(&wanted) {
                let (vm, socket, has) = (vm.name.clone(), socket.to_owned(), has.to_owned());
                return Err(Denied::Mac { vm, socket, has, wanted });
            }
        }
    }
    Ok(())
}

fn is_shared(domain: &Element) -> bool {
    let backing = domain.first("memoryBacking");
    let all = backing.and_then(|backing| backing.of_first("access", "mode")) == Some("shared");
    let numa = domain.first("cpu").and_then(|cpu| cpu.first("numa"));
    let mut cells = numa.into_iter().flat_map(|numa| numa.all("cell"));
    all && cells.all(|cell| cell.attribute("memAccess").is_none_or(|access| access == "shared"))
}

#[cfg(test)]
mod tests;
