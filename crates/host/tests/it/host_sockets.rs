//! Host sockets against a synthetic guest: rings, plain sockets, text sockets, and what hostile programs do.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmlane_guestsim::{Options, Pattern, Placement, Stream as Far, TIMEOUT};
use vmlane_host::sockets::Bounds;
use vmlane_sock::{Address, Datagram, Host, Listener, Stream, plain};
use vmlane_testkit::wait_until;
use vmlane_wire::host::{FLAG_RING, Op, RING, Reply, Request, SWITCH, layout};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::host_world::{SECOND, World, both_ways, far_end};

#[test]
fn rings_carry_streams_both_ways() {
    let world = World::new();
    let (near, far) = world.stream(5000);
    assert_eq!((near.peer_addr(), near.local_addr().cid), (Address { cid: 3, port: 5000 }, 2));
    assert_eq!(far.peer(), (2, near.local_addr().port));
    both_ways(&near, &far);
    drop(near);
    far.close();
    let listener = Listener::bind_by(&world.host(), 700).unwrap();
    let (far, (near, from)) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap());
        (world.guest_connects(700), accepting.join().unwrap())
    });
    assert_eq!((from.cid, near.local_addr()), (3, Address { cid: 2, port: 700 }));
    both_ways(&near, &far);
    drop(near);
    far.close();
    world.assert_clean();
}

#[test]
fn plain_sockets_carry_streams_both_ways() {
    let world = World::new();
    let host = world.host();
    let (near, far) = world.to_guest(5000, || plain::connect(&host, 3, 5000, 30 * SECOND).unwrap().0);
    both_ways(&near, &far);
    drop(near);
    far.close();
    let listener = plain::Listener::bind(&host, 700).unwrap();
    let (far, (near, from)) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap());
        (world.guest_connects(700), accepting.join().unwrap())
    });
    assert_eq!(from.cid, 3);
    both_ways(&near, &far);
    drop(near);
    far.close();
    world.assert_clean();
}

#[test]
fn what_was_written_before_a_close_arrives() {
    let world = World::new();
    let host = world.host();
    let pattern = Pattern::new(3);
    let mut bytes = vec![0; 200_000];
    pattern.fill(0, &mut bytes);
    let (mut near, far) = world.stream(5000);
    near.write_all(&bytes).unwrap();
    drop(near);
    assert_eq!(far_end(&far, pattern), bytes.len() as u64);
    far.close();
    let (mut near, far) = world.to_guest(5001, || plain::connect(&host, 3, 5001, 30 * SECOND).unwrap().0);
    near.write_all(&bytes).unwrap();
    drop(near);
    assert_eq!(far_end(&far, pattern), bytes.len() as u64);
    far.close();
    let (mut near, far) = world.to_guest(5002, || plain::connect(&host, 3, 5002, 30 * SECOND).unwrap().0);
    far.send_all(&bytes).unwrap();
    far.close();
    let mut got = Vec::new();
    near.read_to_end(&mut got).unwrap();
    assert_eq!(got, bytes);
    drop(near);
    world.assert_clean();
}

/// Its signal must not come before the answer, on the same socket.
#[test]
fn a_guest_may_be_done_before_its_client_knows() {
    let world = World::new();
    let host = world.host();
    let guest = world.guest.listen(5000, Placement::Scattered);
    for _ in 0..200 {
        let mut near = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| Stream::connect_by(&host, 3, 5000, 30 * SECOND).unwrap());
            let far = guest.accept().unwrap();
            far.send_all(b"done").unwrap();
            far.close();
            connecting.join().unwrap()
        });
        let mut got = Vec::new();
        near.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"done");
    }
    drop(guest);
    world.assert_clean();
}

#[test]
fn errors_are_those_of_the_address_family() {
    let world = World::new();
    let host = world.host();
    let code = |result: std::io::Result<Stream>| result.err().and_then(|error| error.raw_os_error());
    let refused = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| Stream::connect_by(&host, 3, 9, 30 * SECOND));
        while !connecting.is_finished() {
            world.guest.service();
        }
        connecting.join().unwrap()
    });
    assert_eq!(code(refused), Some(104), "no program listens: ECONNRESET");
    assert_eq!(code(Stream::connect_by(&host, 9, 9, 30 * SECOND)), Some(19), "no such VM: ENODEV");
    // The guest does not poll.
    assert_eq!(code(Stream::connect_by(&host, 3, 9, SECOND / 20)), Some(110), "no answer: ETIMEDOUT");
    let first = Listener::bind_by(&host, 700).unwrap();
    let second = Listener::bind_by(&host, 700).err().and_then(|error| error.raw_os_error());
    assert_eq!(second, Some(98), "EADDRINUSE");
    drop(first);
    wait_until("the port is free again", || Listener::bind_by(&host, 700).is_ok());
    let any = Listener::bind_by(&host, vmlane_sock::ANY).unwrap();
    assert!(any.local_addr().port >= 1024);
    // A guest that finds no listener is refused.
    assert!(world.guest.connect((2, 701), Options::default()).is_err());
    let absent = Stream::connect_by(&Host::at("/nonexistent".as_ref()), 3, 9, SECOND).err().unwrap();
    assert!(absent.to_string().contains("VMLANE_RUNTIME_DIR"), "{absent}");
}

fn ready(stream: &Stream, flags: PollFlags, wait: Duration) -> bool {
    let mut fds = [PollFd::new(stream, flags)];
    let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    poll(&mut fds, Some(&wait)).unwrap() > 0 && fds[0].revents().intersects(flags)
}

#[test]
fn a_descriptor_polls_as_its_stream_is() {
    let world = World::new();
    let (near, far) = world.stream(5000);
    far.send_all(b"early").unwrap();
    near.set_nonblocking(true).unwrap();
    let mut bytes = [0; 16];
    assert!(ready(&near, PollFlags::IN, TIMEOUT), "bytes were there before the first poll");
    assert_eq!((&near).read(&mut bytes[..2]).unwrap(), 2);
    assert!(ready(&near, PollFlags::IN, Duration::ZERO), "some are left");
    assert_eq!((&near).read(&mut bytes).unwrap(), 3);
    assert_eq!((&near).read(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(!ready(&near, PollFlags::IN, Duration::ZERO));
    assert!(ready(&near, PollFlags::OUT, TIMEOUT), "room");
    far.send_all(b"late").unwrap();
    assert!(ready(&near, PollFlags::IN, TIMEOUT));
    assert_eq!((&near).read(&mut bytes).unwrap(), 4);
    // Until nothing fits any more, in this ring, the other, and between.
    let write = |bytes: &[u8], wait| loop {
        match (&near).write(bytes) {
            Ok(len) => return len as u64,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        if !ready(&near, PollFlags::OUT, wait) {
            return 0; // no room, and none comes
        }
    };
    let mut sent = 0;
    loop {
        match write(&[7; 10_000], SECOND) {
            0 => break,
            len => sent += len,
        }
    }
    let mut room = vec![0; 300_000];
    let mut got = far.recv(&mut room).unwrap() as u64;
    assert!(ready(&near, PollFlags::OUT, TIMEOUT), "room again");
    assert_eq!(write(&[8], TIMEOUT), 1);
    sent += 1;
    near.shutdown(Shutdown::Write).unwrap();
    loop {
        match far.recv(&mut room).unwrap() {
            0 => break,
            len => got += len as u64,
        }
    }
    assert_eq!(got, sent);
    far.close();
    assert!(ready(&near, PollFlags::IN, TIMEOUT), "the end");
    assert_eq!((&near).read(&mut bytes).unwrap(), 0);
    drop(near);
    world.assert_clean();
}

#[test]
fn timeouts_end_waits_and_a_stopped_daemon_ends_streams() {
    let mut world = World::new();
    let (near, far) = world.stream(5000);
    near.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!((&near).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    near.set_read_timeout(None).unwrap();
    let sockets = world.sockets.take();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| (&near).read(&mut [0]));
        std::thread::sleep(Duration::from_millis(10));
        drop(sockets);
        assert!(matches!(reading.join().unwrap(), Ok(0) | Err(_)));
    });
    assert_eq!(far.recv(&mut [0]), Ok(0));
    far.close();
    assert!(!world.dir.path().join("host.sock").exists() && !world.uds().exists());
}

#[test]
fn many_connections_at_once() {
    let world = World::new();
    let host = world.host();
    let listener = world.guest.listen(5000, Placement::Scattered);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let streams: Vec<Far> = (0..200).map(|_| listener.accept().unwrap()).collect();
            for far in streams {
                let mut byte = [0];
                assert_eq!(far.recv(&mut byte), Ok(1));
                far.send_all(&byte).unwrap();
                far.close();
            }
        });
        let mut streams: Vec<Stream> =
            (0..200).map(|_| Stream::connect_by(&host, 3, 5000, 30 * SECOND).unwrap()).collect();
        for (number, near) in streams.iter_mut().enumerate() {
            near.write_all(&[number as u8]).unwrap();
        }
        for (number, near) in streams.iter_mut().enumerate() {
            let mut all = Vec::new();
            near.read_to_end(&mut all).unwrap();
            assert_eq!(all, [number as u8]);
        }
        echo.join().unwrap();
    });
    world.assert_clean();
}

fn line(stream: &mut UnixStream) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 {
        text.push(byte[0]);
        if byte[0] == b'\n' {
            break;
        }
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn the_text_door_speaks_as_firecracker_does() {
    let world = World::new();
    let (mut near, far) = world.to_guest(52, || {
        let mut near = UnixStream::connect(world.uds()).unwrap();
        near.write_all(b"CONNECT 52\nhel").unwrap();
        let greeting = line(&mut near);
        let port: u32 = greeting.trim().strip_prefix("OK ").unwrap().parse().unwrap();
        assert_eq!(greeting, format!("OK {port}\n"));
        near
    });
    near.write_all(b"lo").unwrap();
    let mut bytes = [0; 5];
    assert_eq!((far.recv_all(&mut bytes), &bytes), (Ok(5), b"hello"));
    both_ways(&near, &far);
    drop(near);
    far.close();
    // The other way: a program listens beside the VM's socket.
    let mut path = world.uds().into_os_string();
    path.push("_53");
    let listener = UnixListener::bind(&path).unwrap();
    let far = world.guest_connects(53);
    let (near, _) = listener.accept().unwrap();
    both_ways(&near, &far);
    drop((near, listener));
    far.close();
    // One that is gone refuses.
    assert!(world.guest.connect((2, 53), Options::default()).is_err());
    world.assert_clean();
}

#[test]
fn garbage_at_the_sockets_is_bounded_and_harmless() {
    let bounds = Bounds { request: Duration::from_secs(2), unasked: 8, ..Bounds::default() };
    let world = World::with(bounds);
    let (near, far) = world.stream(5000);
    for garbage in [&b"HELLO\n"[..], b"CONNECT x\n", b"\n", &[b'A'; 4096], &[0; 64], b"CONNECT 99999999999\n"]
    {
        let mut client = UnixStream::connect(world.uds()).unwrap();
        let _ = client.write_all(garbage);
        assert!(!matches!(client.read(&mut [0]), Ok(1..)), "{garbage:?} got an answer");
        let mut client = UnixStream::connect(world.dir.path().join("host.sock")).unwrap();
        let _ = client.write_all(garbage);
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        assert!(
            answer.is_empty() || Reply::read_from_bytes(&answer).is_ok_and(|reply| reply.error.get() != 0)
        );
    }
    // Clients that send nothing, or half of something, are not waited for; a flood of them ends.
    let mut silent: Vec<UnixStream> = (0..30).map(|_| UnixStream::connect(world.uds()).unwrap()).collect();
    let _ = silent[0].write_all(b"CONN");
    for client in &mut silent {
        assert!(!matches!(client.read(&mut [0]), Ok(1..)));
    }
    both_ways(&near, &far);
    drop(near);
    far.close();
    world.assert_clean();
}

/// A ring-mode connection made by hand: the signal line and the memory.
fn by_hand(world: &World, port: u32) -> ((UnixStream, OwnedFd), Far) {
    world.to_guest(port, || {
        let mut socket = UnixStream::connect(world.dir.path().join("host.sock")).unwrap();
        socket.write_all(Request::new(Op::Connect, 3, port, 30_000, FLAG_RING).as_bytes()).unwrap();
        let mut bytes = [0; 16];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [std::io::IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(&socket, parts, &mut control, rustix::net::RecvFlags::empty()).unwrap();
        let fd = control.drain().find_map(|message| match message {
            rustix::net::RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        (socket, fd.unwrap())
    })
}

#[test]
fn a_hostile_program_loses_its_own_streams_only() {
    let world = World::new();
    let (near, far) = world.stream(5000);
    for (number, (offset, value)) in [
        (layout::process_page(RING), u64::MAX),
        (layout::process_page(RING), RING),
        (layout::process_page(RING) + 8, 77),
        (layout::process_page(RING) + 8, u64::MAX / 2),
    ]
    .into_iter()
    .enumerate()
    {
        let ((mut signals, memory), victim) = by_hand(&world, 6000 + number as u32);
        let file = std::fs::File::from(memory);
        assert!(file.set_len(0).is_err(), "the file cannot be cut");
        file.write_all_at(&value.to_le_bytes(), offset).unwrap();
        let _ = signals.write_all(&[0; 100]);
        // A head is read when there is something to write.
        let _ = victim.send(&[1]);
        assert_eq!(victim.recv(&mut [0]), Ok(0), "its peer gets the end");
        victim.close();
    }
    // Dies without a word; sends junk to the signal line and a descriptor where none belongs.
    let ((signals, _memory), victim) = by_hand(&world, 6100);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let fds = [signals.as_fd()];
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    let junk = [std::io::IoSlice::new(&[9; 1000])];
    rustix::net::sendmsg(&signals, &junk, &mut control, rustix::net::SendFlags::NOSIGNAL).unwrap();
    drop(signals);
    assert_eq!(victim.recv(&mut [0]), Ok(0));
    victim.close();
    // Does not read: its guest blocks, others do not.
    let (stuck, stuck_far) = world.stream(6200);
    std::thread::scope(|scope| {
        let filling = scope.spawn(|| {
            let mut sent = 0;
            while let Ok(len) = stuck_far.send(&[1; 50_000]) {
                sent += len;
            }
            sent
        });
        both_ways(&near, &far);
        drop(stuck);
        assert!(filling.join().unwrap() > 0);
    });
    stuck_far.close();
    drop(near);
    far.close();
    wait_until("nothing is left", || world.hypervisor.connections().is_empty());
    assert_eq!(world.stats.panics.get(), 0);
}

#[test]
fn a_program_that_switches_wildly_loses_its_own_stream_only() {
    let world = World::new();
    let (near, far) = world.stream(5000);
    // Indices forged before it gives the ring up: the stream ends.
    let ((mut signals, memory), victim) = by_hand(&world, 6000);
    let file = std::fs::File::from(memory);
    file.write_all_at(&u64::MAX.to_le_bytes(), layout::process_page(RING)).unwrap();
    signals.write_all(&[SWITCH]).unwrap();
    assert_eq!(victim.recv(&mut [0]), Ok(0), "its peer gets the end");
    victim.close();
    // A repeated request is ignored: the stream continues.
    let ((mut signals, memory), victim) = by_hand(&world, 6001);
    signals.write_all(&[SWITCH; 3]).unwrap();
    let mut answer = [0];
    signals.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [SWITCH]);
    signals.write_all(b"plain").unwrap();
    let mut got = Vec::new();
    while got.len() < 5 {
        let mut piece = [0; 5];
        let len = victim.recv(&mut piece).unwrap();
        assert_ne!(len, 0, "the stream continues");
        got.extend_from_slice(&piece[..len]);
    }
    assert_eq!(got, b"plain");
    // Forged afterwards: the daemon's pump uses the ring now, so the stream ends once it is read.
    std::fs::File::from(memory).write_all_at(&[0xff; 64], layout::process_page(RING)).unwrap();
    let _ = signals.write_all(b"more");
    drop(signals);
    while !matches!(victim.recv(&mut [0; 4096]), Ok(0) | Err(_)) {}
    victim.close();
    // Floods the line, reads no answer and dies.
    let ((mut signals, _memory), victim) = by_hand(&world, 6002);
    signals.set_nonblocking(true).unwrap();
    while signals.write(&[SWITCH; 4096]).is_ok() {}
    drop(signals);
    while !matches!(victim.recv(&mut [0; 4096]), Ok(0) | Err(_)) {}
    victim.close();
    both_ways(&near, &far);
    drop(near);
    far.close();
    wait_until("nothing is left", || world.hypervisor.connections().is_empty());
    assert_eq!(world.stats.panics.get(), 0);
}

#[test]
fn one_process_has_so_many_sockets_and_no_more() {
    let world = World::with(Bounds { of_process: 10, ..Bounds::default() });
    let host = world.host();
    let held: Vec<Listener> = (0..10).map(|port| Listener::bind_by(&host, 2000 + port).unwrap()).collect();
    assert!(Listener::bind_by(&host, 3000).is_err());
    drop(held);
    wait_until("there is room again", || Listener::bind_by(&host, 3000).is_ok());
}

#[test]
fn datagrams_go_both_ways() {
    let world = World::new();
    let socket = Datagram::bind_by(&world.host(), 77).unwrap();
    let to = |port| vmlane_wire::vmci::Handle::new(2, port);
    assert_eq!(world.guest.driver(|driver| driver.send_to(to(77), 1234, b"hello")), 29);
    let mut bytes = [0; 100];
    assert_eq!(socket.recv_from(&mut bytes).unwrap(), (5, Address { cid: 3, port: 1234 }));
    assert_eq!(&bytes[..5], b"hello");
    let largest = vec![5; 69_608];
    socket.send_to(&largest, Address { cid: 3, port: 1234 }).unwrap();
    assert_eq!(world.guest.next_datagram().unwrap().payload, largest);
    assert!(socket.send_to(&[0; 69_609], Address { cid: 3, port: 1234 }).is_err());
    assert!(world.guest.driver(|driver| driver.send_to(to(78), 1234, b"absent")) < 0);
    drop(socket);
    wait_until("the port is free again", || Datagram::bind_by(&world.host(), 77).is_ok());
}
