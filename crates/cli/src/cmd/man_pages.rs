//! `vmlane man-pages`: for packages (`make install`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

/// Writes a man page for each command
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A directory that exists
    directory: PathBuf,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        clap_mangen::generate_to(crate::command(), &self.directory)
            .with_context(|| format!("writing man pages into {}", self.directory.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
