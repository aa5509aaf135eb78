//! A stream between two VMCI guests while a capture looks at it: who says what to whom, and that the stream does not notice.

use std::sync::Arc;

use vmlane_capture::{Counts, Direction, Filter, Kind, Reader, Record, Ring, Streams};
use vmlane_device::vmci::Hypervisor;
use vmlane_guestsim::{Guest, Machine, Options, Path, Placement, Stream, vm};
use vmlane_port::wrap::StreamTap;
use vmlane_stream::{Settings, Workers};
use vmlane_vsock::Router;
use vmlane_wire::vmci_stream::SHUTDOWN_SEND;

const PORT: u32 = 5000;
const HEADER: usize = 32;

struct World {
    guests: [Arc<Guest>; 2],
    _machines: [Machine; 2],
    workers: Arc<Workers>,
}

impl World {
    fn new() -> World {
        let workers = Arc::new(Workers::start(Settings { workers: 2, ..Settings::default() }).unwrap());
        let hypervisor = Hypervisor::new(Router::new(workers.clone()));
        let machines = [3, 4].map(|cid| Machine::new(&hypervisor, vm(cid)));
        let guests = [0, 1].map(|at: usize| machines[at].boot(Path::Dma));
        World { guests, _machines: machines, workers }
    }

    fn connect(&self) -> (Stream, Stream) {
        let listener = self.guests[1].listen(PORT, Placement::Scattered);
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept());
            let options = Options { size: 64 << 10, ..Options::default() };
            let client = self.guests[0].connect((4, PORT), options).unwrap();
            (client, accepting.join().unwrap().unwrap())
        })
    }

    /// A capture of the streams of these CIDs.
    fn capture(
        &self,
        cids: &[u32],
        snap: usize,
        filter: &Filter,
    ) -> (Arc<Ring>, Reader, Vec<Arc<dyn StreamTap>>) {
        let ring = Arc::new(Ring::new(16 << 20, cids.len()).unwrap());
        let reader = Reader::new(&ring.file().try_clone_to_owned().unwrap()).unwrap();
        let tap = |(point, cid): (u16, &u32)| -> Arc<dyn StreamTap> {
            Arc::new(Streams::new(ring.clone(), point, *cid, snap, filter.clone()))
        };
        let taps: Vec<_> = (0..).zip(cids).map(tap).collect();
        taps.iter().for_each(|tap| self.workers.add_tap(tap.clone()));
        (ring, reader, taps)
    }
}

fn records(reader: &mut Reader) -> Vec<Record> {
    std::iter::from_fn(|| reader.take().unwrap()).collect()
}

/// What the header says: source and destination CID, source and destination port, operation.
fn said(record: &Record) -> (u64, u64, u32, u32, u16) {
    let long = |at: usize| u64::from_le_bytes(record.data[at..at + 8].try_into().unwrap());
    let word = |at: usize| u32::from_le_bytes(record.data[at..at + 4].try_into().unwrap());
    (long(0), long(8), word(16), word(20), u16::from_le_bytes([record.data[24], record.data[25]]))
}

/// The bytes that went one way at a point.
fn payload(records: &[Record], point: u16, direction: Direction) -> Vec<u8> {
    let of = records.iter().filter(|record| record.mark.point == point && record.mark.direction == direction);
    of.filter(|record| said(record).4 == 4).flat_map(|record| record.data[HEADER..].to_vec()).collect()
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
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
    let world = World::new();
    let (client, server) = world.connect();
    exchange(&client, &server, &pattern(1, 10_000));
    let (ring, mut reader, taps) = world.capture(&[3, 4], usize::MAX, &Filter::default());
    let (there, back) = (pattern(2, 300_000), pattern(3, 200_000));
    exchange(&client, &server, &there);
    exchange(&server, &client, &back);
    let (second, accepted) = world.connect();
    exchange(&second, &accepted, b"of a stream that is newer than the capture");
    taps.iter().for_each(|tap| world.workers.remove_tap(tap));
    ring.end();
    exchange(&client, &server, &pattern(4, 10_000));

    let records = records(&mut reader);
    for (point, first, second) in [(0, Direction::Out, Direction::In), (1, Direction::In, Direction::Out)] {
        let sent = payload(&records, point, first);
        assert!(sent[..300_000] == there && payload(&records, point, second) == back, "point {point}");
        assert_eq!(sent[300_000..], b"of a stream that is newer than the capture"[..]);
        let counts = reader.counts(point);
        assert_eq!((counts.lost, counts.present), (0, true));
    }
    assert!(records.iter().all(|record| record.mark.kind == Kind::Stream));
    let of_client = records.iter().find(|record| record.mark.direction == Direction::Out).unwrap();
    let (from, to, _, port, op) = said(of_client);
    assert_eq!((from, to, port, op), (3, 4, PORT, 4));
    let connects: Vec<_> = records.iter().map(said).filter(|said| said.4 == 1).collect();
    assert!(
        connects.len() == 2 && connects.iter().all(|said| (said.0, said.1, said.3) == (3, 4, PORT)),
        "{connects:?}"
    );
}

#[test]
fn filters_snap_length_and_the_end_of_a_stream() {
    let world = World::new();
    let (client, server) = world.connect();
    let (_ring, mut none, _taps) = world.capture(&[3], 100, &Filter { port: Some(1), ..Filter::default() });
    let filter = Filter { cid: Some(4), port: Some(PORT), ..Filter::default() };
    let (ring, mut reader, taps) = world.capture(&[3], HEADER + 8, &filter);
    exchange(&client, &server, &pattern(1, 50_000));
    client.shutdown(SHUTDOWN_SEND);
    assert_eq!(server.recv(&mut [0; 8]).unwrap(), 0);
    taps.iter().for_each(|tap| world.workers.remove_tap(tap));
    ring.end();
    let records = records(&mut reader);
    assert!(records.iter().all(|record| record.data.len() <= HEADER + 8));
    let bytes: usize = records.iter().map(|record| record.mark.len as usize - HEADER).sum();
    assert_eq!(bytes, 50_000, "the lengths are those of what was sent");
    assert!(records.iter().any(|record| said(record).4 == 2), "its end is told");
    assert_eq!((none.take().unwrap(), none.counts(0)), (None, Counts { present: true, ..Counts::default() }));
}
