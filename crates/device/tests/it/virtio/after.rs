//! What outlives a virtio device: records of its rings after a crash at any moment, the log of pages that it
//! wrote, what its guest asked for on the control queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use vmlane_device::virtio::log::DirtyLog;
use vmlane_device::virtio::queue::{Queue, Record, record_bytes, recover};
use vmlane_device::virtio::vhost::{RingSetup, Setup, VhostDevice};
use vmlane_guestsim::Ram;
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_mem::Window;
use vmlane_wire::virtio::control::{self, class};
use vmlane_wire::virtio::{desc, feature, net_feature};

use super::{ALL, Frame, MODERN, Nic, pieces};

const SIZE: u16 = 8;

/// A ring whose owner may die.
struct Watched {
    ram: Arc<Ram>,
    driver: DriverRing,
    memory: Arc<Window>,
    features: u64,
    queue: Option<Queue>,
}

impl Watched {
    fn new(packed: bool) -> Watched {
        let ram = Arc::new(Ram::new(1 << 20));
        let driver = DriverRing::new(&ram, SIZE, packed);
        let (memory, _fd) = Window::of_file("records", 4096).unwrap();
        let features = MODERN | if packed { feature::PACKED } else { 0 };
        let mut watched = Watched { ram, driver, memory: Arc::new(memory), features, queue: None };
        watched.start();
        watched
    }

    fn setup(&self) -> RingSetup {
        RingSetup { record: Record::new(&self.memory, 0, SIZE), ..self.driver.setup() }
    }

    /// A new owner, which has only what the old one left in shared memory.
    fn start(&mut self) {
        let setup = self.setup();
        if let Some(position) = recover(&setup, self.features, &self.ram.device_map()) {
            setup.position.store(position, Ordering::SeqCst);
        }
        self.queue = Some(Queue::new(&setup, self.features, &self.ram.device_map()).unwrap());
    }

    /// Takes the next chain and completes it, not visibly.
    fn work(&mut self) -> bool {
        let queue = self.queue.as_mut().unwrap();
        let Some(taken) = queue.read(queue.next, &mut Vec::new()).unwrap() else { return false };
        queue.next = taken.next();
        queue.complete(taken.id(), taken.count(), 0);
        true
    }

    /// The owner dies while it publishes: after `stored` of its descriptors, counted from the last, are in
    /// the ring; and, if they all are, before it could note that.
    fn die_publishing(&mut self, stored: usize) {
        let word = |watched: &Watched| watched.memory.load_u64(16);
        let descriptor = |at: usize| desc::SIZE * at + 8;
        let before = word(self);
        let ring: Vec<u64> =
            (0..SIZE.into()).map(|at| self.driver.descriptors.load_u64(descriptor(at))).collect();
        let count = u64::from(self.queue.as_mut().map_or(0, |queue| {
            queue.publish();
            0u16
        }));
        let after = word(self);
        let noted: Vec<usize> = (0..SIZE.into())
            .map(|at| self.memory.load_u64(32 + 32 * at) as usize)
            .take_while(|_| before != after)
            .collect();
        let changed = |at: &usize| self.driver.descriptors.load_u64(descriptor(*at)) != ring[*at];
        let mut places: Vec<usize> = Vec::new();
        for place in noted {
            if changed(&place) && !places.contains(&place) {
                places.push(place);
            }
        }
        assert_eq!(count, 0);
        // Undo what was not yet done.
        let undone = places.len().saturating_sub(stored);
        for &place in &places[..undone] {
            self.driver.descriptors.store_u64(descriptor(place), ring[place]);
        }
        if !places.is_empty() {
            let (new, old) = (after & 0xffff, before & 0xffff);
            let laps = (after >> 32 & 1) << 32 | (before >> 32 & 1) << 40;
            self.memory.store_u64(16, new | old << 16 | laps | (places.len() as u64) << 48);
        }
        self.queue = None;
    }
}

#[derive(Clone, Debug)]
enum Act {
    Post(u16),
    Work,
    Publish,
    Take,
    Die,
    DiePublishing(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1u16..4).prop_map(Act::Post),
        4 => Just(Act::Work),
        2 => Just(Act::Publish),
        3 => Just(Act::Take),
        1 => Just(Act::Die),
        1 => (0usize..5).prop_map(Act::DiePublishing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whenever the owner of a ring dies: the driver gets each chain back exactly once, in order.
    #[test]
    fn each_chain_comes_back_once(packed in any::<bool>(), acts in prop::collection::vec(act(), 1..80)) {
        let mut watched = Watched::new(packed);
        let page = watched.driver.alloc(4096);
        let (mut out_there, mut used) = (VecDeque::new(), 0u16);
        let take = |watched: &mut Watched, there: &mut VecDeque<(u16, u16)>, used: &mut u16| {
            while let Some((id, _)) = watched.driver.take() {
                let (expected, count) = there.pop_front().expect("a chain that is out");
                assert_eq!(id, expected);
                *used -= count;
            }
        };
        for act in acts {
            match act {
                Act::Post(count) if used + count <= SIZE => {
                    let id = watched.driver.post(&vec![out(page, 10); count.into()]);
                    out_there.push_back((id, count));
                    used += count;
                }
                Act::Post(_) => {}
                Act::Work => {
                    watched.work();
                }
                Act::Publish => {
                    watched.queue.as_mut().unwrap().publish();
                }
                Act::Take => take(&mut watched, &mut out_there, &mut used),
                Act::Die => {
                    watched.queue = None;
                    watched.start();
                }
                Act::DiePublishing(stored) => {
                    if packed {
                        watched.die_publishing(stored);
                    }
                    watched.queue = None;
                    watched.start();
                }
            }
        }
        while watched.work() {}
        watched.queue.as_mut().unwrap().publish();
        take(&mut watched, &mut out_there, &mut used);
        prop_assert!(out_there.is_empty(), "{out_there:?} never came back");
    }

    /// Whatever a front end writes into a record: no panic, no place outside the ring.
    #[test]
    fn cve_2021_3839_records_that_cannot_be(packed in any::<bool>(), bytes in prop::collection::vec(any::<u8>(), 320)) {
        let mut watched = Watched::new(packed);
        watched.queue = None;
        let valid = [watched.memory.load_u16(8), watched.memory.load_u16(10)];
        watched.memory.write(0, &bytes);
        watched.memory.store_u16(8, valid[0]);
        watched.memory.store_u16(10, valid[1]);
        let setup = watched.setup();
        if let Some(position) = recover(&setup, watched.features, &watched.ram.device_map()) {
            setup.position.store(position, Ordering::SeqCst);
        }
        if let Ok(mut queue) = Queue::new(&setup, watched.features, &watched.ram.device_map()) {
            let _ = queue.read(queue.next, &mut Vec::new());
        }
    }
}

#[test]
fn records_of_other_rings_and_of_none() {
    let watched = Watched::new(true);
    let map = watched.ram.device_map();
    let record = |ring, size| Record::new(&watched.memory, ring, size);
    assert!(record(0, SIZE).is_some_and(|record| record.is_of(SIZE) && !record.is_of(SIZE + 1)));
    let last = 4096 / record_bytes(SIZE) - 1;
    assert!(record(last, SIZE).is_some() && record(last + 1, SIZE).is_none());
    assert!(record(usize::MAX, SIZE).is_none() && record(0, 32768).is_none());
    // Stopped in order: the front end states where to continue.
    record(0, SIZE).unwrap().forget();
    assert_eq!(recover(&watched.setup(), watched.features, &map), None);
    // Memory that the ring is no longer in.
    let gone = RingSetup { descriptors: 1 << 40, ..Watched::new(true).setup() };
    assert_eq!(recover(&gone, watched.features, &map), None);
}

/// As User Mode Linux begins them: at 0, in a lap that never was.
#[test]
fn packed_rings_that_begin_without_their_mark() {
    let watched = Watched::new(true);
    let map = watched.ram.device_map();
    let bare = || RingSetup { record: None, position: Arc::default(), ..watched.driver.setup() };
    assert_eq!(recover(&bare(), watched.features, &map), Some(0x8000_8000));
    assert_eq!(recover(&bare(), watched.features & !feature::PACKED, &map), None);
    let gone = RingSetup { descriptors: u64::MAX - 7, ..bare() };
    assert_eq!(recover(&gone, watched.features, &map), None);
    // As DPDK's driver begins, and goes on: where it is itself, and nothing of the device.
    let at_position = |position: u32| RingSetup { position: Arc::new(AtomicU32::new(position)), ..bare() };
    assert_eq!(recover(&at_position(0x8000), watched.features, &map), Some(0x8000_8000));
    assert_eq!(recover(&at_position(0x8003), watched.features, &map), Some(0x8003_8003));
    assert_eq!(recover(&at_position(0x8000), watched.features & !feature::PACKED, &map), None);
    // Five are under way in the second lap.
    assert_eq!(recover(&at_position(5), watched.features, &map), None);
    // A lap later that place has the device's mark.
    watched.driver.descriptors.store_u64(8, u64::from(desc::AVAIL | desc::USED) << 48);
    assert_eq!(recover(&bare(), watched.features, &map), None);
}

/// All pages that differ afterwards are in the log.
#[test]
fn every_written_page_is_logged() {
    for features in [ALL, ALL | feature::PACKED, MODERN] {
        let mut nic = Nic::sized(features, 16);
        nic.device.stop();
        // A bit a page of a little more than 4 GiB.
        let (window, _fd) = Window::of_file("log", 256 << 10).unwrap();
        let window = Arc::new(window);
        let logged = |ring: RingSetup| RingSetup { log: Some(DirtyLog::new(window.clone())), ..ring };
        let snapshot =
            |nic: &Nic| nic.ram.regions().map(|(guest, len, _)| (guest, nic.read(guest, len as usize)));
        for (len, buffer) in [(100, 2000), (1514, 2000), (1500, 600)] {
            if features & net_feature::MERGEABLE != 0 || len < buffer {
                for _ in 0..9 {
                    nic.post_buffer(buffer);
                }
            }
            let frame = nic.bytes(&[7; 200]);
            let header = nic.bytes(&[0; 12]);
            nic.tx.post(&pieces(header, frame, 200));
            let before = snapshot(&nic);
            nic.device.run(Setup {
                features,
                memory: nic.ram.device_map(),
                rings: vec![Some(logged(nic.rx.setup())), Some(logged(nic.tx.setup()))],
                resumed: false,
            });
            let _ = nic.deliver(&Frame::new(len), |packet| packet);
            assert!(nic.sent().is_some());
            nic.with(|end| end.arm());
            nic.device.stop();
            let after = snapshot(&nic);
            let mut written = 0;
            for ((guest, before), (_, after)) in before.iter().zip(&after) {
                for (at, (old, new)) in before.chunks(4096).zip(after.chunks(4096)).enumerate() {
                    let page = (guest >> 12) as usize + at;
                    let bit = window.load_u32(page / 32 * 4) >> (page % 32) & 1 != 0;
                    assert!(bit || old == new, "{features:#x}: page {page} was written and not logged");
                    written += usize::from(old != new);
                }
            }
            assert!(written > 0, "the ring, at least");
            let marked: u32 = (0..64 << 10).map(|word| window.load_u32(word * 4).count_ones()).sum();
            assert!((1..40).contains(&marked), "{marked} pages");
            while nic.rx.take().is_some() {}
            while nic.tx.take().is_some() {}
        }
    }
}

const CONTROL: u64 = net_feature::CTRL_VQ
    | net_feature::CTRL_RX
    | net_feature::CTRL_VLAN
    | net_feature::CTRL_MAC_ADDR
    | net_feature::CTRL_GUEST_OFFLOADS;

struct Controlled {
    nic: Nic,
    control: DriverRing,
    now: Instant,
    /// Whether the last check changed what the port takes.
    changed: bool,
}

impl Controlled {
    fn new(features: u64) -> Controlled {
        let mut nic = Nic::new(features);
        nic.device.stop();
        let control = DriverRing::new(&nic.ram, 16, features & feature::PACKED != 0);
        let mut controlled = Controlled { nic, control, now: Instant::now(), changed: false };
        controlled.run();
        controlled
    }

    fn run(&mut self) {
        self.nic.device.stop();
        let Nic { rx, tx, features, ram, .. } = &self.nic;
        let rings = [rx.setup(), tx.setup(), self.control.setup()].map(Some).to_vec();
        let setup = Setup { features: *features, memory: ram.device_map(), rings, resumed: false };
        self.nic.device.run(setup);
    }

    /// A poll of the control queue, later than the device lets its commands wait. True if there is more.
    fn poll(&mut self) -> bool {
        self.now += Duration::from_secs(1);
        let ticked = self.nic.with(|end| end.tick(self.now));
        self.changed = ticked.changed;
        ticked.soon
    }

    /// The device's answer.
    fn command(&mut self, class: u8, number: u8, data: &[u8]) -> u8 {
        let [head, data_at, answer] =
            [&[class, number][..], data, &[0x5a]].map(|bytes| self.nic.bytes(bytes));
        self.control.post(&[out(head, 2), out(data_at, data.len()), into(answer, 1)]);
        assert!(!self.poll());
        assert_eq!(self.control.take().map(|(_, len)| len), Some(1));
        self.nic.read(answer, 1)[0]
    }
}

#[test]
fn a_guest_with_a_control_queue_is_obeyed() {
    for features in [ALL | CONTROL, ALL | CONTROL | feature::PACKED] {
        let mut guest = Controlled::new(features);
        let filter = |guest: &Controlled| guest.nic.with(|end| end.filter().clone());
        assert!(filter(&guest).promiscuous, "until the guest sets it");
        for mode in [control::rx::PROMISCUOUS, control::rx::ALL_MULTICAST] {
            assert_eq!(guest.command(class::RX, mode, &[0]), control::OK);
            assert!(guest.changed);
            guest.poll();
            assert!(!guest.changed, "once");
        }
        assert!(!filter(&guest).promiscuous && !filter(&guest).all_multicast);
        assert_eq!(guest.command(class::MAC, control::mac::ADDRESS, &[2, 0, 0, 0, 0, 9]), control::OK);
        assert_eq!(guest.command(class::VLAN, control::vlan::ADD, &[5, 0]), control::OK);
        assert_eq!(guest.command(class::RX, 77, &[0]), control::ERROR);
        // Super-frames off, while it runs.
        assert!(guest.nic.with(|end| end.capabilities().tso4));
        let checksums = net_feature::GUEST_CSUM.to_le_bytes();
        assert_eq!(guest.command(class::OFFLOADS, control::offloads::SET, &checksums), control::OK);
        assert!(guest.nic.with(|end| !end.capabilities().tso4 && end.capabilities().partial_frame));
        // Whatever the VMM does with its rings meanwhile.
        let wanted = filter(&guest);
        assert!(wanted.vlans.is_some() && wanted.mac.0 == [2, 0, 0, 0, 0, 9]);
        guest.run();
        assert_eq!(filter(&guest), wanted);
        assert!(guest.nic.with(|end| !end.capabilities().tso4));
        // Another VMM, or one without a record.
        guest.nic.device.stop();
        guest.nic.device.gone();
        guest.run();
        assert!(filter(&guest).promiscuous && filter(&guest).vlans.is_none());
    }
}

#[test]
fn commands_of_every_shape_and_size() {
    let mut guest = Controlled::new(ALL | CONTROL);
    let page = guest.nic.bytes(&[0; 4096]);
    let answer = guest.nic.bytes(&[0x5a; 8]);
    let shapes: [&[_]; 7] = [
        &[out(page, 1), out(page, 2), into(answer, 1)],
        &[out(page, 2)],
        &[into(answer, 1)],
        &[out(page, 5000), into(answer, 1)],
        &[out(1 << 50, 8), into(answer, 1)],
        &[out(page, 3), into(1 << 50, 1)],
        &[out(page, 3), into(answer, 0), into(answer + 1, 1)],
    ];
    for (number, shape) in shapes.into_iter().enumerate() {
        guest.control.post(shape);
        guest.poll();
        assert!(guest.control.take().is_some(), "shape {number}");
    }
    // A chain without end: this queue stops, the others continue.
    guest.control.write_split(0, page, 1, desc::NEXT, 0);
    guest.control.publish(0);
    guest.poll();
    assert_eq!(guest.nic.lines.failures.load(Ordering::SeqCst), 1);
    guest.nic.post_buffer(2000);
    guest.nic.deliver(&Frame::new(100), |packet| packet).unwrap();
}
