//! A wire's impairments beside Linux's own: netem at the card of the guest that sends does the same to the
//! same traffic.

use std::ops::RangeInclusive;

use serde_json::Value;
use vmlane_tests::traffic::address;
use vmlane_tests::{Bed, TIMEOUT, json, kept, median};

use super::{ALIKE, joined};

/// Runs of each case with either, which take turns. The medians of the figures count.
const ROUNDS: usize = 3;
/// Milliseconds.
const DELAY: f64 = 10.0;
const JITTER: f64 = 3.0;
/// Mbit/s: far below what an emulated guest sends.
const RATE: f64 = 10.0;
/// How far from its mean a count by chance is at most, in standard deviations; one of a thousand is farther.
/// A wire's chance is the same in each round, because its seed is.
const DEVIATIONS: f64 = 3.29;

/// What two ways to impair do to one kind of traffic.
struct Case {
    what: &'static str,
    netem: &'static str,
    wire: &'static str,
    measure: fn(&Bed) -> Vec<Figure>,
}

#[derive(Clone)]
struct Figure {
    what: &'static str,
    value: f64,
    /// Either is in these.
    bounds: RangeInclusive<f64>,
    /// The greater is at most so many times the lesser.
    factor: f64,
}

const NOTHING: &str =
    "delay_us=0 jitter_us=0 loss=0 loss_burst=0 reorder=0 duplicate=0 rate=0";

const CASES: [Case; 8] = [
    Case {
        what: "10 ms, with jitter of 3 ms",
        netem: "delay 10ms 3ms",
        wire: "delay_us=10000 jitter_us=3000",
        measure: late,
    },
    Case { what: "5 % lost", netem: "loss 5%", wire: "loss=5", measure: lost },
    Case {
        what: "10 % lost, 4 in a row",
        // The wire's two states: how often the good one ends, and the bad one, in which all is lost.
        netem: "loss gemodel 2.7778% 25% 100% 0%",
        wire: "loss=10 loss_burst=4",
        measure: lost_in_bursts,
    },
    Case { what: "5 % twice", netem: "duplicate 5%", wire: "duplicate=5", measure: doubled },
    Case {
        what: "10 % not delayed",
        netem: "delay 10ms reorder 10%",
        wire: "delay_us=10000 reorder=10",
        measure: overtaken,
    },
    Case { what: "UDP at 10 Mbit/s", netem: "rate 10mbit limit 130", wire: "rate=10M", measure: udp_at_a_rate },
    Case { what: "TCP at 10 Mbit/s", netem: "rate 10mbit limit 130", wire: "rate=10M", measure: tcp_at_a_rate },
    Case {
        what: "TCP, 10 ms, 2 % lost",
        netem: "delay 10ms loss 2%",
        wire: "delay_us=10000 loss=2",
        measure: tcp_with_loss,
    },
];

pub fn impairments_have_the_shape_of_netem(bed: &Bed) {
    let _joined = joined(bed, ALIKE);
    let listen = ["vmlane", "bench", "server", "--listen", "tcp:0.0.0.0"];
    let server = bed.guest("b").spawn(listen).unwrap();
    server.wait_for("listening on", TIMEOUT).unwrap();
    let a = bed.guest("a");
    let card: Value = serde_json::from_str(&a.sh("ip -d -j link show eth0").unwrap()).unwrap();
    let segments = |most: &Value| format!("ip link set eth0 gso_max_segs {most}");
    // To netem, a super-frame is one frame, also where Linux cuts it before the card; to a wire, it is many.
    a.sh(&format!("{}; ping -q -c 1 {}", segments(&1.into()), address(0, 2))).unwrap();
    let alike: Vec<String> = CASES.iter().map(|case| alike(bed, case)).collect();
    let order = only_netem_reorders_by_jitter(bed);
    a.sh(&format!("{}; modprobe -r sch_netem", segments(&card[0]["gso_max_segs"]))).unwrap();
    drop(server);
    kept("wires", &format!("netem beside a wire, medians of {ROUNDS}: {}; {order}", alike.join("; ")));
}

fn by_netem<T>(bed: &Bed, settings: &str, work: impl FnOnce() -> T) -> T {
    let a = bed.guest("a");
    let limit = if settings.contains("limit") { "" } else { "limit 10000" };
    a.sh(&format!("tc qdisc replace dev eth0 root netem {settings} {limit}")).unwrap();
    let done = work();
    a.sh("tc qdisc del dev eth0 root").unwrap();
    done
}

fn by_wire<T>(bed: &Bed, settings: &str, work: impl FnOnce() -> T) -> T {
    let set = |settings: &str| {
        let words = ["wire", "set", "w0", "--to", "b/nic0"];
        bed.vmlane(&words.into_iter().chain(settings.split(' ')).collect::<Vec<_>>());
    };
    set(settings);
    let done = work();
    set(NOTHING);
    done
}

/// Asserts that both do the same, and returns what they did.
fn alike(bed: &Bed, case: &Case) -> String {
    let measure = || (case.measure)(bed);
    let rounds: Vec<_> = (0..ROUNDS)
        .map(|_| (by_netem(bed, case.netem, measure), by_wire(bed, case.wire, measure)))
        .collect();
    let (netem, wire): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
    let pairs = medians(&netem).into_iter().zip(medians(&wire));
    let figures: Vec<String> = pairs.map(|(netem, wire)| compared(case.what, &netem, &wire)).collect();
    let text = format!("{}: {}", case.what, figures.join(", "));
    println!("  {text}");
    text
}

fn medians(rounds: &[Vec<Figure>]) -> Vec<Figure> {
    let of = |at: usize| median(rounds.iter().map(|figures| figures[at].value).collect());
    let first = rounds[0].iter().enumerate();
    first.map(|(at, figure)| Figure { value: of(at), ..figure.clone() }).collect()
}

fn compared(case: &str, netem: &Figure, wire: &Figure) -> String {
    let Figure { what, bounds, factor, .. } = wire;
    let text = format!("{what} {:.2} and {:.2}", netem.value, wire.value);
    for value in [netem.value, wire.value] {
        assert!(bounds.contains(&value), "{case}: {text}, which {bounds:?} bound");
    }
    let (least, most) = (netem.value.min(wire.value), netem.value.max(wire.value));
    assert!(most <= least * factor, "{case}: {text}, a factor above {factor}");
    text
}

/// A ping that was answered.
struct Answer {
    number: u32,
    /// Milliseconds.
    took: f64,
}

/// Of so many pings from a to b, such a time apart, in the order of their arrival.
fn pings(bed: &Bed, count: u32, seconds: f64) -> Vec<Answer> {
    let line = format!("ping -c {count} -i {seconds} -W 2 {}", address(0, 2));
    let text = bed.guest("a").sh(&line).unwrap();
    text.lines().filter_map(answer).collect()
}

fn answer(line: &str) -> Option<Answer> {
    let of = |key: &str| line.split_once(key)?.1.split(' ').next();
    let (number, took) = (of("icmp_seq=")?.parse().ok()?, of("time=")?.parse().ok()?);
    Some(Answer { number, took })
}

/// So many of `count` are of a part by chance, if what was before has an effect that makes the variance this
/// many times greater.
fn by_chance(count: f64, part: f64, variance: f64) -> RangeInclusive<f64> {
    let mean = count * part;
    let most = DEVIATIONS * (mean * (1.0 - part) * variance).sqrt();
    mean - most..=mean + most
}

/// Farther apart than the jitter is wide, they cannot overtake each other.
fn late(bed: &Bed) -> Vec<Figure> {
    let mut took: Vec<f64> = pings(bed, 300, 0.01).iter().map(|answer| answer.took).collect();
    took.sort_by(f64::total_cmp);
    let mean = took.iter().sum::<f64>() / took.len() as f64;
    let quarter = |number: usize| took[took.len() * number / 4];
    // No clock is exact, and a busy machine adds to all. The middle half of what is spread evenly is as wide
    // as the jitter.
    let figure =
        |what, value, least: f64| Figure { what, value, bounds: least..=f64::INFINITY, factor: 2.0 };
    vec![
        figure("shortest ms", took[0], (DELAY - JITTER) * 0.98),
        figure("mean ms", mean, DELAY * 0.97),
        Figure { factor: 3.0, ..figure("middle half ms", quarter(3) - quarter(1), JITTER * 0.75) },
    ]
}

/// Each frame's state depends on that of the one before.
fn lost_in_bursts(bed: &Bed) -> Vec<Figure> {
    let (count, part, burst) = (500, 0.1, 4.0);
    let arrived = pings(bed, count, 0.002);
    let lost = f64::from(count) - arrived.len() as f64;
    let numbers = [0].into_iter().chain(arrived.iter().map(|answer| answer.number)).chain([count + 1]);
    let numbers: Vec<u32> = numbers.collect();
    let bursts = numbers.windows(2).filter(|pair| pair[1] > pair[0] + 1).count() as f64;
    let rest = 1.0 - 1.0 / burst - part / (burst * (1.0 - part));
    let bounds = by_chance(f64::from(count), part, (1.0 + rest) / (1.0 - rest));
    vec![
        Figure { what: "lost", value: lost, bounds, factor: f64::INFINITY },
        Figure { what: "in a row", value: lost / bursts, bounds: 1.7..=8.0, factor: 2.5 },
    ]
}

/// What `vmlane bench` in a measures of a stream to b.
fn stream(bed: &Bed, transport: &str, options: &str) -> Value {
    let line = format!("vmlane bench stream --to {transport}:{} --json {options}", address(0, 2));
    let output = bed.guest("a").exec(["sh", "-c", &line]).unwrap();
    json(&bed.guest("a"), "a stream", &output)
}

/// How many of some hundred datagrams a second were sent, and how many have `key`.
fn datagrams(bed: &Bed, key: &str) -> (f64, f64) {
    let report = stream(bed, "udp", "--rate 1M -m 200 -l 2");
    let of = |key: &str| report["datagrams"][key].as_f64().unwrap();
    (of("sent"), of(key))
}

/// A twentieth, by chance.
fn a_few(bed: &Bed, key: &'static str) -> Vec<Figure> {
    let (sent, count) = datagrams(bed, key);
    let counts = by_chance(sent, 0.05, 1.0);
    let percent = |count: f64| 100.0 * count / sent;
    let bounds = percent(*counts.start())..=percent(*counts.end());
    vec![Figure { what: "percent", value: percent(count), bounds, factor: f64::INFINITY }]
}

fn lost(bed: &Bed) -> Vec<Figure> {
    a_few(bed, "lost")
}

fn doubled(bed: &Bed) -> Vec<Figure> {
    a_few(bed, "duplicated")
}

/// One that does not wait overtakes all of the last 10 ms.
fn overtaken(bed: &Bed) -> Vec<Figure> {
    let (sent, reordered) = datagrams(bed, "reordered");
    vec![Figure { what: "part overtaken", value: reordered / sent, bounds: 0.05..=0.8, factor: 2.0 }]
}

/// What arrives at b.
fn throughput(bed: &Bed, transport: &str, options: &str) -> Figure {
    let bits = stream(bed, transport, &format!("-l 3 {options}"))["throughput_bps"].as_f64().unwrap();
    Figure { what: "Mbit/s", value: bits / 1e6, bounds: 0.8 * RATE..=1.03 * RATE, factor: 1.1 }
}

/// Twice as much is sent.
fn udp_at_a_rate(bed: &Bed) -> Vec<Figure> {
    vec![throughput(bed, "udp", "--rate 20M -m 1400")]
}

fn tcp_at_a_rate(bed: &Bed) -> Vec<Figure> {
    vec![throughput(bed, "tcp", "")]
}

/// Chance decides when TCP halves its window.
fn tcp_with_loss(bed: &Bed) -> Vec<Figure> {
    vec![Figure { bounds: 0.1..=f64::INFINITY, factor: 3.0, ..throughput(bed, "tcp", "") }]
}

/// Where frames follow each other closely, a wire keeps their order.
fn only_netem_reorders_by_jitter(bed: &Bed) -> String {
    let reordered = || datagrams(bed, "reordered").1;
    let netem = by_netem(bed, "delay 10ms 3ms", reordered);
    let wire = by_wire(bed, "delay_us=10000 jitter_us=3000", reordered);
    assert_eq!(wire, 0.0, "frames overtook others on a wire with jitter");
    assert!(netem > 0.0, "netem keeps their order, too");
    format!("with jitter, {netem} datagrams were overtaken in netem and none on the wire")
}
