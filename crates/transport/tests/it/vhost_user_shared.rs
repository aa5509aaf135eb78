//! Memory that a vhost-user front end shares for what is in flight and for dirty pages.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use vmlane_wire::vhost_user::{HEADER, Header, InflightArea, request};
use vmlane_wire::virtio::feature;
use zerocopy::{FromBytes, IntoBytes};

use crate::common::open_files;
use crate::vhost_user_world::*;

/// A reply with its descriptor.
fn reply_with_file(front: &mut Front, code: u32) -> (Vec<u8>, Option<OwnedFd>) {
    let mut bytes = vec![0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let mut into = [std::io::IoSliceMut::new(&mut bytes)];
    let flags = rustix::net::RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(&front.socket, &mut into, &mut control, flags).unwrap();
    let file = control.drain().find_map(|message| match message {
        rustix::net::RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let header = Header::read_from_bytes(&bytes[..HEADER]).unwrap();
    assert!(header.is_reply() && header.request.get() == code);
    (bytes[HEADER..got.bytes].to_vec(), file)
}

fn area(size: u64, offset: u64, rings: u16, ring_size: u16) -> Vec<u8> {
    let area = InflightArea {
        size: size.into(),
        offset: offset.into(),
        rings: rings.into(),
        ring_size: ring_size.into(),
    };
    area.as_bytes().to_vec()
}

#[test]
fn what_is_in_flight_is_noted_in_memory_of_the_front_end() {
    for padding in [0, 4] {
        let mut front = Front::with_memory();
        let asked = [&area(0, 0, 2, 16)[..], &vec![0; padding]].concat();
        front.send_request(request::GET_INFLIGHT_FD, &asked, &[]);
        let (answer, file) = reply_with_file(&mut front, request::GET_INFLIGHT_FD);
        assert_eq!(answer.len(), asked.len(), "front ends differ in the length that they want");
        let file = file.expect("a descriptor");
        let size = number(&answer[..8]);
        assert!(size >= 2 * 16 * 32 && rustix::fs::fstat(&file).unwrap().st_size as u64 == size);
        assert_eq!(front.ask(request::SET_INFLIGHT_FD, &answer, &[file.as_fd()]), 0);
        let _fds = front.start(0);
        front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]);
        let runs = front.journal.runs.lock();
        assert!(runs.last().unwrap().rings[0].as_ref().unwrap().record.is_some());
    }
}

/// CVE-2021-3839: numbers of rings and sizes that the memory for them does not have.
#[test]
fn cve_2021_3839_memory_in_flight_that_cannot_be() {
    let mut front = Front::with_memory();
    for (rings, size) in [(0, 16), (3, 16), (u16::MAX, 16), (1, 0), (1, 32769), (2, u16::MAX)] {
        front.send_request(request::GET_INFLIGHT_FD, &area(0, 0, rings, size), &[]);
        let (answer, file) = reply_with_file(&mut front, request::GET_INFLIGHT_FD);
        assert!(file.is_none() && answer.iter().all(|&byte| byte == 0), "{rings} rings of {size}");
    }
    let file = vmlane_mem::memfd("inflight", 8192).unwrap();
    for bad in [
        area(8192, 0, 0, 16),
        area(8192, 0, 3, 16),
        area(8192, 0, 2, 0),
        area(8192, 0, 2, 32768),
        area(u64::MAX, 0, 2, 32768),
        area(100, 0, 2, 16),
        area(8192, 1, 2, 16),
        area(8192, 8192, 2, 16),
        area(8192, u64::MAX - 4095, 2, 16),
        area(8192, 1 << 63, 2, 16),
    ] {
        assert_eq!(front.ask(request::SET_INFLIGHT_FD, &bad, &[file.as_fd()]), 1, "{bad:?}");
    }
    let good = area(8192, 0, 2, 16);
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &good, &[]), 1);
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &good, &[file.as_fd(), file.as_fd()]), 1);
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &good[..12], &[file.as_fd()]), 1);
    let pipe = rustix::pipe::pipe().unwrap().0;
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &good, &[pipe.as_fd()]), 1);
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &good, &[file.as_fd()]), 0);
    // A ring larger than was announced has no record, and runs.
    let _fds = front.start(0);
    front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]);
    assert_eq!(front.running(), [true, false]);
    front.alive();
}

/// CVE-2022-0669, for the messages that came later: their descriptors are closed, too.
#[test]
fn cve_2022_0669_descriptors_of_logs_and_records_do_not_leak() {
    let mut front = Front::with_memory();
    let file = vmlane_mem::memfd("shared", 8192).unwrap();
    let log = [8192u64.to_le_bytes(), [0; 8]].concat();
    for _ in 0..50 {
        assert_eq!(front.ask(request::SET_INFLIGHT_FD, &area(8192, 0, 2, 16), &[file.as_fd()]), 0);
        assert_eq!(front.ask(request::SET_INFLIGHT_FD, &area(1, 0, 2, 16), &[file.as_fd()]), 1);
        assert_eq!(front.ask(request::SET_LOG_BASE, &log, &[file.as_fd()]), 0);
        assert_eq!(front.ask(request::SET_LOG_BASE, &log, &[file.as_fd(), file.as_fd()]), 1);
        assert_eq!(front.ask(request::SET_LOG_FD, &[], &[file.as_fd()]), 0);
        front.send_request(request::GET_INFLIGHT_FD, &area(0, 0, 2, 16), &[file.as_fd()]);
        drop(reply_with_file(&mut front, request::GET_INFLIGHT_FD));
    }
    assert_eq!(open_files("shared"), 1, "ours");
    front.alive();
}

#[test]
fn dirty_pages_are_logged_while_the_front_end_wants_it() {
    let mut front = Front::with_memory();
    let _fds = front.start(0);
    front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]);
    let logs = |front: &Front| {
        let runs = front.journal.runs.lock();
        runs.last().unwrap().rings[0].as_ref().unwrap().log.clone()
    };
    let file = vmlane_mem::memfd("log", 4096).unwrap();
    let base = |size: u64, offset: u64| [size.to_le_bytes(), offset.to_le_bytes()].concat();
    for (size, offset) in
        [(0, 0), (7, 0), (4104, 0), (u64::MAX, 0), (4096, 8), (4096, 4096), (8, u64::MAX - 4095)]
    {
        assert_eq!(
            front.ask(request::SET_LOG_BASE, &base(size, offset), &[file.as_fd()]),
            1,
            "{size} {offset}"
        );
    }
    assert_eq!(front.ask(request::SET_LOG_BASE, &base(4096, 0), &[]), 1);
    // Answered even if no answer was requested.
    front.send_request(request::SET_LOG_BASE, &base(4096, 0), &[file.as_fd()]);
    assert_eq!(number(&front.reply(request::SET_LOG_BASE)), 0);
    assert!(logs(&front).is_none(), "not yet");
    let with = FEATURES | feature::PROTOCOL_FEATURES | feature::LOG_ALL;
    assert_eq!(front.ask(request::SET_FEATURES, with.as_bytes(), &[]), 0);
    logs(&front).expect("a log").mark(5 << 12, 1);
    let map = vmlane_mem::Window::over_file(&file, 4096).unwrap();
    assert_eq!(map.load_u32(0), 1 << 5);
    let without = FEATURES | feature::PROTOCOL_FEATURES;
    assert_eq!(front.ask(request::SET_FEATURES, without.as_bytes(), &[]), 0);
    assert!(logs(&front).is_none());
    front.alive();
}

/// A front end that cuts its shared memory short loses its own session only.
#[test]
fn shared_memory_that_is_cut_short_ends_the_session() {
    let mut front = Front::with_memory();
    let file = rustix::fs::memfd_create("cut", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &area(8192, 0, 2, 16), &[file.as_fd()]), 0);
    rustix::fs::ftruncate(&file, 0).unwrap();
    let _fds = front.start(0);
    // Its records are examined when the ring starts.
    front.send_request(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]);
    assert!(front.session.join().unwrap().contains("shorter"));
}
