//! VMs that are to be moved between hosts while they run.

use super::check::{Checker, places};
use super::raw::RawVm;
use super::{NicModel, VmConfig};

impl Checker<'_> {
    /// QEMU has no way to migrate a vfio-user device: who wants such a VM moved hears of it before the VM is started.
    pub(crate) fn movable(&mut self, vm: &VmConfig, raw: &RawVm) {
        let Some(on) = raw.movable.as_ref().filter(|on| *on.get_ref()) else { return };
        let vmxnet3 = vm.nics.iter().position(|nic| nic.model == NicModel::Vmxnet3);
        let (device, instead) = match vmxnet3 {
            _ if vm.vsock.is_vmci() => ("its VMCI device".to_owned(), "vsock = \"virtio\" or \"none\""),
            Some(number) => (format!("its nic number {}, a vmxnet3,", number + 1), "model = \"virtio-net\""),
            None => return,
        };
        let text = format!(
            "vm {:?}: movable = true: {device} is a vfio-user device, which QEMU cannot migrate (up to 11.1); use {instead}, \
             or remove movable",
            vm.name
        );
        let nics = raw.nic.iter().map(toml::Spanned::span);
        let of: Vec<_> = places(&raw.vsock).into_iter().chain(nics).collect();
        self.conflict(on.span(), &of, text);
    }
}
