use std::sync::Arc;

use vmlane_guestsim::memory_port::{LRO, PLAIN, Trap};
use vmlane_port::{FramePort, MAX_HEAD, PortId};
use vmlane_wire::ethernet::Tci;

use super::*;
use crate::allowances::Allowance;
use crate::fdb::{LearnedAddresses, PortInVlan, Sender};
use crate::ingress::Frame;
use crate::table::testing::{Bench, Kind, frame, mac, segments};

const SENDER: Slot = 0;
const RECEIVER: Slot = 1;
const OTHER: Slot = 2;
const REMOTE: Slot = 3;

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Went {
    WithBatch,
    LongWay,
    InFlow,
}

/// The turn of a sender that has fetched its frames, and whose last one before went to some port.
struct Turn {
    bench: Bench,
    fdb: Fdb,
    coalescer: Coalescer,
    sender: Box<Port>,
    end: Box<dyn FramePort>,
}

impl Turn {
    fn new(last_to: Slot, frames: &[Vec<u8>]) -> Turn {
        Turn::of(last_to, |bench| {
            frames.iter().for_each(|frame| bench.wire(SENDER).send(frame, Offload::None, None));
        })
    }

    fn of(last_to: Slot, prepare: impl FnOnce(&mut Bench)) -> Turn {
        let mut bench = Bench::new(&[Kind::Guest, Kind::Guest, Kind::Guest, Kind::Remote]);
        let mut fdb = Fdb::new(Arc::new(LearnedAddresses::new()));
        fdb.rebuild(bench.table.rebuild().0.into_iter());
        prepare(&mut bench);
        let (mut sender, end) = bench.begin_turn(SENDER);
        let own = mac(SENDER);
        let of = Sender { slot: SENDER, group: 0, uplink: false, teamed: false, own, remote: false };
        let addresses = [mac(last_to), mac(SENDER)];
        let port = |_| Some(PortInVlan { uplink: false });
        let found = fdb.find(of, &mut sender.tx.route, addresses, (0, false), port);
        assert!(found.is_ok() && sender.tx.route.receiver == last_to);
        Turn { bench, fdb, coalescer: Coalescer::new(), sender, end }
    }

    /// Takes all frames through the batch, as a round does, and delivers it.
    fn send(&mut self) -> Vec<Went> {
        let Turn { bench, fdb, coalescer, sender, end } = self;
        let table = &mut bench.table;
        let mut batch = Batch::default();
        let mut went = Vec::new();
        while let Some(token) = sender.tx.burst.take() {
            let tx = end.frame(token);
            let fetched = Fetched { end: &**end, token, tx: &tx };
            let takes = batch.takes(table, fdb, sender, &tx);
            let joined = takes.then(|| batch.join(table, coalescer, SENDER, sender, &fetched));
            went.push(match joined {
                Some(Joined::Yes) => Went::WithBatch,
                Some(Joined::Flow(_)) => Went::InFlow,
                Some(Joined::No) | None => Went::LongWay,
            });
        }
        table.attributed(SENDER, |table| batch.deliver(table, SENDER, sender));
        went
    }

    /// Opens a flow with the first frame.
    fn open_flow(&mut self) {
        let Turn { coalescer, sender, end, .. } = self;
        let token = sender.tx.burst.take().unwrap();
        let (tx, mut scratch) = (end.frame(token), [0; MAX_HEAD]);
        let frame = Frame::new(&tx, &mut scratch).unwrap();
        let sent = frame.check().unwrap();
        let flight = sender.flight(SENDER, sent, (&**end, token), 0);
        assert!(coalescer.open(&flight, &Segment::of(&sent).unwrap(), (RECEIVER, None), LRO.aggregate));
    }
}

/// Numbered frames.
fn frames(to: Slot, count: u8, len: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| frame(mac(to), SENDER, len, number)).collect()
}

#[test]
fn only_a_frame_to_which_nothing_is_to_be_done_and_that_goes_the_last_ones_way_is_taken() {
    let plain = frame(mac(RECEIVER), SENDER, 60, 0);
    let tagged = [&plain[..12], &[0x81, 0, 0, 5], &plain[12..]].concat();
    let checksum = Offload::Checksum { start: 20, field: 30 };
    for (what, bytes, offload, tag, taken) in [
        ("the same way", plain.clone(), Offload::None, None, true),
        ("the longest", frame(mac(RECEIVER), SENDER, PLAIN.frame, 0), Offload::None, None, true),
        ("too long", frame(mac(RECEIVER), SENDER, PLAIN.frame + 1, 0), Offload::None, None, false),
        ("to another", frame(mac(OTHER), SENDER, 60, 0), Offload::None, None, false),
        ("from another address", frame(mac(RECEIVER), OTHER, 60, 0), Offload::None, None, false),
        ("tag out of band", plain.clone(), Offload::None, Some(Tci(0)), false),
        ("tag in band", tagged, Offload::None, None, false),
        ("offload", plain.clone(), checksum, None, false),
        ("no header", plain[..13].to_vec(), Offload::None, None, false),
    ] {
        let mut turn = Turn::of(RECEIVER, |bench| bench.wire(SENDER).send(&bytes, offload, tag));
        assert_eq!(turn.send(), [if taken { Went::WithBatch } else { Went::LongWay }], "{what}");
        assert_eq!(turn.bench.received(RECEIVER), if taken { vec![bytes] } else { vec![] }, "{what}");
    }
}

#[test]
fn a_receiver_that_is_not_ready_or_gets_more_than_plain_frames_has_the_long_way() {
    type Case = (&'static str, Slot, fn(&mut Turn), Went);
    let cases: [Case; 13] = [
        ("ready", RECEIVER, |_| (), Went::WithBatch),
        ("gone", RECEIVER, |turn| turn.bench.table.ports.remove(PortId(2)), Went::LongWay),
        ("detached", RECEIVER, |turn| turn.bench.port(RECEIVER).end = None, Went::LongWay),
        ("stalled", RECEIVER, |turn| turn.bench.port(RECEIVER).set_stalled(true), Went::LongWay),
        ("others wait", RECEIVER, |turn| turn.bench.wait(OTHER, RECEIVER, &[sent_by(OTHER)]), Went::LongWay),
        ("over its allowance", RECEIVER, |turn| overdraw(&mut turn.bench, RECEIVER), Went::LongWay),
        ("wants nothing", RECEIVER, |turn| turn.bench.port(RECEIVER).access.own = false, Went::LongWay),
        ("has another address", RECEIVER, change_address, Went::LongWay),
        ("tables are new", RECEIVER, |turn| turn.fdb.rebuild(std::iter::empty()), Went::LongWay),
        ("remote", REMOTE, |_| (), Went::WithBatch),
        ("remote and moves", REMOTE, |turn| turn.bench.port(REMOTE).transfer.moving = true, Went::LongWay),
        (
            "remote, others wait",
            REMOTE,
            |turn| turn.bench.wait(OTHER, REMOTE, &[sent_by(OTHER)]),
            Went::WithBatch,
        ),
        ("from remote to remote", REMOTE, |turn| turn.sender.remote = Some(2), Went::LongWay),
    ];
    for (what, to, change, went) in cases {
        let mut turn = Turn::new(to, &frames(to, 1, 60));
        change(&mut turn);
        assert_eq!(turn.send(), [went], "{what}");
    }
}

fn sent_by(slot: Slot) -> Vec<u8> {
    frame(mac(RECEIVER), slot, 60, 0)
}

fn change_address(turn: &mut Turn) {
    turn.bench.port(RECEIVER).access.effective = mac(OTHER);
}

fn overdraw(bench: &mut Bench, owner: u16) {
    bench.table.ports.begin_round(Allowance { frames: 64, bytes: 1000 });
    bench.table.ports.allowances.charge(owner, 1001);
}

#[test]
fn a_watched_group_has_the_long_way() {
    let mut turn = Turn::of(RECEIVER, |bench| {
        bench.port(OTHER).config.policy.promiscuous = true;
        bench.wire(OTHER).change_filter(|filter| filter.promiscuous = true);
        bench.port(OTHER).end.iter_mut().for_each(|end| end.refresh());
        bench.table.rebuild();
        bench.wire(SENDER).send(&sent_by(SENDER), Offload::None, None);
    });
    assert_eq!(turn.send(), [Went::LongWay]);
}

#[test]
fn a_receiver_is_judged_once_and_anew_after_the_batch_has_ended() {
    let Turn { mut bench, fdb, sender, end, .. } = Turn::new(RECEIVER, &frames(RECEIVER, 1, 60));
    let tx = end.frame(sender.tx.burst.undone(0, 0).unwrap());
    let mut batch = Batch::default();
    assert!(batch.takes(&bench.table, &fdb, &sender, &tx));
    bench.port(RECEIVER).set_stalled(true);
    assert!(batch.takes(&bench.table, &fdb, &sender, &tx));
    batch.end();
    assert!(!batch.takes(&bench.table, &fdb, &sender, &tx));
}

#[test]
fn a_flow_may_hold_what_can_be_merged_and_what_may_be_of_one_that_is_open() {
    let edited = |at: usize, value: u8| {
        let mut bytes = segments(RECEIVER, SENDER, 2, 500).remove(1);
        bytes[at] = value;
        bytes
    };
    let [tcp, push, udp, icmp] = [(47, 0x10), (47, 0x18), (23, 17), (23, 1)].map(|(at, to)| edited(at, to));
    let arp = frame(mac(RECEIVER), SENDER, 60, 0);
    for (what, bytes, alone, in_open_flow) in [
        ("TCP", tcp, Went::InFlow, Went::InFlow),
        ("TCP that ends a flow", push, Went::WithBatch, Went::InFlow),
        ("UDP", udp, Went::WithBatch, Went::WithBatch),
        ("IP of another kind", icmp, Went::WithBatch, Went::InFlow),
        ("no IP", arp, Went::WithBatch, Went::WithBatch),
    ] {
        let last = frame(mac(RECEIVER), SENDER, 60, 0);
        let sent = [segments(RECEIVER, SENDER, 1, 500).remove(0), bytes, last];
        for (open, expected) in [(false, alone), (true, in_open_flow)] {
            let mut turn = Turn::new(RECEIVER, &sent[usize::from(!open)..]);
            turn.bench.set_capabilities(RECEIVER, LRO);
            if open {
                turn.open_flow();
            }
            assert_eq!(turn.send()[0], expected, "{what}, a flow is open: {open}");
        }
    }
}

#[test]
fn nothing_is_held_for_a_receiver_that_takes_no_super_frames_nor_without_a_frame_behind_it() {
    let sent = segments(RECEIVER, SENDER, 2, 500);
    let went = |capabilities, coalesce| {
        let mut turn = Turn::new(RECEIVER, &sent);
        turn.bench.set_capabilities(RECEIVER, capabilities);
        turn.bench.table.settings.coalesce = coalesce;
        turn.send()
    };
    assert_eq!(went(LRO, true), [Went::InFlow, Went::WithBatch], "the last one of its burst opens none");
    assert_eq!(went(PLAIN, true), [Went::WithBatch; 2]);
    assert_eq!(went(LRO, false), [Went::WithBatch; 2]);
}

#[test]
fn a_receiver_without_buffers_in_the_middle_of_a_burst_has_the_rest_wait_in_order() {
    let sent = frames(RECEIVER, 5, 60);
    let mut turn = Turn::new(RECEIVER, &sent);
    turn.bench.wire(RECEIVER).set_room(Some(2));
    assert_eq!(turn.send(), [Went::WithBatch; 5]);
    assert_eq!(turn.bench.received(RECEIVER), sent[..2]);
    assert_eq!(turn.sender.tx.burst.count_done(), 2);
    let Turn { mut bench, end, .. } = turn;
    let port = bench.port(RECEIVER);
    assert_eq!((port.rx.counts.frames, port.rx.counts.bytes, port.stats.pending.get()), (2, 120, 3));
    let waiting: Vec<_> = port.rx.pending.frames().map(|frame| end.frame(frame.token).head[59]).collect();
    assert_eq!(waiting, [2, 3, 4]);
}

#[test]
fn what_cannot_wait_is_counted_and_done_with() {
    type Case = (&'static str, fn(&Bench), fn(&PortStats) -> u64);
    let cases: [Case; 2] = [
        (
            "refused for good",
            |bench| bench.wire(RECEIVER).refuse(Some(DropReason::BadReceiver)),
            |stats| stats.drop_bad_receiver.get(),
        ),
        (
            "no places to wait in",
            |bench| bench.wire(RECEIVER).refuse(Some(DropReason::NoBuffers)),
            |stats| stats.drop_slow_receiver.get(),
        ),
    ];
    for (what, prepare, dropped) in cases {
        let mut turn = Turn::new(RECEIVER, &frames(RECEIVER, 3, 60));
        turn.bench.table.held.set_places(SENDER, 0);
        prepare(&turn.bench);
        assert_eq!(turn.send(), [Went::WithBatch; 3]);
        assert_eq!(turn.sender.tx.burst.count_done(), 3, "{what}");
        assert_eq!(turn.bench.waiting(RECEIVER), 0, "{what}");
        assert_eq!(dropped(&turn.bench.port(RECEIVER).stats), 3, "{what}");
    }
}

#[test]
fn a_panic_of_the_receiver_fails_it_and_leaves_none_of_the_senders_frames_in_flight() {
    let mut turn = Turn::new(RECEIVER, &frames(RECEIVER, 3, 60));
    turn.bench.wire(RECEIVER).set_trap(Trap::Deliver);
    turn.send();
    assert_eq!(turn.bench.table.take_failed(), Some(RECEIVER));
    assert_eq!(turn.sender.tx.burst.count_done(), 3);
    assert!(turn.bench.wire(RECEIVER).failed() && !turn.bench.wire(SENDER).failed());
}

#[test]
fn a_frame_for_another_workers_port_is_handed_over_at_once_and_a_long_one_stays_in_flight() {
    let [short, long] = [60, 9000].map(|len| frame(mac(REMOTE), SENDER, len, 0));
    let mut turn = Turn::new(REMOTE, &[short, long]);
    assert_eq!(turn.send(), [Went::WithBatch; 2]);
    assert_eq!(turn.bench.handed_over(), [60, 9000]);
    assert_eq!(turn.sender.tx.burst.count_done(), 1);
    assert!(turn.bench.received(REMOTE).is_empty() && turn.bench.waiting(REMOTE) == 0);
}

#[test]
fn those_behind_a_frame_that_was_not_handed_over_are_judged_anew() {
    let mut turn = Turn::new(REMOTE, &frames(REMOTE, 2, 60));
    turn.bench.port(REMOTE).remote = Some(7);
    let Turn { bench, fdb, coalescer, sender, end } = &mut turn;
    let token = sender.tx.burst.take().unwrap();
    let tx = end.frame(token);
    let fetched = Fetched { end: &**end, token, tx: &tx };
    let mut batch = Batch::default();
    assert!(batch.takes(&bench.table, fdb, sender, &tx));
    let joined = batch.join(&mut bench.table, coalescer, SENDER, sender, &fetched);
    assert!(matches!(joined, Joined::No), "there is no such worker");
    bench.wait(OTHER, REMOTE, &[sent_by(OTHER)]);
    bench.port(REMOTE).transfer.moving = true;
    assert!(!batch.takes(&bench.table, fdb, sender, &tx));
    assert_eq!(sender.tx.burst.count_done(), 0);
}
