//! `vmlane demo`: two VMs, VMCI sockets against TCP, a table and a report.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use vmlane_lab::experiment::{self, News, Runner, Step, Summary, Sweep, Writer, rows, table};
use vmlane_lab::{Lab, report, stop};

const EXAMPLES: &str = "\
Examples:
  vmlane demo                          some minutes, results in out/demo
  vmlane demo --full --out out/full    more sizes, three runs of 10 s each: over an hour
  vmlane demo --runs 5 --json

Boots two VMs with a VMCI device, a VMXNET3 card on vmlane's switch and three of QEMU's own network cards,
measures in turns, and takes the VMs down. DIR/results.jsonl has a line for every run, DIR/report.html shows them. Ctrl-C ends early and
keeps what was measured.

Exit code 1: a run over VMCI failed, or no run of some combination worked over a network card.";

/// Measure VMCI sockets against TCP between two VMs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where results.jsonl and report.html go
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    out: PathBuf,
    /// Numbers to quote: more sizes, three runs of 10 s
    #[arg(long)]
    full: bool,
    /// How often each combination is measured [default: 2, with --full 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Print the medians as JSON instead of the final table
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<ExitCode> {
        let begin = Instant::now();
        let mut sweep = if self.full { Sweep::full() } else { Sweep::quick() };
        sweep.runs = self.runs.unwrap_or(sweep.runs);
        let mut file = Writer::create(&self.out)?;
        // Several demos of one user do not meet.
        let spec = experiment::lab_spec(&format!("demo-{}", std::process::id()), &sweep);
        let program = std::env::current_exe()?;
        let lab = Lab::up_with(&spec, &program, &|line| eprintln!("demo: {line}"))?;
        // Until here Ctrl-C just ends this process, and the lab goes down with it; from here on it
        // lets the report be written.
        let stop = stop::on_signals()?;
        let setup = experiment::setup(&lab.status()?, &spec, &sweep, &program);
        let mut screen = Screen::new();
        let rows =
            Runner::new(&lab, &sweep, setup, stop.flag())?.run(&mut file, &mut |news| screen.show(news))?;
        screen.clear();
        eprintln!("demo: taking the VMs down");
        lab.down()?;
        let failed = rows.iter().filter(|row| row.failed.is_some()).count();
        if !rows.is_empty() {
            let report = report::draw(&self.out)?;
            if self.json {
                println!("{}", serde_json::to_string_pretty(&Summary::of(&rows).json())?);
            } else {
                print!("\n{}", table::whole(&rows));
            }
            eprintln!(
                "\ndemo: {} runs in {}, {failed} failed\ndemo: {}\ndemo: {}",
                rows.len(),
                minutes(begin.elapsed()),
                report.display(),
                self.out.join(rows::FILE).display()
            );
        }
        if let Some(code) = stop.exit_code() {
            eprintln!("demo: ended early");
            return Ok(ExitCode::from(code));
        }
        Ok(ExitCode::from(u8::from(!experiment::summary::is_sound(&rows))))
    }
}

/// `4:07`.
fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

/// Progress on standard error: a line for every combination, and on a terminal one that is
/// overwritten for the run under way.
struct Screen {
    terminal: bool,
    headed: bool,
    /// After the line of the combination: how far, and how long still.
    place: String,
    /// Failures that were told: a device that is given up fails the same way many times.
    said: BTreeSet<String>,
}

impl Screen {
    fn new() -> Screen {
        let terminal = std::io::stderr().is_terminal();
        Screen { terminal, headed: false, place: String::new(), said: BTreeSet::new() }
    }

    fn show(&mut self, news: &News<'_>) {
        match news {
            News::Starts { step, number, of, left } => {
                let left = left.map_or(String::new(), |left| format!(", {} left", minutes(left)));
                self.place = format!("[{number}/{of}{left}]");
                if self.terminal {
                    eprint!("\r\x1b[K{} {}", self.place, describe(step));
                    let _ = std::io::stderr().flush();
                }
            }
            News::Ended(row) => {
                let line = row.failed.as_ref().map(|why| format!("demo: {} failed: {why}", row.device));
                if let Some(line) = line.filter(|line| self.said.insert(line.clone())) {
                    self.clear();
                    eprintln!("{line}");
                }
            }
            News::Combination(rows) => {
                self.clear();
                let summary = Summary::of(rows);
                let others: Vec<&str> = summary.others().collect();
                if !std::mem::replace(&mut self.headed, true) {
                    eprintln!("{}", table::heading(&others));
                }
                if let Some(row) = rows.first() {
                    let key = experiment::summary::Key::of(row);
                    eprintln!("{}  {}", table::combination(&summary, &key, &others), self.place);
                }
            }
        }
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

fn describe(step: &Step) -> String {
    let case = &step.case;
    let (test, size) = (case.test.name(), table::size(case.message_bytes));
    format!("{}: {test} {size}, sessions {}, run {}", case.device, case.sessions, step.run)
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
    fn the_run_under_way_is_named() {
        let steps = Sweep::quick().steps();
        assert_eq!(describe(&steps[1]), "vmxnet3: stream 512, sessions 1, run 1");
    }
}
