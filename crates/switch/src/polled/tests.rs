//! Ports that are not polled are left alone, and found by all that may concern them.

use std::time::{Duration, Instant};

use vmlane_guestsim::memory_port::{PLAIN, Trap, Wire};
use vmlane_port::{Needs, Offload, PortId, RxCapabilities};
use vmlane_wire::ethernet::Mac;
use vmlane_worker::QUIET;

use crate::core::{Core, Place};
use crate::polled::CHECK;
use crate::port::{Numbered, Port};
use crate::queue::Change;
use crate::spec::{PortSpec, Settings};

const COUNT: u8 = 20;

fn mac(number: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, number])
}

fn frame(to: u8, from: u8) -> Vec<u8> {
    [&mac(to).0[..], &mac(from).0, &[0x88, 0xb5], &[0; 46]].concat()
}

/// Guests 1 to [`COUNT`], which say the same without a turn, and an engine's calls by hand.
struct Crowd {
    core: Core,
    wires: Vec<Wire>,
    now: Instant,
}

impl Crowd {
    fn new(needs: Needs, doorbells: bool) -> Crowd {
        let mut core = Core::new(Settings::default(), Place::alone(), Default::default(), Default::default());
        let attach = |number: u8| {
            let (wire, mut end) = Wire::small(mac(number), 4);
            wire.set_needs(needs);
            if doorbells {
                end.add_doorbell();
            }
            let spec = PortSpec::plain(&format!("port-{number}"), mac(number));
            let of = Numbered::nth(number.into());
            let slot = of.slot;
            core.add(slot, Port::new(of, (&spec).into(), Default::default(), Default::default()));
            core.attach(slot, end);
            wire
        };
        let wires = (1..=COUNT).map(attach).collect();
        let now = core.table.now;
        Crowd { core, wires, now }
    }

    fn guest(&self, number: u8) -> &Wire {
        &self.wires[usize::from(number) - 1]
    }

    /// A round of an engine that is busy, and then some time.
    fn round(&mut self, then: Duration) -> bool {
        let moved = self.core.round(self.now);
        self.core.tick(self.now);
        self.core.polling.check_now_and_then(&mut self.core.table, self.now);
        self.now += then;
        moved
    }

    /// Rounds until what has nothing to do is not polled.
    fn quiet(&mut self) {
        (0..4).for_each(|_| {
            self.round(QUIET);
        });
    }

    fn polled(&self) -> Vec<u8> {
        self.core.table.ports.turns.polled().map(|slot| slot as u8 + 1).collect()
    }

    fn sends(&self, from: u8, to: u8) {
        self.guest(from).send(&frame(to, from), Offload::None, None);
    }

    /// Frames that it got since this was last asked.
    fn got(&self, number: u8) -> usize {
        self.guest(number).received().len()
    }
}

#[test]
fn a_pair_that_talks_is_polled_and_the_others_are_not() {
    let mut crowd = Crowd::new(Needs::Nothing, false);
    for _ in 0..40 {
        crowd.sends(3, 4);
        crowd.round(QUIET / 10);
    }
    assert_eq!((crowd.polled(), crowd.got(4)), (vec![3, 4], 40));
    assert_eq!(crowd.guest(3).arms_and_disarms(), (0, 0), "what is busy is asked nothing");
    // Whose code would panic if it were polled.
    crowd.guest(9).set_trap(Trap::Tick);
    crowd.quiet();
    assert!(crowd.polled().is_empty() && !crowd.guest(9).dropped());
    // A frame is for it: it is polled again.
    crowd.guest(3).set_needs(Needs::Turn);
    crowd.sends(3, 9);
    (0..3).for_each(|_| {
        crowd.round(CHECK);
    });
    assert!(crowd.got(9) == 1 && crowd.guest(9).dropped());
}

#[test]
fn those_that_announce_nothing_are_found_within_some_checks() {
    let mut crowd = Crowd::new(Needs::Nothing, false);
    crowd.quiet();
    crowd.sends(7, 8);
    assert!(!crowd.round(CHECK) && crowd.got(8) == 0, "it is not polled");
    crowd.guest(7).set_needs(Needs::Turn);
    crowd.round(CHECK);
    crowd.round(CHECK);
    assert_eq!(crowd.got(8), 1);
    // The same before a sleep.
    crowd.guest(7).set_needs(Needs::Nothing);
    crowd.quiet();
    assert!(!crowd.core.polling.arm(&mut crowd.core.table));
    crowd.guest(7).set_needs(Needs::Turn);
    assert!(crowd.core.polling.arm(&mut crowd.core.table), "one needs a turn: no sleep");
    assert_eq!(crowd.core.polling.poll_armed(&mut crowd.core.table), Needs::Turn);
}

#[test]
fn a_doorbell_has_its_port_polled_and_is_silenced() {
    let mut crowd = Crowd::new(Needs::Announces, true);
    crowd.round(CHECK);
    assert!(!crowd.core.polling.arm(&mut crowd.core.table), "nothing is there, so none is polled");
    assert!(crowd.polled().is_empty() && crowd.core.polling.unpolled_doorbells(&crowd.core.table).is_some());
    crowd.sends(5, 6);
    crowd.guest(5).ring();
    crowd.core.polling.poll_doorbells(&mut crowd.core.table);
    assert!(crowd.round(CHECK) && crowd.got(6) == 1);
    assert_eq!(crowd.polled(), [5, 6], "one rang, and the other one got a frame");
    assert_eq!(crowd.guest(5).arms_and_disarms(), (1, 1));
    crate::polled::disarm(&mut crowd.core.table);
    assert_eq!(crowd.guest(6).arms_and_disarms(), (1, 1), "those that are polled need not announce");
    assert_eq!(crowd.guest(7).arms_and_disarms(), (1, 0));
    // While others are busy.
    crowd.quiet();
    assert!(crowd.polled().is_empty());
    crowd.sends(5, 6);
    crowd.guest(5).ring();
    crowd.round(CHECK);
    assert!(crowd.round(CHECK) && crowd.got(6) == 1);
    // Without a doorbell nothing that announces its frames could be woken.
    let mut deaf = Crowd::new(Needs::Announces, false);
    deaf.quiet();
    assert!(!deaf.core.polling.arm(&mut deaf.core.table) && deaf.polled().len() == usize::from(COUNT));
}

#[test]
fn what_is_due_by_the_clock_or_waits_for_buffers_keeps_a_port_polled() {
    let mut crowd = Crowd::new(Needs::Nothing, false);
    crowd.core.table.settings.hold = Duration::from_secs(3600);
    crowd.guest(2).hold_back(true);
    crowd.guest(4).set_room(Some(0));
    crowd.sends(3, 4);
    crowd.quiet();
    assert_eq!(crowd.polled(), [2, 4], "an interrupt that is held back, a frame that waits");
    crowd.guest(2).hold_back(false);
    crowd.guest(4).set_room(None);
    crowd.quiet();
    assert!(crowd.polled().is_empty());
    assert_eq!((crowd.got(4), crowd.guest(3).outstanding()), (1, 0));
    crate::polled::poll_all(&mut crowd.core.table);
    assert_eq!(crowd.polled().len(), usize::from(COUNT), "now and then all are polled");
}

#[test]
fn a_port_that_is_taken_away_while_it_is_not_polled_leaves_nothing_behind() {
    let mut crowd = Crowd::new(Needs::Announces, true);
    crowd.quiet();
    crowd.guest(5).ring();
    let slot = crowd.core.table.slot(PortId(5)).unwrap();
    crowd.core.change(slot, Change::Remove);
    assert!(crowd.guest(5).dropped());
    crowd.core.polling.poll_doorbells(&mut crowd.core.table);
    crowd.core.detach(6);
    crowd.quiet();
    assert!(crowd.polled().is_empty() && !crowd.guest(8).dropped());
    crowd.sends(8, 9);
    crowd.guest(8).ring();
    crowd.round(CHECK);
    assert!(crowd.round(CHECK) && crowd.got(9) == 1);
}

#[test]
fn few_ports_are_all_polled() {
    let mut crowd = Crowd::new(Needs::Nothing, false);
    (5..=COUNT).for_each(|number| crowd.core.detach(u16::from(number) - 1));
    crowd.quiet();
    assert!(!crowd.core.polling.arm(&mut crowd.core.table) && crowd.polled() == [1, 2, 3, 4]);
}

/// A receiver's capabilities are those of now, though it was not polled in this round.
#[test]
fn a_frame_for_one_that_is_not_polled_is_delivered_as_it_takes_frames_now() {
    let mut crowd = Crowd::new(Needs::Nothing, false);
    crowd.quiet();
    crowd.guest(2).set_capabilities(RxCapabilities { frame: 9018, aggregate: 9018, ..PLAIN });
    crowd.guest(1).set_needs(Needs::Turn);
    let long = [frame(2, 1), vec![0; 4000]].concat();
    crowd.guest(1).send(&long, Offload::None, None);
    (0..3).for_each(|_| {
        crowd.round(CHECK);
    });
    assert_eq!(crowd.got(2), 1, "it takes frames of that length since then");
}
