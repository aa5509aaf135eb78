//! `vmlane debug`: things that tests do to a running daemon.

use std::process::ExitCode;

use clap::Subcommand;

use super::control::Where;

const EXAMPLES: &str = "Examples:
  vmlane debug panic web

Needs fault_injection = true in the table [daemon] of the configuration.";

/// Provokes faults, for tests
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a VM's device panic at its next register access; only that VM may notice
    #[command(after_help = EXAMPLES)]
    Panic {
        /// Name of the VM
        vm: String,
        #[command(flatten)]
        place: Where,
    },
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Panic { vm, place } => place.connect()?.debug_panic(&vm)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
