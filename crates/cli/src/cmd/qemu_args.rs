//! `vmlane qemu-args`: how to attach a configured VM. Needs the configuration, no running daemon.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use vmlane_attach::qemu::{self, Accel, Machine, Qemu, Version};
use vmlane_config::VmConfig;

use super::control::json;
use super::emulator::{version_here, version_named, version_of};
use super::target::{Arguments, Report, Target};

const EXAMPLES: &str = r#"Examples:
  vmlane qemu-args web
  vmlane qemu-args web --config ./vmlane.toml --runtime-dir ./run --mem 2048
  eval "qemu-system-x86_64 -machine q35 $(vmlane qemu-args web) web.qcow2"
  qemu-system-x86_64 -machine q35 $(vmlane qemu-args web --words) web.qcow2
  vmlane qemu-args web --json | jq -r '.args[]'
  eval "qemu-system-x86_64 -machine q35 -accel tcg $(vmlane qemu-args web --qemu 7.2 --accel tcg) web.qcow2"
  eval "qemu-system-x86_64 -machine microvm $(vmlane qemu-args fn1 --machine microvm --qemu 7.2) ..."

The arguments are quoted for a shell, so a script must `eval` them; --words omits the quotes, for a
bare $(...), and works as long as no path has spaces. The output contains -m, which must match the size of the memory
backend: do not pass your own -m. QEMU merges the -machine option with yours.

The arguments depend on QEMU's version, which is that of the QEMU in PATH. For another one, name its version (--qemu) or the program (--emulator).

VMCI and VMXNET3 devices are vfio-user devices: they need QEMU >= 10.1 and a machine with PCI. Virtio devices
work with QEMU 7.2 and newer, and on microvm, too. NICs with a slot, and those after the tenth, need the machine q35, and
its slots 0x12 to 0x18.

QEMU must run as root, as the daemon's user, or as the VM's owner (owner = "USER[:GROUP]" in the
configuration): to other users its sockets are closed."#;

/// Prints QEMU's arguments for a VM of the configuration
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// The machine that QEMU is started with: q35, pc or microvm
    #[arg(long, value_name = "MACHINE", default_value = "q35")]
    machine: Machine,
    /// The accelerator that QEMU is started with: kvm or tcg; before QEMU 10.1, virtio NICs need other
    /// interrupts under tcg [default: kvm if this user may open /dev/kvm]
    #[arg(long, value_name = "ACCEL")]
    accel: Option<Accel>,
    /// The version of QEMU, on which the options depend [default: that of
    /// qemu-system-x86_64 in PATH]
    #[arg(long, value_name = "VERSION")]
    qemu: Option<Version>,
    /// The QEMU program, whose version is used
    #[arg(long, value_name = "PATH", conflicts_with = "qemu")]
    emulator: Option<PathBuf>,
    /// Print arguments for a QEMU that waits for a migration (-incoming), without devices that are
    /// hot-plugged later
    #[arg(long)]
    incoming: bool,
    /// Print a JSON object; its key "args" is the list of arguments
    #[arg(long, conflicts_with = "words")]
    json: bool,
    /// Print plain words separated by spaces, for a bare $(...)
    #[arg(long)]
    words: bool,
    #[arg(skip)]
    of_this_host: bool,
}

impl Args {
    /// For `vmlane attach`: VMLANE_QEMU is considered, and a line states what was found.
    pub fn for_this_host(self) -> Args {
        Args { of_this_host: true, ..self }
    }

    /// The version, and the program of this host that was asked for it.
    fn version(&self) -> anyhow::Result<(Version, Option<String>)> {
        match (self.qemu, &self.emulator) {
            (Some(version), _) => return Ok((version, None)),
            (None, Some(emulator)) => return Ok((version_of(emulator)?, None)),
            (None, None) => {}
        }
        let named = if self.of_this_host { version_named()? } else { None };
        if let Some((program, version)) = named.map_or_else(version_here, |named| Ok(Some(named)))? {
            return Ok((version, Some(program)));
        }
        let version = Qemu::default().version;
        eprintln!(
            "vmlane: note: there is no qemu-system-x86_64 in PATH, so this is for QEMU {version} and newer; name the version \
             with --qemu, or the program with --emulator"
        );
        Ok((version, None))
    }

    /// States on what the arguments depend and was not named.
    fn announce(&self, vm: &VmConfig, qemu: Qemu, program: Option<&str>) {
        let version = qemu.version;
        if self.of_this_host {
            let program = program
                .map(|program| format!("QEMU {version} ({program}; --qemu or --emulator names another)"));
            let accel = match qemu.accel {
                Accel::Kvm => "-accel kvm (/dev/kvm can be opened; --accel names another)",
                Accel::Tcg => "-accel tcg (/dev/kvm cannot be opened; --accel names another)",
            };
            let accel = self.accel.is_none().then(|| accel.to_owned());
            let found: Vec<String> = program.into_iter().chain(accel).collect();
            if !found.is_empty() {
                eprintln!("vmlane: note: this is for {}", found.join(" and "));
            }
        } else if self.accel.is_none() && qemu.accel == Accel::Kvm && qemu.minds_accel(vm) {
            eprintln!(
                "vmlane: note: this is for -accel kvm, as /dev/kvm is there; under -accel tcg, QEMU {version} needs the arguments of --accel tcg"
            );
        }
    }

    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (vm, paths) = self.target.find()?;
        qemu::check_sockets(&vm)?;
        let (version, program) = self.version()?;
        let qemu = Qemu {
            version,
            machine: self.machine,
            accel: self.accel.unwrap_or_else(Accel::of_this_host),
            incoming: self.incoming,
        };
        let arguments = qemu::arguments(&paths, &vm, self.target.mem, qemu)?;
        self.announce(&vm, qemu, program.as_deref());
        let mut out = std::io::stdout().lock();
        if self.json {
            write!(out, "{}", json(&Report::new(&vm, &paths, Arguments { args: &arguments })?)?)?;
        } else if self.words {
            if let Some(word) = arguments.iter().find(|word| word.contains([' ', '\t', '\n', '*', '?', '[']))
            {
                bail!(
                    "--words: {word} cannot be distinguished unquoted; use eval without --words, or --json"
                );
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
