//! The seams between device models and what moves bytes between them.
//!
//! A [`StreamPort`] is one end of a byte stream: a VMCI queue pair today, virtio-vsock connections
//! and host sockets later. Whatever joins two of them implements [`Lanes`]. Neither side knows the
//! other's kind: a device asks for a lane, the lane moves bytes between two ports.

mod lanes;
mod ring;
mod stream_port;

pub use lanes::{Budget, LaneEnd, LaneId, Lanes, Shutdown, Side};
pub use ring::{RingSlice, transfer};
pub use stream_port::{End, PortFault, StreamPort};
