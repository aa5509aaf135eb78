//! Ports that wrap ports: what they add is no part of switching or of a device.
//!
//! | what | wraps | adds |
//! | --- | --- | --- |
//! | [`CapturedFrames`] | what is attached to the switch | taps that look at every frame, while there is a capture |
//! | [`CapturedStream`] | an end of a stream | taps that look at what it sends, while there is a capture |
//! | [`FaultyFrames`] | what a device attaches to the switch | a panic, a stall ([`Fault`]); frames lost, late, out of order ([`Impairment`]) |
//! | [`FaultyStreams`] | what devices hand to the workers of streams | a panic, a stall |

mod captured_frames;
mod captured_streams;
mod faulty_frames;
mod faulty_streams;
mod impairment;
mod trigger;

pub use captured_frames::{CapturedFrames, FrameTap, wall_clock};
pub use captured_streams::{CapturedStream, PacketPayload, StreamEvent, StreamTap};
pub use faulty_frames::FaultyFrames;
pub use faulty_streams::FaultyStreams;
pub use impairment::{FURTHEST, Impairment, MAX_HELD};
pub use trigger::{Fault, Trigger};
