use super::queue::MAX_PENDING;
use super::*;
use std::sync::Arc;

use proptest::prelude::*;
use vmlane_guestsim::memory_port::Wire;
use vmlane_port::{Offload, PortId, PortStats};
use vmlane_wire::ethernet::Mac;

use crate::access::Config;
use crate::core::{Core, Place};
use crate::port::{Numbered, Port};
use crate::spec::{Policy, PortSpec, Settings, Traffic, VlanMode};

const HOLD: Duration = Duration::from_millis(5);
const MILLISECOND: Duration = Duration::from_millis(1);

fn frame(sender: Slot, number: u32, since: Instant) -> PendingFrame {
    PendingFrame { sender, token: Token(number), len: 1514, tag: None, next: 0, since }
}

/// An owner with normal shares.
fn owner(owner: u16) -> Claim {
    Claim { owner, shares: 100 }
}

/// Takes out the frame that has waited for longer than `hold` and longest of all.
fn pop_expired(queue: &mut PendingQueue, now: Instant, hold: Duration) -> Option<PendingFrame> {
    let owner = queue.find_expired(now, |_| hold)?;
    queue.take_expired(owner)
}

#[test]
fn frames_expire_one_by_one_and_a_receiver_that_takes_some_is_not_overdue() {
    let start = Instant::now();
    let mut queue = PendingQueue::new(start);
    assert!((0..10).all(|number| queue.push(frame(1, number, start + MILLISECOND * number), owner(1))));
    let now = start + HOLD + 3 * MILLISECOND;
    assert!(queue.is_overdue(now, HOLD));
    assert!(queue.pop(now).is_some_and(|front| front.token == Token(0)));
    assert!(!queue.is_overdue(now, HOLD), "it took one");
    let expired: Vec<_> =
        std::iter::from_fn(|| pop_expired(&mut queue, now, HOLD)).map(|one| one.token.0).collect();
    assert_eq!(expired, [1, 2]);
    assert!(queue.is_overdue(now + 2 * HOLD, HOLD), "what has expired was not taken");
}

#[test]
fn the_number_is_bounded_and_senders_are_taken_out() {
    let now = Instant::now();
    let mut queue = PendingQueue::new(now);
    let of = |number: u32| number as Slot % 2;
    let taken = (0..2000).filter(|&number| queue.push(frame(of(number), number, now), owner(of(number))));
    assert_eq!(taken.count(), MAX_PENDING);
    assert_eq!(queue.remove_of(0).len(), MAX_PENDING / 2);
    assert!(queue.remove_of(0).is_empty() && queue.remove_of(77).is_empty());
    assert!(queue.front().is_some_and(|front| front.sender == 1));
    assert!(queue.advance(3, now) && !queue.advance(3, now));
}

/// Has two owners always have frames of so many bytes waiting, and a receiver take `count`: bytes of each.
fn served(claims: [Claim; 2], lens: [u32; 2], count: usize) -> [u64; 2] {
    let now = Instant::now();
    let mut queue = PendingQueue::new(now);
    let mut bytes = [0, 0];
    let mut waiting = [0, 0];
    for number in 0..count {
        for (at, claim) in claims.iter().enumerate() {
            while waiting[at] < 10 {
                let one = PendingFrame { len: lens[at], ..frame(at as Slot, number as u32, now) };
                assert!(queue.push(one, *claim));
                waiting[at] += 1;
            }
        }
        let taken = queue.pop(now).unwrap();
        bytes[usize::from(taken.sender)] += u64::from(taken.len);
        waiting[usize::from(taken.sender)] -= 1;
    }
    bytes
}

#[test]
fn owners_get_a_receivers_room_by_their_shares_whatever_the_length_of_their_frames() {
    for (shares, lens) in
        [([100, 100], [1514, 60]), ([100, 300], [1514, 1514]), ([1, 1000], [60, 1514]), ([7, 3], [60, 9000])]
    {
        let claims = [0, 1].map(|owner| Claim { owner, shares: shares[usize::from(owner)] });
        let bytes = served(claims, lens, 200_000);
        let (ratio, wanted) =
            (bytes[0] as f64 / bytes[1] as f64, f64::from(shares[0]) / f64::from(shares[1]));
        assert!((ratio / wanted - 1.0).abs() < 0.02, "{bytes:?} for {shares:?}");
    }
}

#[test]
fn silence_costs_others_nothing_and_gains_nothing() {
    let now = Instant::now();
    let mut queue = PendingQueue::new(now);
    let push = |queue: &mut PendingQueue, sender, count: u32| {
        (0..count).for_each(|number| assert!(queue.push(frame(sender, number, now), owner(sender))));
    };
    let pop = |queue: &mut PendingQueue, count: usize| {
        let taken: Vec<Slot> = (0..count).map(|_| queue.pop(now).unwrap().sender).collect();
        [1, 2].map(|sender| taken.iter().filter(|one| **one == sender).count())
    };
    push(&mut queue, 1, 400);
    assert_eq!(pop(&mut queue, 200), [200, 0], "one alone has all");
    push(&mut queue, 2, 200);
    let [first, second] = pop(&mut queue, 100);
    assert!(first.abs_diff(second) <= 1, "{first} and {second}: not what was missed before");
}

#[test]
fn frames_of_one_owner_keep_their_order_and_may_be_taken_together() {
    let now = Instant::now();
    let mut queue = PendingQueue::new(now);
    for number in 0..6 {
        assert!(queue.push(frame(1, number, now), owner(1)) && queue.push(frame(2, number, now), owner(2)));
    }
    let first = queue.front().unwrap().sender;
    assert!(queue.iter().all(|one| one.sender == first) && queue.iter().count() == 6);
    let together: Vec<_> = (0..4).map(|_| queue.pop_of_turn(now).unwrap().token.0).collect();
    assert_eq!(together, [0, 1, 2, 3]);
    queue.end_turn();
    let next: Vec<_> = (0..4).map(|_| queue.pop(now).unwrap()).map(|one| (one.sender, one.token.0)).collect();
    let other = 3 - first;
    assert_eq!(next, [(other, 0), (other, 1), (other, 2), (other, 3)], "it makes up for that");
}

#[test]
fn owners_with_many_frames_do_not_keep_others_out() {
    let now = Instant::now();
    let mut queue = PendingQueue::new(now);
    let push = |queue: &mut PendingQueue, sender| {
        (0..2000).filter(|&number| queue.push(frame(sender, number, now), owner(sender))).count()
    };
    assert_eq!(push(&mut queue, 1), MAX_PENDING, "alone");
    let pop = |queue: &mut PendingQueue, count| assert!((0..count).all(|_| queue.pop(now).is_some()));
    pop(&mut queue, MAX_PENDING - 400);
    assert_eq!((push(&mut queue, 2), push(&mut queue, 3)), (MAX_PENDING / 2, 112));
    pop(&mut queue, 30);
    assert_eq!(
        (push(&mut queue, 1), push(&mut queue, 2)),
        (0, 0),
        "they have more than their parts of three"
    );
    assert_eq!(push(&mut queue, 3), 30);
}

proptest! {
    /// Frames come out once, those of one owner in their order, and none is left.
    #[test]
    fn every_frame_leaves_once(steps in prop::collection::vec((0u8..8, 0u16..5), 0..400)) {
        let start = Instant::now();
        let mut queue = PendingQueue::new(start);
        let mut model: Vec<PendingFrame> = Vec::new();
        // Two ports an owner.
        let of = |sender: Slot| Claim { owner: sender / 2, shares: 1 + sender };
        for (number, (step, sender)) in (0..).zip(steps) {
            let now = start + MILLISECOND * number;
            match step {
                0..5 => {
                    let one = PendingFrame { len: 60 + number, ..frame(sender, number, now) };
                    prop_assert!(queue.push(one, of(sender)));
                    model.push(one);
                }
                5 => {
                    let front = queue.front().map(|front| front.token);
                    let taken = queue.pop(now).map(|taken| taken.token);
                    prop_assert_eq!(front, taken);
                    let first = taken.map(|token| model.iter().position(|one| one.token == token).unwrap());
                    if let Some(at) = first {
                        let taken = model.remove(at);
                        let before = model.iter().take(at).any(|one| one.sender / 2 == taken.sender / 2);
                        prop_assert!(!before, "one of its owner came before it");
                    }
                }
                6 => {
                    let gone = queue.remove_of(sender);
                    let expected: Vec<Token> =
                        model.iter().filter(|one| one.sender == sender).map(|one| one.token).collect();
                    prop_assert_eq!(gone, expected);
                    model.retain(|one| one.sender != sender);
                }
                _ => {
                    while let Some(expired) = pop_expired(&mut queue, now, 20 * MILLISECOND) {
                        let at = model.iter().position(|one| one.token == expired.token).unwrap();
                        prop_assert_eq!(at, 0, "the oldest one");
                        model.remove(at);
                    }
                    prop_assert!(model.iter().all(|one| now - one.since <= 20 * MILLISECOND));
                }
            }
            prop_assert_eq!(queue.is_empty(), model.is_empty());
            prop_assert_eq!(queue.frames().count(), model.len());
        }
    }

    /// Whatever waits for whom: what is counted is what a count anew finds, and no owner has more than is
    /// left.
    #[test]
    fn counts_of_held_frames_are_right(steps in prop::collection::vec((0u16..3, 0u16..4, any::<bool>()), 0..300)) {
        let mut held = Held::default();
        let now = Instant::now();
        for sender in 0..3 {
            held.set_places(sender, 16);
            (0..2).for_each(|owner| held.note(sender, owner, now));
        }
        let mut waiting = Vec::new();
        for (sender, owner, take) in steps {
            let of = |waiting: &[(u16, u16)], wanted: Option<u16>| {
                let is = |one: &&(u16, u16)| one.0 == sender && wanted.is_none_or(|owner| one.1 == owner);
                waiting.iter().filter(is).count()
            };
            if take {
                let (own, all) = (of(&waiting, Some(owner)), of(&waiting, None));
                prop_assert_eq!(held.take(sender, owner, now), own < 16 - all);
                if own < 16 - all {
                    waiting.push((sender, owner));
                }
            } else if let Some(at) = waiting.iter().position(|&one| one == (sender, owner)) {
                waiting.swap_remove(at);
                held.give_back(sender, owner);
            }
        }
        let before = format!("{held:?}");
        held.recount(waiting.into_iter());
        prop_assert_eq!(before, format!("{held:?}"));
    }
}

/// Ports that move when they are told to, by a clock of their own.
struct Bench {
    core: Core,
    now: Instant,
    ports: u32,
}

struct End {
    mac: Mac,
    wire: Wire,
    stats: Arc<PortStats>,
}

impl Bench {
    fn new() -> Bench {
        let settings = Settings { hold: HOLD, ..Settings::default() };
        Bench {
            core: Core::new(settings, Place::alone(), Arc::default(), Arc::default()),
            now: Instant::now(),
            ports: 0,
        }
    }

    fn port(&mut self, uplink: bool, lookahead: usize) -> End {
        self.ports += 1;
        let mac = Mac([0x52, 0x54, 0, 0, 0, self.ports as u8]);
        let name = format!("vm-{}/nic0", self.ports);
        let (group, vlan, policy) = ("default".into(), VlanMode::Untagged, Policy::default());
        let spec = PortSpec {
            name,
            group,
            switch: String::new(),
            mac,
            vlan,
            policy,
            traffic: Traffic::default(),
            uplink,
            direct: false,
            notify: false,
        };
        let (id, stats) = (PortId(self.ports), Arc::<PortStats>::default());
        let (wire, end) = Wire::small(mac, lookahead);
        let of = Numbered::nth(self.ports);
        self.core.add(of.slot, Port::new(of, Config::from(&spec), stats.clone(), Arc::default()));
        let slot = self.core.table.slot(id).expect("it was just added");
        self.core.attach(slot, end);
        self.core.refresh(slot);
        End { mac, wire, stats }
    }

    /// A millisecond passes; frames move until none does.
    fn millisecond(&mut self) {
        self.now += MILLISECOND;
        while self.core.round(self.now) {}
    }
}

impl End {
    fn send(&self, to: &End) {
        let bytes = [&to.mac.0[..], &self.mac.0, &[0x88, 0xb5], &[0; 50]].concat();
        self.wire.send(&bytes, Offload::None, None);
    }

    fn got(&self) -> usize {
        self.wire.received().len()
    }
}

/// It takes a frame every four milliseconds, so that it never counts as one that has stopped.
fn take_slowly(receiver: &End, at: u32) {
    receiver.wire.set_room(Some(usize::from(at.is_multiple_of(4))));
}

#[test]
fn two_slow_receivers_leave_an_uplink_its_frames_for_others() {
    let mut bench = Bench::new();
    let uplink = bench.port(true, 128);
    let slow = [bench.port(false, 8), bench.port(false, 8)];
    let good = bench.port(false, 8);
    let (mut sent, mut got) = (0, 0);
    for at in 0..1000 {
        slow.iter().for_each(|receiver| take_slowly(receiver, at));
        // More comes for the slow ones than for the other one.
        for _ in 0..20 {
            slow.iter().for_each(|receiver| uplink.send(receiver));
        }
        (0..10).for_each(|_| uplink.send(&good));
        sent += 10;
        bench.millisecond();
        got += good.got();
        assert!(128 - uplink.wire.outstanding() >= 128 / 3, "a third stays free");
    }
    assert!(got * 10 >= sent * 9, "{got} of {sent} frames to a receiver that takes all");
    let slowly: usize = slow.iter().map(End::got).sum();
    assert!(slowly >= 400, "{slowly} frames were taken slowly");
    assert!(slow.iter().all(|receiver| receiver.stats.drop_slow_receiver.get() > 0));
}

#[test]
fn no_frame_waits_longer_than_it_may_though_its_receiver_takes_some() {
    let mut bench = Bench::new();
    let (sender, slow, other) = (bench.port(false, 256), bench.port(false, 8), bench.port(false, 8));
    for at in 0..200 {
        take_slowly(&slow, at);
        sender.send(&other);
        (0..50).for_each(|_| sender.send(&slow));
        bench.millisecond();
    }
    // Nothing more comes; what waits has its time.
    for at in 200..206 {
        take_slowly(&slow, at);
        bench.millisecond();
    }
    assert_eq!(sender.wire.outstanding(), 0, "frames of the sender are held for longer than 5 ms");
    assert_eq!(slow.stats.drop_no_buffers.get(), 0, "it never stopped");
}

/// The receiver takes nothing for so many milliseconds, in which ten frames come for it; how many of them it
/// gets.
fn after_a_pause(
    bench: &mut Bench,
    [sender, receiver, other]: [&End; 3],
    length: usize,
    others: bool,
) -> usize {
    receiver.wire.set_room(Some(0));
    for at in 0..length {
        if at < 10 {
            sender.send(receiver);
        }
        if others {
            sender.send(other);
        }
        bench.millisecond();
    }
    let held = sender.wire.outstanding();
    receiver.wire.set_room(None);
    bench.millisecond();
    assert_eq!(receiver.got(), held, "what waited is there");
    held
}

#[test]
fn a_guest_that_is_kept_from_its_processor_loses_nothing_of_who_sends_to_no_other() {
    let mut bench = Bench::new();
    let ends = [bench.port(false, 256), bench.port(false, 256), bench.port(false, 256)];
    let ends = ends.each_ref();
    assert_eq!(after_a_pause(&mut bench, ends, 40, false), 10);
    assert_eq!(ends[1].stats.drop_no_buffers.get(), 0);
    assert_eq!(
        after_a_pause(&mut bench, ends, 70, false),
        0,
        "one that stands still for long is not waited for"
    );
    assert_eq!(ends[1].stats.drop_no_buffers.get(), 10);
    ends[1].wire.set_room(Some(0));
    ends[0].send(ends[1]);
    (0..70).for_each(|_| bench.millisecond());
    ends[0].send(ends[1]);
    bench.millisecond();
    assert_eq!(ends[0].wire.outstanding(), 0, "and nothing waits until it takes something");
    ends[1].wire.set_room(None);
    bench.millisecond();
    assert_eq!(after_a_pause(&mut bench, ends, 40, true), 0, "its sender sends to another one, too");
    assert_eq!(ends[1].stats.drop_no_buffers.get(), 22);
    assert_eq!(ends[2].got(), 40, "which had all at once");
}

#[test]
fn one_owner_holds_no_more_by_having_more_ports() {
    let mut held = Held::default();
    held.set_places(0, 100);
    let now = Instant::now();
    held.note(0, 8, now);
    held.note(0, 7, now);
    let taken = (0..1000).filter(|_| held.take(0, 7, now)).count();
    assert_eq!(taken, 50, "by however many ports");
    assert!(held.take(0, 8, now));
}

#[test]
fn a_sender_with_one_receiver_may_have_all_its_frames_wait_for_it() {
    let (mut held, now) = (Held::default(), Instant::now());
    held.set_places(0, 100);
    held.note(0, 7, now);
    assert_eq!((0..1000).filter(|_| held.take(0, 7, now)).count(), 100);
    (0..60).for_each(|_| held.give_back(0, 7));
    held.note(0, 8, now);
    assert!(held.take(0, 8, now), "there is room for another receiver");
    assert_eq!((0..1000).filter(|_| held.take(0, 7, now)).count(), 10, "which is not used up");
    assert!(held.take(0, 7, now + OTHERS), "until nothing was sent to the other one for some time");
}
