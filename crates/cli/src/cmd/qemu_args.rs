//! `vmlane qemu-args`: how to attach a configured VM. Needs the configuration, no running daemon.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use serde::Serialize;
use vmlane_daemon::config::{self, Config};
use vmlane_daemon::paths::Paths;
use vmlane_daemon::qemu;

use super::control::json;

const EXAMPLES: &str = r#"Examples:
  vmlane qemu-args web
  vmlane qemu-args web --config ./vmlane.toml --runtime-dir /tmp/vmlane --mem 2048
  eval "qemu-system-x86_64 -machine q35 $(vmlane qemu-args web) web.qcow2"
  qemu-system-x86_64 -machine q35 $(vmlane qemu-args web --words) web.qcow2
  vmlane qemu-args web --json | jq -r '.args[]'

The words are quoted for a shell, so a script must `eval` them; --words leaves the quotes away, for a
bare $(...), and works as long as no path has spaces. The memory size goes to -m and to the memory
backend alike: leave your own -m away. QEMU merges the -machine option with yours."#;

/// Prints QEMU's arguments for a VM of the configuration (QEMU 10.1 or later).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the VM, as in the configuration
    vm: String,
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = config::DEFAULT_PATH)]
    config: PathBuf,
    /// Runtime directory of the daemon that will serve the VM
    #[arg(long, value_name = "DIR", default_value = vmlane_api::RUNTIME_DIR)]
    runtime_dir: PathBuf,
    /// Memory of the guest
    #[arg(long, value_name = "MiB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    mem: u64,
    /// Print a JSON object; its key "args" is the list of arguments
    #[arg(long, conflicts_with = "words")]
    json: bool,
    /// Print plain words separated by spaces, for a bare $(...)
    #[arg(long)]
    words: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    vm: &'a str,
    /// Of the VMCI or virtio-vsock device.
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<PathBuf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nics: Vec<PathBuf>,
    args: &'a [String],
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let config = Config::load(&self.config)?;
        let Some(vm) = config.vm(&self.vm) else {
            bail!("VM {:?} is not in {}; known are {}", self.vm, self.config.display(), config.names());
        };
        let paths = Paths::new(&self.runtime_dir)?;
        let arguments = qemu::arguments(&paths, vm, self.mem)?;
        let mut out = std::io::stdout().lock();
        if self.json {
            let nics = (0..vm.nics.len()).map(|number| paths.nic(&vm.name, number));
            let report = Report {
                vm: &self.vm,
                socket: match (vm.vmci, vm.virtio_vsock) {
                    (true, _) => Some(paths.vmci(&vm.name)?),
                    (_, true) => Some(paths.vsock(&vm.name)?),
                    _ => None,
                },
                nics: nics.collect::<Result<_, _>>()?,
                args: &arguments,
            };
            write!(out, "{}", json(&report)?)?;
        } else if self.words {
            if let Some(word) = arguments.iter().find(|word| word.contains([' ', '\t', '\n', '*', '?', '[']))
            {
                bail!("--words: {word} cannot be told apart unquoted; use eval without --words, or --json");
            }
            writeln!(out, "{}", arguments.join(" "))?;
        } else {
            // For eyes, a line an option; for programs one line, which every reader of shell words takes.
            let separator = if out.is_terminal() { " \\\n" } else { " " };
            let options: Vec<String> = arguments
                .chunks(2)
                .map(|option| {
                    option.iter().map(|word| qemu::shell_quoted(word)).collect::<Vec<_>>().join(" ")
                })
                .collect();
            writeln!(out, "{}", options.join(separator))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
