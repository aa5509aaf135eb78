//! VMXNET3: a NIC's data path with both its sides, frames, and a sender's memory to deliver them from.

mod activate;
mod commands;
mod cves;
mod doorbell;
mod hostile;
mod lro;
mod model;
mod random;
mod registers;
mod rx;
mod takeover;
mod tx;

use std::sync::Arc;
use std::time::Instant;

use vmlane_device::vmxnet3::port::NicPort;
use vmlane_device::vmxnet3::setup::Setup;
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::{DriverSpec, Received, Rings, RingsSpec};
use vmlane_guestsim::{Placement, Ram};
use vmlane_mem::Spans;
use vmlane_port::{
    Aggregate, ChecksumStatus, DropReason, FramePort, Layers, Network, PortStats, RxFrame, Token, Transport,
    TxFrame,
};

/// Bytes of Ethernet, IPv4 and TCP headers without options.
pub const TCP4_HEADER: usize = 14 + 20 + 20;

/// `len` bytes that encode their position, behind a unicast Ethernet header.
pub fn frame(len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
    frame[..12].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// A TCP/IPv4 frame of `len` bytes: addresses and ports real, lengths and checksums not.
pub fn tcp4(len: usize, ports: (u16, u16)) -> Vec<u8> {
    let mut frame = frame(len.max(TCP4_HEADER));
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..36].copy_from_slice(&ports.0.to_be_bytes());
    frame[36..38].copy_from_slice(&ports.1.to_be_bytes());
    frame
}

pub fn linux() -> DriverSpec {
    DriverSpec::linux(6)
}

/// A packet as it is.
pub fn plain(_: &mut RxFrame<'_>) {}

/// What [`tcp4`] is.
pub const TCP4: Layers = Layers {
    network: Network::V4,
    transport: Transport::Tcp,
    fragment: false,
    network_at: 14,
    transport_at: 34,
};

/// A super-frame's [`Aggregate`].
pub fn aggregate(len: usize, mss: u16) -> Aggregate {
    let segments = (len - TCP4_HEADER).div_ceil(usize::from(mss)) as u16;
    Aggregate { mss, segments, header: TCP4_HEADER as u16 }
}

/// Another guest's memory, which holds the frames to deliver.
pub struct Sender {
    ram: Arc<Ram>,
    pages: Vec<u64>,
    spans: Spans,
}

impl Sender {
    pub fn new() -> Sender {
        let ram = Arc::new(Ram::new(1 << 20));
        let spans = Spans::new(ram.device_map(), false);
        Sender { ram, pages: Vec::new(), spans }
    }

    /// `frame` as a packet: up to 64 bytes of it as the head.
    pub fn packet<'a>(&'a mut self, frame: &'a [u8]) -> RxFrame<'a> {
        self.spans.clear();
        while self.pages.len() * 4096 < frame.len() {
            self.pages.extend(self.ram.alloc(1, Placement::Scattered));
        }
        for (page, part) in self.pages.iter().zip(frame.chunks(4096)) {
            self.ram.write(*page, part);
            self.spans.push(*page, part.len()).unwrap();
        }
        let head = &frame[..frame.len().min(64)];
        RxFrame {
            head,
            body: &self.spans,
            body_at: head.len(),
            body_len: frame.len() - head.len(),
            tag: None,
            layers: Layers::default(),
            checksum: ChecksumStatus::Unknown,
            aggregate: None,
            partial_checksum: None,
        }
    }
}

/// A NIC with both its sides.
pub struct Nic {
    pub guest: Rings,
    pub port: NicPort,
    pub stats: Arc<PortStats>,
    pub sender: Sender,
}

impl Nic {
    pub fn new(spec: &RingsSpec) -> Nic {
        let (guest, setup) = Rings::new(spec);
        Nic::with(guest, setup)
    }

    /// One of rings that a test has prepared.
    pub fn with(guest: Rings, setup: Setup) -> Nic {
        let stats = Arc::new(PortStats::default());
        let port = NicPort::new(setup, stats.clone());
        Nic { guest, port, stats, sender: Sender::new() }
    }

    pub fn flush(&mut self) {
        self.port.flush(Instant::now());
    }

    /// Delivers `frame` as `edit` makes it, and takes it at the other end.
    pub fn pass(&mut self, frame: &[u8], edit: impl FnOnce(&mut RxFrame<'_>)) -> Received {
        self.deliver(frame, edit).expect("there is room");
        self.receive(0).expect("a packet")
    }

    /// Publishes what was delivered; the next packet that queue `queue` has then.
    pub fn receive(&mut self, queue: usize) -> Option<Received> {
        self.flush();
        self.guest.rx[queue].receive()
    }

    pub fn deliver(&mut self, frame: &[u8], edit: impl FnOnce(&mut RxFrame<'_>)) -> Result<(), DropReason> {
        let mut packet = self.sender.packet(frame);
        edit(&mut packet);
        self.port.deliver_one(&packet)
    }

    /// The next frame in flight.
    pub fn fetch(&mut self) -> Option<(Token, Vec<u8>)> {
        let token = self.port.fetch_one()?;
        let bytes = bytes(&self.port.frame(token));
        Some((token, bytes))
    }

    /// Fetches and finishes everything.
    pub fn swallow(&mut self) -> usize {
        let mut count = 0;
        while let Some(token) = self.port.fetch_one() {
            self.port.finish(&[token]);
            count += 1;
        }
        self.flush();
        count
    }

    /// A receive counter of queue 0, by row.
    pub fn rx_row(&self, row: usize) -> u64 {
        self.guest.shared.rx_stats[0].0[row].get()
    }

    pub fn tx_row(&self, row: usize) -> u64 {
        self.guest.shared.tx_stats[0].0[row].get()
    }
}

/// All bytes of a frame in flight.
pub fn bytes(in_flight: &TxFrame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; in_flight.len()];
    in_flight.spans.read(0, &mut bytes);
    bytes
}
