//! A NIC's rings in a small memory, and frames from elsewhere.

use vmlane_device::vmxnet3::port::NicPort;
use vmlane_device::vmxnet3::setup::{Features, Moderation, Rss};
use vmlane_guestsim::nic::{Rings, RingsSpec, RxShape};
use vmlane_guestsim::{Placement, Ram};
use vmlane_mem::Spans;
use vmlane_port::{
    Aggregate, ChecksumStatus, Layers, Network, PartialChecksum, PortStats, RxFrame, Transport,
};
use vmlane_wire::ethernet::Tci;

use crate::Input;

/// Descriptors of a ring: few, so that laps are short.
pub const RING: u16 = 8;

/// Rings as one input describes them; the data path over them.
pub fn port(input: &mut Input<'_>, posted: bool) -> (Rings, NicPort) {
    let kinds = input.byte();
    let bit = |at: u32| kinds >> at & 1 == 1;
    let rx = RxShape {
        ring0: RING,
        ring1: if bit(0) { RING } else { 0 },
        completions: [2 * RING, RING, 3][usize::from(input.byte()) % 3],
        data: if bit(1) { 128 } else { 0 },
        ..RxShape::linux(RING)
    };
    let rss = Rss {
        key: [0x5a; 40],
        table: vec![0, 1, 1],
        ipv4: true,
        ipv6: true,
        tcp4: true,
        tcp6: bit(2),
        udp4: bit(2),
        udp6: true,
    };
    let spec = RingsSpec {
        revision: 1 + input.byte() % 7,
        mtu: [60, 1500, 9000, 9190][usize::from(input.byte()) % 4],
        max_rx_sg: u16::from(input.byte() % 20),
        rx_depth: bit(3).then_some(3),
        queues: 1 + u16::from(bit(4)),
        tx: RING,
        rx,
        features: Features { rx_checksum: bit(5), rx_vlan: bit(6), lro4: bit(7), lro6: true },
        rss: bit(4).then_some(rss),
        moderation: Moderation::Off,
        auto_mask: false,
        memory: 2 << 20,
    };
    let (rings, setup) = if posted { Rings::new(&spec) } else { Rings::unposted(&spec) };
    let port = NicPort::new(setup, std::sync::Arc::new(PortStats::default()));
    (rings, port)
}

/// An address: of a page that exists, at an edge of memory, anywhere.
pub fn address(input: &mut Input<'_>, rings: &Rings) -> u64 {
    let [(low, low_len, _), (high, high_len, _)] = rings.ram.regions();
    match input.byte() % 8 {
        0..=3 => low + input.number::<2>() * 16 % low_len,
        4 => high + input.number::<2>() * 16 % high_len,
        5 => (low + low_len).wrapping_sub(input.number::<1>()),
        6 => u64::MAX - input.number::<2>(),
        _ => input.number::<8>(),
    }
}

/// Where frames lie that are delivered.
pub struct Sender {
    ram: Ram,
    page: u64,
    spans: Spans,
}

impl Sender {
    pub fn new() -> Sender {
        let ram = Ram::new(1 << 18);
        let pages = ram.alloc(20, Placement::Contiguous);
        let spans = Spans::new(ram.device_map(), false);
        Sender { page: pages[0], ram, spans }
    }

    /// A packet as the switch may make one: its fields agree with its length, not with its bytes.
    pub fn packet<'a>(&'a mut self, input: &mut Input<'_>, head: &'a mut [u8; 192]) -> RxFrame<'a> {
        let head_len = 14 + usize::from(input.byte()) % 178;
        let len = usize::from(input.byte()) % head_len;
        let given = input.bytes(len);
        head[..given.len()].copy_from_slice(given);
        let body_len = if head_len < 60 { 0 } else { input.number::<2>() as usize };
        self.spans.clear();
        let total = (head_len + body_len).min(20 * 4096);
        self.spans.push(self.page, total).expect("pages of this memory");
        self.ram.write(self.page, &head[..head_len]);
        let kinds = input.byte();
        let network = [Network::Other, Network::V4, Network::V6][usize::from(kinds & 3) % 3];
        let transport = [Transport::Other, Transport::Tcp, Transport::Udp][usize::from(kinds >> 2 & 3) % 3];
        let at = |input: &mut Input<'_>| u16::from(input.byte()) % (head_len as u16 + 1);
        let layers = Layers {
            network,
            transport,
            fragment: kinds & 16 != 0,
            network_at: at(input),
            transport_at: at(input),
        };
        let aggregate = (kinds & 32 != 0).then(|| Aggregate {
            mss: 1 + input.number::<2>() as u16 % 9000,
            segments: 2 + u16::from(input.byte()),
            header: at(input),
        });
        let partial_checksum = (kinds & 64 != 0).then(|| PartialChecksum {
            start: at(input),
            field: u16::from(input.byte()) % (head_len as u16 - 1),
            never_zero: kinds & 128 != 0,
            head_sum: None,
        });
        RxFrame {
            head: &head[..head_len],
            body: &self.spans,
            body_at: head_len,
            body_len: total - head_len,
            tag: (input.byte() & 1 == 1).then(|| Tci(input.number::<2>() as u16)),
            layers,
            checksum: if input.byte() & 1 == 1 { ChecksumStatus::Good } else { ChecksumStatus::Unknown },
            aggregate,
            partial_checksum,
        }
    }
}
