//! The result of one measurement: the JSON contract, and how the numbers come about.
//!
//! Bytes and seconds are the receiver's; buffers are those the data meets on its way (the sender's send
//! buffer, the receiver's receive buffer), as the kernel reads them back. What a test does not have is null.

mod text;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::control::Outcome;
use crate::error::Error;
use crate::meter::Tally;
use crate::spec::{Spec, Test};
use crate::team::Session;
use crate::transport::BufferSizes;

/// Raised when a key changes its meaning or goes away; new keys do not raise it.
pub const VERSION: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub version: u32,
    pub test: String,
    pub transport: String,
    pub to: String,
    /// For rr and crr: the request.
    pub message_bytes: u64,
    pub receive_bytes: Option<u64>,
    pub request_bytes: Option<u64>,
    pub response_bytes: Option<u64>,
    pub send_buffer: Option<u64>,
    pub recv_buffer: Option<u64>,
    pub sessions: u32,
    pub nodelay: bool,
    /// The longest session's window, warm-up excluded.
    pub seconds: f64,
    pub warmup_seconds: f64,
    pub bytes: u64,
    /// Bits per second, as received; and as the sender saw it.
    pub throughput_bps: Option<f64>,
    pub sender_throughput_bps: Option<f64>,
    pub transactions: Option<u64>,
    pub transactions_per_second: Option<f64>,
    pub rtt_us: Option<RoundTrips>,
    /// CPUs busy on the whole machine (1.5 is one and a half), as netperf counts.
    pub cpu: Ends,
    /// CPUs used by the test's own threads.
    pub cpu_process: Ends,
    pub service_demand_us_per_kib: Ends,
    pub service_demand_us_per_transaction: Ends,
    pub per_session: Vec<PerSession>,
    /// What the reader should know before trusting the numbers.
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    pub local: Option<f64>,
    pub remote: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PerSession {
    pub bytes: u64,
    pub transactions: u64,
    pub seconds: f64,
    pub throughput_bps: f64,
}

/// The client's half of a result.
pub(crate) struct Local {
    pub sessions: Vec<Session>,
    pub machine_cpus: Option<f64>,
    pub sizes: BufferSizes,
}

/// All sessions of one end.
#[derive(Clone, Copy)]
struct Sum {
    bytes: u64,
    transactions: u64,
    seconds: f64,
    cpu_seconds: f64,
}

impl Sum {
    fn of<'a>(tallies: impl Iterator<Item = &'a Tally>) -> Sum {
        let mut sum = Sum { bytes: 0, transactions: 0, seconds: 0.0, cpu_seconds: 0.0 };
        for tally in tallies {
            sum.bytes = sum.bytes.saturating_add(tally.bytes);
            sum.transactions = sum.transactions.saturating_add(tally.transactions);
            sum.seconds = sum.seconds.max(tally.seconds);
            sum.cpu_seconds += tally.cpu_seconds;
        }
        sum
    }
}

fn per_second(amount: f64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| amount / seconds)
}

impl Report {
    pub(crate) fn new(to: &Address, spec: &Spec, local: &Local, remote: &Outcome) -> Result<Report, Error> {
        let ours: Vec<Tally> = local.sessions.iter().map(|session| session.tally).collect();
        // The end that counts: the receiver of a stream, the asker of a question.
        let counted = if spec.test == Test::Stream { &remote.tallies } else { &ours };
        let (sum, here, there) =
            (Sum::of(counted.iter()), Sum::of(ours.iter()), Sum::of(remote.tallies.iter()));
        let idle = counted.iter().position(|tally| tally.bytes == 0);
        if counted.len() != spec.sessions as usize || idle.is_some() {
            let session = idle.unwrap_or(counted.len());
            let cause = std::io::Error::other(
                "nothing arrived between the end of the warm-up and the end of the test; use a longer -l",
            );
            return Err(Error::Data { session, doing: "measuring", cause });
        }
        let asks = spec.test.is_transactional();
        let bps = |sum: Sum| (!asks).then(|| per_second(sum.bytes as f64 * 8.0, sum.seconds)).flatten();
        let sender = if spec.test == Test::Maerts { there } else { here };
        let cpu = Ends { local: local.machine_cpus, remote: remote.machine_cpus };
        let cpu_process = Ends {
            local: per_second(here.cpu_seconds, here.seconds),
            remote: per_second(there.cpu_seconds, there.seconds),
        };
        let demand = |per: f64| {
            let each = |machine: Option<f64>, process: Option<f64>| {
                let busy = machine.or(process)? * sum.seconds * 1e6;
                (per > 0.0).then(|| busy / per)
            };
            Ends { local: each(cpu.local, cpu_process.local), remote: each(cpu.remote, cpu_process.remote) }
        };
        let (send_buffer, recv_buffer) = match spec.test {
            Test::Stream => (Some(local.sizes.send), remote.recv_buffer),
            Test::Maerts => (remote.send_buffer, Some(local.sizes.recv)),
            Test::Rr | Test::Crr => (Some(local.sizes.send), Some(local.sizes.recv)),
        };
        Ok(Report {
            version: VERSION,
            test: spec.test.name().to_owned(),
            transport: to.family().name().to_owned(),
            to: to.to_string(),
            message_bytes: if asks { spec.request_bytes } else { spec.message_bytes },
            receive_bytes: (!asks).then_some(spec.receive_bytes),
            request_bytes: asks.then_some(spec.request_bytes),
            response_bytes: asks.then_some(spec.response_bytes),
            send_buffer,
            recv_buffer,
            sessions: spec.sessions,
            nodelay: spec.nodelay,
            seconds: sum.seconds,
            warmup_seconds: spec.warmup,
            bytes: sum.bytes,
            throughput_bps: bps(sum),
            sender_throughput_bps: bps(sender),
            transactions: asks.then_some(sum.transactions),
            transactions_per_second: asks.then(|| per_second(sum.transactions as f64, sum.seconds)).flatten(),
            rtt_us: RoundTrips::of(local.sessions.iter().filter_map(|session| session.round_trips.as_ref())),
            cpu,
            cpu_process,
            service_demand_us_per_kib: if asks { Ends::default() } else { demand(sum.bytes as f64 / 1024.0) },
            service_demand_us_per_transaction: if asks {
                demand(sum.transactions as f64)
            } else {
                Ends::default()
            },
            per_session: counted.iter().map(PerSession::of).collect(),
            notes: notes(spec, local.sizes, remote),
        })
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("plain numbers and strings always serialize")
    }

    /// The table for people.
    pub fn text(&self) -> String {
        text::table(self)
    }
}

impl PerSession {
    fn of(tally: &Tally) -> PerSession {
        PerSession {
            bytes: tally.bytes,
            transactions: tally.transactions,
            seconds: tally.seconds,
            throughput_bps: per_second(tally.bytes as f64 * 8.0, tally.seconds).unwrap_or(0.0),
        }
    }
}

impl RoundTrips {
    fn of<'a>(histograms: impl Iterator<Item = &'a Histogram<u64>>) -> Option<RoundTrips> {
        let mut all: Option<Histogram<u64>> = None;
        for histogram in histograms {
            match &mut all {
                None => all = Some(histogram.clone()),
                Some(all) => all.add(histogram).expect("all sessions use the same bounds"),
            }
        }
        let all = all.filter(|all| !all.is_empty())?;
        let us = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        let at = |quantile| us(all.value_at_quantile(quantile));
        Some(RoundTrips {
            min: us(all.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: us(all.max()),
        })
    }
}

/// A kernel may give less than it was asked for, without a word: we say it.
fn notes(spec: &Spec, local: BufferSizes, remote: &Outcome) -> Vec<String> {
    let sizes = [
        ("local send", spec.local_buffer, Some(local.send)),
        ("local receive", spec.local_buffer, Some(local.recv)),
        ("remote send", spec.remote_buffer, remote.send_buffer.filter(|&size| size > 0)),
        ("remote receive", spec.remote_buffer, remote.recv_buffer.filter(|&size| size > 0)),
    ];
    let short = sizes.into_iter().filter_map(|(which, asked, given)| match (asked, given) {
        (Some(asked), Some(given)) if given < asked => {
            Some(format!("{which} buffer: asked for {asked}, the kernel gave {given} (net.core.wmem_max, net.core.rmem_max)"))
        }
        _ => None,
    });
    short.collect()
}

#[cfg(test)]
mod tests;
