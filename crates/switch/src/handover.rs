//! Frames that go from a port of one worker to a port of another.
//!
//! Every worker knows all ports. Those of other workers are *remote ports* to it ([`RemotePort`]): it has their
//! configuration and what their guests filter, so that it finds them as it finds its own, but never touches their rings.
//!
//! A frame for a remote port is *handed over*: a description of it (its head, where its bytes lie, what is to be done to
//! it) goes through a ring of one writer and one reader to the worker that owns the receiver. There the remote port of
//! its sender sends it, and it takes its way through the stages once more, to ports of that worker only. The bytes
//! stay with the guest that sent them until that worker has copied them; then the description goes back through a second ring,
//! and the sender's worker tells the sender that the frame is finished. So every port is touched by its own worker
//! alone, each frame is copied once, and no lock is held across a copy.
//!
//! Between two workers there are [`PLACES`] descriptions in each direction; the ports of one owner get no more than their
//! fair share of them. Frames that get none wait in front of the remote port, as those for a receiver without buffers do.
//!
//! | file | what |
//! | --- | --- |
//! | `frame.rs` | a description |
//! | `link.rs` | the rings between two workers, who has how many places, frames that several have |
//! | `port.rs`, `state.rs` | a remote port; what its worker tells of it |
//! | `serve.rs` | what a worker does in each round; how it learns of others' ports |

mod frame;
mod link;
mod port;
mod serve;
mod state;

pub use frame::{HandedFrame, Lender};
pub use link::Links;
pub use serve::Workers;
pub use state::RemoteState;

/// Frames that one worker may have handed over to another.
pub const PLACES: usize = 256;
/// Workers of one switch, at most.
pub const MOST_WORKERS: usize = 64;
