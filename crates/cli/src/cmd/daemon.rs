//! `vmlane daemon`.

use std::path::PathBuf;
use std::process::ExitCode;

use vmlane_config::{LogFormat, Sources};
use vmlane_daemon::extras::Extras;
use vmlane_daemon::log::print_error;
use vmlane_daemon::run::{Options, run};
use vmlane_keeper::takeover;

use super::exit_codes::CONFIGURATION;

const EXAMPLES: &str = "Examples:
  vmlane daemon
  vmlane daemon --config ./vmlane.toml --runtime-dir ./run --log debug
  vmlane daemon --log-format json
  vmlane daemon --replace        (an upgrade under running VMs)
  vmlane daemon --can-replace    (would that work? nothing is changed)

A configuration for two VMs that may talk to each other:
  [[vm]]
  name = \"web\"
  cid = 3
  [[vm]]
  name = \"db\"
  cid = 4

The daemon is ready when `vmlane status` answers; it also notifies systemd (Type=notify). Attach VMs with the arguments
that `vmlane attach VM --for qemu` prints.

--can-replace compares the layout of the state that the running daemon keeps with the one that this program knows; if no
daemon runs, of the state that its keeper holds. If they differ, a daemon of this program could not take over: exit
code 1, as when the layout cannot be read.

SIGTERM and SIGINT stop the daemon and end the sessions of its VMs. SIGHUP reloads the configuration, as `vmlane reload`
does. After a daemon was killed, start it again: its VMs continue (docs/survival.md).

Before it serves the first VM, the daemon gives up the rights it does not need: as root it becomes the user of [daemon]
user (default: vmlane, else an unused number of its own), drops all capabilities, sees only its runtime directory, its configuration and the VMs that were added at run time
(Landlock), and allows each thread only the system calls it needs (seccomp). A thread that makes another one ends the
daemon with exit code 71 and a line that names the thread and the call. Uplinks that a reload adds (TAP interfaces,
network cards by AF_XDP) are attached by a helper that keeps the rights to do so; it reads the configuration itself, which
must belong to root.

Exit codes: 0 after a stop; 1 if something failed; 2 for a wrong command line; 71 see above; 78 for a configuration that
is wrong or cannot be read, so that a restart does not help before it is changed.";

/// Serves the configured VMs until stopped
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = vmlane_config::DEFAULT_PATH)]
    config: PathBuf,
    /// Directory for the sockets
    #[arg(long, value_name = "DIR", env = vmlane_sock::RUNTIME_DIR_VARIABLE, default_value_os_t = vmlane_sock::new_runtime_dir())]
    runtime_dir: PathBuf,
    /// Directory in which VMs that are added at run time are kept [default: /var/lib/vmlane; for another
    /// runtime directory than the usual one, and for users other than root where there is no /var/lib/vmlane:
    /// the runtime directory]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// What to log: error, warn, info, debug or trace, or different levels as in "warn,vmlane_device=debug"
    /// [default: VMLANE_LOG, then the configuration's, then info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Format of the log's lines [default: the configuration's log_format, then text]
    #[arg(long, value_name = "FORMAT", value_parser = log_format)]
    log_format: Option<LogFormat>,
    /// Replace the running daemon: VMs stay attached and continue
    #[arg(long)]
    replace: bool,
    /// Check whether this program could replace the running daemon, and exit: 0 if it could, or if none runs
    #[arg(long, conflicts_with = "replace")]
    can_replace: bool,
    /// Wait for a keeper that is a service of its own, under the daemon's user; start none
    #[arg(long)]
    external_keeper: bool,
    /// Keep all rights: root, capabilities, files, system calls
    #[arg(long, overrides_with = "confine")]
    no_confine: bool,
    /// Give up the rights that are not needed (the default)
    #[arg(long)]
    confine: bool,
}

impl Args {
    pub fn run(self, extras: Extras) -> anyhow::Result<ExitCode> {
        let Args {
            config: file,
            runtime_dir,
            state_dir,
            log,
            log_format,
            replace,
            can_replace,
            external_keeper,
            no_confine,
            confine: _,
        } = self;
        if can_replace {
            let user = Sources::read(&file).ok().and_then(|sources| sources.daemon_user());
            println!("{}", takeover::can_replace(user.as_deref(), &runtime_dir)?);
            return Ok(ExitCode::SUCCESS);
        }
        let options = Options {
            config: file,
            runtime_dir,
            state_dir,
            log,
            log_format,
            replace,
            confine: !no_confine,
            external_keeper,
        };
        match run(options, extras) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) if error.is_configuration() => {
                print_error(&error.to_string());
                Ok(ExitCode::from(CONFIGURATION))
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn log_format(name: &str) -> Result<LogFormat, String> {
    LogFormat::of_name(name).ok_or_else(|| "use text or json".into())
}
