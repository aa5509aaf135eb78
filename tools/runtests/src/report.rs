//! What a run reports: a line a job as it ends, and at the end the phases, the slowest jobs, what was
//! skipped, the counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::Result;
use crate::times::{Seconds, Times};

/// Slowest jobs that are listed.
const SLOWEST: usize = 10;
/// Last lines of a log that are printed of a job which was killed.
const END: usize = 40;
/// Lines of a log that are printed where a test failed twice, for a reader who has no access to this
/// machine's files.
const TAIL: usize = 400;

/// What a job did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    /// Ignored by their form, or by what the machine lacks: names with reasons.
    pub skipped: Vec<String>,
}

/// How a job ended.
#[derive(Debug)]
pub struct Ended {
    pub counts: Counts,
    pub seconds: f64,
    /// Names of failed tests, or the job's own if it ended without a result.
    pub failures: Vec<String>,
    /// It ran for too long, and was killed.
    pub killed: bool,
}

/// The counts and times of a run so far.
#[derive(Debug)]
pub struct Report {
    pub directory: PathBuf,
    pub times: Times,
    /// Of this run.
    phases: Vec<(String, f64)>,
    jobs: Seconds,
    passed: usize,
    failures: Vec<String>,
    /// Jobs of failures that stood.
    failed_jobs: Vec<String>,
    unsteady: Vec<String>,
    skipped: Vec<String>,
}

impl Report {
    /// Logs and `times.json` lie in `directory`.
    #[expect(clippy::disallowed_methods, reason = "results go wherever the user wants them")]
    pub fn new(directory: &str) -> Result<Report> {
        let directory = PathBuf::from(directory);
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Report {
            times: Times::read(&directory),
            directory,
            phases: Vec::new(),
            jobs: Seconds::new(),
            passed: 0,
            failures: Vec::new(),
            failed_jobs: Vec::new(),
            unsteady: Vec::new(),
            skipped: Vec::new(),
        })
    }

    /// Does a part of the run, and notes its time.
    pub fn phase<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let outcome = work();
        self.phases.push((name.to_owned(), began.elapsed().as_secs_f64()));
        outcome
    }

    /// The same for a part that adds to the counts.
    pub fn jobs(&mut self, name: &str, work: impl FnOnce(&mut Report) -> Result<()>) -> Result<()> {
        let began = Instant::now();
        let outcome = work(self);
        self.phases.push((name.to_owned(), began.elapsed().as_secs_f64()));
        outcome
    }

    /// One line for a job that has ended.
    pub fn line(name: &str, ended: &Ended) {
        let word = if ended.failures.is_empty() { "ok" } else { "FAILED" };
        let (passed, skipped) = (ended.counts.passed, ended.counts.skipped.len());
        if passed == 0 && ended.failures.is_empty() {
            // All of its tests have another form.
            return;
        }
        let skipped = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
        println!("{word:<7} {name:<18} {:>6.1} s  {passed} passed{skipped}", ended.seconds);
    }

    pub fn add(&mut self, name: &str, ended: &Ended) {
        self.jobs.insert(name.to_owned(), ended.seconds);
        self.passed += ended.counts.passed;
        self.skipped.extend(ended.counts.skipped.iter().cloned());
    }

    /// Whether a job of this run has ended without a failure.
    pub fn has_passed(&self, name: &str) -> bool {
        self.jobs.contains_key(name) && !self.failed_jobs.iter().any(|failed| failed == name)
    }

    /// Why a job failed; of one that was `killed`, the end of its log.
    pub fn explain(&self, name: &str, log: &Path, killed: bool) {
        println!("==> why {name} failed (all of it: {})", log.display());
        let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        if killed {
            return lines[lines.len().saturating_sub(END)..]
                .iter()
                .for_each(|line| println!("{}", clipped(line)));
        }
        let mut printed = false;
        for (at, _) in lines.iter().enumerate().filter(|(_, line)| is_reason(line)) {
            printed = true;
            lines[at..lines.len().min(at + 5)].iter().for_each(|line| println!("{}", clipped(line)));
        }
        if !printed {
            lines[lines.len().saturating_sub(5)..].iter().for_each(|line| println!("{}", clipped(line)));
        }
    }

    /// A test that failed, and how it went when it was repeated alone.
    pub fn failure(&mut self, job: &str, log: &Path, test: &str, repeated: Option<&Ended>) {
        if let Some(ended) = repeated.filter(|ended| ended.failures.is_empty()) {
            self.unsteady.push(test.to_owned());
            self.passed += ended.counts.passed;
            return;
        }
        self.failures.push(test.to_owned());
        self.failed_jobs.push(job.to_owned());
        if repeated.is_some() {
            let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(TAIL)..].iter().for_each(|line| println!("{}", clipped(line)));
        }
    }

    /// Writes the times, prints the tables and the closing line. True if nothing failed.
    pub fn finish(mut self) -> Result<bool> {
        self.times.jobs.extend(self.jobs.clone());
        self.times.phases = self.phases.iter().cloned().collect();
        let because = |error| format!("{}: {error}", self.directory.join("times.json").display());
        self.times.write(&self.directory).map_err(because)?;
        self.skipped.sort();
        for line in &self.skipped {
            println!("skipped  {line}");
        }
        println!("==> the slowest of {} jobs, in seconds", self.jobs.len());
        let mut slowest: Vec<(&String, &f64)> = self.jobs.iter().collect();
        slowest.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        for (name, seconds) in slowest.iter().take(SLOWEST) {
            println!("    {name:<18} {seconds:>7.1}");
        }
        println!("==> phases, in minutes");
        let all: f64 = self.phases.iter().map(|(_, seconds)| seconds).sum();
        for (name, seconds) in self.phases.iter().chain([&("all".to_owned(), all)]) {
            println!("    {name:<18} {:>7.1}", seconds / 60.0);
        }
        if !self.unsteady.is_empty() {
            println!("==> unsteady (failed beside others, passed alone): {}", self.unsteady.join(" "));
        }
        for test in &self.failures {
            println!("FAILED   {test}");
        }
        let failed = self.failures.len();
        println!("{} passed, {failed} failed, {} skipped", self.passed, self.skipped.len());
        Ok(failed == 0)
    }
}

fn is_reason(line: &str) -> bool {
    line.contains("panicked at") || line.contains(" has run for ")
}

/// A line of a log may be a whole table.
fn clipped(line: &str) -> &str {
    let end = line.char_indices().nth(600).map_or(line.len(), |(at, _)| at);
    &line[..end]
}
