//! `vmlane lab run` and `vmlane lab draw`: experiments from plans.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use vmlane_experiment::side_by_side::{self, Side};
use vmlane_experiment::{Plan, Writer, report};

use crate::cmd::exit_codes::USAGE;
use crate::cmd::progress::{minutes, sweep};

const EXAMPLES: &str = "\
Examples:
  vmlane lab run experiments/devices/plan.toml --out out/devices
  vmlane lab run plan.toml --out out/mine --quick       the plan's [quick] part
  vmlane lab run plan.toml --check                      what would be run; boots nothing

DIR/results.jsonl gets a line for every run as it ends, DIR/report.html shows them. Ctrl-C ends early and keeps \
what was measured; the same command then continues: runs that have a row are not repeated.

Exit code 1: a run failed. 2: the plan is invalid; the message names line and key. 128 + N: signal N ended it early (130: Ctrl-C).";

/// Run an experiment's plan
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to measure: factors, repeats, figures (docs/guide/experiments.md)
    plan: PathBuf,
    /// Where results.jsonl and report.html go [default: out/NAME of the plan]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only the small part that the plan marks as [quick]
    #[arg(long)]
    quick: bool,
    /// How often each combination is measured [default: the plan's]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// How long each run measures [default: the plan's]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// The labs' name [default: run- and the process id]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Repeat runs that failed
    #[arg(long)]
    retry: bool,
    /// Print the runs, and boot nothing
    #[arg(long)]
    check: bool,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.05..=3600.0).contains(value));
    value.ok_or_else(|| format!("{text:?}: from 0.05 to 3600 seconds"))
}

impl Args {
    pub fn run(self) -> Result<ExitCode> {
        let path = self.plan.display();
        let text = std::fs::read_to_string(&self.plan).with_context(|| format!("cannot read {path}"))?;
        let mut plan = match Plan::parse(&text, self.quick) {
            Ok(plan) => plan,
            Err(error) => {
                eprintln!("vmlane: {path}: {error:#}");
                return Ok(ExitCode::from(USAGE));
            }
        };
        self.runs.into_iter().for_each(|runs| plan.set_runs(runs));
        plan.seconds = self.seconds.unwrap_or(plan.seconds);
        if self.check {
            return check(&plan, self.json);
        }
        let out = self.out.clone().unwrap_or_else(|| PathBuf::from("out").join(&plan.name));
        let (mut file, mut done) = Writer::append(&out)?;
        if let Some(other) = done.iter().find(|row| row.setup.plan != plan.name) {
            bail!(
                "{} has rows of the plan {:?}: give another --out, or remove it",
                out.display(),
                other.setup.plan
            );
        }
        if self.retry {
            done.retain(|row| row.failed.is_none());
        }
        let name = self.name.clone().unwrap_or_else(|| format!("run-{}", std::process::id()));
        let swept = sweep("run", &plan, &name, (&out, &mut file, &done), self.json)?;
        if let Some(code) = swept.ended_early {
            eprintln!("run: run the same command to continue");
            return Ok(ExitCode::from(code));
        }
        Ok(ExitCode::from(u8::from(swept.rows.iter().any(|row| row.failed.is_some()))))
    }
}

/// Draw an experiment's report again, or the results of several machines side by side
///
/// DIR/report.html and DIR/figures are drawn from DIR/results.jsonl; figures, captions and claims are those
/// of the plan in the rows, or of DIR/plan.toml if it is the same plan with newer texts.
///
/// Several directories (of one experiment each, or with a directory for each experiment) are drawn on one
/// page: each machine is a series in every figure and a column in the tables.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  vmlane lab draw out/demo
  vmlane lab draw a/experiments b/experiments --out out/both")]
pub struct Draw {
    /// The directory with the rows; up to six
    #[arg(required = true, value_name = "DIR")]
    from: Vec<PathBuf>,
    /// Directory for the page of several machines
    #[arg(long, value_name = "DIR", default_value = "out/side-by-side")]
    out: PathBuf,
}

impl Draw {
    pub fn run(self) -> Result<()> {
        let path = match &self.from[..] {
            [dir] => report::draw(dir)?,
            dirs => {
                let sides: Vec<Side> = dirs.iter().map(|dir| Side::read(dir)).collect::<Result<_>>()?;
                side_by_side::draw(&sides, &self.out)?
            }
        };
        println!("{}", path.display());
        Ok(())
    }
}

/// What a plan amounts to.
fn check(plan: &Plan, json: bool) -> Result<ExitCode> {
    let boots = plan.boots();
    let runs: usize = boots.iter().map(|boot| boot.steps.len()).sum();
    let time = plan.time();
    if json {
        let ids: Vec<String> = plan.combinations.iter().map(|factors| factors.id()).collect();
        let value = serde_json::json!({ "version": 1, "plan": plan.name, "labs": boots.len(), "runs": runs,
            "most_runs": plan.most_runs(), "combinations": ids, "seconds_about": time.as_secs() });
        println!("{value}");
        return Ok(ExitCode::SUCCESS);
    }
    for boot in &boots {
        let guests = boot.like.guests;
        let devices: Vec<String> = boot.devices.iter().map(ToString::to_string).collect();
        println!("a lab of {guests} guests with {}: {} runs", devices.join(", "), boot.steps.len());
        for step in boot.steps.iter().filter(|step| step.run == 1) {
            println!("  {}", step.factors.id());
        }
    }
    println!("{runs} runs, about {} with the boots of {} labs", minutes(time), boots.len());
    if let Some(repeats) = plan.repeats {
        println!(
            "up to {} runs, where the means are not known to {} % after {} of each",
            plan.most_runs(),
            repeats.within,
            plan.runs
        );
    }
    Ok(ExitCode::SUCCESS)
}
