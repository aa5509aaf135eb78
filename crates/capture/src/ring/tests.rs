use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn mark(point: u16, time: u64, len: usize) -> Mark {
    Mark {
        time,
        len: len as u32,
        point,
        kind: Kind::Frame,
        direction: Direction::In,
        dropped: 3,
        partial_checksum: true,
        gso: 1448,
    }
}

fn add(ring: &Ring, point: u16, time: u64, data: &[u8]) -> bool {
    let Some(slot) = ring.take(point, data.len()) else { return false };
    ring.write(slot, 0, data);
    ring.publish(slot, &mark(point, time, data.len()), data.len());
    true
}

fn pair(bytes: usize, points: usize) -> (Ring, Reader) {
    let ring = Ring::new(bytes, points).unwrap();
    let reader = Reader::new(&ring.file().try_clone_to_owned().unwrap()).unwrap();
    (ring, reader)
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (seed as usize * 7 + at) as u8).collect()
}

#[test]
fn a_record_arrives_as_it_was_written() {
    let (ring, mut reader) = pair(0, 2);
    assert_eq!(reader.take().unwrap(), None);
    assert!(add(&ring, 1, 42, b"hello"));
    let record = reader.take().unwrap().unwrap();
    assert_eq!(record, Record { mark: mark(1, 42, 5), lost: 0, data: b"hello".to_vec() });
    assert_eq!(reader.take().unwrap(), None);
    assert_eq!(reader.counts(1), Counts { recorded: 1, lost: 0, present: false });
    ring.set_present(1, true);
    assert!(reader.counts(1).present && !reader.ended());
    ring.end();
    assert!(reader.ended());
}

#[test]
fn every_mark_arrives_as_it_was_given() {
    let (ring, mut reader) = pair(0, 1);
    for kind in Kind::ALL {
        for direction in [Direction::Out, Direction::In] {
            for partial_checksum in [false, true] {
                let mark = Mark { kind, direction, partial_checksum, ..mark(0, 7, 0) };
                let slot = ring.take(0, 0).unwrap();
                ring.publish(slot, &mark, 0);
                assert_eq!(reader.take().unwrap().unwrap().mark, mark);
            }
        }
    }
}

#[test]
fn records_that_are_taken_and_not_published_are_not_seen() {
    let (ring, mut reader) = pair(0, 1);
    let first = ring.take(0, 3).unwrap();
    assert!(add(&ring, 0, 2, b"second"));
    assert_eq!(reader.take().unwrap(), None, "the first one is not complete");
    ring.write(first, 0, b"one");
    ring.publish(first, &mark(0, 1, 3), 3);
    assert_eq!(reader.take().unwrap().unwrap().data, b"one");
    assert_eq!(reader.take().unwrap().unwrap().data, b"second");
}

#[test]
fn what_does_not_fit_is_lost_counted_and_reported_with_the_next_record() {
    let (ring, mut reader) = pair(0, 2);
    let mut written = 0;
    while add(&ring, 0, written, &bytes(written, 1000)) {
        written += 1;
    }
    for _ in 0..4 {
        assert!(!add(&ring, 0, 0, &[0; 1000]));
    }
    assert!(!add(&ring, 1, 0, &[0; 1000]));
    assert_eq!((reader.counts(0).recorded, reader.counts(0).lost, reader.counts(1).lost), (written, 5, 1));
    for time in 0..written {
        let record = reader.take().unwrap().unwrap();
        assert_eq!((record.mark.time, record.lost, record.data), (time, 0, bytes(time, 1000)));
    }
    assert!(add(&ring, 0, 7, b"x") && add(&ring, 0, 8, b"y") && add(&ring, 1, 9, b"z"));
    let lost: Vec<u32> = (0..3).map(|_| reader.take().unwrap().unwrap().lost).collect();
    assert_eq!(lost, [5, 0, 1]);
}

#[test]
fn a_client_that_lies_about_its_position_loses_records_and_nothing_else() {
    let (ring, reader) = pair(0, 1);
    for lie in [1, u64::MAX, 1 << 40] {
        reader.window.store_u64(READ, lie);
        assert!(!add(&ring, 0, 1, b"x"), "{lie}");
    }
    reader.window.store_u64(READ, 0);
    assert!(add(&ring, 0, 1, b"x"));
    // It overwrites everything that it can.
    for at in (0..reader.window.len()).step_by(8) {
        reader.window.store_u64(at, u64::MAX);
    }
    assert!(!add(&ring, 0, 1, b"x"));
    assert_eq!((ring.counts(0).recorded, ring.counts(0).lost), (1, 4));
    let mut reader = reader;
    reader.window.store_u64(READ, 0);
    reader.window.store_u64(reader.layout.mark(0), 1);
    assert!(matches!(reader.take(), Err(RingError::Form(_))), "an impossible record is no record");
}

#[test]
fn bytes_of_a_guest_are_never_taken_for_the_begin_of_a_record() {
    let (ring, mut reader) = pair(0, 1);
    // Data that resembles any mark, all over the ring.
    for round in 0..200u64 {
        let data: Vec<u8> =
            (0..1000u64).flat_map(|at| (round * 20 + at / 8 + 1).to_le_bytes()).take(1000).collect();
        assert!(add(&ring, 0, round, &data));
        assert_eq!(reader.take().unwrap().unwrap().data, data);
        assert_eq!(reader.take().unwrap(), None);
    }
}

#[test]
fn another_file_is_refused() {
    let file = vmlane_mem::memfd("other", 1 << 20).unwrap();
    assert!(matches!(Reader::new(&file), Err(RingError::Form("no ring"))));
    let ring = Ring::new(0, 1).unwrap();
    ring.window.store_u64(word::CELLS, 3);
    let file = ring.file().try_clone_to_owned().unwrap();
    assert!(matches!(Reader::new(&file), Err(RingError::Form("impossible sizes"))));
    ring.window.store_u64(word::CELLS, 1 << 20);
    assert!(Reader::new(&file).is_err(), "longer than its file");
}

#[test]
fn many_threads_write_and_every_record_is_there_or_counted() {
    const EACH: u64 = 20_000;
    let (ring, mut reader) = pair(0, 4);
    let ring = Arc::new(ring);
    let writers: Vec<_> = (0..4u16)
        .map(|point| {
            let ring = ring.clone();
            std::thread::spawn(move || {
                (0..EACH).filter(|&at| add(&ring, point, at, &bytes(at, at as usize % 300))).count()
            })
        })
        .collect();
    let mut seen = [0u64; 4];
    let mut lost = [0u64; 4];
    let mut last = [None; 4];
    let mut take = |record: Record| {
        let (point, time) = (usize::from(record.mark.point), record.mark.time);
        assert!(last[point] < Some(time), "in order");
        assert_eq!(record.data, bytes(time, time as usize % 300));
        last[point] = Some(time);
        seen[point] += 1;
        lost[point] += u64::from(record.lost);
    };
    while writers.iter().any(|writer| !writer.is_finished()) {
        if let Some(record) = reader.take().unwrap() {
            take(record);
        }
    }
    let written: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap() as u64).collect();
    ring.end();
    while let Some(record) = reader.take().unwrap() {
        take(record);
    }
    for point in 0..4 {
        let counts = reader.counts(point as u16);
        assert_eq!((counts.recorded, counts.lost), (written[point], EACH - written[point]));
        assert_eq!(seen[point], written[point]);
        assert!(lost[point] <= counts.lost, "those after the last record are in the count only");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Records of any length, read at any time: those that were taken come in order and whole, wherever the
    /// ring ends.
    #[test]
    fn records_come_in_order_and_whole(steps in proptest::collection::vec((0usize..MAX_RECORD, 0usize..4), 1..60)) {
        let (ring, mut reader) = pair(0, 1);
        let mut waiting = std::collections::VecDeque::new();
        for (number, (len, reads)) in (0..).zip(steps) {
            if add(&ring, 0, number, &bytes(number, len)) {
                waiting.push_back((number, len));
            }
            for _ in 0..reads {
                let record = reader.take().unwrap();
                prop_assert_eq!(record.is_some(), !waiting.is_empty());
                if let (Some(record), Some((number, len))) = (record, waiting.pop_front()) {
                    prop_assert_eq!(record.mark.time, number);
                    prop_assert_eq!(record.data, bytes(number, len));
                }
            }
        }
    }
}
