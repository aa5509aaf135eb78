//! What a capture records, and how it travels from the daemon's workers to a client.
//!
//! | file | what |
//! | --- | --- |
//! | `bpf.rs` | packet filters: classic BPF programs, checked and run |
//! | `filter.rs`, `seen.rs` | which frames and streams are recorded; a frame as it would be on the wire |
//! | `ring.rs` | the memory shared with the client: records in, and out |
//! | `tap.rs`, `streams.rs` | the daemon's half: what workers call with each frame, each step of a stream, each datagram |
//!
//! The daemon makes one [`Ring`] for a capture and a [`Tap`] or [`Streams`] for each of its points; the
//! client maps the same file and takes records out of it with a [`Reader`]. Workers write at most as many
//! bytes of a frame as the client asked for; they never wait, allocate, lock or make a system call. A record
//! for which there is no room is lost and counted.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod bpf;
mod filter;
mod ring;
mod seen;
mod streams;
mod tap;

pub use bpf::{BpfError, Instruction, MAX_INSTRUCTIONS, Packet, Program};
pub use filter::Filter;
pub use ring::{Counts, Direction, Kind, MAX_POINTS, MAX_RECORD, Mark, Reader, Record, Ring, RingError};
pub use streams::Streams;
pub use tap::Tap;
pub use vmlane_port::DropReason;
pub use vmlane_port::wrap::wall_clock;
