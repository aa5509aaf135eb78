//! Everything a guest may do to hurt others, all at once, while two honest guests stream.
//!
//! The honest streams stay intact, the hypervisor's tables stay within the quotas, and the counters show
//! what was refused.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vmlane_device::vmci::{Hypervisor, Limits};
use vmlane_guestsim::{Machine, PairSpec, Path, Placement, Queues, Registers, VmSpec, vm_with};
use vmlane_testkit::wait_until;
use vmlane_vsock::DEFAULT_CONNECTIONS;
use vmlane_wire::vmci::{Handle, Reg, queue_header};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};

use super::villain::{CONNECTIONS, LIMITS, Villain};
use super::{Sizes, World, connect, rings, stream_both_ways};

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

/// A VM of a guest that does what hurts.
fn hostile(cid: u32) -> VmSpec {
    VmSpec { limits: LIMITS, ..vm_with(cid, |vm| vm.connections = CONNECTIONS) }
}

/// No VM holds more than its quota, at any time.
fn assert_bounded(hypervisor: &Hypervisor) {
    for view in hypervisor.vms() {
        let hostile = view.cid > 4;
        let limits = if hostile { LIMITS } else { Limits::default() };
        let connections = if hostile { CONNECTIONS } else { DEFAULT_CONNECTIONS };
        let what = view.cid;
        assert!(view.queue_pairs <= limits.queue_pairs, "{what}: {} pairs", view.queue_pairs);
        assert!(view.queue_pair_bytes <= limits.queue_pair_bytes(0), "{what}");
        assert!(view.connections <= connections, "{what}: {} connections", view.connections);
        assert!(view.doorbells <= limits.doorbells, "{what}: {} doorbells", view.doorbells);
        let most = limits.inbox_bytes * 3 / 2;
        assert!(view.inbox_bytes <= most, "{what}: {} bytes wait", view.inbox_bytes);
        assert!(view.packets_waiting <= 16_384 + 9 * 4096, "{what}: {} packets", view.packets_waiting);
    }
    let tracked = hypervisor.connections().len();
    assert!(tracked <= 5 * CONNECTIONS + 100, "{tracked} connections are tracked");
}

#[test]
fn honest_streams_survive_everything() {
    let world = World::new();
    let [(_a, client), (_b, server)] = world.two(Path::Dma);
    let villains: Vec<Machine> = (5..9).map(|cid| world.machine_with(hostile(cid))).collect();
    let stop = AtomicBool::new(false);
    let deeds = [const { AtomicU64::new(0) }; 2];
    let scribbled = OnceLock::new();
    std::thread::scope(|scope| {
        for ((machine, path), deeds) in villains.iter().zip([Path::Dma, Path::Ports]).zip(&deeds) {
            let (stop, hypervisor) = (&stop, &world.hypervisor);
            scope.spawn(move || {
                let mut villain = Villain::new(machine, path);
                while !stop.load(Ordering::Relaxed) {
                    villain.act();
                    if deeds.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) {
                        assert_bounded(hypervisor);
                    }
                }
            });
        }
        scope.spawn(|| scribbled.set(scribblers(&stop, &villains[2], &villains[3])));
        // Stop the others also when an assertion here fails.
        let honest = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            stream_both_ways(connect(&client, &server, 5000, rings(262_144)), 48 << 20, 100_000);
            stream_both_ways(connect(&server, &client, 5001, rings(5003)), 4 << 20, 100_000);
            let enough = |deeds: &AtomicU64| deeds.load(Ordering::Relaxed) > 2_500;
            wait_until("enough mischief", || deeds.iter().all(enough));
        }));
        stop.store(true, Ordering::Relaxed);
        honest.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert_bounded(&world.hypervisor);
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
fn events_that_are_not_fetched_do_not_pile_up() {
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

/// A guest that asks for connections and never reads an answer fills its own queue only.
#[test]
fn a_flood_of_requests_leaves_room_for_others() {
    let world = World::new();
    let mut flooder = world.machine_with(hostile(5)).probe(Path::Dma);
    let [(_a, client), (_b, server)] = world.two(Path::Dma);
    let mut results = Vec::new();
    for port in 0..5_000 {
        let request = ControlPacket::new(PacketType::Request2, port, 5000).with_size(4096, 1);
        results.push(flooder.control(4, request));
    }
    assert!(results.contains(&-19), "NO_RESOURCES");
    assert!(world.view(5).connections <= CONNECTIONS);
    stream_both_ways(connect(&client, &server, 5000, rings(65_536)), 1 << 20, 100_000);
    assert_bounded(&world.hypervisor);
}
