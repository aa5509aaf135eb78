//! `vmlane demo`: two VMs, sockets and TCP over every card, tables and a report. An experiment like others,
//! whose plan is built in.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use vmlane_experiment::{Writer, summary};

use super::progress::sweep;

const EXAMPLES: &str = "\
Examples:
  vmlane demo                          some minutes, results in out/demo
  vmlane demo --full --out out/full    more sizes, three runs of 10 s each: over an hour
  vmlane demo --runs 5 --json

Boots two VMs with a VMCI device, a VMXNET3 and a virtio card on vmlane's switch and three of QEMU's own network cards, \
measures them in turn, and takes the VMs down; then two with vmlane's virtio-vsock; then two of User Mode Linux, near native, \
with vmlane's virtio devices and User Mode Linux's own card, which needs root. DIR/results.jsonl has a line for every \
run, DIR/report.html shows them. Ctrl-C ends early and keeps what was measured.

Exit code 1: a run over a device of vmlane failed, or no run of some combination worked over another one. 128 + N: signal N ended it early (130: Ctrl-C).";

/// Measure VMCI and virtio sockets and TCP between two VMs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where results.jsonl and report.html go
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    out: PathBuf,
    /// Measure longer, for numbers to quote: more sizes, three runs of 10 s
    #[arg(long)]
    full: bool,
    /// How often each combination is measured [default: 2, with --full 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Print a summary as JSON instead of the final table
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<ExitCode> {
        let is_root = rustix::process::geteuid().is_root();
        let mut plan = vmlane_experiment::demo(self.full, is_root);
        self.runs.into_iter().for_each(|runs| plan.set_runs(runs));
        if !is_root {
            eprintln!(
                "demo: User Mode Linux's own card is left out: it needs root, to open an interface of the host"
            );
        }
        // A demo starts anew each time; an experiment goes on.
        let mut file = Writer::create(&self.out)?;
        // Several demos of one user have names of their own.
        let name = format!("demo-{}", std::process::id());
        eprintln!("demo: booting two VMs");
        let swept = sweep("demo", &plan, &name, (&self.out, &mut file, &[]), self.json)?;
        if !self.json && swept.report.is_some() {
            print!("\n{}", summary::result(&swept.rows, &plan));
        }
        let code = u8::from(!summary::is_sound(&swept.rows));
        Ok(ExitCode::from(swept.ended_early.unwrap_or(code)))
    }
}
