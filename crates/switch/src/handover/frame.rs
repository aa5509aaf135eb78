//! A frame that another worker delivers.

use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_mem::{MemoryMap, Spans};
use vmlane_port::{MAX_HEAD, Offload, Token, TxFrame};
use vmlane_wire::ethernet::Tci;

use crate::Slot;

/// Who lent a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lender {
    pub slot: Slot,
    pub owner: u16,
    /// Which of the ends that were attached to the port, counted.
    pub attachment: u32,
}

/// Descriptions that are done with: remote ports put them there, at the end of a round they go back together.
pub type Done = Arc<Mutex<Vec<Box<HandedFrame>>>>;

/// All that is to be known of a frame to deliver it. Used again and again: nothing is allocated while frames flow.
///
/// One CPU writes it and another one reads it, and each cache line of it takes its time between them: it begins at one,
/// and a short frame's is three lines.
#[repr(C, align(64))]
pub struct HandedFrame {
    /// Who lent it, and what to say when it is finished.
    pub lender: Lender,
    pub token: Token,
    offload: Offload,
    tag: Option<Tci>,
    verified: bool,
    head_len: u16,
    spans: Spans,
    head: [u8; MAX_HEAD],
}

/// Cache lines of a short frame.
const LINES: usize = 3;
const _: () = assert!(std::mem::offset_of!(HandedFrame, head) <= (LINES - 1) * 64);

impl HandedFrame {
    /// Of no frame.
    pub fn new() -> HandedFrame {
        HandedFrame {
            lender: Lender::default(),
            token: Token(0),
            offload: Offload::None,
            tag: None,
            verified: false,
            head_len: 0,
            spans: Spans::new(MemoryMap::default(), false),
            head: [0; MAX_HEAD],
        }
    }

    /// Describes `tx`, which `lender` has lent as `token`. False: it cannot be described.
    pub fn describe(&mut self, lender: Lender, token: Token, tx: &TxFrame<'_>) -> bool {
        let Some(head) = self.head.get_mut(..tx.head.len()) else { return false };
        head.copy_from_slice(tx.head);
        self.head_len = tx.head.len() as u16;
        self.spans.follow(tx.spans);
        (self.lender, self.token) = (lender, token);
        (self.offload, self.tag, self.verified) = (tx.offload, tx.tag, tx.verified);
        self.spans.append(tx.spans, 0, tx.spans.len())
    }

    /// The frame as it was lent.
    #[inline]
    pub fn frame(&self) -> TxFrame<'_> {
        TxFrame {
            head: self.head.get(..self.head_len.into()).unwrap_or_default(),
            spans: &self.spans,
            offload: self.offload,
            tag: self.tag,
            verified: self.verified,
        }
    }

    /// No guest's memory is kept mapped for it any more.
    pub fn let_go(&mut self, nothing: &Spans) {
        self.spans.follow(nothing);
    }

    /// Has the CPU fetch what it is about to write.
    #[inline]
    pub fn prefetch_write(&self) {
        vmlane_mem::prefetch_value_write(self, LINES);
    }

    /// Has the CPU fetch what another one wrote.
    #[inline]
    pub fn prefetch(&self) {
        vmlane_mem::prefetch_value(self, LINES);
    }
}
