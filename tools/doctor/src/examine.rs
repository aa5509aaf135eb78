//! An examination: asks both ends, measures between them, and keeps what was seen.
//!
//! Everything runs over `vmlane bench`'s own connections; tests are abandoned when their time is up, so that
//! a broken path costs no more time than a healthy one. The examination as a whole has a [`Budget`]: what
//! does not fit is left out, and the report names it.

mod budget;
mod counted;
mod prepared;

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};
use std::thread::Scope;
use std::time::Duration;

use serde::de::DeserializeOwned;
use vmlane_bench::address::Family;
use vmlane_bench::{Address, Error, Options, Questions, Reply, Report, Spec, Target, Test};

use budget::Budget;
use counted::Counted;
use prepared::Prepared;

use crate::checks::unexplained;
use crate::evidence::{Evidence, PathEnd, Run, RunKind, Wait};
use crate::facts::{Counters, Facts, Limits, Load, Snapshot, WATCHED};
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
    several: Option<f64>,
    loopback: Option<f64>,
    /// Seconds of all together, after which nothing more is waited for.
    all: f64,
}

impl Plan {
    /// The same, with so many seconds for all of it.
    pub fn within(self, all: f64) -> Plan {
        Plan { all, ..self }
    }

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
            several: None,
            loopback: Some(0.2),
            all: 4.5,
        }
    }

    /// Below 40 s.
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
            several: Some(1.0),
            loopback: Some(1.0),
            all: 38.5,
        }
    }
}

/// For the server to watch its machine, or to measure its loopback.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What a measurement of a loopback takes beside its length.
const LOOPBACK_STARTS: f64 = 0.3;
/// So that the other end's clock, which starts a little earlier, does not cut the measurement short.
const COOLDOWN: f64 = 0.15;
/// Bits a second: a transfer below it does not get anywhere.
const CRAWLS: f64 = 5e6;
/// Connections at once, where it is measured what several reach.
const SEVERAL: u32 = 4;
/// A retransmission in so many segments is worth a closer examination.
const SUSPICIOUS: f64 = 0.002;
/// How much longer datagrams are sent for a closer examination.
const LONGER: f64 = 3.0;
/// Many segments at once lose as many, if each super-frame of them is lost.
const OFTEN: f64 = 0.05;

/// Examines the way to the server at `to`. An error is only what makes an examination impossible: a machine
/// that cannot be reached is evidence too.
pub fn examine(
    to: &Address,
    options: &Options,
    plan: Plan,
    progress: &dyn Fn(&str),
) -> Result<Evidence, Error> {
    let budget = Budget::begin(plan.all);
    let options = &Options { until: Some(budget.until), ..options.clone() };
    progress("reading both machines' settings");
    let mut questions = Questions::new(to, options);
    // Both machines are watched at the same time.
    let (load, asked) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| questions.ask(&Question::Facts.to_value(), TIMEOUT));
        let load = Load::watch(WATCHED);
        let asked = asking.join().unwrap_or_else(|_| {
            Err(Error::Usage("asking the other machine failed: its answer could not be read".to_owned()))
        });
        (load, asked)
    });
    let is_vsock = to.family() == Family::Vsock;
    let mut evidence = Evidence { to: to.to_string(), is_vsock, ..Evidence::default() };
    let reply = match asked {
        Ok(reply) => reply,
        Err(
            error @ (Error::Usage(_)
            | Error::Refused { .. }
            | Error::Version { .. }
            | Error::WrongPeer { .. }),
        ) => return Err(error),
        Err(error) => {
            note_silence(&mut evidence, &error);
            evidence.near = Facts::read_with(load, None, resolve(to));
            evidence.unreachable = Some(error.to_string());
            return Ok(evidence);
        }
    };
    std::thread::scope(|scope| {
        let mut examination = Examination {
            scope,
            to,
            options,
            plan,
            progress,
            evidence,
            last: None,
            budget,
            questions,
            began: Snapshot::take(),
        };
        // While this machine's settings are read, the first connections are made.
        let first = examination.first();
        examination.evidence.near = Facts::read_with(load, reply.here, reply.there);
        let wrong = |why| Error::WrongPeer { peer: to.to_string(), why };
        examination.evidence.far = Some(Facts::from_answer(reply.answer).map_err(wrong)?);
        examination.measure(first);
        Ok(examination.evidence)
    })
}

/// The address of the machine, to see how it would be reached.
fn resolve(to: &Address) -> Option<IpAddr> {
    let Address::Tcp { host, port } = to else { return None };
    (host.as_str(), *port).to_socket_addrs().ok()?.next().map(|address| address.ip())
}

/// The other end took our question and did not answer: no fault of the way to it.
fn note_silence(evidence: &mut Evidence, error: &Error) {
    if let Error::Silent { doing, waited, .. } = error {
        evidence.waits.push(Wait { what: (*doing).to_owned(), seconds: waited.as_secs_f64() });
    }
}

/// The test in which this end sends.
pub fn transfer(from: PathEnd) -> Test {
    if from == PathEnd::Near { Test::Stream } else { Test::Maerts }
}

struct Examination<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    to: &'env Address,
    options: &'env Options,
    plan: Plan,
    progress: &'env dyn Fn(&str),
    evidence: Evidence,
    /// What both ends had counted after the run before.
    last: Option<Counted>,
    budget: Budget,
    questions: Questions<'env>,
    /// Before the measurements.
    began: Snapshot,
}

/// The measurements that every examination has.
struct First<'scope> {
    round_trips: Prepared<'scope>,
    streams: [Prepared<'scope>; 2],
}

impl<'scope, 'env> Examination<'scope, 'env> {
    fn first(&self) -> First<'scope> {
        let prepare = |spec| self.prepare(spec, false);
        First {
            round_trips: prepare(self.requests(self.plan.round_trips, 1, 1)),
            streams: [Test::Stream, Test::Maerts].map(|test| prepare(self.spec(test, self.plan.stream))),
        }
    }

    fn prepare(&self, spec: Spec, datagrams: bool) -> Prepared<'scope> {
        let target = Target { control: self.to.clone(), datagrams };
        Prepared::new(self.scope, target, spec, self.options)
    }

    fn measure(&mut self, first: First<'scope>) {
        let probes = self.first_probes();
        (self.progress)("measuring round trips");
        let seconds = self.plan.round_trips;
        self.run_prepared(RunKind::RoundTrips, PathEnd::Near, seconds, first.round_trips);
        // What takes little time first: where time is short, what comes last is left out.
        self.probe_both(probes);
        for from in PathEnd::BOTH {
            self.probe(from);
        }
        for (from, prepared) in PathEnd::BOTH.into_iter().zip(first.streams) {
            (self.progress)(&format!("measuring throughput {}", self.evidence.way(from)));
            let seconds = self.plan.warmup + self.plan.stream + COOLDOWN;
            self.run_prepared(RunKind::Stream, from, seconds, prepared);
            let suspicious = self.evidence.run(RunKind::Stream, from).is_some_and(|run| {
                run.retransmitted() > SUSPICIOUS || run.timeouts() > 0 || run.bps() < CRAWLS
            });
            if suspicious && !self.evidence.is_vsock {
                (self.progress)("some segments were sent again: single segments against many at once");
                for (kind, bytes) in [(RunKind::SmallRequests, 1000), (RunKind::LargeRequests, 32 << 10)] {
                    let (request, response) = if from == PathEnd::Near { (bytes, 1) } else { (1, bytes) };
                    self.run(kind, from, self.requests(self.plan.requests, request, response));
                }
                self.slowly(from);
                self.probe_longer(from);
            }
        }
        if !self.evidence.is_vsock {
            for from in PathEnd::BOTH {
                self.loaded(from);
                self.several(from);
            }
        }
        self.loopbacks();
        self.confirm();
        self.limits();
    }

    /// What was slow for a moment, because a machine had something else to do, is not slow twice.
    fn confirm(&mut self) {
        for (kind, from) in unexplained::unclear(&self.evidence) {
            (self.progress)("measuring once more what was slow");
            let spec = match kind {
                RunKind::RoundTrips => self.requests(self.plan.round_trips, 1, 1),
                _ => self.spec(transfer(from), self.plan.stream),
            };
            if self.budget.allows(spec.seconds + self.plan.warmup + COOLDOWN) {
                self.run(kind, from, spec);
                self.evidence.keep_better(kind, from);
            }
        }
    }

    /// Where only many segments at once lose some: is it their rate, or that they come as one frame? Far
    /// below the rate at which a transfer gets through, one and two at a time.
    fn slowly(&mut self, from: PathEnd) {
        let Some(seconds) = self.plan.slow else { return };
        let run = |kind| self.evidence.run(kind, from);
        let is_unclear = run(RunKind::SmallRequests).is_some_and(|small| small.sent_again() == 0)
            && run(RunKind::LargeRequests).is_some_and(|large| large.retransmitted() > OFTEN);
        let stream = run(RunKind::Stream);
        let segment = stream.and_then(Run::tcp).map_or(0, |tcp| tcp.mss);
        let rate = stream.map_or(0.0, Run::bps) / 4.0;
        if !is_unclear || segment == 0 || rate < 1.0 {
            return;
        }
        (self.progress)("sending single segments, and two at once, at a low rate");
        for (kind, segments) in [(RunKind::SlowSegments, 1), (RunKind::SlowPairs, 2)] {
            let message_bytes = segments * segment;
            // As often for both, so that both have the same chances.
            let per_second = (rate / (segment * 16) as f64).min(50.0);
            let rate_bps = Some((per_second * (message_bytes * 8) as f64).max(1.0) as u64);
            let spec = self.spec(transfer(from), seconds);
            self.run(kind, from, Spec { message_bytes, rate_bps, nodelay: true, warmup: 0.0, ..spec });
        }
    }

    fn spec(&self, test: Test, seconds: f64) -> Spec {
        Spec { seconds, warmup: self.plan.warmup, cooldown: COOLDOWN, abandon: true, ..Spec::new(test) }
    }

    fn requests(&self, seconds: f64, request_bytes: u64, response_bytes: u64) -> Spec {
        Spec { request_bytes, response_bytes, nodelay: true, warmup: 0.05, ..self.spec(Test::Rr, seconds) }
    }

    fn run(&mut self, kind: RunKind, from: PathEnd, spec: Spec) {
        let seconds = spec.warmup + spec.seconds + spec.cooldown;
        let datagrams = matches!(kind, RunKind::Probe { .. } | RunKind::Datagrams);
        self.run_with(kind, from, seconds, |examination| examination.prepare(spec, datagrams).run());
    }

    fn run_prepared(&mut self, kind: RunKind, from: PathEnd, seconds: f64, prepared: Prepared<'scope>) {
        self.run_with(kind, from, seconds, |_| prepared.run());
    }

    fn run_with(
        &mut self,
        kind: RunKind,
        from: PathEnd,
        seconds: f64,
        bench: impl FnOnce(&Self) -> Result<Report, Error>,
    ) {
        if !self.budget.allows(seconds) {
            return self.leave_out(kind, from);
        }
        let before = self.before();
        let result = bench(self);
        // After what failed there is nothing to count.
        let after = if result.is_ok() { self.counters() } else { Default::default() };
        self.keep(kind, from, result, &before, after);
    }

    fn before(&mut self) -> Counted {
        let last = self.last.take();
        last.unwrap_or_else(|| self.counters())
    }

    fn keep(
        &mut self,
        kind: RunKind,
        from: PathEnd,
        result: Result<Report, Error>,
        before: &Counted,
        after: Counted,
    ) {
        match result {
            Ok(report) => {
                let (near, far) = after.since(before);
                self.evidence.runs.push(Run { kind, from, report, near, far });
                // Where the other machine did not answer, it is asked again before the next run.
                self.last = Some(after).filter(|counted| counted.far.is_some());
            }
            Err(error) => {
                note_silence(&mut self.evidence, &error);
                if self.budget.is_over() {
                    return self.leave_out(kind, from);
                }
                let (name, way) = (crate::report::name(kind), self.evidence.way(from));
                self.evidence.failed.push(format!("{name} {way}: {error}"));
            }
        }
    }

    fn leave_out(&mut self, kind: RunKind, from: PathEnd) {
        let what = match kind {
            RunKind::RoundTrips => crate::report::name(kind).to_owned(),
            _ => format!("{} {}", crate::report::name(kind), self.evidence.way(from)),
        };
        self.evidence.left_out.push(what);
    }

    /// Asks the other machine, and keeps that it did not answer.
    fn ask(&mut self, question: &Question) -> Result<Reply, Error> {
        let reply = self.questions.ask(&question.to_value(), TIMEOUT);
        reply.inspect_err(|error| note_silence(&mut self.evidence, error))
    }

    fn counters(&mut self) -> Counted {
        let interface = |facts: Option<&Facts>| facts?.path.as_ref().map(|path| path.interface.clone());
        let near = Counters::read(interface(Some(&self.evidence.near)).as_deref());
        let question = Question::Counters { interface: interface(self.evidence.far.as_ref()) };
        Counted { near, far: self.counted(&question) }
    }

    /// What the other machine has counted; a note, if that is not known.
    fn counted<T: DeserializeOwned>(&mut self, question: &Question) -> Option<T> {
        let reply = self.ask(question).map_err(|error| error.to_string());
        let counted = reply.and_then(|reply| {
            serde_json::from_value(tame(reply.answer)).map_err(|error| format!("unreadable answer: {error}"))
        });
        counted
            .map_err(|why| {
                let note = format!("what the other machine has counted is not known: {why}");
                if !self.evidence.notes.contains(&note) {
                    self.evidence.notes.push(note);
                }
            })
            .ok()
    }

    fn mtu(&self, end: PathEnd) -> Option<u32> {
        Some(self.evidence.facts(end)?.path_interface()?.mtu)
    }

    /// Datagrams as large as each end's interface allows.
    fn first_probes(&self) -> Vec<(PathEnd, u32, Prepared<'scope>)> {
        let ends = PathEnd::BOTH.into_iter().filter(|_| !self.evidence.is_vsock);
        let prepare = |from| {
            let bytes = self.mtu(from).filter(|_| self.mtu(from.other()).is_some())?;
            Some((from, bytes, self.prepare(self.probe_spec(from, bytes)?, true)))
        };
        ends.filter_map(prepare).collect()
    }

    /// In both directions at the same time: so few datagrams do not disturb each other. What was counted
    /// meanwhile goes to the first of them.
    fn probe_both(&mut self, probes: Vec<(PathEnd, u32, Prepared<'scope>)>) {
        if probes.is_empty() {
            return;
        }
        (self.progress)("sending datagrams as large as the MTU");
        if !self.budget.allows(self.plan.probe) {
            for (from, bytes, _) in probes {
                self.leave_out(RunKind::Probe { bytes }, from);
            }
            return;
        }
        let before = self.before();
        let probes = probes.into_iter().map(|(from, bytes, probe)| (from, bytes, probe.start()));
        let started: Vec<_> = probes.collect();
        let results = started.into_iter().map(|(from, bytes, probe)| (from, bytes, probe.end()));
        let results: Vec<_> = results.collect();
        let after = self.counters();
        let mut before = Some(before);
        for (from, bytes, result) in results {
            let counted_from = before.take().unwrap_or_else(|| after.clone());
            self.keep(RunKind::Probe { bytes }, from, result, &counted_from, after.clone());
        }
    }

    /// If none of the datagrams arrived, smaller ones.
    fn probe(&mut self, from: PathEnd) {
        if self.evidence.is_vsock {
            return;
        }
        let (Some(sender), Some(receiver)) = (self.mtu(from), self.mtu(from.other())) else { return };
        let none_arrived = |examination: &Self, bytes| {
            examination.evidence.run(RunKind::Probe { bytes }, from).is_some_and(|run| run.lost() >= 1.0)
        };
        let sizes = BTreeSet::from([receiver, 1500, 1400, 1280, 576]);
        let mut last = sender;
        for bytes in sizes.into_iter().rev().filter(|size| *size < sender) {
            if !none_arrived(self, last) {
                break;
            }
            (self.progress)(&format!("sending datagrams of {bytes} bytes {}", self.evidence.way(from)));
            if let Some(spec) = self.probe_spec(from, bytes) {
                self.run(RunKind::Probe { bytes }, from, spec);
            }
            last = bytes;
        }
    }

    /// So many datagrams that a hundredth of them is some.
    fn probe_longer(&mut self, from: PathEnd) {
        if self.plan.slow.is_none() {
            return;
        }
        let Some((bytes, _)) = self.evidence.largest_probe(from) else { return };
        (self.progress)(&format!("sending more datagrams {}", self.evidence.way(from)));
        if let Some(spec) = self.probe_spec(from, bytes) {
            self.run(RunKind::Probe { bytes }, from, Spec { seconds: LONGER * spec.seconds, ..spec });
        }
    }

    /// None where a datagram of this size has no room for what is counted.
    fn probe_spec(&self, from: PathEnd, bytes: u32) -> Option<Spec> {
        let is_v6 = self.evidence.near.path.as_ref().is_some_and(|path| path.peer.is_ipv6());
        let payload = u64::from(bytes.saturating_sub(if is_v6 { 48 } else { 28 })).min(65_507);
        let spec = Spec {
            warmup: 0.0,
            cooldown: 0.0,
            message_bytes: payload,
            receive_bytes: payload,
            dont_fragment: true,
            rate_bps: Some((self.plan.probes_per_second * payload as f64 * 8.0) as u64),
            ..self.spec(transfer(from), self.plan.probe)
        };
        (payload >= 24).then_some(spec)
    }

    /// Round trips beside a stream of this end.
    fn loaded(&mut self, from: PathEnd) {
        let Some(seconds) = self.plan.loaded else { return };
        (self.progress)(&format!("measuring round trips under load {}", self.evidence.way(from)));
        let stream = Spec { cooldown: 0.5, ..self.spec(transfer(from), seconds + 0.3) };
        let asking = Spec { warmup: 0.5, ..self.requests(seconds, 1, 1) };
        self.run_with(RunKind::Loaded, from, seconds + 1.0, |examination| {
            let load = examination.prepare(stream, false).start();
            let asked = examination.prepare(asking, false).run();
            let _ = load.end(); // how fast it was is known from another run
            asked
        });
    }

    /// What several connections reach together, and datagrams as fast as they can be sent.
    fn several(&mut self, from: PathEnd) {
        let Some(seconds) = self.plan.several else { return };
        (self.progress)(&format!("measuring several connections {}", self.evidence.way(from)));
        let spec = Spec { sessions: SEVERAL, ..self.spec(transfer(from), seconds) };
        self.run(RunKind::Streams, from, spec);
        let probe = self.evidence.largest_probe(from);
        if let Some(spec) = probe.and_then(|(bytes, _)| self.probe_spec(from, bytes)) {
            self.run(RunKind::Datagrams, from, Spec { rate_bps: None, seconds: seconds / 2.0, ..spec });
        }
    }

    /// Once more, at the end: what has counted meanwhile?
    fn limits(&mut self) {
        let path = |facts: Option<&Facts>| facts?.path.clone();
        let (near, far) = (path(Some(&self.evidence.near)), path(self.evidence.far.as_ref()));
        let interface = |path: &Option<crate::facts::Path>| path.as_ref().map(|path| path.interface.clone());
        let question = Question::Limits { interface: interface(&far) };
        let far = self.counted(&question);
        let busiest = self.began.beside_us();
        let near = Limits::read(near.as_ref().map(|path| path.peer), interface(&near).as_deref());
        (self.evidence.limits_near, self.evidence.limits_far) = (Some(Limits { busiest, ..near }), far);
    }

    fn loopbacks(&mut self) {
        let Some(seconds) = self.plan.loopback.filter(|_| !self.evidence.is_vsock) else { return };
        // One after the other: they may share a host.
        if !self.budget.allows(2.0 * (seconds + LOOPBACK_STARTS)) {
            self.evidence.left_out.push("loopback of both machines".to_owned());
            return;
        }
        (self.progress)("measuring each machine's own loopback");
        match loopback::measure(seconds) {
            Ok(bps) => self.evidence.loopback_near = Some(bps),
            Err(why) => self.evidence.failed.push(format!("loopback here: {why}")),
        }
        match self.ask(&Question::Loopback { seconds }) {
            Ok(reply) => self.evidence.loopback_far = reply.answer.as_f64().filter(|bps| *bps > 0.0),
            Err(_) if self.budget.is_over() => {
                self.evidence.left_out.push("loopback of the other machine".to_owned());
            }
            Err(error) => self.evidence.failed.push(format!("loopback there: {error}")),
        }
    }
}
