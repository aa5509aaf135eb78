//! Datagrams while a capture examines them: between VMCI guests, to the host and from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use parking_lot::Mutex;
use vmlane_capture::{Direction, Filter, Kind};
use vmlane_guestsim::{Path, vm};
use vmlane_testkit::wait_until;
use vmlane_vsock::{Call, ConnectError, DatagramError, Endpoint, HOST};
use vmlane_wire::vmci::{Handle, MAX_DATAGRAM_PAYLOAD};

use super::{Capture, HEADER, Seen};
use crate::vmci::World;

/// A program of the host at port 77.
struct Program(Mutex<Sender<Vec<u8>>>);

impl Endpoint for Program {
    fn requested(&self, _: Call, _: Option<u64>) -> Result<(), ConnectError> {
        Err(ConnectError::Unreachable)
    }

    fn datagram(&self, _: (u32, u32), port: u32, payload: &[u8]) -> Result<(), DatagramError> {
        if port != 77 {
            return Err(DatagramError::Port);
        }
        self.0.lock().send(payload.to_vec()).map_err(|_| DatagramError::Full)
    }
}

/// Takes what it gets.
struct Sink;

impl Endpoint for Sink {
    fn requested(&self, _: Call, _: Option<u64>) -> Result<(), ConnectError> {
        Err(ConnectError::Unreachable)
    }

    fn datagram(&self, _: (u32, u32), _: u32, _: &[u8]) -> Result<(), DatagramError> {
        Ok(())
    }
}

fn datagram(point: u16, from: (u64, u32), to: (u64, u32), payload: &[u8]) -> Seen {
    let own = if point == 0 { 3 } else { 4 };
    Seen {
        point,
        direction: if from.0 == own { Direction::Out } else { Direction::In },
        kind: Kind::Datagram,
        from,
        to,
        op: 4,
        transport: (1, 0),
        len: (HEADER + payload.len()) as u32,
        rest: payload.to_vec(),
    }
}

#[test]
fn each_datagram_is_recorded_once_at_each_point_only_while_there_is_a_capture() {
    let world = World::new();
    let (sender, got) = channel();
    world.router.set_endpoint(HOST, Arc::new(Program(Mutex::new(sender))));
    let (mut a, mut b) = (world.machine(3).probe(Path::Dma), world.machine(4).probe(Path::Ports));
    let (to_b, to_host) = (Handle::new(4, 88), Handle::new(HOST, 77));
    assert_eq!(a.send_to(to_b, 55, b"before"), 30);
    b.await_datagrams();

    let mut capture = Capture::new(&[3, 4], usize::MAX, &Filter::default());
    let mut filtered = Capture::new(&[3], HEADER + 2, &Filter { port: Some(77), ..Filter::default() });
    let taps = [&capture.taps[..], &filtered.taps[..]].concat();
    taps.iter().for_each(|tap| world.router.add_tap(tap.clone()));
    let long: Vec<u8> = (0..MAX_DATAGRAM_PAYLOAD).map(|at| at as u8).collect();
    assert_eq!(a.send_to(to_b, 55, b"one"), 27);
    assert_eq!(b.send_to(Handle::new(3, 55), 88, &long), 24 + long.len() as i32);
    assert!(a.await_datagrams()[0].payload == long);
    assert_eq!(a.send_to(to_host, 55, b"question"), 32);
    assert_eq!(got.recv().unwrap(), b"question");
    world.router.send_datagram((HOST, 77), (3, 55), b"answer").unwrap();
    assert_eq!(a.await_datagrams()[0].payload, b"answer");
    // None of these is delivered.
    assert!(a.send_to(Handle::new(HOST, 78), 55, b"no such port") < 0);
    assert!(a.send_to(Handle::new(9, 77), 55, b"no such VM") < 0);
    assert!(a.send_to(to_b, 55, &vec![0; MAX_DATAGRAM_PAYLOAD + 1]) < 0);
    assert!(world.router.send_datagram((HOST, 77), (3, 0), b"an event").is_err());
    taps.iter().for_each(|tap| world.router.remove_tap(tap));
    assert_eq!(a.send_to(to_b, 55, b"after"), 29);
    assert_eq!(a.send_to(to_host, 55, b"after"), 29);

    let records = capture.take();
    let (a, b, host) = ((3, 55), (4, 88), (2, 77));
    let first = [(a, b, &b"one"[..]), (b, a, &long)];
    let both = first
        .into_iter()
        .flat_map(|(from, to, payload)| [datagram(0, from, to, payload), datagram(1, from, to, payload)]);
    let own = [datagram(0, a, host, b"question"), datagram(0, host, a, b"answer")];
    assert!(records == both.chain(own).collect::<Vec<_>>(), "{} records", records.len());
    let cut: Vec<(u32, Vec<u8>)> = filtered.take().into_iter().map(|seen| (seen.len, seen.rest)).collect();
    let len = |payload: &[u8]| (HEADER + payload.len()) as u32;
    assert_eq!(cut, [(len(b"question"), b"qu".to_vec()), (len(b"answer"), b"an".to_vec())]);
}

#[test]
fn nothing_is_recorded_once_a_capture_has_ended_under_load() {
    let world = World::new();
    world.router.vms().add(vm(3).vm).unwrap();
    world.router.set_endpoint(3, Arc::new(Sink));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for port in 0..3 {
            let (router, over) = (&world.router, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    router.send_datagram((HOST, port), (3, 77), b"load").unwrap();
                }
            });
        }
        for _ in 0..200 {
            let mut capture = Capture::of_size(0, &[3], usize::MAX, &Filter::default());
            world.router.add_tap(capture.taps[0].clone());
            wait_until("a record", || capture.ring.counts(0).recorded > 0);
            world.router.remove_tap(&capture.taps[0]);
            let counts = capture.ring.counts(0);
            assert_eq!(Arc::strong_count(&capture.taps[0]), 1, "no thread holds the tap any more");
            capture.ring.end();
            assert_eq!(capture.take().len() as u64, counts.recorded);
            assert_eq!(capture.counts(0), counts);
        }
        over.store(true, Ordering::Relaxed);
    });
}
