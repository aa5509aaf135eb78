//! A mirror as a port: it sends the copies, and receives nothing.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use vmlane_mem::Spans;
use vmlane_port::{
    BURST, DropReason, Filter, FramePort, FramePortInfo, Glance, HEAD, MAX_HEAD, Offload, Refused,
    RxCapabilities, RxFrame, Sign, Ticked, Token, TxFrame, WakeUp,
};

use super::ring::{Head, Position, Ring};
use crate::port::NOTHING;

/// A copy that is lent.
struct Lent {
    first: [u8; MAX_HEAD],
    first_len: usize,
    spans: Spans,
    head: Head,
}

/// The end of a mirror's ring from which copies leave.
pub struct MirrorPort {
    ring: Arc<Ring>,
    filter: Filter,
    /// Those that are lent come first; all of them are given back before others are lent.
    lent: Vec<Lent>,
    lent_count: usize,
    finished: usize,
    next: Position,
}

impl MirrorPort {
    pub fn new(ring: Arc<Ring>) -> MirrorPort {
        let empty = Head { len: 0, offload: Offload::None, tag: None };
        let one = || Lent { first: [0; MAX_HEAD], first_len: 0, spans: ring.spans(), head: empty };
        let lent = std::iter::repeat_with(one).take(BURST).collect();
        let filter = Filter::default();
        // Another port may have read before.
        let next = ring.first();
        MirrorPort { ring, filter, lent, lent_count: 0, finished: 0, next }
    }
}

/// Bytes of a frame that its headers may take.
fn headers(head: &Head) -> usize {
    let spoken_of = match head.offload {
        Offload::None => 0,
        Offload::Checksum { field, .. } => usize::from(field) + 2,
        Offload::Segment { header, .. } | Offload::Tunnel { header, .. } => usize::from(header),
    };
    head.len.min(HEAD.max(spoken_of)).min(MAX_HEAD)
}

impl FramePort for MirrorPort {
    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        if self.lent_count > 0 {
            return 0;
        }
        for (number, (token, lent)) in tokens.iter_mut().zip(&mut self.lent).enumerate() {
            let Some((at, head)) = self.ring.read(&mut self.next) else { break };
            self.ring.lend(at, head.len, &mut lent.spans);
            (lent.head, lent.first_len) = (head, headers(&head));
            if let Some(first) = lent.first.get_mut(..lent.first_len) {
                lent.spans.read(0, first);
            }
            *token = Token(number as u32);
            self.lent_count = number + 1;
        }
        if self.lent_count == 0 {
            self.ring.free(self.next);
        }
        self.lent_count
    }

    #[expect(clippy::indexing_slicing, reason = "tokens are this port's own, one for each place")]
    fn frame(&self, token: Token) -> TxFrame<'_> {
        let Lent { first, first_len, spans, head } = &self.lent[token.0 as usize];
        TxFrame {
            head: first.get(..*first_len).unwrap_or_default(),
            spans,
            offload: head.offload,
            tag: head.tag,
            verified: false,
        }
    }

    fn finish(&mut self, tokens: &[Token]) {
        self.finished += tokens.len();
        if self.lent_count > 0 && self.finished >= self.lent_count {
            (self.lent_count, self.finished) = (0, 0);
            self.ring.free(self.next);
        }
    }

    fn capabilities(&self) -> RxCapabilities {
        NOTHING
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
        FramePortInfo { look_ahead: BURST, ..FramePortInfo::default() }
    }
}

impl WakeUp for MirrorPort {
    fn arm(&mut self) -> bool {
        self.ring.arm(true);
        self.lent_count > 0 || self.ring.has_record(self.next)
    }

    fn disarm(&mut self) {
        self.ring.arm(false);
    }

    /// Sources may be ports of other workers.
    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.bell())
    }

    fn glance(&self) -> Glance {
        if self.lent_count > 0 { Glance::Turn } else { Glance::Announces }
    }

    fn signs(&self, _: &mut Vec<Sign>) -> bool {
        false
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
