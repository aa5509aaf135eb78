use vmlane_guestsim::memory_port::{LRO, Trap};
use vmlane_port::{MAX_HEAD, Offload};

use super::*;
use crate::allowances::Allowance;
use crate::coalesce::Coalescer;
use crate::table::testing::{Bench, Kind, frame, mac, segments};

const SENDER: Slot = 0;
const RECEIVER: Slot = 1;

fn bench() -> Bench {
    Bench::new(&[Kind::Guest, Kind::Guest])
}

/// Closes a flow of these segments. Returns how many of its frames are to wait, the last ones, and none if
/// something panicked.
fn close(bench: &mut Bench, frames: &[Vec<u8>]) -> Option<usize> {
    frames.iter().for_each(|frame| bench.wire(SENDER).send(frame, Offload::None, None));
    let (mut sender, end) = bench.begin_turn(SENDER);
    let mut coalescer = Coalescer::new();
    let mut flow = coalescer.take_free().unwrap();
    let mut tokens = Vec::new();
    while let Some(token) = sender.tx.burst.take() {
        let (tx, mut scratch) = (end.frame(token), [0; MAX_HEAD]);
        let frame = Frame::new(&tx, &mut scratch).unwrap();
        let sent = frame.check().unwrap();
        let longest = |_: &_| Some(LRO.aggregate);
        assert!(coalescer.gather(&mut flow, &sent, (&*end, token), (RECEIVER, None), longest));
        tokens.push(token);
    }
    let mut waits = Vec::new();
    let delivered = bench.table.attributed(SENDER, |table| {
        deliver_flow(&mut Egress::new(), table, &flow, (SENDER, &*end), |token| waits.push(token));
    });
    assert!(tokens.ends_with(&waits), "those behind one that waits do so, too");
    sender.end = Some(end);
    bench.table.ports.put(SENDER, sender);
    delivered.map(|()| waits.len())
}

/// What a receiver that takes super-frames got: how many segments each has.
fn got(bench: &Bench) -> Vec<u16> {
    let received = bench.wire(RECEIVER).received();
    received.iter().map(|frame| frame.aggregate.map_or(1, |whole| whole.segments)).collect()
}

#[test]
fn a_flow_goes_whole_or_as_its_segments_and_those_without_buffers_wait() {
    type Case = (&'static str, fn(&mut Bench), Vec<u16>, usize);
    let cases: [Case; 7] = [
        ("room for all", |_| (), vec![3], 0),
        ("no room for the whole", |bench| bench.wire(RECEIVER).set_longest(Some(600)), vec![1, 1, 1], 0),
        ("room for one", for_one, vec![1], 2),
        ("no room", |bench| bench.wire(RECEIVER).set_room(Some(0)), vec![], 3),
        ("others wait", others_wait, vec![], 3),
        ("over its allowance", overdraw, vec![3], 0),
        ("over its allowance, no room for the whole", overdrawn_and_short, vec![], 3),
    ];
    for (what, prepare, expected, waits) in cases {
        let mut bench = bench();
        bench.set_capabilities(RECEIVER, LRO);
        prepare(&mut bench);
        let before = bench.waiting(RECEIVER);
        assert_eq!(close(&mut bench, &segments(RECEIVER, SENDER, 3, 500)), Some(waits), "{what}");
        assert_eq!(got(&bench), expected, "{what}");
        assert_eq!(bench.waiting(RECEIVER), before + waits, "{what}");
    }
}

fn for_one(bench: &mut Bench) {
    bench.wire(RECEIVER).set_longest(Some(600));
    bench.wire(RECEIVER).set_room(Some(1));
}

fn others_wait(bench: &mut Bench) {
    bench.wait(SENDER, RECEIVER, &[frame(mac(RECEIVER), SENDER, 60, 0)]);
}

fn overdraw(bench: &mut Bench) {
    bench.table.ports.begin_round(Allowance { frames: 64, bytes: 1000 });
    bench.table.ports.allowances.charge(RECEIVER, 1001);
}

fn overdrawn_and_short(bench: &mut Bench) {
    overdraw(bench);
    bench.wire(RECEIVER).set_longest(Some(600));
}

#[test]
fn the_segments_of_a_flow_that_is_not_delivered_whole_are_as_they_were_sent() {
    let mut bench = bench();
    bench.set_capabilities(RECEIVER, LRO);
    bench.wire(RECEIVER).set_longest(Some(600));
    let sent = segments(RECEIVER, SENDER, 3, 500);
    assert_eq!(close(&mut bench, &sent), Some(0));
    assert_eq!(bench.received(RECEIVER), sent);
}

#[test]
fn each_segment_that_is_lost_is_counted_and_none_of_them_waits() {
    type Case = (&'static str, fn(&mut Bench), DropReason);
    let cases: [Case; 3] = [
        ("nothing attached", |bench| bench.port(RECEIVER).end = None, DropReason::Gone),
        (
            "refused",
            |bench| bench.wire(RECEIVER).refuse(Some(DropReason::BadReceiver)),
            DropReason::BadReceiver,
        ),
        ("no place to wait in", without_places, DropReason::SlowReceiver),
    ];
    for (what, prepare, reason) in cases {
        let mut bench = bench();
        bench.set_capabilities(RECEIVER, LRO);
        prepare(&mut bench);
        assert_eq!(close(&mut bench, &segments(RECEIVER, SENDER, 3, 500)), Some(0), "{what}");
        let stats = &bench.port(RECEIVER).stats;
        let counter = match reason {
            DropReason::Gone => &stats.drop_gone,
            DropReason::BadReceiver => &stats.drop_bad_receiver,
            _ => &stats.drop_slow_receiver,
        };
        assert_eq!(counter.get(), 3, "{what}");
        assert_eq!(bench.waiting(RECEIVER), 0, "{what}");
    }
}

fn without_places(bench: &mut Bench) {
    bench.wire(RECEIVER).set_room(Some(0));
    bench.table.held.set_places(SENDER, 0);
}

#[test]
fn a_panic_of_the_receiver_of_a_flow_is_not_the_senders() {
    let mut bench = bench();
    bench.set_capabilities(RECEIVER, LRO);
    bench.wire(RECEIVER).set_trap(Trap::Deliver);
    assert_eq!(close(&mut bench, &segments(RECEIVER, SENDER, 2, 500)), None);
    assert_eq!(bench.table.take_failed(), Some(RECEIVER));
    assert!(!bench.wire(SENDER).failed());
}
