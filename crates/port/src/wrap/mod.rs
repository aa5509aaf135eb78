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
mod wrapper;

use crate::{Bytes, End, Notifications, PortFault, RingSlice, StreamInfo, StreamPort, Survival};

pub use captured_frames::{CapturedFrames, FrameTap, wall_clock};
pub use captured_streams::{CapturedStream, PacketPayload, StreamEvent, StreamTap};
pub use faulty_frames::FaultyFrames;
pub use faulty_streams::FaultyStreams;
pub use impairment::{FURTHEST, Impairment, MAX_HELD};
pub use trigger::{Fault, Trigger};

crate::wrapper! {
    /// What wraps a stream port, and has a method of its own where it adds something.
    pub trait StreamWrapper for dyn StreamPort;
    impl StreamPort {
        &mut self {
            fn readable() -> Result<usize, PortFault>;
            fn consume(len: usize) -> Result<(), PortFault>;
            fn arm_readable() -> Result<bool, PortFault>;
            fn writable() -> Result<usize, PortFault>;
            fn fill(from: Bytes<'_>, len: usize) -> Result<(), PortFault>;
            fn arm_writable() -> Result<bool, PortFault>;
            fn renotify_reader() -> Result<(), PortFault>;
            fn end(end: End);
            fn notifications() -> Option<&mut dyn Notifications>;
            fn survival() -> Option<&mut dyn Survival>;
        }
        &self {
            fn source() -> RingSlice<'_>;
            fn keep_free() -> usize;
            fn info() -> StreamInfo<'_>;
        }
    }
}
