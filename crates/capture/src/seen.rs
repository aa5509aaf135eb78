//! A frame as it would be on the wire, its tag in place, whether it comes from a sender or goes to a
//! receiver.

use vmlane_mem::Spans;
use vmlane_port::{Offload, RxFrame, TxFrame};
use vmlane_wire::ethernet::{TAG, Tci, ether_type};

use crate::bpf::Packet;
use crate::ring::{Ring, Slot};

const ADDRESSES: usize = 12;

/// A frame: first bytes that are private, a tag that is to be inserted, the rest in its sender's memory.
pub struct Seen<'a> {
    head: &'a [u8],
    tag: Option<[u8; TAG]>,
    body: &'a Spans,
    body_at: usize,
    body_len: usize,
    /// Payload bytes of each segment, or 0.
    pub gso: u16,
    /// Its checksum is not filled in.
    pub partial_checksum: bool,
}

fn tag_bytes(tag: Tci) -> [u8; TAG] {
    let [high, low] = ether_type::VLAN.to_be_bytes();
    let [priority, vlan] = tag.0.to_be_bytes();
    [high, low, priority, vlan]
}

impl<'a> Seen<'a> {
    /// As its sender described it.
    pub fn sent(frame: &'a TxFrame<'a>) -> Seen<'a> {
        let (gso, partial_checksum) = match frame.offload {
            Offload::None => (0, false),
            Offload::Checksum { .. } => (0, true),
            Offload::Segment { mss, .. } | Offload::Tunnel { mss, .. } => (mss, true),
        };
        Seen {
            head: frame.head,
            // A frame too short for its addresses has no place for a tag.
            tag: frame.tag.filter(|_| frame.head.len() >= ADDRESSES).map(tag_bytes),
            body: frame.spans,
            body_at: frame.head.len(),
            body_len: frame.len().saturating_sub(frame.head.len()),
            gso,
            partial_checksum,
        }
    }

    /// As it is delivered.
    pub fn received(frame: &'a RxFrame<'a>) -> Seen<'a> {
        Seen {
            head: frame.head,
            tag: frame.tag.filter(|_| frame.head.len() >= ADDRESSES).map(tag_bytes),
            body: frame.body,
            body_at: frame.body_at,
            body_len: frame.body_len,
            gso: frame.aggregate.map_or(0, |aggregate| aggregate.mss),
            partial_checksum: frame.partial_checksum.is_some(),
        }
    }

    /// The pieces of private memory that it begins with.
    fn pieces(&self) -> [&[u8]; 3] {
        match &self.tag {
            None => [self.head, &[], &[]],
            Some(tag) => {
                let (addresses, rest) = self.head.split_at_checked(ADDRESSES).unwrap_or((self.head, &[]));
                [addresses, tag, rest]
            }
        }
    }

    fn private(&self) -> usize {
        self.head.len() + if self.tag.is_some() { TAG } else { 0 }
    }

    /// Records the first `kept` bytes, no more than there are.
    #[inline]
    pub fn record(&self, ring: &Ring, slot: Slot, kept: usize) {
        let mut at = 0;
        for piece in self.pieces() {
            let here = piece.get(..piece.len().min(kept - at)).unwrap_or_default();
            if !here.is_empty() {
                ring.write(slot, at, here);
            }
            at += here.len();
        }
        if at < kept {
            self.record_body(ring, slot, at, kept);
        }
    }

    #[cold]
    fn record_body(&self, ring: &Ring, slot: Slot, mut at: usize, kept: usize) {
        let mut chunk = [0; 2048];
        let begins = at;
        while at < kept {
            let len = chunk.len().min(kept - at);
            let Some(chunk) = chunk.get_mut(..len) else { return };
            self.body.read(self.body_at + at - begins, chunk);
            ring.write(slot, at, chunk);
            at += len;
        }
    }

    /// Two bytes at an offset, if it has them.
    pub fn half(&self, at: usize) -> Option<u16> {
        let mut bytes = [0; 2];
        (at + 2 <= self.len()).then(|| self.copy(at, &mut bytes)).map(|()| u16::from_be_bytes(bytes))
    }
}

impl Packet for Seen<'_> {
    fn len(&self) -> usize {
        self.private() + self.body_len
    }

    fn copy(&self, at: usize, out: &mut [u8]) {
        let mut begins = 0;
        let mut done = 0;
        for piece in self.pieces() {
            let from = (at + done).saturating_sub(begins);
            let rest = piece.get(from..).unwrap_or_default();
            if let Some(to) = out.get_mut(done..)
                && at + done >= begins
            {
                let len = rest.len().min(to.len());
                to.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
                done += len;
            }
            begins += piece.len();
        }
        if let Some(to) = out.get_mut(done..).filter(|to| !to.is_empty()) {
            let offset = at + done - self.private();
            if offset + to.len() <= self.body_len {
                self.body.read(self.body_at + offset, to);
            }
        }
    }
}
