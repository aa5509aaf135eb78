//! The `vmlane-labdaemon` binary: all of `vmlane`, with a daemon that has more.

use std::process::ExitCode;

fn main() -> ExitCode {
    vmlane_cli::main(vmlane_labdaemon::extras())
}
