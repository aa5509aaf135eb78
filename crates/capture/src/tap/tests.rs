use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{Aggregate, ChecksumStatus, Layers, Offload, PartialChecksum};
use vmlane_wire::ethernet::{Mac, Tci};

use super::*;
use crate::{Program, Reader, Record};

const HEAD: usize = 64;

/// A frame in a sender's memory.
struct Frame {
    bytes: Vec<u8>,
    spans: Spans,
}

impl Frame {
    fn new(bytes: Vec<u8>) -> Frame {
        let fd = memfd("frame", 1 << 17).unwrap();
        let request = MapRequest { guest: 0, len: 1 << 17, offset: 0, fd, writable: true };
        let map = MemoryMap::default().map(request).unwrap();
        map.write(100, &bytes).unwrap();
        let mut spans = Spans::new(map, true);
        // In two pieces, so that the body begins in the middle of one.
        let half = bytes.len() / 2;
        spans.push(100, half).unwrap();
        spans.push(100 + half as u64, bytes.len() - half).unwrap();
        Frame { bytes, spans }
    }

    fn of(ports: (u16, u16), len: usize) -> Frame {
        let mut bytes: Vec<u8> = vec![0x52, 0x54, 0, 0, 0, 4, 0x52, 0x54, 0, 0, 0, 3, 8, 0, 0x45];
        bytes.resize(23, 0);
        bytes.push(17);
        bytes.resize(34, 0);
        bytes.extend(ports.0.to_be_bytes());
        bytes.extend(ports.1.to_be_bytes());
        let begun = bytes.len();
        bytes.extend((begun..len).map(|at| (at * 31) as u8));
        Frame::new(bytes)
    }

    fn sent(&self) -> TxFrame<'_> {
        let head = &self.bytes[..self.bytes.len().min(HEAD)];
        TxFrame { head, spans: &self.spans, offload: Offload::None, tag: None, verified: false }
    }

    fn received(&self) -> RxFrame<'_> {
        let head = &self.bytes[..self.bytes.len().min(HEAD)];
        RxFrame {
            head,
            body: &self.spans,
            body_at: head.len(),
            body_len: self.bytes.len() - head.len(),
            tag: None,
            layers: Layers::default(),
            checksum: ChecksumStatus::Unknown,
            aggregate: None,
            partial_checksum: None,
        }
    }

    /// As it is on the wire with a tag.
    fn tagged(&self, tag: u16) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.splice(12..12, [0x81, 0, (tag >> 8) as u8, tag as u8]);
        bytes
    }
}

fn tap(snap: usize, filter: Filter) -> (Tap, Reader) {
    let ring = Arc::new(Ring::new(1 << 20, 3).unwrap());
    let reader = Reader::new(&ring.file().try_clone_to_owned().unwrap()).unwrap();
    let tap = Tap::new(ring, 2, snap, filter);
    tap.placed(Some(0));
    (tap, reader)
}

fn all(reader: &mut Reader) -> Vec<Record> {
    std::iter::from_fn(|| reader.take().unwrap()).collect()
}

#[test]
fn a_frame_is_recorded_as_on_the_wire_tag_and_body_included() {
    let (tap, mut reader) = tap(usize::MAX, Filter::default());
    let frame = Frame::of((1, 2), 9000);
    tap.sent(&TxFrame { tag: Some(Tci(0x600a)), ..frame.sent() }, 7);
    tap.settle(None);
    tap.received(&RxFrame { tag: Some(Tci(20)), ..frame.received() }, 8, None);
    tap.received(&frame.received(), 9, Some(DropReason::NoRoom));
    let records = all(&mut reader);
    assert_eq!(records[0].data, frame.tagged(0x600a));
    assert_eq!(records[1].data, frame.tagged(20));
    assert_eq!(records[2].data, frame.bytes);
    let known = |record: &Record| {
        (record.mark.time, record.mark.len, record.mark.point, record.mark.direction, record.mark.dropped)
    };
    assert_eq!(known(&records[0]), (7, 9004, 2, Direction::Out, 0));
    assert_eq!(known(&records[1]), (8, 9004, 2, Direction::In, 0));
    assert_eq!(known(&records[2]), (9, 9000, 2, Direction::In, DropReason::NoRoom.number()));
}

#[test]
fn no_more_than_the_snap_length_is_recorded_wherever_it_ends() {
    let frame = Frame::of((1, 2), 3000);
    let tagged = frame.tagged(5);
    for snap in [0, 1, 12, 14, 16, 60, HEAD, HEAD + 4, HEAD + 5, 96, 2999, 3004, 4000] {
        let (tap, mut reader) = tap(snap, Filter::default());
        tap.refused(&TxFrame { tag: Some(Tci(5)), ..frame.sent() }, 1, DropReason::SlowReceiver);
        let records = all(&mut reader);
        assert_eq!((&records[0].data[..], records[0].mark.len), (&tagged[..snap.min(3004)], 3004), "{snap}");
    }
}

#[test]
fn what_the_switch_decided_about_the_last_frame_is_recorded_with_it() {
    let (tap, mut reader) = tap(96, Filter::default());
    let frame = Frame::of((1, 2), 100);
    tap.settle(Some(DropReason::Flood));
    tap.sent(&frame.sent(), 1);
    assert!(all(&mut reader).is_empty(), "nothing is decided about it");
    tap.settle(Some(DropReason::ForgedSource));
    tap.sent(&frame.sent(), 2);
    tap.sent(&frame.sent(), 3);
    tap.settle(None);
    tap.settle(Some(DropReason::Flood));
    let dropped: Vec<_> =
        all(&mut reader).iter().map(|record| (record.mark.time, record.mark.dropped)).collect();
    assert_eq!(dropped, [(1, DropReason::ForgedSource.number()), (2, 0), (3, 0)]);
}

#[test]
fn super_frames_have_their_segment_size() {
    let (tap, mut reader) = tap(96, Filter::default());
    let frame = Frame::of((1, 2), 60_000);
    tap.sent(&TxFrame { offload: Offload::Segment { header: 54, mss: 1448 }, ..frame.sent() }, 1);
    tap.settle(None);
    let aggregate = Some(Aggregate { mss: 1400, segments: 40, header: 54 });
    let partial_checksum = Some(PartialChecksum { start: 34, field: 40, never_zero: true, head_sum: None });
    tap.received(&RxFrame { aggregate, partial_checksum, ..frame.received() }, 2, None);
    tap.sent(&TxFrame { offload: Offload::Checksum { start: 34, field: 40 }, ..frame.sent() }, 3);
    tap.settle(None);
    let gso: Vec<_> = all(&mut reader)
        .iter()
        .map(|record| (record.mark.gso, record.mark.partial_checksum, record.mark.len))
        .collect();
    assert_eq!(gso, [(1448, true, 60_000), (1400, true, 60_000), (0, true, 60_000)]);
}

#[test]
fn filters_take_what_they_name_and_no_other() {
    let frame = Frame::of((5000, 80), 100);
    let tagged = Some(Tci(0x200a));
    let program = |text: &str| Some(text.parse::<Program>().unwrap());
    for (filter, tag, taken) in [
        (Filter { vlan: Some(10), ..Filter::default() }, tagged, true),
        (Filter { vlan: Some(10), ..Filter::default() }, None, false),
        (Filter { vlan: Some(11), ..Filter::default() }, tagged, false),
        (Filter { vlan: Some(7), ..Filter::default() }, None, true),
        (Filter { vlan: Some(7), ..Filter::default() }, Some(Tci(0x6000)), true),
        (Filter { mac: Some(Mac([0x52, 0x54, 0, 0, 0, 3])), ..Filter::default() }, None, true),
        (Filter { mac: Some(Mac([0x52, 0x54, 0, 0, 0, 4])), ..Filter::default() }, tagged, true),
        (Filter { mac: Some(Mac([0x52, 0x54, 0, 0, 0, 5])), ..Filter::default() }, None, false),
        (Filter { port: Some(80), ..Filter::default() }, tagged, true),
        (Filter { port: Some(5000), ..Filter::default() }, None, true),
        (Filter { port: Some(81), ..Filter::default() }, None, false),
        (Filter { cid: Some(3), ..Filter::default() }, None, true),
        // The protocol of IPv4, where the tag is; and the last byte, which no private copy has.
        (
            Filter {
                program: program("4\n40 0 0 12\n21 0 1 33024\n6 0 0 40\n6 0 0 0\n"),
                ..Filter::default()
            },
            tagged,
            true,
        ),
    ] {
        let (tap, mut reader) = tap(96, filter.clone());
        tap.placed(Some(7));
        tap.sent(&TxFrame { tag, ..frame.sent() }, 1);
        tap.settle(None);
        assert_eq!(all(&mut reader).len(), usize::from(taken), "{filter:?} {tag:?}");
    }
}

#[test]
fn a_program_sees_all_of_the_frame_and_decides_how_much_is_recorded() {
    let frame = Frame::of((5000, 80), 3000);
    let (high, low) = (frame.bytes[HEAD - 1], frame.bytes[HEAD]);
    // Two bytes across the end of the private copy, then the last one of the frame.
    let text = format!(
        "6\n40 0 0 {}\n21 0 3 {}\n48 0 0 2999\n21 0 1 {}\n6 0 0 33\n6 0 0 0\n",
        HEAD - 1,
        u16::from_be_bytes([high, low]),
        frame.bytes[2999]
    );
    let (tap, mut reader) = tap(96, Filter { program: Some(text.parse().unwrap()), ..Filter::default() });
    tap.received(&frame.received(), 1, None);
    tap.received(&Frame::of((5000, 80), 2000).received(), 2, None);
    let records = all(&mut reader);
    assert_eq!((records.len(), &records[0].data[..]), (1, &frame.bytes[..33]));
}

#[test]
fn short_and_odd_frames_are_no_danger() {
    let filter = Filter { mac: Some(Mac([1; 6])), port: Some(1), vlan: Some(1), ..Filter::default() };
    for len in [1, 5, 11, 12, 13, 14, 20, 33, 35] {
        let frame = Frame::new(Frame::of((1, 2), 40).bytes[..len].to_vec());
        for (filter, taken) in [(filter.clone(), 0), (Filter::default(), 1)] {
            let (tap, mut reader) = tap(96, filter);
            tap.refused(&TxFrame { tag: Some(Tci(1)), ..frame.sent() }, 1, DropReason::BadLength);
            assert_eq!(all(&mut reader).len(), taken, "{len}");
        }
    }
}
