//! The short way into an open flow, for a frame whose headers are those of the flow's first one but for what
//! counts up.

use vmlane_port::{Network, Offload, TxFrame};
use vmlane_wire::ethernet::HEADER;

use super::{Flow, PSH_OR_FIN, Segment};
use crate::coalesce::mask::MAX_HEADERS;
use crate::flight::Fetched;
use crate::ingress::Frame;
use crate::parse::{IPV6, word};
use crate::segment::{FLAGS, SEQUENCE, TCP_CHECKSUM};

/// Where the words of an IPv4 header are that differ from one segment to the next.
const V4_LENGTH: usize = HEADER + 2;
const V4_IDENTIFICATION: usize = HEADER + 4;
const V4_CHECKSUM: usize = HEADER + 10;
/// In an IPv6 header.
const V6_LENGTH: usize = HEADER + 4;

impl Flow {
    /// Notes what the next segment's headers have to be. `epoch`: see `Way::epoch`.
    pub fn expect(&mut self, epoch: Option<u64>) {
        self.way.epoch = epoch;
        if epoch.is_none() {
            return;
        }
        let at = usize::from(self.layers.transport_at);
        self.v4_sum = v4_sum(&self.head);
        self.mask.begin(self.header);
        let words: &[usize] = match self.layers.network {
            Network::V4 => &[V4_LENGTH, V4_IDENTIFICATION, V4_CHECKSUM],
            _ => &[V6_LENGTH],
        };
        words.iter().for_each(|&word| self.mask.set(word..word + 2, 0));
        self.mask.set(at + SEQUENCE..at + SEQUENCE + 4, 0);
        self.mask.set(at + FLAGS..at + FLAGS + 1, !PSH_OR_FIN);
        self.mask.set(at + TCP_CHECKSUM..at + TCP_CHECKSUM + 2, 0);
    }

    /// Does a frame that begins with `head` have the sequence number that is expected?
    #[inline]
    pub fn is_next(&self, head: &[u8]) -> bool {
        let at = usize::from(self.layers.transport_at) + SEQUENCE;
        let sequence = head.get(at..).and_then(|rest| rest.first_chunk());
        sequence.is_some_and(|bytes| self.next_sequence() == Some(u32::from_be_bytes(*bytes)))
    }

    /// Adds a frame with the sequence number that is expected, if it is the next segment.
    #[inline]
    pub fn follow(&mut self, fetched: &Fetched<'_, '_>, read: &mut usize) -> bool {
        let &Fetched { end, token, tx } = fetched;
        let Some((segment, step)) = self.expects(tx) else { return false };
        let frame = Frame { head: tx.head, tx, popped: 0, tag: tx.tag, offload: tx.offload };
        self.add(&frame, (&segment, step), (end, token), read)
    }

    /// What a frame is, if it is the next segment, and by how much IPv4 identifications count up.
    #[inline]
    fn expects(&self, tx: &TxFrame<'_>) -> Option<(Segment, u16)> {
        let (head, header) = (tx.head.first_chunk()?, self.header);
        let payload = tx.len().checked_sub(header).filter(|&payload| payload > 0)?;
        let may = tx.tag == self.way.tag
            && self.mask.equal(&self.head, head, header)
            && self.has_room(payload)
            && self.has_length(head, tx.len() - HEADER);
        let step = if may { self.id_step_to(head)? } else { return None };
        let sequence = self.next_sequence()?;
        Some((Segment { header, payload, sequence, verified: self.is_verified(tx)? }, step))
    }

    /// Need the frame's TCP checksum not be examined? None: another one is to be filled in.
    #[inline]
    fn is_verified(&self, tx: &TxFrame<'_>) -> Option<bool> {
        let at = self.layers.transport_at;
        match tx.offload {
            Offload::None => Some(tx.verified),
            Offload::Checksum { start, field } if start == at && field == at + TCP_CHECKSUM as u16 => {
                Some(true)
            }
            _ => None,
        }
    }

    /// Does the IP header of a segment, which is equal to the first one's but for what counts up, have this
    /// length, and the right checksum?
    #[inline]
    fn has_length(&self, head: &[u8; MAX_HEADERS], length: usize) -> bool {
        if self.layers.network == Network::V4 {
            // The first one's is right, and so is this one if the words that differ have the same sum.
            word(head, V4_LENGTH).map(usize::from) == Some(length) && v4_sum(head) == self.v4_sum
        } else {
            word(head, V6_LENGTH).is_some_and(|word| usize::from(word) + IPV6 == length)
        }
    }
}

/// The ones' complement sum, modulo 65535, of the words of an IPv4 header that may differ.
#[inline]
fn v4_sum(head: &[u8; MAX_HEADERS]) -> u32 {
    let at = |at: usize| u32::from(word(head, at).unwrap_or_default());
    (at(V4_LENGTH) + at(V4_IDENTIFICATION) + at(V4_CHECKSUM)) % u32::from(u16::MAX)
}
