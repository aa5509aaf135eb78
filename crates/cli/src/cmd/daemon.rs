//! `vmlane daemon`.

use std::path::PathBuf;
use std::process::ExitCode;

use vmlane_daemon::config;
use vmlane_daemon::run::{Options, run};

const EXAMPLES: &str = "Examples:
  vmlane daemon
  vmlane daemon --config ./vmlane.toml --runtime-dir /tmp/vmlane --log debug
  vmlane daemon --replace        (an upgrade under running VMs)

A configuration for two VMs that may talk to each other:
  [[vm]]
  name = \"web\"
  cid = 3
  [[vm]]
  name = \"db\"
  cid = 4

Signals: SIGTERM and SIGINT stop it, SIGHUP reloads the configuration (as `vmlane reload` does).
It is ready when `vmlane status` answers, and tells systemd so (Type=notify).
It may be killed and started again: VMs continue (docs/survival.md). Stopping it ends their sessions.
It gives up its rights before it serves the first VM: as root it becomes the user of [daemon] user (default vmlane, or nobody), gives up all
capabilities, sees only its runtime directory and its configuration (Landlock), and makes only the system calls
that each of its threads needs (seccomp). A thread that tries more ends the daemon with exit code 71 and a line
that names thread and call. Uplinks are attached before that: new ones need a restart.
VMs are attached with what `vmlane qemu-args VM` prints.";

/// Serves the configured VMs until stopped
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = config::DEFAULT_PATH)]
    config: PathBuf,
    /// Directory for the sockets
    #[arg(long, value_name = "DIR", default_value = vmlane_api::RUNTIME_DIR)]
    runtime_dir: PathBuf,
    /// What to log: error, warn, info, debug, trace, or per part as in "warn,vmlane_device=debug"
    /// [default: VMLANE_LOG, then the configuration's, then info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Take the place of the daemon that runs: VMs stay attached and continue
    #[arg(long)]
    replace: bool,
    /// Keep root, capabilities, files and system calls that it does not need
    #[arg(long, overrides_with = "confine")]
    no_confine: bool,
    /// Give them up, as is the default
    #[arg(long)]
    confine: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Args { config, runtime_dir, log, replace, no_confine, confine: _ } = self;
        run(Options { config, runtime_dir, log, replace, confine: !no_confine })?;
        Ok(ExitCode::SUCCESS)
    }
}
