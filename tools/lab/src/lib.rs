//! Real VMs on one machine: set them up, boot them, run commands in them, take them down.
//!
//! `vmlane lab` and the tests use the same parts. [`setup`] fetches QEMU, kernels and a root image
//! once. [`Lab::up`] starts one *supervisor* process that owns a lab's guests and its daemon; it is
//! asked over a Unix socket, and when it ends, however that happens, all of the lab ends. In each
//! guest the [`agent`] runs commands for it over a virtio-serial port (a serial line under User Mode
//! Linux), so that the devices under test stay out of the way of the tests.

pub mod agent;
pub mod child;
pub mod client;
pub mod cpio;
pub mod device;
pub mod dirs;
mod elf;
pub mod first_root;
mod lab;
mod log_tail;
pub mod machine;
pub mod plan;
pub mod proto;
mod qemu;
mod qmp;
pub mod setup;
pub mod spec;
pub mod supervisor;
pub mod test_host;
mod uml;
mod vhost_device_vsock;

pub use client::Output;
pub use device::Device;
pub use lab::{Guest, Lab, Running, find_vmlane, list, names};
pub use machine::Machine;
pub use plan::{GuestStatus, Status};
pub use proto::Exit;
pub use spec::{Forward, LabSpec};
pub use supervisor::merge_config;
