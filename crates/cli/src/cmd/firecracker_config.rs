//! `vmlane firecracker-config`: what attaches a configured VM of Firecracker's. Needs the configuration, no
//! running daemon.

use std::process::ExitCode;

use vmlane_attach::firecracker;

use super::control::{json, print};
use super::target::{Report, Target};

const EXAMPLES: &str = r#"Examples:
  vmlane firecracker-config fn1
  jq -s '.[0] * .[1]' machine.json <(vmlane firecracker-config fn1) > whole.json
  (umask 007; firecracker --no-api --config-file whole.json)
  curl --unix-socket api.sock -X PUT http://localhost/vsock -d "$(vmlane firecracker-config fn1 | jq .vsock)"

The VM needs vsock = "hybrid". Firecracker creates the socket and does not remove it: remove it before you start Firecracker again.
Start it as the VM's owner with umask 007, so that the daemon may connect. In a jail, mount the socket's directory into it and
write its path there, or set uds_path in the configuration. This has not been tested with Firecracker yet."#;

/// Prints the part of Firecracker's configuration that attaches a VM.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Print a JSON object that also has the VM's name and socket
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (vm, paths) = self.target.find()?;
        let config = firecracker::config(&paths, &vm)?;
        let text = if self.json {
            json(&Report::new(&vm, &paths, config)?)?
        } else {
            serde_json::to_string_pretty(&config)? + "\n"
        };
        print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
