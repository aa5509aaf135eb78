//! The virtual switch: joins frame ports.
//!
//! | file | what |
//! | --- | --- |
//! | `switch.rs` | ports to manage, ends to attach: for other threads |
//! | `queue.rs`, `worker.rs` | what they ask; the thread that does it and when it sleeps |
//! | `fabric.rs`, `port.rs` | all ports; a port as the worker has it |
//! | `turn.rs` | the way of a frame from its sender to its receivers |
//! | `lookup.rs` | may it be sent, and to whom |
//! | `flood.rs` | how many frames to several it may send |
//! | `waiting.rs` | frames that wait for a receiver's buffers |
//! | `table.rs` | where an address is |
//! | `frame.rs`, `parse.rs` | a frame, its layers, its sender's wishes checked |
//! | `forward.rs`, `fallback.rs` | the packets a receiver gets; segmentation |
//!
//! One worker owns both ends of every copy: no lock is ever held across one, and no VM waits for
//! another's lock. Frames stay in their sender's memory until each receiver has its copy.

mod fabric;
mod fallback;
mod flood;
mod forward;
mod frame;
mod lookup;
mod parse;
mod port;
mod queue;
mod spec;
mod switch;
mod table;
mod turn;
mod waiting;
mod worker;

/// What the switch does to a frame's first bytes, by itself.
#[doc(hidden)]
pub mod heads {
    pub use crate::fallback::{Cutter, complete};
    pub use crate::frame::{Frame, Job, MAX_SEGMENTS, Segmentation, job};
    pub use crate::parse::{inner, layers, payload};
}

pub use spec::{Policy, PortSpec, PortView, Settings, VlanMode};
pub use switch::Switch;
pub use worker::{Worker, WorkerStats};
