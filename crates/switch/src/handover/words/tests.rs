use proptest::prelude::*;
use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};

use super::*;

fn value(number: u32, len: usize) -> Value {
    let (a, b) = (number as u16, (number >> 3) as u16);
    let offload = match number % 6 {
        0 => Offload::Checksum { start: a, field: b },
        1 => Offload::Segment { header: a, mss: b },
        2 => Offload::Tunnel { header: a, mss: b, outer_sum: false },
        3 => Offload::Tunnel { header: a, mss: b, outer_sum: true },
        _ => Offload::None,
    };
    let origin = Origin { slot: a, owner: b ^ 0x5555, attachment: number.wrapping_mul(0x9e37_79b9) };
    let tag = (!number.is_multiple_of(5)).then_some(Tci(a.wrapping_mul(7)));
    Value { len, origin, offload, tag, verified: number % 7 < 3 }
}

fn bytes(number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number as usize * 31 + at * 7) as u8).collect()
}

/// All of a frame's bytes in its sender's memory.
fn spans(len: usize) -> Spans {
    let fd = memfd("frame", 4096).unwrap();
    let request = MapRequest { guest: 0, len: 4096, offset: 0, fd, writable: true };
    let mut spans = Spans::new(MemoryMap::default().map(request).unwrap(), false);
    spans.push(0, len.max(1)).unwrap();
    spans
}

/// What a reader finds: descriptions as None.
fn read_all(reader: &mut Reader) -> Vec<Option<(Value, Vec<u8>)>> {
    let mut all = Vec::new();
    let mut head = [0; MAX_HEAD];
    reader.poll();
    while let Some(entry) = reader.next() {
        match entry {
            Entry::Described(count) => all.extend((0..count).map(|_| None)),
            Entry::Value(value) => {
                reader.read(value.len, &mut head);
                all.push(Some((value, head[..value.len].to_vec())));
            }
        }
    }
    all
}

proptest! {
    #[test]
    fn what_is_written_is_read_in_its_order_once_it_is_published(
        rounds in prop::collection::vec(prop::collection::vec((0..3u8, 8..=HEAD), 0..40), 1..60),
    ) {
        let (mut writer, mut reader) = ring();
        let all: Vec<Spans> = (0..=HEAD).map(spans).collect();
        let mut number = 0;
        for round in rounds {
            let mut written = Vec::new();
            for (kind, len) in round {
                number += 1;
                if kind == 0 {
                    writer.describe();
                    written.push(None);
                    continue;
                }
                let (value, head) = (value(number, len), bytes(number, len));
                let Value { offload, tag, verified, .. } = value;
                let tx = TxFrame { head: &head, spans: &all[len], offload, tag, verified };
                prop_assert!(Writer::takes(&tx));
                writer.write(value.origin, &tx);
                written.push(Some((value, head)));
            }
            prop_assert!(!reader.has_entries() && read_all(&mut reader).is_empty());
            prop_assert_eq!(writer.publish(), !written.is_empty());
            prop_assert_eq!(reader.has_entries(), !written.is_empty());
            prop_assert_eq!(read_all(&mut reader), written);
        }
    }
}

#[test]
fn a_frame_goes_by_value_if_all_of_it_was_copied() {
    let all = [HEAD, HEAD + 1, 60].map(spans);
    let takes = |head: usize, spans: &Spans| {
        let head = bytes(1, head);
        Writer::takes(&TxFrame { head: &head, spans, offload: Offload::None, tag: None, verified: false })
    };
    assert!(takes(HEAD, &all[0]) && takes(60, &all[2]));
    assert!(!takes(HEAD, &all[1]) && !takes(59, &all[2]));
    assert!(!takes(HEAD + 1, &all[1]), "too long for the ring");
    let tiny = [7, 8].map(spans);
    assert!(!takes(7, &tiny[0]) && takes(8, &tiny[1]), "no frame is shorter than a word");
}

#[test]
fn a_reader_on_another_thread_finds_every_frame() {
    const FRAMES: u32 = 20_000;
    let (mut writer, mut reader) = ring();
    // Places, as their readers give them back.
    let (mut give, mut back) = rtrb::RingBuffer::<()>::new(PLACES);
    let thread = std::thread::spawn(move || {
        let mut number = 0;
        while number < FRAMES {
            for found in read_all(&mut reader) {
                let len = 14 + number as usize % (HEAD - 13);
                let expected = (!number.is_multiple_of(9)).then(|| (value(number, len), bytes(number, len)));
                assert_eq!(found, expected);
                number += 1;
                give.push(()).unwrap();
            }
            std::thread::yield_now();
        }
    });
    let all: Vec<Spans> = (0..=HEAD).map(spans).collect();
    let mut free = PLACES;
    for number in 0..FRAMES {
        while free == 0 {
            writer.publish();
            free += back.slots();
            (0..free).for_each(|_| back.pop().unwrap());
            std::thread::yield_now();
        }
        free -= 1;
        if number.is_multiple_of(9) {
            writer.describe();
        } else {
            let len = 14 + number as usize % (HEAD - 13);
            let (value, head) = (value(number, len), bytes(number, len));
            let Value { offload, tag, verified, .. } = value;
            writer.write(value.origin, &TxFrame { head: &head, spans: &all[len], offload, tag, verified });
        }
        if number.is_multiple_of(32) {
            writer.publish();
        }
    }
    writer.publish();
    thread.join().unwrap();
}
