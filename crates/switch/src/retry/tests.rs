use std::time::Duration;

use vmlane_guestsim::memory_port::{LRO, Trap};
use vmlane_port::Offload;

use super::*;
use crate::allowances::Allowance;
use crate::table::testing::{Bench, Kind, frame, mac, segments};

const SENDER: Slot = 0;
const RECEIVER: Slot = 1;
const OTHER: Slot = 2;
const REMOTE: Slot = 3;
/// Frames of one owner that may be handed over at once: half of all places.
const PART: usize = crate::handover::PLACES / 2;

struct Stage {
    bench: Bench,
    egress: Egress,
    coalescer: Coalescer,
}

impl Stage {
    fn new() -> Stage {
        let bench = Bench::new(&[Kind::Guest, Kind::Guest, Kind::Guest, Kind::Remote]);
        Stage { bench, egress: Egress::new(), coalescer: Coalescer::new() }
    }

    /// Has `count` frames of the sender wait for a port.
    fn wait(&mut self, receiver: Slot, count: usize, len: usize) -> Vec<Vec<u8>> {
        let frames: Vec<_> =
            (0..count).map(|number| frame(mac(receiver), SENDER, len, number as u8)).collect();
        self.bench.wait(SENDER, receiver, &frames);
        frames
    }

    fn run(&mut self) -> bool {
        let Stage { bench, egress, coalescer } = self;
        Retry { table: &mut bench.table, egress, coalescer }.all()
    }

    fn pass(&mut self, milliseconds: u64) {
        self.bench.table.now += Duration::from_millis(milliseconds);
    }

    /// Frames that the sender's guest has in flight.
    fn in_flight(&self) -> usize {
        self.bench.wire(SENDER).outstanding()
    }

    /// How many frames were dropped at a port for lack of buffers, and because it is slow.
    fn dropped(&mut self, slot: Slot) -> (u64, u64) {
        let stats = &self.bench.port(slot).stats;
        (stats.drop_no_buffers.get(), stats.drop_slow_receiver.get())
    }
}

#[test]
fn frames_that_waited_are_delivered_in_order_as_far_as_there_is_room() {
    let mut stage = Stage::new();
    let sent = stage.wait(RECEIVER, 5, 60);
    stage.bench.wire(RECEIVER).set_room(Some(0));
    assert!(!stage.run());
    assert_eq!((stage.in_flight(), stage.bench.table.waiting), (5, 1));
    stage.bench.wire(RECEIVER).set_room(Some(3));
    assert!(stage.run());
    assert_eq!(stage.bench.received(RECEIVER), sent[..3]);
    assert_eq!((stage.in_flight(), stage.bench.waiting(RECEIVER)), (2, 2));
    stage.bench.wire(RECEIVER).set_room(None);
    assert!(stage.run() && !stage.run());
    assert_eq!(stage.bench.received(RECEIVER), sent[3..]);
    assert_eq!((stage.in_flight(), stage.bench.table.waiting), (0, 0));
}

#[test]
fn a_super_frame_goes_on_with_the_segment_that_found_no_room() {
    let mut stage = Stage::new();
    let whole = segments(RECEIVER, SENDER, 1, 2000).remove(0);
    stage.bench.wire(SENDER).send(&whole, Offload::Segment { header: 54, mss: 500 }, None);
    stage.bench.wait_sent(SENDER, RECEIVER);
    for (room, received) in [(Some(1), 1), (Some(2), 2), (None, 1)] {
        stage.bench.wire(RECEIVER).set_room(room);
        assert!(stage.run());
        assert_eq!(stage.bench.received(RECEIVER).len(), received);
    }
    assert_eq!(stage.in_flight(), 0);
}

#[test]
fn segments_that_waited_are_merged_or_go_one_by_one_where_the_whole_has_no_room() {
    for (longest, merged) in [(None, true), (Some(600), false)] {
        let mut stage = Stage::new();
        stage.bench.set_capabilities(RECEIVER, LRO);
        stage.bench.wire(RECEIVER).set_longest(longest);
        stage.bench.wait(SENDER, RECEIVER, &segments(RECEIVER, SENDER, 4, 500));
        assert!(stage.run());
        let received = stage.bench.wire(RECEIVER).received();
        let whole: Vec<_> = received.iter().map(|one| one.aggregate.map(|whole| whole.segments)).collect();
        assert_eq!(whole, if merged { vec![Some(4)] } else { vec![None; 4] });
        assert_eq!(stage.in_flight(), 0);
    }
}

#[test]
fn a_receiver_that_took_nothing_for_the_longest_wait_loses_all_and_is_stalled_until_it_has_room() {
    let mut stage = Stage::new();
    stage.wait(RECEIVER, 3, 60);
    stage.bench.wire(RECEIVER).set_room(Some(0));
    stage.pass(50);
    assert!(!stage.run());
    assert_eq!((stage.in_flight(), stage.bench.port(RECEIVER).rx.pending.stalled), (3, false));
    stage.pass(1);
    stage.run();
    assert_eq!((stage.in_flight(), stage.dropped(RECEIVER)), (0, (3, 0)));
    assert!(stage.bench.port(RECEIVER).rx.pending.stalled);
    stage.bench.wire(RECEIVER).set_room(Some(1));
    stage.run();
    assert!(!stage.bench.port(RECEIVER).rx.pending.stalled);
}

#[test]
fn frames_of_a_sender_to_several_wait_for_less_time_and_are_dropped_one_by_one() {
    for (took, dropped) in [(false, (2, 0)), (true, (0, 1))] {
        let mut stage = Stage::new();
        let now = stage.bench.table.now;
        [OTHER, RECEIVER].into_iter().for_each(|owner| stage.bench.table.held.note(SENDER, owner, now));
        stage.wait(RECEIVER, 2, 60);
        stage.pass(4);
        stage.bench.wire(RECEIVER).set_room(Some(usize::from(took)));
        stage.wait(RECEIVER, 1, 60);
        assert_eq!(stage.run(), took);
        stage.pass(2);
        stage.run();
        assert_eq!(stage.dropped(RECEIVER), dropped, "it took one: {took}");
        assert_eq!((stage.bench.waiting(RECEIVER), stage.in_flight()), (1, 1), "the last one may still wait");
        assert!(!stage.bench.port(RECEIVER).rx.pending.stalled);
    }
}

#[test]
fn a_receiver_over_its_allowance_is_left_until_that_is_paid_for() {
    let mut stage = Stage::new();
    let sent = stage.wait(RECEIVER, 2, 60);
    let others = stage.wait(OTHER, 1, 60);
    let share = Allowance { frames: 64, bytes: 1000 };
    stage.bench.table.ports.begin_round(share);
    stage.bench.table.ports.allowances.charge(RECEIVER, 1001);
    assert!(stage.run());
    assert!(stage.bench.received(RECEIVER).is_empty());
    assert_eq!(stage.bench.received(OTHER), others);
    stage.bench.table.ports.begin_round(share);
    assert!(stage.run());
    assert_eq!(stage.bench.received(RECEIVER), sent);
}

#[test]
fn a_receiver_whose_rings_cost_more_than_its_allowance_is_left_in_the_middle() {
    let mut stage = Stage::new();
    stage.wait(RECEIVER, 3, 60);
    stage.bench.table.ports.begin_round(Allowance { frames: 64, bytes: PIECE_COST });
    stage.bench.wire(RECEIVER).set_overhead(1);
    assert!(stage.run());
    assert_eq!(stage.bench.received(RECEIVER).len(), 2, "the second one is more than it may cost");
}

#[test]
fn what_waits_for_another_workers_port_is_handed_over_as_far_as_there_are_places() {
    let mut stage = Stage::new();
    stage.wait(REMOTE, PART + 2, 60);
    assert!(stage.run());
    assert_eq!(stage.bench.handed_over(), [60; PART]);
    assert_eq!((stage.bench.waiting(REMOTE), stage.in_flight()), (2, 2));
    assert!(!stage.run(), "no place is free");
    stage.pass(51);
    stage.run();
    assert_eq!((stage.dropped(REMOTE), stage.in_flight()), ((2, 0), 0));
    assert!(!stage.bench.port(REMOTE).rx.pending.stalled, "its own worker knows whether it has room");
}

#[test]
fn a_long_frame_that_was_handed_over_stays_in_flight() {
    let mut stage = Stage::new();
    stage.wait(REMOTE, 2, 9000);
    assert!(stage.run());
    assert_eq!(stage.bench.handed_over(), [9000; 2]);
    assert_eq!((stage.bench.waiting(REMOTE), stage.in_flight()), (0, 2));
}

#[test]
fn what_waits_for_a_port_that_moves_waits_on() {
    let mut stage = Stage::new();
    for slot in [RECEIVER, REMOTE] {
        stage.wait(slot, 2, 60);
        stage.bench.port(slot).transfer.moving = true;
    }
    stage.pass(51);
    assert!(!stage.run());
    assert_eq!((stage.bench.handed_over().len(), stage.bench.received(RECEIVER).len()), (0, 0));
    assert_eq!(stage.in_flight(), 4);
}

#[test]
fn a_frame_whose_sender_is_gone_is_dropped() {
    for receiver in [RECEIVER, REMOTE] {
        let mut stage = Stage::new();
        stage.wait(receiver, 2, 60);
        stage.bench.port(SENDER).end = None;
        assert!(stage.run());
        assert_eq!(stage.bench.port(receiver).stats.drop_gone.get(), 2);
        assert_eq!(stage.bench.waiting(receiver), 0);
    }
}

#[test]
fn a_panic_fails_the_port_whose_code_it_was_and_no_other_one() {
    for (trap, failed) in [(Trap::Deliver, RECEIVER), (Trap::Finish, SENDER)] {
        let mut stage = Stage::new();
        stage.wait(RECEIVER, 1, 60);
        stage.bench.wait(OTHER, REMOTE, &[frame(mac(REMOTE), OTHER, 60, 0)]);
        stage.bench.wire(failed).set_trap(trap);
        stage.run();
        assert_eq!(stage.bench.table.take_failed(), Some(failed), "{trap:?}");
        assert_eq!(stage.bench.table.take_failed(), None, "{trap:?}");
        assert_eq!(stage.bench.handed_over(), [60], "{trap:?}: the next receiver is served");
        for slot in [SENDER, RECEIVER, OTHER, REMOTE] {
            assert_eq!(stage.bench.wire(slot).failed(), slot == failed, "{trap:?}");
        }
    }
}

#[test]
fn panics_of_receivers_of_merged_frames_leave_the_memory_for_others_flows() {
    let mut stage = Stage::new();
    for _ in 0..16 {
        stage.bench = Bench::new(&[Kind::Guest, Kind::Guest]);
        stage.bench.set_capabilities(RECEIVER, LRO);
        stage.bench.wire(RECEIVER).set_trap(Trap::Deliver);
        stage.bench.wait(SENDER, RECEIVER, &segments(RECEIVER, SENDER, 2, 500));
        stage.run();
        assert_eq!(stage.bench.table.take_failed(), Some(RECEIVER));
    }
    assert!(!stage.coalescer.is_full());
}
