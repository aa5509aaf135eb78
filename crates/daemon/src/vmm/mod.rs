//! How VMMs other than a plain QEMU attach a configured VM.

pub mod cloud_hypervisor;
pub mod firecracker;
pub mod libvirt;
pub mod proxmox;
