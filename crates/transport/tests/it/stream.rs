//! The byte stream itself: pieces, heaps, descriptors, silence where none is wanted, and malformed content.

use std::io::Write;
use std::os::fd::AsFd;
use std::time::Duration;

use proptest::prelude::*;
use vmlane_device::irq::{Interrupts, IrqMode};
use vmlane_guestsim::eventfd;
use vmlane_guestsim::vfio_user::access;
use vmlane_wire::vfio_user::{Command, Header, MAX_MESSAGE, SetIrqs, irq_index};
use zerocopy::IntoBytes;

use crate::common::{Fixture, PANIC, Seen, open_files};

fn read_request(f: &mut Fixture, offset: u64) -> Vec<u8> {
    f.vmm.message(Command::RegionRead.code(), access(2, offset, 4).as_bytes(), false)
}

fn msix_request(f: &mut Fixture, vector: u32) -> Vec<u8> {
    let flags = SetIrqs::DATA_EVENTFD | SetIrqs::TRIGGER;
    let words = [20, flags, irq_index::MSIX, vector, 1];
    let payload: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    f.vmm.message(Command::SetIrqs.code(), &payload, false)
}

#[test]
fn one_byte_at_a_time() {
    let mut f = Fixture::start();
    for (offset, value) in [(0x100, 7u32), (0x104, 8)] {
        let payload = [access(2, offset, 4).as_bytes(), &value.to_le_bytes()].concat();
        for byte in f.vmm.message(Command::RegionWrite.code(), &payload, false) {
            f.vmm.send(&[byte], &[]).unwrap();
        }
        assert!(!f.vmm.receive().unwrap().0.failed());
        assert_eq!(f.vmm.read_u32(2, offset).unwrap(), value);
    }
}

#[test]
fn fifty_messages_in_one_write_are_answered_in_order() {
    let mut f = Fixture::start();
    let heap: Vec<u8> = (0..50).flat_map(|_| read_request(&mut f, 0x100)).collect();
    f.vmm.send(&heap, &[]).unwrap();
    let ids: Vec<u16> = (0..50).map(|_| f.vmm.receive().unwrap().0.id.get()).collect();
    assert!(ids.windows(2).all(|pair| pair[1] == pair[0] + 1), "{ids:?}");
    f.assert_alive();
}

#[test]
fn messages_cut_anywhere_and_larger_than_a_read_arrive_whole() {
    let mut f = Fixture::start();
    let mut heap = Vec::new();
    for _ in 0..40 {
        let payload = [access(2, 0x1000, 4096).as_bytes(), &[0xa5; 4096]].concat();
        heap.extend(f.vmm.message(Command::RegionWrite.code(), &payload, true));
    }
    for piece in heap.chunks(1777) {
        f.vmm.send(piece, &[]).unwrap();
    }
    assert_eq!(f.vmm.read_u32(2, 0x1ffc).unwrap(), 0xa5a5_a5a5);
    assert_eq!(f.counted("posted_writes"), 40);
}

#[test]
fn descriptors_belong_to_the_last_message_begun_in_their_read() {
    let mut f = Fixture::start();
    let fd = eventfd().unwrap();
    // A read request, then SET_IRQS, in one piece with the descriptor.
    let both = [read_request(&mut f, 0), msix_request(&mut f, 0)].concat();
    f.vmm.send(&both, &[fd.as_fd()]).unwrap();
    assert!(!f.vmm.receive().unwrap().0.failed());
    assert!(!f.vmm.receive().unwrap().0.failed());
    assert_eq!(f.irqs.mode(), IrqMode::Msix { vectors: 1 });

    // The descriptor with the first byte, the rest later and together with other messages.
    let (request, next) = (msix_request(&mut f, 1), msix_request(&mut f, 2));
    f.vmm.send(&request[..1], &[fd.as_fd()]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let rest = [&request[1..], &read_request(&mut f, 0), &next].concat();
    f.vmm.send(&rest, &[fd.as_fd()]).unwrap();
    for _ in 0..3 {
        assert!(!f.vmm.receive().unwrap().0.failed());
    }
    assert_eq!(f.irqs.mode(), IrqMode::Msix { vectors: 3 });
}

#[test]
fn back_to_back_messages_with_descriptors_keep_their_own() {
    let mut f = Fixture::start();
    for _ in 0..20 {
        let fd = eventfd().unwrap();
        for vector in 0..3 {
            let request = msix_request(&mut f, vector);
            f.vmm.send(&request, &[fd.as_fd()]).unwrap();
            let plain = read_request(&mut f, 0);
            f.vmm.send(&plain, &[]).unwrap();
        }
        for _ in 0..6 {
            assert!(!f.vmm.receive().unwrap().0.failed());
        }
        assert_eq!(f.irqs.mode(), IrqMode::Msix { vectors: 3 });
        f.vmm.disable_irqs(irq_index::MSIX).unwrap();
    }
}

#[test]
fn surplus_descriptors_are_closed() {
    let mut f = Fixture::start();
    let file = vmlane_mem::memfd("many", 4096).unwrap();
    for count in [1, 16, 17, 60, 60, 60, 60, 60, 60, 60] {
        let request = read_request(&mut f, 0);
        f.vmm.send(&request, &vec![file.as_fd(); count]).unwrap();
        assert!(!f.vmm.receive().unwrap().0.failed());
    }
    // More with every byte of one message.
    for byte in read_request(&mut f, 0) {
        f.vmm.send(&[byte], &[file.as_fd(), file.as_fd()]).unwrap();
    }
    assert!(!f.vmm.receive().unwrap().0.failed());
    assert!(f.counted("surplus_fds") > 0);
    f.assert_alive();
    assert_eq!(open_files("many"), 1, "ours");
}

#[test]
fn no_reply_means_no_reply_whatever_happens() {
    let mut f = Fixture::start();
    f.vmm.post(2, 0x100, &[1]).unwrap();
    f.vmm.post(2, 0x9999, &[1]).unwrap();
    f.vmm.post(2, PANIC, &[1]).unwrap();
    for command in [0, 1, 2, 5, 8, 9, 13, 14, 15, 99] {
        let message = f.vmm.message(command, &[0xff; 3], true);
        f.vmm.send(&message, &[]).unwrap();
    }
    // The next thing to arrive is the answer to this.
    f.assert_alive();
    let seen = f.journal.take();
    assert_eq!(seen[0], Seen::Write { region: 2, offset: 0x100, data: vec![1], posted: true });
    assert_eq!((f.counted("posted_writes"), f.counted("panics")), (3, 1));
}

#[test]
fn malformed_requests_are_refused_and_forgotten() {
    let mut f = Fixture::start();
    let short_write = [access(2, 0, 8).as_bytes(), &[0; 4]].concat();
    let long_write = [access(2, 0, 4).as_bytes(), &[0; 8]].concat();
    let cases: [(u16, &[u8], u32); 22] = [
        (0, &[], 38),
        (15, &[0; 40], 38),
        (16, &[0; 40], 38),
        (u16::MAX, &[0; 60000], 38),
        (1, &[], 22),
        (1, &[0, 0, 0], 22),
        (1, &[1, 0, 0, 0], 22),
        (1, b"\0\0\0\0{\"capabilities\":", 22),
        (1, b"\0\0\0\0\xff\xfe\0", 22),
        (1, b"\0\0\0\0a\0b\0", 22),
        (2, &[0; 31], 22),
        (3, &[0; 23], 22),
        (3, &[0xff; 24], 22),
        (4, &[0; 15], 22),
        (5, &[0; 8], 22),
        (6, &[0; 16], 95),
        (7, &[0xff; 16], 22),
        (8, &[0; 19], 22),
        (9, &[0; 15], 22),
        (10, &short_write, 22),
        (10, &long_write, 22),
        (11, &[0; 16], 95),
    ];
    for (command, payload, errno) in cases {
        let refused = f.vmm.request(command, payload, &[]).unwrap_err();
        assert_eq!(refused.errno(), Some(errno), "command {command} with {} bytes: {refused}", payload.len());
        f.assert_alive();
    }
    for (command, errno) in [(12, 95), (14, 95)] {
        assert_eq!(f.vmm.request(command, &[0; 64], &[]).unwrap_err().errno(), Some(errno));
    }
    assert!(f.vmm.request(1, &[0, 0, 9, 0], &[]).is_ok(), "a version without data");
    assert!(f.vmm.request(1, b"\0\0\0\0not json\0", &[]).is_ok(), "capabilities are not examined");
    assert!(f.journal.take().is_empty());
}

#[test]
fn odd_message_types() {
    let mut f = Fixture::start();
    let mut bytes = read_request(&mut f, 0);
    bytes[8] = 1;
    f.vmm.send(&bytes, &[]).unwrap();
    f.assert_alive();
    bytes[8] = 5;
    f.vmm.send(&bytes, &[]).unwrap();
    let (header, _) = f.vmm.receive().unwrap();
    assert!(header.failed() && header.error.get() == 22);
    f.assert_alive();
}

#[test]
fn a_stream_that_makes_no_sense_ends_with_the_reason() {
    let sized = |size: u32| {
        let mut header = Header::request(1, 9, 0, false);
        header.size = size.into();
        header
    };
    for (size, reason) in [
        (0, "message size 0 is less than its header, 16 bytes".to_owned()),
        (15, "message size 15 is less".to_owned()),
        (u32::MAX, format!("message size 4294967295 exceeds the bound of {MAX_MESSAGE} bytes")),
        (MAX_MESSAGE as u32 + 1, format!("message size {} exceeds", MAX_MESSAGE + 1)),
    ] {
        let f = Fixture::start();
        f.vmm.send(sized(size).as_bytes(), &[]).unwrap();
        let end = f.session.join().unwrap().to_string();
        assert!(end.contains(&reason), "{size}: {end}");
        assert_eq!(f.stats.counts.protocol_errors.get(), 1);
    }
    let mut f = Fixture::start();
    let whole = read_request(&mut f, 0);
    f.vmm.send(&whole[..20], &[]).unwrap();
    assert!(f.close().contains("end of stream after 20 bytes"));
}

#[test]
fn a_peer_that_never_reads_blocks_only_its_own_session_which_can_still_be_stopped() {
    let mut f = Fixture::start();
    f.vmm.stream().set_nonblocking(true).unwrap();
    let heap: Vec<u8> = (0..100).flat_map(|_| read_request(&mut f, 0x100)).collect();
    // Until neither end takes any more: the session is blocked answering, or about to be.
    let mut full = 0;
    while full < 5 {
        match f.vmm.stream().write(&heap) {
            Ok(written) => full = usize::from(written == 0),
            Err(_) => {
                full += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    f.handle.stop();
    assert_eq!(f.session.join().unwrap().to_string(), "stopped");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random bytes: the session ends or waits, and nothing panics.
    #[test]
    fn random_bytes_end_nothing_but_the_session(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let f = Fixture::start();
        // The session may have closed already.
        let _ = f.vmm.stream().write_all(&bytes);
        let panics = f.stats.clone();
        f.close();
        prop_assert_eq!(panics.panics(), 0);
    }

    /// Well-framed messages with random content, cut at random: the session answers to the end.
    #[test]
    fn random_requests_are_all_survived(
        messages in prop::collection::vec(
            (0u16..20, prop::collection::vec(prop_oneof![Just(0u8), Just(1), 0u8..8, any::<u8>()], 0..80), any::<bool>(), 0usize..4),
            1..30,
        ),
        cut in 1usize..200,
    ) {
        let mut f = Fixture::start();
        let fd = vmlane_mem::memfd("random", 0x10000).unwrap();
        let mut wanted = 0;
        for (command, payload, quiet, fds) in messages {
            let message = f.vmm.message(command, &payload, quiet);
            let head = cut.min(message.len());
            f.vmm.send(&message[..head], &vec![fd.as_fd(); fds]).unwrap();
            if head < message.len() {
                f.vmm.send(&message[head..], &[]).unwrap();
            }
            wanted += usize::from(!quiet);
        }
        for _ in 0..wanted {
            f.vmm.receive().unwrap();
        }
        f.assert_alive();
        prop_assert_eq!(f.close(), "the peer closed the connection");
    }
}
