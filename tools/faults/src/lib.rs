//! What wraps a part that serves a guest, and has it go wrong on request: for laboratories
//! (`vmlane-labdaemon`) and for tests of containment. Never part of the installed program.
//!
//! | what | wraps | adds |
//! | --- | --- | --- |
//! | [`FaultyFrames`] | what a device attaches to the switch | a panic, a stall ([`Fault`](vmlane_port::wrap::Fault)); frames lost, late, out of order ([`Impairment`]) |
//! | [`FaultyStreams`] | what devices hand to the workers of streams | a panic, a stall |
//! | [`FaultyDevice`] | a PCI function | the same, at its next register access |

#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod frames;
mod function;
mod line;
mod streams;
mod trigger;

pub use frames::FaultyFrames;
pub use function::FaultyDevice;
pub use line::{FURTHEST, Impairment, MAX_HELD};
pub use streams::FaultyStreams;
pub use trigger::Trigger;
