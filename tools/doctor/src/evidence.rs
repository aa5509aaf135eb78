//! Everything that the checks may examine: the facts of both ends and what was measured between them.

use serde::{Deserialize, Serialize};
use vmlane_bench::Report;

use crate::capture::Capture;
use crate::facts::{Counters, Facts, Interface, Limit, Limits, counted};
use crate::host::Host;
use crate::text::rate;

/// One of the two machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathEnd {
    /// The one that the doctor runs on.
    Near,
    /// The one that serves.
    Far,
}

impl PathEnd {
    pub const BOTH: [PathEnd; 2] = [PathEnd::Near, PathEnd::Far];

    pub fn other(self) -> PathEnd {
        match self {
            PathEnd::Near => PathEnd::Far,
            PathEnd::Far => PathEnd::Near,
        }
    }
}

/// What a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// Round trips of one byte, with nothing else under way.
    RoundTrips,
    /// One connection that sends as fast as it can.
    Stream,
    /// Round trips while a connection sends as fast as it can from the same end.
    Loaded,
    /// Datagrams of the sender's MTU that must not be fragmented, few of them.
    Probe {
        bytes: u32,
    },
    /// Requests of one segment, or of many: what waits for time-outs shows in the slowest.
    SmallRequests,
    LargeRequests,
    /// A connection that sends single segments, or two at a time, at a fraction of the rate that it can.
    SlowSegments,
    SlowPairs,
    /// Several connections that send as fast as they can.
    Streams,
    /// Datagrams, as fast as they can be sent.
    Datagrams,
}

/// A measurement, and what both ends counted meanwhile.
#[derive(Clone, Debug)]
pub struct Run {
    pub kind: RunKind,
    /// The end that sends the data.
    pub from: PathEnd,
    pub report: Report,
    pub near: Counters,
    pub far: Counters,
}

impl Run {
    pub fn counters(&self, end: PathEnd) -> &Counters {
        match end {
            PathEnd::Near => &self.near,
            PathEnd::Far => &self.far,
        }
    }

    /// Bits per second that arrived.
    pub fn bps(&self) -> f64 {
        self.report.throughput_bps.unwrap_or(0.0)
    }

    pub fn per_second(&self) -> f64 {
        self.report.transactions_per_second.unwrap_or(0.0)
    }

    /// What TCP of the sending end reports of the connection.
    pub fn tcp(&self) -> Option<vmlane_bench::report::TcpSummary> {
        match self.from {
            PathEnd::Near => self.report.tcp.local,
            PathEnd::Far => self.report.tcp.remote,
        }
    }

    /// Of the segments that the sender sent, which part it sent again.
    pub fn retransmitted(&self) -> f64 {
        self.part_of_segments(self.sent_again())
    }

    pub fn sent_again(&self) -> u64 {
        self.tcp().map_or(0, |tcp| tcp.retransmits)
    }

    /// Segments that were sent again because they were lost. What the receiver then has twice, as its
    /// duplicate SACKs show (RFC 2883), had only been overtaken, for example by frames of another queue.
    pub fn lost_segments(&self) -> u64 {
        let twice = self.counters(self.from).stack("TcpExt.TCPDSACKRecvSegs");
        self.sent_again().saturating_sub(twice)
    }

    pub fn part_of_segments(&self, count: u64) -> f64 {
        let mss = self.tcp().map_or(1448, |tcp| tcp.mss.max(1)) as f64;
        let segments = self.report.bytes as f64 / mss + self.sent_again() as f64;
        if segments > 0.0 { count as f64 / segments } else { 0.0 }
    }

    /// Time-outs of the sending end's TCP meanwhile.
    pub fn timeouts(&self) -> u64 {
        self.counters(self.from).stack("TcpExt.TCPTimeouts")
    }

    /// Which part of the datagrams was lost.
    pub fn lost(&self) -> f64 {
        self.report.datagrams.map_or(0.0, |loss| {
            if loss.counts.sent == 0 { 0.0 } else { loss.lost as f64 / loss.counts.sent as f64 }
        })
    }

    pub fn median_us(&self) -> Option<f64> {
        self.report.rtt_us.map(|times| times.p50)
    }
}

/// How long the far end was waited for, in vain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wait {
    /// What it was about to do.
    pub what: String,
    pub seconds: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The address of the far end.
    pub to: String,
    pub near: Facts,
    pub far: Option<Facts>,
    /// Why the far end could not be asked.
    pub unreachable: Option<String>,
    /// Over vsock, interfaces play no part.
    pub is_vsock: bool,
    pub runs: Vec<Run>,
    /// What failed instead of being measured.
    pub failed: Vec<String>,
    /// What was not measured, because the time that an examination may take was over.
    pub left_out: Vec<String>,
    /// Answers of the far end that did not come.
    pub waits: Vec<Wait>,
    /// Bits per second over the loopback of each end.
    pub loopback_near: Option<f64>,
    pub loopback_far: Option<f64>,
    /// What limits each end, after all measurements.
    pub limits_near: Option<Limits>,
    pub limits_far: Option<Limits>,
    /// Captures, where those are judged instead of the machines.
    pub captures: Vec<Capture>,
    /// What the host knows, where VMs are examined from there.
    pub host: Option<Host>,
    /// Remarks on how the evidence was obtained.
    pub notes: Vec<String>,
}

impl Evidence {
    pub fn facts(&self, end: PathEnd) -> Option<&Facts> {
        match end {
            PathEnd::Near => Some(&self.near),
            PathEnd::Far => self.far.as_ref(),
        }
    }

    /// Both ends, as far as they are known.
    pub fn ends(&self) -> impl Iterator<Item = (PathEnd, &Facts)> {
        PathEnd::BOTH.into_iter().filter_map(|end| Some((end, self.facts(end)?)))
    }

    /// The interface of each end that leads to the other.
    pub fn interfaces(&self) -> impl Iterator<Item = (PathEnd, &Facts, &Interface)> {
        self.ends().filter_map(|(end, facts)| Some((end, facts, facts.path_interface()?)))
    }

    pub fn runs(&self, kind: RunKind) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.kind == kind)
    }

    /// Of the probes that arrive, the one of the largest size; of several, the longest one, which is the
    /// last.
    pub fn largest_probe(&self, from: PathEnd) -> Option<(u32, &Run)> {
        let arriving = self.probes().filter(|(_, run)| run.from == from && run.lost() < 1.0);
        arriving.max_by_key(|(bytes, _)| *bytes)
    }

    pub fn run(&self, kind: RunKind, from: PathEnd) -> Option<&Run> {
        self.runs(kind).find(|run| run.from == from)
    }

    /// Bits a second of one connection from this end; 0 if that was not measured.
    pub fn bps(&self, from: PathEnd) -> f64 {
        self.run(RunKind::Stream, from).map_or(0.0, Run::bps)
    }

    /// The same, for a report.
    pub fn throughput(&self, from: PathEnd) -> String {
        format!("throughput {}: {}", self.way(from), rate(self.bps(from)))
    }

    /// Of two runs that measured the same, the one that shows what can be had. Only speed is compared: what
    /// was counted belongs to the run.
    pub fn keep_better(&mut self, kind: RunKind, from: PathEnd) {
        let all = self.runs.iter().enumerate().filter(|(_, run)| run.kind == kind && run.from == from);
        let speed = |run: &Run| match run.report.rtt_us {
            Some(times) if kind == RunKind::RoundTrips => -times.p99,
            _ => run.bps(),
        };
        let worst = all.min_by(|one, other| speed(one.1).total_cmp(&speed(other.1))).map(|(at, _)| at);
        if let Some(at) = worst.filter(|_| self.runs(kind).filter(|run| run.from == from).count() > 1) {
            self.runs.remove(at);
        }
    }

    pub fn probes(&self) -> impl Iterator<Item = (u32, &Run)> {
        self.runs.iter().filter_map(|run| match run.kind {
            RunKind::Probe { bytes } => Some((bytes, run)),
            _ => None,
        })
    }

    pub fn loopback(&self, end: PathEnd) -> Option<f64> {
        match end {
            PathEnd::Near => self.loopback_near,
            PathEnd::Far => self.loopback_far,
        }
    }

    /// Limits of an end of one kind, each with what it has counted during the measurements.
    pub fn counted(&self, end: PathEnd, kind: fn(&Limits) -> &Vec<Limit>) -> impl Iterator<Item = Limit> {
        let before = self.facts(end).map_or(&[][..], |facts| kind(&facts.limits));
        counted(before, self.limits_after(end).map_or(&[][..], |limits| kind(limits)))
    }

    pub fn limits_after(&self, end: PathEnd) -> Option<&Limits> {
        match end {
            PathEnd::Near => self.limits_near.as_ref(),
            PathEnd::Far => self.limits_far.as_ref(),
        }
    }

    /// What an end's stack has counted during all runs of one kind, or during all.
    pub fn sum(&self, end: PathEnd, name: &str) -> u64 {
        self.runs.iter().map(|run| run.counters(end).stack(name)).sum()
    }

    pub fn slower_loopback(&self) -> Option<f64> {
        [self.loopback_near, self.loopback_far].into_iter().flatten().reduce(f64::min)
    }

    /// What a report calls an end.
    pub fn name(&self, end: PathEnd) -> String {
        // From the host, both are VMs, in the order in which they were named.
        if let Some(vm) = self.host.as_ref().and_then(|host| host.vms.get(usize::from(end == PathEnd::Far))) {
            return format!("VM {}", vm.name);
        }
        let host = self.facts(end).map(|facts| facts.machine.host.clone()).unwrap_or_default();
        match end {
            PathEnd::Near if host.is_empty() => "this machine".to_owned(),
            PathEnd::Near => format!("this machine ({host})"),
            PathEnd::Far if host.is_empty() => "the other machine".to_owned(),
            PathEnd::Far => format!("the other machine ({host})"),
        }
    }

    /// "from a to b".
    pub fn way(&self, from: PathEnd) -> String {
        let host = |end: PathEnd| match self.facts(end).map(|facts| facts.machine.host.as_str()) {
            Some(host) if !host.is_empty() => host.to_owned(),
            _ if end == PathEnd::Near => "here".to_owned(),
            _ => "there".to_owned(),
        };
        let (one, other) = (host(from), host(from.other()));
        if one == other {
            let here = |end| if end == PathEnd::Near { "here" } else { "there" };
            return format!("from {} to {}", here(from), here(from.other()));
        }
        format!("from {one} to {other}")
    }

    /// A machine that emulates its processor has other limits than its network's.
    pub fn is_emulated(&self) -> bool {
        self.ends().any(|(_, facts)| facts.machine.is_emulated)
    }
}
