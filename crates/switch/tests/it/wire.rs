//! Wires that are impaired, cut and joined, beside others that must not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use vmlane_guestsim::memory_port::{LRO, Wire};
use vmlane_port::wrap::FrameTap;
use vmlane_port::{DropReason, Frames as _, Offload, RxFrame, TxFrame, VlanSet};
use vmlane_switch::{Impairment, PortSpec, PortView, Rate, Settings, Shape, Switch, Traffic, VlanMode};
use vmlane_testkit::wait_until;
use vmlane_wire::ethernet::Mac;

use crate::common::tcp::Packet;
use crate::common::{Bench, Guest, frame, mac};

const DELAY: Duration = Duration::from_millis(20);
const LATE: Impairment = Impairment { delay: DELAY, ..NONE };
const NONE: Impairment = Impairment {
    delay: Duration::ZERO,
    jitter: Duration::ZERO,
    loss: 0,
    loss_burst: 0,
    reorder: 0,
    duplicate: 0,
    corrupt: 0,
    rate: 0,
};

fn spec(number: u8, wire: &str) -> PortSpec {
    let vlan = VlanMode::Trunk(VlanSet::all());
    PortSpec { direct: true, switch: wire.into(), vlan, ..Bench::spec(number) }
}

fn wire(bench: &mut Bench, name: &str, numbers: [u8; 2]) -> [Guest; 2] {
    numbers.map(|number| bench.port(spec(number, name)))
}

fn view(switch: &Switch, guest: &Guest) -> PortView {
    switch.ports().into_iter().find(|port| port.id == guest.id).unwrap()
}

fn impair(bench: &mut Bench, to: &Guest, of: Impairment) {
    bench.switch.set_impairment(to.id, of).unwrap();
    // Another worker's ports are known there in the second one.
    bench.step();
    bench.step();
}

/// Sends a frame between two guests of these numbers.
fn send(from: &Guest, [number, to]: [u8; 2]) {
    from.send(&frame(mac(to), mac(number), 60, 0));
}

/// Rounds until so many frames came; those.
fn arrive(bench: &mut Bench, to: &Guest, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    wait_until("frames arrive", || {
        bench.step();
        frames.extend(to.frames());
        frames.len() >= count
    });
    frames
}

#[test]
fn frames_over_an_impaired_wire_are_late_in_its_direction_and_others_are_not() {
    for workers in [1, 2] {
        let mut bench = Bench::with(Settings { workers, ..Settings::default() });
        let ([a, b], [c, d]) = (wire(&mut bench, "l1", [1, 2]), wire(&mut bench, "l2", [3, 4]));
        let (e, f) = (bench.guest(5), bench.guest(6));
        impair(&mut bench, &b, LATE);
        let begin = Instant::now();
        send(&a, [1, 2]);
        for (from, numbers) in [(&b, [2, 1]), (&c, [3, 4]), (&d, [4, 3]), (&e, [5, 6]), (&f, [6, 5])] {
            send(from, numbers);
        }
        bench.run();
        let early = begin.elapsed() < DELAY;
        let waiting = view(&bench.switch, &b).waiting;
        assert_eq!(a.wire.outstanding(), 0, "its sender has it back");
        assert_eq!([&a, &c, &d, &e, &f].map(|guest| guest.frames().len()), [1; 5]);
        assert!(!early || (b.frames().len(), waiting) == (0, 1), "{workers} workers");
        arrive(&mut bench, &b, 1);
        assert!(begin.elapsed() >= DELAY && view(&bench.switch, &b).waiting == 0);

        impair(&mut bench, &b, Impairment { loss: 1_000_000, ..NONE });
        send(&a, [1, 2]);
        bench.run();
        assert_eq!((b.frames().len(), b.stats.drop_impaired.get()), (0, 1));
        impair(&mut bench, &b, NONE);
        send(&a, [1, 2]);
        bench.run();
        assert_eq!(b.frames().len(), 1);
    }
}

#[test]
fn a_super_frame_stays_whole_unless_something_happens_to_single_frames() {
    let mut bench = Bench::new();
    let [a, b] = wire(&mut bench, "l", [1, 2]);
    b.wire.set_capabilities(LRO);
    let packet = Packet::new(mac(2), mac(1), false, 42 * 1448).timestamped();
    let offload = Offload::Segment { header: packet.header_len() as u16, mss: 1448 };
    for (of, count) in [(LATE, 1), (Impairment { duplicate: 1_000_000, ..NONE }, 84)] {
        impair(&mut bench, &b, of);
        a.wire.send(&packet.partial(false), offload, None);
        let frames = arrive(&mut bench, &b, count);
        assert_eq!(frames.len(), count, "{of:?}");
    }
}

#[test]
fn what_is_on_its_way_to_a_card_that_goes_is_lost_and_the_next_card_has_the_same_wire() {
    let mut bench = Bench::new();
    let [a, b] = wire(&mut bench, "l", [1, 2]);
    impair(&mut bench, &b, Impairment { delay: Duration::from_secs(3600), ..NONE });
    send(&a, [1, 2]);
    bench.run();
    assert_eq!(view(&bench.switch, &b).waiting, 1);
    bench.switch.detach(b.id);
    bench.step();
    assert_eq!((b.stats.drop_gone.get(), view(&bench.switch, &b).waiting), (1, 0));
    let (again, end) = Wire::new(mac(2));
    bench.switch.attach(b.id, end);
    bench.step();
    send(&a, [1, 2]);
    bench.run();
    assert_eq!(view(&bench.switch, &b).waiting, 1);
    // What ends early is not lost.
    impair(&mut bench, &b, NONE);
    assert_eq!((again.received().len(), view(&bench.switch, &b).waiting), (1, 0));
}

/// Counts what its port gets.
#[derive(Default)]
struct Tap(AtomicUsize);

impl FrameTap for Tap {
    fn sent(&self, _: &TxFrame<'_>, _: u64) {}

    fn settle(&self, _: Option<DropReason>) {}

    fn received(&self, _: &RxFrame<'_>, _: u64, _: Option<DropReason>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn refused(&self, _: &TxFrame<'_>, _: u64, _: DropReason) {}

    fn placed(&self, _: Option<u16>) {}
}

#[test]
fn a_capture_has_frames_as_they_arrive_whatever_else_is_done_to_the_port() {
    let mut bench = Bench::new();
    let [a, b] = wire(&mut bench, "l", [1, 2]);
    let tap = Arc::new(Tap::default());
    let long = Impairment { delay: Duration::from_secs(3600), ..NONE };
    let changes: [&dyn Fn(&Bench); 3] = [
        &|bench| bench.switch.add_tap("port-2", tap.clone()),
        &|bench| drop(bench.switch.set_impairment(b.id, long)),
        &|bench| {
            let rate = Rate { average: 1_000_000_000, peak: 1_000_000_000, burst: 1 << 20 };
            let shape = Shape { input: Some(rate), output: Some(rate) };
            let traffic = Traffic { shape, ..Traffic::default() };
            bench.switch.update_port(b.id, PortSpec { traffic, ..spec(2, "l") });
        },
    ];
    for (number, order) in (1..).zip([[0, 1, 2], [1, 0, 2], [2, 1, 0]]) {
        for at in order {
            changes[at](&bench);
            bench.step();
        }
        send(&a, [1, 2]);
        bench.run();
        assert_eq!((tap.0.load(Ordering::Relaxed), view(&bench.switch, &b).waiting), (number - 1, 1));
        impair(&mut bench, &b, NONE);
        assert_eq!((tap.0.load(Ordering::Relaxed), b.frames().len()), (number, 1), "{order:?}");
        let tap: Arc<dyn FrameTap> = tap.clone();
        bench.switch.remove_tap(&tap);
        bench.switch.update_port(b.id, spec(2, "l"));
        bench.step();
    }
}

#[test]
fn a_cut_wire_has_no_carrier_at_both_ends_and_drops_frames_until_it_is_joined() {
    let mut bench = Bench::new();
    let ([a, b], [c, d]) = (wire(&mut bench, "l1", [1, 2]), wire(&mut bench, "l2", [3, 4]));
    let state = |bench: &mut Bench| {
        bench.step();
        send(&a, [1, 2]);
        send(&c, [3, 4]);
        bench.run();
        assert_eq!(d.frames().len(), 1);
        let ends = [&a, &b].map(|end| view(&bench.switch, end));
        assert!(!ends[0].link_down, "the operator's word is another one");
        (ends.map(|end| (end.carrier, end.cut)), b.frames().len(), a.stats.drop_link_down.get())
    };
    let cut = |bench: &Bench, cut| assert!([&a, &b].iter().all(|end| bench.switch.set_cut(end.id, cut)));
    assert_eq!(state(&mut bench), ([(true, false); 2], 1, 0));
    cut(&bench, true);
    assert_eq!(state(&mut bench), ([(false, true); 2], 0, 1));
    cut(&bench, true);
    bench.switch.set_link(b.id, false);
    cut(&bench, false);
    assert_eq!(state(&mut bench), ([(false, false), (true, false)], 0, 1), "its link is down still");
    bench.switch.set_link(b.id, true);
    assert_eq!(state(&mut bench), ([(true, false); 2], 1, 1));
    assert!(!bench.switch.set_cut(vmlane_port::PortId(99), true));
}

#[test]
fn what_is_on_its_way_over_a_wire_that_is_cut_is_lost_and_the_wire_stays_impaired() {
    for workers in [1, 2] {
        let mut bench = Bench::with(Settings { workers, ..Settings::default() });
        let [a, b] = wire(&mut bench, "l", [1, 2]);
        let late = Impairment { delay: Duration::from_secs(3600), ..NONE };
        impair(&mut bench, &b, late);
        for lost in 1..3 {
            send(&a, [1, 2]);
            bench.run();
            assert_eq!(view(&bench.switch, &b).waiting, 1);
            for cut in [true, false] {
                bench.switch.set_cut(b.id, cut);
                bench.step();
                bench.step();
            }
            assert_eq!((b.stats.drop_link_down.get(), view(&bench.switch, &b).waiting), (lost, 0));
        }
        impair(&mut bench, &b, NONE);
        assert_eq!(b.frames().len(), 0);
    }
}

#[test]
fn a_worker_that_sleeps_delivers_what_is_due() {
    let switch = Switch::start(Settings::default()).unwrap();
    let [(a, from), (b, to)] = [1, 2].map(|number: u8| {
        let id = switch.add_port(spec(number, "l")).unwrap();
        let (wire, mut end) = Wire::new(mac(number));
        end.add_doorbell();
        switch.attach(id, end);
        (id, wire)
    });
    switch.set_impairment(b, LATE).unwrap();
    let send = |to: Mac| from.send(&frame(to, mac(1), 60, 0), Offload::None, None);
    for _ in 0..3 {
        let begin = Instant::now();
        send(mac(2));
        switch.kick(a);
        let mut count = 0;
        wait_until("the frame arrives", || {
            count += to.received().len();
            count > 0
        });
        assert!(begin.elapsed() >= DELAY);
    }
}
