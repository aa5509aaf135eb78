//! A virtio NIC without a VMM: rings in a small memory, its end held by hand.

mod after;
mod hostile;
mod net;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use vmlane_device::virtio::net::{NetConfig, NetDevice, VirtioNetStats};
use vmlane_device::virtio::queue::Segment;
use vmlane_device::virtio::vhost::{Lines, Setup, VhostDevice};
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::InlineFrames;
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_guestsim::{Placement, Ram};
use vmlane_mem::Spans;
use vmlane_port::{
    ChecksumStatus, DropReason, FramePort, Layers, Offload, PartialChecksum, PortId, PortStats, RxFrame,
    Token,
};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::virtio::{feature, net_feature};

pub const HEADER: usize = 12;
pub const MODERN: u64 = feature::VERSION_1 | feature::INDIRECT;
/// Of rings: split, packed.
pub const KINDS: [u64; 2] = [0, feature::PACKED];

/// Counts what is signalled.
#[derive(Default)]
pub struct CountedLines {
    pub calls: AtomicU64,
    pub failures: AtomicU64,
    /// The guest may sleep through calls.
    pub lossy: AtomicBool,
}

impl Lines for CountedLines {
    fn call(&self, _: usize) {
        self.calls.fetch_add(1, Ordering::SeqCst);
    }

    fn may_lose_calls(&self) -> bool {
        self.lossy.load(Ordering::SeqCst)
    }

    fn fail(&self, _: usize) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }

    fn doorbell(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn clear(&self) {}
}

pub struct Nic {
    pub ram: Arc<Ram>,
    pub rx: DriverRing,
    pub tx: DriverRing,
    pub frames: Arc<InlineFrames>,
    pub lines: Arc<CountedLines>,
    pub device: NetDevice,
    pub features: u64,
}

impl Nic {
    pub fn new(features: u64) -> Nic {
        Nic::sized(features, 16)
    }

    pub fn sized(features: u64, size: u16) -> Nic {
        let ram = Arc::new(Ram::new(8 << 20));
        let packed = features & feature::PACKED != 0;
        let (rx, tx) = (DriverRing::new(&ram, size, packed), DriverRing::new(&ram, size, packed));
        let frames = Arc::new(InlineFrames::default());
        let lines = Arc::new(CountedLines::default());
        let config =
            NetConfig { mac: Mac([0x52, 0, 0, 0, 0, 1]), mtu: 1500, queues: 1, lro: true, packed: true };
        let stats = Arc::new(VirtioNetStats::default());
        let device = NetDevice::new(config, frames.clone(), PortId(7), lines.clone(), stats);
        let mut nic = Nic { ram, rx, tx, frames, lines, device, features };
        nic.run();
        nic
    }

    /// Runs both rings from where they are.
    pub fn run(&mut self) {
        self.device.run(Setup {
            features: self.features,
            memory: self.ram.device_map(),
            rings: vec![Some(self.rx.setup()), Some(self.tx.setup())],
            resumed: false,
        });
    }

    pub fn with<T>(&self, act: impl FnOnce(&mut dyn FramePort) -> T) -> T {
        self.frames.with(act).expect("the rings run")
    }

    pub fn stats(&self) -> &PortStats {
        &self.frames.stats
    }

    pub fn fetch(&self) -> Option<Token> {
        self.with(|end| end.fetch_one())
    }

    /// The bytes and requests of the next frame that waits; it is finished at once.
    pub fn sent(&self) -> Option<(Vec<u8>, Offload)> {
        self.with(|end| {
            let Some(token) = end.fetch_one() else {
                end.tick(Instant::now());
                return None;
            };
            let in_flight = end.frame(token);
            let mut bytes = vec![0; in_flight.len()];
            in_flight.spans.read(0, &mut bytes);
            assert_eq!(bytes[..in_flight.head.len()], *in_flight.head);
            let offload = in_flight.offload;
            end.finish(&[token]);
            end.flush(Instant::now());
            Some((bytes, offload))
        })
    }

    /// Memory with these bytes.
    pub fn bytes(&self, bytes: &[u8]) -> u64 {
        let addr = self.tx.alloc(bytes.len().max(1));
        self.ram.write(addr, bytes);
        addr
    }

    /// A receive buffer of `len` bytes.
    pub fn post_buffer(&mut self, len: usize) -> u64 {
        let addr = self.rx.alloc(len);
        self.rx.post(&[into(addr, len)]);
        addr
    }

    pub fn deliver(
        &self,
        frame: &Frame,
        packet: impl FnOnce(RxFrame<'_>) -> RxFrame<'_>,
    ) -> Result<(), DropReason> {
        self.with(|end| {
            let outcome = end.deliver_one(&packet(frame.packet()));
            end.flush(Instant::now());
            outcome
        })
    }

    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.ram.read(addr, &mut bytes);
        bytes
    }
}

/// A frame of some other port.
pub struct Frame {
    pub bytes: Vec<u8>,
    spans: Spans,
    _ram: Ram,
}

impl Frame {
    /// `len` bytes, all different from their neighbours.
    pub fn new(len: usize) -> Frame {
        let ram = Ram::new(1 << 18);
        let page = ram.alloc(len.div_ceil(4096).max(1), Placement::Contiguous)[0];
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
        ram.write(page, &bytes);
        let mut spans = Spans::new(ram.device_map(), false);
        spans.push(page, len).expect("pages of this memory");
        Frame { bytes, spans, _ram: ram }
    }

    pub fn packet(&self) -> RxFrame<'_> {
        let head = self.bytes.len().min(64);
        RxFrame {
            head: &self.bytes[..head],
            body: &self.spans,
            body_at: head,
            body_len: self.bytes.len() - head,
            tag: None,
            layers: Layers::default(),
            checksum: ChecksumStatus::Unknown,
            aggregate: None,
            partial_checksum: None,
        }
    }
}

pub fn partial_checksum() -> PartialChecksum {
    PartialChecksum { start: 34, field: 50, never_zero: false, head_sum: None }
}

/// A header and a frame in two pieces.
pub fn pieces(header: u64, frame: u64, len: usize) -> [Segment; 2] {
    [out(header, HEADER), out(frame, len)]
}

pub const ALL: u64 = MODERN
    | feature::EVENT_INDEX
    | net_feature::CSUM
    | net_feature::GUEST_CSUM
    | net_feature::HOST_TSO4
    | net_feature::GUEST_TSO4
    | net_feature::MERGEABLE;
