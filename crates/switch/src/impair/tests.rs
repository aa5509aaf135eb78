//! A line to a port over plain memory, by a clock that the tests set.

use std::time::Instant;

use vmlane_guestsim::memory_port::{MemoryPort, Received, Wire};
use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{
    ChecksumStatus, DropReason, FramePort, Layers, PartialChecksum, PortStats, RxFrame, Transport,
};
use vmlane_wire::ethernet::Mac;

use super::*;
use crate::shaping::MOST_BYTES;

const SEED: u64 = 7;
const LEN: usize = 100;
const MANY: u32 = 100_000;

fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

struct Bench {
    line: Line,
    wire: Wire,
    port: Box<MemoryPort>,
    /// The sender's memory.
    memory: Spans,
    stats: PortStats,
    begin: Instant,
    now: Instant,
    /// Numbers of frames, and when they arrived.
    arrived: Vec<(u32, Duration)>,
}

impl Bench {
    fn new(of: Impairment) -> Bench {
        let now = Instant::now();
        let (wire, port) = Wire::small(Mac([2, 0, 0, 0, 0, 1]), 4);
        let fd = memfd("sender", 4096).unwrap();
        let request = MapRequest { guest: 0, len: 4096, offset: 0, fd, writable: true };
        let memory = Spans::new(MemoryMap::default().map(request).unwrap(), true);
        let line = Line::new(of, SEED, now).unwrap();
        Bench { line, wire, port, memory, stats: PortStats::default(), begin: now, now, arrived: Vec::new() }
    }

    fn frame(number: u32, len: usize) -> Vec<u8> {
        let mut frame = vec![0; len];
        frame[14..18].copy_from_slice(&number.to_be_bytes());
        frame
    }

    fn send(&mut self, number: u32, len: usize) -> Result<(), DropReason> {
        let outcome = self.carry(&Bench::frame(number, len), |frame| frame);
        self.note();
        outcome
    }

    fn carry(
        &mut self,
        head: &[u8],
        change: impl FnOnce(RxFrame<'_>) -> RxFrame<'_>,
    ) -> Result<(), DropReason> {
        let frame = RxFrame {
            head,
            body: &self.memory,
            body_at: 0,
            body_len: 0,
            tag: None,
            layers: Layers::default(),
            checksum: ChecksumStatus::Good,
            aggregate: None,
            partial_checksum: None,
        };
        self.line.carry(&change(frame), self.now, &mut *self.port, &self.stats)
    }

    /// Notes what arrived just now.
    fn note(&mut self) {
        let number = |received: Received| u32::from_be_bytes(received.bytes[14..18].try_into().unwrap());
        let numbers = self.wire.received().into_iter().map(number);
        let after = self.now - self.begin;
        self.arrived.extend(numbers.map(|number| (number, after)));
    }

    /// Time passes; the line is polled whenever a frame is due.
    fn wait_until(&mut self, then: Instant) {
        while let Some(due) = self.line.next().filter(|due| *due <= then) {
            self.now = self.now.max(due);
            assert!(self.line.release(self.now, &mut *self.port, &self.stats));
            self.note();
        }
        self.now = then;
    }

    /// Sends frames in such a distance, and waits for all.
    fn flow(&mut self, count: u32, distance: Duration) {
        for number in 0..count {
            let _ = self.send(number, LEN);
            self.wait_until(self.now + distance);
        }
        self.wait_until(self.now + Duration::from_secs(3600));
        assert_eq!(self.line.len(), 0);
    }

    /// How long each frame was on its way, by its number.
    fn delays(&self, distance: Duration) -> Vec<Duration> {
        self.arrived.iter().map(|(number, at)| *at - distance * *number).collect()
    }

    fn numbers(&self) -> Vec<u32> {
        self.arrived.iter().map(|(number, _)| *number).collect()
    }
}

/// Of `count` frames, a part of `of_a_million` with 99 % certainty.
#[track_caller]
fn assert_part(found: u64, count: u32, of_a_million: u32) {
    let (count, part) = (f64::from(count), f64::from(of_a_million) / 1e6);
    let most = 2.576 * (count * part * (1.0 - part)).sqrt();
    assert!((found as f64 - count * part).abs() <= most, "{found} of {count}, {part} each");
}

#[test]
fn every_frame_is_late_by_the_delay_and_none_more() {
    let delay = us(10_000);
    let mut bench = Bench::new(Impairment { delay, ..Impairment::default() });
    bench.flow(1000, us(7));
    assert_eq!(bench.delays(us(7)), [delay; 1000]);
    assert_eq!(bench.numbers(), Vec::from_iter(0..1000));
}

#[test]
fn jitter_is_even_around_the_delay_and_changes_no_order() {
    let (delay, jitter) = (us(1000), us(300));
    let of = Impairment { delay, jitter, ..Impairment::default() };
    let mut bench = Bench::new(of);
    bench.flow(10_000, us(601));
    let delays = bench.delays(us(601));
    let (least, most) = (*delays.iter().min().unwrap(), *delays.iter().max().unwrap());
    assert!(delay - jitter <= least && least < us(705) && us(1295) < most && most <= delay + jitter);
    let mean = delays.iter().sum::<Duration>() / 10_000;
    assert!(mean.abs_diff(delay) < us(6), "{mean:?}");

    let mut bench = Bench::new(of);
    bench.flow(10_000, us(5));
    assert_eq!(bench.numbers(), Vec::from_iter(0..10_000));
    assert!(bench.delays(us(5)).iter().all(|late| (delay - jitter..=delay + jitter).contains(late)));
}

#[test]
fn as_many_are_lost_as_is_asked_for_alone_or_in_bursts() {
    for (loss, loss_burst, burst) in
        [(10_000, 0, 1.01), (200_000, 1, 1.25), (10_000, 3, 3.0), (500_000, 20, 20.0), (1_000_000, 0, 1e5)]
    {
        let mut bench = Bench::new(Impairment { loss, loss_burst, ..Impairment::default() });
        bench.flow(MANY, us(1));
        let lost = bench.stats.drop_impaired.get();
        assert_eq!(lost + bench.arrived.len() as u64, u64::from(MANY));
        // Frames of a burst are lost together: fewer throws, with more at stake.
        assert_part(lost / u64::from(loss_burst.max(1)), MANY / loss_burst.max(1), loss);
        let gaps =
            [0].into_iter().chain(bench.numbers().into_iter().map(|number| number + 1)).chain([MANY + 1]);
        let gaps: Vec<u32> = gaps.collect();
        let bursts = gaps.windows(2).filter(|pair| pair[1] > pair[0] + 1).count();
        let mean = lost as f64 / bursts as f64;
        assert!((mean / burst - 1.0).abs() < 0.05, "{loss}, {loss_burst}: {mean} in a row");
    }
}

#[test]
fn frames_that_overtake_others_do_not_wait_and_doubled_ones_arrive_twice() {
    let of = Impairment { delay: us(100), reorder: 50_000, ..Impairment::default() };
    let mut bench = Bench::new(of);
    bench.flow(MANY, us(10));
    let early = bench.delays(us(10)).iter().filter(|late| late.is_zero()).count() as u64;
    assert_eq!((bench.stats.wire_reordered.get(), bench.arrived.len()), (early, MANY as usize));
    assert_part(early, MANY, of.reorder);

    let of = Impairment { delay: us(100), duplicate: 2000, ..Impairment::default() };
    let mut bench = Bench::new(of);
    bench.flow(MANY, us(10));
    let doubled = bench.stats.wire_duplicated.get();
    assert_eq!(bench.arrived.len() as u64, u64::from(MANY) + doubled);
    assert!(bench.numbers().is_sorted(), "next to each other");
    assert_part(doubled, MANY, of.duplicate);
}

#[test]
fn a_corrupted_frame_has_one_bit_changed_behind_its_header_and_its_checksum_complete() {
    let mut bench = Bench::new(Impairment { corrupt: 1_000_000, ..Impairment::default() });
    let mut places = [false; LEN];
    for _ in 0..3000 {
        let mut frame = Bench::frame(0, LEN);
        frame[50..52].fill(0xff);
        let layers = Layers { transport: Transport::Udp, ..Layers::default() };
        let sum = PartialChecksum { start: 34, field: 40, never_zero: true, head_sum: None };
        bench.carry(&frame, |sent| RxFrame { layers, partial_checksum: Some(sum), ..sent }).unwrap();
        assert!(bench.line.release(bench.now, &mut *bench.port, &bench.stats));
        // The sum of ones is zero; UDP's zero is 0xffff.
        frame[40..42].fill(0xff);
        let [received] = &bench.wire.received()[..] else { panic!("one frame") };
        let changed: Vec<_> = (0..LEN).filter(|at| received.bytes[*at] != frame[*at]).collect();
        let [at] = changed[..] else { panic!("{changed:?}") };
        assert_eq!((received.bytes[at] ^ frame[at]).count_ones(), 1);
        assert_eq!(received.checksum, ChecksumStatus::Unknown);
        places[at] = true;
    }
    let (header, rest) = places.split_at(14);
    assert!(!header.contains(&true) && !rest.contains(&false), "anywhere else");
    assert_eq!(bench.stats.wire_corrupted.get(), 3000);

    let mut bench = Bench::new(Impairment { corrupt: 5000, ..Impairment::default() });
    bench.flow(MANY, us(1));
    assert_part(bench.stats.wire_corrupted.get(), MANY, 5000);
    assert_eq!(bench.arrived.len(), MANY as usize);
    bench.carry(&[0; 14], |frame| frame).unwrap();

    let of = Impairment { delay: us(100), corrupt: 1_000_000, reorder: 1_000_000, ..Impairment::default() };
    let mut bench = Bench::new(of);
    bench.send(0, LEN).unwrap();
    let counts = [&bench.stats.wire_corrupted, &bench.stats.wire_reordered].map(|count| count.get());
    assert_eq!((bench.line.len(), counts), (1, [1, 0]), "what is changed overtakes nothing");
}

#[test]
fn no_more_arrives_than_the_rate_and_what_waits_is_bounded() {
    for rate in [1_000_000, 100_000_000, 9_999_999_937] {
        let (delay, len) = (us(2000), 500);
        let mut bench = Bench::new(Impairment { rate, delay, ..Impairment::default() });
        let (mut sent, mut most) = (0_u64, 0);
        // More than the rate, always.
        let distance = Duration::from_nanos(len * 8 * 1_000_000_000 / rate / 2);
        while bench.arrived.len() < 40_000 {
            sent += u64::from(bench.send(sent as u32, len as usize).is_ok());
            most = most.max(bench.line.len());
            bench.wait_until(bench.now + distance);
        }
        let (_, last) = bench.arrived[bench.arrived.len() - 1];
        let carried = (bench.arrived.len() as u64 * len * 8) as f64 / (last - delay).as_secs_f64();
        assert!((carried / rate as f64 - 1.0).abs() < 0.001, "{carried} of {rate}");
        // 52 ms, but 192 KiB at least and 16 MiB at most; a frame counts 512 bytes at least.
        let bound = (rate * 52 / 8000).clamp(192 << 10, MOST_BYTES) / 512;
        assert!((bound - 1..=bound).contains(&(most as u64)), "{most} of {bound}");
    }
}

#[test]
fn a_line_holds_so_many_frames_and_what_is_too_much_is_dropped() {
    let mut bench = Bench::new(Impairment { delay: us(1_000_000), ..Impairment::default() });
    for number in 0..32_768 {
        bench.send(number, LEN).unwrap();
    }
    assert_eq!(bench.send(0, LEN), Err(DropReason::WireFull));
    bench.wait_until(bench.now + us(1_000_000));
    assert_eq!(bench.numbers(), Vec::from_iter(0..32_768));
    bench.send(0, LEN).unwrap();
}

#[test]
fn a_receiver_without_buffers_loses_what_is_due_after_a_while_and_nothing_else() {
    let mut bench = Bench::new(Impairment { delay: us(20_000), ..Impairment::default() });
    bench.wire.set_room(Some(0));
    bench.send(0, LEN).unwrap();
    bench.wait_until(bench.now + us(10_000));
    bench.send(1, LEN).unwrap();
    let poll = |bench: &mut Bench, after: u64| {
        bench.now += us(after);
        bench.line.release(bench.now, &mut *bench.port, &bench.stats)
    };
    assert!(!poll(&mut bench, 10_000) && !poll(&mut bench, 4000));
    assert!(bench.line.is_refused() && bench.line.next().is_none());
    assert!(poll(&mut bench, 2000));
    assert_eq!((bench.line.len(), bench.stats.drop_no_buffers.get()), (1, 1));
    bench.wire.set_room(None);
    assert!(poll(&mut bench, 4000));
    bench.note();
    assert_eq!(bench.numbers(), [1]);
}

#[test]
fn a_line_that_ends_delivers_what_is_on_its_way_in_order() {
    let mut bench = Bench::new(Impairment { delay: us(20_000), ..Impairment::default() });
    (0..3000).for_each(|number| bench.send(number, LEN).unwrap());
    bench.line.set(Impairment { delay: us(1), ..Impairment::default() });
    bench.send(3000, LEN).unwrap();
    assert!(bench.arrived.is_empty(), "it waits for those in front of it");
    bench.line.end(&mut *bench.port, bench.now, &bench.stats);
    bench.note();
    assert_eq!(bench.numbers(), Vec::from_iter(0..=3000));
}

#[test]
fn super_frames_are_cut_where_something_happens_to_single_frames() {
    let bench = Bench::new(Impairment::default());
    bench.wire.set_capabilities(vmlane_guestsim::memory_port::LRO);
    let all = bench.port.capabilities();
    let own = |of: Impairment| of.restrict(all);
    assert_eq!(own(Impairment { delay: us(1), jitter: us(1), rate: 1000, ..Impairment::default() }), all);
    for of in [
        Impairment { loss: 1, ..Impairment::default() },
        Impairment { reorder: 1, ..Impairment::default() },
        Impairment { duplicate: 1, ..Impairment::default() },
        Impairment { corrupt: 1, ..Impairment::default() },
    ] {
        let own = own(of);
        assert!(!own.tso4 && !own.tso6 && own.frame == all.frame, "{of:?}");
        assert_eq!(own.partial_sum, of.corrupt == 0);
    }
}
