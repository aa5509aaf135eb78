//! A NIC's rings, made active without registers: what a session would hand to the worker.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use vmlane_mem::Window;
use vmlane_port::Filter;

use super::rx_ring::{RxRings, RxShape};
use super::tx_ring::TxRing;
use super::{alloc, window};
use crate::lines::Lines;
use crate::ram::Ram;
use vmlane_device::vmxnet3::setup::{Features, Live, Moderation, Ring, Rss, RxSetup, Setup, Shared, TxSetup};
use vmlane_device::vmxnet3::vectors::Vectors;

/// Bytes of DriverShared and of a queue descriptor.
const AREA: usize = 800;
const QUEUE_DESCRIPTOR: usize = 256;

/// How a NIC is set up.
#[derive(Clone, Debug)]
pub struct RingsSpec {
    pub revision: u8,
    pub mtu: u16,
    pub max_rx_sg: u16,
    pub rx_depth: Option<u16>,
    /// Queue pairs, 1 or 2; queue q has interrupt index q, events have the next one.
    pub queues: u16,
    pub tx: u16,
    pub rx: RxShape,
    pub features: Features,
    pub rss: Option<Rss>,
    pub moderation: Moderation,
    pub auto_mask: bool,
    pub memory: u64,
}

impl RingsSpec {
    /// Linux with small rings, one queue pair, revision 4, everything on.
    pub fn linux() -> RingsSpec {
        RingsSpec {
            revision: 4,
            mtu: 1500,
            max_rx_sg: 18,
            rx_depth: None,
            queues: 1,
            tx: 64,
            rx: RxShape::linux(64),
            features: Features { rx_checksum: true, rx_vlan: true, lro4: true, lro6: true },
            rss: None,
            moderation: Moderation::Off,
            auto_mask: false,
            memory: 16 << 20,
        }
    }
}

/// The guest's side of an active NIC.
pub struct Rings {
    pub ram: Arc<Ram>,
    pub lines: Arc<Lines>,
    /// BAR 0.
    pub page: Arc<Window>,
    pub shared: Arc<Shared>,
    /// DriverShared.
    pub area: Window,
    pub tx: Vec<TxRing>,
    pub rx: Vec<RxRings>,
    /// Queue descriptors, transmit queues first.
    pub descriptors: Vec<Window>,
}

impl Rings {
    /// Rings with their buffers posted and vectors unmasked, and what the worker gets.
    pub fn new(spec: &RingsSpec) -> (Rings, Setup) {
        let (mut rings, setup) = Rings::unposted(spec);
        rings.rx.iter_mut().for_each(RxRings::fill);
        (rings, setup)
    }

    /// The same with nothing posted.
    pub fn unposted(spec: &RingsSpec) -> (Rings, Setup) {
        let ram = Arc::new(Ram::new(spec.memory));
        let lines = Lines::msix();
        let (page, _) = Window::of_file("bar0", 4096).expect("a memory file");
        let page = Arc::new(page);
        let vectors = Arc::new(Vectors::new(page.clone(), lines.clone()));
        vectors.arm(spec.queues as u8 + 1, spec.auto_mask);
        (0..=usize::from(spec.queues)).for_each(|index| page.store_u32(8 * index, 0));
        let tx: Vec<_> = (0..spec.queues).map(|_| TxRing::new(&ram, spec.tx, spec.tx)).collect();
        let rx: Vec<_> =
            (0..spec.queues).map(|number| RxRings::new(&ram, &spec.rx, number, spec.queues)).collect();
        let count = usize::from(spec.queues);
        let area = alloc(&ram, AREA);
        let table = alloc(&ram, 2 * count * QUEUE_DESCRIPTOR);
        let place = |queue: usize| (table + (queue * QUEUE_DESCRIPTOR) as u64, QUEUE_DESCRIPTOR);
        let device = ram.device_map();
        let hold = |(addr, len): (u64, usize)| device.window(addr, len, true).expect("a window");
        let counters = || (0..count).map(|_| Default::default()).collect();
        let shared = Arc::new(Shared {
            live: Mutex::new(Live {
                filter: Filter::open(),
                features: spec.features,
                rss: spec.rss.clone(),
                moderation: spec.moderation,
            }),
            tx_stats: counters(),
            rx_stats: counters(),
            tx_errors: (0..count).map(|_| Default::default()).collect(),
            rx_errors: (0..count).map(|_| Default::default()).collect(),
            area: hold((area, AREA)),
            vectors,
            event_vector: spec.queues as u8,
            failed: AtomicBool::new(false),
        });
        let ring = |addr, size: u16| Ring { window: hold((addr, usize::from(size) * 16)), size };
        let setup = Setup {
            revision: spec.revision,
            mtu: spec.mtu,
            max_rx_sg: spec.max_rx_sg,
            doorbell: None,
            positions: Arc::new(Window::of_file("rings", 4096).expect("memory").0),
            rx_depth: spec.rx_depth,
            tx: (tx.iter().enumerate())
                .map(|(queue, driver)| TxSetup {
                    commands: ring(driver.addresses[0], driver.size()),
                    completions: ring(driver.addresses[1], driver.completion_size()),
                    vector: queue as u8,
                    descriptor: hold(place(queue)),
                })
                .collect(),
            rx: (rx.iter().enumerate())
                .map(|(queue, driver)| {
                    let ([ring0, ring1, completions], shape) = (driver.addresses(), driver.shape());
                    RxSetup {
                        ring0: ring(ring0, shape.ring0),
                        ring1: (shape.ring1 > 0).then(|| ring(ring1, shape.ring1)),
                        completions: ring(completions, shape.completions),
                        vector: queue as u8,
                        descriptor: hold(place(count + queue)),
                        data: driver.data(),
                    }
                })
                .collect(),
            shared: shared.clone(),
            memory: device,
        };
        let descriptors = (0..2 * count).map(place).map(|(addr, len)| window(&ram, addr, len)).collect();
        let area = window(&ram, area, AREA);
        (Rings { ram, lines, page, shared, area, tx, rx, descriptors }, setup)
    }
}
