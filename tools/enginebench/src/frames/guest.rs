//! A guest that sends the same few frames again and again and counts what it gets. Its buffers are
//! filled once: what is measured is the device, not a guest's own copying.

use std::sync::Arc;

use crate::baseline::Scatter;
use vmlane_device::vmxnet3::port::NicPort;
use vmlane_device::vmxnet3::setup::{Features, Moderation};
use vmlane_guestsim::Placement;
use vmlane_guestsim::nic::{BODY, Rings, RingsSpec, RxShape, TxRequest};
use vmlane_port::PortStats;
use vmlane_wire::ethernet::Mac;

/// Ethernet, IPv4 and TCP without options.
const HEADERS: usize = 54;
/// What one transmit descriptor holds at most, less what is not a multiple of a page.
const PIECE: usize = 16 << 10;
/// Payload of a segment.
pub const MSS: u16 = 1460;

/// What a guest sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// 60 bytes and their check sequence, complete.
    Small,
    /// 1514 bytes whose TCP checksum is left to the device.
    Full,
    /// 1448 bytes of a TCP stream's payload in each, complete.
    Segments,
    /// Almost 64 KiB to be segmented.
    Super,
}

/// Payload of [`Load::Segments`]' frames, which need no option of TCP to have Linux' usual length.
const SEGMENT: usize = 1448;

impl Load {
    /// Bytes of a frame.
    pub fn len(self) -> usize {
        match self {
            Load::Small => 60,
            Load::Full => HEADERS + usize::from(MSS),
            Load::Segments => HEADERS + SEGMENT,
            Load::Super => HEADERS + 44 * usize::from(MSS),
        }
    }

    /// Different frames that a guest has in its memory.
    fn frames(self) -> usize {
        match self {
            Load::Small | Load::Full | Load::Segments => 512,
            Load::Super => 32,
        }
    }

    /// Bytes from one to the next.
    fn stride(self) -> usize {
        self.len().next_multiple_of(if self == Load::Small { 128 } else { 2048 })
    }

    /// Where frames lie at their sender and go to at their receiver, for a plain copy.
    pub fn scatter(self) -> Scatter {
        let rx = receiver();
        Scatter {
            len: self.len(),
            stride: self.stride(),
            frames: self.frames(),
            head: rx.head,
            head_stride: rx.head_stride(),
            heads: rx.ring0.into(),
            body: BODY,
            bodies: rx.ring1.into(),
        }
    }

    fn request(self) -> TxRequest {
        match self {
            Load::Small | Load::Segments => TxRequest::NONE,
            Load::Full => TxRequest::checksum(34, 50),
            Load::Super => TxRequest::segment(HEADERS as u16, MSS),
        }
    }

    /// Pieces of a frame that lies at `addr`: super-frames as Linux posts them, headers first.
    fn parts(self, addr: u64) -> Vec<(u64, usize)> {
        if self != Load::Super {
            return vec![(addr, self.len())];
        }
        let mut parts = vec![(addr, HEADERS)];
        let mut at = HEADERS;
        while at < self.len() {
            let len = (self.len() - at).min(PIECE);
            parts.push((addr + at as u64, len));
            at += len;
        }
        parts
    }
}

/// Linux's default receive rings.
fn receiver() -> RxShape {
    RxShape::linux(1024)
}

/// A guest's address by its number.
pub fn mac(number: u16) -> Mac {
    let [high, low] = number.to_be_bytes();
    Mac([0x52, 0x54, 0, 0, high, low])
}

/// The Internet checksum's sum of `bytes`, added to `sum`.
fn sum(bytes: &[u8], sum: u32) -> u32 {
    bytes.chunks(2).fold(sum, |sum, pair| {
        let sum = sum + (u32::from(pair[0]) << 8 | u32::from(pair[1]));
        (sum & 0xffff) + (sum >> 16)
    })
}

/// Makes the headers those of segment `number` of a stream of zeros, its checksum filled in.
fn number(head: &mut [u8; HEADERS], number: usize) {
    head[18..20].copy_from_slice(&(number as u16).to_be_bytes());
    head[24..26].fill(0);
    let ip = !sum(&head[14..34], 0) as u16;
    head[24..26].copy_from_slice(&ip.to_be_bytes());
    head[38..42].copy_from_slice(&((number * SEGMENT) as u32).to_be_bytes());
    head[50..52].fill(0);
    let length = HEADERS - 34 + SEGMENT;
    let tcp = !sum(&head[34..], sum(&head[26..34], 6 + length as u32)) as u16;
    head[50..52].copy_from_slice(&tcp.to_be_bytes());
}

/// The headers of a TCP/IPv4 frame of `len` bytes, as Linux leaves them to the device.
fn headers(load: Load, from: u16, to: u16) -> [u8; HEADERS] {
    let mut head = [0; HEADERS];
    head[..6].copy_from_slice(&mac(to).0);
    head[6..12].copy_from_slice(&mac(from).0);
    head[12..14].copy_from_slice(&[8, 0]);
    let total = (load.len() - 14) as u16;
    head[14..24].copy_from_slice(&[0x45, 0, (total >> 8) as u8, total as u8, 0, 1, 0x40, 0, 64, 6]);
    head[26..34].copy_from_slice(&[10, 0, (from >> 8) as u8, from as u8, 10, 0, (to >> 8) as u8, to as u8]);
    if load != Load::Super {
        let sum = !sum(&head[14..34], 0) as u16;
        head[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    // Ports, sequence numbers, 20 bytes of header, ACK.
    head[34..38].copy_from_slice(&[0x30, 0x39, 0x14, 0x51]);
    head[46..48].copy_from_slice(&[0x50, 0x10]);
    head
}

/// One VM with one NIC.
pub struct Guest {
    pub rings: Rings,
    frames: Vec<Vec<(u64, usize)>>,
    next: usize,
    request: TxRequest,
}

impl Guest {
    /// Guest `number`, which sends to `to`, and the port of its NIC. `lro`: it takes super-frames.
    pub fn new(number: u16, to: u16, load: Load, lro: bool, stats: Arc<PortStats>) -> (Guest, NicPort) {
        let spec = RingsSpec {
            revision: 6,
            tx: 512,
            rx: receiver(),
            features: Features { rx_checksum: true, rx_vlan: true, lro4: lro, lro6: lro },
            moderation: Moderation::Adaptive,
            // As on a host, no two guests' rings lie alike: not equally far behind the beginning of a huge
            // page, either.
            memory: (24 << 20) + u64::from(number) * 37 % 256 * 8192,
            ..RingsSpec::linux()
        };
        let (rings, setup) = Rings::new(&spec);
        let mut head = headers(load, number, to);
        let stride = load.stride();
        let bytes = stride * load.frames();
        let base = rings.ram.alloc(bytes.div_ceil(4096), Placement::Contiguous)[0];
        let frames = (0..load.frames())
            .map(|at| {
                let addr = base + (at * stride) as u64;
                if load == Load::Segments {
                    self::number(&mut head, at);
                }
                rings.ram.write(addr, &head);
                load.parts(addr)
            })
            .collect();
        let port = NicPort::new(setup, stats);
        (Guest { rings, frames, next: 0, request: load.request() }, port)
    }

    /// Takes completions and posts frames while there is room, `most` at most.
    #[inline]
    pub fn send(&mut self, most: usize) {
        self.rings.tx[0].reap();
        for _ in 0..most {
            if !self.rings.tx[0].post(&self.frames[self.next], &self.request) {
                return;
            }
            self.next = (self.next + 1) % self.frames.len();
        }
    }

    /// Takes what has arrived: packets and bytes.
    #[inline]
    pub fn receive(&mut self) -> (u64, u64) {
        self.rings.rx[0].drain()
    }
}
