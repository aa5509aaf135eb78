//! `vmlane keeper`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use vmlane_daemon::notify::notify;

const EXAMPLES: &str = "Examples:
  vmlane keeper
  vmlane keeper --runtime-dir ./run

The keeper holds sockets, memory files and event descriptors under names; it does nothing else. A daemon that finds no
keeper starts one, and replaces it if it dies. A daemon that is stopped ends its keeper. Under systemd, the keeper is a
service of its own (vmlane-keeper.service), which ends neither with the daemon nor with its service.";

/// Holds the descriptors by which VMs are attached while no daemon runs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directory of the daemon's sockets
    #[arg(long, value_name = "DIR", env = vmlane_sock::RUNTIME_DIR_VARIABLE, default_value_os_t = vmlane_sock::new_runtime_dir())]
    runtime_dir: PathBuf,
    /// The daemon that starts it: the first one that is let in
    #[arg(long, value_name = "PID", hide = true)]
    daemon: Option<i32>,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let path = vmlane_keeper::socket(&self.runtime_dir);
        let ready = || notify("READY=1");
        vmlane_keeper::serve(&self.runtime_dir, self.daemon, ready)
            .with_context(|| path.display().to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}
