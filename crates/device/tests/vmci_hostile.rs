//! Everything a guest may do to hurt others, all at once, while two honest guests stream.
//!
//! The honest streams stay intact, the fabric's tables stay within the quotas, and the counters say
//! what was refused.

mod vmci_common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use vmci_common::{Sizes, World, check_pattern, connect, eventually, rings, send_pattern};
use vmlane_device::testing::{
    Driver, Guest, Machine, Options, PairSpec, Path, Pattern, Placement, Queues, Registers, alloc_call, vm,
};
use vmlane_device::vmci::{Fabric, Limits, VmSpec};
use vmlane_wire::vmci::{
    CID_ANY, DMA_INLINE, DMA_LIST, DmaElement, DmaHeader, Handle, INVALID_ID, Reg, call, datagram, queue_header,
};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};
use zerocopy::IntoBytes;

const LIMITS: Limits = Limits {
    queue_pairs: 64,
    queue_pair_bytes: 8 << 20,
    connections: 100,
    doorbells: 200,
    inbox_bytes: 2 * 69_632,
    spill_bytes: 1 << 20,
};

/// A guest without manners.
struct Villain {
    driver: Driver,
    random: Sizes,
    /// Handles of its own pairs, so that some get detached.
    pairs: Vec<(Handle, Vec<u64>)>,
}

impl Villain {
    fn new(machine: &Machine, path: Path) -> Villain {
        Villain { driver: machine.probe(path), random: Sizes::new(0xbad, 1 << 20), pairs: Vec::new() }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.next() % limit
    }

    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    fn any_cid(&mut self) -> u32 {
        self.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 99, CID_ANY])
    }

    /// Handles that the honest guests use, and others.
    fn any_handle(&mut self) -> Handle {
        Handle::new(self.any_cid(), self.pick(&[0, 1, 1023, 1024, 1025, 1030, 5000, INVALID_ID]))
    }

    /// One bad deed.
    fn act(&mut self) {
        match self.below(12) {
            0 => self.wrong_sizes(),
            1 => self.buffers_out_of_memory(),
            2 | 3 => self.queue_pairs(),
            4 => self.other_peoples_pairs(),
            5 => self.forged_sources(),
            6 => self.doorbells_and_maps(),
            7 => self.request_flood(),
            8 | 9 => self.packet_flood(),
            10 => self.datagram_flood(),
            _ => self.registers(),
        }
    }

    fn wrong_sizes(&mut self) {
        let handle = self.any_handle();
        let mut bytes = datagram(handle, Handle::new(self.driver.cid, 9), &[0xa5; 200]);
        let claimed = self.pick(&[0, 199, 201, 69_609, 262_225, u64::MAX]);
        bytes[16..24].copy_from_slice(&claimed.to_le_bytes());
        let len = self.pick(&[1, 23, 24, 100, 224]);
        self.driver.send(&bytes[..len]);
        let (id, len) = (self.below(20) as u32, self.below(64));
        self.driver.call(id, &[0xff; 64][..len]);
    }

    fn buffers_out_of_memory(&mut self) {
        let (opcode, size) = (self.pick(&[DMA_INLINE, DMA_LIST, 9]), self.pick(&[1, 18, 19, 69_632, u32::MAX]));
        let address = self.pick(&[0, 0xf_ffff, 1 << 33, u64::MAX - 10]);
        let (pages, _) = self.driver.send_buffer();
        pages.write(0, DmaHeader::new(1, opcode, size).as_bytes());
        pages.write(24, DmaElement { addr: address.into(), size: u64::from(size).into() }.as_bytes());
        self.driver.start_send();
        for reg in [Reg::DataInLow, Reg::DataInHigh] {
            self.driver.write(reg, address as u32);
        }
    }

    fn queue_pairs(&mut self) {
        let handle = Handle::new(self.driver.cid, 1024 + self.below(200) as u32);
        let spec = PairSpec {
            handle,
            peer: self.pick(&[3, 4, 5, 6, CID_ANY]),
            flags: self.below(16) as u32,
            produce: self.pick(&[0, 1, 128, 4096, 5003, 262_144, u64::MAX]),
            consume: self.pick(&[0, 2, 128, 4096, 65_536, 128 << 20]),
        };
        let count = (spec.produce.saturating_add(spec.consume)).min(1 << 20).div_ceil(4096) as usize + 2;
        let mut pages = self.driver.ram.alloc(count, Placement::Scattered);
        let own = pages.clone();
        match self.below(4) {
            0 => pages.fill(own[0]),
            1 => pages.reverse(),
            2 => pages[count - 1] = 0xdead_b000,
            _ => {}
        }
        let result = self.driver.call(call::QUEUEPAIR_ALLOC, &alloc_call(&spec, &pages, true));
        if result < 0 {
            self.driver.ram.free(&own);
        } else {
            self.pairs.push((handle, own));
        }
        if self.pairs.len() > 20 {
            let index = self.below(self.pairs.len());
            let (handle, pages) = self.pairs.swap_remove(index);
            let raw = vmlane_wire::vmci::RawHandle::from(handle);
            self.driver.call(call::QUEUEPAIR_DETACH, raw.as_bytes());
            self.driver.ram.free(&pages);
        }
    }

    fn other_peoples_pairs(&mut self) {
        let handle = self.any_handle();
        if handle.context != self.driver.cid {
            self.driver.call(call::QUEUEPAIR_DETACH, vmlane_wire::vmci::RawHandle::from(handle).as_bytes());
        }
        let size = self.pick(&[4096, 65_536, 262_144]);
        let spec = PairSpec { handle, peer: self.any_cid(), flags: 1, produce: size, consume: size };
        if handle.context != self.driver.cid {
            // Attaching to what an accomplice has made succeeds now and then; the pages stay lent.
            let _ = self.driver.alloc(&spec, Placement::Scattered).map(|queues| self.keep(queues));
        }
        let kind = self.pick(&[PacketType::Offer, PacketType::Attach]);
        let packet = ControlPacket::new(kind, 1024, 5000).with_handle(handle);
        self.driver.control(self.random.next() as u32 % 7, packet);
    }

    fn keep(&mut self, queues: Queues) {
        self.pairs.push((queues.handle, queues.addresses));
    }

    fn forged_sources(&mut self) {
        let (dst, src) = (self.any_handle(), self.any_handle());
        if src.context != self.driver.cid && dst.context != 0 {
            let result = self.driver.send(&datagram(dst, src, &[0; 32]));
            assert!(result < 0, "{src} was accepted as a source");
        }
    }

    fn doorbells_and_maps(&mut self) {
        let payload = [u64::from(self.driver.cid) | (self.below(5000) as u64) << 32, self.below(5000) as u64];
        let id = self.pick(&[
            call::DOORBELL_LINK,
            call::DOORBELL_LINK,
            call::DOORBELL_UNLINK,
            call::DOORBELL_NOTIFY,
            call::DATAGRAM_REQUEST_MAP,
            call::DATAGRAM_REMOVE_MAP,
        ]);
        self.driver.call(id, payload.map(u64::to_le_bytes).as_flattened());
    }

    fn request_flood(&mut self) {
        for _ in 0..20 {
            let port = self.below(1 << 16) as u32;
            let request = ControlPacket::new(PacketType::Request2, port, 9).with_size(u64::from(port), 1);
            let cid = self.pick(&[3, 4, 5, 6]);
            self.driver.control(cid, request);
        }
    }

    /// Every type, at the honest connections' ports and its own.
    fn packet_flood(&mut self) {
        for _ in 0..20 {
            let kind = PacketType::from_wire(self.below(13) as u8).expect("a type");
            let (src, dst) = (self.pick(&[1024, 1025, 5000, 5001]), self.pick(&[1024, 1025, 5000, 5001]));
            let mut packet = ControlPacket::new(kind, src, dst).with_mode(3);
            packet.as_mut_bytes()[1] = self.pick(&[kind as u8, kind as u8, 5, 6, 7, 13, 255]);
            let cid = self.pick(&[2, 3, 4, 5, 6]);
            self.driver.control(cid, packet);
        }
    }

    fn datagram_flood(&mut self) {
        let size = self.pick(&[0, 1000, 69_608]);
        for _ in 0..5 {
            let cid = self.pick(&[3, 4, 5, 6]);
            self.driver.send_to(Handle::new(cid, 77), 9, &vec![0x5a; size]);
        }
    }

    fn registers(&mut self) {
        let (region, offset) = (self.pick(&[0, 1]), self.below(0x60) as u64);
        let offset = if region == 1 { 0x2_0000 + offset } else { offset };
        // Resets are for other tests: they would undo the rest of the mischief.
        if !(4..8).contains(&(offset & 0xff)) && !(0x18..0x1c).contains(&(offset & 0xff)) {
            let value = self.random.next() as u32;
            self.driver.registers_mut().write32(region, offset, value);
        }
        let mut bytes = [0; 9];
        let len = self.below(9);
        self.driver.registers_mut().read_bytes(region, offset & 0x3f, &mut bytes[..len]);
        self.driver.write(Reg::GuestPageShift, 12);
        self.driver.restore_addresses();
    }
}

/// Scribbles over the headers of two accomplices' pairs while the engine works on them.
fn scribble(stop: &AtomicBool, queues: &[Queues]) -> u64 {
    let mut random = Sizes::new(0x5c1b, 1 << 20);
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        for queues in queues {
            let value = match random.next() % 8 {
                0 => u64::MAX - random.next() as u64,
                1 => queues.produce_size,
                _ => random.next() as u64 % queues.produce_size,
            };
            let field = [queue_header::HANDLE, queue_header::PRODUCER_TAIL, queue_header::CONSUMER_HEAD];
            let page = if random.next().is_multiple_of(4) { &queues.consume } else { &queues.produce };
            page.store_u64(field[random.next() % 3], value);
        }
        rounds += 1;
        std::thread::yield_now();
    }
    rounds
}

/// Two villains set up pairs between themselves again and again, and break them.
fn scribblers(stop: &AtomicBool, a: &Machine, b: &Machine) -> u64 {
    let (mut first, mut second) = (a.probe(Path::Dma), b.probe(Path::Dma));
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let handle = Handle::new(a.cid, 3000 + rounds as u32 % 100);
        let create = PairSpec { handle, peer: b.cid, flags: 0, produce: 65_536, consume: 5003 };
        let attach = PairSpec { peer: a.cid, produce: 5003, consume: 65_536, ..create };
        let made = first.alloc(&create, Placement::Scattered);
        let taken = second.alloc(&attach, Placement::Scattered);
        let queues: Vec<Queues> = made.into_iter().chain(taken).collect();
        let enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| scribble(&enough, &queues));
            for _ in 0..50 {
                std::thread::yield_now();
            }
            enough.store(true, Ordering::Relaxed);
        });
        // Neither ever fetches what is queued for it.
        for (driver, queues) in [&mut first, &mut second].into_iter().zip(queues) {
            driver.detach(queues);
        }
        rounds += 1;
    }
    rounds
}

fn honest_stream(client: &Arc<Guest>, server: &Arc<Guest>, options: Options, port: u32, bytes: u64) {
    let (a, b) = connect(client, server, port, options);
    let (up, down) = (Pattern::new(u64::from(port)), Pattern::new(!u64::from(port)));
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&a, up, bytes, 100_000));
        scope.spawn(|| send_pattern(&b, down, bytes, 100_000));
        let received = scope.spawn(|| check_pattern(&b, up, 100_000));
        assert_eq!(check_pattern(&a, down, 100_000), bytes);
        assert_eq!(received.join().expect("the receiving thread"), bytes);
    });
}

/// Nobody holds more than its quota, at any time.
fn assert_bounded(fabric: &Fabric) {
    for view in fabric.vms() {
        let limits = if view.cid > 4 { LIMITS } else { Limits::default() };
        let what = &view.name;
        assert!(view.queue_pairs <= limits.queue_pairs, "{what}: {} pairs", view.queue_pairs);
        assert!(view.queue_pair_bytes <= limits.queue_pair_bytes, "{what}");
        assert!(view.connections <= limits.connections, "{what}: {} connections", view.connections);
        assert!(view.doorbells <= limits.doorbells, "{what}: {} doorbells", view.doorbells);
        let most = limits.inbox_bytes * 3 / 2;
        assert!(view.inbox_bytes <= most, "{what}: {} bytes wait", view.inbox_bytes);
        assert!(view.packets_waiting <= 16_384 + 9 * 4096, "{what}: {} packets", view.packets_waiting);
    }
    let tracked = fabric.connections().len();
    assert!(tracked <= 5 * LIMITS.connections + 100, "{tracked} connections are tracked");
}

#[test]
fn honest_streams_survive_everything() {
    let world = World::new();
    let [(_a, client), (_b, server)] = world.two(Path::Dma);
    let villains: Vec<Machine> =
        (5..9).map(|cid| world.machine_with(VmSpec { limits: LIMITS, ..vm(cid) })).collect();
    let stop = AtomicBool::new(false);
    let deeds = AtomicU64::new(0);
    let scribbled = OnceLock::new();
    std::thread::scope(|scope| {
        for (machine, path) in villains[..2].iter().zip([Path::Dma, Path::Ports]) {
            let (stop, deeds, fabric) = (&stop, &deeds, &world.fabric);
            scope.spawn(move || {
                let mut villain = Villain::new(machine, path);
                while !stop.load(Ordering::Relaxed) {
                    villain.act();
                    if deeds.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) {
                        assert_bounded(fabric);
                    }
                }
            });
        }
        scope.spawn(|| scribbled.set(scribblers(&stop, &villains[2], &villains[3])));
        // Stop the others also when an assertion here fails.
        let honest = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            honest_stream(&client, &server, rings(262_144), 5000, 48 << 20);
            honest_stream(&server, &client, rings(5003), 5001, 4 << 20);
            eventually("enough mischief", || deeds.load(Ordering::Relaxed) > 5_000);
        }));
        stop.store(true, Ordering::Relaxed);
        honest.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert_bounded(&world.fabric);
    assert!(scribbled.get().is_some_and(|rounds| *rounds > 0));
    let stats = world.view(5).stats;
    for (what, count) in [
        ("sizes", stats.refused_size.get()),
        ("sources", stats.refused_source.get()),
        ("destinations", stats.refused_destination.get()),
        ("full queues", stats.refused_full.get()),
        ("calls", stats.refused_call.get()),
        ("quotas", stats.refused_quota.get()),
        ("queue pairs", stats.refused_queue_pair.get()),
        ("addresses", stats.refused_address.get()),
        ("packets out of turn", stats.refused_state.get()),
        ("registers", stats.register_holes.get()),
    ] {
        assert!(count > 0, "nothing was counted for {what}: {stats:?}");
    }
    assert_eq!(world.stats.panics.get(), 0);
    for machine in &villains {
        machine.registers().write32(0, Reg::Control.offset(), 1);
        let view = world.view(machine.cid);
        assert_eq!((view.queue_pairs, view.doorbells, view.inbox_bytes, view.packets_waiting), (0, 0, 0, 0));
    }
    let honest = [3, 4].map(|cid| world.view(cid));
    assert_eq!(honest.map(|view| (view.queue_pairs, view.stats.broken_rings.get())), [(0, 0); 2]);
}

/// Pairs made and left again and again by guests that never fetch the events about them.
#[test]
fn events_that_nobody_fetches_do_not_pile_up() {
    let world = World::new();
    let [mut a, mut b] = [3, 4].map(|cid| world.machine(cid).probe(Path::Dma));
    let mut refused = 0;
    for round in 0..20_000 {
        let handle = Handle::new(3, 2000 + round % 10);
        let create = PairSpec { handle, peer: 4, flags: 0, produce: 128, consume: 128 };
        let mine = a.alloc(&create, Placement::Contiguous).expect("to create");
        match b.alloc(&PairSpec { peer: 3, ..create }, Placement::Contiguous) {
            Ok(theirs) => assert_eq!(b.detach(theirs), 0),
            Err(_) => refused += 1,
        }
        assert_eq!(a.detach(mine), 0);
    }
    assert!(refused > 0, "there is an end to it");
    assert!(world.view(3).packets_waiting <= 16_384 + 10 * 9);
    while !a.receive().is_empty() {}
    let create = PairSpec { handle: Handle::new(3, 5000), peer: 4, flags: 0, produce: 128, consume: 128 };
    a.alloc(&create, Placement::Scattered).expect("to create");
    b.alloc(&PairSpec { peer: 3, ..create }, Placement::Scattered).expect("to attach after A has caught up");
}

/// A guest that asks for connections and never reads an answer fills its own queue, nobody else's.
#[test]
fn a_flood_of_requests_leaves_room_for_others() {
    let world = World::new();
    let mut flooder = world.machine_with(VmSpec { limits: LIMITS, ..vm(5) }).probe(Path::Dma);
    let [(_a, client), (_b, server)] = world.two(Path::Dma);
    let mut results = Vec::new();
    for port in 0..5_000 {
        let request = ControlPacket::new(PacketType::Request2, port, 5000).with_size(4096, 1);
        results.push(flooder.control(4, request));
    }
    assert!(results.contains(&-19), "NO_RESOURCES");
    assert!(world.view(5).connections <= LIMITS.connections);
    honest_stream(&client, &server, rings(65_536), 5000, 1 << 20);
    assert_bounded(&world.fabric);
}
