//! What a fault does to what programs notice: throughput, round trips, lost datagrams.

use std::collections::VecDeque;

use serde::Serialize;
use serde_json::Value;
use vmlane_tests::{Bed, median};

/// Throughput below this part of the healthy lab's is an effect.
const THROUGHPUT: f64 = 0.7;
/// Round trips above so many times the healthy lab's are one.
const ROUND_TRIPS: f64 = 1.5;
/// More datagrams lost than this, in percent, at a rate that no healthy lab loses any of.
const LOSS: f64 = 0.5;

/// One measurement of all. What fails is 0 bits per second, no round trip, all datagrams lost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Gauges {
    pub forth_bps: f64,
    pub back_bps: f64,
    pub rtt_us: f64,
    /// Datagrams lost, in percent.
    pub lost_forth: f64,
    pub lost_back: f64,
}

/// What guest a measures to `to`. The program is where a control group was made for it.
pub struct Path<'a> {
    pub bed: &'a Bed,
    pub to: &'a str,
}

/// A line that runs `words` in guest a, in the control group of a fault if there is one.
pub fn placed(words: &str) -> String {
    format!("[ ! -e /run/chance-group ] || echo $$ >$(cat /run/chance-group)/cgroup.procs; exec {words}")
}

impl Path<'_> {
    fn bench(&self, words: &str) -> Option<Value> {
        let line = placed(&format!("timeout -s KILL 15 vmlane bench {words} --json"));
        let output = self.bed.guest("a").exec(["sh", "-c", &line]).ok()?;
        serde_json::from_str(&output.stdout()).ok()
    }

    fn throughput(&self, test: &str) -> f64 {
        let report = self.bench(&format!("{test} --to {} -l 0.7 --warmup 0.2", self.to));
        report.and_then(|report| report["throughput_bps"].as_f64()).unwrap_or(0.0)
    }

    fn round_trip(&self) -> f64 {
        let report = self.bench(&format!("rr --to {} -l 0.5 --warmup 0.1", self.to));
        report.and_then(|report| report["rtt_us"]["p50"].as_f64()).unwrap_or(f64::INFINITY)
    }

    /// There are none over vsock.
    fn lost(&self, test: &str) -> f64 {
        let Some(address) = self.to.strip_prefix("tcp:") else { return 0.0 };
        let report = self.bench(&format!("{test} --to udp:{address} --rate 8M -l 0.5 --warmup 0.1"));
        report.and_then(|report| report["datagrams"]["lost_percent"].as_f64()).unwrap_or(100.0)
    }

    pub fn measure(&self) -> Gauges {
        Gauges {
            forth_bps: self.throughput("stream"),
            back_bps: self.throughput("maerts"),
            rtt_us: self.round_trip(),
            lost_forth: self.lost("stream"),
            lost_back: self.lost("maerts"),
        }
    }

    /// What is measured beside a fault. What is no clear effect is measured once more, and the better one
    /// counts: a busy host is no fault.
    pub fn with_fault(&self, healthy: &Gauges) -> Gauges {
        let first = self.measure();
        if first.effects(healthy).is_empty() || first.is_clearly_worse(healthy) {
            return first;
        }
        first.better(&self.measure())
    }

    /// Waits until the lab is as it was, and returns what it does then; none if it does not get there.
    pub fn recovers(&self, healthy: &Gauges) -> Option<Gauges> {
        (0..6).map(|_| self.measure()).find(|now| now.effects(healthy).is_empty())
    }
}

/// What a healthy lab does: the middle of its last measurements, because what else the host does changes with
/// time.
pub struct Healthy(VecDeque<Gauges>);

/// So many measurements count.
const COUNT: usize = 5;

impl Healthy {
    pub fn of(path: &Path<'_>) -> Healthy {
        Healthy((0..COUNT).map(|_| path.measure()).collect())
    }

    pub fn add(&mut self, one: Gauges) {
        self.0.pop_front();
        self.0.push_back(one);
    }

    pub fn middle(&self) -> Gauges {
        let of = |value: fn(&Gauges) -> f64| median(self.0.iter().map(value).collect());
        Gauges {
            forth_bps: of(|one| one.forth_bps),
            back_bps: of(|one| one.back_bps),
            rtt_us: of(|one| one.rtt_us),
            lost_forth: of(|one| one.lost_forth),
            lost_back: of(|one| one.lost_back),
        }
    }
}

impl Gauges {
    /// A sentence for each.
    pub fn effects(&self, healthy: &Gauges) -> Vec<String> {
        let mut all = Vec::new();
        let ways = [
            ("from a to b", self.forth_bps / healthy.forth_bps, self.lost_forth - healthy.lost_forth),
            ("from b to a", self.back_bps / healthy.back_bps, self.lost_back - healthy.lost_back),
        ];
        for (way, throughput, lost) in ways {
            if throughput < THROUGHPUT {
                all.push(format!("throughput {way} {throughput:.3}"));
            }
            if lost > LOSS {
                all.push(format!("{lost:.1} % of datagrams lost {way}"));
            }
        }
        let trips = self.rtt_us / healthy.rtt_us;
        if trips > ROUND_TRIPS {
            all.push(format!("round trips {trips:.1}"));
        }
        all
    }

    fn is_clearly_worse(&self, healthy: &Gauges) -> bool {
        let least = (self.forth_bps / healthy.forth_bps).min(self.back_bps / healthy.back_bps);
        least < 0.4 || self.rtt_us > 4.0 * healthy.rtt_us || self.lost_forth.max(self.lost_back) > 5.0
    }

    fn better(&self, other: &Gauges) -> Gauges {
        Gauges {
            forth_bps: self.forth_bps.max(other.forth_bps),
            back_bps: self.back_bps.max(other.back_bps),
            rtt_us: self.rtt_us.min(other.rtt_us),
            lost_forth: self.lost_forth.min(other.lost_forth),
            lost_back: self.lost_back.min(other.lost_back),
        }
    }
}
