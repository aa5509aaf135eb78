//! `vmlane lab paper`: all experiments as the papers ran them, on a machine that was looked at first.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use vmlane_experiment::machine::{Described, Finding, Machine};
use vmlane_experiment::paper::{Settings, dir_of};
use vmlane_experiment::topology::Topology;
use vmlane_experiment::{Plan, Row, Runner, Writer, report, stop};

use super::run::seconds;
use crate::cmd::progress::{Screen, minutes};

const EXAMPLES: &str = "\
Examples:
  sudo vmlane lab paper --check                 what stands in the way, where everything would run, how long it takes
  sudo vmlane lab paper                         all of it, into out/paper; Ctrl-C, and the same again goes on
  sudo vmlane lab paper --only vmci-sockets-2009 --out out/vmci
  vmlane lab draw a/paper b/paper               two machines side by side

Three runs of 60 s of every combination, of 120 s where several sessions or VMs send, on a host with KVM. vCPUs and the \
daemon's workers get CPUs of their own, one of each core, on one NUMA node where that is enough.

DIR has a directory for each experiment, and in machine.json a description of the machine. Rows of failed runs quote error \
messages and the ends of logs: look into them before you send them to others.

Exit code 1: a run failed, or the machine was found unfit (--force measures all the same; machine.json says what was found).";

/// How long the machine is watched before it is judged.
const WATCH: Duration = Duration::from_secs(3);

/// Run all experiments as the papers did, for a host with KVM
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the experiments' directories go
    #[arg(long, value_name = "DIR", default_value = "out/paper")]
    out: PathBuf,
    /// Only these experiments
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Say what was found on this machine, where everything would run and how long it takes, and boot nothing
    #[arg(long)]
    check: bool,
    /// Measure although the machine was found unfit
    #[arg(long)]
    force: bool,
    /// Make runs that failed once more
    #[arg(long)]
    retry: bool,
    /// Another length for all runs, to try the command out
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// How often each combination is measured [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Only the plans' thin slices, to try the command out
    #[arg(long)]
    quick: bool,
}

/// One experiment, and what it has already.
struct Task {
    plan: Plan,
    dir: PathBuf,
    done: Vec<Row>,
    runs: usize,
    time: Duration,
}

impl Args {
    pub fn run(self) -> Result<ExitCode> {
        let settings = self.settings();
        let topology = Topology::read();
        let plans = settings.plans(&self.only)?;
        say("looking at the machine");
        let mut machine = Machine::read(WATCH);
        let tasks = self.tasks(plans)?;
        explain(&machine, &tasks, &topology);
        let mut findings = machine.judge();
        if !self.check && (self.is_fit(&findings)) {
            // Only a guest that boots shows that KVM works.
            machine.kvm = self.has_kvm()?;
            findings = machine.judge();
        }
        print_findings(&findings);
        let fit = self.is_fit(&findings);
        if self.check || !fit {
            if !fit {
                say("this machine is unfit for figures to quote; --force measures all the same, and says so");
            }
            return Ok(ExitCode::from(u8::from(!fit)));
        }
        settings.keep(&self.out)?;
        Described { machine, findings }.keep(&self.out)?;
        self.measure(&tasks, &topology)
    }

    fn settings(&self) -> Settings {
        let papers = Settings::default();
        Settings {
            runs: self.runs.unwrap_or(papers.runs),
            seconds: self.seconds.unwrap_or(papers.seconds),
            several_seconds: self.seconds.unwrap_or(papers.several_seconds),
            quick: self.quick,
        }
    }

    fn is_fit(&self, findings: &[Finding]) -> bool {
        self.force || !findings.iter().any(|finding| finding.serious)
    }

    fn has_kvm(&self) -> Result<bool> {
        let progress = |line: &str| say(line);
        let kernels = [vmlane_lab::spec::DEFAULT_KERNEL.to_owned()];
        let assets = vmlane_lab::setup::ensure(&kernels, None, &vmlane_lab::setup::Progress(&progress))?;
        Ok(assets.accel == vmlane_lab::setup::Accel::Kvm)
    }

    /// The plans with what there is of them.
    fn tasks(&self, plans: Vec<Plan>) -> Result<Vec<Task>> {
        let one = |plan: Plan| {
            let dir = dir_of(&self.out, &plan);
            let mut done = if dir.join(vmlane_experiment::rows::FILE).exists() {
                vmlane_experiment::rows::read(&dir)?
            } else {
                Vec::new()
            };
            if self.retry {
                done.retain(|row| row.failed.is_none());
            }
            let is_made = |id: &str, run: u32| done.iter().any(|row| row.id == id && row.run == run);
            let (runs, time) = plan.left(&is_made);
            Ok(Task { plan, dir, done, runs, time })
        };
        plans.into_iter().map(one).collect()
    }

    fn measure(&self, tasks: &[Task], topology: &Topology) -> Result<ExitCode> {
        let program = std::env::current_exe()?;
        let name = format!("paper-{}", std::process::id());
        let (begin, stop) = (Instant::now(), stop::on_signals()?);
        let (mut made, mut failed) = (0, 0);
        for (number, task) in (1..).zip(tasks) {
            if stop.exit_code().is_some() {
                break;
            }
            let Task { plan, dir, done, .. } = task;
            say(&format!(
                "experiment {number} of {}: {}, {} runs, about {}",
                tasks.len(),
                plan.name,
                task.runs,
                hours(task.time)
            ));
            let (mut file, _) = Writer::append(dir)?;
            let mut screen = Screen::new("paper");
            let runner =
                Runner { plan, program: &program, name: &name, pins: Some(topology), stop: stop.flag() };
            let rows = runner.run(&mut file, done, &mut |news| screen.show(news))?;
            screen.clear();
            made += rows.len();
            failed += rows.iter().filter(|row| row.failed.is_some()).count();
            if !rows.is_empty() || !done.is_empty() {
                report::draw(dir)?;
            }
        }
        say(&format!("{made} runs in {}, {failed} failed", minutes(begin.elapsed())));
        say(&format!("{}: rows, reports and a description of this machine", self.out.display()));
        if let Some(code) = stop.exit_code() {
            say("ended early; run the same command to continue");
            return Ok(ExitCode::from(code));
        }
        Ok(ExitCode::from(u8::from(failed > 0)))
    }
}

fn say(line: &str) {
    eprintln!("paper: {line}");
}

/// `13 h 20 min`, `4 min`.
fn hours(time: Duration) -> String {
    let minutes = time.as_secs().div_ceil(60);
    if minutes < 60 { format!("{minutes} min") } else { format!("{} h {} min", minutes / 60, minutes % 60) }
}

fn explain(machine: &Machine, tasks: &[Task], topology: &Topology) {
    println!("machine: {}", machine.name());
    println!("         {}, Linux {}, microcode {}", machine.system, machine.kernel, machine.microcode);
    for task in tasks {
        println!("{}: {} runs, about {}", task.plan.name, task.runs, hours(task.time));
        for line in task.plan.pinned(topology) {
            println!("  {line}");
        }
    }
    let (runs, time) =
        (tasks.iter().map(|task| task.runs).sum::<usize>(), tasks.iter().map(|task| task.time).sum());
    println!("{runs} runs in all, about {}", hours(time));
}

fn print_findings(findings: &[Finding]) {
    for finding in findings {
        let degree = if finding.serious { "serious" } else { "note" };
        println!("{degree}: {}: {}", finding.name, finding.seen);
        println!("  remedy: {}", finding.remedy);
    }
    if findings.is_empty() {
        println!("nothing was found that would make figures worse");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_hours_and_minutes() {
        assert_eq!(hours(Duration::from_secs(61)), "2 min");
        assert_eq!(hours(Duration::from_secs(3600 * 13 + 60)), "13 h 1 min");
        assert_eq!(hours(Duration::ZERO), "0 min");
    }
}
