//! `vmlane listen`.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use rustix::io::Errno;
use vmlane_sock::{ANY, Host, plain};

use super::pipe::pipe;
use super::vm_peer;

const EXAMPLES: &str = "Examples:
  vmlane listen 5000 > received      in the VM: socat -u FILE:data VSOCK-CONNECT:2:5000
  vmlane listen --keep 5000
  vmlane listen --from web 5000      other VMs are refused
  vmlane listen any                  prints the port to standard error

VMs connect to CID 2. Ports below 1024 need a rule with `privileged` ([[host]] in the configuration).";

/// Accepts a connection from a VM and joins it to standard input and output
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The port, or "any"
    #[arg(value_parser = port)]
    port: u32,
    /// Accept connections of this VM only: its name or CID
    #[arg(long, value_name = "VM")]
    from: Option<String>,
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

fn why(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::ADDRINUSE) => {
            format!("another program listens there; use another port, or \"any\" ({error})")
        }
        Some(Errno::ACCESS) => format!(
            "this user may not; a [[host]] rule of the configuration may allow it, with `privileged` for ports below 1024 ({error})"
        ),
        _ => error.to_string(),
    }
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let from = self.from.as_deref().map(|vm| vm_peer::cid_of(vm, &self.runtime_dir)).transpose()?;
        let listener = plain::Listener::bind(&Host::at(&self.runtime_dir), self.port)
            .map_err(|error| anyhow!("listening at port {}: {}", self.port, why(&error)))?;
        if self.port == ANY {
            eprintln!("listening at {}", listener.local_addr());
        }
        loop {
            let (stream, peer) = listener.accept().context("waiting for a connection")?;
            if from.is_some_and(|cid| cid != peer.cid) {
                eprintln!("vmlane: {peer} was turned away");
                continue;
            }
            pipe(&stream)?;
            if !self.keep {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}
