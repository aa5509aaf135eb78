//! How streams end: half, whole, by a crash; and what is left of a VM that has gone.

use vmlane_device::pci::PciDevice;
use vmlane_device::vmci::Limits;
use vmlane_guestsim::{Guest, Machine, Options, PairSpec, Path, Pattern, Placement, SocketError, VmSpec, vm};
use vmlane_port::queue_pair::Protocol;
use vmlane_testkit::wait_until;
use vmlane_wire::vmci::{CID_ANY, CONTROL_RESET, Handle, QP_ATTACH_ONLY, Reg, VmciError, call, queue_header};

use super::{World, check_pattern, connect, detach, fill, link, rings, send_pattern, stream_both_ways};

const RING: u64 = 16_384;

fn pattern() -> Pattern {
    Pattern::new(77)
}

#[test]
fn the_end_comes_behind_the_last_byte() {
    let world = World::new();
    let [(_a, client), (_b, server)] = world.two(Path::Dma);
    let (a, b) = connect(&client, &server, 5000, rings(RING));
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&a, pattern(), 1 << 20, 10_000));
        assert_eq!(check_pattern(&b, pattern(), 10_000), 1 << 20);
    });
    // The other half is open still.
    send_pattern(&b, pattern(), RING, 5_000);
    assert_eq!(check_pattern(&a, pattern(), 10_000), RING);
    world.assert_clean();
}

#[test]
fn who_reads_no_more_stops_the_writer() {
    let world = World::new();
    let [(_a, client), (_b, server)] = world.two(Path::Dma);
    let (a, b) = connect(&client, &server, 5000, rings(RING));
    b.shutdown(1);
    let refusal = loop {
        if let Err(error) = a.send_all(&[1; 1000]) {
            break error;
        }
    };
    assert_eq!(refusal, SocketError::Closed);
}

#[test]
fn bytes_outlive_their_sender() {
    for path in Path::ALL {
        let world = World::new();
        let [(machine, client), (_b, server)] = world.two(path);
        let (a, b) = connect(&client, &server, 5000, rings(RING));
        let sent = fill(&a, pattern(), RING);
        let full = world.view(3).overflow_left;
        let free = machine.ram.free_pages();
        a.close();
        assert!(machine.ram.free_pages() > free);
        // From here on the guest uses the pages for something else.
        let all = machine.ram.alloc(machine.ram.free_pages(), Placement::Scattered);
        all.iter().for_each(|page| machine.ram.write(*page, &[0xee; 4096]));
        assert_eq!(world.view(3).overflow_left, full - (RING as usize - 1), "the rest is kept, and charged");
        assert_eq!(world.stats.overflow_bytes.get(), RING - 1);
        assert_eq!(check_pattern(&b, pattern(), 3_000), sent, "{path:?}");
        assert_eq!(b.peer_shutdown(), 3);
        wait_until("what was charged is given back", || world.view(3).overflow_left == full);
        assert_eq!(b.send(b"anyone?"), Err(SocketError::Closed));
        b.close();
        assert_eq!(world.hypervisor.connections(), []);
        world.assert_clean();
    }
}

#[test]
fn bytes_that_no_one_can_read_are_not_kept() {
    let world = World::new();
    let [(_a, client), (_b, server)] = world.two(Path::Dma);
    let (a, b) = connect(&client, &server, 5000, rings(RING));
    fill(&a, pattern(), RING);
    let full = world.view(3).overflow_left;
    a.close();
    assert!(world.view(3).overflow_left < full);
    b.close();
    assert_eq!(world.view(3).overflow_left, full);
    assert_eq!((world.view(3).queue_pairs, world.view(4).queue_pairs), (0, 0));
}

#[test]
fn a_vm_cannot_leave_more_behind_than_it_may() {
    let world = World::new();
    let limits = Limits { overflow_bytes: 100, ..Limits::default() };
    let client = world.machine_with(VmSpec { limits, ..vm(3) }).boot(Path::Dma);
    let server = world.machine(4).boot(Path::Dma);
    let (a, b) = connect(&client, &server, 5000, rings(RING));
    fill(&a, pattern(), RING);
    a.close();
    assert_eq!(check_pattern(&b, pattern(), 3_000), RING - 1, "what had arrived");
    assert_eq!(world.view(3).overflow_left, 100);
    assert_eq!(world.bound(3, "overflow_bytes"), (0, 100, 1));
}

#[test]
fn a_waiting_writer_is_notified_that_its_peer_is_gone() {
    for protocol in [Protocol::Qstate, Protocol::Pkt] {
        let world = World::new();
        let [(_a, client), (_b, server)] = world.two(Path::Dma);
        let (a, b) = connect(&client, &server, 5000, Options { protocol, ..rings(RING) });
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                loop {
                    if let Err(error) = a.send_all(&[5; 1000]) {
                        return error;
                    }
                }
            });
            let mut some = [0; 10];
            assert_eq!(b.recv_all(&mut some), Ok(10));
            b.close();
            assert_eq!(writer.join().expect("the writer"), SocketError::Closed);
        });
    }
}

#[test]
fn an_index_outside_the_ring_ends_that_pair_only() {
    let breaks: [(&str, usize, u64); 4] = [
        ("a tail outside the ring", queue_header::PRODUCER_TAIL, RING),
        ("a tail far outside", queue_header::PRODUCER_TAIL, u64::MAX),
        ("a head outside", queue_header::CONSUMER_HEAD, RING),
        ("a head beyond the tail", queue_header::CONSUMER_HEAD, 5000),
    ];
    for (what, field, value) in breaks {
        let world = World::new();
        let [(_a, client), (_b, server)] = world.two(Path::Dma);
        let (good, good_peer) = connect(&client, &server, 5000, rings(RING));
        let (bad, bad_peer) = connect(&client, &server, 5001, rings(RING));
        bad.queues(|queues| queues.produce.store_u64(field, value));
        // A WROTE from either end makes the device poll.
        bad_peer.send_all(b"wake").expect("room");
        assert!(bad_peer.recv(&mut [0; 100]).is_ok(), "{what}");
        wait_until("the pair is ended", || world.stats.broken.get() == 1);
        assert_eq!(bad_peer.recv(&mut [0; 100]), Ok(0), "{what}");
        assert_eq!(world.view(3).stats.broken_rings.get(), 1, "{what}: the culprit is counted");
        assert_eq!(world.view(4).stats.broken_rings.get(), 0, "{what}");
        bad.close();
        bad_peer.close();
        stream_both_ways((good, good_peer), 1 << 20, 9_000);
        assert_eq!(world.view(3).queue_pairs, 0);
    }
}

/// VM 3 holds one of everything; then `ends` happens to it.
fn everything_is_released(what: &str, ends: impl Fn(&World, &Machine, &Guest)) {
    let world = World::new();
    let [(machine, client), (_other, server)] = &world.two(Path::Dma);
    let (a, b) = connect(client, server, 5000, rings(RING));
    let sent = fill(&a, pattern(), RING);
    client.driver(|driver| {
        assert_eq!(link(driver, Handle::new(3, 2000), 0), 0);
        assert!(driver.call(call::DATAGRAM_REQUEST_MAP, &[0xd0, 7, 0, 0, 0, 0, 0, 0]) >= 0);
        let spec =
            PairSpec { handle: Handle::new(3, 9000), peer: CID_ANY, flags: 0, produce: 100, consume: 100 };
        driver.alloc(&spec, Placement::Scattered).expect("one pair more");
    });
    server.driver(|driver| assert_eq!(driver.send_to(Handle::new(3, 77), 5, b"queued"), 30));
    ends(&world, machine, client);
    let view = world.view(3);
    assert_eq!((view.queue_pairs, view.queue_pair_bytes, view.doorbells), (0, 0, 0), "{what}");
    assert_eq!((view.inbox_bytes, view.packets_waiting, view.ready), (0, 0, false), "{what}");
    server.driver(|driver| {
        let refused = VmciError::InvalidResource.code();
        assert_eq!(driver.send_to(Handle::new(3, 77), 5, b""), refused, "{what}: it cannot be reached");
        assert_eq!(driver.send_to(Handle::new(1, 2000), 5, b""), refused, "{what}: its map is gone");
    });
    assert_eq!(check_pattern(&b, pattern(), 4_000), sent, "{what}: what it had written arrives");
    b.close();
    assert_eq!(world.hypervisor.connections(), [], "{what}");
    // Its old pages are its own again.
    std::mem::forget(a);
    let client = machine.boot(Path::Dma);
    assert_eq!(client.driver(|driver| driver.service()), [], "{what}: nothing is left over");
    stream_both_ways(connect(&client, server, 5001, rings(RING)), 1 << 18, 5_000);
    world.assert_clean();
}

#[test]
fn a_reset_releases_everything() {
    everything_is_released("CONTROL.RESET", |_, _, guest| {
        guest.driver(|driver| driver.write(Reg::Control, CONTROL_RESET));
    });
}

#[test]
fn a_new_probe_releases_everything() {
    everything_is_released("a write to CAPS", |_, _, guest| {
        guest.driver(|driver| driver.write(Reg::Caps, 0x3c));
    });
}

#[test]
fn taking_the_bus_away_releases_everything() {
    everything_is_released("bus master off", |_, _, guest| guest.driver(|driver| driver.set_command(3)));
}

#[test]
fn a_function_reset_releases_everything() {
    everything_is_released("function reset", |_, machine, _| machine.device.lock().reset());
}

/// A kernel that leaves by kexec takes the bus away while its programs still send: the vCPU spins
/// for an answer, with interrupts off, so it gets one.
#[test]
fn without_the_bus_a_send_is_answered_and_carries_nothing() {
    let world = World::new();
    let [(_a, client), (_b, server)] = world.two(Path::Dma);
    client.driver(|driver| driver.set_command(3));
    server.driver(|driver| assert!(driver.send_to(Handle::new(3, 77), 5, b"") < 0));
    for caps in [0, 0x3c] {
        client.driver(|driver| {
            driver.write(Reg::Caps, caps);
            assert!(driver.send_to(Handle::new(4, 77), 5, b"of a kernel that is gone") < 0);
            assert_eq!(driver.service(), [], "an empty batch");
        });
    }
    assert_eq!(server.driver(|driver| driver.service()), []);
}

/// Linux keeps a queue pair whose detach failed, and its module then crashes when it is unloaded.
#[test]
fn a_driver_gives_up_pairs_that_a_reset_has_forgotten() {
    let world = World::new();
    let [(machine, client), (_b, server)] = world.two(Path::Dma);
    let (a, _b) = connect(&client, &server, 5000, rings(RING));
    machine.device.lock().reset();
    let detach_one = || client.driver(|driver| detach(driver, Handle::new(4, 1)));
    assert_eq!(detach_one(), 0);
    client.driver(|driver| {
        driver.set_command(7);
        driver.write(Reg::Caps, 0x3c);
    });
    assert_eq!(detach_one(), VmciError::NotFound.code(), "the next driver receives the true result");
    std::mem::forget(a);
}

#[test]
fn memory_that_goes_away_takes_its_pairs_along() {
    let world = World::new();
    let [(machine, client), (_b, server)] = world.two(Path::Dma);
    let (a, b) = connect(&client, &server, 5000, rings(RING));
    let sent = fill(&a, pattern(), RING);
    for (start, len, _) in machine.ram.regions() {
        machine.device.lock().unmap(start, len);
    }
    machine.device.lock().memory(&Default::default());
    assert_eq!(world.view(3).queue_pairs, 0);
    assert_eq!(check_pattern(&b, pattern(), 4_000), sent);
    std::mem::forget(a);
}

#[test]
fn half_made_connections_of_a_dead_vm_are_refused() {
    let world = World::new();
    let [(_a, client), (_b, server)] = world.two(Path::Dma);
    // VM 3 does not answer; VM 4 asks.
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| server.connect((3, 5000), rings(RING)).map(|_| ()));
        wait_until("VM 3 is asked", || !world.hypervisor.connections().is_empty());
        client.driver(|driver| driver.write(Reg::Control, CONTROL_RESET));
        assert_eq!(asking.join().expect("the asking thread"), Err(SocketError::Refused));
    });
}

#[test]
fn a_context_id_given_out_again_inherits_nothing() {
    let world = World::new();
    let [(machine, client), (_b, server)] = world.two(Path::Dma);
    let (a, b) = connect(&client, &server, 5000, rings(RING));
    server.driver(|driver| assert_eq!(driver.send_to(Handle::new(3, 77), 5, b"old"), 27));
    world.remove(3);
    std::mem::forget(a);
    drop(machine);
    assert_eq!(b.recv(&mut [0; 10]), Ok(0));
    let next = world.machine(3).boot(Path::Dma);
    assert_eq!(next.driver(|driver| driver.receive()), []);
    let spec = PairSpec {
        handle: Handle::new(3, 1024),
        peer: CID_ANY,
        flags: QP_ATTACH_ONLY,
        produce: RING,
        consume: RING,
    };
    let attached = next.driver(|driver| driver.alloc(&spec, Placement::Scattered).map(|_| ()));
    assert!(attached.is_err(), "the old VM's pair is not the new one's");
    let (c, d) = connect(&next, &server, 5001, rings(RING));
    stream_both_ways((c, d), 1 << 18, 5_000);
}
