//! `vmlane keeper`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use vmlane_daemon::keeper;

const EXAMPLES: &str = "Examples:
  vmlane keeper
  vmlane keeper --runtime-dir /tmp/vmlane

A daemon that finds no keeper starts one, and another when it dies; a daemon that is stopped ends it.
It holds sockets, memory files and event descriptors by name and looks at nothing else. Under systemd
with FileDescriptorStoreMax= set, systemd does this instead.";

/// Holds what VMs are attached by while no daemon runs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directory of the daemon's sockets
    #[arg(long, value_name = "DIR", default_value = vmlane_api::RUNTIME_DIR)]
    runtime_dir: PathBuf,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let path = keeper::socket(&self.runtime_dir);
        keeper::serve(&path).with_context(|| path.display().to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}
