use super::*;
use std::sync::Arc;

use proptest::prelude::*;
use vmlane_guestsim::memory_port::Wire;
use vmlane_port::{Offload, PortId, PortStats};
use vmlane_wire::ethernet::Mac;

use crate::access::Config;
use crate::core::Core;
use crate::port::Port;
use crate::spec::{Policy, PortSpec, Settings, Traffic, VlanMode};

const HOLD: Duration = Duration::from_millis(5);
const MILLISECOND: Duration = Duration::from_millis(1);

fn frame(sender: Slot, number: u32, since: Instant) -> PendingFrame {
    PendingFrame { sender, token: Token(number), tag: None, next: 0, since }
}

#[test]
fn frames_expire_one_by_one_and_a_receiver_that_takes_some_is_not_overdue() {
    let start = Instant::now();
    let mut queue = PendingQueue::new(start);
    assert!((0..10).all(|number| queue.push(frame(1, number, start + MILLISECOND * number))));
    let now = start + HOLD + 3 * MILLISECOND;
    assert!(queue.is_overdue(now, HOLD));
    assert!(queue.pop(now).is_some_and(|front| front.token == Token(0)));
    assert!(!queue.is_overdue(now, HOLD), "it took one");
    let expired: Vec<_> =
        std::iter::from_fn(|| queue.pop_expired(now, HOLD)).map(|one| one.token.0).collect();
    assert_eq!(expired, [1, 2]);
    assert!(queue.is_overdue(now + 2 * HOLD, HOLD), "what has expired was not taken");
}

#[test]
fn the_number_is_bounded_and_senders_are_taken_out() {
    let now = Instant::now();
    let mut queue = PendingQueue::new(now);
    let taken = (0..2000).filter(|&number| queue.push(frame(number as Slot % 2, number, now)));
    assert_eq!(taken.count(), MAX_PENDING);
    assert_eq!(queue.remove_of(0).len(), MAX_PENDING / 2);
    assert!(queue.remove_of(0).is_empty() && queue.remove_of(77).is_empty());
    assert!(queue.front().is_some_and(|front| front.sender == 1));
    assert!(queue.advance(3, now) && !queue.advance(3, now));
}

proptest! {
    /// Whatever waits for whom: what is counted is what a count anew finds, and no owner has more than is left.
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
            core: Core::new(settings, Arc::default(), Arc::default(), Arc::default()),
            now: Instant::now(),
            ports: 0,
        }
    }

    fn port(&mut self, uplink: bool, look_ahead: usize) -> End {
        self.ports += 1;
        let mac = Mac([0x52, 0x54, 0, 0, 0, self.ports as u8]);
        let name = format!("vm-{}/nic0", self.ports);
        let (group, vlan, policy) = ("default".into(), VlanMode::Untagged, Policy::default());
        let spec = PortSpec { name, group, mac, vlan, policy, traffic: Traffic::default(), uplink };
        let (id, stats) = (PortId(self.ports), Arc::<PortStats>::default());
        let (wire, end) = Wire::small(mac, look_ahead);
        self.core.add(
            Port::new(id, Config::from(&spec), stats.clone(), Arc::default()),
            &spec.name,
            &spec.group,
        );
        let slot = self.core.slot(id).expect("it was just added");
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
