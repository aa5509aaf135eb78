//! What the commands that print how a VMM attaches a VM have in common. None needs a running daemon.

use std::path::PathBuf;

use anyhow::bail;
use serde::Serialize;
use vmlane_config::added::{self, AddedVms};
use vmlane_config::paths::Paths;
use vmlane_config::{Config, Sources, VmConfig};
use vmlane_daemon::owners::owners;

/// Which configuration.
#[derive(Debug, clap::Args)]
pub struct ConfigPlace {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = vmlane_config::DEFAULT_PATH)]
    pub config: PathBuf,
    /// Runtime directory of the daemon that will serve the VM
    #[arg(long, value_name = "DIR", env = vmlane_sock::RUNTIME_DIR_VARIABLE, default_value_os_t = vmlane_sock::runtime_dir())]
    pub runtime_dir: PathBuf,
    /// State directory of that daemon, if it was started with one
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

impl ConfigPlace {
    /// The configuration with the VMs that were added at run time, and why these cannot be read.
    pub fn config(&self) -> anyhow::Result<(Config, String)> {
        let state = added::state_dir(&self.runtime_dir, self.state_dir.as_deref());
        let sources = Sources::read(&self.config)?;
        let owners = owners(&sources, &self.runtime_dir, &state);
        let (vms, unseen) = match AddedVms::find(&state, &owners) {
            Ok(added) => (added.map(|added| added.read()).transpose()?.unwrap_or_default(), String::new()),
            Err(error) => (Vec::new(), format!("; VMs that were added at run time cannot be read: {error}")),
        };
        Ok((Config::check(&sources.with(vms))?, unseen))
    }
}

/// Which VM, of which configuration.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// Name of the VM, as in the configuration
    pub vm: String,
    #[command(flatten)]
    pub place: ConfigPlace,
    /// Memory of the guest
    #[arg(long, value_name = "MiB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub mem: u64,
}

impl Target {
    /// The VM's configuration, and where its sockets will be.
    pub fn find(&self) -> anyhow::Result<(VmConfig, Paths)> {
        self.find_in().map(|(_, vm, paths)| (vm, paths))
    }

    /// Likewise, with the configuration that the VM is in.
    pub fn find_in(&self) -> anyhow::Result<(Config, VmConfig, Paths)> {
        let (config, unseen) = self.place.config()?;
        let Some(vm) = config.vm(&self.vm) else {
            let (file, known) = (self.place.config.display(), config.names());
            bail!("VM {:?} is not in {file}; known are {known}{unseen}", self.vm);
        };
        let vm = vm.clone();
        Ok((config, vm, Paths::new(&self.place.runtime_dir)?))
    }
}

/// What `--json` prints: the VM, its sockets, and the answer under a name of its own.
#[derive(Serialize)]
pub struct Report<'a, T> {
    pub vm: &'a str,
    /// Of the VMCI or virtio-vsock device, or the VMM's hybrid one.
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<PathBuf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nics: Vec<PathBuf>,
    #[serde(flatten)]
    pub answer: T,
}

impl<'a, T: Serialize> Report<'a, T> {
    pub fn new(vm: &'a VmConfig, paths: &Paths, answer: T) -> anyhow::Result<Report<'a, T>> {
        let nics = (0..vm.nics.len()).map(|number| paths.nic(&vm.name, number));
        Ok(Report {
            vm: &vm.name,
            socket: vm.vsock_socket(paths)?,
            nics: nics.collect::<Result<_, _>>()?,
            answer,
        })
    }
}

/// A list of arguments.
#[derive(Serialize)]
pub struct Arguments<'a> {
    pub args: &'a [String],
}
