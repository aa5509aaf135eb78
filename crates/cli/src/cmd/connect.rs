//! `vmlane connect`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use vmlane_sock::{Host, plain};

use super::pipe::pipe;

const EXAMPLES: &str = "Examples:
  echo hello | vmlane connect 3 5000
  vmlane connect 3 5000 < disk.img
  ssh -o ProxyCommand='vmlane connect 3 22' root@vm

At the end of standard input, the command stops sending; it exits when the VM has stopped sending, too.";

/// Connects standard input and output to a port of a VM
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The VM's CID
    cid: u32,
    /// Where a program in the VM listens
    port: u32,
    /// Seconds to wait for the VM's answer
    #[arg(short = 'w', long, value_name = "SECONDS", default_value_t = 2.0)]
    timeout: f64,
    /// The daemon's directory
    #[arg(long, value_name = "DIR", env = vmlane_sock::RUNTIME_DIR_VARIABLE, default_value_os_t = vmlane_sock::runtime_dir())]
    runtime_dir: PathBuf,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let timeout = Duration::try_from_secs_f64(self.timeout).context("--timeout")?;
        let host = Host::at(&self.runtime_dir);
        let (stream, _) = plain::connect(&host, self.cid, self.port, timeout)
            .with_context(|| format!("connecting to port {} of CID {}", self.port, self.cid))?;
        pipe(&stream)?;
        Ok(ExitCode::SUCCESS)
    }
}
