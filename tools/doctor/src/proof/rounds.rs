//! Measurements of a proof.

use std::time::{Duration, Instant};

use vmlane_bench::{Address, Hooks, Options, Spec, Target, Test};

use super::gauge::Gauge;
use crate::evidence::{Evidence, PathEnd};
use crate::examine::transfer;
use crate::facts::Counters;
use crate::question::Question;
use crate::sys::Ethtool;

/// How long an interface that was set may need until the other end can be reached again.
const ANSWERS: Duration = Duration::from_secs(10);
/// Of a full test, and of a quick one.
const ROUNDS: (usize, usize) = (5, 4);
const SECONDS: (f64, f64) = (1.0, 0.3);
const WARMUP: (f64, f64) = (0.3, 0.15);
pub struct Measuring<'a> {
    pub to: &'a Address,
    pub options: &'a Options,
    pub evidence: &'a Evidence,
    pub is_quick: bool,
}

impl Measuring<'_> {
    pub fn rounds(&self) -> usize {
        if self.is_quick { ROUNDS.1 } else { ROUNDS.0 }
    }

    /// Waits until the other end answers again: many drivers start the card anew for a setting.
    pub fn wait_for_answer(&self) {
        let (began, question) = (Instant::now(), Question::Counters { interface: None }.to_value());
        while began.elapsed() < ANSWERS {
            let asked = vmlane_bench::ask(self.to, self.options, &question, Duration::from_secs(2));
            if asked.is_ok_and(|reply| serde_json::from_value::<Counters>(reply.answer).is_ok()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// One measurement. What does not get through at all counts as nothing, or as without end.
    pub fn measure(&self, gauge: Gauge) -> f64 {
        let of = |(full, quick)| if self.is_quick { quick } else { full };
        let (seconds, warmup): (f64, f64) = (of(SECONDS), of(WARMUP));
        let spec = |test, seconds| Spec { seconds, warmup, cooldown: 0.15, abandon: true, ..Spec::new(test) };
        match gauge {
            Gauge::Throughput { from, connections } => {
                let spec = Spec { sessions: connections, ..spec(transfer(from), seconds) };
                self.bench(&spec, false).and_then(|report| report.throughput_bps).unwrap_or(0.0)
            }
            Gauge::RoundTrips => {
                let spec = Spec { nodelay: true, warmup: 0.05, ..spec(Test::Rr, seconds / 2.0) };
                let trips = self.bench(&spec, false).and_then(|report| report.rtt_us);
                trips.map_or(ANSWERS.as_secs_f64() * 1e6, |trips| trips.p50)
            }
            Gauge::Forwarded => {
                let began = Instant::now();
                let before = Counters::read(None);
                std::thread::sleep(Duration::from_secs_f64(seconds + warmup));
                let counted = Counters::read(None).since(&before);
                // Without any datagram for others, all that was sent was this machine's own.
                match counted.stack("Ip.ForwDatagrams") {
                    0 => 0.0,
                    _ => counted.stack("IpExt.OutOctets") as f64 * 8.0 / began.elapsed().as_secs_f64(),
                }
            }
            Gauge::Datagrams { from } => {
                let Some(mtu) = self.mtu(from) else { return 0.0 };
                let is_v6 = self.evidence.near.path.as_ref().is_some_and(|path| path.peer.is_ipv6());
                let headers = if is_v6 { 48 } else { 28 };
                let payload = u64::from(mtu.saturating_sub(headers)).clamp(24, 65_507);
                let spec = Spec {
                    message_bytes: payload,
                    receive_bytes: payload,
                    warmup: 0.0,
                    cooldown: 0.0,
                    dont_fragment: true,
                    rate_bps: Some(200 * payload * 8),
                    ..spec(transfer(from), 0.25)
                };
                let loss = self.bench(&spec, true).and_then(|report| report.datagrams);
                loss.map_or(0.0, |loss| match loss.counts.sent {
                    0 => 0.0,
                    sent => 1.0 - loss.lost as f64 / sent as f64,
                })
            }
        }
    }

    /// Of this machine as it is now, of the other one as it was reported.
    fn mtu(&self, end: PathEnd) -> Option<u32> {
        let interface = self.evidence.facts(end)?.path_interface()?;
        match end {
            PathEnd::Near => Ethtool::open().ok()?.mtu(&interface.name).ok(),
            PathEnd::Far => Some(interface.mtu),
        }
    }

    fn bench(&self, spec: &Spec, datagrams: bool) -> Option<vmlane_bench::Report> {
        let target = Target { control: self.to.clone(), datagrams };
        vmlane_bench::run(&target, spec, self.options, &mut Hooks::default()).ok()
    }
}
