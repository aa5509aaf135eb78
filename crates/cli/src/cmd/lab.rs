//! `vmlane lab`.

use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::bail!("vmlane lab is not built yet")
    }
}
