//! The result of one measurement: the JSON contract, and how the numbers come about.
//!
//! Bytes and seconds are the receiver's; buffers are those the data meets on its way (the sender's send
//! buffer, the receiver's receive buffer), as the kernel reads them back. What a test does not have is null.

mod tcp;
mod text;

use std::io;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::address::Target;
use crate::cpu::Machine;
use crate::datagrams::Datagrams;
use crate::error::Error;
use crate::meter::Tally;
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::session_group::Session;
use crate::spec::{Spec, Test};
use crate::transport::BufferSizes;
pub use tcp::TcpSummary;
pub use text::interval;

/// Raised when a key changes its meaning or goes away; new keys do not raise it.
pub const VERSION: u32 = 1;

/// One measurement. As wide as its JSON object, whose keys are a contract.
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
    #[serde(default)]
    pub cooldown_seconds: f64,
    /// When this end let its sessions go, in nanoseconds since 1970.
    #[serde(default)]
    pub started_at_ns: u64,
    /// Requests under way at once on each connection (rr).
    #[serde(default)]
    pub in_flight: Option<u32>,
    /// Bits per second that each sending session kept to.
    #[serde(default)]
    pub rate_bps: Option<u64>,
    pub bytes: u64,
    /// Bits per second, as received; and as the sender saw it.
    pub throughput_bps: Option<f64>,
    pub sender_throughput_bps: Option<f64>,
    /// Each way of a bidir test, as received.
    #[serde(default)]
    pub to_server_bps: Option<f64>,
    #[serde(default)]
    pub from_server_bps: Option<f64>,
    pub transactions: Option<u64>,
    pub transactions_per_second: Option<f64>,
    pub rtt_us: Option<RoundTrips>,
    /// CPUs busy on the whole machine (1.5 is one and a half), as netperf counts.
    pub cpu: Ends,
    /// The same in parts.
    #[serde(default)]
    pub machine: Machines,
    /// CPUs used by the test's own threads.
    pub cpu_process: Ends,
    pub service_demand_us_per_kib: Ends,
    pub service_demand_us_per_transaction: Ends,
    pub per_session: Vec<PerSession>,
    /// What became of the datagrams.
    #[serde(default)]
    pub datagrams: Option<Loss>,
    /// Datagrams that arrived, a second; none for streams and requests.
    #[serde(default)]
    pub packets_per_second: Option<f64>,
    /// What TCP reports about the connections when the test is over.
    #[serde(default)]
    pub tcp: TcpEnds,
    #[serde(default)]
    pub intervals: Vec<Progress>,
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machines {
    pub local: Option<Machine>,
    pub remote: Option<Machine>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpEnds {
    pub local: Option<TcpSummary>,
    pub remote: Option<TcpSummary>,
}

/// Datagrams of all sessions and both ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    #[serde(flatten)]
    pub counts: Datagrams,
    pub lost: u64,
    pub lost_percent: f64,
}

impl Loss {
    fn of(all: impl Iterator<Item = Datagrams>) -> Option<Loss> {
        let counts = all.reduce(Datagrams::add)?;
        Some(Loss { counts, lost: counts.lost(), lost_percent: counts.lost_percent() })
    }
}

/// The client's half of a result.
pub(crate) struct Local {
    pub sessions: Vec<Session>,
    pub machine: Option<Machine>,
    pub tcp: Option<TcpSummary>,
    pub sizes: BufferSizes,
    pub intervals: Vec<Progress>,
    pub started_at_ns: u64,
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
    pub(crate) fn new(to: &Target, spec: &Spec, local: &Local, remote: &Outcome) -> Result<Report, Error> {
        let ours: Vec<Tally> = local.sessions.iter().map(|session| session.tally).collect();
        // The end that counts: the receiver of a stream, the asker of a question; both of a two-way test.
        let counted = &match spec.test {
            Test::Stream => remote.tallies.clone(),
            Test::Bidir => {
                ours.iter().zip(&remote.tallies).map(|(here, there)| both_ways(here, there)).collect()
            }
            _ => ours.clone(),
        };
        let (sum, here, there) =
            (Sum::of(counted.iter()), Sum::of(ours.iter()), Sum::of(remote.tallies.iter()));
        // For a test that is abandoned when its time is up, nothing is a result, too.
        let idle = counted.iter().position(|tally| tally.bytes == 0 && !spec.abandon);
        if counted.len() != spec.sessions as usize || idle.is_some() {
            let session = idle.unwrap_or(counted.len());
            let cause = std::io::Error::other(
                "nothing arrived between the end of the warm-up and the end of the test; use a longer -l",
            );
            return Err(Error::Data { session, doing: "measuring", cause });
        }
        let asks = spec.test.is_transactional();
        let bps = |sum: Sum| (!asks).then(|| per_second(sum.bytes as f64 * 8.0, sum.seconds)).flatten();
        let sender = match spec.test {
            Test::Stream => bps(here),
            Test::Maerts => bps(there),
            _ => None,
        };
        let two_way = |sum: Sum| (spec.test == Test::Bidir).then(|| bps(sum)).flatten();
        let busy = |machine: Option<Machine>| machine.map(|machine| machine.busy());
        let cpu = Ends { local: busy(local.machine), remote: busy(remote.machine) };
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
            Test::Bidir | Test::Rr | Test::Crr => (Some(local.sizes.send), Some(local.sizes.recv)),
        };
        let round_trips = merged(local.sessions.iter().filter_map(|session| session.round_trips.as_ref()))?;
        let ours = local.sessions.iter().filter_map(|session| session.datagrams);
        let theirs = remote.datagrams.iter().copied().filter(|_| !asks);
        let datagrams = Loss::of(ours.chain(theirs));
        let arrived = datagrams.filter(|_| !asks).map(|loss| loss.counts.received as f64);
        Ok(Report {
            version: VERSION,
            test: spec.test.name().to_owned(),
            transport: to.transport().to_owned(),
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
            cooldown_seconds: spec.cooldown,
            started_at_ns: local.started_at_ns,
            in_flight: (spec.test == Test::Rr).then_some(spec.in_flight),
            rate_bps: spec.rate_bps,
            bytes: sum.bytes,
            throughput_bps: bps(sum),
            sender_throughput_bps: sender,
            to_server_bps: two_way(there),
            from_server_bps: two_way(here),
            transactions: asks.then_some(sum.transactions),
            transactions_per_second: asks.then(|| per_second(sum.transactions as f64, sum.seconds)).flatten(),
            rtt_us: round_trips.as_ref().map(RoundTrips::of),
            cpu,
            machine: Machines { local: local.machine, remote: remote.machine },
            cpu_process,
            service_demand_us_per_kib: if asks { Ends::default() } else { demand(sum.bytes as f64 / 1024.0) },
            service_demand_us_per_transaction: if asks {
                demand(sum.transactions as f64)
            } else {
                Ends::default()
            },
            per_session: counted.iter().map(PerSession::of).collect(),
            datagrams,
            packets_per_second: arrived.and_then(|count| per_second(count, sum.seconds)),
            tcp: TcpEnds { local: local.tcp, remote: remote.tcp },
            intervals: local.intervals.clone(),
            notes: notes(spec, to.transport(), local.sizes, remote),
        })
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

/// A result as a line of JSON; an empty object for what has none, and there is no such result.
pub fn one_line(result: &impl Serialize) -> String {
    serde_json::to_string(result).unwrap_or_else(|_| "{}".into()) + "\n"
}

/// A session of a two-way test.
fn both_ways(here: &Tally, there: &Tally) -> Tally {
    Tally {
        bytes: here.bytes.saturating_add(there.bytes),
        transactions: 0,
        seconds: here.seconds.max(there.seconds),
        cpu_seconds: here.cpu_seconds,
    }
}

/// None: no round trip at all.
fn merged<'a>(histograms: impl Iterator<Item = &'a Histogram<u64>>) -> Result<Option<Histogram<u64>>, Error> {
    let failed = Error::io("adding up the round trips");
    let mut all: Option<Histogram<u64>> = None;
    for histogram in histograms {
        match &mut all {
            None => all = Some(histogram.clone()),
            Some(all) => all.add(histogram).map_err(|error| failed(io::Error::other(error)))?,
        }
    }
    Ok(all.filter(|all| !all.is_empty()))
}

impl RoundTrips {
    fn of(all: &Histogram<u64>) -> RoundTrips {
        let us = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        let at = |quantile| us(all.value_at_quantile(quantile));
        RoundTrips {
            min: us(all.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: us(all.max()),
        }
    }
}

/// A kernel may give less than it was asked for without an error: there is a note then.
/// The kernel doubles what it grants, for its own book-keeping (socket(7)), except to vsock streams.
fn notes(spec: &Spec, transport: &str, local: BufferSizes, remote: &Outcome) -> Vec<String> {
    let reported = |size: Option<u64>| size.filter(|&size| size > 0);
    let sizes = [
        ("local send", spec.local_buffer, Some(local.send), "wmem_max"),
        ("local receive", spec.local_buffer, Some(local.recv), "rmem_max"),
        ("remote send", spec.remote_buffer, reported(remote.send_buffer), "wmem_max"),
        ("remote receive", spec.remote_buffer, reported(remote.recv_buffer), "rmem_max"),
    ];
    let times = if transport == "vsock" { 1 } else { 2 };
    let short = sizes.into_iter().filter_map(|(which, asked, given, key)| match (asked, given) {
        (Some(asked), Some(given)) if given < asked.saturating_mul(times) => {
            let why = match times {
                1 => "the other end allows no more".to_owned(),
                _ => format!("sysctl net.core.{key} cuts it"),
            };
            Some(format!("{which} buffer: asked for {asked}, the kernel gave {}: {why}", given / times))
        }
        _ => None,
    });
    short.collect()
}

/// Makes a report of whatever a server sends, for the fuzzer.
pub(crate) fn of_anything(remote: &Outcome) {
    for (test, to) in
        [(Test::Stream, "tcp:x"), (Test::Maerts, "udp:x"), (Test::Bidir, "vsock:4"), (Test::Rr, "unix:x")]
    {
        let Ok(to) = to.parse::<Target>() else { continue };
        let sessions = remote.tallies.len().clamp(1, 4);
        let spec = Spec { sessions: sessions as u32, datagrams: to.datagrams, ..Spec::new(test) };
        let tally = Tally { bytes: 1, transactions: 1, seconds: 1.0, cpu_seconds: 0.5 };
        let session = Session { tally, ..Session::default() };
        let local = Local {
            sessions: vec![session; sessions],
            machine: None,
            tcp: None,
            sizes: BufferSizes { send: 1, recv: 1 },
            intervals: Vec::new(),
            started_at_ns: 0,
        };
        if let Ok(report) = Report::new(&to, &spec, &local, remote) {
            let _ = (one_line(&report), report.text());
        }
    }
}

#[cfg(test)]
mod tests;
