//! The long form: one module after another, what passed not repeated until what is built changes, a line a
//! promise.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use crate::built::Built;
use crate::job::{self, Job};
use crate::report::Report;
use crate::{Result, lanes, longest, names, setting};

/// A hash of all that decides what these tests do: sources and plans, committed or not, and settings. Rows of
/// experiments, figures and pages are read by [`ALWAYS`] alone.
const TREE: &str = r"
built=(crates tools guest packaging scripts tests fuzz .cargo Cargo.toml Cargo.lock Makefile experiments/*/*.toml)
{
  { git ls-files -z --cached --others --exclude-standard -- ${built[@]} 2>/dev/null ||
      find ${built[@]} -type f -print0 # Unpacked from an archive.
  } | xargs -0 sha256sum 2>/dev/null || true # A file that was deleted has no line, and so changes the hash.
  env | grep '^VMLANE_' | sort
} | sha256sum | cut -d ' ' -f 1";

/// These read all pages, which are not part of the hash, and take little time.
const ALWAYS: [&str; 2] = ["docs", "site"];

/// How long a module may run in its long form.
const MINUTES: u64 = 240;

/// Modules that passed: the tree with which they did, and their tests.
type Passed = BTreeMap<String, Value>;

fn tree() -> Result<String> {
    let output =
        Command::new("bash").args(["-c", TREE]).output().map_err(|error| format!("bash: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub fn run() -> Result<bool> {
    let mut report = Report::new("out/acceptance")?;
    let directory = report.directory.clone();
    let before = tree()?;
    let built = report.phase("build", Built::workspace)?;
    if tree()? != before {
        return Err("the sources changed while they were built; start again".to_owned());
    }
    let all = Job::modules(&directory, built.promises().ok_or("tests/promises was not built")?)?;
    let modules: Vec<String> = all.iter().map(|job| job.name.clone()).collect();
    let wanted = match setting("ONLY") {
        Some(only) => job::chosen(all, &names(&only))?,
        None => all,
    };
    let state = directory.join("passed.json");
    let mut passed: Passed =
        fs::read_to_string(&state).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let again = setting("AGAIN").is_some();
    let stands = |passed: &Passed, name: &str| {
        !ALWAYS.contains(&name) && passed.get(name).is_some_and(|entry| entry["tree"] == before)
    };
    let (done, mut jobs): (Vec<Job>, Vec<Job>) =
        wanted.into_iter().partition(|job| !again && stands(&passed, &job.name));
    jobs.sort_by_key(|job| report.times.rank(&job.name, job.tests));
    println!(
        "==> the promises, tested in real guests. Modules to run: {}, passed before: {} (AGAIN=1 repeats them)",
        jobs.len(),
        done.len()
    );
    // In slices, so that what passed is kept when the run is interrupted.
    let (lanes, limit) = (lanes(1)?, longest(MINUTES)?);
    report.jobs("guests", |report| {
        for slice in jobs.chunks(lanes) {
            let began = Instant::now();
            job::run_all(report, slice.to_vec(), lanes, limit)?;
            for job in slice {
                passed.remove(&job.name);
                // What passed while its sources changed proves nothing about either state of them.
                if report.has_passed(&job.name) && tree()? == before {
                    passed.insert(
                        job.name.clone(),
                        json!({ "tree": before, "seconds": began.elapsed().as_secs() }),
                    );
                }
            }
            write(&state, &passed)?;
        }
        Ok(())
    })?;
    promises(
        &directory,
        modules.iter().filter(|name| stands(&passed, name) || ALWAYS.contains(&name.as_str())),
    )?;
    report.finish()
}

fn write(path: &Path, passed: &Passed) -> Result<()> {
    fs::write(path, format!("{:#}\n", json!(passed))).map_err(|error| format!("{}: {error}", path.display()))
}

/// What modules promised when they passed, sorted by promise: printed, and written to `promises.txt`.
fn promises<'a>(directory: &Path, modules: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut lines: Vec<String> = Vec::new();
    for module in modules {
        let text = fs::read(directory.join(format!("{module}.log"))).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        lines.extend(text.lines().filter_map(|line| Some(line[line.find("promise ")?..].to_owned())));
    }
    lines.retain(|line| line.contains(" kept: "));
    lines.sort();
    let path = directory.join("promises.txt");
    fs::write(&path, lines.join("\n") + "\n").map_err(|error| format!("{}: {error}", path.display()))?;
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}
