//! The `vmlane` binary: one file a subcommand under `cmd/`, this file only dispatches.
// Doc comments are the text of --help, where brackets mean what they mean in usage lines.
#![allow(rustdoc::broken_intra_doc_links)]

mod cmd;

use std::process::ExitCode;

use clap::Parser;

/// Two VMs on one Linux host talk at memory speed, with the drivers they already have.
#[derive(Debug, Parser)]
#[command(name = "vmlane", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: cmd::Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("vmlane: {error:#}");
            ExitCode::from(1)
        }
    }
}
