//! A port of another worker.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use vmlane_port::{
    DropReason, Filter, FramePort, FramePortInfo, Needs, Refused, RxCapabilities, RxFrame, Sign, Ticked,
    Token, TxFrame, WakeUp,
};

use super::PLACES;
use super::frame::{Done, HandedFrame};
use super::state::Attachment;

/// The end of a port that another worker owns: it sends the frames that were handed over. Frames *to* the
/// port never come here: they are handed over to that worker.
pub struct RemotePort {
    attachment: Attachment,
    /// Not fetched yet.
    waiting: VecDeque<Box<HandedFrame>>,
    /// By token.
    in_flight: Vec<Option<Box<HandedFrame>>>,
    free: Vec<u32>,
    done: Done,
    fetched: u64,
}

impl RemotePort {
    pub fn new(attachment: Attachment, done: Done) -> RemotePort {
        RemotePort {
            attachment,
            waiting: VecDeque::new(),
            in_flight: Vec::new(),
            free: Vec::new(),
            done,
            fetched: 0,
        }
    }

    /// Is it the port's attachment of this number?
    pub fn is(&self, number: u32) -> bool {
        self.attachment.number == number
    }

    pub fn set_filter(&mut self, filter: Filter) {
        self.attachment.filter = filter;
    }

    /// A frame that its guest sent.
    pub fn push(&mut self, frame: Box<HandedFrame>) {
        frame.prefetch_more();
        self.waiting.push_back(frame);
    }

    /// Frames that were pushed since it is there.
    pub fn count_arrived(&self) -> u64 {
        self.fetched + self.waiting.len() as u64
    }

    /// Those of them that were fetched.
    pub fn count_fetched(&self) -> u64 {
        self.fetched
    }

    /// Are there frames to be fetched?
    pub fn has_frames(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Drop for RemotePort {
    fn drop(&mut self) {
        self.done.lock().extend(self.waiting.drain(..).chain(self.in_flight.drain(..).flatten()));
    }
}

impl FramePort for RemotePort {
    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        let mut count = 0;
        for to in tokens {
            let Some(mut frame) = self.waiting.pop_front() else { break };
            frame.prepare();
            let at = self.free.pop().unwrap_or_else(|| {
                self.in_flight.push(None);
                self.in_flight.len() as u32 - 1
            });
            if let Some(place) = self.in_flight.get_mut(at as usize) {
                *place = Some(frame);
            }
            *to = Token(at);
            count += 1;
        }
        self.fetched += count as u64;
        count
    }

    #[expect(
        clippy::expect_used,
        reason = "tokens are this port's own; a wrong one is a fault that is contained"
    )]
    fn frame(&self, token: Token) -> TxFrame<'_> {
        let in_flight = self.in_flight.get(token.0 as usize).and_then(Option::as_ref);
        in_flight.expect("a frame in flight").frame()
    }

    fn finish(&mut self, tokens: &[Token]) {
        if tokens.is_empty() {
            return;
        }
        let mut done = self.done.lock();
        for token in tokens {
            if let Some(frame) = self.in_flight.get_mut(token.0 as usize).and_then(Option::take) {
                self.free.push(token.0);
                done.push(frame);
            }
        }
    }

    fn capabilities(&self) -> RxCapabilities {
        RxCapabilities::default()
    }

    fn filter(&self) -> &Filter {
        &self.attachment.filter
    }

    fn deliver(&mut self, _: &[RxFrame<'_>]) -> Result<(), Refused> {
        Err(Refused { at: 0, reason: DropReason::Gone })
    }

    fn has_room(&mut self) -> bool {
        false
    }

    fn flush(&mut self, _: Instant) {}

    fn tick(&mut self, _: Instant) -> Ticked {
        Ticked::default()
    }

    fn refresh(&mut self) {}

    fn fail(&mut self) {}

    fn info(&self) -> FramePortInfo {
        FramePortInfo { lookahead: PLACES, ..FramePortInfo::default() }
    }
}

impl WakeUp for RemotePort {
    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn needs(&self) -> Needs {
        Needs::Turn
    }

    fn signs(&self, _: &mut Vec<Sign>) -> bool {
        false
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
