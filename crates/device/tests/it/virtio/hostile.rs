//! What no driver would do to a virtio NIC's rings. Named after what it did to others.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use vmlane_device::virtio::vhost::{RingSetup, Setup, VhostDevice};
use vmlane_guestsim::virtio::{into, out};
use vmlane_port::{DropReason, Offload, RxFrame};
use vmlane_wire::virtio::{desc, feature};

use super::{ALL, Frame, HEADER, KINDS, MODERN, Nic, pieces};

/// The transmit ring stands still, and has reported it.
fn stands_still(mut nic: Nic) {
    assert_eq!(nic.sent(), None);
    assert_eq!(nic.lines.failures.load(Ordering::SeqCst), 1);
    assert_eq!(nic.stats().drop_bad_descriptor.get(), 1);
    assert_eq!(nic.sent(), None);
    assert_eq!(nic.lines.failures.load(Ordering::SeqCst), 1, "reported once");
    // The other ring continues.
    nic.post_buffer(400);
    nic.deliver(&Frame::new(100), |packet| packet).unwrap();
    assert!(nic.rx.take().is_some());
}

/// Descriptors that the rings made the device read in vain.
fn in_vain(nic: &Nic) -> usize {
    nic.with(|end| end.info().overhead.take())
}

#[test]
fn descriptors_read_in_vain_are_counted_and_those_of_ordinary_frames_are_not() {
    for kind in KINDS {
        let mut nic = Nic::new(ALL | kind);
        let page = nic.bytes(&[0; 4096]);
        // Ordinary frames, each way.
        nic.tx.post(&pieces(page, page, 1000));
        assert!(nic.sent().is_some());
        for _ in 0..2 {
            nic.post_buffer(1500);
        }
        nic.deliver(&Frame::new(1400), |packet| packet).unwrap();
        assert_eq!(in_vain(&nic), 0);
        // A chain that is no frame: nothing in a thousand pieces.
        nic.tx.post_indirect(&[out(page, 0); 1000]);
        assert_eq!(nic.sent(), None);
        assert!((1000..1100).contains(&in_vain(&nic)));
        // Buffers in pieces of a byte each.
        let mut nic = Nic::new(ALL | kind);
        for _ in 0..15 {
            nic.rx.post_indirect(&[into(page, 1); 400]);
        }
        let refused = nic.deliver(&Frame::new(1514), |packet| RxFrame { aggregate: None, ..packet });
        assert_eq!(refused, Err(DropReason::NoRoom), "more pieces than a frame may take");
        assert!((1100..1300).contains(&in_vain(&nic)));
    }
}

#[test]
fn an_index_beyond_the_ring() {
    let nic = Nic::new(ALL);
    nic.tx.driver.store_u16(2, 17);
    stands_still(nic);
}

#[test]
fn a_head_that_does_not_exist() {
    let mut nic = Nic::new(ALL);
    nic.tx.publish(16);
    stands_still(nic);
    let mut nic = Nic::new(ALL);
    nic.tx.publish(u16::MAX);
    stands_still(nic);
}

#[test]
fn a_chain_that_comes_back_to_itself() {
    let mut nic = Nic::new(ALL);
    let page = nic.bytes(&[0; 100]);
    nic.tx.write_split(0, page, 100, desc::NEXT, 1);
    nic.tx.write_split(1, page, 100, desc::NEXT, 0);
    nic.tx.publish(0);
    stands_still(nic);
    let mut nic = Nic::new(ALL);
    nic.tx.write_split(0, page, 100, desc::NEXT, 0);
    nic.tx.publish(0);
    stands_still(nic);
}

#[test]
fn a_next_that_does_not_exist() {
    let mut nic = Nic::new(ALL);
    let page = nic.bytes(&[0; 100]);
    nic.tx.write_split(0, page, 100, desc::NEXT, 999);
    nic.tx.publish(0);
    stands_still(nic);
}

#[test]
fn a_packed_chain_without_end() {
    let mut nic = Nic::new(ALL | feature::PACKED);
    let page = nic.bytes(&[0; 100]);
    for _ in 0..16 {
        nic.tx.post_raw(page, 100, desc::NEXT);
    }
    stands_still(nic);
}

#[test]
fn tables_that_cannot_be() {
    for kind in KINDS {
        for (len, inside) in
            [(0, true), (8, true), (17, true), (u32::MAX, true), (16 * 1025, true), (16, false)]
        {
            let mut nic = Nic::new(ALL | kind);
            let table = if inside { nic.tx.alloc(4096) } else { 1 << 50 };
            nic.tx.post_table(table, len);
            stands_still(nic);
        }
        // A table in a table, and one that a chain follows.
        let mut nic = Nic::new(ALL | kind);
        let table = nic.tx.alloc(4096);
        let mut entry = [0; 16];
        entry[8] = 16;
        entry[12] = desc::INDIRECT as u8;
        entry[14] = desc::INDIRECT as u8;
        nic.ram.write(table, &entry);
        nic.tx.post_table(table, 16);
        stands_still(nic);
        let mut nic = Nic::new(ALL | kind);
        nic.tx.post_raw(table, 16, desc::INDIRECT | desc::NEXT);
        stands_still(nic);
        // Tables were not agreed on.
        let mut nic = Nic::new(ALL & !feature::INDIRECT | kind);
        nic.tx.post_indirect(&[out(table, 100)]);
        stands_still(nic);
    }
}

#[test]
fn a_table_whose_entries_loop_or_leave_it() {
    for next in [0u16, 1, 7] {
        let mut nic = Nic::new(ALL);
        let (table, page) = (nic.tx.alloc(4096), nic.bytes(&[0; 100]));
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&page.to_le_bytes());
        entry[8] = 10;
        entry[12] = desc::NEXT as u8;
        entry[14..].copy_from_slice(&next.to_le_bytes());
        nic.ram.write(table, &entry);
        nic.ram.write(table + 16, &entry);
        nic.tx.post_table(table, 32);
        stands_still(nic);
    }
}

/// CVE-2018-1059, CVE-2020-10723: addresses outside the guest's memory, at its edges, wrapping.
#[test]
fn cve_2018_1059_addresses_outside_memory() {
    for kind in KINDS {
        let mut nic = Nic::new(ALL | kind);
        let header = nic.bytes(&[0; HEADER]);
        let [(low, len, _), (high, _, _)] = nic.ram.regions();
        let bad = [0, low + len - 50, high - 1, u64::MAX - 50, u64::MAX, 1 << 50];
        for addr in bad {
            nic.tx.post(&pieces(header, addr, 100));
            nic.tx.post(&[out(addr, 200)]);
            assert_eq!(nic.sent(), None, "{addr:#x}");
            assert!(nic.tx.take().is_some() && nic.tx.take().is_some(), "completed nevertheless");
        }
        assert_eq!(nic.stats().drop_bad_address.get(), 2 * bad.len() as u64);
        for addr in bad {
            let mut nic = Nic::new(ALL | kind);
            nic.rx.post(&[into(addr, 400)]);
            assert_eq!(nic.deliver(&Frame::new(100), |packet| packet), Err(DropReason::BadReceiver));
        }
    }
}

/// CVE-2022-2132, CVE-2020-10725: the header over several descriptors, or nothing behind it.
#[test]
fn cve_2022_2132_headers_that_span_descriptors() {
    for kind in KINDS {
        let mut nic = Nic::sized(ALL | kind, 64);
        let whole = nic.bytes(&[0; 200]);
        let single: Vec<_> = (0..40).map(|at| out(whole + at, 1)).collect();
        nic.tx.post(&single);
        assert_eq!(nic.sent().map(|(bytes, _)| bytes.len()), Some(28));
        for len in [0, 1, HEADER - 1, HEADER, HEADER + 13] {
            nic.tx.post(&[out(whole, len)]);
        }
        assert_eq!(nic.sent(), None);
        assert_eq!(nic.stats().drop_bad_length.get(), 5);
        // Receiving: the header in single bytes.
        let buffer = nic.rx.alloc(200);
        let single: Vec<_> = (0..14).map(|at| into(buffer + at, 1)).chain([into(buffer + 14, 150)]).collect();
        nic.rx.post(&single);
        let frame = Frame::new(100);
        nic.deliver(&frame, |packet| packet).unwrap();
        assert_eq!(nic.read(buffer + HEADER as u64, 100), frame.bytes);
        // A first buffer that does not hold it.
        nic.rx.post(&[into(buffer, HEADER - 1)]);
        assert!(nic.deliver(&frame, |packet| packet).is_err());
    }
}

/// CVE-2024-11614: checksum offsets beyond the frame.
#[test]
fn cve_2024_11614_checksums_beyond_the_frame() {
    let mut nic = Nic::new(ALL);
    let body = nic.bytes(&[0; 2000]);
    for (start, field) in
        [(0xffffu16, 0u16), (0, 0xffff), (0xffff, 0xffff), (60, 0), (59, 0), (0, 59), (511, 1)]
    {
        for kind in [0u8, 1, 4, 3, 5, 0x81, 0xff] {
            let mut header = [0; HEADER];
            (header[0], header[1], header[4]) = (1, kind, 100);
            header[6..8].copy_from_slice(&start.to_le_bytes());
            header[8..10].copy_from_slice(&field.to_le_bytes());
            let header = nic.bytes(&header);
            nic.tx.post(&pieces(header, body, 60));
            match nic.sent() {
                None => {}
                Some((_, Offload::Checksum { start, field })) => assert!(start < 60 && field + 2 <= 60),
                Some((_, other)) => panic!("{start} {field} {kind}: {other:?}"),
            }
            assert!(nic.tx.take().is_some());
        }
    }
}

#[test]
fn directions_are_respected() {
    for kind in KINDS {
        let mut nic = Nic::new(ALL | kind);
        let page = nic.bytes(&[0; 400]);
        nic.tx.post(&[into(page, 200)]);
        nic.tx.post(&[out(page, 100), into(page, 100)]);
        assert_eq!(nic.sent(), None);
        assert_eq!(nic.stats().drop_bad_descriptor.get(), 2);
        nic.rx.post(&[out(page, 400)]);
        assert_eq!(nic.deliver(&Frame::new(100), |packet| packet), Err(DropReason::BadReceiver));
        assert_eq!(nic.read(page, 400), [0; 400]);
    }
}

#[test]
fn lengths_that_add_up_to_too_much() {
    for kind in KINDS {
        let mut nic = Nic::new(ALL | kind);
        let page = nic.bytes(&[0; 4096]);
        let huge = u32::MAX as usize;
        nic.tx.post(&[out(page, huge), out(page, huge)]);
        assert_eq!(nic.sent(), None);
        // Buffers longer than memory: only what is needed of them counts.
        nic.rx.post(&[into(page, huge), into(page, huge)]);
        nic.deliver(&Frame::new(100), |packet| packet).unwrap();
        assert_eq!(nic.rx.take().unwrap().1, 112);
    }
}

#[test]
fn rings_that_cannot_run_are_reported() {
    type Edit = fn(&mut RingSetup);
    let edits: [Edit; 8] = [
        |ring| ring.size = 0,
        |ring| ring.size = 40000,
        |ring| ring.size = 12,
        |ring| ring.descriptors = 1 << 50,
        |ring| ring.descriptors += 8,
        |ring| ring.driver += 1,
        |ring| ring.device += 2,
        |ring| ring.device = u64::MAX - 3,
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let mut nic = Nic::new(MODERN);
        nic.device.stop();
        let mut rx = nic.rx.setup();
        edit(&mut rx);
        nic.device.run(Setup {
            features: MODERN,
            memory: nic.ram.device_map(),
            rings: vec![Some(rx), Some(nic.tx.setup())],
            resumed: false,
        });
        assert_eq!(nic.lines.failures.load(Ordering::SeqCst), 1, "edit {number}");
        assert_eq!(nic.deliver(&Frame::new(100), |packet| packet), Err(DropReason::NoBuffers));
    }
    // A packed ring's position outside it.
    let mut nic = Nic::new(MODERN | feature::PACKED);
    nic.device.stop();
    nic.rx.position.store(0x8000_8010, Ordering::SeqCst);
    nic.run();
    assert_eq!(nic.lines.failures.load(Ordering::SeqCst), 1);
}

#[derive(Clone, Debug)]
enum Act {
    Word { ring: bool, area: u8, at: u16, value: u32 },
    Post { ring: bool, len: u16, table: bool, writable: bool },
    Raw { ring: bool, addr: u64, len: u32, flags: u16 },
    Publish { ring: bool, head: u16 },
    Fetch,
    Deliver(u16),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (any::<bool>(), 0u8..3, 0u16..300, any::<u32>()).prop_map(|(ring, area, at, value)| Act::Word {
            ring,
            area,
            at,
            value
        }),
        (any::<bool>(), 1u16..3000, any::<bool>(), any::<bool>())
            .prop_map(|(ring, len, table, writable)| Act::Post { ring, len, table, writable }),
        (any::<bool>(), any::<u64>(), any::<u32>(), any::<u16>())
            .prop_map(|(ring, addr, len, flags)| Act::Raw { ring, addr, len, flags }),
        (any::<bool>(), 0u16..20).prop_map(|(ring, head)| Act::Publish { ring, head }),
        Just(Act::Fetch),
        (14u16..3000).prop_map(Act::Deliver),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever is in the rings: no panic, no endless loop, no byte outside buffers.
    #[test]
    fn any_rings(packed in any::<bool>(), merge in any::<bool>(), acts in prop::collection::vec(act(), 1..60)) {
        let features = if merge { ALL } else { MODERN } | if packed { feature::PACKED } else { 0 };
        let mut nic = Nic::sized(features, 8);
        let page = nic.tx.alloc(4096);
        for act in acts {
            match act {
                Act::Word { ring, area, at, value } => {
                    let ring = if ring { &nic.rx } else { &nic.tx };
                    let window = [&ring.descriptors, &ring.driver, &ring.device][usize::from(area)];
                    let at = usize::from(at) * 4;
                    if at + 4 <= window.len() {
                        window.store_u32(at, value);
                    }
                }
                Act::Post { ring, len, table, writable } => {
                    let ring = if ring { &mut nic.rx } else { &mut nic.tx };
                    let piece = if writable { into(page, len.into()) } else { out(page, len.into()) };
                    if table && ring.ram.free_pages() > 50 {
                        ring.post_indirect(&[piece, piece]);
                    } else {
                        ring.post(&[piece, piece]);
                    }
                }
                Act::Raw { ring, addr, len, flags } => {
                    (if ring { &mut nic.rx } else { &mut nic.tx }).post_raw(addr, len, flags);
                }
                Act::Publish { ring, head } => {
                    if !packed {
                        (if ring { &mut nic.rx } else { &mut nic.tx }).publish(head);
                    }
                }
                Act::Fetch => drop(nic.sent()),
                Act::Deliver(len) => drop(nic.deliver(&Frame::new(len.into()), |packet| packet)),
            }
        }
    }
}
