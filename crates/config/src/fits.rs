//! Keys of a VM that not every device goes with: `owner`, `uml_pci`, `movable`.

use std::ops::Range;

use toml::Spanned;

use crate::nic::NicModel;
use crate::notes::{Notes, places};
use crate::raw::RawVm;
use crate::role::Role;
use crate::vm::VmConfig;

pub fn judge(vm: &VmConfig, raw: &RawVm, notes: &mut Notes<'_>) {
    let name = &vm.name;
    let client = |role| role == Role::Client;
    let listens = vm.vsock.virtio().is_some_and(client)
        || vm.nics.iter().any(|nic| matches!(nic.model, NicModel::VirtioNet(net) if client(net.role)));
    if let Some(owner) = raw.owner.as_ref().filter(|_| listens) {
        let text = format!(
            "vm {name:?}: owner = {}: with a role \"client\" the VMM would have to make its socket in a directory \
             that only the daemon may write; use the role \"server\", or leave owner out",
            owner.get_ref()
        );
        notes.problem(owner.span(), text);
    }
    // What was meant is not known if one of these is wrong.
    let devices = || -> Vec<Range<usize>> {
        places(&raw.vsock).into_iter().chain(raw.nic.iter().map(Spanned::span)).collect()
    };
    let vmxnet3 = vm.nics.iter().position(|nic| nic.model == NicModel::Vmxnet3);
    if let Some(on) = raw.uml_pci.as_ref().filter(|_| vm.uml_pci && !vm.vsock.is_vmci() && vmxnet3.is_none())
    {
        let text = format!(
            "vm {name:?}: uml_pci = true: it has no PCI device, neither vsock = \"vmci\" nor a nic with model = \"vmxnet3\"; \
             remove it"
        );
        notes.conflict(on.span(), &devices(), text);
    }
    // QEMU has no way to migrate a vfio-user device: an administrator has to know that before the VM is
    // started.
    let Some(on) = raw.movable.as_ref().filter(|_| vm.movable) else { return };
    let (device, instead) = match vmxnet3 {
        _ if vm.vsock.is_vmci() => ("its VMCI device".to_owned(), "vsock = \"virtio\" or \"none\""),
        Some(number) => (format!("its nic number {}, a vmxnet3,", number + 1), "model = \"virtio-net\""),
        None => return,
    };
    let text = format!(
        "vm {name:?}: movable = true: {device} is a vfio-user device, which QEMU cannot migrate (up to 11.1); use {instead}, \
         or remove movable"
    );
    notes.conflict(on.span(), &devices(), text);
}
