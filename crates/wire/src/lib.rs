//! Bytes as named types: no I/O, no unsafe, no trust in lengths that came from outside.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod ethernet;
pub mod host;
pub mod pci;
pub mod route;
pub mod vfio_user;
pub mod vhost_user;
pub mod virtio;
pub mod virtio_vsock;
pub mod vmci;
pub mod vmci_stream;
pub mod vmxnet3;
