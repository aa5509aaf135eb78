//! Shaped ports in a switch whose clock the tests set.

use std::time::Duration;

use vmlane_guestsim::memory_port::{LRO, Wire};
use vmlane_port::PortId;
use vmlane_wire::ethernet::Mac;

use super::*;
use crate::access::Config;
use crate::core::{Core, Place};
use crate::port::{Numbered, Port};
use crate::spec::{Policy, PortSpec, Rate, Settings, Traffic, VlanMode};
use vmlane_port::PortStats;

#[path = "../../tests/it/common/tcp.rs"]
#[allow(dead_code)]
mod tcp;

const FULL: usize = 1514;
const MEBI: u64 = 1 << 20;

struct Bench {
    core: Core,
    now: Instant,
    ports: u32,
    /// Did a port want to be looked at soon after the last round?
    soon: bool,
}

struct End {
    id: PortId,
    mac: Mac,
    wire: Wire,
    stats: Arc<PortStats>,
}

fn spec(number: u32, shape: Shape) -> PortSpec {
    PortSpec {
        name: format!("vm-{number}/nic0"),
        group: "default".into(),
        switch: String::new(),
        mac: Mac([0x52, 0x54, 0, 0, 0, number as u8]),
        vlan: VlanMode::Untagged,
        policy: Policy::default(),
        traffic: Traffic { shape, ..Traffic::default() },
        uplink: false,
        direct: false,
        notify: false,
    }
}

fn input(average: u64, peak: u64, burst: u64) -> Shape {
    Shape { input: Some(Rate { average, peak, burst }), output: None }
}

fn output(average: u64, peak: u64, burst: u64) -> Shape {
    Shape { input: None, output: Some(Rate { average, peak, burst }) }
}

impl Bench {
    fn new() -> Bench {
        let core = Core::new(Settings::default(), Place::alone(), Arc::default(), Arc::default());
        Bench { core, now: Instant::now(), ports: 0, soon: false }
    }

    fn port(&mut self, shape: Shape) -> End {
        self.port_with_shares(shape, None)
    }

    fn port_with_shares(&mut self, shape: Shape, shares: Option<u16>) -> End {
        self.ports += 1;
        let mut spec = spec(self.ports, shape);
        spec.traffic.shares = shares;
        let (id, stats) = (PortId(self.ports), Arc::<PortStats>::default());
        let (wire, end) = Wire::small(spec.mac, 64);
        let of = Numbered::nth(self.ports);
        let mut port = Port::new(of, Config::from(&spec), stats.clone(), Arc::default());
        port.shape(
            (shape != Shape::default()).then(|| Box::new(Shaper::new(shape, false, self.now))),
            self.now,
        );
        self.core.add(of.slot, port);
        let slot = self.core.table.slot(id).expect("it was just added");
        self.core.attach(slot, end);
        self.core.refresh(slot);
        End { id, mac: spec.mac, wire, stats }
    }

    fn reshape(&mut self, end: &End, shape: Shape) {
        let shaper = Box::new(Shaper::new(shape, false, self.now));
        let slot = self.core.table.slot(end.id).unwrap();
        self.core.update(slot, &spec(end.id.0, shape), 0, Some(shaper));
    }

    /// Time passes; the worker looks once, and again as long as frames move.
    fn poll(&mut self, after: Duration) {
        self.now += after;
        while self.core.round(self.now) {
            self.core.tick(self.now);
        }
        self.soon = self.core.tick(self.now).0;
        self.core.flush();
    }

    /// Looks for `time`, every `step`; before each, `feed` sends.
    fn run(&mut self, time: Duration, step: Duration, mut feed: impl FnMut()) {
        let end = self.now + time;
        while self.now < end {
            feed();
            self.poll(step);
        }
    }
}

impl End {
    /// Has always some frames to send.
    fn offer(&self, frame: &[u8], offload: Offload) {
        while self.wire.queued() < 64 {
            self.wire.send(frame, offload, None);
        }
    }

    fn frame(&self, to: &End, len: usize) -> Vec<u8> {
        let mut frame = [&to.mac.0[..], &self.mac.0, &[0x88, 0xb5]].concat();
        frame.resize(len, 7);
        frame
    }
}

/// A TCP super-frame of 60,000 bytes of payload: 42 segments of 1448 bytes behind 66 bytes of headers.
fn super_frame(to: &End, from: &End) -> (Vec<u8>, Offload) {
    let packet = tcp::Packet::new(to.mac, from.mac, false, 42 * 1448).timestamped();
    let header = packet.header_len() as u16;
    (packet.partial(false), Offload::Segment { header, mss: 1448 })
}

fn assert_near(value: u64, expected: u64, percent: u64) {
    let near = value.abs_diff(expected) * 100 <= expected * percent;
    assert!(near, "{value}, and {expected} were expected within {percent} %");
}

const SECONDS: u64 = 10;
const TEN: Duration = Duration::from_secs(SECONDS);
const STEP: Duration = Duration::from_micros(100);

#[test]
fn a_vm_sends_its_average_and_loses_nothing() {
    for average in [10_000_000, 1_000_000_000] {
        let mut bench = Bench::new();
        let (a, b) = (bench.port(input(average, 2 * average, 64 << 10)), bench.port(Shape::default()));
        b.wire.forget_frames();
        let frame = a.frame(&b, FULL);
        // The burst is behind us when the ten seconds begin.
        bench.run(Duration::from_millis(200), STEP, || a.offer(&frame, Offload::None));
        let before = b.stats.rx_bytes.get();
        bench.run(TEN, STEP, || a.offer(&frame, Offload::None));
        assert_near(b.stats.rx_bytes.get() - before, average / 8 * SECONDS, 3);
        assert_eq!(a.stats.tx_bytes.get(), b.stats.rx_bytes.get(), "nothing is dropped");
        assert_eq!(a.stats.tx_shaped_bytes.get(), a.stats.tx_bytes.get());
        assert_near(a.stats.tx_shaped_us.get(), 10_000_000, 10);
    }
}

#[test]
fn a_vm_gets_its_average_of_frames_and_of_super_frames_cut_or_whole() {
    for (average, lro) in
        [(10_000_000, false), (100_000_000, true), (5_000_000_000, true), (500_000_000, false)]
    {
        let mut bench = Bench::new();
        let (a, b) = (bench.port(Shape::default()), bench.port(output(average, 2 * average, 256 << 10)));
        b.wire.forget_frames();
        if lro {
            b.wire.set_capabilities(LRO);
        }
        let (frame, offload) = super_frame(&b, &a);
        let long = frame.len() as u64;
        // No more than what comes in ten times the rate: all else is dropped at once.
        let each = Duration::from_nanos(long * 8 * 100_000_000 / average);
        let mut next = bench.now;
        let mut run = |bench: &mut Bench, time: Duration| {
            let end = bench.now + time;
            while bench.now < end {
                while next <= bench.now {
                    a.wire.send(&frame, offload, None);
                    next += each;
                }
                bench.poll(STEP);
            }
        };
        run(&mut bench, Duration::from_millis(500));
        let before = b.stats.rx_shaped_bytes.get();
        run(&mut bench, TEN);
        assert_near(b.stats.rx_shaped_bytes.get() - before, average / 8 * SECONDS, 3);
        assert!(b.stats.drop_shaped.get() > 0 && b.stats.drop_no_buffers.get() == 0);
        assert!(a.wire.outstanding() <= 64, "no sender waits for a shaped port");
    }
}

#[test]
fn a_super_frame_counts_as_what_it_is_on_a_wire() {
    let mut bench = Bench::new();
    let (a, b) =
        (bench.port(input(100_000_000, 100_000_000, MEBI)), bench.port(output(1 << 40, 1 << 40, MEBI)));
    b.wire.set_capabilities(LRO);
    let (frame, offload) = super_frame(&b, &a);
    a.wire.send(&frame, offload, None);
    bench.poll(STEP);
    let on_wire = 42 * (1448 + 66);
    assert_eq!((a.stats.tx_shaped_bytes.get(), b.stats.rx_shaped_bytes.get()), (on_wire, on_wire));
    // The shortest frame of Ethernet has 60 bytes.
    let short = a.frame(&b, 14);
    a.wire.send(&short, Offload::None, None);
    bench.run(Duration::from_millis(20), STEP, || {});
    assert_eq!(a.stats.tx_shaped_bytes.get(), on_wire + 60);
}

#[test]
fn a_super_frame_longer_than_the_burst_passes_and_what_follows_waits() {
    for shape in [input(10_000_000, 10_000_000, 1500), output(10_000_000, 10_000_000, 1500)] {
        let mut bench = Bench::new();
        let (a, b) = if shape.input.is_some() {
            (bench.port(shape), bench.port(Shape::default()))
        } else {
            (bench.port(Shape::default()), bench.port(shape))
        };
        b.wire.set_capabilities(LRO);
        let (frame, offload) = super_frame(&b, &a);
        a.wire.send(&frame, offload, None);
        a.wire.send(&frame, offload, None);
        // Each takes 51 ms.
        bench.poll(STEP);
        assert_eq!(b.wire.received().len(), 1);
        bench.run(Duration::from_millis(45), STEP, || {});
        assert_eq!(b.wire.received().len(), 0);
        bench.run(Duration::from_millis(10), STEP, || {});
        assert_eq!(b.wire.received().len(), 1);
        assert_eq!(b.stats.drop_shaped.get(), 0);
    }
}

#[test]
fn a_burst_goes_at_the_peak_and_has_its_bytes() {
    let mut bench = Bench::new();
    let (a, b) = (bench.port(input(100_000_000, 400_000_000, MEBI)), bench.port(Shape::default()));
    b.wire.forget_frames();
    let frame = a.frame(&b, FULL);
    // After a second of silence, too.
    for _ in 0..2 {
        let before = b.stats.rx_bytes.get();
        bench.run(Duration::from_millis(25), STEP, || a.offer(&frame, Offload::None));
        assert_near(b.stats.rx_bytes.get() - before, 400_000_000 / 8 / 40, 10);
        bench.run(Duration::from_millis(175), STEP, || a.offer(&frame, Offload::None));
        let beyond = b.stats.rx_bytes.get() - before - 100_000_000 / 8 / 5;
        assert_near(beyond, MEBI, 10);
        // What was offered and not sent yet goes, then nothing.
        bench.run(Duration::from_secs(1), STEP, || {});
    }
}

/// Bytes that an honest pair moves in a second's rounds, beside a port that is shaped by `shape` in both
/// directions.
fn pair_beside(shape: Shape) -> (u64, u64) {
    let mut bench = Bench::new();
    let (a, b) = (bench.port(Shape::default()), bench.port(Shape::default()));
    let (c, d) = (bench.port(shape), bench.port(shape));
    [&b, &d].into_iter().for_each(|end| end.wire.forget_frames());
    let (honest, other) = (a.frame(&b, FULL), c.frame(&d, FULL));
    let from_a_to_d = a.frame(&d, FULL);
    for number in 0..20_000 {
        a.offer(&honest, Offload::None);
        // The sender that has much to send sends to the shaped port as well.
        if number % 10 == 0 {
            a.wire.send(&from_a_to_d, Offload::None, None);
        }
        c.offer(&other, Offload::None);
        bench.now += Duration::from_micros(50);
        bench.core.round(bench.now);
        bench.core.tick(bench.now);
    }
    (b.stats.rx_bytes.get(), a.stats.tx_frames.get())
}

#[test]
fn a_shaped_port_costs_its_neighbours_nothing() {
    let (alone, sent) = pair_beside(Shape::default());
    let rate = Rate { average: 20_000_000, peak: 40_000_000, burst: 64 << 10 };
    let (beside, sent_beside) = pair_beside(Shape { input: Some(rate), output: Some(rate) });
    assert!(beside * 100 >= alone * 97, "{beside} bytes beside a shaped port, {alone} without");
    assert!(sent_beside * 100 >= sent * 97, "{sent_beside} frames, {sent} without");
}

#[test]
fn a_reload_shapes_what_is_attached_and_ends_it() {
    let mut bench = Bench::new();
    let (a, b) = (bench.port(Shape::default()), bench.port(Shape::default()));
    let send = |bench: &mut Bench| {
        let frame = a.frame(&b, FULL);
        (0..40).for_each(|_| a.wire.send(&frame, Offload::None, None));
        bench.poll(STEP);
        b.wire.received().len()
    };
    assert_eq!(send(&mut bench), 40);
    let slow = Rate { average: 1_000_000, peak: 1_000_000, burst: 1500 };
    bench.reshape(&a, Shape { input: Some(slow), output: None });
    assert_eq!(send(&mut bench), 1);
    bench.reshape(&b, Shape { input: None, output: Some(slow) });
    bench.reshape(&a, Shape::default());
    assert_eq!(send(&mut bench), 1, "the second port's queue has the rest");
    assert_eq!((a.wire.queued(), a.wire.outstanding()), (0, 0));
    bench.reshape(&b, Shape::default());
    assert_eq!(b.wire.received().len(), 78, "what waits goes at once");
    assert_eq!(send(&mut bench), 40);
    assert!(!a.wire.dropped() && !b.wire.dropped());
    // What is attached later is shaped as what was attached before.
    bench.reshape(&a, Shape { input: Some(slow), output: None });
    let slot = bench.core.table.slot(a.id).expect("it is there");
    bench.core.detach(slot);
    let (wire, end) = Wire::small(a.mac, 64);
    bench.core.attach(slot, end);
    bench.core.refresh(slot);
    (0..40).for_each(|_| wire.send(&a.frame(&b, FULL), Offload::None, None));
    bench.poll(STEP);
    assert_eq!((b.wire.received().len(), wire.queued()), (1, 39));
}

#[test]
fn a_guest_without_buffers_loses_what_waits_for_its_tokens() {
    let mut bench = Bench::new();
    let slow = output(10_000_000, 10_000_000, 1500);
    let (a, b) = (bench.port(Shape::default()), bench.port(slow));
    (0..10).for_each(|_| a.wire.send(&a.frame(&b, FULL), Offload::None, None));
    bench.poll(STEP);
    b.wire.set_room(Some(3));
    bench.run(Duration::from_millis(50), STEP, || {});
    assert_eq!(b.wire.received().len(), 4);
    assert_eq!(b.stats.drop_no_buffers.get(), 6);
    assert!(!bench.soon, "nothing waits any more");
    assert_eq!((a.wire.outstanding(), b.stats.drop_shaped.get()), (0, 0));
    b.wire.set_room(None);
    a.wire.send(&a.frame(&b, FULL), Offload::None, None);
    bench.run(Duration::from_millis(50), STEP, || {});
    assert_eq!(b.wire.received().len(), 1);
}

#[test]
fn a_frame_that_has_long_to_wait_lets_the_worker_sleep() {
    let mut bench = Bench::new();
    // A frame takes 12 seconds.
    let (a, b) = (bench.port(input(1000, 1000, 1)), bench.port(Shape::default()));
    (0..2).for_each(|_| a.wire.send(&a.frame(&b, FULL), Offload::None, None));
    bench.poll(STEP);
    assert!(
        !bench.soon
            && !bench.core.polling.arm(&mut bench.core.table)
            && crate::polled::doorbell_fds(&bench.core.table).next().is_none()
    );
    crate::polled::disarm(&mut bench.core.table);
    bench.poll(Duration::from_millis(12_108));
    assert!(bench.soon, "it is due within 5 ms");
    assert_eq!(b.wire.received().len(), 1);
    bench.poll(Duration::from_millis(5));
    bench.poll(STEP);
    assert_eq!((b.wire.received().len(), a.wire.queued()), (1, 0));
    bench.poll(Duration::from_secs(20));
    bench.poll(STEP);
    assert!(!bench.soon, "and nothing waits any more");
}

#[test]
fn a_link_that_is_down_lets_nothing_through_and_up_again_everything() {
    let mut bench = Bench::new();
    let (a, b) = (bench.port(Shape::default()), bench.port(Shape::default()));
    let send = |bench: &mut Bench| {
        for (from, to) in [(&a, &b), (&b, &a)] {
            (0..40).for_each(|_| from.wire.send(&from.frame(to, FULL), Offload::None, None));
        }
        bench.run(STEP * 4, STEP, || {});
        (a.wire.received().len(), b.wire.received().len())
    };
    assert_eq!(send(&mut bench), (40, 40));
    let set = |bench: &mut Bench, down| {
        let shaper = Box::new(Shaper::new(Shape::default(), down, bench.now));
        let slot = bench.core.table.slot(b.id).unwrap();
        bench.core.update(slot, &spec(b.id.0, Shape::default()), 0, Some(shaper));
    };
    set(&mut bench, true);
    assert_eq!(send(&mut bench), (0, 0));
    assert_eq!((b.stats.drop_link_down.get(), a.stats.drop_link_down.get()), (80, 0));
    assert_eq!((a.wire.outstanding(), b.wire.outstanding(), b.wire.queued()), (0, 0, 0));
    set(&mut bench, false);
    assert_eq!(send(&mut bench), (40, 40));
    assert!(!b.wire.failed() && !b.wire.dropped());
}

/// Frames of all lengths that tell their number.
fn numbered(from: &End, to: &End, number: u32) -> Vec<u8> {
    let mut frame = from.frame(to, 60 + number as usize * 37 % 1455);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame[18..].iter_mut().zip(number..).for_each(|(byte, value)| *byte = value as u8);
    frame
}

#[test]
fn a_full_queue_drops_what_comes_and_gives_what_it_holds_in_order() {
    let mut bench = Bench::new();
    let (a, b) = (bench.port(Shape::default()), bench.port(output(10_000_000, 10_000_000, 1500)));
    let (mut sent, mut received) = (0, Vec::new());
    for _ in 0..30 {
        for _ in 0..500 {
            a.wire.send(&numbered(&a, &b, sent), Offload::None, None);
            sent += 1;
        }
        bench.run(Duration::from_millis(50), STEP, || {});
        assert_eq!((a.wire.queued(), a.wire.outstanding()), (0, 0), "no sender waits");
        received.extend(b.wire.received());
    }
    // What it holds now is no more than it may hold.
    let dropped = b.stats.drop_shaped.get();
    let held = u64::from(sent) - dropped - received.len() as u64;
    assert!(dropped > 5000 && (100..=192 * 1024 / 60).contains(&held), "{dropped} dropped, {held} held");
    bench.run(Duration::from_secs(1), STEP, || {});
    received.extend(b.wire.received());
    assert_eq!(received.len() as u64 + b.stats.drop_shaped.get(), u64::from(sent));
    assert_eq!(b.stats.drop_shaped.get(), dropped);
    let numbers: Vec<u32> = received
        .iter()
        .map(|one| u32::from_be_bytes([one.bytes[14], one.bytes[15], one.bytes[16], one.bytes[17]]))
        .collect();
    assert!(numbers.is_sorted_by(|one, next| one < next));
    for (one, number) in received.iter().zip(numbers) {
        assert_eq!(one.bytes, numbered(&a, &b, number));
    }
}

const TWO: Duration = Duration::from_secs(2);

/// What two senders with shares get of a receiver, each with frames of so many bytes, in bits a second.
/// `feed` is called before each look with the receiver.
fn shared(shares: [u16; 2], shape: Shape, lens: [usize; 2], mut feed: impl FnMut(&End)) -> [u64; 2] {
    let mut bench = Bench::new();
    let senders = shares.map(|shares| bench.port_with_shares(Shape::default(), Some(shares)));
    let to = bench.port(shape);
    let frames = [0, 1].map(|at| senders[at].frame(&to, lens[at]));
    let mut bytes = [0; 2];
    bench.run(TWO, STEP, || {
        for (sender, frame) in senders.iter().zip(&frames) {
            sender.offer(frame, Offload::None);
        }
        feed(&to);
        for received in to.wire.received() {
            let from = usize::from(received.bytes[6..12] == senders[1].mac.0);
            bytes[from] += received.bytes.len() as u64 * 8;
        }
    });
    bytes.map(|bits| bits / 2)
}

#[test]
fn senders_share_a_shaped_port_by_their_shares_and_fill_it() {
    const GIGABIT: u64 = 1_000_000_000;
    for (shares, lens) in [([100, 300], [FULL, FULL]), ([100, 100], [FULL, FULL]), ([300, 100], [600, FULL])]
    {
        let got = shared(shares, output(GIGABIT, GIGABIT, MEBI), lens, |_| {});
        let all = u64::from(shares[0] + shares[1]);
        for (got, shares) in got.into_iter().zip(shares) {
            assert_near(got, GIGABIT * u64::from(shares) / all, 5);
        }
        assert_near(got[0] + got[1], GIGABIT, 3);
    }
}

#[test]
fn senders_share_a_full_receiver_by_their_shares() {
    for shares in [[100, 300], [100, 100]] {
        // 500 Mbit/s or so: four frames a look.
        let got = shared(shares, Shape::default(), [FULL, FULL], |to| to.wire.set_room(Some(4)));
        let (all, sum) = (u64::from(shares[0] + shares[1]), got[0] + got[1]);
        assert_near(sum, 4 * FULL as u64 * 8 * 10_000, 3);
        for (got, shares) in got.into_iter().zip(shares) {
            assert_near(got, sum * u64::from(shares) / all, 5);
        }
    }
}

#[test]
fn a_sender_has_all_of_a_shaped_port_while_the_others_are_silent() {
    let mut bench = Bench::new();
    let [poor, rich] = [1, 1000].map(|shares| bench.port_with_shares(Shape::default(), Some(shares)));
    let to = bench.port(output(100_000_000, 100_000_000, MEBI));
    let [from_poor, from_rich] = [&poor, &rich].map(|from| from.frame(&to, FULL));
    to.wire.forget_frames();
    rich.wire.send(&from_rich, Offload::None, None);
    bench.run(TWO, STEP, || poor.offer(&from_poor, Offload::None));
    assert_near(to.stats.rx_shaped_bytes.get() * 8 / 2, 100_000_000, 3);
    let before = to.stats.rx_shaped_bytes.get();
    bench.run(TWO, STEP, || rich.offer(&from_rich, Offload::None));
    assert_near((to.stats.rx_shaped_bytes.get() - before) * 8 / 2, 100_000_000, 3);
}
