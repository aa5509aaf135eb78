//! An activation, validated: what the session passes to the worker, and what both keep sharing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use parking_lot::Mutex;
use vmlane_mem::{MemoryMap, Window};
use vmlane_port::Filter;
use vmlane_stats::Counter;

use super::doorbell::Doorbell;

/// A ring of 16-byte descriptors, wholly inside the guest's memory.
#[derive(Debug)]
pub struct Ring {
    pub window: Window,
    /// Descriptors; the window has 16 bytes for each. 1 to 8192, no power of two.
    pub size: u16,
}

/// One transmit queue.
#[derive(Debug)]
pub struct TxSetup {
    pub commands: Ring,
    pub completions: Ring,
    /// Interrupt index of completions.
    pub vector: u8,
    /// The queue descriptor (256 bytes, writable): `ctrl` words, status, statistics.
    pub descriptor: Window,
}

/// One receive queue.
#[derive(Debug)]
pub struct RxSetup {
    pub ring0: Ring,
    /// None: the driver has no second ring.
    pub ring1: Option<Ring>,
    pub completions: Ring,
    pub vector: u8,
    pub descriptor: Window,
    /// Receive data ring: address of slot 0 and bytes of a slot (64 to 2048), one slot for each
    /// descriptor of `ring0`, all mapped writable.
    pub data: Option<(u64, u16)>,
}

/// A NIC that was activated.
#[derive(Debug)]
pub struct Setup {
    /// 1 to 7.
    pub revision: u8,
    pub memory: MemoryMap,
    /// As the driver gave it, within the limits of the revision and of the port.
    pub mtu: u16,
    /// The most buffers of one packet under LRO; 0: the driver named no limit.
    pub max_rx_sg: u16,
    /// As many buffers of ring 0 are used at once; None: all that are posted.
    pub rx_depth: Option<u16>,
    pub tx: Vec<TxSetup>,
    pub rx: Vec<RxSetup>,
    pub shared: Arc<Shared>,
    /// Where its driver announces what it sends; None: nowhere.
    pub doorbell: Option<Arc<Doorbell>>,
    /// Outlives the daemon: where in the rings the device is.
    pub positions: Arc<Window>,
}

/// What the driver may change while frames flow. Picked up by `FramePort::refresh`.
#[derive(Clone, Debug, Default)]
pub struct Live {
    pub filter: Filter,
    pub features: Features,
    /// None: all frames go to queue 0.
    pub rss: Option<Rss>,
    pub moderation: Moderation,
}

/// `uptFeatures` as far as they concern frames, after the profile's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub rx_checksum: bool,
    /// Strip a tag and report it.
    pub rx_vlan: bool,
    pub lro4: bool,
    pub lro6: bool,
}

/// Receive-side scaling, validated: `table` entries are below the number of receive queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    pub key: [u8; 40],
    /// 1 to 128 queue numbers.
    pub table: Vec<u8>,
    /// Which inputs are hashed; ports only where the bit is set.
    pub ipv4: bool,
    pub ipv6: bool,
    pub tcp4: bool,
    pub tcp6: bool,
    pub udp4: bool,
    pub udp6: bool,
}

/// When interrupts are held back. The first one after a quiet time is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moderation {
    /// One for each batch.
    Off,
    /// As the device sees fit.
    #[default]
    Adaptive,
    /// After so many completions, 4 ms at the latest.
    Static { rx: u32, tx: u32 },
    /// At most so many a second for each vector.
    Rate(u32),
}

/// Ten counters of one queue, in the order of the specification's statistics blocks.
#[derive(Debug, Default)]
pub struct QueueCounters(pub [Counter; 10]);

/// What session and worker share while the NIC is active.
#[derive(Debug)]
pub struct Shared {
    pub live: Mutex<Live>,
    pub tx_stats: Vec<QueueCounters>,
    pub rx_stats: Vec<QueueCounters>,
    /// By queue: 0, or the error code that stopped it.
    pub tx_errors: Vec<AtomicU32>,
    pub rx_errors: Vec<AtomicU32>,
    /// DriverShared (at least 720 bytes, writable): the word of event bits, the interrupt control.
    pub area: Window,
    pub vectors: Arc<super::vectors::Vectors>,
    /// Interrupt index of events.
    pub event_vector: u8,
    /// A worker's panic ended this activation.
    pub failed: AtomicBool,
}
