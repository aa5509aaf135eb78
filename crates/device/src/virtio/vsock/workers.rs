//! The workers of all virtio-vsock devices, and which of them serves which VM.
//!
//! VMs of one isolation group can talk, and no others. So a group is with one worker: its packets are copied once, by one
//! thread, and no two groups wait for each other. Were two VMs of one group with two workers, they would still talk: by way of
//! the router, as with VMCI guests, which carries streams and no SOCK_SEQPACKET.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_port::wrap::StreamTap;
use vmlane_vsock::{Cid, Router, Vm};
use vmlane_worker::Heartbeat;

use super::stats::{GuestStats, VsockStats};
use super::views::{ConnectionView, GuestView};
use super::worker::{Settings, VsockWorker};

/// All workers; dropping it stops them.
pub struct VsockWorkers {
    first: Arc<VsockWorker>,
    others: Vec<Arc<VsockWorker>>,
    places: Mutex<Places>,
}

impl VsockWorkers {
    /// Starts `count` threads, one at least. VMCI guests and the host are reached through `router`.
    pub fn start(count: usize, settings: Settings, router: &Arc<Router>) -> std::io::Result<VsockWorkers> {
        let count = count.max(1);
        let start = |number| {
            let worker =
                VsockWorker::start_one_of(number, count, settings, router.vms(), Some(router.clone()));
            worker.map(Arc::new)
        };
        let others = (1..count).map(start).collect::<std::io::Result<_>>()?;
        Ok(VsockWorkers { first: start(0)?, others, places: Mutex::new(Places::new(count)) })
    }

    /// A VM has such a device from here on. Returns the worker that serves it, and what the device counts.
    pub fn add(&self, vm: &Vm) -> (Arc<VsockWorker>, Arc<GuestStats>) {
        let worker = self.at(self.places.lock().place(vm));
        let stats = worker.add(vm.cid);
        (worker.clone(), stats)
    }

    /// Forgets a VM.
    pub fn remove(&self, cid: Cid) {
        let worker = self.places.lock().remove(cid);
        worker.into_iter().for_each(|worker| self.at(worker).remove(cid));
    }

    fn at(&self, worker: usize) -> &Arc<VsockWorker> {
        worker.checked_sub(1).and_then(|at| self.others.get(at)).unwrap_or(&self.first)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<VsockWorker>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The VMs as they are now; those of a worker that does not answer, as they were when it last did.
    pub fn guests(&self) -> Vec<GuestView> {
        self.all().flat_map(|worker| worker.guests().to_vec()).collect()
    }

    /// Likewise, all connections with such a VM at an end; one between two workers is known to both.
    pub fn connections(&self) -> Vec<ConnectionView> {
        self.all().flat_map(|worker| worker.connections().to_vec()).collect()
    }

    /// What each of them has counted.
    pub fn stats(&self) -> impl Iterator<Item = &Arc<VsockStats>> {
        self.all().map(|worker| worker.stats())
    }

    /// The workers' threads by name, and their heartbeats.
    pub fn heartbeats(&self) -> impl Iterator<Item = (&str, &Arc<Heartbeat>)> {
        self.all().map(|worker| (worker.name(), worker.heartbeat()))
    }

    /// Has `tap` look at all packets between guests, until [`Self::remove_tap`]: it says itself which concern it.
    pub fn add_tap(&self, tap: &Arc<dyn StreamTap>) {
        self.all().for_each(|worker| worker.add_tap(tap.clone()));
    }

    /// Ends what [`Self::add_tap`] began: when this returns, no worker uses the tap any more.
    pub fn remove_tap(&self, tap: &Arc<dyn StreamTap>) {
        self.all().for_each(|worker| worker.remove_tap(tap));
    }
}

/// Which VM is with which worker, and in which group.
struct Places {
    workers: usize,
    vms: BTreeMap<Cid, (usize, String)>,
}

impl Places {
    fn new(workers: usize) -> Places {
        Places { workers, vms: BTreeMap::new() }
    }

    /// A VM that is new goes to its group's worker, or, as the first of a group, to the one that has the fewest VMs.
    fn place(&mut self, vm: &Vm) -> usize {
        let before = self.vms.get(&vm.cid).map(|&(worker, _)| worker);
        let of_group = || self.vms.values().find(|(_, group)| *group == vm.group).map(|&(worker, _)| worker);
        let worker = before.or_else(of_group).unwrap_or_else(|| self.idlest());
        self.vms.insert(vm.cid, (worker, vm.group.clone()));
        worker
    }

    fn idlest(&self) -> usize {
        let vms = |worker| self.vms.values().filter(|&&(other, _)| other == worker).count();
        (0..self.workers).min_by_key(|&worker| vms(worker)).unwrap_or(0)
    }

    fn remove(&mut self, cid: Cid) -> Option<usize> {
        self.vms.remove(&cid).map(|(worker, _)| worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_with_one_worker_and_groups_are_spread() {
        let mut places = Places::new(2);
        let order = [(3, "a"), (4, "a"), (5, "b"), (6, "c"), (7, "b"), (8, "a"), (9, "d")];
        let placed = order.map(|(cid, group)| places.place(&Vm::new("vm", cid, group)));
        assert_eq!(placed, [0, 0, 1, 1, 1, 0, 0]);
        assert_eq!(places.place(&Vm::new("vm", 4, "b")), 0, "its rings run there");
        assert_eq!(places.remove(5), Some(1));
        assert_eq!(places.place(&Vm::new("vm", 10, "b")), 0, "with the first VM of its group");
        assert_eq!(places.remove(5), None);
    }
}
