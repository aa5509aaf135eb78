//! `vmlane uplink-helper`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

/// Attaches the interfaces that a configuration names, for the daemon at standard input
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        vmlane_daemon::uplink::serve(&self.config).context("attaching interfaces for a daemon")?;
        Ok(ExitCode::SUCCESS)
    }
}
