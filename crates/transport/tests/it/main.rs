//! VMMs of every kind at a device's socket: well-behaved, foreign, hostile, gone; and daemons that follow
//! each other.

mod common;
mod vhost_user_world;

mod callers;
mod containment;
mod foreign_vfio_user;
mod foreign_vhost_user;
mod foreign_virtio_driver;
mod hostile_vmm;
mod session;
mod stream;
mod takeover;
mod vhost_user;
mod vhost_user_shared;
mod vhost_user_takeover;
