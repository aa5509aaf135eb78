//! A sweep of an experiment, and its progress on standard error: a line for every combination, and on a
//! terminal one that is overwritten for the run under way.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use vmlane_experiment::{Plan, Progress, Row, Runner, Step, Writer, report, rows, stop, units};

/// What a sweep made.
pub struct Swept {
    pub rows: Vec<Row>,
    /// None: there is no row to draw.
    pub report: Option<PathBuf>,
    /// The exit code, if a signal ended it.
    pub ended_early: Option<u8>,
}

/// Makes the runs of a plan that `done` lacks, in labs of a name, draws the report and prints what was done;
/// `word` stands before each line.
pub fn sweep(
    word: &'static str,
    plan: &Plan,
    name: &str,
    (out, file, done): (&Path, &mut Writer, &[Row]),
    json: bool,
) -> Result<Swept> {
    let (begin, mut screen, stop) = (Instant::now(), Screen::new(word), stop::on_signals()?);
    let runner = Runner { plan, program: &std::env::current_exe()?, name, stop: stop.flag() };
    let rows = runner.run(file, done, &mut |progress| screen.show(progress))?;
    screen.clear();
    let report = if rows.is_empty() && done.is_empty() { None } else { Some(report::draw(out)?) };
    let failed = rows.iter().filter(|row| row.failed.is_some()).count();
    if json {
        let summary = serde_json::json!({ "version": 1, "plan": plan.name, "runs": rows.len(), "failed": failed,
            "already_there": done.len(), "results": out.join(rows::FILE), "report": report });
        println!("{summary}");
    }
    eprintln!("{word}: {} runs in {}, {failed} failed", rows.len(), minutes(begin.elapsed()));
    if let Some(path) = &report {
        eprintln!("{word}: {}", path.display());
    }
    let ended_early = stop.exit_code();
    if ended_early.is_some() {
        eprintln!("{word}: ended early");
    }
    Ok(Swept { rows, report, ended_early })
}

struct Screen {
    /// Before each line.
    name: &'static str,
    terminal: bool,
    /// How far, and how long still.
    place: String,
    /// What was printed: a combination that is given up fails the same way many times.
    reported: BTreeSet<String>,
}

/// `4:07`.
pub fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

impl Screen {
    fn new(name: &'static str) -> Screen {
        let terminal = std::io::stderr().is_terminal();
        Screen { name, terminal, place: String::new(), reported: BTreeSet::new() }
    }

    fn show(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Starts { step, number, of, left } => {
                let left = left.map_or(String::new(), |left| format!(", {} left", minutes(left)));
                self.place = format!("[{number}/{of}{left}]");
                if self.terminal {
                    eprint!("\r\x1b[K{} {}", self.place, describe(step));
                    let _ = std::io::stderr().flush();
                }
            }
            Progress::Message(line) => self.once(format!("{}: {line}", self.name)),
            Progress::Ended(_) => {}
            Progress::Combination(rows) => {
                self.clear();
                for line in combination(rows) {
                    eprintln!("{} {line}", self.place);
                }
            }
        }
    }

    fn once(&mut self, line: String) {
        if self.reported.insert(line.clone()) {
            self.clear();
            eprintln!("{line}");
        }
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// A line a device: what it is about, and every run's number.
fn combination(rows: &[Row]) -> Vec<String> {
    let mut ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    ids.sort();
    ids.dedup();
    let line = |id: &&str| {
        let runs = rows.iter().filter(|row| row.id == **id);
        let (unit, scale) = rows.first().map_or(("", 1.0), |row| units::unit(&row.test));
        let value = |row: &Row| row.value().map_or("failed".into(), |value| units::number(value / scale));
        format!("{id}: {} {unit}", runs.map(value).collect::<Vec<_>>().join(" "))
    };
    ids.iter().map(line).collect()
}

fn describe(step: &Step) -> String {
    format!("{}, run {}", step.factors.id(), step.run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_minutes_and_seconds() {
        assert_eq!(minutes(Duration::from_secs(247)), "4:07");
        assert_eq!(minutes(Duration::from_millis(900)), "0:00");
    }

    #[test]
    fn a_combination_is_a_line_a_device() {
        let row = |id: &str, bps: Option<f64>| Row {
            id: id.into(),
            test: "stream".into(),
            throughput_bps: bps,
            failed: bps.is_none().then(|| "why".into()),
            ..Row::default()
        };
        let lines = combination(&[row("b", Some(2e9)), row("a", None), row("b", Some(1.5e9))]);
        assert_eq!(lines, ["a: failed Mbit/s", "b: 2000 1500 Mbit/s"]);
    }
}
