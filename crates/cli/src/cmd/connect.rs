//! `vmlane connect`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use vmlane_sock::{Host, plain};

use super::pipe::pipe;
use super::vm_peer;

const EXAMPLES: &str = "Examples:
  echo hello | vmlane connect web 5000
  vmlane connect 3 5000 < disk.img
  ssh -o ProxyCommand='vmlane connect web 22' root@vm

For a name, the user needs access to the control socket ([[control]] in the configuration); for a CID, not.

At the end of standard input, the command stops sending; it exits when the VM has stopped sending as well.";

/// Connects standard input and output to a port of a VM
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The VM's name or CID
    vm: String,
    /// The port on which a program in the VM listens
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
        let cid = vm_peer::cid_of(&self.vm, &self.runtime_dir)?;
        let connected = plain::connect(&host, cid, self.port, timeout);
        let (stream, _) = connected.map_err(|error| {
            let why = vm_peer::explain(&error, cid, self.port, &self.runtime_dir);
            anyhow!("connecting to port {} of {}: {why}", self.port, self.vm)
        })?;
        pipe(&stream)?;
        Ok(ExitCode::SUCCESS)
    }
}
