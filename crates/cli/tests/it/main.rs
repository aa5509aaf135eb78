//! The built program: its commands by themselves, its daemons, and what becomes of VMs when a daemon is
//! killed.
#![expect(clippy::disallowed_methods, reason = "below directories of the tests' own")]

mod common;

mod attach;
mod completions;
mod guide;
mod import;
mod proxmox;
mod qemu_args;

mod can_replace;
mod capture;
mod capture_vsock;
mod confinement;
mod counters;
mod daemon;
mod doctor;
mod hostile_vmm;
mod hybrid;
mod libvirt_hook;
mod metrics;
mod mirror;
mod mixed_kill;
mod own_daemon;
mod owners;
mod route;
mod route_guests;
mod session_kill;
mod trusted;
mod varlink;
mod vhost_user_uplink;
mod virtio_kill;
mod vms;
mod vsock_cloud_hypervisor;
mod vsock_kill;
mod vsock_states;
mod vsock_views;
mod wire;
