//! Rows beside each other: a registry of benchmarks, the interleaved runs, the table and the JSON.
//!
//! A row is one benchmark whose number is put beside others'. In every round each benchmark that some
//! chosen row needs runs once, one after the other, so that whatever else the machine does meets all
//! alike; the number is the median of the rounds. Whoever has a device to measure adds rows to
//! `Registry::native()`; this crate knows none.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Sample, copy_ring, ring_round_trips, ring_stream};
use super::{tcp_round_trips, tcp_stream, unix_round_trips, unix_stream};

/// Raised when a key changes its meaning or goes away.
pub const VERSION: u32 = 1;

pub const GBITS: &str = "Gbit/s";
/// Round trips per second.
pub const ROUND_TRIPS: &str = "RT/s";

type Run = Box<dyn FnMut(Duration) -> io::Result<Sample>>;

/// One benchmark. What it needs across rounds (memory, threads) lives in its closure.
struct Bench {
    name: String,
    unit: &'static str,
    beside: Vec<String>,
    foreign: bool,
    run: Run,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Only the rows whose names begin so (and, unlisted, what stands beside them).
    pub only: String,
    pub rounds: usize,
    /// How long one benchmark runs in one round.
    pub length: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options { only: String::new(), rounds: 7, length: Duration::from_millis(300) }
    }
}

impl Options {
    /// The defaults, and `ONLY` from the environment, as `make bench ONLY=vmci.` passes it.
    pub fn from_env() -> Options {
        Options { only: std::env::var("ONLY").unwrap_or_default(), ..Options::default() }
    }
}

#[derive(Default)]
pub struct Registry {
    benches: Vec<Bench>,
}

impl Registry {
    /// The rows that need nothing but this machine.
    pub fn native() -> Registry {
        let mut all = Registry::default();
        for (size, bytes) in [("4k", 4 << 10), ("64k", 64 << 10)] {
            let name = |what: &str| format!("{what}.{size}");
            let [copy, ring, unix, tcp] = ["copy.ring", "ring", "unix", "tcp"].map(name);
            all.add(&copy, GBITS, &[], move |length| copy_ring(bytes, length));
            all.add(&ring, GBITS, &[&copy, &unix, &tcp], move |length| ring_stream(bytes, length));
            all.add(&unix, GBITS, &[], move |length| unix_stream(bytes, length));
            all.add(&tcp, GBITS, &[], move |length| tcp_stream(bytes, length));
        }
        all.add("ring.rr.1", ROUND_TRIPS, &["unix.rr.1", "tcp.rr.1"], ring_round_trips);
        all.add("unix.rr.1", ROUND_TRIPS, &[], unix_round_trips);
        all.add("tcp.rr.1", ROUND_TRIPS, &[], tcp_round_trips);
        all
    }

    /// Adds a row. `run` measures for about the time it is given; `beside` names rows to compare with,
    /// whether they are added before or after.
    pub fn add(
        &mut self,
        name: &str,
        unit: &'static str,
        beside: &[&str],
        run: impl FnMut(Duration) -> io::Result<Sample> + 'static,
    ) {
        let beside = beside.iter().map(|&name| name.to_owned()).collect();
        self.benches.push(Bench { name: name.to_owned(), unit, beside, foreign: false, run: Box::new(run) });
    }

    /// Adds a row of programs that are not ours: where they fail, the report says so and goes on without.
    pub fn add_foreign(
        &mut self,
        name: &str,
        unit: &'static str,
        beside: &[&str],
        run: impl FnMut(Duration) -> io::Result<Sample> + 'static,
    ) {
        self.add(name, unit, beside, run);
        self.benches.iter_mut().filter(|bench| bench.name == name).for_each(|bench| bench.foreign = true);
    }

    /// Runs what `options` choose. `progress` hears each benchmark's name before it runs.
    pub fn run(mut self, options: &Options, mut progress: impl FnMut(usize, &str)) -> io::Result<Report> {
        self.check(options)?;
        let needed: BTreeSet<String> = self
            .benches
            .iter()
            .filter(|bench| bench.name.starts_with(&options.only))
            .flat_map(|bench| bench.beside.iter().chain([&bench.name]).cloned())
            .collect();
        let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let mut failed = Vec::new();
        for round in 0..options.rounds {
            for bench in self.benches.iter_mut().filter(|bench| needed.contains(&bench.name)) {
                progress(round, &bench.name);
                match (bench.run)(options.length) {
                    Ok(sample) => samples.entry(bench.name.clone()).or_default().push(sample.value),
                    Err(error) if bench.foreign => {
                        failed.push(format!("{} in round {}: {error}", bench.name, round + 1));
                    }
                    Err(error) => {
                        return Err(io::Error::new(error.kind(), format!("{}: {error}", bench.name)));
                    }
                }
            }
        }
        let chosen = self.benches.iter().filter(|bench| bench.name.starts_with(&options.only));
        let rows = chosen.filter_map(|bench| Row::new(bench, &samples)).collect();
        let seconds = options.length.as_secs_f64();
        Ok(Report { version: VERSION, rounds: options.rounds, seconds_per_round: seconds, rows, failed })
    }

    fn check(&self, options: &Options) -> io::Result<()> {
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let names: Vec<&str> = self.benches.iter().map(|bench| bench.name.as_str()).collect();
        if !names.iter().any(|name| name.starts_with(&options.only)) {
            return wrong(format!("ONLY={}: no row begins so; there are {}", options.only, names.join(", ")));
        }
        if options.rounds == 0 {
            return wrong("rounds 0: at least one is needed".to_owned());
        }
        for bench in &self.benches {
            if names.iter().filter(|&&name| name == bench.name).count() > 1 {
                return wrong(format!("row {} is there twice", bench.name));
            }
            if let Some(missing) = bench.beside.iter().find(|beside| !names.contains(&beside.as_str())) {
                return wrong(format!("row {}: there is no row {missing} to put beside it", bench.name));
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub version: u32,
    pub rounds: usize,
    pub seconds_per_round: f64,
    pub rows: Vec<Row>,
    /// Rows of other people's programs that did not work, with the round and the reason.
    #[serde(default)]
    pub failed: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    /// The median of the rounds, with the extremes.
    pub value: f64,
    pub min: f64,
    pub max: f64,
    pub unit: String,
    pub beside: Vec<Beside>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    pub name: String,
    pub value: f64,
    /// The row's value over this one: above 1, the row is faster.
    pub ratio: f64,
}

impl Row {
    /// None: no round brought a sample.
    fn new(bench: &Bench, samples: &BTreeMap<String, Vec<f64>>) -> Option<Row> {
        let own = samples.get(&bench.name)?;
        let value = median(own);
        let beside = bench.beside.iter().filter_map(|name| {
            let other = median(samples.get(name)?);
            Some(Beside { name: name.clone(), value: other, ratio: value / other })
        });
        Some(Row {
            name: bench.name.clone(),
            value,
            min: own.iter().copied().fold(f64::INFINITY, f64::min),
            max: own.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            unit: bench.unit.to_owned(),
            beside: beside.collect(),
        })
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] }
}

impl Report {
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("plain numbers and strings always serialize")
    }

    /// Writes the JSON, with the folders it needs: `out/bench/latest.json` for `make bench`.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, self.json() + "\n")
    }

    pub fn table(&self) -> String {
        let width = self.rows.iter().map(|row| row.name.len() + 1).max().unwrap_or(0).max(20);
        let mut out = format!("{:<width$}{:>12} {:<7} {:>23}  beside\n", "row", "median", "", "min .. max");
        for row in &self.rows {
            let range = format!("{} .. {}", number(row.min), number(row.max));
            let beside = row.beside.iter().map(|other| format!("{:.3} x {}", other.ratio, other.name));
            let beside = beside.collect::<Vec<_>>().join(", ");
            // writing to a String cannot fail
            let _ = writeln!(
                out,
                "{:<width$}{:>12} {:<7} {range:>23}  {beside}",
                row.name,
                number(row.value),
                row.unit
            );
        }
        for failed in &self.failed {
            let _ = writeln!(out, "failed: {failed}");
        }
        out
    }
}

fn number(value: f64) -> String {
    if value >= 10_000.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
