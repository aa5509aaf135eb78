//! The calls of a frame port that move bursts, for a single frame: tests examine each.

use vmlane_port::{DropReason, FramePort, RxFrame, Token};

/// Bursts of one.
pub trait OneByOne: FramePort {
    fn fetch_one(&mut self) -> Option<Token> {
        let mut token = [Token(0)];
        (self.fetch(&mut token) > 0).then_some(token[0])
    }

    fn deliver_one(&mut self, frame: &RxFrame<'_>) -> Result<(), DropReason> {
        self.deliver(std::slice::from_ref(frame)).map_err(|refused| refused.reason)
    }
}

impl<P: FramePort + ?Sized> OneByOne for P {}
