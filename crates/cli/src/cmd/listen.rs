//! `vmlane listen`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use vmlane_sock::{ANY, Host, plain};

use super::pipe::pipe;

const EXAMPLES: &str = "Examples:
  vmlane listen 5000 > received      in the VM: socat -u FILE:data VSOCK-CONNECT:2:5000
  vmlane listen --keep 5000
  vmlane listen any                  prints the port to standard error

VMs connect to CID 2. Ports below 1024 need a rule with `privileged` ([[host]] in the configuration).";

/// Accepts a connection from a VM and joins it to standard input and output
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The port, or "any"
    #[arg(value_parser = port)]
    port: u32,
    /// Accept further connections, one after the other
    #[arg(short, long)]
    keep: bool,
    /// The daemon's directory
    #[arg(long, value_name = "DIR", env = vmlane_sock::RUNTIME_DIR_VARIABLE, default_value_os_t = vmlane_sock::runtime_dir())]
    runtime_dir: PathBuf,
}

fn port(text: &str) -> Result<u32, String> {
    match text {
        "any" => Ok(ANY),
        _ => text
            .parse()
            .map_err(|_| format!("{text:?} is not a port: give a number up to {}, or \"any\"", ANY - 1)),
    }
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let listener = plain::Listener::bind(&Host::at(&self.runtime_dir), self.port)
            .with_context(|| format!("listening at port {}", self.port))?;
        if self.port == ANY {
            eprintln!("listening at {}", listener.local_addr());
        }
        loop {
            let (stream, _) = listener.accept().context("waiting for a connection")?;
            pipe(&stream)?;
            if !self.keep {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}
