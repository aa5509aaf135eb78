//! A vhost-user session: the order that front ends keep, every order they do not, and messages that
//! make no sense.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use vmlane_device::virtio::vhost::Lines;
use vmlane_guestsim::{eventfd, signals};
use vmlane_wire::vhost_user::{Header, MemoryRegion, protocol, request};
use vmlane_wire::virtio::feature;
use zerocopy::IntoBytes;

use crate::common::open_files;
use crate::vhost_user_world::*;

#[test]
fn rings_run_once_all_is_set_and_stop_with_their_position() {
    let mut front = Front::with_memory();
    let [kick, call] = front.start(0);
    assert_eq!(front.running(), [false; 2], "not enabled");
    assert_eq!(front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]), 0);
    assert_eq!(front.running(), [true, false]);
    {
        let runs = front.journal.runs.lock();
        let ring = runs.last().unwrap().rings[0].clone().unwrap();
        assert_eq!((ring.size, ring.descriptors, ring.driver, ring.device), (16, 0, 0x1000, 0x2000));
    }
    front.lines.call(0);
    front.lines.call(1);
    assert_eq!(signals(&call), 1);
    // A kick is reported until it is cleared.
    let kicked = || {
        let mut files = [rustix::event::PollFd::from_borrowed_fd(
            front.lines.doorbell().unwrap(),
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut files, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap()
            == 1
    };
    front.lines.clear();
    assert!(!kicked());
    rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
    assert!(kicked());
    front.lines.clear();
    assert!(!kicked());
    let base = front.get(request::GET_VRING_BASE, state(0, 0).as_bytes());
    assert_eq!(base, state(0, 7).as_bytes());
    assert_eq!(front.running(), [false; 2]);
    assert_eq!(front.close(), "the peer closed the connection");
}

/// What `vmlane status` calls booting and stopped.
#[test]
fn whether_a_driver_has_run_its_rings_is_known_until_the_device_is_reset() {
    let mut front = Front::with_memory();
    for _ in 0..2 {
        let _fds = front.start(0);
        assert!(!front.stats.has_run(), "it is not enabled");
        assert_eq!(front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]), 0);
        assert!(front.stats.has_run() && front.running()[0]);
        front.get(request::GET_VRING_BASE, state(0, 0).as_bytes());
        assert!(front.stats.has_run() && !front.running()[0]);
        assert_eq!(front.ask(request::RESET_DEVICE, &[], &[]), 0);
        assert!(!front.stats.has_run());
    }
    let _fds = front.start(0);
    assert_eq!(front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]), 0);
    let stats = front.stats.clone();
    assert!(stats.has_run());
    front.close();
    assert!(!stats.has_run());
}

/// User Mode Linux, whose driver is unloaded and loaded again: rings are disabled, and never asked for their
/// position. A packed ring begins at 0 each time, which means the first lap.
#[test]
fn a_driver_that_is_loaded_anew_sets_up_rings_that_are_disabled_and_were_never_stopped() {
    let mut front = Front::with_memory();
    let packed = FEATURES | feature::PROTOCOL_FEATURES | feature::PACKED;
    assert_eq!(front.ask(request::SET_FEATURES, packed.as_bytes(), &[]), 0);
    let _first: Vec<_> = [0, 1].map(|index| front.start(index)).into();
    for index in [0, 1] {
        assert_eq!(front.ask(request::SET_VRING_ENABLE, state(index, 1).as_bytes(), &[]), 0);
    }
    assert_eq!(front.running(), [true; 2]);
    for code in [request::SET_VRING_NUM, request::SET_VRING_BASE] {
        assert_eq!(front.ask(code, state(0, 8).as_bytes(), &[]), 1, "not while it runs");
    }
    for index in [1, 0] {
        assert_eq!(front.ask(request::SET_VRING_ENABLE, state(index, 0).as_bytes(), &[]), 0);
    }
    assert_eq!(front.running(), [false; 2]);
    assert_eq!(front.set_memory(&[region(0, MEMORY, USER, 0)], 1), 0);
    for index in [0, 1] {
        let _again = front.start(index);
        assert_eq!(front.ask(request::SET_VRING_NUM, state(index, 8).as_bytes(), &[]), 0);
        assert_eq!(front.ask(request::SET_VRING_BASE, state(index, 0).as_bytes(), &[]), 0);
        assert_eq!(front.ask(request::SET_VRING_ENABLE, state(index, 1).as_bytes(), &[]), 0);
    }
    assert_eq!(front.running(), [true; 2]);
    let runs = front.journal.runs.lock();
    let position = &runs.last().unwrap().rings[1].as_ref().unwrap().position;
    assert_eq!(position.load(std::sync::atomic::Ordering::SeqCst), 0x8000_8000);
}

#[test]
fn a_running_ring_goes_on_in_new_memory() {
    let mut front = Front::with_memory();
    let _fds = front.start(1);
    front.ask(request::SET_VRING_ENABLE, state(1, 1).as_bytes(), &[]);
    // The same addresses of the front end mean other ones of the guest now.
    assert_eq!(front.set_memory(&[region(0x100000, MEMORY, USER, 0)], 1), 0);
    let descriptors = front.journal.runs.lock().last().unwrap().rings[1].clone().unwrap().descriptors;
    assert_eq!(descriptors, 0x100000);
    // Gone: the ring does not run.
    assert_eq!(front.set_memory(&[], 0), 0);
    assert_eq!(front.running(), [false; 2]);
    let one = |region: MemoryRegion| [&[0; 8][..], region.as_bytes()].concat();
    let file = vmlane_mem::memfd("guest", MEMORY).unwrap();
    let added = one(region(0x200000, MEMORY, USER, 0));
    assert_eq!(front.ask(request::ADD_MEM_REG, &added, &[file.as_fd()]), 0);
    assert_eq!(front.running(), [false, true]);
    assert_eq!(front.ask(request::ADD_MEM_REG, &added, &[file.as_fd()]), 1, "there is one already");
    assert_eq!(front.ask(request::ADD_MEM_REG, &added, &[]), 1);
    assert_eq!(front.ask(request::REM_MEM_REG, &one(region(0, MEMORY, USER, 0)), &[]), 1);
    assert_eq!(front.ask(request::REM_MEM_REG, &added, &[]), 0);
    assert_eq!(front.running(), [false; 2]);
}

/// CVE-2018-1059, CVE-2020-10722: regions whose sums overflow, that overlap, that their file lacks.
#[test]
fn cve_2020_10722_memory_that_cannot_be() {
    let mut front = Front::agreed();
    let max = !0xfffu64;
    for bad in [
        region(0, 0, USER, 0),
        region(0, MEMORY + 0x1000, USER, 0),
        region(0, MEMORY, USER, 0x1000),
        region(0, 0x1000, USER, max),
        region(max, 0x2000, USER, 0),
        region(0, 0x2000, u64::MAX - 0x1000, 0),
        region(0, max, USER, 0x1000),
        region(1, 0x1000, USER, 0),
    ] {
        assert_eq!(front.set_memory(&[bad], 1), 1, "{bad:?}");
    }
    let (a, b) = (region(0, 0x2000, USER, 0), region(0x1000, 0x1000, USER + 0x10000, 0));
    assert_eq!(front.set_memory(&[a, b], 2), 1, "the guest's addresses overlap");
    assert_eq!(front.set_memory(&[a, region(0x8000, 0x1000, USER + 0x1000, 0)], 2), 1, "the front end's do");
    assert_eq!(front.set_memory(&vec![a; 9], 8), 1, "nine");
    front.alive();
}

/// CVE-2019-14818, CVE-2022-0669: descriptors too many, too few, where none belong: all are closed.
#[test]
fn cve_2022_0669_descriptors_do_not_leak() {
    let mut front = Front::with_memory();
    let file = vmlane_mem::memfd("surplus", 4096).unwrap();
    for _ in 0..50 {
        assert_eq!(front.set_memory(&[region(0, MEMORY, USER, 0)], 3), 1);
        assert_eq!(front.set_memory(&[region(0, MEMORY, USER, 0)], 0), 1);
        assert_eq!(front.ask(request::SET_OWNER, &[], &[file.as_fd(); 8]), 0);
        assert_eq!(front.ask(request::SET_VRING_KICK, 0u64.as_bytes(), &[file.as_fd(), file.as_fd()]), 1);
        assert_eq!(front.ask(request::SET_VRING_KICK, 0x100u64.as_bytes(), &[file.as_fd()]), 1);
        // Not an eventfd: a write to it could block.
        assert_eq!(front.ask(request::SET_VRING_CALL, 0u64.as_bytes(), &[file.as_fd()]), 1);
        assert_eq!(front.ask(9999, &[], &[file.as_fd()]), 1);
    }
    assert_eq!(open_files("surplus"), 1, "ours");
    front.alive();
}

/// User Mode Linux receives calls through a socket. If it does not read them, it loses calls, and we lose no
/// time.
#[test]
fn calls_go_to_a_local_stream_socket_and_never_wait() {
    let mut front = Front::with_memory();
    let (mut kicked, call) = UnixStream::pair().unwrap();
    assert_eq!(front.ask(request::SET_VRING_CALL, 0u64.as_bytes(), &[call.as_fd()]), 0);
    front.lines.call(0);
    let mut word = [0; 8];
    kicked.read_exact(&mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 1);
    // Blocking, as its owner may make it at any time.
    call.set_nonblocking(false).unwrap();
    for _ in 0..1 << 16 {
        front.lines.call(0);
    }
    drop(kicked);
    front.lines.call(0);

    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (datagrams, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    for code in [request::SET_VRING_CALL, request::SET_VRING_ERR] {
        assert_eq!(front.ask(code, 0u64.as_bytes(), &[tcp.as_fd()]), 1);
        assert_eq!(front.ask(code, 0u64.as_bytes(), &[datagrams.as_fd()]), 1);
    }
    assert_eq!(front.ask(request::SET_VRING_KICK, 0u64.as_bytes(), &[call.as_fd()]), 1);
    front.alive();
}

/// The socket for a back end's requests is held as long as the session, so that its end announces the
/// session's.
#[test]
fn the_socket_for_questions_lives_as_long_as_the_session() {
    let mut front = Front::agreed();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    assert_eq!(front.ask(request::SET_BACKEND_REQ_FD, &[], &[]), 1);
    assert_eq!(front.ask(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd(), theirs.as_fd()]), 1);
    assert_eq!(front.ask(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]), 0);
    drop(theirs);
    ours.set_nonblocking(true).unwrap();
    let nothing = ours.read(&mut [0; 8]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    front.close();
    assert_eq!(ours.read(&mut [0; 8]).unwrap(), 0);
}

/// CVE-2020-10723: ring numbers and sizes out of range, in every message that has one.
#[test]
fn cve_2020_10723_rings_that_do_not_exist() {
    let mut front = Front::with_memory();
    let fd = eventfd().unwrap();
    for ring in [2, 255, u32::MAX] {
        for code in [request::SET_VRING_NUM, request::SET_VRING_BASE, request::SET_VRING_ENABLE] {
            assert_eq!(front.ask(code, state(ring, 1).as_bytes(), &[]), 1);
        }
        assert_eq!(front.ask(request::SET_VRING_ADDR, address(ring, USER).as_bytes(), &[]), 1);
        assert_eq!(front.get(request::GET_VRING_BASE, state(ring, 0).as_bytes()), [0; 8]);
    }
    for code in [request::SET_VRING_KICK, request::SET_VRING_CALL, request::SET_VRING_ERR] {
        assert_eq!(front.ask(code, 2u64.as_bytes(), &[fd.as_fd()]), 1);
        assert_eq!(front.ask(code, 0xffu64.as_bytes(), &[fd.as_fd()]), 1);
    }
    for size in [0, 32769, u32::MAX] {
        assert_eq!(front.ask(request::SET_VRING_NUM, state(0, size).as_bytes(), &[]), 1);
    }
    front.alive();
}

#[test]
fn a_ring_that_runs_keeps_its_size_and_position() {
    let mut front = Front::with_memory();
    let _fds = front.start(0);
    front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]);
    for code in [request::SET_VRING_NUM, request::SET_VRING_BASE] {
        assert_eq!(front.ask(code, state(0, 8).as_bytes(), &[]), 1);
    }
    assert_eq!(front.ask(request::SET_VRING_ADDR, address(0, USER + MEMORY).as_bytes(), &[]), 0);
    assert_eq!(front.running(), [false; 2], "its addresses are nowhere");
    front.alive();
}

#[test]
fn payloads_too_short_in_every_state() {
    for front in [Front::new, Front::agreed, Front::with_memory] {
        let mut front = front();
        for code in 0..64 {
            front.send_request(code, &[], &[]);
            front.send_request(code, &[1, 2, 3], &[]);
        }
        // Some of them were answered; what matters is that the session continues.
        front.message(request::SET_PROTOCOL_FEATURES, protocol::REPLY_ACK.as_bytes(), &[], false);
        front.message(9999, &[], &[], true);
        while front.any_reply().0 != 9999 {}
        front.alive();
        assert_eq!(front.close(), "the peer closed the connection");
    }
}

#[test]
fn configuration_space_is_read_inside_its_bounds() {
    let mut front = Front::agreed();
    let config = |offset: u32, size: u32, bytes: usize| {
        [&offset.to_le_bytes()[..], &size.to_le_bytes(), &[0; 4], &vec![0; bytes]].concat()
    };
    assert_eq!(front.get(request::GET_CONFIG, &config(1, 4, 4))[12..], [2, 3, 0, 0]);
    for (offset, size, bytes) in [(0, 257, 257), (255, 2, 2), (u32::MAX, 1, 1), (0, u32::MAX, 4), (0, 4, 3)] {
        assert!(front.get(request::GET_CONFIG, &config(offset, size, bytes)).is_empty());
    }
    assert_eq!(front.ask(request::NET_SET_MTU, 1500u64.as_bytes(), &[]), 0);
    assert_eq!(front.ask(request::NET_SET_MTU, 0x1_05dcu64.as_bytes(), &[]), 1);
    assert_eq!(front.ask(request::SET_FEATURES, u64::MAX.as_bytes(), &[]), 1);
    assert_eq!(front.ask(request::SET_PROTOCOL_FEATURES, u64::MAX.as_bytes(), &[]), 1);
    assert_eq!(number(&front.get(request::GET_QUEUE_NUM, &[])), 2);
    front.alive();
}

#[test]
fn a_front_end_has_its_guest_announced() {
    let mut front = Front::agreed();
    let offered = number(&front.get(request::GET_PROTOCOL_FEATURES, &[]));
    assert_ne!(offered & protocol::RARP, 0);
    let address = u64::from_le_bytes([0x52, 0x54, 0, 0, 0, 3, 0, 0]);
    assert_eq!(front.ask(request::SEND_RARP, address.as_bytes(), &[]), 0);
    assert_eq!(*front.journal.announced.lock(), 1);
    assert_eq!(front.ask(request::SEND_RARP, &[1, 2, 3], &[]), 1, "no address");
    assert_eq!(*front.journal.announced.lock(), 1);
    assert_eq!(front.running(), [false; 2]);
    front.alive();
}

#[test]
fn streams_that_make_no_sense_end_the_session() {
    let long = Header::request(1, 2000, false);
    let reply = Header::reply(1, 0);
    let mut version = Header::request(1, 0, false).as_bytes().to_vec();
    version[4] = 2;
    for (bytes, why) in [
        (long.as_bytes(), "2000 bytes"),
        (reply.as_bytes(), "no request"),
        (&version[..], "no request"),
        (&version[..5], "inside a message"),
        (Header::request(1, 8, false).as_bytes(), "inside a message"),
    ] {
        let front = Front::agreed();
        front.send(bytes, &[]);
        front.socket.shutdown(std::net::Shutdown::Write).unwrap();
        let end = front.session.join().unwrap();
        assert!(end.contains(why), "{end}");
        assert_eq!(front.stats.snapshot().iter().find(|(name, _)| *name == "protocol_errors").unwrap().1, 1);
        assert!(*front.journal.stops.lock() > 0, "nothing runs any more");
    }
}

#[test]
fn a_panic_stops_the_device_and_nothing_else() {
    let mut front = Front::with_memory();
    let _fds = front.start(0);
    *front.journal.panics.lock() = true;
    assert_eq!(front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]), 1);
    assert_eq!(front.stats.snapshot().iter().find(|(name, _)| *name == "panics").unwrap().1, 1);
    front.alive();
    front.ask(request::SET_VRING_ENABLE, state(1, 1).as_bytes(), &[]);
    assert_eq!(front.running(), [true, false], "it runs again as soon as anything changes");
}

#[test]
fn without_protocol_features_rings_need_no_enabling() {
    let front = Front::new();
    front.send_request(request::SET_FEATURES, FEATURES.as_bytes(), &[]);
    let file = vmlane_mem::memfd("guest", MEMORY).unwrap();
    let table = [&1u32.to_le_bytes()[..], &[0; 4], region(0, MEMORY, USER, 0).as_bytes()].concat();
    front.send_request(request::SET_MEM_TABLE, &table, &[file.as_fd()]);
    front.send_request(request::SET_VRING_NUM, state(0, 16).as_bytes(), &[]);
    front.send_request(request::SET_VRING_ADDR, address(0, USER).as_bytes(), &[]);
    let kick = eventfd().unwrap();
    front.send_request(request::SET_VRING_KICK, 0u64.as_bytes(), &[kick.as_fd()]);
    let mut front = front;
    front.alive();
    assert_eq!(front.running(), [true, false]);
}

/// Every message with bytes of any kind, in every state, with descriptors and without.
#[test]
fn malformed_messages_in_every_state() {
    for (round, front) in [Front::new, Front::agreed, Front::with_memory].into_iter().enumerate() {
        let front = front();
        let file = vmlane_mem::memfd("any", 4096).unwrap();
        let drain = front.socket.try_clone().unwrap();
        drain.set_read_timeout(None).unwrap();
        let drained = std::thread::spawn(move || {
            let (mut drain, mut sink) = (drain, [0; 4096]);
            while drain.read(&mut sink).is_ok_and(|count| count > 0) {}
        });
        let mut random = 0x9e37_79b9_7f4a_7c15u64 + round as u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for _ in 0..4000 {
            let len = next() as usize % 72;
            // Small numbers are the ones that mean something.
            let payload: Vec<u8> =
                (0..len).map(|at| if next() % 3 > 0 && at % 8 > 0 { 0 } else { next() as u8 }).collect();
            let fds = vec![file.as_fd(); if next() % 2 == 0 { next() as usize % 4 } else { 0 }];
            front.message((next() % 45) as u32, &payload, &fds, next() % 2 == 0);
        }
        front.socket.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(front.session.join().unwrap(), "the peer closed the connection");
        front.socket.shutdown(std::net::Shutdown::Both).unwrap();
        drained.join().unwrap();
        let panics = front.stats.snapshot().iter().find(|(name, _)| *name == "panics").unwrap().1;
        assert_eq!(panics, 0);
    }
}
