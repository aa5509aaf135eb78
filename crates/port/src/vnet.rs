//! `struct virtio_net_hdr`, little endian (virtio 1.2, section 5.1.6): what remains to be done to a frame.
//! TAP interfaces and virtio NICs have it in front of every frame.

use crate::{ChecksumStatus, Network, Offload, RxFrame, Transport};

/// Flag: the checksum from `start` on is to be filled in.
const NEEDS_CHECKSUM: u8 = 1;
/// Flag: the sender states that the checksum is right.
const CHECKED: u8 = 2;
/// Kinds of super-frames, and the bit that states that its first segment has CWR set.
const NONE: u8 = 0;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;
const ECN: u8 = 0x80;

/// The checksum's offset in a UDP header, and all of its bytes.
const UDP_CHECKSUM: u16 = 6;
const UDP_HEADER: u16 = 8;
/// Offsets in a TCP header.
const DATA_OFFSET: usize = 12;
const FLAGS: usize = 13;
const CHECKSUM: u16 = 16;
const CWR: u8 = 0x80;

/// The header without the number of buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    flags: u8,
    kind: u8,
    /// Bytes of headers of a super-frame; a hint.
    header: u16,
    /// Payload bytes of its segments.
    mss: u16,
    start: u16,
    /// Of the checksum, from `start` on.
    field: u16,
}

impl VnetHeader {
    /// Bytes.
    pub const SIZE: usize = 10;

    /// As it lies in front of a frame.
    pub fn to_bytes(self) -> [u8; VnetHeader::SIZE] {
        let mut bytes = [self.flags, self.kind, 0, 0, 0, 0, 0, 0, 0, 0];
        let words = [self.header, self.mss, self.start, self.field];
        for (to, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Its first eight bytes and its last two, both little endian.
    #[inline]
    pub fn to_words(self) -> (u64, u16) {
        let [flags, kind] = [self.flags, self.kind].map(u64::from);
        let [header, mss, start] = [self.header, self.mss, self.start].map(u64::from);
        (flags | kind << 8 | header << 16 | mss << 32 | start << 48, self.field)
    }

    /// As a device or the kernel has written it; nothing is checked yet.
    #[inline]
    pub fn from_bytes(bytes: &[u8; VnetHeader::SIZE]) -> VnetHeader {
        let [flags, kind, a, b, c, d, e, f, g, h] = *bytes;
        let [header, mss] = [[a, b], [c, d]].map(u16::from_le_bytes);
        let [start, field] = [[e, f], [g, h]].map(u16::from_le_bytes);
        VnetHeader { flags, kind, header, mss, start, field }
    }

    /// The same of its first eight bytes and its last two, both little endian.
    #[inline]
    pub fn from_words(first: u64, field: u16) -> VnetHeader {
        VnetHeader {
            flags: first as u8,
            kind: (first >> 8) as u8,
            header: (first >> 16) as u16,
            mss: (first >> 32) as u16,
            start: (first >> 48) as u16,
            field,
        }
    }

    /// What a packet needs whose bytes behind the addresses move by `shift` (a tag).
    pub fn of(packet: &RxFrame<'_>, shift: u16) -> VnetHeader {
        let mut header = VnetHeader::default();
        if let Some(partial_checksum) = packet.partial_checksum {
            header.flags = NEEDS_CHECKSUM;
            header.start = partial_checksum.start + shift;
            header.field = partial_checksum.field - partial_checksum.start;
        }
        if let Some(aggregate) = packet.aggregate {
            let at = packet.layers.transport_at;
            // The kernel refuses super-frames whose checksum is not its own to fill in.
            header.flags = NEEDS_CHECKSUM;
            header.start = at + shift;
            if packet.layers.transport == Transport::Udp {
                (header.kind, header.field) = (UDP, UDP_CHECKSUM);
            } else {
                let flags = packet.head.get(usize::from(at) + FLAGS).copied().unwrap_or(0);
                header.kind = if packet.layers.network == Network::V4 { TCP_V4 } else { TCP_V6 };
                header.kind |= if flags & CWR != 0 { ECN } else { 0 };
                header.field = CHECKSUM;
            }
            (header.header, header.mss) = (aggregate.header + shift, aggregate.mss);
        }
        header
    }

    /// [`Self::of`] for a guest that takes verdicts too.
    pub fn with_checksum_status(packet: &RxFrame<'_>, shift: u16) -> VnetHeader {
        let mut header = VnetHeader::of(packet, shift);
        if header.flags == 0 && packet.checksum == ChecksumStatus::Good {
            header.flags = CHECKED;
        }
        header
    }

    /// Header bytes that an offload speaks of, of a frame of unknown length.
    #[inline]
    pub fn spoken_of(&self) -> usize {
        const LONGEST_TCP: usize = 60;
        if self.flags & NEEDS_CHECKSUM == 0 { 0 } else { usize::from(self.start) + LONGEST_TCP }
    }

    /// Nothing remains to be done.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.flags & NEEDS_CHECKSUM == 0 && self.kind == NONE
    }

    /// The sender states that the TCP or UDP checksum is right. Only the kernel's word counts.
    #[inline]
    pub fn is_verified(&self) -> bool {
        self.flags & CHECKED != 0
    }

    /// A super-frame.
    #[inline]
    pub fn is_segmented(&self) -> bool {
        self.kind & !ECN != NONE
    }

    /// A super-frame of a kind that was agreed on.
    #[inline]
    pub(crate) fn is_allowed(&self, [tso4, tso6, uso]: [bool; 3]) -> bool {
        match self.kind & !ECN {
            TCP_V4 => tso4,
            TCP_V6 => tso6,
            UDP => uso,
            _ => false,
        }
    }

    /// What the sender leaves to us; None if it is not valid for a frame that begins with `head`.
    pub fn offload(&self, head: &[u8]) -> Option<Offload> {
        let wants = self.flags & NEEDS_CHECKSUM != 0;
        match self.kind & !ECN {
            NONE if !wants => Some(Offload::None),
            NONE => {
                let field = self.start.checked_add(self.field)?;
                let fits = usize::from(field) + 2 <= head.len();
                fits.then_some(Offload::Checksum { start: self.start, field })
            }
            TCP_V4 | TCP_V6 if wants && self.field == CHECKSUM && self.mss > 0 => {
                let offset = head.get(usize::from(self.start) + DATA_OFFSET)?;
                let header = self.start.checked_add(u16::from(offset >> 4) * 4)?;
                (usize::from(header) <= head.len()).then_some(Offload::Segment { header, mss: self.mss })
            }
            UDP if wants && self.field == UDP_CHECKSUM && self.mss > 0 => {
                let header = self.start.checked_add(UDP_HEADER)?;
                (usize::from(header) <= head.len()).then_some(Offload::Segment { header, mss: self.mss })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{VnetHeader as Header, *};

    #[test]
    fn bytes_and_back() {
        let header = Header { flags: 1, kind: 0x84, header: 0x102, mss: 0x304, start: 34, field: 16 };
        assert_eq!(header.to_bytes(), [1, 0x84, 2, 1, 4, 3, 34, 0, 16, 0]);
        assert_eq!(Header::from_bytes(&header.to_bytes()), header);
        let (first, field) = header.to_words();
        assert_eq!(first.to_le_bytes(), header.to_bytes()[..8]);
        assert_eq!(Header::from_words(first, field), header);
        assert_eq!(Header::from_words(0x22_0304_0102_8401, 16), header);
    }

    #[test]
    fn a_verdict_is_one_only_if_it_is_given() {
        let verified = |flags| Header { flags, ..Header::default() }.is_verified();
        assert_eq!([0, 1, 2, 3].map(verified), [false, false, true, true]);
        assert!(Header { flags: 2, ..Header::default() }.is_plain());
    }

    #[test]
    fn wishes_that_cannot_be_are_none() {
        let mut head = [0u8; 60];
        head[34 + DATA_OFFSET] = 0x50;
        let plain = Header { flags: 1, start: 34, field: 16, ..Header::default() };
        let checksum = Offload::Checksum { start: 34, field: 50 };
        let segment = Offload::Segment { header: 54, mss: 1000 };
        let tcp = Header { kind: TCP_V4, mss: 1000, ..plain };
        for (header, expected) in [
            (Header::default(), Some(Offload::None)),
            (plain, Some(checksum)),
            (Header { field: 25, ..plain }, None),
            (Header { start: u16::MAX, ..plain }, None),
            (tcp, Some(segment)),
            (Header { kind: TCP_V6 | ECN, ..tcp }, Some(segment)),
            (Header { flags: 0, ..tcp }, None),
            (Header { mss: 0, ..tcp }, None),
            (Header { field: 6, ..tcp }, None),
            (Header { start: 55, ..tcp }, None),
            (Header { kind: 3, ..tcp }, None),
            (Header { kind: UDP, ..tcp }, None),
            (Header { kind: UDP, field: 6, ..tcp }, Some(Offload::Segment { header: 42, mss: 1000 })),
            (Header { kind: UDP, field: 6, mss: 0, ..tcp }, None),
            (Header { kind: UDP, field: 6, flags: 0, ..tcp }, None),
            (Header { kind: UDP, field: 6, start: 53, ..tcp }, None),
            (Header { kind: UDP, field: 6, start: u16::MAX, ..tcp }, None),
            (Header { kind: 6, ..tcp }, None),
        ] {
            assert_eq!(header.offload(&head), expected, "{header:?}");
        }
    }
}
