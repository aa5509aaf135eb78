//! Stream connections packet by packet: the handshake, repetitions, the map by way of the host.

use std::time::{Duration, Instant};

use vmlane_device::vmci::ConnectionView;
use vmlane_guestsim::{PairSpec, Path, Placement, vm_with};
use vmlane_testkit::wait_until;
use vmlane_vsock::Forward;
use vmlane_wire::vmci_stream::PacketType;

use super::talk::{
    ATTACH, CLIENT, CREATE, SERVER, established, offered, pass, received, send_packet, states, two,
};
use super::{World, connect_to, rings, stream_both_ways};

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
    assert_eq!(world.hypervisor.connections(), [connection]);
    assert_eq!((world.view(3).stats.established.get(), world.view(4).stats.established.get()), (1, 1));
    assert_eq!((a.detach(client), b.detach(server)), (0, 0));
    assert_eq!(states(&world), [""; 0]);
    assert_eq!(world.view(3).connections, 0);
}

#[test]
fn a_refusal_by_a_server_that_has_attached_arrives_at_once() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let _client = offered(&mut a, &mut b);
    let server = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    a.service();
    assert_eq!(send_packet(&mut b, CLIENT, SERVER.1, PacketType::Rst), 56);
    wait_until("the client is notified of it", || a.lines.pending(0));
    assert_eq!(received(&mut a), [(SERVER, PacketType::Rst, CLIENT.1)]);
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
    wait_until("the client is notified of it", || a.lines.pending(0));
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
    wait_until("the worker rests", || world.stats.sleeps.get() == 1);
    server.enqueue(b"early");
    assert_eq!(send_packet(&mut b, CLIENT, SERVER.1, PacketType::Wrote), 56);
    wait_until("the bytes are there", || client.ready() == 5);
    wait_until("the worker rests again", || world.stats.sleeps.get() == 2);
    assert_eq!(received(&mut a), [], "no WROTE before ATTACH: Linux would give up on the connection");
    assert_eq!(send_packet(&mut b, CLIENT, SERVER.1, PacketType::Attach), 56);
    // The WROTE that was held back follows a moment later.
    let mut came = Vec::new();
    wait_until("ATTACH and the WROTE", || {
        came.extend(received(&mut a));
        came.len() >= 2
    });
    assert_eq!(came, [PacketType::Attach, PacketType::Wrote].map(|kind| (SERVER, kind, CLIENT.1)));
    world.assert_clean();
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
    assert_eq!(send_packet(&mut a, SERVER, CLIENT.1, PacketType::Request2), 56);
    assert_eq!(received(&mut a), [(SERVER, PacketType::Rst, CLIENT.1)]);
    assert_eq!((states(&world), world.view(3).connections), (vec!["negotiated"], 1));
}

#[test]
fn a_client_may_use_its_port_again_before_the_server_has_closed() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let [client, server] = established(&mut a, &mut b);
    a.service();
    assert_eq!(send_packet(&mut a, SERVER, CLIENT.1, PacketType::Request2), 56);
    assert_eq!(received(&mut a), [(SERVER, PacketType::Rst, CLIENT.1)], "still in use by the client itself");
    assert_eq!(a.detach(client), 0);
    wait_until("the server is notified of it", || b.lines.pending(0));
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
    world.hypervisor.expire();
    assert_eq!(states(&world), ["offered"]);
    world.hypervisor.expire_at(Instant::now() + Duration::from_secs(31));
    assert_eq!((states(&world), world.view(3).connections), (vec![], 0));
    assert!(b.alloc(&ATTACH, Placement::Scattered).is_err(), "too late");
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let _pairs = established(&mut a, &mut b);
    world.hypervisor.expire_at(Instant::now() + Duration::from_secs(3600));
    assert_eq!(states(&world), ["established"], "what is complete stays");
}

#[test]
fn a_port_of_the_host_leads_to_another_vm() {
    let world = World::new();
    let forwards = vec![Forward { port: 700, to_cid: 4, to_port: 5000 }];
    let mut a = world.machine_with(vm_with(3, |vm| vm.forwards = forwards)).probe(Path::Dma);
    let mut b = world.machine(4).probe(Path::Dma);
    let host = (2, 700);
    assert_eq!(send_packet(&mut a, host, CLIENT.1, PacketType::Request2), 56);
    assert_eq!(received(&mut b), [(CLIENT, PacketType::Request2, SERVER.1)]);
    assert_eq!(send_packet(&mut b, CLIENT, SERVER.1, PacketType::Negotiate2), 56);
    assert_eq!(received(&mut a), [(host, PacketType::Negotiate2, CLIENT.1)]);
    let client =
        a.alloc(&PairSpec { peer: 2, ..CREATE }, Placement::Scattered).expect("a pair with the host");
    assert_eq!(send_packet(&mut a, host, CLIENT.1, PacketType::Offer), 56);
    assert_eq!(received(&mut b), [(CLIENT, PacketType::Offer, SERVER.1)]);
    let server = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    assert_eq!(send_packet(&mut b, CLIENT, SERVER.1, PacketType::Attach), 56);
    assert_eq!(received(&mut a), [(host, PacketType::Attach, CLIENT.1)]);
    server.enqueue(b"hello");
    assert_eq!(send_packet(&mut b, CLIENT, SERVER.1, PacketType::Wrote), 56);
    wait_until("the client is notified", || a.lines.pending(0));
    assert_eq!(received(&mut a), [(host, PacketType::Wrote, CLIENT.1)]);
    assert_eq!(client.ready(), 5);
}

#[test]
fn streams_flow_by_way_of_the_host() {
    let world = World::new();
    let forwards = vec![Forward { port: 700, to_cid: 4, to_port: 5000 }];
    let client = world.machine_with(vm_with(3, |vm| vm.forwards = forwards)).boot(Path::Dma);
    let server = world.machine(4).boot(Path::Dma);
    let listener = server.listen(5000, Placement::Scattered);
    let ends = connect_to(&client, &listener, (2, 700), rings(65_536));
    assert_eq!((ends.0.peer(), ends.1.peer().0), ((2, 700), 3));
    stream_both_ways(ends, 8 << 20, 50_000);
    world.assert_clean();
}
