//! `vmlane reload`.

use std::process::ExitCode;
use std::time::Duration;

use vmlane_api::call;

use super::control::{Where, json, print};

const EXAMPLES: &str = "Examples:
  vmlane reload
  vmlane reload --json | jq -r '.refused[]'

If the file has an error, the running configuration stays in force. Changes that cannot be applied now (the removal of a VM
that is attached, settings of the daemon itself) are listed, and the exit code is 1.";

/// Makes the daemon read its configuration again and apply what differs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut client = self.place.connect()?.with_timeout(Duration::from_secs(60));
        let report = client.call(&call::Reload {})?;
        if self.json {
            print(&json(&report)?)?;
        } else {
            let mut text = String::new();
            report.applied.iter().for_each(|part| text += &format!("{part}\n"));
            if report.applied.is_empty() && report.refused.is_empty() {
                text += "nothing differs\n";
            }
            print(&text)?;
            report.refused.iter().for_each(|part| eprintln!("not applied: {part}"));
        }
        Ok(if report.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}
