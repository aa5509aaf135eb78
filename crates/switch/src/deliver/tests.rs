use vmlane_guestsim::memory_port::{LRO, Trap};
use vmlane_port::{MAX_HEAD, Offload};

use super::*;
use crate::allowances::Allowance;
use crate::coalesce::Coalescer;
use crate::table::testing::{Bench, Kind, frame, mac, segments};

const SENDER: Slot = 0;
const RECEIVER: Slot = 1;
const NOT_THERE: Slot = 7;
const TO: To = To { slot: RECEIVER, tag: None, mirror: false };

fn bench() -> Bench {
    Bench::new(&[Kind::Guest, Kind::Guest])
}

/// Delivers a frame that the sender sends, as its turn does. None: something panicked.
fn give(
    bench: &mut Bench,
    bytes: &[u8],
    offload: Offload,
    next: &mut u16,
    to: To,
) -> Option<Result<(), DropReason>> {
    bench.wire(SENDER).send(bytes, offload, None);
    let (mut sender, end) = bench.begin_turn(SENDER);
    let token = sender.tx.burst.take().unwrap();
    sender.tx.burst.done(token);
    let outcome = {
        let (tx, mut scratch) = (end.frame(token), [0; MAX_HEAD]);
        let frame = Frame::new(&tx, &mut scratch).unwrap();
        let sent = frame.check().unwrap();
        bench.table.attributed(SENDER, |table| deliver(&mut Egress::new(), table, SENDER, &sent, next, to))
    };
    bench.end_turn(SENDER, (sender, end));
    outcome
}

fn give_plain(bench: &mut Bench, to: To) -> Option<Result<(), DropReason>> {
    give(bench, &frame(mac(RECEIVER), SENDER, 60, 0), Offload::None, &mut 0, to)
}

#[test]
fn a_frame_is_copied_with_its_tag_and_its_receiver_wants_a_flush() {
    let mut bench = bench();
    let tag = Some(Tci(5));
    assert_eq!(give_plain(&mut bench, To { tag, ..TO }), Some(Ok(())));
    let received = bench.wire(RECEIVER).received();
    assert_eq!((received.len(), received[0].tag), (1, tag));
    assert_eq!(bench.port(RECEIVER).rx.counts.frames, 1);
    bench.table.flush();
    assert_eq!([SENDER, RECEIVER].map(|slot| bench.wire(slot).flushes()), [0, 1]);
}

#[test]
fn a_port_that_is_gone_or_has_nothing_attached_gets_nothing() {
    let mut bench = bench();
    assert_eq!(give_plain(&mut bench, To { slot: NOT_THERE, ..TO }), Some(Err(DropReason::Gone)));
    bench.port(RECEIVER).end = None;
    assert_eq!(give_plain(&mut bench, TO), Some(Err(DropReason::Gone)));
}

#[test]
fn a_refusal_goes_to_the_caller_who_alone_counts_it() {
    let mut bench = bench();
    for reason in [DropReason::NoBuffers, DropReason::BadReceiver] {
        bench.wire(RECEIVER).refuse(Some(reason));
        assert_eq!(give_plain(&mut bench, TO), Some(Err(reason)));
    }
    let port = bench.port(RECEIVER);
    assert_eq!((port.rx.counts.frames, port.stats.drop_no_buffers.get()), (0, 0));
    assert_eq!((port.stats.drop_bad_receiver.get(), port.rx.pending.is_empty()), (0, true));
}

#[test]
fn what_a_receivers_rings_cost_its_owner_pays() {
    let mut bench = bench();
    bench.wire(RECEIVER).set_overhead(2);
    bench.table.ports.begin_round(Allowance { frames: 64, bytes: 0 });
    assert_eq!(give_plain(&mut bench, TO), Some(Ok(())));
    assert_eq!([SENDER, RECEIVER].map(|slot| bench.table.ports.allowances.is_over(slot)), [false, true]);
}

#[test]
fn a_super_frame_goes_on_with_the_segment_that_found_no_buffers() {
    let mut bench = bench();
    let whole = segments(RECEIVER, SENDER, 1, 2000).remove(0);
    let offload = Offload::Segment { header: 54, mss: 500 };
    bench.wire(RECEIVER).set_room(Some(3));
    let mut next = 0;
    assert_eq!(give(&mut bench, &whole, offload, &mut next, TO), Some(Err(DropReason::NoBuffers)));
    assert_eq!((next, bench.received(RECEIVER).len()), (3, 3));
    bench.wire(RECEIVER).set_room(None);
    assert_eq!(give(&mut bench, &whole, offload, &mut next, TO), Some(Ok(())));
    let rest = bench.received(RECEIVER);
    assert_eq!((next, rest.len()), (4, 1));
    assert_eq!(rest[0][54..], whole[54 + 1500..]);
}

#[test]
fn a_panic_of_the_receiver_is_not_the_senders() {
    let mut bench = bench();
    bench.wire(RECEIVER).set_trap(Trap::Deliver);
    assert_eq!(give_plain(&mut bench, TO), None);
    assert_eq!(bench.table.take_failed(), Some(RECEIVER));
    assert_eq!(bench.table.take_failed(), None);
    assert_eq!([SENDER, RECEIVER].map(|slot| bench.wire(slot).failed()), [false, true]);
    assert_eq!(bench.table.stats.panics.get(), 1);
    assert_eq!(give_plain(&mut bench, TO), Some(Err(DropReason::Gone)), "it has no end any more");
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
