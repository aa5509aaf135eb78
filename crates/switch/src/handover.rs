//! Frames that go from a port of one worker to a port of another.
//!
//! Every worker knows all ports. Those of other workers are *remote ports* to it ([`RemotePort`]): it has
//! their configuration and what their guests filter, so that it finds them as it finds its own, but never
//! touches their rings.
//!
//! A frame for a remote port is *handed over*: to the worker that owns the receiver. There the remote port of
//! its sender sends it, and it takes its way through the stages once more, to ports of that worker only. So
//! every port is touched by its own worker alone, and no lock is held across a copy. A frame goes in one of
//! two ways:
//!
//! * A short one, all of which was copied to be examined, goes *by value*: it passes through a ring of
//!   words, it is completed at once for its sender's guest, and only its place comes back.
//! * Any other one is *described* (its head, where its bytes lie, what is to be done to it) and stays in
//!   flight: the bytes stay with the guest that sent them until the other worker has copied them, once; then
//!   the description comes back, and the sender's worker completes the frame.
//!
//! The ring of words also has where described frames belong, so that they all arrive in the order in which
//! they left.
//!
//! Between two workers there are [`PLACES`] in each direction, for frames of both kinds; the ports of one
//! owner get no more than their fair share of them. Frames that get none wait in front of the remote port, as
//! those for a receiver without buffers do. A frame keeps its place until it was delivered or dropped.
//!
//! | file | what |
//! | --- | --- |
//! | `origin.rs` | whose a frame is |
//! | `frame.rs` | a frame as the receiver's worker has it |
//! | `words.rs` | the ring of words |
//! | `link.rs` | all rings between two workers, who has how many places, frames that several have |
//! | `port.rs`, `state.rs` | a remote port; what its worker reports of it |
//! | `serve.rs` | what a worker does in each round; how it learns of others' ports |

mod frame;
mod link;
mod origin;
mod port;
mod serve;
mod state;
mod words;

pub use link::{Handed, Links};
pub use origin::Origin;
pub use serve::{Arrivals, Workers, adopt_remote, attach_remote, has_frames, publish, remote_end};
pub use state::RemoteState;

/// Frames that one worker may have handed over to another.
pub const PLACES: usize = 256;
/// Workers of one switch, at most.
pub const MOST_WORKERS: usize = 64;
