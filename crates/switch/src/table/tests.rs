use vmlane_guestsim::memory_port::Trap;
use vmlane_port::{MAX_HEAD, Offload};
use vmlane_wire::ethernet::Tci;

use super::testing::{Bench, Kind, frame, mac, segments};
use super::*;
use crate::allowances::Allowance;
use crate::egress::Egress;
use crate::ingress::Frame;

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
        let mut egress = Egress::new();
        bench.table.attributed(SENDER, |table| {
            table.deliver(SENDER, to, |receiver| egress.deliver(&sent, next, receiver))
        })
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
