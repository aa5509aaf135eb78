//! `vmlane import`: configurations of other programs as one of ours.

mod vhost_device_vsock;

use std::process::ExitCode;

use clap::Subcommand;

const EXAMPLES: &str = "Examples:
  vmlane import vhost-device-vsock --config vsock.yaml > vmlane.toml
  vmlane import vhost-device-vsock --help";

/// Turns the configuration of another program into one of vmlane's.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// Take the command line, or the YAML, of vhost-device-vsock
    VhostDeviceVsock(vhost_device_vsock::Args),
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.from {
            From::VhostDeviceVsock(args) => args.run(),
        }
    }
}
