//! Ports while a capture looks at them: what guests sent and got, what was dropped and why, and that nothing
//! else changes.

use std::sync::Arc;
use std::time::Duration;

use vmlane_capture::{Counts, Direction, Filter, Reader, Record, Ring, Tap};
use vmlane_port::wrap::FrameTap;
use vmlane_port::{DropReason, Frames, Offload};
use vmlane_switch::{Policy, PortSpec, Settings, VlanMode};
use vmlane_wire::ethernet::{Mac, Tci};

use crate::common::{Bench, Guest, frame, mac};

struct Capture {
    ring: Arc<Ring>,
    reader: Reader,
    taps: Vec<Arc<dyn FrameTap>>,
}

impl Capture {
    /// Of the ports with these numbers, in a ring of `bytes`.
    fn begin(bench: &mut Bench, numbers: &[u8], snap: usize, bytes: usize) -> Capture {
        let ring = Arc::new(Ring::new(bytes, numbers.len()).unwrap());
        let reader = Reader::new(&ring.file().try_clone_to_owned().unwrap()).unwrap();
        let mut taps: Vec<Arc<dyn FrameTap>> = Vec::new();
        for (point, number) in (0..).zip(numbers) {
            taps.push(Arc::new(Tap::new(ring.clone(), point, snap, Filter::default())));
            bench.switch.add_tap(&Bench::spec(*number).name, taps[usize::from(point)].clone());
        }
        bench.step();
        Capture { ring, reader, taps }
    }

    fn end(&self, bench: &mut Bench) {
        self.taps.iter().for_each(|tap| bench.switch.remove_tap(tap));
        bench.step();
        self.ring.end();
    }

    fn records(&mut self) -> Vec<Record> {
        std::iter::from_fn(|| self.reader.take().unwrap()).collect()
    }

    /// Point, direction and reason of each record.
    fn seen(&mut self) -> Vec<(u16, Direction, Option<DropReason>)> {
        let seen = |record: Record| {
            (record.mark.point, record.mark.direction, DropReason::from_number(record.mark.dropped))
        };
        self.records().into_iter().map(seen).collect()
    }
}

use Direction::{In, Out};

#[test]
fn what_one_sends_and_the_other_gets_is_recorded_whole_in_order_and_only_meanwhile() {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    let send = |bench: &mut Bench, numbers: std::ops::Range<u8>| {
        numbers.for_each(|number| a.send(&frame(mac(2), mac(1), 60 + 10 * usize::from(number), number)));
        bench.run();
    };
    send(&mut bench, 0..10);
    let mut capture = Capture::begin(&mut bench, &[1, 2], usize::MAX, 1 << 20);
    send(&mut bench, 10..90);
    let records = capture.records();
    capture.end(&mut bench);
    send(&mut bench, 90..100);
    assert!(capture.records().is_empty() && capture.reader.ended());

    let sent: Vec<Vec<u8>> =
        (0..100).map(|number| frame(mac(2), mac(1), 60 + 10 * usize::from(number), number)).collect();
    assert!(b.frames() == sent, "the capture changes nothing");
    assert_eq!(a.wire.outstanding(), 0);
    for (point, direction) in [(0, Out), (1, In)] {
        let of_point = records.iter().filter(|record| record.mark.point == point);
        let (bytes, directions): (Vec<_>, Vec<_>) =
            of_point.map(|record| (record.data.clone(), record.mark.direction)).unzip();
        assert!(bytes == sent[10..90], "point {point}");
        assert!(directions.iter().all(|&other| other == direction));
    }
    assert!(records.is_sorted_by_key(|record| record.mark.time), "one timeline");
    let counts = Counts { recorded: 80, lost: 0, present: true };
    assert_eq!((capture.reader.counts(0), capture.reader.counts(1)), (counts, counts));
}

#[test]
fn losses_are_counted_exactly_and_the_frames_arrive_all_the_same() {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    let mut capture = Capture::begin(&mut bench, &[1, 2], usize::MAX, 0);
    for round in 0..20u8 {
        (0..64).for_each(|number| a.send(&frame(mac(2), mac(1), 1500, number.max(round))));
        bench.run();
    }
    assert_eq!(b.frames().len(), 20 * 64);
    capture.end(&mut bench);
    let records = capture.records();
    for point in 0..2 {
        let recorded = records.iter().filter(|record| record.mark.point == point).count() as u64;
        let Counts { recorded: counted, lost, .. } = capture.reader.counts(point);
        assert_eq!((counted, recorded + lost), (recorded, 20 * 64), "point {point}");
        assert!(recorded > 0 && lost > 1000, "{recorded} recorded, {lost} lost");
    }
}

#[test]
fn what_the_switch_drops_is_recorded_with_the_reason() {
    let mut bench =
        Bench::with(Settings { hold: Duration::ZERO, hold_alone: Duration::ZERO, ..Settings::default() });
    let strict = Policy { forged_transmits: false, ..Policy::default() };
    let a = bench.port(PortSpec { policy: strict, ..Bench::spec(1) });
    let b = bench.guest(2);
    let mut capture = Capture::begin(&mut bench, &[1, 2], 96, 1 << 20);

    a.send(&frame(mac(2), mac(9), 60, 0));
    a.wire.send(&frame(mac(2), mac(1), 60, 0), Offload::None, Some(Tci(7)));
    a.send(&frame(mac(8), mac(1), 60, 0));
    bench.run();
    let dropped = |reason| (0, Out, Some(reason));
    assert_eq!(
        capture.seen(),
        [dropped(DropReason::ForgedSource), dropped(DropReason::BadVlan), dropped(DropReason::NoReceiver)]
    );

    b.wire.refuse(Some(DropReason::NoRoom));
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert_eq!(capture.seen(), [(0, Out, None), (1, In, Some(DropReason::NoRoom))]);
    b.wire.refuse(None);

    b.wire.change_filter(|filter| filter.unicast = false);
    bench.refresh(&b);
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert_eq!(capture.seen(), [(0, Out, None), (1, In, Some(DropReason::Filtered))]);
    b.wire.change_filter(|filter| filter.unicast = true);
    bench.refresh(&b);

    // It waits in vain, and is dropped for that.
    b.wire.set_room(Some(0));
    a.send(&frame(mac(2), mac(1), 60, 0));
    while b.stats.drop_no_buffers.get() + b.stats.drop_slow_receiver.get() == 0 {
        bench.step();
    }
    let seen = capture.seen();
    assert_eq!(seen[0], (0, Out, None));
    assert!(
        matches!(seen[1..], [(1, In, Some(DropReason::NoBuffers | DropReason::SlowReceiver))]),
        "{seen:?}"
    );
}

#[test]
fn a_frame_that_waits_is_recorded_once_when_sent_and_once_when_delivered() {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    let mut capture = Capture::begin(&mut bench, &[1, 2], 96, 1 << 20);
    b.wire.set_room(Some(0));
    (0..40).for_each(|number| a.send(&frame(mac(2), mac(1), 60, number)));
    (0..20).for_each(|_| bench.step());
    assert_eq!(capture.seen(), [(0, Out, None); 40]);
    b.wire.set_room(None);
    bench.run();
    assert_eq!(capture.seen(), [(1, In, None); 40]);
    assert_eq!(b.frames().len(), 40);
}

#[test]
fn a_port_that_comes_goes_and_comes_again_is_captured_whenever_it_is_there() {
    let mut bench = Bench::new();
    let a = bench.guest(1);
    let mut capture = Capture::begin(&mut bench, &[2], 96, 1 << 20);
    assert!(!capture.reader.counts(0).present);
    for round in 0..3 {
        let spec = PortSpec { vlan: VlanMode::Untagged, ..Bench::spec(2) };
        let b: Guest = bench.port(spec);
        assert!(capture.reader.counts(0).present);
        a.send(&frame(mac(2), mac(1), 60, round));
        bench.run();
        assert_eq!(capture.seen(), [(0, In, None)]);
        // Its driver starts anew.
        let (wire, end) = vmlane_guestsim::memory_port::Wire::new(mac(2));
        bench.switch.attach(b.id, end);
        bench.run();
        a.send(&frame(mac(2), mac(1), 60, round));
        bench.run();
        assert_eq!((capture.seen().len(), wire.received().len()), (1, 1));
        bench.switch.remove_port(b.id);
        bench.step();
        assert!(!capture.reader.counts(0).present);
    }
}

#[test]
fn two_captures_of_one_port_know_nothing_of_each_other() {
    let mut bench = Bench::new();
    let (a, _b) = (bench.guest(1), bench.guest(2));
    let mut first = Capture::begin(&mut bench, &[1], 96, 1 << 20);
    let mut second = Capture::begin(&mut bench, &[1], 20, 1 << 20);
    a.send(&frame(Mac::BROADCAST, mac(1), 60, 1));
    bench.run();
    first.end(&mut bench);
    a.send(&frame(mac(2), mac(1), 60, 2));
    bench.run();
    let lens = |records: Vec<Record>| records.iter().map(|record| record.data.len()).collect::<Vec<_>>();
    assert_eq!((lens(first.records()), lens(second.records())), (vec![60], vec![20, 20]));
}
