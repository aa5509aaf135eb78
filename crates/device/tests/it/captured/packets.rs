//! Connections between two virtio-vsock guests while a capture examines them: what is recorded is what the
//! guests got.

use vmlane_capture::{Counts, Direction, Filter, Kind};
use vmlane_guestsim::vsock::{Bench, Guest};
use vmlane_wire::virtio_vsock::{
    END_OF_MESSAGE, END_OF_RECORD, HEADER as PACKET, Header, MAX_PAYLOAD, kind, op,
};
use zerocopy::FromBytes;

use super::{Capture, HEADER, Seen, pattern};
use crate::vsock::{self, A, B, LOCAL, PORT};

const OTHER: u32 = 5;

/// Both with buffers of so many bytes.
fn pair(packed: bool, buffers: usize) -> (Bench, Guest, Guest) {
    let (bench, mut a, mut b) = vsock::pair(packed);
    a.post_buffers(30, buffers);
    b.post_buffers(30, buffers);
    (bench, a, b)
}

fn run(bench: &mut Bench) {
    assert!(bench.run());
}

/// The packet of a record, and its payload.
fn packet(seen: &Seen) -> (Header, Vec<u8>) {
    assert_eq!(seen.transport, (2, PACKET as u16), "virtio, and its header");
    let header = Header::read_from_bytes(&seen.rest[..PACKET]).unwrap();
    assert_eq!(
        (seen.from, seen.to),
        ((header.src_cid.get(), header.src_port.get()), (header.dst_cid.get(), header.dst_port.get()))
    );
    (header, seen.rest[PACKET..].to_vec())
}

/// What went one way at a point.
fn packets(records: &[Seen], point: u16, direction: Direction) -> Vec<(Header, Vec<u8>)> {
    records.iter().filter(|seen| (seen.point, seen.direction) == (point, direction)).map(packet).collect()
}

#[test]
fn each_packet_is_recorded_once_at_each_point_only_while_there_is_a_capture() {
    for packed in [false, true] {
        let (mut bench, mut a, mut b) = pair(packed, 4096);
        a.packet(LOCAL - 1, (B, PORT), kind::STREAM, op::REQUEST, &[]);
        run(&mut bench);
        b.received();
        let mut capture = Capture::new(&[A, B, OTHER], usize::MAX, &Filter::default());
        bench.set_taps(&capture.taps);
        let (there, back) = (pattern(0, 3000), pattern(0, 100));
        let steps = [
            (true, op::REQUEST, &[][..], 1),
            (false, op::RESPONSE, &[], 1),
            (true, op::RW, &there, 4),
            (false, op::CREDIT_UPDATE, &[], 3),
            (true, op::CREDIT_REQUEST, &[], 3),
            (false, op::RW, &back, 4),
            (true, op::SHUTDOWN, &[], 2),
            (false, op::RST, &[], 2),
        ];
        let (mut got_a, mut got_b) = (Vec::new(), Vec::new());
        for (from_a, op, payload, _) in steps {
            if from_a {
                a.packet(LOCAL, (B, PORT), kind::STREAM, op, payload);
            } else {
                b.packet(PORT, (A, LOCAL), kind::STREAM, op, payload);
            }
            run(&mut bench);
            got_a.extend(a.received());
            got_b.extend(b.received());
        }
        bench.set_taps(&[]);
        a.packet(LOCAL, (B, PORT), kind::STREAM, op::REQUEST, &[]);
        run(&mut bench);
        assert_eq!((got_a.len(), got_b.len(), b.received().len()), (4, 4, 1));

        let records = capture.take();
        for point in [0, 1] {
            let of_point: Vec<&Seen> = records.iter().filter(|seen| seen.point == point).collect();
            let rows: Vec<_> =
                of_point.iter().map(|seen| (seen.from.0, seen.op, seen.len as usize)).collect();
            let expected = steps.map(|(from_a, _, payload, as_linux)| {
                (u64::from(if from_a { A } else { B }), as_linux, HEADER + PACKET + payload.len())
            });
            assert_eq!(rows, expected, "in order, operations as Linux names them");
            assert!(of_point.iter().all(|seen| seen.kind == Kind::Stream));
            let (to_a, to_b) =
                if point == 0 { (Direction::In, Direction::Out) } else { (Direction::Out, Direction::In) };
            assert!(packets(&records, point, to_a) == got_a && packets(&records, point, to_b) == got_b);
        }
        assert_eq!(capture.counts(2), Counts { present: true, ..Counts::default() }, "a VM of neither");
    }
}

#[test]
fn a_packet_that_goes_in_parts_is_recorded_as_its_receiver_got_it() {
    // Buffers for a header and 1000 bytes: the second part of the packet waits for more of them.
    let (mut bench, mut a, mut b) = pair(false, PACKET + 1000);
    for (from, to, op) in [(A, B, op::REQUEST), (B, A, op::RESPONSE)] {
        let (guest, [own, other]) = if from == A { (&mut a, [LOCAL, PORT]) } else { (&mut b, [PORT, LOCAL]) };
        guest.packet(own, (to, other), kind::SEQPACKET, op, &[]);
        run(&mut bench);
    }
    b.received();
    // Half of the ring has buffers: what goes in parts begins.
    b.post_buffers(10, PACKET + 1000);
    let mut capture = Capture::new(&[B], usize::MAX, &Filter::default());
    bench.set_taps(&capture.taps);
    let message = pattern(0, MAX_PAYLOAD);
    let header = Header::new((A, LOCAL), (B, PORT), kind::SEQPACKET, op::RW);
    let (len, flags) = ((MAX_PAYLOAD as u32).into(), (END_OF_MESSAGE | END_OF_RECORD).into());
    a.send(&Header { len, flags, ..header }, &message);
    let mut got = Vec::new();
    while got.iter().map(|(_, payload): &(Header, Vec<u8>)| payload.len()).sum::<usize>() < MAX_PAYLOAD {
        run(&mut bench);
        let here = b.received();
        assert!(!here.is_empty(), "something moves");
        b.post_buffers(here.len(), PACKET + 1000);
        got.extend(here);
    }
    let records = capture.take();
    assert!(records.iter().all(|seen| seen.kind == Kind::Stream && seen.op == 4));
    let (headers, payloads): (Vec<Header>, Vec<Vec<u8>>) = records.iter().map(packet).unzip();
    assert!(payloads.concat() == message, "every byte once");
    let flags: Vec<u32> = headers.iter().map(|header| header.flags.get()).collect();
    let (last, before) = flags.split_last().unwrap();
    assert!(*last == 3 && before.iter().all(|flags| *flags == 0), "one message: {flags:?}");
    assert!(
        headers.iter().zip(&payloads).all(|(header, payload)| header.len.get() as usize == payload.len())
    );
}

#[test]
fn a_long_packet_is_recorded_whole() {
    let (mut bench, mut a, mut b) = pair(false, 4096);
    let mut capture = Capture::new(&[A], usize::MAX, &Filter::default());
    bench.set_taps(&capture.taps);
    a.packet(LOCAL, (B, PORT), kind::STREAM, op::REQUEST, &[]);
    run(&mut bench);
    b.packet(PORT, (A, LOCAL), kind::STREAM, op::RESPONSE, &[]);
    a.packet(LOCAL, (B, PORT), kind::STREAM, op::RW, &pattern(0, MAX_PAYLOAD));
    run(&mut bench);
    let records = capture.take();
    let long = records.iter().find(|seen| seen.op == 4).unwrap();
    assert_eq!((long.len as usize, records.len()), (HEADER + PACKET + MAX_PAYLOAD, 3));
    assert!(packet(long).1 == pattern(0, MAX_PAYLOAD));
}

#[test]
fn a_refusal_is_recorded_as_the_daemons_own() {
    let (mut bench, mut a, b) = pair(false, 4096);
    bench.detach(&b);
    let mut capture = Capture::new(&[A], usize::MAX, &Filter::default());
    bench.set_taps(&capture.taps);
    a.packet(LOCAL, (B, PORT), kind::STREAM, op::REQUEST, &[]);
    run(&mut bench);
    let got = a.received();
    let records = capture.take();
    assert_eq!((records.len(), got.len()), (1, 1), "the request was not delivered");
    let (kind, op, direction) = (records[0].kind, records[0].op, records[0].direction);
    assert_eq!((kind, op, direction), (Kind::OfDaemon, 2, Direction::In));
    assert_eq!(packet(&records[0]), got[0]);
}

#[test]
fn filters_snap_length_and_losses_are_as_for_streams() {
    let (mut bench, mut a, mut b) = pair(false, 4096);
    let filter = Filter { cid: Some(B), port: Some(PORT), ..Filter::default() };
    let mut cut = Capture::new(&[A], HEADER + PACKET + 4, &filter);
    let mut head = Capture::new(&[A], HEADER + 4, &filter);
    let other = Capture::new(&[A], 1 << 20, &Filter { port: Some(1), ..Filter::default() });
    let full = Capture::of_size(0, &[A], 1 << 20, &Filter::default());
    let taps = [&cut, &head, &other, &full].map(|capture| capture.taps[0].clone());
    bench.set_taps(&taps);
    a.packet(LOCAL, (B, PORT), kind::STREAM, op::REQUEST, &[]);
    run(&mut bench);
    b.packet(PORT, (A, LOCAL), kind::STREAM, op::RESPONSE, &[]);
    a.packet(LOCAL, (B, PORT), kind::STREAM, op::RW, &pattern(0, 1000));
    run(&mut bench);
    b.received();
    let mut asked = 0;
    for _ in 0..8 {
        a.packet(LOCAL, (B, PORT), kind::STREAM, op::RW, &pattern(0, 40_000));
        run(&mut bench);
        let got = b.received();
        assert_eq!(got.iter().map(|(_, payload)| payload.len()).sum::<usize>(), 40_000);
        asked += got.iter().filter(|(header, _)| header.op.get() == op::CREDIT_REQUEST).count() as u64;
        b.post_buffers(10, 4096);
    }
    let first = cut.take().remove(2);
    assert_eq!((first.len as usize, &first.rest[PACKET..]), (HEADER + PACKET + 1000, &pattern(0, 1000)[..4]));
    assert!(head.take().iter().all(|seen| seen.rest.len() == 4 && seen.transport == (2, 44)));
    assert_eq!(other.counts(0).recorded, 0);
    full.ring.end();
    let Counts { recorded, lost, .. } = full.counts(0);
    assert!(
        lost > 0 && recorded > 0 && recorded + lost == 11 + asked,
        "{recorded} and {lost}, {asked} asked"
    );
}
