//! A stream between two VMCI guests while a capture examines it: who states what to whom, and no one notices.

use vmlane_capture::{Counts, Direction, Filter, Kind};
use vmlane_guestsim::{Path, Stream};
use vmlane_stream::Settings;
use vmlane_wire::vmci_stream::SHUTDOWN_SEND;

use super::{Capture, HEADER, Seen, pattern};
use crate::vmci::{World, connect, rings};

const PORT: u32 = 5000;

fn world() -> World {
    World::with(Settings { workers: 2, ..Settings::default() })
}

/// The bytes that went one way at a point.
fn payload(records: &[Seen], point: u16, direction: Direction) -> Vec<u8> {
    let of = records.iter().filter(|seen| (seen.point, seen.direction, seen.op) == (point, direction, 4));
    of.flat_map(|seen| seen.rest.clone()).collect()
}

/// Sends one way, all of it received.
fn exchange(from: &Stream, to: &Stream, bytes: &[u8]) {
    std::thread::scope(|scope| {
        scope.spawn(|| from.send_all(bytes).unwrap());
        let mut got = vec![0; bytes.len()];
        assert_eq!(to.recv_all(&mut got).unwrap(), bytes.len());
        assert!(got == bytes, "the stream does not notice");
    });
}

#[test]
fn both_ends_show_every_byte_both_ways_only_while_they_are_captured() {
    let world = world();
    let [(_a, a), (_b, b)] = world.two(Path::Dma);
    let (client, server) = connect(&a, &b, PORT, rings(64 << 10));
    exchange(&client, &server, &pattern(1, 10_000));
    let mut capture = Capture::new(&[3, 4], usize::MAX, &Filter::default());
    capture.taps.iter().for_each(|tap| world.workers.add_tap(tap.clone()));
    let (there, back) = (pattern(2, 300_000), pattern(3, 200_000));
    exchange(&client, &server, &there);
    exchange(&server, &client, &back);
    let (second, accepted) = connect(&a, &b, PORT, rings(64 << 10));
    exchange(&second, &accepted, b"of a stream that is newer than the capture");
    capture.taps.iter().for_each(|tap| world.workers.remove_tap(tap));
    capture.ring.end();
    exchange(&client, &server, &pattern(4, 10_000));

    let records = capture.take();
    for (point, first, second) in [(0, Direction::Out, Direction::In), (1, Direction::In, Direction::Out)] {
        let sent = payload(&records, point, first);
        assert!(sent[..300_000] == there && payload(&records, point, second) == back, "point {point}");
        assert_eq!(sent[300_000..], b"of a stream that is newer than the capture"[..]);
        let counts = capture.counts(point);
        assert_eq!((counts.lost, counts.present), (0, true));
    }
    assert!(records.iter().all(|seen| seen.kind == Kind::Stream));
    let of_client = records.iter().find(|seen| seen.direction == Direction::Out).unwrap();
    assert_eq!((of_client.from.0, of_client.to, of_client.op), (3, (4, PORT), 4));
    let connects = records.iter().filter(|seen| seen.op == 1).map(|seen| (seen.from.0, seen.to));
    assert_eq!(connects.collect::<Vec<_>>(), [(3, (4, PORT)); 2]);
}

#[test]
fn filters_snap_length_and_the_end_of_a_stream() {
    let world = world();
    let [(_a, a), (_b, b)] = world.two(Path::Dma);
    let (client, server) = connect(&a, &b, PORT, rings(64 << 10));
    let mut none = Capture::new(&[3], 100, &Filter { port: Some(1), ..Filter::default() });
    let filter = Filter { cid: Some(4), port: Some(PORT), ..Filter::default() };
    let mut capture = Capture::new(&[3], HEADER + 8, &filter);
    [&none, &capture].iter().for_each(|capture| world.workers.add_tap(capture.taps[0].clone()));
    exchange(&client, &server, &pattern(1, 50_000));
    client.shutdown(SHUTDOWN_SEND);
    assert_eq!(server.recv(&mut [0; 8]).unwrap(), 0);
    world.workers.remove_tap(&capture.taps[0]);
    capture.ring.end();
    let records = capture.take();
    assert!(records.iter().all(|seen| seen.rest.len() <= 8));
    let bytes: usize = records.iter().map(|seen| seen.len as usize - HEADER).sum();
    assert_eq!(bytes, 50_000, "the lengths are those of what was sent");
    assert!(records.iter().any(|seen| seen.op == 2), "its end is reported");
    assert_eq!((none.take(), none.counts(0)), (vec![], Counts { present: true, ..Counts::default() }));
}
