//! Command descriptors and completions: 16 bytes each, two little-endian 64-bit words.
//!
//! A command is read as its second word, which holds the generation bit and everything but the
//! address, and then its first. A completion's second word holds the generation bit and is written
//! last.

use crate::ethernet::Tci;

/// Bytes of any descriptor or completion.
pub const SIZE: usize = 16;
/// Where in a descriptor the word with the generation bit lies.
pub const CONTROL: usize = 8;
/// Bytes that a transmit length of 0 stands for.
pub const MAX_TX_LEN: usize = 16384;
/// The smallest head buffer.
pub const MIN_HEAD: usize = 128;

/// Queue error codes.
pub mod error {
    /// A packet without its last descriptor.
    pub const NO_END: u32 = 0x8000_0000;
    pub const TOO_MANY_DESCRIPTORS: u32 = 0x8000_0002;
    pub const UNKNOWN_TYPE: u32 = 0x8000_0003;
    /// A head buffer below [`super::MIN_HEAD`].
    pub const SMALL_BUFFER: u32 = 0x8000_0004;
}

/// Bits `[at, at + width)` of a word.
const fn bits(word: u64, at: u32, width: u32) -> u64 {
    word >> at & ((1 << width) - 1)
}

/// What the driver wants done to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadMode {
    None,
    /// Revisions 4 to 6.
    Encapsulated,
    Checksum,
    Segment,
}

/// Where a transmit descriptor's control word has its generation bit.
pub const TX_GEN: u32 = 14;
const TX_OUTER_SUM: u32 = 15;
const TX_TYPE: u32 = 16;
const TX_INNER: u32 = 17;
const TX_MSS: u32 = 18;
const TX_HEADER: u32 = 32;
const TX_MODE: u32 = 42;
const TX_END: u32 = 44;
const TX_COMPLETE: u32 = 45;
const TX_TAG: u32 = 47;
const TX_TCI: u32 = 48;

/// A transmit descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TxDesc {
    pub addr: u64,
    control: u64,
}

impl TxDesc {
    #[inline]
    pub const fn from_words(addr: u64, control: u64) -> TxDesc {
        TxDesc { addr, control }
    }

    /// Bytes, 1 to [`MAX_TX_LEN`].
    #[inline]
    pub const fn len(&self) -> usize {
        match bits(self.control, 0, 14) {
            0 => MAX_TX_LEN,
            len => len as usize,
        }
    }

    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The type bit; only 0 is defined.
    #[inline]
    pub const fn unknown_type(&self) -> bool {
        bits(self.control, TX_TYPE, 1) != 0
    }

    #[inline]
    pub const fn mode(&self) -> OffloadMode {
        match bits(self.control, TX_MODE, 2) {
            0 => OffloadMode::None,
            1 => OffloadMode::Encapsulated,
            2 => OffloadMode::Checksum,
            _ => OffloadMode::Segment,
        }
    }

    /// `hlen`: header bytes, or where the sum starts.
    #[inline]
    pub const fn header(&self) -> u16 {
        bits(self.control, TX_HEADER, 10) as u16
    }

    /// `msscof`: segment size, or the checksum field's offset.
    #[inline]
    pub const fn mss_or_field(&self) -> u16 {
        bits(self.control, TX_MSS, 14) as u16
    }

    /// `oco`: the outer UDP checksum is wanted.
    #[inline]
    pub const fn outer_sum(&self) -> bool {
        bits(self.control, TX_OUTER_SUM, 1) != 0
    }

    /// `ext1`: from revision 7 on, the mode speaks of the inner headers.
    #[inline]
    pub const fn inner(&self) -> bool {
        bits(self.control, TX_INNER, 1) != 0
    }

    /// The packet's last descriptor.
    #[inline]
    pub const fn end(&self) -> bool {
        bits(self.control, TX_END, 1) != 0
    }

    /// On the last descriptor: a completion is wanted.
    #[inline]
    pub const fn wants_completion(&self) -> bool {
        bits(self.control, TX_COMPLETE, 1) != 0
    }

    /// A tag to insert.
    #[inline]
    pub const fn tag(&self) -> Option<Tci> {
        if bits(self.control, TX_TAG, 1) == 0 {
            return None;
        }
        Some(Tci(bits(self.control, TX_TCI, 16) as u16))
    }

    /// The control word.
    pub const fn control(&self) -> u64 {
        self.control
    }
}

/// A transmit completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxCompletion {
    /// The last descriptor of the packet.
    pub index: u16,
}

/// Generation of any completion, in its second word.
const COMPLETION_GEN: u32 = 63;

/// The generation bit of a completion's second word.
#[inline]
pub const fn completion_generation(high: u64) -> bool {
    high >> COMPLETION_GEN != 0
}

impl TxCompletion {
    #[inline]
    pub const fn words(self, generation: bool) -> [u64; 2] {
        [self.index as u64 & 0xfff, (generation as u64) << COMPLETION_GEN]
    }
}

const RX_BODY: u32 = 14;
/// Where a receive descriptor's control word has its generation bit.
pub const RX_GEN: u32 = 31;

/// A receive descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RxDesc {
    pub addr: u64,
    control: u64,
}

impl RxDesc {
    #[inline]
    pub const fn from_words(addr: u64, control: u64) -> RxDesc {
        RxDesc { addr, control }
    }

    /// Bytes, 0 to 16383.
    #[inline]
    pub const fn len(&self) -> usize {
        bits(self.control, 0, 14) as usize
    }

    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For a packet's first bytes (false) or for those that follow (true).
    #[inline]
    pub const fn is_body(&self) -> bool {
        bits(self.control, RX_BODY, 1) != 0
    }

    pub const fn control(&self) -> u64 {
        self.control
    }
}

/// What the RSS hash was made of, as a completion names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum RssType {
    #[default]
    None = 0,
    V4 = 1,
    Tcp4 = 2,
    V6 = 3,
    Tcp6 = 4,
    Udp4 = 5,
    Udp6 = 6,
}

// First word.
const RXC_END: u32 = 14;
const RXC_START: u32 = 15;
const RXC_QUEUE: u32 = 16;
const RXC_RSS: u32 = 26;
const RXC_UNCHECKED: u32 = 30;
const RXC_HASH: u32 = 32;
// Second word.
const RXC_TAGGED: u32 = 15;
const RXC_TCI: u32 = 16;
const RXC_MSS: u32 = 32;
const RXC_L4_GOOD: u32 = 48;
const RXC_UDP: u32 = 49;
const RXC_TCP: u32 = 50;
const RXC_V4_GOOD: u32 = 51;
const RXC_V6: u32 = 52;
const RXC_V4: u32 = 53;
const RXC_FRAGMENT: u32 = 54;
const RXC_FRAME_GOOD: u32 = 55;
const RXC_TYPE: u32 = 56;
/// An ordinary receive completion.
const TYPE_NORMAL: u64 = 3;
/// The first completion of an aggregate, with segment count and size (revision 2).
const TYPE_LRO: u64 = 4;

/// What a completion states about the frame's protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RxLayers {
    pub v4: bool,
    pub v6: bool,
    pub tcp: bool,
    pub udp: bool,
    pub fragment: bool,
    /// Checksums are right: TCP's or UDP's, and IPv4's header's. False: nothing is known of them.
    pub good: bool,
}

/// A receive completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxCompletion {
    low: u64,
    high: u64,
}

impl RxCompletion {
    /// Descriptor and ring that it is about, as [`RxCompletion::buffer`] put them.
    pub const fn place(self) -> (u16, u16) {
        (self.low as u16 & 0xfff, (self.low >> RXC_QUEUE) as u16 & 0x3ff)
    }

    /// What all completions of a frame have in common.
    #[inline]
    pub const fn of(layers: RxLayers, tag: Option<Tci>) -> RxCompletion {
        let mut high = 1 << RXC_FRAME_GOOD | TYPE_NORMAL << RXC_TYPE;
        if let Some(tag) = tag {
            high |= 1 << RXC_TAGGED | (tag.0 as u64) << RXC_TCI;
        }
        high |= (layers.v4 as u64) << RXC_V4 | (layers.v6 as u64) << RXC_V6;
        high |= (layers.tcp as u64) << RXC_TCP | (layers.udp as u64) << RXC_UDP;
        high |= (layers.fragment as u64) << RXC_FRAGMENT;
        if layers.good {
            high |= 1 << RXC_L4_GOOD | (layers.v4 as u64) << RXC_V4_GOOD;
            RxCompletion { low: 0, high }
        } else {
            RxCompletion { low: 1 << RXC_UNCHECKED, high }
        }
    }

    /// One buffer of the frame: its descriptor, its ring as completions name it, the bytes in it.
    #[inline]
    pub const fn buffer(self, index: u16, ring: u16, len: u16) -> RxCompletion {
        let low = self.low | index as u64 & 0xfff | (ring as u64 & 0x3ff) << RXC_QUEUE;
        RxCompletion { low, high: self.high | len as u64 & 0x3fff }
    }

    /// First and last buffer of the frame.
    #[inline]
    pub const fn ends(self, start: bool, end: bool) -> RxCompletion {
        RxCompletion { low: self.low | (start as u64) << RXC_START | (end as u64) << RXC_END, ..self }
    }

    /// The hash; not together with [`Self::lro`].
    #[inline]
    pub const fn rss(self, kind: RssType, hash: u32) -> RxCompletion {
        let low = self.low | (kind as u64) << RXC_RSS | (hash as u64) << RXC_HASH;
        RxCompletion { low, ..self }
    }

    /// An aggregate of `segments` of `mss` bytes each.
    #[inline]
    pub const fn lro(self, segments: u8, mss: u16) -> RxCompletion {
        let high = self.high & !(0x7f << RXC_TYPE) | TYPE_LRO << RXC_TYPE | (mss as u64) << RXC_MSS;
        RxCompletion { low: self.low | (segments as u64) << RXC_HASH, high }
    }

    #[inline]
    pub const fn words(self, generation: bool) -> [u64; 2] {
        [self.low, self.high | (generation as u64) << COMPLETION_GEN]
    }

    pub const fn from_words(low: u64, high: u64) -> RxCompletion {
        RxCompletion { low, high: high & !(1 << COMPLETION_GEN) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transmit_descriptor_has_its_fields_where_the_device_reads_them() {
        let low = 66 | 1 << 14 | 1448 << 18;
        let high: u64 = 54 | 3 << 10 | 1 << 12 | 1 << 13 | 1 << 15 | 0x6005 << 16;
        let read = TxDesc::from_words(0x1234_5678_9000, high << 32 | low);
        assert_eq!((read.addr, read.len()), (0x1234_5678_9000, 66));
        assert_eq!((read.header(), read.mss_or_field()), (54, 1448));
        assert!(read.end() && read.wants_completion() && !read.unknown_type() && !read.inner());
        assert_eq!((read.mode(), read.tag()), (OffloadMode::Segment, Some(Tci(0x6005))));
        assert!(TxDesc::from_words(0, 1 << 16).unknown_type() && TxDesc::from_words(0, 1 << 17).inner());
        assert!(TxDesc::from_words(0, 1 << 15).outer_sum());
        assert_eq!(TxDesc::from_words(0, 0).len(), 16384);
    }

    #[test]
    fn a_receive_completion_has_its_fields_where_the_driver_reads_them() {
        let layers = RxLayers { v4: true, tcp: true, good: true, ..RxLayers::default() };
        let done = RxCompletion::of(layers, Some(Tci(7))).buffer(9, 3, 1514).ends(true, true);
        let [low, high] = done.rss(RssType::Tcp4, 0xdead_beef).words(true);
        assert_eq!(low as u32, 9 | 1 << 14 | 1 << 15 | 3 << 16 | 2 << 26);
        assert_eq!((low >> 32) as u32, 0xdead_beef);
        assert_eq!(high as u32, 1514 | 1 << 15 | 7 << 16);
        assert_eq!((high >> 32) as u32, 1 << 16 | 1 << 18 | 1 << 19 | 1 << 21 | 1 << 23 | 3 << 24 | 1 << 31);
        let [low, high] = RxCompletion::of(RxLayers { v6: true, ..RxLayers::default() }, None).words(false);
        assert_eq!(
            (low, high >> 32),
            (1 << 30, 1 << 20 | 1 << 23 | 3 << 24),
            "not checked, and neither sum good"
        );
        let [low, high] = done.lro(45, 1448).words(false);
        assert_eq!((low >> 32, high >> 32 & 0xffff, high >> 56), (45, 1448, 4));
    }
}
