//! What is served at this moment: the configuration in force, a served VM for each of its VMs, uplinks and
//! mirrors.
//!
//! One lock is around all of it. It orders the operator's requests; no session and no worker ever takes it.

use std::collections::HashMap;

use vmlane_api::{ErrorCode, Failure};
use vmlane_device::vmci::HypervisorCheckpoint;
use vmlane_mem::MemoryMap;
use vmlane_state::Found;

use crate::host::Host;
use crate::mirrors::Mirrors;
use crate::ovn::OvnPorts;
use crate::serve::VmError;
use crate::uplink::{UplinkError, Uplinks};
use crate::vm::ServedVm;
use crate::wires::Wires;
use vmlane_config::Config;
use vmlane_config::files::Files;

/// See the module's text.
pub struct Served {
    /// What a previous daemon left; empty once the VMs are served.
    found: Found,
    /// Of the configuration.
    pub files: Files,
    /// In force.
    pub config: Config,
    pub vms: Vec<ServedVm>,
    pub uplinks: Uplinks,
    pub mirrors: Mirrors,
    pub wires: Wires,
    pub ovn: OvnPorts,
    is_stopped: bool,
}

impl Served {
    /// Attaches uplinks and mirrors of `config`, which is in `files`. No VM is served yet.
    pub fn new(
        host: &Host,
        (files, config): (Files, Config),
        mut uplinks: Uplinks,
        mut found: Found,
    ) -> Result<Served, UplinkError> {
        uplinks.resume(host.store.clone(), &mut found)?;
        let (_, refused) = uplinks.change(&host.switch, &config.uplinks);
        refused.into_iter().next().map_or(Ok(()), Err)?;
        uplinks.follow_links(&host.switch);
        uplinks.set_teams(&host.switch, &config.teams);
        let mut mirrors = Mirrors::default();
        mirrors.change(&host.switch, &config).1.iter().for_each(|why| tracing::error!("{why}"));
        let wires = Wires::resume(host.store.clone(), &config, &mut found);
        let (vms, ovn) = (Vec::new(), OvnPorts::default());
        Ok(Served { found, files, config, vms, uplinks, mirrors, wires, ovn, is_stopped: false })
    }

    /// Serves the VMs. Resumes what a previous daemon left, and ends what is left of VMs that are no longer
    /// configured.
    pub fn begin(&mut self, host: &Host, checkpoint: HypervisorCheckpoint) -> Result<(), VmError> {
        let mut maps = HashMap::new();
        let config = self.config.clone();
        for vm in &config.vms {
            maps.extend(self.offer(host, &config, &vm.name)?);
        }
        self.wires.apply(&host.switch, &config).iter().for_each(|why| tracing::error!("{why}"));
        // All devices know their guests' memory: first the streams between them can continue, then the
        // guests.
        host.hypervisor.resume(checkpoint, maps);
        host.router.end_restored();
        self.vms.iter().for_each(ServedVm::go);
        host.vsock_workers.begin();
        for (name, file) in std::mem::take(&mut self.found).0 {
            tracing::info!(name, "left by a previous daemon and not in the configuration any more");
            if name.ends_with("/listen") {
                crate::runtime::remove_socket(&file);
            }
            host.store.remove(&name);
        }
        Ok(())
    }

    /// Returns the memory of the VM's guest by its context id, if a previous daemon served it.
    pub fn offer(
        &mut self,
        host: &Host,
        config: &Config,
        name: &str,
    ) -> Result<Option<(u32, MemoryMap)>, VmError> {
        let Some(vm) = config.vm(name) else { return Ok(None) };
        let (served, map) = ServedVm::offer(host, config, vm, &mut self.found)?;
        tracing::info!(vm = name, cid = served.cid(), nics = served.nics.len(), "serving");
        self.vms.push(served);
        Ok(map)
    }

    pub fn withdraw(&mut self, host: &Host, name: &str) {
        if let Some(index) = self.vms.iter().position(|vm| vm.name() == name) {
            self.vms.remove(index).withdraw(host);
            tracing::info!(vm = name, "no longer served");
        }
    }

    /// Ends every session, removes every VM's socket, and offers no VM any more.
    pub fn stop(&mut self, host: &Host) {
        for vm in std::mem::take(&mut self.vms) {
            vm.withdraw(host);
        }
        self.uplinks.end();
        self.is_stopped = true;
        let _ = std::fs::remove_dir(host.paths.vms());
        self.files.added.tidy(host.paths.runtime());
    }

    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// The VM `name`.
    pub fn vm(&self, name: &str) -> Result<&ServedVm, Failure> {
        let vm = self.vms.iter().find(|vm| vm.name() == name);
        vm.ok_or_else(|| unknown(name, &self.config))
    }

    /// The same, to be changed.
    pub fn vm_mut(&mut self, name: &str) -> Result<&mut ServedVm, Failure> {
        let vm = self.vms.iter_mut().find(|vm| vm.name() == name);
        vm.ok_or_else(|| unknown(name, &self.config))
    }

    pub fn attached(&self, name: &str) -> bool {
        self.vm(name).is_ok_and(ServedVm::attached)
    }

    pub fn has_session(&self, name: &str) -> bool {
        self.vm(name).is_ok_and(ServedVm::has_session)
    }
}

fn unknown(name: &str, config: &Config) -> Failure {
    let message = format!("vm {name:?} is not served; known are {}", config.names());
    Failure { code: ErrorCode::UnknownVm, message }
}
