//! The devices as guests, operators and the rest of the daemon use them.

// `vmci/signals_model.rs` compiles a file of the crate once more, which knows this by that name.
use vmlane_device::irq;

mod host;

mod captured;
mod containment;
mod interleavings;
mod virtio;
mod vmci;
mod vmxnet3;
mod vsock;
