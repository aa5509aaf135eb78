//! One configured VM while it is served: its place in the hypervisor, its devices, their sockets.

use std::path::Path;

use vmlane_mem::MemoryMap;
use vmlane_port::wrap::Fault;
use vmlane_state::Found;
use vmlane_switch::Switch;
use vmlane_transport::SessionStats;

use crate::config::{Config, VmConfig};
use crate::faults::FaultRecord;
use crate::hybrid::ServedHybrid;
use crate::nic::ServedNic;
use crate::serve::{Host, VmError};
use crate::vsock::{ServedVsock, spec};

/// A VM on offer. [`ServedVm::withdraw`] takes it back.
pub struct ServedVm {
    name: String,
    group: String,
    vmci: Option<ServedVsock>,
    virtio: Option<ServedVsock>,
    hybrid: Option<ServedHybrid>,
    pub nics: Vec<ServedNic>,
    /// Its PCI functions are over vhost-user.
    pub uml_pci: bool,
    pub record: FaultRecord,
    /// Its devices are out of service; their sockets are answered.
    pub quarantined: bool,
}

impl ServedVm {
    /// Makes a VM known to the hypervisor and the switch and opens its sockets.
    /// Also returns the memory that a previous daemon's VMCI device had, by context id.
    pub fn offer(
        host: &Host<'_>,
        config: &Config,
        vm: &VmConfig,
        found: &mut Found,
    ) -> Result<(ServedVm, Option<(u32, MemoryMap)>), VmError> {
        let mut served = ServedVm {
            name: vm.name.clone(),
            group: vm.group.clone(),
            vmci: None,
            virtio: None,
            hybrid: None,
            nics: Vec::new(),
            uml_pci: vm.uml_pci,
            record: FaultRecord::default(),
            quarantined: false,
        };
        match served.fill(host, config, vm, found) {
            Ok(map) => {
                served.set_owner(host, vm);
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
        host: &Host<'_>,
        config: &Config,
        vm: &VmConfig,
        found: &mut Found,
    ) -> Result<Option<(u32, MemoryMap)>, VmError> {
        let mut known = None;
        if vm.vmci {
            let (vmci, map) = ServedVsock::offer(host, config, vm, found)?;
            known = map.map(|map| (vmci.cid, map));
            self.vmci = Some(vmci);
        }
        if vm.virtio_vsock {
            self.virtio = Some(ServedVsock::offer_virtio(host, config, vm)?);
        }
        if vm.hybrid.is_some() {
            self.hybrid = Some(ServedHybrid::offer(host, config, vm)?);
        }
        for number in 0..vm.nics.len() {
            self.nics.push(ServedNic::offer(host, config, vm, number, found)?);
        }
        Ok(known)
    }

    /// Who may connect to its sockets from now on. Their access control lists are for `grants.rs`.
    fn set_owner(&self, host: &Host<'_>, vm: &VmConfig) {
        for vsock in self.vmci.iter().chain(&self.virtio) {
            vsock.server.set_owner(vm.owner);
            host.sockets.set_owner(vsock.cid, vm.owner);
        }
        self.nics.iter().for_each(|nic| nic.set_owner(vm.owner));
    }

    /// VMMs that a previous daemon served are served from now on.
    pub fn go(&self) {
        self.vmci.iter().for_each(|vmci| vmci.server.go());
        self.nics.iter().for_each(ServedNic::go);
    }

    /// Ends the sessions, removes the sockets and their directory, forgets the VM.
    pub fn withdraw(self, host: &Host<'_>) {
        if let Some(vmci) = self.vmci {
            vmci.server.stop();
            host.sockets.remove_guest(vmci.cid);
            host.hypervisor.remove_vm(vmci.cid);
            host.store.remove_all(&format!("{}.vmci/", self.name));
        }
        if let Some(virtio) = self.virtio {
            virtio.server.stop();
            host.sockets.remove_guest(virtio.cid);
            host.router.clear_endpoint(virtio.cid);
            host.vsock_workers.remove(virtio.cid);
            host.hypervisor.remove_vm(virtio.cid);
        }
        if let Some(hybrid) = self.hybrid {
            hybrid.withdraw(host, &self.name);
        }
        // The last one may be a NIC that could not be offered. Each by its whole name: a VM may be called `web.nicX`.
        let nics = 0..=self.nics.len();
        self.nics.into_iter().for_each(|nic| nic.withdraw(host.switch));
        nics.for_each(|number| host.store.remove_all(&format!("{}.nic{number}/", self.name)));
        // Stays if another process put something else there.
        let _ = std::fs::remove_dir(host.paths.vm(&self.name));
    }

    /// What changes without a guest's seeing it.
    pub fn update(&mut self, host: &Host<'_>, config: &Config, vm: &VmConfig) {
        self.set_owner(host, vm);
        let spec = spec(config, vm);
        if vm.virtio_vsock {
            host.vsock_workers.add(spec.vm.clone());
        }
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.update(host, vm, spec.vm.clone());
        }
        if vm.takes_connections() {
            host.hypervisor.update_vm(spec);
        }
        for (number, nic) in self.nics.iter_mut().enumerate() {
            nic.update(host.switch, config, vm, number);
        }
    }

    /// Bytes of guest memory that each device may map from now on.
    pub fn limit_memory(&self, bytes: u64) {
        self.vsock().iter().for_each(|vsock| vsock.stats.memory.set_limit(bytes));
        self.nics.iter().for_each(|nic| nic.limit_memory(bytes));
    }

    /// Ends the sessions of VMMs that have cut their guest's memory short.
    pub fn check_memory(&self) {
        self.vsock().iter().for_each(|vsock| vsock.server.check_memory());
        self.nics.iter().for_each(ServedNic::check_memory);
    }

    /// Contained faults of its devices so far, in their sessions and in the switch's worker.
    pub fn faults(&self, switch: &Switch) -> u64 {
        let vsock = self.vsock().map_or(0, |vsock| vsock.stats.panics());
        vsock + self.nics.iter().map(|nic| nic.faults(switch)).sum::<u64>()
    }

    /// Makes the next register access of its VMCI device go wrong. False if it has none that can.
    pub fn inject(&self, fault: Fault) -> bool {
        let trigger = self.vmci.as_ref().and_then(|vmci| vmci.trigger.as_ref());
        trigger.inspect(|trigger| trigger.arm(fault)).is_some()
    }

    /// Takes its devices out of service, or back into it. Waits for the workers.
    pub fn set_quarantined(&mut self, host: &Host<'_>, on: bool) {
        if let Some(vmci) = &self.vmci {
            host.hypervisor.set_quarantined(vmci.cid, on);
        }
        self.nics.iter().for_each(|nic| nic.set_quarantined(host.switch, on));
        self.quarantined = on;
    }

    /// A VMM is connected to one of its devices, or has made its hybrid socket.
    pub fn attached(&self) -> bool {
        self.has_session() || self.hybrid.as_ref().is_some_and(ServedHybrid::is_there)
    }

    /// A VMM is connected to one of its devices: it would lose that for good. With a hybrid socket it loses connections, and can make
    /// others.
    pub fn has_session(&self) -> bool {
        self.vsock().is_some_and(|vsock| vsock.server.connected())
            || self.nics.iter().any(ServedNic::attached)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn group(&self) -> &str {
        &self.group
    }

    pub fn cid(&self) -> Option<u32> {
        self.vsock().map(|vsock| vsock.cid).or(self.hybrid.as_ref().map(|hybrid| hybrid.cid))
    }

    /// The kind of its device for sockets, as the configuration names it.
    pub fn vsock_kind(&self) -> &'static str {
        match (&self.vmci, &self.virtio) {
            (Some(_), _) => "vmci",
            (_, Some(_)) => "virtio",
            _ if self.hybrid.is_some() => "hybrid",
            _ => "none",
        }
    }

    fn vsock(&self) -> Option<&ServedVsock> {
        self.vmci.as_ref().or(self.virtio.as_ref())
    }

    /// The socket of the VMCI or virtio-vsock device, or the hybrid one.
    pub fn socket(&self) -> Option<&Path> {
        let hybrid = self.hybrid.as_ref().map(|hybrid| &*hybrid.path);
        self.vsock().map(|vsock| vsock.server.path()).or(hybrid)
    }

    /// Its hybrid socket is there, which tells all that is known of its guest.
    pub fn has_hybrid_socket(&self) -> bool {
        self.hybrid.as_ref().is_some_and(ServedHybrid::is_there)
    }

    /// Counters of that device's connection.
    pub fn stats(&self) -> Option<&SessionStats> {
        self.vsock().map(|vsock| &*vsock.stats)
    }
}
