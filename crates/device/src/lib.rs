//! Hardware models: what a guest's driver sees. They know ports and guest memory, never a socket
//! and never another VM's device; `transport` carries register accesses to them.

pub mod irq;
pub mod pci;
pub mod virtio;
pub mod vmci;
pub mod vmxnet3;
