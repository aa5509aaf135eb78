//! Rows beside each other: a registry of benchmarks, the interleaved runs, the table and the JSON.
//!
//! A row is one benchmark whose number is put beside others'. In every round each benchmark that some
//! chosen row needs runs once, one after the other, so that whatever else the machine does meets all
//! alike; the number is the median of the rounds, and a ratio the median of each round's ratio.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vmlane_bench::{row, table::table};
use vmlane_experiment::host;
use vmlane_experiment::summary::Spread;

/// Raised when a key changes its meaning or goes away.
pub const VERSION: u32 = 1;

pub const GBITS: &str = "Gbit/s";
/// Round trips per second.
pub const ROUND_TRIPS: &str = "RT/s";

/// A rate in the unit of the benchmark it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub value: f64,
}

impl Sample {
    pub fn gbits(bytes: u64, time: Duration) -> Sample {
        Sample { value: bytes as f64 * 8.0 / time.as_secs_f64() / 1e9 }
    }

    /// Round trips per second.
    pub fn rate(count: u64, time: Duration) -> Sample {
        Sample { value: count as f64 / time.as_secs_f64() }
    }
}

/// By row: the rounds that brought a sample, and the sample.
type Samples = BTreeMap<String, Vec<(usize, f64)>>;
type Run = Box<dyn FnMut(Duration) -> io::Result<Sample>>;

/// One benchmark. What it needs across rounds (memory, threads) lives in its closure.
struct Bench {
    name: String,
    unit: &'static str,
    beside: Vec<String>,
    run: Run,
}

/// Which rows are wanted: those whose names begin with one of these words, or all where there is none.
#[derive(Clone, Debug, Default)]
pub struct Only(Vec<String>);

impl Only {
    /// Words that commas separate.
    pub fn parse(list: &str) -> Only {
        let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
        Only(words.map(str::to_owned).collect())
    }

    pub fn wants(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|word| name.starts_with(word))
    }

    pub fn words(&self) -> &[String] {
        &self.0
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Beside these, what they are compared with is measured, and not listed.
    pub only: Only,
    pub rounds: usize,
    /// How long one benchmark runs in one round.
    pub length: Duration,
}

#[derive(Default)]
pub struct Registry {
    benches: Vec<Bench>,
}

impl Registry {
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
        self.benches.push(Bench { name: name.to_owned(), unit, beside, run: Box::new(run) });
    }

    /// Runs what `options` choose; what cannot be measured leaves the other rows as they are. `progress` is
    /// called with each benchmark's name before it runs.
    pub fn run(mut self, options: &Options, mut progress: impl FnMut(usize, &str)) -> io::Result<Report> {
        self.check(options)?;
        let needed: BTreeSet<String> = self
            .benches
            .iter()
            .filter(|bench| options.only.wants(&bench.name))
            .flat_map(|bench| bench.beside.iter().chain([&bench.name]).cloned())
            .collect();
        let mut samples = Samples::new();
        let mut failed = Vec::new();
        for round in 0..options.rounds {
            for bench in self.benches.iter_mut().filter(|bench| needed.contains(&bench.name)) {
                progress(round, &bench.name);
                match (bench.run)(options.length) {
                    Ok(sample) => samples.entry(bench.name.clone()).or_default().push((round, sample.value)),
                    Err(error) => failed.push(format!("{} in round {}: {error}", bench.name, round + 1)),
                }
            }
        }
        let chosen = self.benches.iter().filter(|bench| options.only.wants(&bench.name));
        let rows = chosen.filter_map(|bench| Row::new(bench, &samples)).collect();
        let seconds = options.length.as_secs_f64();
        let made = Made::here();
        Ok(Report {
            version: VERSION,
            made,
            rounds: options.rounds,
            seconds_per_round: seconds,
            rows,
            failed,
        })
    }

    fn check(&self, options: &Options) -> io::Result<()> {
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let names: Vec<&str> = self.benches.iter().map(|bench| bench.name.as_str()).collect();
        let begins_no = |word: &&String| !names.iter().any(|name| name.starts_with(word.as_str()));
        if let Some(word) = options.only.words().iter().find(begins_no) {
            return wrong(format!("ONLY={word}: no row begins so; there are {}", names.join(", ")));
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
    #[serde(default)]
    pub made: Made,
    pub rounds: usize,
    pub seconds_per_round: f64,
    pub rows: Vec<Row>,
    /// What could not be measured, with the round and the reason.
    #[serde(default)]
    pub failed: Vec<String>,
}

/// Where, when and of what build: figures of two machines do not compare.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Made {
    pub date: String,
    pub cpu_model: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    pub kernel: String,
    /// `-dirty`: files differ from it. None: the program lies in no source tree.
    pub commit: Option<String>,
}

impl Made {
    fn here() -> Made {
        let program = std::env::current_exe().ok();
        Made {
            date: host::date(),
            cpu_model: host::cpu_model(),
            cpus: host::cpus(),
            kernel: host::kernel(),
            commit: program.and_then(|program| host::commit(&program)),
        }
    }
}

impl fmt::Display for Made {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Made { date, cpu_model, cpus, kernel, commit } = self;
        let commit = commit.as_deref().unwrap_or("unknown");
        write!(to, "{date}; {cpu_model}, {cpus} CPUs; Linux {kernel}; commit {commit}")
    }
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
    /// The median of `ratios`: above 1, the row is faster.
    pub ratio: f64,
    /// The row's value over this one, in each round that measured both.
    #[serde(default)]
    pub ratios: Vec<f64>,
}

impl Row {
    /// None: no round brought a sample.
    fn new(bench: &Bench, samples: &Samples) -> Option<Row> {
        let own = samples.get(&bench.name)?;
        let spread = Spread::of(own.iter().map(|(_, value)| *value))?;
        let beside = bench.beside.iter().filter_map(|name| Beside::new(name, own, samples.get(name)?));
        Some(Row {
            name: bench.name.clone(),
            value: spread.median,
            min: spread.min,
            max: spread.max,
            unit: bench.unit.to_owned(),
            beside: beside.collect(),
        })
    }
}

impl Beside {
    /// None: no round measured both.
    fn new(name: &str, own: &[(usize, f64)], other: &[(usize, f64)]) -> Option<Beside> {
        let in_round = |round| other.iter().find(|(of, _)| *of == round).map(|(_, value)| *value);
        let ratios: Vec<f64> =
            own.iter().filter_map(|(round, value)| Some(value / in_round(*round)?)).collect();
        let value = Spread::of(other.iter().map(|(_, value)| *value))?.median;
        let ratio = Spread::of(ratios.iter().copied())?.median;
        Some(Beside { name: name.to_owned(), value, ratio, ratios })
    }
}

impl Report {
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("plain numbers and strings always serialize")
    }

    /// Writes the JSON, with the folders it needs: `out/bench/latest.json` for `make bench`.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            crate::folders::make(folder)?;
        }
        std::fs::write(path, self.json() + "\n")
    }

    pub fn table(&self) -> String {
        let mut lines = vec![row!["row", "median", "", "min", "max", "beside"]];
        for row in &self.rows {
            let beside = row.beside.iter().map(|other| format!("{} {:.3}", other.name, other.ratio));
            let beside = beside.collect::<Vec<_>>().join(", ");
            lines.push(row![row.name, number(row.value), row.unit, number(row.min), number(row.max), beside]);
        }
        let failed: String = self.failed.iter().map(|failed| format!("failed: {failed}\n")).collect();
        format!("{}\n\n{}{failed}", self.made, table(&lines))
    }
}

fn number(value: f64) -> String {
    if value >= 10_000.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests;
