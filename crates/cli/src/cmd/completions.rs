//! `vmlane completions`.

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use clap_complete::Shell;

const EXAMPLES: &str = "Examples:
  vmlane completions bash > /usr/share/bash-completion/completions/vmlane
  vmlane completions zsh > /usr/share/zsh/vendor-completions/_vmlane
  vmlane completions fish > /usr/share/fish/vendor_completions.d/vmlane.fish";

/// Prints a script that completes vmlane's command line in a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The shell
    shell: Shell,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::command(), "vmlane", &mut script);
        io::Write::write_all(&mut io::stdout(), &script).context("writing the script")?;
        Ok(ExitCode::SUCCESS)
    }
}
