//! One configured VM while it is served: its place in the table of VMs, its devices, their sockets.

use std::path::Path;

use vmlane_config::{Config, VmConfig, Vsock};
use vmlane_mem::MemoryMap;
use vmlane_state::Found;
use vmlane_switch::Switch;
use vmlane_transport::SessionStats;

use crate::extras::Target;
use crate::faults::FaultRecord;
use crate::host::Host;
use crate::nic::ServedNic;
use crate::serve::VmError;
use crate::vsock::{ServedDevice, ServedVsock, record};

/// A VM on offer. [`ServedVm::withdraw`] takes it back.
pub struct ServedVm {
    name: String,
    /// Its CID, if it is in the table of VMs.
    cid: Option<u32>,
    group: String,
    vsock: ServedVsock,
    pub nics: Vec<ServedNic>,
    /// Its PCI functions are over vhost-user.
    pub uml_pci: bool,
    pub record: FaultRecord,
    /// Its devices are out of service; their sockets are answered.
    pub quarantined: bool,
}

impl ServedVm {
    /// Makes a VM known, to all that its devices are connected with, and opens its sockets.
    /// Also returns the memory that a previous daemon's VMCI device had, by context id.
    pub fn offer(
        host: &Host,
        config: &Config,
        vm: &VmConfig,
        found: &mut Found,
    ) -> Result<(ServedVm, Option<(u32, MemoryMap)>), VmError> {
        let cid = (vm.vsock != Vsock::None).then_some(vm.cid);
        if cid.is_some() {
            let added = host.router.vms().add(record(config, vm));
            added.map_err(|cause| VmError::Add { name: vm.name.clone(), cause })?;
        }
        let mut served = ServedVm {
            name: vm.name.clone(),
            cid,
            group: vm.group.clone(),
            vsock: ServedVsock::None,
            nics: Vec::new(),
            uml_pci: vm.uml_pci,
            record: FaultRecord::default(),
            quarantined: false,
        };
        match served.fill(host, config, vm, found) {
            Ok(map) => {
                served.set_owner(vm);
                served.record = FaultRecord::after(served.faults(&host.switch));
                Ok((served, map))
            }
            Err(error) => {
                served.withdraw(host);
                Err(error)
            }
        }
    }

    fn fill(
        &mut self,
        host: &Host,
        config: &Config,
        vm: &VmConfig,
        found: &mut Found,
    ) -> Result<Option<(u32, MemoryMap)>, VmError> {
        let (vsock, known) = ServedVsock::offer(host, config, vm, found)?;
        self.vsock = vsock;
        for nic in vm.nics.iter().enumerate() {
            self.nics.push(ServedNic::offer(host, config, vm, nic, found)?);
        }
        Ok(known)
    }

    /// Who may connect to its sockets from now on. Their access control lists are for `grants.rs`.
    fn set_owner(&self, vm: &VmConfig) {
        if let Some(device) = self.vsock.device() {
            device.server.set_owner(vm.owner);
        }
        self.nics.iter().for_each(|nic| nic.set_owner(vm.owner));
    }

    /// VMMs that a previous daemon served are served from now on.
    pub fn go(&self) {
        self.device().into_iter().for_each(|device| device.server.go());
        self.nics.iter().for_each(ServedNic::go);
    }

    /// Ends the sessions, removes the sockets and their directory, forgets the VM.
    pub fn withdraw(self, host: &Host) {
        self.vsock.withdraw(host, &self.name);
        self.cid.into_iter().for_each(|cid| host.router.vms().remove(cid));
        // The last one may be a NIC that could not be offered. Each by its whole name: a VM may be called
        // `web.nicX`.
        let nics = 0..=self.nics.len();
        self.nics.into_iter().for_each(|nic| nic.withdraw(&host.switch));
        nics.for_each(|number| host.store.remove_all(&format!("{}.nic{number}/", self.name)));
        // Stays if another process put something else there.
        let _ = std::fs::remove_dir(host.paths.vm(&self.name));
    }

    /// What changes without a guest's seeing it.
    pub fn update(&mut self, host: &Host, config: &Config, vm: &VmConfig) {
        host.router.vms().update(record(config, vm));
        self.set_owner(vm);
        self.vsock.update(host, config, vm);
        for (served, nic) in self.nics.iter_mut().zip(vm.nics.iter().enumerate()) {
            served.update(&host.switch, config, vm, nic);
        }
    }

    /// Bytes of guest memory that each device may map from now on.
    pub fn limit_memory(&self, bytes: u64) {
        self.device().iter().for_each(|vsock| vsock.stats.memory.set_limit(bytes));
        self.nics.iter().for_each(|nic| nic.limit_memory(bytes));
    }

    /// How long sessions are held without a daemon has changed.
    pub fn set_hold(&self, host: &Host, config: &Config) {
        self.vsock.set_hold(host, config, &self.name);
    }

    /// Ends the sessions of VMMs that have cut their guest's memory short.
    pub fn check_memory(&self) {
        self.device().iter().for_each(|vsock| vsock.server.check_memory());
        self.nics.iter().for_each(ServedNic::check_memory);
    }

    /// Contained faults of its devices so far, in their sessions and in the switch's worker.
    pub fn faults(&self, switch: &Switch) -> u64 {
        self.vsock.faults() + self.nics.iter().map(|nic| nic.faults(switch)).sum::<u64>()
    }

    /// What of it can go wrong on request.
    pub fn target(&self, host: &Host) -> Target<'_> {
        let streams = self.cid().and_then(|cid| host.hypervisor.stream_owner(cid));
        Target { name: &self.name, streams, virtio: self.vsock.virtio() }
    }

    /// When its counters were 0, in seconds since 1970: those that began last, if a previous daemon's could
    /// not be continued.
    pub fn since(&self) -> Option<u64> {
        self.vsock.since().into_iter().chain(self.nics.iter().map(ServedNic::since)).max()
    }

    /// Takes its devices out of service, or back into it. Waits for the workers.
    pub fn set_quarantined(&mut self, host: &Host, on: bool) {
        self.vsock.set_quarantined(host, on);
        self.nics.iter().for_each(|nic| nic.set_quarantined(&host.switch, on));
        self.quarantined = on;
    }

    /// A VMM is connected to one of its devices, or has made its hybrid socket.
    pub fn attached(&self) -> bool {
        self.has_session() || self.has_hybrid_socket()
    }

    /// A VMM is connected to one of its devices: it would lose that for good. With a hybrid socket it loses
    /// connections, and can make others.
    pub fn has_session(&self) -> bool {
        self.device().is_some_and(|vsock| vsock.server.connected())
            || self.nics.iter().any(ServedNic::attached)
    }

    /// The process that is connected as its VMM. If its devices are connected by several, none speaks for the
    /// VM.
    pub fn vmm_pid(&self) -> Option<u32> {
        let vsock = self.device().map(|vsock| vsock.server.peer_pid());
        let nics = self.nics.iter().map(ServedNic::vmm_pid);
        let mut pids = vsock.into_iter().chain(nics).flatten();
        let first = pids.next()?;
        pids.all(|pid| pid == first).then_some(first)
    }

    /// See [`vmlane_transport::Server::turned_away`].
    pub fn refused_vmm_pid(&self) -> Option<u32> {
        let vsock = self.device().and_then(|device| device.server.turned_away());
        vsock.or_else(|| self.nics.iter().find_map(ServedNic::refused_vmm_pid))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn group(&self) -> &str {
        &self.group
    }

    pub fn cid(&self) -> Option<u32> {
        self.cid
    }

    /// The kind of its device for sockets, as the configuration names it.
    pub fn vsock_kind(&self) -> &'static str {
        self.vsock.name()
    }

    /// See [`ServedVsock::state`].
    pub fn vsock_state(&self, host: &Host, ready: bool) -> &'static str {
        self.vsock.state(host, &self.name, ready)
    }

    fn device(&self) -> Option<&ServedDevice> {
        self.vsock.device()
    }

    /// See [`ServedVsock::socket`].
    pub fn socket(&self) -> Option<&Path> {
        self.vsock.socket()
    }

    /// See [`ServedVsock::has_hybrid_socket`].
    pub fn has_hybrid_socket(&self) -> bool {
        self.vsock.has_hybrid_socket()
    }

    /// Counters of that device's connection.
    pub fn stats(&self) -> Option<&SessionStats> {
        self.device().map(|vsock| &*vsock.stats)
    }
}
