//! Other hosts, with a simulated helper: streams both ways with a VMCI guest and with programs, true
//! addresses, what is refused, and what a helper that is gone does.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use vmlane_guestsim::{Options, Placement};
use vmlane_host::sockets::Bounds;
use vmlane_sock::{Listener, Stream};
use vmlane_testkit::wait_until;
use vmlane_wire::host::ended;
use vmlane_wire::route::{Op, Record, Refusal};

use crate::host_world::SECOND;
use crate::host_world::helper::{End, FAR, Helper, OWN, answer, world};

fn code(result: std::io::Result<Stream>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn a_vmci_guest_and_programs_reach_another_host_and_are_reached() {
    let world = world(Bounds::default());
    let connect = |port| Stream::connect_by(&world.host(), FAR, port, 30 * SECOND);
    assert_eq!(code(connect(1)), Some(19), "no helper: ENODEV");
    let helper = Helper::start(&world);
    // The guest connects.
    let (guest, mut far) = std::thread::scope(|scope| {
        let guest = scope.spawn(|| world.guest.connect((FAR, 80), Options::default()).unwrap());
        let (call, op, text) = helper.receive();
        assert_eq!((op, text.as_str()), (Op::Call, "beta\ntest"));
        let [client, server] = call.ends();
        assert_eq!((client.0, server), (3, (FAR, 80)), "the true source");
        let end = End::of(Helper::ask(&world, Op::Accept, call.number.get(), Default::default(), ""));
        (guest.join().unwrap(), end.unwrap())
    });
    assert_eq!(guest.peer(), (FAR, 80));
    far.write(b"hello");
    let mut text = [0; 5];
    assert_eq!((guest.recv_all(&mut text), &text), (Ok(5), b"hello"));
    guest.send_all(b"back").unwrap();
    assert_eq!(far.read(4), b"back");
    far.write(b"the last words");
    far.close();
    let mut text = [0; 14];
    assert_eq!((guest.recv_all(&mut text), &text), (Ok(14), b"the last words"));
    guest.close();
    // The guest is connected to.
    let listener = world.guest.listen(90, Placement::Scattered);
    let (mut near, guest) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap());
        (helper.open((FAR, 1234), (3, 90), "beta\ntest").unwrap(), accepting.join().unwrap())
    });
    assert_eq!(guest.peer(), (FAR, 1234));
    near.write(b"to you");
    let mut text = [0; 6];
    assert_eq!((guest.recv_all(&mut text), &text), (Ok(6), b"to you"));
    guest.close();
    near.ends(ended::DETACHED);
    near.close();
    // A program is connected to, at the host's own CID.
    let program = Listener::bind_by(&world.host(), 700).unwrap();
    let mut near = helper.open((FAR, 5), (OWN, 700), "beta\ntest").unwrap();
    let (mut far, from) = program.accept().unwrap();
    assert_eq!((from.cid, from.port), (FAR, 5));
    near.write(b"hi");
    let mut text = [0; 2];
    far.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"hi");
    drop(near);
    // It has not announced its end: cut off.
    let error = far.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    drop(far);
    wait_until("no stream is left", || helper.view().streams == 0);
    assert_eq!((helper.count("established"), helper.count("bytes_sent")), (3, 7));
    world.assert_clean();
}

#[test]
fn what_may_not_be_is_refused_and_counted() {
    let world = world(Bounds::default());
    let helper = Helper::start(&world);
    let refused = |client, server, text| helper.open((client, 1), (server, 90), text).err();
    assert_eq!(refused(1999, 3, "beta\ntest"), Some(13), "not the peer's CID");
    assert_eq!(refused(3, 3, "beta\ntest"), Some(13), "one of this host's");
    assert_eq!(refused(FAR, FAR, "beta\ntest"), Some(13), "not to this host");
    assert_eq!(helper.count("forged"), 3);
    assert_eq!(refused(FAR, 3, "gamma\ntest"), Some(13), "no such peer");
    assert_eq!(refused(FAR, 3, "beta\nthird"), Some(13), "a group that the peer may not reach");
    assert_eq!(helper.count("forbidden"), 1);
    assert_eq!(refused(FAR, 3, "beta\nother"), Some(19), "not the server's group");
    assert_eq!(refused(FAR, 4, "beta\ntest"), Some(19), "no such VM");
    assert_eq!(refused(FAR, OWN, "beta\ntest"), Some(104), "no program listens");
    assert_eq!((helper.count("opens_refused"), helper.count("established")), (7, 0));
    // A second helper, a malformed message, and an answer to a call that never was.
    let second = Helper::ask(&world, Op::Line, 0, Default::default(), "");
    assert_eq!(answer(&second).unwrap().0.error.get(), 16, "EBUSY");
    for message in [&[0xff; 100][..], &Record::message(Op::Call, 1, Default::default(), 0, "")] {
        let mut socket = UnixStream::connect(world.dir.path().join("route.sock")).unwrap();
        socket.write_all(message).unwrap();
        assert!(answer(&socket).is_none_or(|(reply, _)| reply.error.get() != 0));
    }
    assert!(End::of(Helper::ask(&world, Op::Accept, 99, Default::default(), "")).is_err());
    // The other host's word, passed on.
    for (why, errno) in [(Refusal::Refused, 104), (Refusal::Gone, 110), (Refusal::Absent, 19)] {
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| code(Stream::connect_by(&world.host(), FAR, 9, 30 * SECOND)));
            let (call, _, _) = helper.receive();
            helper.send(Op::Refuse, call.number.get(), why as u32, "");
            assert_eq!(asks.join().unwrap(), Some(errno));
        });
    }
    // A client that gives up is reported.
    let late = code(Stream::connect_by(&world.host(), FAR, 9, SECOND / 10));
    assert_eq!(late, Some(110));
    let (call, _, _) = helper.receive();
    let (given_up, op, _) = helper.receive();
    assert_eq!((op, given_up.number.get()), (Op::GivenUp, call.number.get()));
    // Without the helper, what waits fails, and nothing is reached.
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| code(Stream::connect_by(&world.host(), FAR, 9, 30 * SECOND)));
        helper.receive();
        drop(helper);
        assert_eq!(asks.join().unwrap(), Some(110));
    });
    assert_eq!(code(Stream::connect_by(&world.host(), FAR, 9, 30 * SECOND)), Some(19));
    world.sockets().set_routes(&world.dir.path().join("route.sock"), None).unwrap();
    assert!(world.sockets().peers().is_empty());
    world.assert_clean();
}

#[test]
fn connects_that_are_given_up_leave_nothing_where_the_helper_does_not_read() {
    let world = world(Bounds::default());
    let helper = Helper::start(&world);
    let connects = 3000;
    for _ in 0..connects {
        // Whether it was too late, or there was no room for it.
        assert!(code(Stream::connect_by(&world.host(), FAR, 9, SECOND / 1000)).is_some());
    }
    // What its socket had room for, and that those were given up.
    let mut messages = 0;
    let last = std::thread::scope(|scope| {
        let asks = scope.spawn(|| code(Stream::connect_by(&world.host(), FAR, 77, 30 * SECOND)));
        let last = loop {
            let (record, op, _) = helper.receive();
            messages += 1;
            if op == Op::Call && record.ends()[1].1 == 77 {
                break record.number.get();
            }
        };
        helper.send(Op::Refuse, last, Refusal::Refused as u32, "");
        assert_eq!(asks.join().unwrap(), Some(104), "it is asked for as soon as the helper reads");
        last
    });
    assert!(last >= connects && messages < 2000, "{messages} messages of {last} calls");
    world.assert_clean();
}

#[test]
fn a_host_has_so_many_streams_and_calls_and_no_more() {
    let world = world(Bounds { routed: 8, calls: 4, ..Bounds::default() });
    let helper = Helper::start(&world);
    let program = Listener::bind_by(&world.host(), 700).unwrap();
    let open = |port| helper.open((FAR, port), (OWN, 700), "beta\ntest");
    // One alone gets half of the places.
    let held: Vec<_> = (0..4).map(|port| (open(port).unwrap(), program.accept().unwrap())).collect();
    assert_eq!(open(9).err(), Some(105), "ENOBUFS");
    assert_eq!((helper.view().streams, helper.count("over_streams")), (4, 1));
    drop(held);
    wait_until("their places are free", || helper.view().streams == 0);
    drop((open(10).unwrap(), program.accept().unwrap()));
    // Calls that wait: the programs of this host are one client.
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| code(Stream::connect_by(&world.host(), FAR, 9, 30 * SECOND))))
            .collect();
        let calls: Vec<u64> = (0..2).map(|_| helper.receive().0.number.get()).collect();
        assert_eq!(code(Stream::connect_by(&world.host(), FAR, 9, 30 * SECOND)), Some(104));
        assert_eq!(helper.count("over_streams"), 2);
        calls.into_iter().for_each(|number| helper.send(Op::Refuse, number, 1, ""));
        assert!(waiting.into_iter().all(|asks| asks.join().unwrap() == Some(104)));
    });
    world.assert_clean();
}
