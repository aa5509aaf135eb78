//! Stream connections packet by packet: the handshake, what is refused, the map by way of the host.

mod vmci_common;

use std::time::{Duration, Instant};

use vmci_common::{World, connect_to, eventually, rings, stream_both_ways};
use vmlane_device::testing::{Driver, PairSpec, Path, Placement, Queues, vm};
use vmlane_device::vmci::{ConnectionView, Forward, Limits, VmSpec};
use vmlane_wire::vmci::{Handle, QP_ATTACH_ONLY, VmciError};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};

const CLIENT: (u32, u32) = (3, 1030);
const SERVER: (u32, u32) = (4, 5000);
const PAIR: Handle = Handle::new(3, 2000);
const CREATE: PairSpec = PairSpec { handle: PAIR, peer: 4, flags: 0, produce: 4096, consume: 4096 };
const ATTACH: PairSpec = PairSpec { peer: 3, flags: QP_ATTACH_ONLY, ..CREATE };

/// A control packet as it arrived: from whom, what, to which port.
type Seen = ((u32, u32), PacketType, u32);

fn say(driver: &mut Driver, to: (u32, u32), from_port: u32, kind: PacketType) -> i32 {
    let packet = match kind {
        PacketType::Request2 | PacketType::Negotiate2 => {
            ControlPacket::new(kind, from_port, to.1).with_size(4096, 1)
        }
        PacketType::Request | PacketType::Negotiate => {
            ControlPacket::new(kind, from_port, to.1).with_size(4096, 0)
        }
        PacketType::Offer | PacketType::Attach => ControlPacket::new(kind, from_port, to.1).with_handle(PAIR),
        _ => ControlPacket::new(kind, from_port, to.1),
    };
    driver.control(to.0, packet)
}

/// The control packets that wait for this guest.
fn heard(driver: &mut Driver) -> Vec<Seen> {
    let seen = |datagram: vmlane_device::testing::Datagram| {
        let packet = datagram.control()?;
        Some(((datagram.src.context, packet.src_port()), packet.kind()?, packet.dst_port()))
    };
    driver.service().into_iter().filter_map(seen).collect()
}

fn two(world: &World) -> [Driver; 2] {
    [3, 4].map(|cid| world.machine(cid).probe(Path::Dma))
}

fn states(world: &World) -> Vec<&'static str> {
    world.fabric.connections().iter().map(|connection| connection.state).collect()
}

/// Says something that is passed on to the other end as it is.
fn pass(from: &mut Driver, to: &mut Driver, [source, target]: [(u32, u32); 2], kind: PacketType) {
    assert_eq!(say(from, target, source.1, kind), 56);
    assert_eq!(heard(to), [(source, kind, target.1)]);
}

/// As far as an offer that the server has not answered.
fn offered(a: &mut Driver, b: &mut Driver) -> Queues {
    pass(a, b, [CLIENT, SERVER], PacketType::Request2);
    pass(b, a, [SERVER, CLIENT], PacketType::Negotiate2);
    let queues = a.alloc(&CREATE, Placement::Scattered).expect("a pair");
    pass(a, b, [CLIENT, SERVER], PacketType::Offer);
    queues
}

fn established(a: &mut Driver, b: &mut Driver) -> [Queues; 2] {
    let client = offered(a, b);
    let server = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    pass(b, a, [SERVER, CLIENT], PacketType::Attach);
    [client, server]
}

#[test]
fn a_handshake_goes_through_step_by_step() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    pass(&mut a, &mut b, [CLIENT, SERVER], PacketType::Request2);
    assert_eq!(states(&world), ["requested"]);
    pass(&mut b, &mut a, [SERVER, CLIENT], PacketType::Negotiate2);
    assert_eq!(states(&world), ["negotiated"]);
    let client = a.alloc(&CREATE, Placement::Scattered).expect("a pair");
    pass(&mut a, &mut b, [CLIENT, SERVER], PacketType::Offer);
    assert_eq!(states(&world), ["offered"]);
    let server = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    pass(&mut b, &mut a, [SERVER, CLIENT], PacketType::Attach);
    let connection = ConnectionView { client: CLIENT, server: SERVER, state: "established" };
    assert_eq!(world.fabric.connections(), [connection]);
    assert_eq!((world.view(3).stats.established.get(), world.view(4).stats.established.get()), (1, 1));
    assert_eq!((a.detach(client), b.detach(server)), (0, 0));
    assert_eq!(states(&world), [""; 0]);
    assert_eq!(world.view(3).connections, 0);
}

#[test]
fn a_server_may_refuse_at_any_time() {
    for steps in 0..3 {
        let world = World::new();
        let [mut a, mut b] = two(&world);
        match steps {
            0 => pass(&mut a, &mut b, [CLIENT, SERVER], PacketType::Request2),
            1 => {
                pass(&mut a, &mut b, [CLIENT, SERVER], PacketType::Request2);
                pass(&mut b, &mut a, [SERVER, CLIENT], PacketType::Negotiate2);
            }
            _ => drop(offered(&mut a, &mut b)),
        }
        pass(&mut b, &mut a, [SERVER, CLIENT], PacketType::Rst);
        assert_eq!(states(&world), [""; 0], "after {steps} steps");
        assert_eq!(world.view(3).connections, 0);
        pass(&mut a, &mut b, [CLIENT, SERVER], PacketType::Request2);
    }
}

#[test]
fn a_server_that_attached_and_then_refuses_is_heard_at_once() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let _client = offered(&mut a, &mut b);
    let server = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    a.service();
    assert_eq!(say(&mut b, CLIENT, SERVER.1, PacketType::Rst), 56);
    eventually("the client hears of it", || a.lines.pending(0));
    assert_eq!(heard(&mut a), [(SERVER, PacketType::Rst, CLIENT.1)]);
    assert_eq!(b.detach(server), 0);
}

#[test]
fn a_server_that_dies_after_attaching_is_not_waited_for() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let _client = offered(&mut a, &mut b);
    let server = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    server.enqueue(b"never announced");
    assert!(a.service().len() == 1, "it attached");
    b.remove();
    eventually("the client hears of it", || a.lines.pending(0));
    let events: Vec<_> = a.service().iter().map(|datagram| datagram.event()).collect();
    assert!(events.contains(&Some(4)), "{events:?}");
}

#[test]
fn a_lane_sleeps_while_the_server_thinks_about_its_attach() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let client = offered(&mut a, &mut b);
    let server = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    a.service();
    eventually("the worker rests", || world.stats.sleeps.get() == 1);
    server.enqueue(b"early");
    assert_eq!(say(&mut b, CLIENT, SERVER.1, PacketType::Wrote), 56);
    eventually("the bytes are there", || client.ready() == 5);
    eventually("the worker rests again", || world.stats.sleeps.get() == 2);
    assert_eq!(heard(&mut a), [], "no WROTE before ATTACH: Linux would give up on the connection");
    pass(&mut b, &mut a, [SERVER, CLIENT], PacketType::Attach);
    eventually("the WROTE that was held back", || a.lines.pending(0));
    assert_eq!(heard(&mut a), [(SERVER, PacketType::Wrote, CLIENT.1)]);
    world.assert_clean();
}

#[test]
fn connecting_to_nobody_fails() {
    let world = World::new();
    let [mut a, _b] = two(&world);
    let _other = world.machine_with(VmSpec { group: "other".into(), ..vm(6) }).probe(Path::Dma);
    for cid in [1, 5, 6, 99] {
        let result = say(&mut a, (cid, 5000), 1030, PacketType::Request2);
        assert!(result == VmciError::InvalidResource.code(), "CID {cid}: {result}");
    }
    // The host itself: nobody listens there.
    assert_eq!(say(&mut a, (2, 5000), 1030, PacketType::Request2), 56);
    assert_eq!(heard(&mut a), [((2, 5000), PacketType::Rst, 1030)]);
    assert_eq!(states(&world), [""; 0]);
}

#[test]
fn packets_out_of_turn_are_answered_with_rst() {
    use PacketType::*;
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let refused = |driver: &mut Driver, to: (u32, u32), from: (u32, u32), kind| {
        assert_eq!(say(driver, to, from.1, kind), 56);
        assert_eq!(heard(driver), [(to, Rst, from.1)], "{kind:?}");
    };
    for kind in [Negotiate2, Offer, Attach, Wrote, Read, Shutdown, WaitingRead, WaitingWrite, Invalid] {
        refused(&mut a, SERVER, CLIENT, kind);
    }
    pass(&mut a, &mut b, [CLIENT, SERVER], Request2);
    for kind in [Offer, Attach, Negotiate2, Wrote, Shutdown] {
        refused(&mut a, SERVER, CLIENT, kind);
    }
    for kind in [Attach, Offer, Wrote, Shutdown, Read] {
        refused(&mut b, CLIENT, SERVER, kind);
    }
    pass(&mut b, &mut a, [SERVER, CLIENT], Negotiate2);
    refused(&mut b, CLIENT, SERVER, Negotiate2);
    refused(&mut a, SERVER, CLIENT, Wrote);
    // Offers of what does not exist, or attaches that did not happen.
    refused(&mut a, SERVER, CLIENT, Offer);
    let _pair = a.alloc(&CREATE, Placement::Scattered).expect("a pair");
    pass(&mut a, &mut b, [CLIENT, SERVER], Offer);
    refused(&mut b, CLIENT, SERVER, Attach);
    assert_eq!(states(&world), ["offered"], "none of this has hurt the connection");
    assert_eq!(say(&mut a, (4, 9), 9, Rst), 56);
    assert_eq!((heard(&mut a), heard(&mut b)), (vec![], vec![]), "an RST is never answered");
}

#[test]
fn a_stranger_cannot_meddle() {
    use PacketType::*;
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let mut c = world.machine(5).probe(Path::Dma);
    let pairs = established(&mut a, &mut b);
    for kind in [Negotiate2, Offer, Attach, Wrote, Read, Rst, Shutdown, WaitingRead, WaitingWrite, Invalid] {
        for to in [CLIENT, SERVER] {
            for from_port in [CLIENT.1, SERVER.1] {
                assert_eq!(say(&mut c, to, from_port, kind), 56);
            }
        }
    }
    let spec = PairSpec { peer: 3, ..ATTACH };
    assert!(c.alloc(&spec, Placement::Scattered).is_err());
    assert_eq!(c.call(11, &[3, 0, 0, 0, 0xd0, 7, 0, 0]), VmciError::NotFound.code());
    assert_eq!((heard(&mut a), heard(&mut b)), (vec![], vec![]));
    assert_eq!(states(&world), ["established"]);
    pairs[0].enqueue(b"still here");
    assert_eq!(say(&mut a, SERVER, CLIENT.1, Wrote), 56);
    eventually("bytes still move", || pairs[1].ready() == 10);
}

#[test]
fn a_pair_of_somebody_else_cannot_be_offered() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let mut c = world.machine(5).probe(Path::Dma);
    let theirs = PairSpec { handle: PAIR, peer: 4, ..CREATE };
    let _made = a.alloc(&theirs, Placement::Scattered).expect("a pair");
    let own = (5, 1030);
    pass(&mut c, &mut b, [own, SERVER], PacketType::Request2);
    pass(&mut b, &mut c, [SERVER, own], PacketType::Negotiate2);
    assert_eq!(say(&mut c, SERVER, own.1, PacketType::Offer), 56);
    assert_eq!(heard(&mut c), [(SERVER, PacketType::Rst, own.1)]);
    assert_eq!(heard(&mut b), []);
    assert_eq!(world.view(5).stats.refused_queue_pair.get(), 1);
}

#[test]
fn a_request_may_be_repeated_until_it_is_answered() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    for _ in 0..3 {
        pass(&mut a, &mut b, [CLIENT, SERVER], PacketType::Request2);
    }
    assert_eq!((states(&world), world.view(3).connections), (vec!["requested"], 1));
    pass(&mut b, &mut a, [SERVER, CLIENT], PacketType::Invalid);
    pass(&mut a, &mut b, [CLIENT, SERVER], PacketType::Request);
    pass(&mut b, &mut a, [SERVER, CLIENT], PacketType::Negotiate);
    assert_eq!(say(&mut a, SERVER, CLIENT.1, PacketType::Request2), 56);
    assert_eq!(heard(&mut a), [(SERVER, PacketType::Rst, CLIENT.1)]);
    assert_eq!((states(&world), world.view(3).connections), (vec!["negotiated"], 1));
}

#[test]
fn a_client_may_use_its_port_again_before_the_server_has_closed() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let [client, server] = established(&mut a, &mut b);
    a.service();
    assert_eq!(say(&mut a, SERVER, CLIENT.1, PacketType::Request2), 56);
    assert_eq!(heard(&mut a), [(SERVER, PacketType::Rst, CLIENT.1)], "still in use by the client itself");
    assert_eq!(a.detach(client), 0);
    eventually("the server hears of it", || b.lines.pending(0));
    b.service();
    pass(&mut a, &mut b, [CLIENT, SERVER], PacketType::Request2);
    assert_eq!(b.detach(server), 0);
    assert_eq!(states(&world), ["requested"], "the end of the old one does not end the new one");
    pass(&mut b, &mut a, [SERVER, CLIENT], PacketType::Negotiate2);
}

#[test]
fn a_handshake_that_stops_is_forgotten() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let _pair = offered(&mut a, &mut b);
    world.fabric.expire();
    assert_eq!(states(&world), ["offered"]);
    world.fabric.expire_at(Instant::now() + Duration::from_secs(31));
    assert_eq!((states(&world), world.view(3).connections), (vec![], 0));
    assert!(b.alloc(&ATTACH, Placement::Scattered).is_err(), "too late");
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let _pairs = established(&mut a, &mut b);
    world.fabric.expire_at(Instant::now() + Duration::from_secs(3600));
    assert_eq!(states(&world), ["established"], "what is complete stays");
}

#[test]
fn malformed_control_packets_are_refused() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let mut request = ControlPacket::new(PacketType::Request2, 1030, 5000).with_size(4096, 1);
    let endpoint = Handle::new(4, 1);
    let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut request);
    assert_eq!(a.send_to(endpoint, 1, &bytes[..31]), VmciError::InvalidArgs.code());
    assert_eq!(a.send_to(endpoint, 2, bytes), VmciError::NoAccess.code());
    assert_eq!(a.send_to(endpoint, 1, &[&*bytes, &[0; 8]].concat()), 64, "longer ones are tolerated");
    assert_eq!(heard(&mut b), [(CLIENT, PacketType::Request2, 5000)]);
    bytes[1] = 13;
    assert_eq!(a.send_to(endpoint, 1, bytes), 56);
    assert_eq!(heard(&mut a), [(SERVER, PacketType::Invalid, CLIENT.1)]);
}

#[test]
fn connections_have_a_quota() {
    let world = World::new();
    let limits = Limits { connections: 2, ..Limits::default() };
    let mut a = world.machine_with(VmSpec { limits, ..vm(3) }).probe(Path::Dma);
    let _b = world.machine(4).probe(Path::Dma);
    assert_eq!([1030, 1031].map(|port| say(&mut a, SERVER, port, PacketType::Request2)), [56, 56]);
    assert_eq!(say(&mut a, SERVER, 1032, PacketType::Request2), VmciError::NoResources.code());
    assert_eq!(say(&mut a, SERVER, 1030, PacketType::Rst), 56);
    assert_eq!(say(&mut a, SERVER, 1032, PacketType::Request2), 56);
}

#[test]
fn a_port_of_the_host_leads_to_another_vm() {
    let world = World::new();
    let forwards = vec![Forward { port: 700, to_cid: 4, to_port: 5000 }];
    let mut a = world.machine_with(VmSpec { forwards, ..vm(3) }).probe(Path::Dma);
    let mut b = world.machine(4).probe(Path::Dma);
    let host = (2, 700);
    assert_eq!(say(&mut a, host, CLIENT.1, PacketType::Request2), 56);
    assert_eq!(heard(&mut b), [(CLIENT, PacketType::Request2, SERVER.1)]);
    assert_eq!(say(&mut b, CLIENT, SERVER.1, PacketType::Negotiate2), 56);
    assert_eq!(heard(&mut a), [(host, PacketType::Negotiate2, CLIENT.1)]);
    let client = a.alloc(&PairSpec { peer: 2, ..CREATE }, Placement::Scattered).expect("a pair with the host");
    assert_eq!(say(&mut a, host, CLIENT.1, PacketType::Offer), 56);
    assert_eq!(heard(&mut b), [(CLIENT, PacketType::Offer, SERVER.1)]);
    let server = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    assert_eq!(say(&mut b, CLIENT, SERVER.1, PacketType::Attach), 56);
    assert_eq!(heard(&mut a), [(host, PacketType::Attach, CLIENT.1)]);
    server.enqueue(b"hello");
    assert_eq!(say(&mut b, CLIENT, SERVER.1, PacketType::Wrote), 56);
    eventually("the client is told", || a.lines.pending(0));
    assert_eq!(heard(&mut a), [(host, PacketType::Wrote, CLIENT.1)]);
    assert_eq!(client.ready(), 5);
}

#[test]
fn streams_flow_by_way_of_the_host() {
    let world = World::new();
    let forwards = vec![Forward { port: 700, to_cid: 4, to_port: 5000 }];
    let client = world.machine_with(VmSpec { forwards, ..vm(3) }).boot(Path::Dma);
    let server = world.machine(4).boot(Path::Dma);
    let listener = server.listen(5000, Placement::Scattered);
    let ends = connect_to(&client, &listener, (2, 700), rings(65_536));
    assert_eq!((ends.0.peer(), ends.1.peer().0), ((2, 700), 3));
    stream_both_ways(ends, 8 << 20, 50_000);
    world.assert_clean();
}
