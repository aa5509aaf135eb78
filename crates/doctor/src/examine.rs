//! An examination: asks both ends, measures between them, and keeps what was seen.
//!
//! Everything runs over `vmlane bench`'s own connections; tests are abandoned when their time is up, so that a broken
//! path costs no more time than a healthy one.

use std::time::Duration;

use vmlane_bench::address::Family;
use vmlane_bench::{Address, Error, Hooks, Options, Report, Spec, Target, Test};

use crate::evidence::{End, Evidence, Kind, Run};
use crate::facts::{Counters, Facts, Load, WATCHED};
use crate::loopback;
use crate::question::Question;
use crate::text::tame;

/// How long everything may take.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    round_trips: f64,
    stream: f64,
    warmup: f64,
    probe: f64,
    probes_per_second: f64,
    requests: f64,
    /// What is left out of a quick examination.
    slow: Option<f64>,
    loaded: Option<f64>,
    loopback: Option<f64>,
}

impl Plan {
    /// Below 5 s.
    pub fn quick() -> Plan {
        Plan {
            round_trips: 0.25,
            stream: 0.5,
            warmup: 0.15,
            probe: 0.2,
            probes_per_second: 400.0,
            requests: 0.3,
            slow: None,
            loaded: None,
            loopback: None,
        }
    }

    /// Below 30 s.
    pub fn full() -> Plan {
        Plan {
            round_trips: 1.0,
            stream: 2.5,
            warmup: 0.5,
            probe: 1.0,
            probes_per_second: 500.0,
            requests: 1.0,
            slow: Some(1.0),
            loaded: Some(1.5),
            loopback: Some(1.0),
        }
    }
}

/// For the server to watch its machine, or to measure its loopback.
const PATIENCE: Duration = Duration::from_secs(10);
/// So that the other end's clock, which starts a little earlier, does not cut the measurement short.
const COOLDOWN: f64 = 0.15;
/// So is a transfer that does not get anywhere.
const CRAWLS: f64 = 5e6;
/// A retransmission in so many segments is worth a closer look.
const SUSPICIOUS: f64 = 0.002;
/// Many segments at once lose as many, if each super-frame of them is lost.
const OFTEN: f64 = 0.05;

/// Examines the way to the server at `to`. An error is only what makes an examination impossible: a machine that cannot be
/// reached is evidence too.
pub fn examine(to: &Address, options: &Options, plan: Plan, say: &dyn Fn(&str)) -> Result<Evidence, Error> {
    say("reading both machines' settings");
    // Both machines are watched at the same time.
    let (load, asked) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| vmlane_bench::ask(to, options, &Question::Facts.to_value(), PATIENCE));
        let load = Load::watch(WATCHED);
        let asked = asking.join().unwrap_or_else(|_| {
            Err(Error::Usage("asking the other machine failed: its answer could not be read".to_owned()))
        });
        (load, asked)
    });
    let is_vsock = to.family() == Family::Vsock;
    let mut evidence = Evidence { to: to.to_string(), is_vsock, ..Evidence::default() };
    let told = match asked {
        Ok(told) => told,
        Err(
            error @ (Error::Usage(_)
            | Error::Refused { .. }
            | Error::Version { .. }
            | Error::WrongPeer { .. }),
        ) => {
            return Err(error);
        }
        Err(error) => {
            evidence.near = Facts::read_with(load, None, None);
            evidence.unreachable = Some(error.to_string());
            return Ok(evidence);
        }
    };
    evidence.near = Facts::read_with(load, told.here, told.there);
    let wrong = |why| Error::WrongPeer { peer: to.to_string(), why };
    evidence.far = Some(Facts::from_answer(told.answer).map_err(wrong)?);

    let mut examination = Examination { to, options, plan, say, evidence, last: None };
    examination.measure();
    Ok(examination.evidence)
}

struct Examination<'a> {
    to: &'a Address,
    options: &'a Options,
    plan: Plan,
    say: &'a dyn Fn(&str),
    evidence: Evidence,
    /// What both ends had counted after the run before.
    last: Option<(Counters, Counters)>,
}

impl Examination<'_> {
    fn measure(&mut self) {
        (self.say)("measuring round trips");
        let spec = self.requests(self.plan.round_trips, 1, 1);
        self.run(Kind::RoundTrips, End::Near, &spec);
        for (from, test) in [(End::Near, Test::Stream), (End::Far, Test::Maerts)] {
            (self.say)(&format!("measuring throughput {}", self.evidence.way(from)));
            let spec = self.spec(test, self.plan.stream);
            self.run(Kind::Stream, from, &spec);
            let suspicious = self.evidence.run(Kind::Stream, from).is_some_and(|run| {
                run.retransmitted() > SUSPICIOUS || run.timeouts() > 0 || run.bps() < CRAWLS
            });
            if suspicious && !self.evidence.is_vsock {
                (self.say)("some segments were sent again: single segments against many at once");
                for (kind, bytes) in [(Kind::SmallRequests, 1000), (Kind::LargeRequests, 32 << 10)] {
                    let (request, response) = if from == End::Near { (bytes, 1) } else { (1, bytes) };
                    let spec = self.requests(self.plan.requests, request, response);
                    self.run(kind, from, &spec);
                }
                self.slowly(from);
            }
        }
        if !self.evidence.is_vsock {
            for from in [End::Near, End::Far] {
                self.probe(from);
            }
            for from in [End::Near, End::Far] {
                self.loaded(from);
            }
        }
        self.loopbacks();
    }

    /// Where only many segments at once lose some: is it their rate, or that they come as one frame? Far below the rate at
    /// which a transfer gets through, one and two at a time.
    fn slowly(&mut self, from: End) {
        let Some(seconds) = self.plan.slow else { return };
        let run = |kind| self.evidence.run(kind, from);
        let is_unclear = run(Kind::SmallRequests).is_some_and(|small| small.sent_again() == 0)
            && run(Kind::LargeRequests).is_some_and(|large| large.retransmitted() > OFTEN);
        let stream = run(Kind::Stream);
        let segment = stream.and_then(Run::tcp).map_or(0, |tcp| tcp.mss);
        let rate = stream.map_or(0.0, Run::bps) / 4.0;
        if !is_unclear || segment == 0 || rate < 1.0 {
            return;
        }
        (self.say)("sending single segments, and two at once, at a low rate");
        let test = if from == End::Near { Test::Stream } else { Test::Maerts };
        for (kind, segments) in [(Kind::SlowSegments, 1), (Kind::SlowPairs, 2)] {
            let message_bytes = segments * segment;
            // As often for both, so that both have the same chances.
            let per_second = (rate / (segment * 16) as f64).min(50.0);
            let rate_bps = Some((per_second * (message_bytes * 8) as f64).max(1.0) as u64);
            let spec =
                Spec { message_bytes, rate_bps, nodelay: true, warmup: 0.0, ..self.spec(test, seconds) };
            self.run(kind, from, &spec);
        }
    }

    fn spec(&self, test: Test, seconds: f64) -> Spec {
        Spec { seconds, warmup: self.plan.warmup, cooldown: COOLDOWN, abandon: true, ..Spec::new(test) }
    }

    fn requests(&self, seconds: f64, request_bytes: u64, response_bytes: u64) -> Spec {
        Spec { request_bytes, response_bytes, nodelay: true, warmup: 0.05, ..self.spec(Test::Rr, seconds) }
    }

    fn bench(&self, spec: &Spec, datagrams: bool) -> Result<Report, Error> {
        let target = Target { control: self.to.clone(), datagrams };
        vmlane_bench::run(&target, spec, self.options, &mut Hooks::default())
    }

    fn run(&mut self, kind: Kind, from: End, spec: &Spec) {
        self.run_with(kind, from, |examination| examination.bench(spec, matches!(kind, Kind::Probe { .. })));
    }

    fn run_with(&mut self, kind: Kind, from: End, bench: impl FnOnce(&Self) -> Result<Report, Error>) {
        let before = self.last.take().unwrap_or_else(|| self.counters());
        match bench(self) {
            Ok(report) => {
                let after = self.counters();
                let (near, far) = (after.0.since(&before.0), after.1.since(&before.1));
                self.evidence.runs.push(Run { kind, from, report, near, far });
                self.last = Some(after);
            }
            Err(error) => {
                let way = self.evidence.way(from);
                self.evidence.failed.push(format!("{} {way}: {error}", crate::report::name(kind)));
            }
        }
    }

    fn counters(&self) -> (Counters, Counters) {
        let interface = |facts: Option<&Facts>| facts?.path.as_ref().map(|path| path.interface.clone());
        let near = Counters::read(interface(Some(&self.evidence.near)).as_deref());
        let question = Question::Counters { interface: interface(self.evidence.far.as_ref()) };
        let far = vmlane_bench::ask(self.to, self.options, &question.to_value(), PATIENCE);
        let far = far.ok().and_then(|told| serde_json::from_value(tame(told.answer)).ok());
        (near, far.unwrap_or_default())
    }

    /// Datagrams as large as the sender's interface allows; if none arrives, smaller ones.
    fn probe(&mut self, from: End) {
        let mtu = |end: End| self.evidence.facts(end)?.path_interface().map(|interface| interface.mtu);
        let (Some(sender), Some(receiver)) = (mtu(from), mtu(from.other())) else { return };
        (self.say)(&format!("sending datagrams of {sender} bytes {}", self.evidence.way(from)));
        let mut sizes = vec![sender];
        sizes.extend([receiver, 1500, 1400, 1280, 576].into_iter().filter(|size| *size < sender));
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        sizes.dedup();
        for bytes in sizes {
            self.probe_size(from, bytes);
            let probe = self.evidence.run(Kind::Probe { bytes }, from);
            if probe.is_none_or(|run| run.lost() < 1.0) {
                break;
            }
        }
    }

    fn probe_size(&mut self, from: End, bytes: u32) {
        let is_v6 = self.evidence.near.path.as_ref().is_some_and(|path| path.peer.is_ipv6());
        let payload = u64::from(bytes.saturating_sub(if is_v6 { 48 } else { 28 })).min(65_507);
        let test = if from == End::Near { Test::Stream } else { Test::Maerts };
        let spec = Spec {
            warmup: 0.0,
            cooldown: 0.0,
            message_bytes: payload,
            receive_bytes: payload,
            dont_fragment: true,
            rate_bps: Some((self.plan.probes_per_second * payload as f64 * 8.0) as u64),
            ..self.spec(test, self.plan.probe)
        };
        if payload >= 24 {
            self.run(Kind::Probe { bytes }, from, &spec);
        }
    }

    /// Round trips beside a stream of this end.
    fn loaded(&mut self, from: End) {
        let Some(seconds) = self.plan.loaded else { return };
        (self.say)(&format!("measuring round trips under load {}", self.evidence.way(from)));
        let test = if from == End::Near { Test::Stream } else { Test::Maerts };
        let stream = Spec { cooldown: 0.5, ..self.spec(test, seconds + 0.3) };
        let asking = Spec { warmup: 0.5, ..self.requests(seconds, 1, 1) };
        self.run_with(Kind::Loaded, from, |examination| {
            let (to, options) = (Target::from(examination.to.clone()), examination.options);
            std::thread::scope(|scope| {
                let load = scope.spawn(|| vmlane_bench::run(&to, &stream, options, &mut Hooks::default()));
                let asked = examination.bench(&asking, false);
                let _ = load.join(); // how fast it was is known from another run
                asked
            })
        });
    }

    fn loopbacks(&mut self) {
        let Some(seconds) = self.plan.loopback.filter(|_| !self.evidence.is_vsock) else { return };
        (self.say)("measuring each machine's own loopback");
        match loopback::measure(seconds) {
            Ok(bps) => self.evidence.loopback_near = Some(bps),
            Err(why) => self.evidence.failed.push(format!("loopback here: {why}")),
        }
        let question = Question::Loopback { seconds }.to_value();
        match vmlane_bench::ask(self.to, self.options, &question, PATIENCE) {
            Ok(told) => self.evidence.loopback_far = told.answer.as_f64().filter(|bps| *bps > 0.0),
            Err(error) => self.evidence.failed.push(format!("loopback there: {error}")),
        }
    }
}
