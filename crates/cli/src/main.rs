//! The `vmlane` binary.

use std::process::ExitCode;

use vmlane_daemon::extras::Extras;

fn main() -> ExitCode {
    vmlane_cli::main(Extras::default())
}
