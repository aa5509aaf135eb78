//! The workers of all virtio-vsock devices, and which of them serves which VM.
//!
//! VMs of one isolation group can talk, and no others. So a group is with one worker: its packets are copied
//! once, by one thread, and no two groups wait for each other. A VM that is given another group while it runs
//! moves to that group's worker; its connections are reset, as those with its old group are anyway.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_port::wrap::StreamTap;
use vmlane_vsock::{Cid, Vm, VmTable};
use vmlane_worker::{CpuSet, Heartbeat};

use super::stats::{GuestStats, VsockStats};
use super::views::{ConnectionView, GuestView};
use super::worker::{Relay, Settings, VsockWorker};

/// All workers; dropping it stops them.
pub struct VsockWorkers {
    first: Arc<VsockWorker>,
    others: Vec<Arc<VsockWorker>>,
    places: Mutex<Places>,
}

impl VsockWorkers {
    /// Starts a thread for each of `relays`, one at least. They have the same router.
    pub fn start(settings: Settings, relays: Vec<Relay>, vms: &VmTable) -> std::io::Result<VsockWorkers> {
        VsockWorkers::start_on(settings, relays, vms, &[])
    }

    /// The same, each on the CPUs `on`, by its number; one that is not in the list runs where the caller may.
    pub fn start_on(
        settings: Settings,
        relays: Vec<Relay>,
        vms: &VmTable,
        on: &[CpuSet],
    ) -> std::io::Result<VsockWorkers> {
        let count = relays.len().max(1);
        let mut relays = relays.into_iter();
        let start = |number, relay| {
            let place = (number, count, on.get(number));
            VsockWorker::start_one_of(place, settings, vms, relay).map(Arc::new)
        };
        let first = start(0, relays.next())?;
        let others = relays.enumerate().map(|(at, relay)| start(at + 1, Some(relay)));
        let others = others.collect::<std::io::Result<_>>()?;
        Ok(VsockWorkers { first, others, places: Mutex::new(Places::new(count)) })
    }

    /// All VMs of a previous daemon are served: one that does not come back soon counts as absent.
    pub fn begin(&self) {
        self.all().for_each(|worker| worker.begin());
    }

    /// A VM has such a device from here on, or may have another group. Returns who serves it, and what the
    /// device counts: in `stats` if it is new.
    pub fn add(&self, vm: &Vm, stats: Arc<GuestStats>) -> (Home, Arc<GuestStats>) {
        let mut places = self.places.lock();
        let worker = self.at(places.place(vm));
        let home = places.homes.entry(vm.cid).or_insert_with(|| worker.clone().into());
        let stats = home.move_to(vm.cid, worker, stats);
        (home.clone(), stats)
    }

    /// Forgets a VM.
    pub fn remove(&self, cid: Cid) {
        let mut places = self.places.lock();
        places.homes.remove(&cid);
        let worker = places.remove(cid);
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

    /// The logs of their transactions, to be held for the next daemon before any VM is served.
    pub fn logs(&self) -> impl ExactSizeIterator<Item = &OwnedFd> {
        let all: Vec<_> = self.all().map(|worker| worker.log()).collect();
        all.into_iter()
    }

    /// Has `tap` examine all packets between guests, until [`Self::remove_tap`]: it decides itself which
    /// concern it.
    pub fn add_tap(&self, tap: &Arc<dyn StreamTap>) {
        self.all().for_each(|worker| worker.add_tap(tap.clone()));
    }

    /// Ends what [`Self::add_tap`] began: when this returns, no worker uses the tap any more.
    pub fn remove_tap(&self, tap: &Arc<dyn StreamTap>) {
        self.all().for_each(|worker| worker.remove_tap(tap));
    }
}

/// The worker that serves a VM, at any time.
#[derive(Clone)]
pub struct Home(Arc<Mutex<Arc<VsockWorker>>>);

impl From<Arc<VsockWorker>> for Home {
    fn from(worker: Arc<VsockWorker>) -> Home {
        Home(Arc::new(Mutex::new(worker)))
    }
}

impl Home {
    /// Does something with the worker. The VM moves to no other one meanwhile.
    pub fn with<T>(&self, action: impl FnOnce(&Arc<VsockWorker>) -> T) -> T {
        action(&self.0.lock())
    }

    /// The VM is served by `worker` from here on, with its rings where they are. Returns what its device
    /// counts there.
    fn move_to(&self, cid: Cid, worker: &Arc<VsockWorker>, stats: Arc<GuestStats>) -> Arc<GuestStats> {
        let mut home = self.0.lock();
        if Arc::ptr_eq(&home, worker) {
            return worker.add_counted(cid, stats);
        }
        let before = std::mem::replace(&mut *home, worker.clone());
        worker.take_over(cid, &before, stats)
    }
}

/// Which VM is with which worker, and in which group.
struct Places {
    workers: usize,
    vms: BTreeMap<Cid, (usize, String)>,
    homes: BTreeMap<Cid, Home>,
}

impl Places {
    fn new(workers: usize) -> Places {
        Places { workers, vms: BTreeMap::new(), homes: BTreeMap::new() }
    }

    /// A VM goes to its group's worker, or, as the first of a group, to the one that has the fewest VMs if it
    /// is new.
    fn place(&mut self, vm: &Vm) -> usize {
        let others = self.vms.iter().filter(|(cid, _)| **cid != vm.cid);
        let of_group = others.map(|(_, place)| place).find(|(_, group)| *group == vm.group);
        let before = || self.vms.get(&vm.cid).map(|&(worker, _)| worker);
        let worker = of_group.map(|&(worker, _)| worker).or_else(before);
        let worker = worker.unwrap_or_else(|| self.idlest());
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
        assert_eq!(places.place(&Vm::new("vm", 9, "e")), 0, "alone in its new group, it stays");
        assert_eq!(places.place(&Vm::new("vm", 4, "b")), 1, "it moves to its new group");
        assert_eq!(places.remove(5), Some(1));
        assert_eq!(places.place(&Vm::new("vm", 10, "b")), 1, "with the others of its group");
        assert_eq!(places.remove(5), None);
    }
}
