//! `vmlane ovn`: the helper that makes NICs ports of OVN's integration bridge, and how it stands with them.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use vmlane_api::{Client, OvnEntry, OvnReport, call};
use vmlane_config::Config;
use vmlane_config::ovn::interface;
use vmlane_config::trusted::TrustedFiles;
use vmlane_daemon::log;
use vmlane_daemon::uplink::{interface_is_up, set_interface_up};
use vmlane_ovn::{Daemon, Entry, Helper, Interfaces, Settings, Signals};

use super::control::{Show, ovn};
use super::exit_codes::CONFIGURATION;
use super::helper_args::HelperArgs;

const EXAMPLES: &str = "Examples:
  vmlane ovn run
  vmlane ovn list

The helper is the only process of vmlane that opens Open vSwitch's database. It reads the configuration itself, and only if no other
user than root (and its own) can have written it. Under systemd it is vmlane-ovn.service. docs/guide/ovn.md shows how to set it up.";

const RUN: &str = "Needs access to the database, and CAP_NET_ADMIN to set interfaces up. It reads the configuration again when that changes and on SIGHUP. SIGTERM stops the helper; ports stay as they are, and VMs continue. While the daemon or the database is absent, the helper waits for it; when a daemon has been absent for 10 s, its ports are removed from OVN. Exit code 78: the configuration is wrong or cannot be read.";

/// Makes NICs ports of OVN's integration bridge, and shows their state
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Keep Open vSwitch's database up to date until stopped
    Run(Run),
    /// Show NICs that are ports of OVN, and their problems
    #[command(visible_alias = "status")]
    List(Show),
}

#[derive(Debug, clap::Args)]
#[command(after_help = RUN)]
struct Run {
    #[command(flatten)]
    helper: HelperArgs,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Run(run) => run.run(),
            Command::List(show) => show.report(
                |client| client.call(&call::Status {}),
                |status| {
                    let shown = ovn(status);
                    Ok(if shown.is_empty() { "no NIC is a port of OVN's\n".into() } else { shown })
                },
            ),
        }
    }
}

/// The contents of the files, if they have changed.
fn load(files: &mut TrustedFiles) -> Result<Option<Settings>, String> {
    let Some(sources) = files.read_if_changed()? else { return Ok(None) };
    // What is wrong now is not checked again before it has changed.
    files.keep();
    let config = Config::check(&sources).map_err(|error| error.to_string())?;
    let mut entries = Vec::new();
    for vm in &config.vms {
        for (number, nic) in vm.nics.iter().enumerate() {
            let Some(ovn) = &nic.ovn else { continue };
            entries.push(Entry {
                vm: vm.name.clone(),
                nic: format!("nic{number}"),
                interface: interface(&vm.name, number),
                port: ovn.port.clone(),
                mac: nic.mac.to_string(),
                vm_id: vm.domain.clone().unwrap_or_else(|| vm.name.clone()),
                mtu: ovn.mtu,
            });
        }
    }
    Ok(Some(Settings { database: config.ovn.database, bridge: config.ovn.bridge, entries }))
}

impl Run {
    fn run(self) -> anyhow::Result<ExitCode> {
        let (key, filter) = log::choose(self.helper.log, None);
        log::init_helper(key, filter)?;
        let mut files = TrustedFiles::new(&self.helper.config);
        let first = match load(&mut files) {
            Ok(settings) => settings.context("a configuration")?,
            Err(error) => {
                let _ = writeln!(io::stderr(), "vmlane: {error}");
                return Ok(ExitCode::from(CONFIGURATION));
            }
        };
        let signals = Signals::default();
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        for (signal, flag) in [(SIGHUP, &signals.reload), (SIGINT, &signals.stop), (SIGTERM, &signals.stop)] {
            signal_hook::flag::register(signal, flag.clone()).context("signals")?;
        }
        let load = move |asked: bool| {
            if asked {
                files.forget();
            }
            load(&mut files)
        };
        let owner = self.helper.runtime_dir.display().to_string();
        let daemon = Asked { runtime_dir: self.helper.runtime_dir, client: None };
        let helper = Helper::new(first, Box::new(load), owner, (Box::new(daemon), Box::new(OfHost)), signals);
        helper.run().context("waiting for the database")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The daemon, at its control socket.
struct Asked {
    runtime_dir: PathBuf,
    client: Option<Client>,
}

impl Daemon for Asked {
    fn ask(&mut self, reports: Vec<OvnReport>) -> Result<Vec<OvnEntry>, String> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(Client::connect(&self.runtime_dir).map_err(|error| error.to_string())?),
        };
        let answer = client.call(&call::Ovn { reports }).map_err(|error| error.to_string());
        if answer.is_err() {
            self.client = None;
        }
        Ok(answer?.entries)
    }
}

/// The host's interfaces.
struct OfHost;

impl Interfaces for OfHost {
    fn is_up(&self, name: &str) -> Option<bool> {
        interface_is_up(name)
    }

    fn set_up(&self, name: &str, up: bool) -> io::Result<()> {
        set_interface_up(name, up)
    }
}
