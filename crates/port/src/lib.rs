//! The seams between device models and what moves bytes between them.
//!
//! A [`StreamPort`] is one end of a byte stream: a VMCI queue pair, a virtio-vsock connection, a host
//! program's socket. What joins two of them implements [`Streams`]. Neither side knows the other's kind: a
//! device asks for a stream, which moves bytes between two ports ([`life_of_a_stream_port`]). The one over
//! two byte rings is here, because guests' queue pairs ([`queue_pair`]) and rings that a process shares
//! ([`shared_ring`]) are alike.
//!
//! A [`FramePort`] is one end of a wire: a NIC's rings, an uplink. The switch between them implements
//! [`Frames`]. A source describes frames ([`TxFrame`]), a sink takes one copy of each ([`RxFrame`]); who
//! calls what, and in which order, is described at [`FramePort`], and `tests/it/frame_port.rs` is a port over
//! plain memory that is turned by hand.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
#![deny(missing_docs)]

mod bounded;
pub mod byte_ring;
pub mod fair;
mod fault;
mod filter;
mod frame;
mod frame_port;
mod in_flight;
pub mod life_of_a_stream_port;
mod log_limit;
pub mod queue_pair;
mod queue_turns;
mod reason;
pub mod role;
pub mod shared_ring;
mod stream_port;
mod streams;
mod vnet;
pub mod wrap;

pub use bounded::{Bounded, Distinct};
pub use byte_ring::{Bytes, RingSlice, Scattered, transfer};
pub use fault::PortFault;
pub use filter::{Filter, VlanSet};
pub use frame::{
    Aggregate, ChecksumStatus, HEAD, Layers, MAX_FRAME, MAX_HEAD, Network, Offload, PartialChecksum, RxFrame,
    Transport, TxFrame,
};
pub use frame_port::{
    BURST, FramePort, FramePortInfo, Frames, Needs, Overhead, PortId, Refused, RxCapabilities, Sign, Ticked,
    Token, WakeUp, deliver_each,
};
pub use in_flight::{FrameInFlight, FramesInFlight};
pub use log_limit::LogLimit;
pub use queue_turns::QueueTurns;
pub use reason::{DropReason, PortCounts, PortStats};
pub use stream_port::{End, Notifications, StreamAddress, StreamInfo, StreamPort, Survival};
pub use streams::{Budget, Resumed, Shutdown, Side, StreamEnd, StreamId, Streams};
pub use vnet::VnetHeader;
