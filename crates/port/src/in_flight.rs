//! Frames in flight: their port describes them, their bytes are not copied yet.

use vmlane_mem::{MemoryMap, Spans};
use vmlane_wire::ethernet::Tci;

use crate::frame::{HEAD, MAX_HEAD, Offload, TxFrame};
use crate::reason::DropReason;
use crate::vnet::VnetHeader;

/// A frame that a port describes: what a [`TxFrame`] is made of.
#[derive(Debug)]
pub struct FrameInFlight {
    head: [u8; MAX_HEAD],
    head_len: usize,
    /// All its bytes in the sender's memory.
    pub spans: Spans,
    /// What is left to be done to it.
    pub offload: Offload,
    /// A tag to be inserted behind the addresses.
    pub tag: Option<Tci>,
    /// See [`TxFrame::verified`].
    pub verified: bool,
}

impl FrameInFlight {
    /// A frame without bytes.
    pub fn new(spans: Spans) -> FrameInFlight {
        let offload = Offload::None;
        FrameInFlight { head: [0; MAX_HEAD], head_len: 0, spans, offload, tag: None, verified: false }
    }

    /// Takes the private copy of the first bytes, which it returns: [`HEAD`] of them, or as many as are
    /// `spoken_of`, up to [`MAX_HEAD`]; all of a shorter frame.
    #[inline]
    pub fn keep_head(&mut self, spoken_of: usize) -> &[u8] {
        self.head_len = self.spans.len().min(HEAD.max(spoken_of.min(MAX_HEAD)));
        let head = self.head.get_mut(..self.head_len).unwrap_or_default();
        self.spans.read(0, head);
        head
    }

    /// Takes the private copy of the first bytes, and what `header` leaves to be done. Negotiated with its
    /// sender are `checksum`: partial ones, and `whole`: super-frames of TCP over IPv4, of TCP over IPv6, of
    /// UDP.
    #[inline]
    pub fn keep_offload(
        &mut self,
        header: &VnetHeader,
        checksum: bool,
        whole: [bool; 3],
    ) -> Result<(), DropReason> {
        let head = self.keep_head(header.spoken_of());
        let allowed = header.is_plain() || checksum && (!header.is_segmented() || header.is_allowed(whole));
        self.offload = header.offload(head).filter(|_| allowed).ok_or(DropReason::BadOffload)?;
        Ok(())
    }

    /// As it was described.
    #[inline]
    pub fn frame(&self) -> TxFrame<'_> {
        let FrameInFlight { offload, tag, verified, .. } = *self;
        TxFrame {
            head: self.head.get(..self.head_len).unwrap_or_default(),
            spans: &self.spans,
            offload,
            tag,
            verified,
        }
    }
}

/// Slots of frames of one memory, each with what its port has to know of it. They are made when there is need
/// of them, and the one that was last in use is used next: its memory is warm.
#[derive(Debug)]
pub struct FramesInFlight<T = ()> {
    memory: MemoryMap,
    /// See [`Spans::new`].
    writable: bool,
    most: usize,
    slots: Vec<(FrameInFlight, T)>,
    free: Vec<u16>,
}

impl<T: Default> FramesInFlight<T> {
    /// Up to `most` slots, for which the room is taken at once.
    pub fn new(memory: MemoryMap, writable: bool, most: usize) -> FramesInFlight<T> {
        FramesInFlight {
            memory,
            writable,
            most,
            slots: Vec::with_capacity(most),
            free: Vec::with_capacity(most),
        }
    }

    /// A free slot. None: all are in use.
    #[inline]
    pub fn take(&mut self) -> Option<u16> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.slots.len();
        if slot == self.most {
            return None;
        }
        self.slots.push((FrameInFlight::new(Spans::new(self.memory.clone(), self.writable)), T::default()));
        Some(slot as u16)
    }

    /// A slot that was taken: the frame, and what its port has to know of it.
    #[inline]
    pub fn get_mut(&mut self, slot: u16) -> Option<&mut (FrameInFlight, T)> {
        self.slots.get_mut(usize::from(slot))
    }

    /// The frame in a slot that was taken.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "`take` returned the slot")]
    pub fn frame(&self, slot: u16) -> TxFrame<'_> {
        self.slots[usize::from(slot)].0.frame()
    }

    /// The slot is free again.
    #[inline]
    pub fn give_back(&mut self, slot: u16) {
        self.free.push(slot);
    }
}
