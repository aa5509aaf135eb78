//! `vmlane bench compare`: two sets of reports, for people and for CI.

use std::path::PathBuf;
use std::process::ExitCode;

use vmlane_bench::Error;
use vmlane_bench::compare::{Value, Verdict, compare, read};
use vmlane_bench::confidence::Level;
use vmlane_bench::report::one_line;

const EXAMPLES: &str = "\
Examples:
  for i in $(seq 20); do vmlane bench stream --to tcp:10.77.0.2 -l 5 --json; done >before.jsonl
  vmlane bench compare before.jsonl after.jsonl
  vmlane bench compare before.json after.json           each written with --confidence: its runs count
  vmlane bench compare runs/main runs/mine --value cpu --tolerate 2 --json

A side is a file with a report a line, or a directory of such files (*.json, *.jsonl). Make the runs of both sides \
in turns: what changes on the machine meanwhile then falls on both. CPU (`--value cpu`) varies much less than the \
result where other programs share the CPUs.

Exit code 0: no difference, or a better one, or a worse one within --tolerate. 1: worse, and the difference is real. \
2: the reports cannot be compared.";

/// Tell whether two sets of reports differ by more than their spread explains
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Reports of before: a file, or a directory
    before: PathBuf,
    /// Reports of after
    after: PathBuf,
    /// What to compare: result (throughput or transactions), rtt-p50, rtt-p99 or cpu (of both ends' threads, for each
    /// KiB or transaction)
    #[arg(long, value_name = "VALUE", default_value = "result", value_parser = value)]
    value: Value,
    /// How sure to be, in percent: 95 or 99
    #[arg(long, value_name = "LEVEL", default_value = "99", value_parser = level)]
    level: Level,
    /// Differences for the worse of up to so many percent are let pass
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    tolerate: f64,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

fn value(text: &str) -> Result<Value, String> {
    Value::parse(text).ok_or_else(|| format!("{text:?}: use {}", Value::NAMES.join(", ")))
}

fn level(text: &str) -> Result<Level, String> {
    match text {
        "95" => Ok(Level::P95),
        "99" => Ok(Level::P99),
        _ => Err(format!("{text:?}: use 95 or 99")),
    }
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=100.0).contains(value));
    value.ok_or_else(|| format!("{text:?}: from 0 to 100 percent"))
}

impl Args {
    pub fn run(&self) -> Result<ExitCode, Error> {
        let (before, after) = (read(&self.before)?, read(&self.after)?);
        let told = compare((&before, &after), self.value, self.level, self.tolerate)?;
        super::print(&if self.json { one_line(&told) } else { told.text() })?;
        Ok(ExitCode::from(u8::from(told.verdict == Verdict::Worse)))
    }
}
