//! A frame on its way: where its bytes lie, what its sender wants done to it, what its receiver
//! learns about it.
//!
//! A source *describes* a frame ([`TxFrame`]): the first bytes as a private copy, the rest where the guest
//! left it. The switch checks and edits the private copy and hands an [`RxFrame`] to the sink: its
//! header bytes and the untouched rest, which the sink copies once, straight into its guest's buffers.

use vmlane_mem::{Spans, Sum, copy_spans, copy_spans_summed};
use vmlane_wire::ethernet::{TAG, Tci, ether_type};

/// What a sender leaves to be done to its frame. Offsets count from the first byte of the frame
/// as described, in-band tags included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Offload {
    /// Nothing: the frame is complete.
    #[default]
    None,
    /// Sum from `start` to the end of the frame and store the complement at `field`, which holds the
    /// pseudo header's sum already.
    Checksum {
        /// The first byte that is summed.
        start: u16,
        /// Where the checksum lies.
        field: u16,
    },
    /// TCP or UDP segmentation: `header` bytes of headers, at most `mss` bytes of payload in each segment.
    /// Length fields, IPv4 checksum and TCP or UDP checksum are not to be believed.
    Segment {
        /// Bytes of all headers.
        header: u16,
        /// Payload bytes of a segment.
        mss: u16,
    },
    /// The same inside a VXLAN or Geneve tunnel (`header` ends behind the inner TCP header; `mss` 0:
    /// only the inner checksum). `outer_sum`: the outer UDP checksum is wanted too.
    Tunnel {
        /// Bytes of all headers, outer and inner.
        header: u16,
        /// Payload bytes of a segment, or 0.
        mss: u16,
        /// Is the outer UDP checksum wanted?
        outer_sum: bool,
    },
}

impl Offload {
    /// Header bytes that it speaks of.
    #[inline]
    pub fn spoken_of(self) -> usize {
        match self {
            Offload::None => 0,
            Offload::Checksum { field, .. } => usize::from(field) + 2,
            Offload::Segment { header, .. } | Offload::Tunnel { header, .. } => usize::from(header),
        }
    }
}

/// A frame that its source describes until it is notified that it is finished.
#[derive(Debug)]
pub struct TxFrame<'a> {
    /// The first bytes, copied once: all of a short frame, else at least all the headers that the
    /// sender speaks of and at least [`HEAD`] bytes.
    pub head: &'a [u8],
    /// All the frame's bytes in the sender's memory, those of `head` included.
    pub spans: &'a Spans,
    /// What is left to be done to it.
    pub offload: Offload,
    /// A tag to be inserted behind the addresses.
    pub tag: Option<Tci>,
    /// The host's kernel has verified the TCP or UDP checksum. Never because a guest, or another switch,
    /// claims it.
    pub verified: bool,
}

/// Bytes of a frame that are copied for inspection, unless it is shorter.
pub const HEAD: usize = 192;
/// The most header bytes a sender may speak of; offloads with longer ones are refused.
pub const MAX_HEAD: usize = 512;
/// The longest frame that anyone may send, tags included.
pub const MAX_FRAME: usize = 65_536 + 64;

impl TxFrame<'_> {
    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The network protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Network {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Neither, or a header that is not valid.
    #[default]
    Other,
}

/// The transport protocol of an unfragmented IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Neither, or a fragment.
    #[default]
    Other,
}

/// What a frame is, as parsed from its head. Offsets count from the start of [`RxFrame::head`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Layers {
    /// The network protocol.
    pub network: Network,
    /// The transport protocol.
    pub transport: Transport,
    /// A part of a fragmented IP packet.
    pub fragment: bool,
    /// Where the IP header starts, if `network` is not `Other`.
    pub network_at: u16,
    /// Where the header behind the IP headers starts, if `network` is not `Other`.
    pub transport_at: u16,
}

/// What is known about a frame's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ChecksumStatus {
    /// Not known.
    #[default]
    Unknown,
    /// TCP or UDP checksum and, for IPv4, the header's are right (or the bytes never left this host).
    Good,
}

/// A TCP or UDP super-frame that is delivered whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// Payload bytes of each segment that it stands for; never 0.
    pub mss: u16,
    /// How many segments; at least 2.
    pub segments: u16,
    /// Bytes of headers in front of the payload.
    pub header: u16,
}

/// A checksum still to be filled in while the frame is copied: the sum from `start` to the end,
/// complemented, goes to `field` (both inside or at the end of the head). The field holds its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// The first byte that is summed.
    pub start: u16,
    /// Where the checksum goes.
    pub field: u16,
    /// A result of 0 is sent as 0xffff (UDP).
    pub never_zero: bool,
    /// The folded sum of the head's bytes from `start` on, where it is known: they are an even number then.
    pub head_sum: Option<u16>,
}

/// A frame as it is delivered. Tags are out of band: `head` has no outer 802.1Q tag.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// Checked and edited header bytes; at least an Ethernet header.
    pub head: &'a [u8],
    /// The sender's memory; `body_len` bytes from `body_at` on follow the head.
    pub body: &'a Spans,
    /// Where in `body` the rest of the frame begins.
    pub body_at: usize,
    /// Bytes of that rest.
    pub body_len: usize,
    /// The outer 802.1Q tag.
    pub tag: Option<Tci>,
    /// What the head was parsed as.
    pub layers: Layers,
    /// What is known about its checksums.
    pub checksum: ChecksumStatus,
    /// None for a frame no longer than its receiver's MTU allows.
    pub aggregate: Option<Aggregate>,
    /// The sink fills this in, or reports to its guest that the checksum is partial.
    pub partial_checksum: Option<PartialChecksum>,
}

impl RxFrame<'_> {
    /// Bytes, without the tag.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.body_len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the frame into `to` from its first byte on: the one copy. `to` has room for it (and for the
    /// tag, if `in_band`, which inserts it). Returns the bytes written.
    #[inline]
    pub fn write(&self, to: &Spans, in_band: bool) -> usize {
        let tag = self.tag.filter(|_| in_band);
        let shift = if tag.is_some() { TAG } else { 0 };
        let body_to = self.head.len() + shift;
        let checksum = match self.partial_checksum {
            None => {
                copy_spans(to, body_to, self.body, self.body_at, self.body_len);
                None
            }
            Some(partial_checksum) => {
                let sum = self.copy_summed(partial_checksum, to, body_to);
                Some((usize::from(partial_checksum.field) + shift, sum))
            }
        };
        match tag {
            None => to.write(0, self.head),
            Some(tag) => write_tagged(to, self.head, tag),
        }
        // In the guest's memory: in a private copy of the head the copy to the guest would have to wait for
        // it.
        if let Some((field, sum)) = checksum {
            to.write(field, &sum.to_be_bytes());
        }
        body_to + self.body_len
    }

    /// Copies the body and sums it. Returns the whole checksum, whose field is behind the addresses.
    #[inline]
    fn copy_summed(&self, partial_checksum: PartialChecksum, to: &Spans, body_to: usize) -> u16 {
        let mut sum = match partial_checksum.head_sum {
            Some(sum) => Sum::from_be(sum),
            None => {
                let mut sum = Sum::default();
                sum.add(self.head.get(usize::from(partial_checksum.start)..).unwrap_or_default());
                sum
            }
        };
        copy_spans_summed(to, body_to, self.body, self.body_at, self.body_len, &mut sum);
        match sum.checksum() {
            0 if partial_checksum.never_zero => 0xffff,
            sum => sum,
        }
    }
}

/// Writes a head with its tag behind the addresses.
#[cold]
fn write_tagged(to: &Spans, head: &[u8], tag: Tci) {
    const ADDRESSES: usize = 12;
    let Some((addresses, rest)) = head.split_first_chunk::<ADDRESSES>() else { return };
    let [high, low] = ether_type::VLAN.to_be_bytes();
    let [priority, vlan] = tag.0.to_be_bytes();
    to.write(0, addresses);
    to.write(ADDRESSES, &[high, low, priority, vlan]);
    to.write(ADDRESSES + TAG, rest);
}
