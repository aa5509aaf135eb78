//! `vmlane check`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use vmlane_config::added;
use vmlane_config::findings::{Findings, check};
use vmlane_config::{Config, Problem};
use vmlane_daemon::owners::owners;

use super::control::{json, print};
use super::exit_codes::CONFIGURATION;

const EXAMPLES: &str = "Examples:
  vmlane check
  vmlane check ./vmlane.toml
  vmlane check && vmlane reload
  vmlane check --schema > vmlane.schema.json
  vmlane check --json | jq -r '.problems[] | \"\\(.file):\\(.line): \\(.text)\"'

The file, those of conf.d beside it, and the VMs that were added at run time are checked as a daemon checks them; nothing is changed.

Exit code 78: a daemon would not start, and a reload would be refused. An owner's name that this host does not know is such an error, because a daemon needs its number. Warnings (an interface that is not there, an owner's number that no account has) are about this host as it is
now, or about guests that would lack interrupts, and do not change the exit code.

--schema prints what a configuration may contain as JSON Schema, for editors and for programs that write one. It describes keys, their values and defaults, and whether a reload applies them (x-applied-by-reload); whether values fit together is checked only without --schema.";

/// Validates a configuration without applying it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file
    #[arg(value_name = "FILE", default_value = vmlane_config::DEFAULT_PATH)]
    file: PathBuf,
    /// Runtime directory of the daemon that is to serve it
    #[arg(long, value_name = "DIR", env = vmlane_sock::RUNTIME_DIR_VARIABLE, default_value_os_t = vmlane_sock::runtime_dir())]
    runtime_dir: PathBuf,
    /// State directory of that daemon, if it is started with one
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print a JSON Schema of the configuration, and check nothing
    #[arg(long, conflicts_with_all = ["json", "file"])]
    schema: bool,
}

#[derive(Serialize)]
struct Report<'f> {
    /// A daemon would start.
    ok: bool,
    files: &'f [PathBuf],
    vms: usize,
    uplinks: usize,
    problems: Vec<Found<'f>>,
    warnings: Vec<Found<'f>>,
}

fn found(problems: &[Problem]) -> Vec<Found<'_>> {
    problems.iter().map(|Problem { path, line, text }| Found { file: path, line: *line, text }).collect()
}

#[derive(Serialize)]
struct Found<'f> {
    file: &'f PathBuf,
    /// Null: it is about the file as a whole.
    line: Option<usize>,
    text: &'f str,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.schema {
            print(&(serde_json::to_string_pretty(&Config::schema())? + "\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        let state = added::state_dir(&self.runtime_dir, self.state_dir.as_deref());
        let findings = check(&self.file, &self.runtime_dir, &state, |sources| {
            owners(sources, &self.runtime_dir, &state)
        });
        let ok = findings.problems.is_empty();
        if self.json {
            let Findings { files, vms, uplinks, problems, warnings } = &findings;
            let (problems, warnings) = (found(problems), found(warnings));
            print(&json(&Report { ok, files, vms: *vms, uplinks: *uplinks, problems, warnings })?)?;
        } else {
            findings.problems.iter().for_each(|problem| eprintln!("{problem}"));
            findings.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
            if ok {
                let count =
                    |count: usize, of: &str| format!("{count} {of}{}", if count == 1 { "" } else { "s" });
                let (vms, uplinks) = (count(findings.vms, "VM"), count(findings.uplinks, "uplink"));
                print(&format!("good: {vms}, {uplinks}, in {}\n", count(findings.files.len(), "file")))?;
            }
        }
        Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(CONFIGURATION) })
    }
}
