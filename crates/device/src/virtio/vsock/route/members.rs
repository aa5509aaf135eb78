//! The VMs that a worker serves: they come, get rings and lose them, leave; and what an operator may see of
//! them.

use std::sync::Arc;
use std::time::Instant;

use vmlane_wire::virtio_vsock::{Header, op};

use super::Routes;
use crate::virtio::vsock::bridge::Bridge;
use crate::virtio::vsock::kept::Kept;
use crate::virtio::vsock::own_packets::reply;
use crate::virtio::vsock::port::Port;
use crate::virtio::vsock::stats::GuestStats;
use crate::virtio::vsock::views::{ConnectionView, GuestView};
use crate::virtio::vsock::vms::Vm;

/// What a VM takes along to another worker.
pub struct Moved {
    /// If they run.
    pub rings: Option<Box<Port>>,
    pub stats: Arc<GuestStats>,
}

impl Routes {
    /// A VM has such a device from here on, which counts in `stats` if it is new. Returns where it counts.
    pub fn add(&mut self, cid: u32, stats: Arc<GuestStats>) -> Arc<GuestStats> {
        if let Some(bridge) = &mut self.bridge {
            bridge.add(cid);
        }
        if let Some(vm) = self.vms.woken(cid) {
            vm.stalled = false;
            return vm.stats.clone();
        }
        let device = match self.known.load().get(cid) {
            Some(vm) => format!("{}/vsock", vm.name),
            None => format!("CID {cid}"),
        };
        self.vms.insert(cid, Vm::new(device, self.meter.open(cid), stats.clone()));
        stats
    }

    pub fn remove(&mut self, cid: u32) {
        self.reset_all(cid);
        self.transaction.commit();
        self.table.forget_vm(cid);
        if let Some(vm) = self.vms.remove(cid) {
            self.meter.close(vm.account);
        }
        if let Some(bridge) = &mut self.bridge {
            bridge.forget(cid);
        }
    }

    /// Forgets a VM that another worker serves from here on. Its connections are over, for itself, too.
    pub fn hand_over(&mut self, cid: u32) -> Option<Moved> {
        let vm = self.vms.get_mut(cid)?;
        let (mut rings, stats) = (vm.port.take(), vm.stats.clone());
        if let Some(rings) = &mut rings {
            self.reset_guest(cid, rings);
            rings.leave_doorbells();
        }
        self.remove(cid);
        Some(Moved { rings, stats })
    }

    /// Sends a guest an RST for each of its connections; it gets as many as replies may wait
    /// ([`Port::reply`]).
    fn reset_guest(&self, cid: u32, port: &mut Port) {
        for known in self.table.of(cid) {
            let from = (known.peer, known.peer_port);
            reply(port, Header::new(from, (cid, known.port), known.kind, op::RST), &self.taps);
        }
        self.bridge.iter().for_each(|bridge| bridge.reset_guest(cid, port));
    }

    pub fn attach(&mut self, cid: u32, mut port: Box<Port>) {
        if self.vms.get(cid).is_some_and(|vm| vm.shut) {
            return port.fail();
        }
        port.set_transaction(&self.transaction);
        let is_new = self.bind(cid, &port.shares.kept);
        if std::mem::take(&mut port.fresh) {
            self.reset_all(cid);
            port.forget_last_driver();
        } else if is_new {
            self.table.lose(cid);
        }
        if let Some(vm) = self.vms.get(cid) {
            port.count_in(vm.stats.clone());
        }
        let inlet = port.inlet().clone();
        self.vms.attach(cid, port);
        if let Some(bridge) = &mut self.bridge {
            bridge.attached(cid, &inlet);
        }
    }

    /// What the device of a VM has to do outlives the daemon in this file from here on. What a previous
    /// daemon left there comes back. True if it had another one.
    pub fn bind(&mut self, cid: u32, kept: &Arc<Kept>) -> bool {
        let is_new = self.table.bind(cid, kept);
        if is_new {
            self.bridge.iter_mut().for_each(|bridge| bridge.bind(cid, kept, &self.transaction));
            let vm = self.vms.get_mut(cid);
            vm.into_iter().for_each(|vm| vm.backlog.bind(kept, &self.transaction));
        }
        is_new
    }

    /// Some time after the daemon's start: connections end whose other end did not come back.
    pub(super) fn end_one_sided(&mut self, now: Instant) {
        if self.restored || self.is_early(now) {
            return;
        }
        self.restored = true;
        for (cid, known) in self.table.one_sided() {
            let (from, to) = ((known.peer, known.peer_port), (cid, known.port));
            let reset = Header::new(from, to, known.kind, op::RST);
            self.table.forget(&reset);
            self.vms.port(cid).into_iter().for_each(|port| reply(port, reset, &self.taps));
        }
    }

    pub fn detach(&mut self, cid: u32) {
        self.bridge.iter_mut().for_each(|bridge| bridge.detached(cid));
        if let Some(vm) = self.vms.get_mut(cid) {
            vm.port = None;
        }
    }

    /// Takes a VM out of service, or lets it have rings again: those that its driver sets up from then on.
    pub fn set_shut(&mut self, cid: u32, shut: bool) {
        if shut {
            self.reset_all(cid);
        }
        let Some(vm) = self.vms.get_mut(cid) else { return };
        vm.shut = shut;
        if shut {
            vm.end_port();
        }
    }

    /// A fault of ours came while a VM was served: its rings end, and no other's.
    #[cold]
    pub fn fault(&mut self, cid: u32) {
        self.bridge.iter_mut().for_each(|bridge| bridge.detached(cid));
        match self.vms.get_mut(cid) {
            Some(vm) => vm.fault(&self.stats),
            None => self.stats.panics.bump(1),
        }
    }

    /// A VM knows of no connection any more: its peers are notified.
    pub fn reset_all(&mut self, cid: u32) {
        if let Some(bridge) = &mut self.bridge {
            bridge.drop_all(cid);
        }
        self.vms.forget_waiting(cid);
        for known in self.table.clear(cid) {
            if let Some(peer) = self.vms.port(known.peer) {
                let from = (cid, known.port);
                let reset = Header::new(from, (known.peer, known.peer_port), known.kind, op::RST);
                reply(peer, reset, &self.taps);
            }
        }
    }

    /// What an operator may see of the VMs.
    pub fn views(&mut self) -> Vec<GuestView> {
        let known = self.known.load();
        let view = |(cid, vm): (u32, &Vm)| {
            let [opened, all] = self.bridge.as_ref().map_or([0, 0], |bridge| bridge.count(cid));
            GuestView {
                cid,
                ready: vm.port.is_some(),
                opened: self.table.opened(cid) + opened,
                connections: self.table.count(cid) + all,
                counted: self.table.opened(cid) + all,
                limit: known.get(cid).map_or(0, |vm| vm.connections),
                stats: vm.stats.clone(),
            }
        };
        self.vms.iter().map(view).collect()
    }

    /// Their connections, each once.
    pub fn connections(&self) -> Vec<ConnectionView> {
        self.table.views().chain(self.bridge.iter().flat_map(Bridge::views)).collect()
    }
}
