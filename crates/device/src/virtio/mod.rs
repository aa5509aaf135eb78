//! virtio devices whose rings a VMM passes over vhost-user.
//!
//! | file | what |
//! | --- | --- |
//! | `queue`, `queue/split.rs`, `queue/packed.rs` | virtqueues: chains read once and checked, completions |
//! | `vhost.rs` | what a vhost-user session asks of a device |
//! | `log.rs` | pages that were written, for a VMM that migrates its guest |
//! | `net` | the NIC: its rings as a `FramePort` |
//!
//! As with VMXNET3 two threads share a device. The *session* keeps what the VMM set for rings and
//! memory; whenever it changes, the device is stopped and run again with a [`vhost::Setup`]. The
//! *worker* owns the rings while they run, and leaves behind how far it came.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod log;
pub mod net;
pub mod queue;
mod recall;
pub mod vhost;
pub mod vsock;
