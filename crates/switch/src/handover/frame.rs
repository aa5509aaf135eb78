//! A frame that another worker delivers.
#![expect(clippy::vec_box, reason = "frames go from list to list by their addresses")]

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{HEAD, MAX_HEAD, Offload, Token, TxFrame};
use vmlane_wire::ethernet::Tci;

use super::PLACES;
use super::origin::Origin;
use super::words::{Reader, Value};

/// Descriptions that are done with: remote ports put them there, at the end of a round they go back together.
pub type Done = Arc<Mutex<Vec<Box<HandedFrame>>>>;

/// All that is to be known of a frame to deliver it. Used again and again: nothing is allocated while frames
/// flow.
///
/// That of a frame that is described one CPU writes and another one reads, and each cache line of it takes
/// its time between them: it begins at one. That of a frame by value is the receiver's worker's alone.
#[repr(C, align(64))]
pub struct HandedFrame {
    /// Whose it is, and its token there.
    pub origin: Origin,
    pub token: Token,
    /// Where its bytes lie in the receiver's worker's [`Room`], if they travelled with it. Then its sender is
    /// not to be notified.
    by_value: Option<u32>,
    offload: Offload,
    tag: Option<Tci>,
    verified: bool,
    head_len: u16,
    spans: Spans,
    head: [u8; MAX_HEAD],
}

/// Cache lines of a frame's payload that are fetched before it is sent; the CPU itself goes on from there.
const PAYLOAD: usize = 4;
/// Cache lines of one with no more than [`HEAD`] bytes of its own.
const LINES: usize = 5;
const _: () = assert!(std::mem::offset_of!(HandedFrame, head) + HEAD <= LINES * 64);

impl HandedFrame {
    /// Of no frame.
    pub fn new() -> HandedFrame {
        HandedFrame {
            origin: Origin::default(),
            token: Token(0),
            by_value: None,
            offload: Offload::None,
            tag: None,
            verified: false,
            head_len: 0,
            spans: Spans::new(MemoryMap::default(), false),
            head: [0; MAX_HEAD],
        }
    }

    /// For a frame by value, whose bytes go to `at` of this memory.
    fn by_value(room: &MemoryMap, at: u32) -> HandedFrame {
        let spans = Spans::new(room.clone(), true);
        HandedFrame { spans, by_value: Some(at), ..HandedFrame::new() }
    }

    /// Did its bytes travel with it?
    #[inline]
    pub fn is_by_value(&self) -> bool {
        self.by_value.is_some()
    }

    /// Is all of it in its head?
    #[inline]
    pub fn is_short(&self) -> bool {
        self.spans.len() == usize::from(self.head_len)
    }

    /// Becomes the frame whose entry was read last.
    #[inline]
    pub fn receive(&mut self, value: &Value, from: &mut Reader) {
        let Value { len, origin, offload, tag, verified } = *value;
        from.read(len, &mut self.head);
        (self.origin, self.offload, self.tag, self.verified) = (origin, offload, tag, verified);
        self.head_len = len as u16;
    }

    /// It is about to be sent. Not when it has just arrived: what was stored in words and is loaded in longer
    /// ones waits until it is in the cache, and so does what another CPU stored.
    #[inline]
    pub fn prepare(&mut self) {
        let len = usize::from(self.head_len);
        let Some(at) = self.by_value else { return self.spans.prefetch_bytes(len, PAYLOAD) };
        // Who edits headers finds the payload behind them where that of any frame is.
        if self.spans.set(at.into(), len).is_ok()
            && let Some(head) = self.head.get(..len)
        {
            self.spans.write(0, head);
        }
    }

    /// Describes `tx`, which `origin` has in flight as `token`. False: it cannot be described.
    pub fn describe(&mut self, origin: Origin, token: Token, tx: &TxFrame<'_>) -> bool {
        let Some(head) = self.head.get_mut(..tx.head.len()) else { return false };
        head.copy_from_slice(tx.head);
        self.head_len = tx.head.len() as u16;
        self.spans.follow(tx.spans);
        (self.origin, self.token) = (origin, token);
        (self.offload, self.tag, self.verified) = (tx.offload, tx.tag, tx.verified);
        self.spans.append(tx.spans, 0, tx.spans.len())
    }

    /// The frame as it was fetched.
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
        self.spans.prefetch_list();
    }

    /// Has the CPU fetch what another one wrote.
    #[inline]
    pub fn prefetch(&self) {
        vmlane_mem::prefetch_value(self, LINES);
    }

    /// The same of what the first lines, which are there by now, lead to.
    #[inline]
    pub fn prefetch_more(&self) {
        self.spans.prefetch_list();
    }
}

/// Where frames by value that came from one other worker are until they are delivered.
pub struct Room {
    map: MemoryMap,
    free: Vec<Box<HandedFrame>>,
    made: usize,
}

/// Bytes from one of its frames to the next.
const STRIDE: usize = 256;
const _: () = assert!(HEAD <= STRIDE);

impl Room {
    /// Fails if the process has no file or memory to spare.
    pub fn new() -> io::Result<Room> {
        let len = (PLACES * STRIDE) as u64;
        let fd = memfd("vmlane-handover", len)?;
        let request = MapRequest { guest: 0, len, offset: 0, fd, writable: true };
        let map = MemoryMap::default().map(request).map_err(io::Error::other)?;
        Ok(Room { map, free: Vec::new(), made: 0 })
    }

    /// A place. None: all are taken, which those of the ring's writer were before.
    #[inline]
    pub fn take(&mut self) -> Option<Box<HandedFrame>> {
        self.free.pop().or_else(|| {
            let at = self.made * STRIDE;
            let may = self.made < PLACES;
            self.made += usize::from(may);
            may.then(|| Box::new(HandedFrame::by_value(&self.map, at as u32)))
        })
    }

    /// Puts one back.
    #[inline]
    pub fn put(&mut self, frame: Box<HandedFrame>) {
        self.free.push(frame);
    }
}
