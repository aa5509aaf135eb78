//! Ports that wrap ports: what they add is no part of switching or of a device.
//!
//! | what | wraps | adds |
//! | --- | --- | --- |
//! | [`CapturedFrames`] | what is attached to the switch | taps that examine every frame, while there is a capture |
//! | [`CapturedStream`] | an end of a stream | taps that examine what it sends, while there is a capture |

mod captured_frames;
mod captured_streams;
mod fault;
#[macro_use]
mod wrapper;

use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::{
    Bytes, End, Filter, FramePort, FramePortInfo, Needs, Notifications, PortFault, Refused, RxCapabilities,
    RxFrame, Sign, StreamInfo, StreamPort, Survival, Ticked, Token, TxFrame, WakeUp,
};

pub use captured_frames::{CapturedFrames, FrameTap, wall_clock};
pub use captured_streams::{CapturedStream, PacketPayload, StreamEvent, StreamTap};
pub use fault::Fault;

wrapper! {
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
            fn source() -> Bytes<'_>;
            fn keep_free() -> usize;
            fn info() -> StreamInfo<'_>;
        }
    }
}

wrapper! {
    /// The same of a frame port.
    pub trait FrameWrapper for dyn FramePort;
    impl FramePort {
        &mut self {
            fn fetch(tokens: &mut [Token]) -> usize;
            fn finish(tokens: &[Token]);
            fn deliver(frames: &[RxFrame<'_>]) -> Result<(), Refused>;
            fn has_room() -> bool;
            fn flush(now: Instant);
            fn tick(now: Instant) -> Ticked;
            fn refresh();
            fn fail();
        }
        &self {
            fn frame(token: Token) -> TxFrame<'_>;
            fn capabilities() -> RxCapabilities;
            fn filter() -> &Filter;
            fn info() -> FramePortInfo;
        }
    }
    impl WakeUp {
        &mut self {
            fn arm() -> bool;
            fn disarm();
        }
        &self {
            fn needs() -> Needs;
            fn signs(into: &mut Vec<Sign>) -> bool;
            fn doorbell_fd() -> Option<BorrowedFd<'_>>;
            fn readable_fd() -> Option<BorrowedFd<'_>>;
        }
    }
}
