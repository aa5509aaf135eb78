//! Jobs: what runs in one process, several of them at a time, and what their output means.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::built::{Binary, WITH_EXAMPLES};
use crate::report::{Counts, Ended, Report};
use crate::{Result, limit};

/// Of the tests in `tests/promises`: `VMLANE_TESTS`, and what the harness prints of a test that has this
/// form.
pub type Form = &'static str;
pub const PLAIN: Form = "plain";
pub const GUESTS: Form = "guests";
pub const FULL: Form = "full";

/// More failed jobs than this, and none is repeated.
const MOST_REPEATED: usize = 4;

/// One process that runs tests.
#[derive(Clone, Debug)]
pub struct Job {
    pub name: String,
    program: PathBuf,
    words: Vec<&'static str>,
    directory: PathBuf,
    environment: Vec<(&'static str, String)>,
    pub log: PathBuf,
    /// How many tests it has.
    pub tests: usize,
}

impl Job {
    /// All tests of a binary.
    pub fn binary(logs: &Path, binary: &Binary) -> Result<Job> {
        let output = Command::new(&binary.path).args(["--list", "--format=terse"]).output();
        let output = output.map_err(|error| format!("{}: {error}", binary.path.display()))?;
        let tests = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        Ok(Job::new(logs, &binary.name, binary, Vec::new(), tests))
    }

    /// The examples in documentation. Chosen together with the program, its dependencies are those that are
    /// built.
    pub fn documented(logs: &Path) -> Job {
        let words =
            ["test", "--doc", "--release", "--locked", "--quiet", "-p", WITH_EXAMPLES, "-p", "vmlane-cli"];
        Job {
            name: "documentation".to_owned(),
            program: "cargo".into(),
            words: words.to_vec(),
            directory: ".".into(),
            environment: Vec::new(),
            log: logs.join("documentation.log"),
            tests: 1,
        }
    }

    /// The tests of `tests/promises` of one form, a job for each bed or module.
    pub fn groups(logs: &Path, promises: &Binary, form: Form) -> Result<Vec<Job>> {
        let groups = listed(promises, form)?.into_iter().map(|(group, _)| group);
        let job = |(group, tests): (String, usize)| {
            let environment = vec![("VMLANE_TESTS", form.to_owned()), ("VMLANE_GROUP", group.clone())];
            Job::new(logs, &group, promises, environment, tests)
        };
        Ok(counted(groups).into_iter().map(job).collect())
    }

    /// All tests of `tests/promises` in their long form, a job for each module.
    pub fn modules(logs: &Path, promises: &Binary) -> Result<Vec<Job>> {
        let module = |(_, test): (String, String)| test.split("::").next().unwrap_or_default().to_owned();
        let modules = counted(listed(promises, FULL)?.into_iter().map(module));
        let job = |(module, tests): (String, usize)| {
            let environment = vec![("VMLANE_TESTS", FULL.to_owned()), ("VMLANE_MODULE", module.clone())];
            Job::new(logs, &module, promises, environment, tests)
        };
        Ok(modules.into_iter().map(job).collect())
    }

    fn new(
        logs: &Path,
        name: &str,
        binary: &Binary,
        environment: Vec<(&'static str, String)>,
        tests: usize,
    ) -> Job {
        let log = logs.join(format!("{}.log", name.replace(' ', "-")));
        Job {
            name: name.to_owned(),
            program: binary.path.clone(),
            words: Vec::new(),
            directory: binary.directory.clone(),
            environment,
            log,
            tests,
        }
    }

    /// Runs it to its end; with `only`, just this test. What has not ended after `longest` has failed.
    pub fn run(&self, only: Option<&str>, longest: Duration) -> Result<Ended> {
        let began = Instant::now();
        let because = |error: std::io::Error| format!("{}: {error}", self.log.display());
        let absolute = std::path::absolute(&self.log).map_err(because)?;
        let skipped = absolute.with_extension("skipped");
        let _ = fs::remove_file(&skipped);
        let mut log = File::create(&self.log).map_err(because)?;
        let mut command = Command::new(&self.program);
        command.args(&self.words);
        command.args(only.into_iter().flat_map(|test| ["--exact", test]));
        command.current_dir(&self.directory).envs(self.environment.iter().map(|(key, value)| (key, value)));
        command.env("VMLANE_SKIPPED", &skipped);
        // The same cases of the property tests each time, so that a change fails for what it changed, not for
        // a rare case that is older. PROPTEST_RNG_SEED=7 (any number) tries others, as does `cargo test` by
        // itself.
        if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
            command.env("PROPTEST_RNG_SEED", "1");
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(because)?);
        command.stderr(log.try_clone().map_err(because)?);
        let status = limit::run(&mut command, longest);
        let status = status.map_err(|error| format!("{}: {error}", self.program.display()))?;
        if status.is_none() {
            let _ = writeln!(log, "\nruntests: killed after {} minutes", longest.as_secs() / 60);
        }
        let text = String::from_utf8_lossy(&fs::read(&self.log).map_err(because)?).into_owned();
        let missing = fs::read_to_string(&skipped).unwrap_or_default();
        let (counts, mut failures) = read(&text, &missing);
        match status {
            None => failures.push(format!("{} (ran for too long)", self.name)),
            Some(status) if !status.success() && failures.is_empty() => {
                failures.push(format!("{} ({status})", self.name));
            }
            Some(_) => {}
        }
        Ok(Ended { counts, seconds: began.elapsed().as_secs_f64(), failures, killed: status.is_none() })
    }
}

/// The tests of `tests/promises` that `form` runs, with their groups.
fn listed(promises: &Binary, form: Form) -> Result<Vec<(String, String)>> {
    let output = Command::new(&promises.path).arg("--list").env("VMLANE_TESTS", form).output();
    let output = output.map_err(|error| format!("{}: {error}", promises.path.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |line: &str| {
        let (group, test) = line.strip_prefix('[')?.split_once("] ")?;
        Some((group.to_owned(), test.strip_suffix(": test")?.to_owned()))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// How many of each.
fn counted(names: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    names.fold(BTreeMap::new(), |mut counts, name| {
        *counts.entry(name).or_default() += 1;
        counts
    })
}

/// Those with these names.
pub fn chosen(jobs: Vec<Job>, names: &[String]) -> Result<Vec<Job>> {
    let known: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    if let Some(other) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("ONLY names {other}, which is none of: {}", known.join(", ")));
    }
    Ok(jobs.into_iter().filter(|job| names.contains(&job.name)).collect())
}

/// The results in the output of a test binary, with the lines of `testkit::skipped`, and the names of failed
/// tests.
fn read(output: &str, missing: &str) -> (Counts, Vec<String>) {
    let mut counts = Counts::default();
    let mut failures = Vec::new();
    for line in output.lines() {
        if let Some(result) = line.strip_prefix("test result: ") {
            let count = |what: &str| -> usize {
                let part = result.split([';', '.']).find_map(|part| part.trim().strip_suffix(what));
                part.and_then(|part| part.trim().parse().ok()).unwrap_or(0)
            };
            counts.passed += count("passed");
            counts.failed += count("failed");
        }
        let Some((name, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
        else {
            if let Some(name) = failure(line) {
                failures.push(name.to_owned());
            }
            continue;
        };
        if let Some(reason) = outcome.trim().strip_prefix("ignored") {
            let name = name.split_once("] ").map_or(name, |(_, name)| name);
            counts.skipped.push(format!("{}: {}", name.trim(), reason.trim_start_matches([',', ' '])));
        }
    }
    // A test that has parts reports of each why it does not run.
    let mut tests: BTreeMap<&str, &str> = BTreeMap::new();
    tests.extend(missing.lines().filter_map(|line| line.split_once(": ")));
    counts.passed = counts.passed.saturating_sub(tests.len());
    counts.skipped.extend(tests.iter().map(|(name, reason)| format!("{name}: {reason}")));
    failures.sort();
    failures.dedup();
    (counts, failures)
}

/// A line of the list at the end, in which each failed test is alone.
fn failure(line: &str) -> Option<&str> {
    let name = line.strip_prefix("    ")?;
    (name.contains("::") || !name.contains(' ')).then_some(name).filter(|name| is_name(name))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

/// Runs jobs, `lanes` at a time, and repeats failed tests once, alone: on a busy machine, emulated guests may
/// miss their kernels' time limits. Both outcomes are reported, and the log of the first is kept. A job that
/// ran for `longest` is not repeated.
pub fn run_all(report: &mut Report, mut jobs: Vec<Job>, lanes: usize, longest: Duration) -> Result<()> {
    jobs.sort_by_key(|job| report.times.rank(&job.name, job.tests));
    println!("==> {} jobs, {lanes} at a time", jobs.len());
    let queue = Mutex::new(jobs.into_iter());
    let ended = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    // The lock is not held while the job runs.
                    let next = queue.lock().expect("no job panics").next();
                    let Some(job) = next else { break };
                    let outcome = job.run(None, longest);
                    if let Ok(outcome) = &outcome {
                        Report::line(&job.name, outcome);
                    }
                    ended.lock().expect("no job panics").push((job, outcome));
                }
            });
        }
    });
    let mut failed = Vec::new();
    for (job, outcome) in ended.into_inner().expect("no job panics") {
        let outcome = outcome?;
        report.add(&job.name, &outcome);
        if !outcome.failures.is_empty() {
            failed.push((job, outcome));
        }
    }
    let many = failed.len() > MOST_REPEATED;
    for (job, Ended { failures, killed, .. }) in failed {
        let kept = job.log.with_extension("failed");
        fs::rename(&job.log, &kept).map_err(|error| format!("{}: {error}", kept.display()))?;
        report.explain(&job.name, &kept, killed);
        for test in failures {
            let repeated = if many || killed { None } else { Some(repeat(&job, &test, longest)?) };
            report.failure(&job.name, &job.log, &test, repeated.as_ref());
        }
    }
    Ok(())
}

/// Runs a failed test alone, or all tests of a job that ended without a result.
fn repeat(job: &Job, test: &str, longest: Duration) -> Result<Ended> {
    println!("==> {test} once more, alone");
    let ended = job.run(is_name(test).then_some(test), longest)?;
    Report::line(&job.name, &ended);
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_both_harnesses_is_read() {
        let libtest = "running 3 tests\ntest a::one ... ok\ntest a::two ... ignored, takes hours\n\
                       test a::three ... FAILED\n\nfailures:\n\n---- a::three stdout ----\nthread panicked\n\n\
                       failures:\n    a::three\n\n\
                       test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        let (counts, failures) = read(libtest, "");
        assert_eq!((counts.passed, counts.failed), (1, 1));
        assert_eq!(counts.skipped, ["a::two: takes hours"]);
        assert_eq!(failures, ["a::three"]);
        let mimic = "test [bed] streams::one ... ok\ntest [bed] streams::two ... ignored, long: make acceptance\n\
                     test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 9s\n";
        let (counts, failures) = read(mimic, "");
        assert_eq!((counts.passed, counts.failed), (1, 0));
        assert_eq!(counts.skipped, ["streams::two: long: make acceptance"]);
        assert!(failures.is_empty());
    }

    /// Of a process, also one that waits for its parent.
    fn runs(pid: &str) -> bool {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
    }

    #[test]
    fn a_program_that_hangs_has_failed_and_what_it_started_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("hangs.log");
        let script = "sleep 100000 & echo $! > pid; echo 'test a::one ... ok'; wait";
        let job = Job {
            name: "hangs".into(),
            program: "sh".into(),
            words: vec!["-c", script],
            directory: folder.path().into(),
            environment: Vec::new(),
            log: log.clone(),
            tests: 1,
        };
        let mut longest = Duration::from_millis(200);
        // On a busy machine, the shell may need longer to begin.
        let (ended, pid) = loop {
            let ended = job.run(None, longest).unwrap();
            match fs::read_to_string(folder.path().join("pid")) {
                Ok(pid) if pid.ends_with('\n') => break (ended, pid),
                _ => longest *= 2,
            }
        };
        assert_eq!((ended.killed, &ended.failures[..]), (true, &["hangs (ran for too long)".to_owned()][..]));
        assert!(fs::read_to_string(log).unwrap().ends_with("\nruntests: killed after 0 minutes\n"));
        while runs(pid.trim()) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn what_a_machine_lacks_is_skipped_not_passed() {
        let output = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let (counts, _) = read(output, "tap: needs root\ntap: needs root\nacl: no ACLs here\n");
        assert_eq!(counts.passed, 1);
        assert_eq!(counts.skipped, ["acl: no ACLs here", "tap: needs root"]);
    }
}
