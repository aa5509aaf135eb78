//! A mirror as a port: it sends the copies, and receives nothing.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use vmlane_port::{
    BURST, DropReason, Filter, FrameInFlight, FramePort, FramePortInfo, Needs, Refused, RxCapabilities,
    RxFrame, Sign, Ticked, Token, TxFrame, WakeUp,
};

use super::ring::{Position, Ring};

/// The end of a mirror's ring from which copies leave.
pub struct MirrorPort {
    ring: Arc<Ring>,
    filter: Filter,
    /// Those in flight come first; all of them are completed before others are fetched.
    in_flight: Vec<FrameInFlight>,
    count_in_flight: usize,
    finished: usize,
    next: Position,
}

impl MirrorPort {
    pub fn new(ring: Arc<Ring>) -> MirrorPort {
        let in_flight = std::iter::repeat_with(|| FrameInFlight::new(ring.spans())).take(BURST).collect();
        let filter = Filter::default();
        // Another port may have read before.
        let next = ring.first();
        MirrorPort { ring, filter, in_flight, count_in_flight: 0, finished: 0, next }
    }
}

impl FramePort for MirrorPort {
    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        if self.count_in_flight > 0 {
            return 0;
        }
        for (number, (token, in_flight)) in tokens.iter_mut().zip(&mut self.in_flight).enumerate() {
            let Some((at, head)) = self.ring.read(&mut self.next) else { break };
            self.ring.locate(at, head.len, &mut in_flight.spans);
            (in_flight.offload, in_flight.tag) = (head.offload, head.tag);
            in_flight.keep_head(head.offload.spoken_of());
            *token = Token(number as u32);
            self.count_in_flight = number + 1;
        }
        if self.count_in_flight == 0 {
            self.ring.free(self.next);
        }
        self.count_in_flight
    }

    #[expect(clippy::indexing_slicing, reason = "tokens are this port's own, one for each place")]
    fn frame(&self, token: Token) -> TxFrame<'_> {
        self.in_flight[token.0 as usize].frame()
    }

    fn finish(&mut self, tokens: &[Token]) {
        self.finished += tokens.len();
        if self.count_in_flight > 0 && self.finished >= self.count_in_flight {
            (self.count_in_flight, self.finished) = (0, 0);
            self.ring.free(self.next);
        }
    }

    fn capabilities(&self) -> RxCapabilities {
        RxCapabilities::default()
    }

    fn filter(&self) -> &Filter {
        &self.filter
    }

    fn deliver(&mut self, _: &[RxFrame<'_>]) -> Result<(), Refused> {
        Err(Refused { at: 0, reason: DropReason::Filtered })
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
        FramePortInfo { lookahead: BURST, ..FramePortInfo::default() }
    }
}

impl WakeUp for MirrorPort {
    fn arm(&mut self) -> bool {
        self.ring.arm(true);
        self.count_in_flight > 0 || self.ring.has_record(self.next)
    }

    fn disarm(&mut self) {
        self.ring.arm(false);
    }

    /// Sources may be ports of other workers.
    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.doorbell())
    }

    fn needs(&self) -> Needs {
        if self.count_in_flight > 0 { Needs::Turn } else { Needs::Announces }
    }

    fn signs(&self, _: &mut Vec<Sign>) -> bool {
        false
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
