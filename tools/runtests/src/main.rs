//! `vmlane-runtests`: builds and runs the tests of this workspace, for the targets of the Makefile.
//!
//! A *job* is what runs in one process: a test binary, or the tests of one bed or module of `tests/promises`.
//! Several run at a time, the longest of the last run first. At the end stand the minutes of each phase, the
//! slowest jobs, what was skipped and why, and one line with all counts.

mod acceptance;
mod built;
mod changed;
mod job;
mod limit;
mod report;
mod times;
mod words;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::built::Built;
use crate::job::{Job, run_all};
use crate::report::Report;

const USAGE: &str = "\
Usage: vmlane-runtests COMMAND, in the root of the repository

Commands:
  all         lint, unit and property tests, then tests in real guests: make test
  units       unit and property tests: make test-unit
  guests      tests in real guests: make test-guests
  quick       unit tests of what changed since the last commit, and of what depends on it: make test-quick
  acceptance  tests in real guests in their long form: make acceptance
  words       the words of identifiers and of the log, the width of comments: a part of make lint

Environment:
  LANES=2     jobs at a time (6 without guests)
  ONLY=a,b    guests: these beds or modules; acceptance: these modules
  SINCE=REV   quick: what changed since this commit
  AGAIN=1     acceptance: what has passed as well
  JOB_MINUTES=30
              a job that runs for longer has failed, and its processes are killed (acceptance: 240)
";

/// How long a job may run, of those that take minutes.
const MINUTES: u64 = 30;

/// What a run needs to know, and why it cannot go on.
pub type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    if let Err(error) = limit::pass_on_signals() {
        eprintln!("runtests: signals: {error}");
    }
    let command = std::env::args().nth(1).unwrap_or_default();
    let outcome = match command.as_str() {
        "all" => all(),
        "units" => only_units(),
        "guests" => only_guests(),
        "quick" => quick(),
        "acceptance" => acceptance::run(),
        "words" => words::check(),
        "--help" | "-h" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => Err(format!("{other:?} is no command\n\n{USAGE}")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("runtests: {why}");
            ExitCode::from(2)
        }
    }
}

/// A variable of the environment that is not empty.
fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The names in a list that commas separate.
fn names(list: &str) -> Vec<String> {
    list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

fn lanes(default: usize) -> Result<usize> {
    match setting("LANES") {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| format!("LANES={text}: not a number of jobs")),
    }
}

/// How long a job may run.
fn longest(minutes: u64) -> Result<Duration> {
    let minutes = match setting("JOB_MINUTES") {
        None => minutes,
        Some(text) => text.parse().map_err(|_| format!("JOB_MINUTES={text}: not a number of minutes"))?,
    };
    Ok(Duration::from_secs(minutes.saturating_mul(60)))
}

/// Runs a command of the tree, whose output is ours.
fn must(report: &mut Report, phase: &str, program: &str, words: &[&str]) -> Result<()> {
    report.phase(phase, || {
        let status =
            Command::new(program).args(words).status().map_err(|error| format!("{program}: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("{program} {}: {status}", words.join(" "))) }
    })
}

fn all() -> Result<bool> {
    let mut report = Report::new("out/test")?;
    let built = report.phase("build", Built::workspace)?;
    must(&mut report, "lab", built.vmlane()?, &["lab", "setup"])?;
    must(&mut report, "lint", "scripts/lint.sh", &[])?;
    units(&mut report, &built)?;
    guests(&mut report, &built)?;
    report.finish()
}

fn only_units() -> Result<bool> {
    let mut report = Report::new("out/test")?;
    let built = report.phase("build", Built::workspace)?;
    units(&mut report, &built)?;
    report.finish()
}

fn only_guests() -> Result<bool> {
    let mut report = Report::new("out/test")?;
    let built = report.phase("build", Built::workspace)?;
    guests(&mut report, &built)?;
    report.finish()
}

fn quick() -> Result<bool> {
    let since = setting("SINCE").unwrap_or_else(|| "HEAD".to_owned());
    let packages = changed::packages(&since)?;
    if packages.is_empty() {
        println!("==> no crate has changed since {since}: SINCE=HEAD~1 for what the last commit changed");
        return Ok(true);
    }
    println!("==> changed since {since}, or dependent on it: {}", packages.join(", "));
    let mut report = Report::new("out/test")?;
    let mut built = report.phase("build", Built::workspace)?;
    built.retain(&packages);
    units(&mut report, &built)?;
    report.finish()
}

/// Test binaries that boot nothing, the plain modules of the promises, and examples in documentation.
fn units(report: &mut Report, built: &Built) -> Result<()> {
    let jobs: Result<Vec<Job>> =
        built.binaries().map(|binary| Job::binary(&report.directory, binary)).collect();
    let mut jobs = jobs?;
    if let Some(promises) = built.promises() {
        jobs.extend(Job::groups(&report.directory, promises, job::PLAIN)?);
    }
    if built.has_examples() {
        jobs.push(Job::documented(&report.directory));
    }
    // Most of them wait for processes and for time limits.
    let (lanes, limit) = (lanes(6)?, longest(MINUTES)?);
    report.jobs("units", |report| run_all(report, jobs, lanes, limit))
}

fn guests(report: &mut Report, built: &Built) -> Result<()> {
    let promises = built.promises().ok_or("tests/promises was not built")?;
    let mut jobs = Job::groups(&report.directory, promises, job::GUESTS)?;
    if let Some(only) = setting("ONLY") {
        jobs = job::chosen(jobs, &names(&only))?;
    }
    let (lanes, limit) = (lanes(2)?, longest(MINUTES)?);
    report.jobs("guests", |report| run_all(report, jobs, lanes, limit))
}

/// The root of the repository, in which this runs.
fn root() -> &'static Path {
    Path::new(".")
}
