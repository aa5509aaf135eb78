//! Two sets of runs: how far apart they are, and whether that is more than their spread explains.
//!
//! Student's t, as for `--confidence`, in Welch's form for two samples of unequal spread, over the logarithms of the
//! values: the result is a ratio with its interval, and the same whichever side comes first. What the runs are too few
//! or too unsteady to show is told as well: the interval says how much may be hidden in it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::confidence::{LEAST_RUNS, Level, mean};
use crate::error::Error;
use crate::report::{Report, VERSION as REPORT};

/// Raised when a key changes its meaning or goes away.
pub const VERSION: u32 = 1;
/// A file of reports is no longer than this.
const LONGEST: u64 = 256 << 20;

/// What of a report is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// Throughput, or transactions a second.
    #[default]
    Result,
    RttP50,
    RttP99,
    /// CPU time of the test's own threads at both ends, for each KiB or transaction. It varies much less than the
    /// result where other programs share the CPUs.
    Cpu,
}

impl Value {
    const ALL: [Value; 4] = [Value::Result, Value::RttP50, Value::RttP99, Value::Cpu];
    pub const NAMES: [&str; 4] = ["result", "rtt-p50", "rtt-p99", "cpu"];

    pub fn parse(text: &str) -> Option<Value> {
        Value::ALL.into_iter().find(|value| value.name() == text)
    }

    fn name(self) -> &'static str {
        let [result, rtt_p50, rtt_p99, cpu] = Value::NAMES;
        match self {
            Value::Result => result,
            Value::RttP50 => rtt_p50,
            Value::RttP99 => rtt_p99,
            Value::Cpu => cpu,
        }
    }

    fn higher_is_better(self) -> bool {
        self == Value::Result
    }

    /// What a report has of it: one value, or one for each run.
    fn of(self, report: &Report) -> Vec<f64> {
        let one = match self {
            Value::Result => match &report.confidence {
                Some(confidence) => return confidence.values.clone(),
                None => report.throughput_bps.or(report.transactions_per_second),
            },
            Value::RttP50 => report.rtt_us.map(|times| times.p50),
            Value::RttP99 => report.rtt_us.map(|times| times.p99),
            Value::Cpu => cpu(report),
        };
        one.into_iter().collect()
    }

    fn unit(self, report: &Report) -> &'static str {
        let asks = report.transactions.is_some();
        match self {
            Value::Result if asks => "transactions/s",
            Value::Result => "bit/s",
            Value::RttP50 | Value::RttP99 => "us",
            Value::Cpu if asks => "us of CPU/transaction",
            Value::Cpu => "us of CPU/KiB",
        }
    }
}

/// Microseconds of both ends' threads for each KiB or transaction.
fn cpu(report: &Report) -> Option<f64> {
    let busy = report.cpu_process.local.zip(report.cpu_process.remote).map(|(here, there)| here + there)?;
    let amount = report.transactions.map_or(report.bytes as f64 / 1024.0, |count| count as f64);
    (amount > 0.0).then(|| busy * report.seconds * 1e6 / amount)
}

/// The reports of a file, a line each, or of all `*.json` and `*.jsonl` of a directory.
///
/// # Errors
/// Name the file, the line and what is wrong with it.
pub fn read(path: &Path) -> Result<Vec<Report>, Error> {
    let usage = |text: String| Error::Usage(text);
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(|e| usage(format!("{}: {e}", path.display())))?;
        let is_report = |path: &PathBuf| path.extension().is_some_and(|end| end == "json" || end == "jsonl");
        files = entries.flatten().map(|entry| entry.path()).filter(is_report).collect();
        files.sort();
    }
    let mut reports = Vec::new();
    for file in &files {
        let name = file.display();
        let length = std::fs::metadata(file).map_err(|e| usage(format!("{name}: {e}")))?.len();
        if length > LONGEST {
            return Err(usage(format!("{name}: {length} bytes; {LONGEST} are the most: compare fewer runs")));
        }
        let text = std::fs::read_to_string(file).map_err(|e| usage(format!("{name}: {e}")))?;
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let report: Report = serde_json::from_str(line).map_err(|e| {
                usage(format!(
                    "{name}, line {number}: {e}; each line must be what `vmlane bench TEST --json` prints"
                ))
            })?;
            if report.version != REPORT {
                let theirs = report.version;
                return Err(usage(format!(
                    "{name}, line {number}: version {theirs} of the report, and this program reads {REPORT}"
                )));
            }
            reports.push(report);
        }
    }
    if reports.is_empty() {
        return Err(usage(format!(
            "{}: no reports: write them with `vmlane bench TEST --json`",
            path.display()
        )));
    }
    Ok(reports)
}

/// The runs of one side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Side {
    pub runs: usize,
    /// The geometric mean.
    pub mean: f64,
    pub min: f64,
    pub max: f64,
    /// The standard deviation in percent of the mean.
    pub spread_percent: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The difference is real, for the worse, and larger than what is tolerated.
    Worse,
    /// Real and for the better.
    Better,
    /// Real, but no larger than what is tolerated.
    Tolerated,
    /// No difference that the spread of the runs would not explain.
    NoDifference,
}

/// What two sides amount to. As wide as its JSON, whose keys are a contract.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub version: u32,
    pub test: String,
    pub transport: String,
    pub value: &'static str,
    pub unit: &'static str,
    pub level_percent: f64,
    pub tolerated_percent: f64,
    pub before: Side,
    pub after: Side,
    /// From before to after.
    pub change_percent: f64,
    /// Where the true change lies, at that level.
    pub interval_percent: (f64, f64),
    /// The change in standard deviations of a run (Hedges' g, of the logarithms); none where no run differs.
    pub effect_size: Option<f64>,
    pub verdict: Verdict,
}

/// Sums of a sample.
struct Sample {
    count: f64,
    mean: f64,
    variance: f64,
}

impl Sample {
    fn of(values: &[f64]) -> Sample {
        let (count, mean) = (values.len() as f64, mean(values));
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Sample { count, mean, variance }
    }
}

/// What tells one measurement from another: both sides must have been asked the same.
fn question(report: &Report) -> [(&'static str, String); 9] {
    let number = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
    [
        ("test", report.test.clone()),
        ("transport", report.transport.clone()),
        ("message_bytes", report.message_bytes.to_string()),
        ("receive_bytes", number(report.receive_bytes)),
        ("response_bytes", number(report.response_bytes)),
        ("sessions", report.sessions.to_string()),
        ("nodelay", report.nodelay.to_string()),
        ("in_flight", number(report.in_flight.map(u64::from))),
        ("rate_bps", number(report.rate_bps)),
    ]
}

fn check<'a>(first: &Report, others: impl Iterator<Item = &'a Report>) -> Result<(), Error> {
    let first = question(first);
    for report in others {
        for ((key, here), (_, there)) in first.iter().zip(question(report)) {
            if *here != there {
                return Err(Error::Usage(format!(
                    "the reports do not measure the same: {key} is {here} in one and {there} in another"
                )));
            }
        }
    }
    Ok(())
}

/// Compares two sides; `tolerated` percent for the worse are let pass.
///
/// # Errors
/// The reports are of different tests, too few, or without what is compared.
pub fn compare(
    (before, after): (&[Report], &[Report]),
    value: Value,
    level: Level,
    tolerated: f64,
) -> Result<Comparison, Error> {
    let values = |name: &str, reports: &[Report]| {
        let values: Vec<f64> = reports.iter().flat_map(|report| value.of(report)).collect();
        if let Some(bad) = values.iter().find(|value| !(value.is_finite() && **value > 0.0)) {
            return Err(Error::Usage(format!("{name}: a run has the value {bad}, which cannot be compared")));
        }
        if values.len() < LEAST_RUNS as usize {
            return Err(Error::Usage(format!(
                "{name}: {} runs have {:?}, and {LEAST_RUNS} are the fewest whose spread can be told: repeat with \
                 --confidence 95,5, or give several reports (a line each, or a directory)",
                values.len(),
                value.name()
            )));
        }
        Ok(values)
    };
    let (old, new) = (values("before", before)?, values("after", after)?);
    let Some(first) = before.first() else { return Err(Error::Usage("before: there are no reports".into())) };
    check(first, before.iter().chain(after))?;
    let (change, interval, effect_size) = welch(&old, &new, level);
    let percent = |log: f64| 100.0 * log.exp_m1();
    let better = (change > 0.0) == value.higher_is_better();
    let verdict = match () {
        () if interval.0 <= 0.0 && interval.1 >= 0.0 => Verdict::NoDifference,
        () if better => Verdict::Better,
        () if percent(change).abs() <= tolerated => Verdict::Tolerated,
        () => Verdict::Worse,
    };
    Ok(Comparison {
        version: VERSION,
        test: first.test.clone(),
        transport: first.transport.clone(),
        value: value.name(),
        unit: value.unit(first),
        level_percent: level.percent(),
        tolerated_percent: tolerated,
        before: Side::of(&old),
        after: Side::of(&new),
        change_percent: percent(change),
        interval_percent: (percent(interval.0), percent(interval.1)),
        effect_size,
        verdict,
    })
}

/// The difference of the logarithms' means, its interval, and its size in standard deviations.
fn welch(old: &[f64], new: &[f64], level: Level) -> (f64, (f64, f64), Option<f64>) {
    let logs = |values: &[f64]| Sample::of(&values.iter().map(|value| value.ln()).collect::<Vec<_>>());
    let (old, new) = (logs(old), logs(new));
    let (a, b) = (old.variance / old.count, new.variance / new.count);
    let freedom = (a + b).powi(2) / (a.powi(2) / (old.count - 1.0) + b.powi(2) / (new.count - 1.0));
    // Two samples without any spread: every difference is real.
    let freedom = if freedom.is_finite() { freedom.floor().max(1.0) as usize } else { 1 };
    let change = new.mean - old.mean;
    let half = level.quantile(freedom) * (a + b).sqrt();
    let degrees = old.count + new.count - 2.0;
    let pooled = ((old.variance * (old.count - 1.0) + new.variance * (new.count - 1.0)) / degrees).sqrt();
    // Hedges' correction for small samples.
    let effect = (pooled > 0.0).then(|| change / pooled * (1.0 - 3.0 / (4.0 * degrees - 1.0)));
    (change, (change - half, change + half), effect)
}

impl Side {
    fn of(values: &[f64]) -> Side {
        let plain = Sample::of(values);
        let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        Side {
            runs: values.len(),
            mean: mean(&logs).exp(),
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(0.0, f64::max),
            spread_percent: 100.0 * plain.variance.sqrt() / plain.mean,
        }
    }
}

impl Comparison {
    /// For people.
    pub fn text(&self) -> String {
        let side = |name: &str, side: &Side| {
            format!(
                "  {name:<16}{} {} ({} runs, {} to {}, spread {:.1} %)\n",
                Short(side.mean),
                self.unit,
                side.runs,
                Short(side.min),
                Short(side.max),
                side.spread_percent
            )
        };
        let (from, to) = self.interval_percent;
        let verdict = match self.verdict {
            Verdict::Worse => "worse: the difference is real".to_owned(),
            Verdict::Better => "better: the difference is real".to_owned(),
            Verdict::Tolerated => {
                format!("worse: the difference is real, and within the {} % tolerated", self.tolerated_percent)
            }
            Verdict::NoDifference => {
                "no difference that the spread of the runs would not explain; more or longer runs show smaller ones"
                    .to_owned()
            }
        };
        let effect = self.effect_size.map_or(String::new(), |g| format!("; {g:+.2} standard deviations"));
        format!(
            "{} over {}, {}:\n{}{}  change          {:+.1} % ({:.0} % interval: {from:+.1} to {to:+.1} %{effect})\n  verdict         {verdict}\n",
            self.test,
            self.transport,
            self.value,
            side("before", &self.before),
            side("after", &self.after),
            self.change_percent,
            self.level_percent
        )
    }
}

/// A number with a prefix of thousands.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (scale, prefix) = match self.0 {
            value if value >= 1e9 => (1e9, " G"),
            value if value >= 1e6 => (1e6, " M"),
            value if value >= 1e4 => (1e3, " k"),
            _ => (1.0, ""),
        };
        write!(f, "{:.3}{prefix}", self.0 / scale)
    }
}

#[cfg(test)]
mod tests;
