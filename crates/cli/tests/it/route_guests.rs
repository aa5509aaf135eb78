//! Two hosts, and VMs of every kind that needs no QEMU: virtio-vsock guests and VMMs with hybrid sockets at
//! both ends, each with the true source, through half-close, resets and refusals.

use std::io::{Read, Write};
use std::net::Shutdown;

use vmlane_sock::{Listener, Stream};
use vmlane_testkit::hybrid_vmm::{Vmm, is_closed};
use vmlane_wire::virtio_vsock::{Header, op};

use crate::common::two_hosts::{ALPHA, BETA, LONG, Node, World, plans};
use crate::common::vsock::Guest;

/// VMs of alpha and of beta.
const WEB: u32 = 1001;
const FN1: u32 = 1002;
const DB: u32 = 2001;
const FN2: u32 = 2002;

fn world() -> World {
    let world = World::with(plans(|alpha, beta| {
        alpha.more = "[[vm]]\nname = \"web\"\ncid = 1001\nvsock = \"virtio\"\n\
                      [[vm]]\nname = \"fn1\"\ncid = 1002\nvsock = \"hybrid\"\n\
                      forward = [{ port = 1, to = \"2001:80\" }, { port = 2, to = \"2002:22\" }, { port = 3, to = \"2000:700\" }]\n";
        beta.more = "[[vm]]\nname = \"db\"\ncid = 2001\nvsock = \"virtio\"\n[[vm]]\nname = \"fn2\"\ncid = 2002\nvsock = \"hybrid\"\n\
                     forward = [{ port = 1, to = \"1001:90\" }]\n";
    }));
    world.connected();
    world
}

fn guest(node: &Node, name: &str, cid: u32) -> Guest {
    Guest::attach(&node.daemon.socket(name, "vsock.sock"), cid)
}

fn vmm(node: &Node, name: &str) -> Vmm {
    Vmm::start_for_daemon(&node.daemon.socket(name, "hybrid/v.sock"))
}

/// Data of one packet; what else comes are credits.
fn data(guest: &mut Guest) -> Vec<u8> {
    loop {
        let (header, payload) = guest.any();
        match header.op.get() {
            op::RW => return payload,
            op::CREDIT_UPDATE | op::CREDIT_REQUEST => {}
            other => panic!("operation {other} in place of data"),
        }
    }
}

fn next_is(guest: &mut Guest, wanted: u16) -> Header {
    loop {
        let (header, _) = guest.any();
        if header.op.get() == wanted {
            return header;
        }
        assert!(matches!(header.op.get(), op::CREDIT_UPDATE | op::CREDIT_REQUEST), "{header:?}");
    }
}

#[test]
fn virtio_guests_and_hybrid_sockets_reach_each_other_with_true_sources() {
    let world = world();
    let (mut web, mut db) = (guest(&world.alpha, "web", WEB), guest(&world.beta, "db", DB));

    // virtio to virtio, with half-close at both ends.
    web.send(1000, (DB, 80), op::REQUEST, &[]);
    let request = next_is(&mut db, op::REQUEST);
    assert_eq!(
        (request.src_cid.get() as u32, request.src_port.get(), request.dst_port.get()),
        (WEB, 1000, 80)
    );
    db.send(80, (WEB, 1000), op::RESPONSE, &[]);
    assert_eq!(next_is(&mut web, op::RESPONSE).src_cid.get() as u32, DB);
    web.send(1000, (DB, 80), op::RW, b"question");
    assert_eq!(data(&mut db), b"question");
    web.shut(1000, (DB, 80), 2);
    assert_eq!(next_is(&mut db, op::SHUTDOWN).flags.get(), 2, "the client sends no more");
    db.send(80, (WEB, 1000), op::RW, b"answer");
    assert_eq!(data(&mut web), b"answer");
    db.send(80, (WEB, 1000), op::RST, &[]);
    next_is(&mut web, op::RST);

    // virtio to hybrid.
    let far_vmm = vmm(&world.beta, "fn2");
    web.send(1001, (FN2, 22), op::REQUEST, &[]);
    let mut far = far_vmm.accept(22);
    next_is(&mut web, op::RESPONSE);
    let ports = world.beta.daemon.json(&["ports"]);
    let shown = ports["connections"].as_array().unwrap();
    assert!(
        shown.iter().any(|one| one["client_cid"] == WEB && one["server_cid"] == FN2),
        "the true source is shown: {ports}"
    );
    web.send(1001, (FN2, 22), op::RW, b"to fn2");
    let mut text = [0; 6];
    far.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"to fn2");
    far.write_all(b"from fn2").unwrap();
    assert_eq!(data(&mut web), b"from fn2");
    drop(far);

    // hybrid to virtio, by a forward, both ways round.
    let near_vmm = vmm(&world.alpha, "fn1");
    let mut near = near_vmm.connect(1).unwrap();
    let request = next_is(&mut db, op::REQUEST);
    assert_eq!((request.src_cid.get() as u32, request.dst_port.get()), (FN1, 80));
    let from = (FN1, request.src_port.get());
    db.send(80, from, op::RESPONSE, &[]);
    near.write_all(b"by a forward").unwrap();
    assert_eq!(data(&mut db), b"by a forward");
    db.send(80, from, op::RW, b"and back");
    let mut text = [0; 8];
    near.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"and back");
    db.send(80, from, op::RST, &[]);
    assert!(is_closed(&mut near));

    // hybrid to hybrid, whole, with an end in between.
    let (mut near, mut far) = (near_vmm.connect(2).unwrap(), far_vmm.accept(22));
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    std::thread::scope(|scope| {
        let (far, expected) = (&mut far, &bytes);
        scope.spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).unwrap();
            assert!(all == *expected, "whole");
            far.write_all(&all[..1000]).unwrap();
        });
        near.write_all(&bytes).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        let mut back = [0; 1000];
        near.read_exact(&mut back).unwrap();
        assert_eq!(back, bytes[..1000]);
    });
    drop((near, far));
    world.nothing_is_left();
}

#[test]
fn programs_reach_guests_of_the_other_host_and_are_reached() {
    let world = world();
    let (mut db, far_vmm) = (guest(&world.beta, "db", DB), vmm(&world.beta, "fn2"));
    // A program of alpha to beta's VMs.
    let (mut client, request) = std::thread::scope(|scope| {
        let client = scope.spawn(|| Stream::connect_by(&world.alpha.host(), DB, 80, LONG).unwrap());
        let request = next_is(&mut db, op::REQUEST);
        db.send(80, (ALPHA, request.src_port.get()), op::RESPONSE, &[]);
        (client.join().unwrap(), request)
    });
    assert_eq!(request.src_cid.get() as u32, ALPHA, "alpha's own CID");
    client.write_all(b"program").unwrap();
    assert_eq!(data(&mut db), b"program");
    let (mut client, mut far) = std::thread::scope(|scope| {
        let client = scope.spawn(|| Stream::connect_by(&world.alpha.host(), FN2, 22, LONG).unwrap());
        let far = far_vmm.accept(22);
        (client.join().unwrap(), far)
    });
    client.write_all(b"hello").unwrap();
    let mut text = [0; 5];
    far.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"hello");
    drop((client, far));
    // A hybrid VM and a virtio guest of alpha to a program of beta.
    let listener = Listener::bind_by(&world.beta.host(), 700).unwrap();
    let near_vmm = vmm(&world.alpha, "fn1");
    let mut near = near_vmm.connect(3).unwrap();
    let (mut server, from) = listener.accept().unwrap();
    assert_eq!(from.cid, FN1, "the true source");
    near.write_all(b"from fn1").unwrap();
    let mut text = [0; 8];
    server.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"from fn1");
    drop((near, server));
    let mut web = guest(&world.alpha, "web", WEB);
    web.send(5, (BETA, 700), op::REQUEST, &[]);
    let (server, from) = listener.accept().unwrap();
    assert_eq!(from.cid, WEB, "the true source");
    next_is(&mut web, op::RESPONSE);
    drop(server);
    next_is(&mut web, op::SHUTDOWN);
    web.send(5, (BETA, 700), op::RST, &[]);
    // Nothing listens; no VM is there; no host.
    for to in [(BETA, 701), (2500, 80), (5000, 80)] {
        web.send(6, to, op::REQUEST, &[]);
        next_is(&mut web, op::RST);
    }
    drop(db);
    world.nothing_is_left();
}

#[test]
fn a_helper_that_is_killed_resets_guests_of_both_hosts() {
    let mut world = world();
    let (mut web, mut db) = (guest(&world.alpha, "web", WEB), guest(&world.beta, "db", DB));
    web.send(1000, (DB, 80), op::REQUEST, &[]);
    next_is(&mut db, op::REQUEST);
    db.send(80, (WEB, 1000), op::RESPONSE, &[]);
    next_is(&mut web, op::RESPONSE);
    let (near_vmm, far_vmm) = (vmm(&world.alpha, "fn1"), vmm(&world.beta, "fn2"));
    let (mut near, mut far) = (near_vmm.connect(2).unwrap(), far_vmm.accept(22));
    world.beta.helper = None;
    next_is(&mut web, op::RST);
    next_is(&mut db, op::RST);
    assert!(is_closed(&mut near) && is_closed(&mut far));
    world.beta.start_helper();
    world.connected();
    // The other way round, and to the end.
    let near_far = far_vmm.connect(1).unwrap();
    let request = next_is(&mut web, op::REQUEST);
    assert_eq!((request.src_cid.get() as u32, request.dst_port.get()), (FN2, 90));
    web.send(90, (FN2, request.src_port.get()), op::RST, &[]);
    assert!(is_closed(&mut { near_far }));
    world.nothing_is_left();
}
