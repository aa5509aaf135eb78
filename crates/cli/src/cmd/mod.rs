//! The subcommands; each file owns its flags, its help and its run.

pub mod bench;
pub mod lab;

use std::process::ExitCode;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure throughput and round trips over TCP, vsock and Unix sockets
    Bench(bench::Args),
    /// Boot real VMs on this host, run commands in them, take them down
    Lab(lab::Args),
}

impl Command {
    /// Runs the subcommand. Exit codes: 0 success, 1 the thing failed, 2 usage (clap's own).
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Bench(args) => args.run(),
            Command::Lab(args) => args.run(),
        }
    }
}
