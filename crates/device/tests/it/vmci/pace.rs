//! Handshakes with a guest that sends byte by byte: a few at a time, in order, none lost.

use std::time::{Duration, Instant};

use vmlane_guestsim::{Driver, Path};
use vmlane_wire::vmci_stream::PacketType;

use super::World;
use super::talk::{received, send_packet};

/// A slow client and a fast server; the ports whose REQUEST reached the server.
fn pair(world: &World) -> [Driver; 2] {
    [world.machine(3).probe(Path::Ports), world.machine(4).probe(Path::Dma)]
}

fn requested(server: &mut Driver) -> Vec<u32> {
    received(server)
        .into_iter()
        .map(|(from, kind, to)| {
            assert_eq!((from.0, kind, to), (3, PacketType::Request2, 5000));
            from.1
        })
        .collect()
}

#[test]
fn requests_beyond_a_few_wait_for_handshakes_to_end() {
    let world = World::new();
    let [mut a, mut b] = pair(&world);
    for port in 1..=10 {
        assert_eq!(
            send_packet(&mut a, (4, 5000), port, PacketType::Request2),
            56,
            "as a datagram it was sent"
        );
    }
    assert_eq!(requested(&mut b), [1, 2, 3]);
    assert_eq!(world.hypervisor.connections().len(), 10);
    // One is refused, one given up by its client: two more have their turn, in order.
    send_packet(&mut b, (3, 2), 5000, PacketType::Rst);
    assert_eq!(requested(&mut b), [4]);
    assert_eq!(received(&mut a).len(), 1);
    send_packet(&mut a, (4, 5000), 9, PacketType::Rst);
    assert_eq!(requested(&mut b), [0; 0], "it had not begun, and no end is notified");
    // Those that do not move delay the others only briefly.
    world.hypervisor.expire_at(Instant::now() + Duration::from_secs(2));
    assert_eq!(requested(&mut b), [5, 6, 7]);
}

#[test]
fn guests_that_send_datagrams_by_dma_wait_for_nothing() {
    let world = World::new();
    let [mut a, mut b] = [3, 4].map(|cid| world.machine(cid).probe(Path::Dma));
    for port in 1..=10 {
        send_packet(&mut a, (4, 5000), port, PacketType::Request2);
    }
    assert_eq!(requested(&mut b).len(), 10);
}

#[test]
fn a_client_that_asks_again_and_again_from_one_port_grows_nothing() {
    let world = World::new();
    let [mut a, mut b] = pair(&world);
    for port in 1..=3 {
        send_packet(&mut a, (4, 5000), port, PacketType::Request2);
    }
    for _ in 0..1000 {
        assert_eq!(send_packet(&mut a, (4, 5000), 4, PacketType::Request2), 56);
    }
    assert_eq!(requested(&mut b), [1, 2, 3]);
    assert_eq!(world.view(3).connections, 4);
    world.hypervisor.expire_at(Instant::now() + Duration::from_secs(2));
    assert_eq!(requested(&mut b), [4], "once");
}

#[test]
fn a_server_that_goes_while_requests_wait_refuses_them() {
    let world = World::new();
    let [mut a, b] = pair(&world);
    for port in 1..=6 {
        send_packet(&mut a, (4, 5000), port, PacketType::Request2);
    }
    b.remove();
    let mut refused: Vec<u32> = received(&mut a)
        .into_iter()
        .map(|(_, kind, port)| {
            assert_eq!(kind, PacketType::Rst);
            port
        })
        .collect();
    refused.sort_unstable();
    assert_eq!(refused, [1, 2, 3, 4, 5, 6]);
}
