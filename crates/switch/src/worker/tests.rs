//! Before a worker arms its ports and sleeps, every port has delivered what it withheld.

use vmlane_guestsim::memory_port::{Trap, Wire};
use vmlane_port::{Offload, PortId};
use vmlane_wire::ethernet::Mac;

use super::*;
use crate::port::Numbered;
use crate::queue::Change;
use crate::shaping::Shaper;
use crate::spec::{PortSpec, Rate, Shape};
use crate::team::{MemberState, TeamMember, TeamPolicy, TeamSpec, TeamState};

fn mac(number: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, number])
}

struct Bench(SwitchEngine);

impl Bench {
    fn new() -> Bench {
        let settings = Settings { hold: Duration::from_secs(3600), ..Settings::default() };
        Bench(SwitchEngine::new(settings, Place::alone(), Arc::default(), Arc::default()))
    }

    fn request(&mut self, request: Request) {
        self.0.run_command(Command { request, answer: None }, Instant::now());
    }

    fn guest(&mut self, number: u8) -> Wire {
        self.shaped_guest(number, None)
    }

    fn shaped_guest(&mut self, number: u8, shaper: Option<Shaper>) -> Wire {
        let (wire, end) = Wire::new(mac(number));
        let shaper = shaper.map(Box::new);
        let id = PortId(number.into());
        let spec = PortSpec::plain(&format!("port-{number}"), mac(number));
        let of = Numbered::nth(number.into());
        self.request(Request::Add { of, spec, stats: Arc::default(), state: Arc::default(), shaper });
        self.request(Request::Of(id, Change::Attach(end)));
        wire
    }

    fn round(&mut self) {
        self.0.round(Instant::now());
    }

    /// Does it sleep for as long as ports are to announce what they have?
    fn sleeps(&mut self) -> bool {
        self.0.round(self.0.core.table.now);
        let waits = self.0.arm();
        !self.0.round(self.0.core.table.now) && !waits && self.0.announced
    }
}

const BITS: u64 = 8;

/// A limit that lets one frame through at once, and a long one more each second.
fn narrow() -> Option<Rate> {
    Some(Rate { average: 1500 * BITS, peak: 1500 * BITS, burst: 1 })
}

#[test]
fn a_completion_that_a_failed_port_left_behind_is_delivered_before_the_worker_sleeps() {
    let mut bench = Bench::new();
    let (sender, receiver) = (bench.guest(1), bench.guest(2));
    receiver.set_room(Some(0));
    let frame = [&mac(2).0[..], &mac(1).0, &[0x88, 0xb5], &[0; 46]].concat();
    sender.send(&frame, Offload::None, None);
    bench.round();
    assert_eq!((sender.outstanding(), bench.0.undelivered()), (1, false), "the frame waits");
    let seen = sender.flushes();
    receiver.set_trap(Trap::Tick);
    bench.round();
    assert!(receiver.dropped());
    assert_eq!((sender.outstanding(), sender.flushes()), (0, seen), "its sender is not notified of its end");
    assert!(bench.0.undelivered());
    bench.0.flush_deferred();
    assert_eq!((sender.flushes(), bench.0.undelivered()), (seen + 1, false));
}

#[test]
fn a_worker_stays_awake_for_an_interrupt_that_is_held_back_and_raises_it_before_it_sleeps() {
    let mut bench = Bench::new();
    let guest = bench.guest(1);
    guest.hold_back(true);
    bench.round();
    bench.0.flush_deferred();
    assert!(bench.0.undelivered(), "it is not due yet");
    guest.hold_back(false);
    bench.0.flush_deferred();
    assert!(!bench.0.undelivered());
}

/// What a port says without a turn is set by hand here, so that a turn differs from none by a frame that
/// moves.
#[test]
fn armed_ports_that_need_nothing_get_no_turn_until_the_clock_wants_one() {
    let mut bench = Bench::new();
    let (sender, receiver) = (bench.guest(1), bench.guest(2));
    let frame = [&mac(2).0[..], &mac(1).0, &[0x88, 0xb5], &[0; 46]].concat();
    let start = Instant::now();
    [&sender, &receiver].into_iter().for_each(|wire| wire.set_needs(Needs::Announces));
    bench.0.round(start);
    assert!(!bench.0.arm());
    sender.send(&frame, Offload::None, None);
    assert!(!bench.0.round(start));
    assert!(receiver.received().is_empty() && bench.0.announced, "none gets a turn");
    receiver.set_needs(Needs::Nothing);
    assert!(!bench.0.round(start));
    assert!(receiver.received().is_empty() && !bench.0.announced, "one of them announces nothing");
    assert!(bench.0.round(start + IDLE), "what ports do by the clock");
    assert_eq!(receiver.received().len(), 1);

    sender.send(&frame, Offload::None, None);
    assert!(bench.0.round(start + IDLE), "that frame has disarmed them");
    for unsure in [true, false] {
        bench.0.round(start + IDLE);
        assert!(!bench.0.arm());
        sender.send(&frame, Offload::None, None);
        assert!(!bench.0.round(start + IDLE));
        if unsure {
            sender.set_needs(Needs::Turn);
        } else {
            receiver.hold_back(true);
            bench.0.flush_deferred();
        }
        assert!(bench.0.round(start + IDLE), "a port needs a turn");
        sender.set_needs(Needs::Announces);
    }
}

#[test]
fn a_shaped_port_and_one_whose_link_is_down_let_the_worker_sleep_while_nothing_waits() {
    let frame = [&mac(2).0[..], &mac(1).0, &[0x88, 0xb5], &[0; 1486]].concat();
    let shapes = [
        (Shape { input: narrow(), output: None }, Shape::default(), false),
        (Shape::default(), Shape { input: None, output: narrow() }, false),
        (Shape::default(), Shape::default(), true),
    ];
    for (sends, receives, down) in shapes {
        let mut bench = Bench::new();
        let now = bench.0.core.table.now;
        let sender = bench.shaped_guest(1, Some(Shaper::new(sends, down, now)));
        let receiver = bench.shaped_guest(2, Some(Shaper::new(receives, down, now)));
        [&sender, &receiver].into_iter().for_each(|wire| wire.set_needs(Needs::Announces));
        assert!(bench.sleeps(), "{sends:?} {receives:?} {down}");
        (0..3).for_each(|_| sender.send(&frame, Offload::None, None));
        bench.0.notified();
        bench.0.round(now);
        bench.0.round(now);
        assert_eq!(receiver.received().len(), usize::from(!down));
        assert_eq!(bench.sleeps(), down, "frames wait for tokens: {sends:?} {receives:?}");
    }
}

#[test]
fn a_team_lets_the_worker_sleep_while_its_links_are_as_they_were() {
    let mut bench = Bench::new();
    let uplinks = [bench.guest(1), bench.guest(2)];
    uplinks.iter().for_each(|wire| wire.set_needs(Needs::Announces));
    let member = |number| TeamMember { name: format!("port-{number}"), port: Some(PortId(number)) };
    let spec = TeamSpec {
        name: "team".into(),
        policy: TeamPolicy::Failover,
        members: vec![member(1), member(2)],
        standby: 1,
        failback: true,
        notify: false,
    };
    let state = Arc::new(TeamState::new(&spec, Arc::default()));
    bench.request(Request::Teams(vec![(spec, state.clone())]));
    assert!(bench.sleeps());
    assert_eq!(state.members()[0], MemberState::Active);
    // The end of the first one fails outside of a round.
    uplinks[0].set_trap(Trap::Tick);
    bench.0.flush_deferred();
    assert!(uplinks[0].dropped() && !bench.0.is_quiet(bench.0.core.table.now), "a link has changed");
    bench.0.round(bench.0.core.table.now);
    assert_eq!(state.members(), [MemberState::Detached, MemberState::Active]);
    assert!(bench.sleeps());
}

#[test]
fn a_frame_that_came_just_before_its_guest_was_asked_to_announce_it_is_not_waited_for() {
    let mut bench = Bench::new();
    let (sender, receiver) = (bench.guest(1), bench.guest(2));
    let frame = [&mac(2).0[..], &mac(1).0, &[0x88, 0xb5], &[0; 46]].concat();
    let start = Instant::now();
    [&sender, &receiver].into_iter().for_each(|wire| wire.set_needs(Needs::Announces));
    bench.0.round(start);
    sender.send(&frame, Offload::None, None);
    assert!(bench.0.arm(), "a frame is there");
    assert!(bench.0.round(start), "and nothing else will tell of it");
    assert_eq!(receiver.received().len(), 1);
}

#[test]
fn what_the_worker_waits_for_decides_how_it_waits() {
    let mut bench = Bench::new();
    assert_eq!(bench.0.ports(), Ports::Armed(None), "nothing is attached");
    let guests = [bench.guest(1), bench.guest(2)];
    bench.round();
    assert_eq!(bench.0.ports(), Ports::Mixed { announced: false });
    guests.iter().for_each(|wire| wire.set_needs(Needs::Announces));
    assert!(bench.sleeps());
    assert_eq!(bench.0.ports(), Ports::Mixed { announced: true });
    // A port whose interrupt is held back is not left alone for that.
    bench.0.soon = true;
    assert_eq!(bench.0.ports(), Ports::Due);
}

#[test]
fn what_replaces_an_end_that_fails_as_it_goes_stays_attached() {
    let mut bench = Bench::new();
    let (sender, receiver) = (bench.guest(1), bench.guest(2));
    receiver.set_room(Some(0));
    let frame = [&mac(2).0[..], &mac(1).0, &[0x88, 0xb5], &[0; 46]].concat();
    sender.send(&frame, Offload::None, None);
    bench.round();
    assert_eq!(sender.outstanding(), 1, "the frame waits");
    sender.set_trap(Trap::Finish);
    let (next, end) = Wire::new(mac(1));
    bench.request(Request::Of(PortId(1), Change::Attach(end)));
    bench.round();
    assert!(sender.dropped() && !next.dropped());
    receiver.set_room(None);
    next.send(&frame, Offload::None, None);
    // Its owner pays for the change first.
    (0..1000).for_each(|_| bench.round());
    assert_eq!(receiver.received().len(), 1);
}
