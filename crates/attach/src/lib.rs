//! How VMMs attach a configured VM: words for QEMU, libvirt, Proxmox VE, Cloud Hypervisor and Firecracker.
//!
//! All of it is text made of a [`VmConfig`](vmlane_config::VmConfig) and of the sockets'
//! [`Paths`](vmlane_config::paths::Paths); no daemon needs to run.
//!
//! | file | what |
//! | --- | --- |
//! | `qemu.rs` | QEMU's arguments, and what each version lacks |
//! | `libvirt.rs` | a domain: a new one, an existing one, and whether one may start |
//! | `proxmox.rs` | the value of a VM's `args` |
//! | `cloud_hypervisor.rs`, `firecracker.rs` | theirs |
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "below directories of the tests' own"))]

pub mod cloud_hypervisor;
pub mod firecracker;
pub mod libvirt;
pub mod proxmox;
pub mod qemu;
