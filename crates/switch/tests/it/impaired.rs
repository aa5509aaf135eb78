//! A port behind a bad line: frames that are lost, late or out of order, and the switch's pending queue in
//! front of it.

use std::sync::Arc;
use std::time::Duration;

use vmlane_faults::{FURTHEST, FaultyFrames, Impairment, MAX_HELD};
use vmlane_guestsim::memory_port::Wire;
use vmlane_port::Frames;

use crate::common::{Bench, Guest, frame, mac};

/// A guest whose NIC lies behind a line that can be made bad.
fn faulty(bench: &mut Bench, number: u8) -> (Guest, Arc<FaultyFrames>) {
    let spec = Bench::spec(number);
    let frames = Arc::new(FaultyFrames::new(bench.switch.clone()));
    let (wire, end) = Wire::new(spec.mac);
    let id = bench.switch.add_port(spec).unwrap();
    frames.attach(id, end);
    bench.step();
    let guest = Guest { id, wire, stats: bench.switch.stats(id) };
    (guest, frames)
}

fn impair(bench: &mut Bench, frames: &FaultyFrames, impairment: Impairment) {
    frames.impair(impairment).expect("memory for held frames");
    bench.step();
}

/// A frame from port 1 to port 2 that carries `number`.
fn numbered(number: u32) -> Vec<u8> {
    // Long enough to stay lent while it waits, also for another worker's port.
    let mut frame = frame(mac(2), mac(1), 200, 0);
    frame[20..24].copy_from_slice(&number.to_be_bytes());
    frame
}

fn numbers(guest: &Guest) -> Vec<u32> {
    let number = |frame: Vec<u8>| u32::from_be_bytes(frame[20..24].try_into().expect("four bytes"));
    guest.frames().into_iter().map(number).collect()
}

/// What arrives of `count` frames over such a line, and how many it lost.
fn outcome(impairment: Impairment, count: u32) -> (Vec<u32>, u64) {
    let mut bench = Bench::new();
    let (sender, (receiver, frames)) = (bench.guest(1), faulty(&mut bench, 2));
    impair(&mut bench, &frames, impairment);
    (0..count).for_each(|number| sender.send(&numbered(number)));
    bench.run();
    impair(&mut bench, &frames, Impairment::default());
    assert_eq!(sender.wire.outstanding(), 0);
    assert_eq!(receiver.stats.rx_frames.get(), u64::from(count), "the line took them all");
    (numbers(&receiver), receiver.stats.drop_impaired.get())
}

#[test]
fn a_line_that_loses_long_frames_delivers_the_others() {
    let mut bench = Bench::new();
    let (sender, (receiver, frames)) = (bench.guest(1), faulty(&mut bench, 2));
    impair(&mut bench, &frames, Impairment { longest: 100, ..Impairment::default() });
    for number in 0..10 {
        let mut frame = numbered(number);
        // Every second one is a byte too long.
        frame.resize(if number % 2 == 0 { 100 } else { 101 }, 0);
        sender.send(&frame);
    }
    bench.run();
    assert_eq!(numbers(&receiver), [0, 2, 4, 6, 8]);
    assert_eq!(receiver.stats.drop_impaired.get(), 5);
}

#[test]
fn a_line_that_loses_frames_counts_each_and_keeps_the_others_in_order() {
    let loss = |loss, seed| outcome(Impairment { loss, seed, ..Impairment::default() }, 2000);
    let (got, lost) = loss(100, 7);
    assert_eq!(got.len() as u64 + lost, 2000);
    assert!(got.is_sorted() && (100..300).contains(&lost), "{lost} of 2000");
    assert_eq!(loss(100, 7), (got.clone(), lost), "the same seed loses the same frames");
    assert_ne!(loss(100, 8).0, got);
    assert_eq!(loss(1000, 7), (vec![], 2000));
}

#[test]
fn a_line_that_reorders_frames_delivers_each_once_and_none_much_later() {
    let (got, lost) = outcome(Impairment { reorder: 200, seed: 3, ..Impairment::default() }, 2000);
    let mut sorted = got.clone();
    sorted.sort_unstable();
    assert_eq!((sorted, lost), ((0..2000).collect(), 0));
    let overtaken = |at: usize| got[..at].iter().filter(|&&number| number > got[at]).count();
    let overtaken: Vec<usize> = (0..got.len()).map(overtaken).collect();
    assert!(overtaken.iter().all(|&count| count <= FURTHEST as usize), "{overtaken:?}");
    assert!(overtaken.iter().filter(|&&count| count > 0).count() > 200, "{overtaken:?}");
}

#[test]
fn a_slow_line_holds_so_many_frames_and_the_rest_wait_in_the_switch() {
    let mut bench = Bench::new();
    let (sender, (receiver, frames)) = (bench.guest(1), faulty(&mut bench, 2));
    let other = bench.guest(3);
    impair(&mut bench, &frames, Impairment { delay: Duration::from_secs(3600), ..Impairment::default() });
    (0..150).for_each(|number| sender.send(&numbered(number)));
    sender.send(&frame(mac(3), mac(1), 60, 0));
    bench.run();
    assert_eq!(receiver.stats.pending.get(), 150 - MAX_HELD as u64);
    assert_eq!((numbers(&receiver), sender.wire.outstanding()), (vec![], 150 - MAX_HELD));
    assert_eq!(other.frames().len(), 1, "another receiver's frame waited");
    impair(&mut bench, &frames, Impairment::default());
    bench.run();
    assert_eq!((numbers(&receiver), sender.wire.outstanding()), ((0..150).collect(), 0));
}

#[test]
fn frames_out_of_order_wait_for_a_full_receiver_and_are_finished_once() {
    let mut bench = Bench::new();
    let (sender, (receiver, frames)) = (bench.guest(1), faulty(&mut bench, 2));
    let bad = Impairment { loss: 50, reorder: 300, seed: 5, ..Impairment::default() };
    impair(&mut bench, &frames, bad);
    receiver.wire.set_room(Some(0));
    let mut got = Vec::new();
    for number in 0..1000 {
        sender.send(&numbered(number));
        if number % 10 == 9 {
            receiver.wire.set_room(Some(9));
            bench.run();
            got.extend(numbers(&receiver));
        }
    }
    receiver.wire.set_room(None);
    bench.run();
    impair(&mut bench, &frames, Impairment::default());
    got.extend(numbers(&receiver));
    let arrived = got.len();
    got.sort_unstable();
    got.dedup();
    assert_eq!(got.len(), arrived, "each once");
    assert_eq!(arrived as u64 + receiver.stats.drop_impaired.get(), 1000);
    assert!(receiver.stats.drop_impaired.get() < 200 && receiver.stats.pending.get() > 0);
    assert_eq!(sender.wire.outstanding(), 0);
}

#[test]
fn a_bad_line_stays_bad_when_its_driver_starts_anew_and_a_port_that_leaves_takes_its_frames_along() {
    let mut bench = Bench::new();
    let (sender, (receiver, frames)) = (bench.guest(1), faulty(&mut bench, 2));
    impair(&mut bench, &frames, Impairment { delay: Duration::from_secs(3600), ..Impairment::default() });
    sender.send(&numbered(0));
    bench.run();
    frames.detach(receiver.id);
    bench.step();
    assert!(receiver.wire.dropped() && numbers(&receiver).is_empty());
    impair(&mut bench, &frames, Impairment { loss: 1000, ..Impairment::default() });
    let (wire, end) = Wire::new(mac(2));
    frames.attach(receiver.id, end);
    bench.step();
    sender.send(&numbered(1));
    bench.run();
    assert!(wire.received().is_empty());
    assert_eq!((receiver.stats.drop_impaired.get(), sender.wire.outstanding()), (1, 0));
}
