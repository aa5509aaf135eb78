//! What the worker keeps of each VM, and which of them it polls.
//!
//! A VM is polled in each round from the moment on that something happens to its rings until nothing has for
//! a while. One that is not was asked to announce what it does ([`Port::arm`]); so what an idle VM costs is
//! its memory.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use vmlane_worker::{Account, Doorbells, Interval, QUIET, Watch, contained};

use super::backlog::Backlog;
use super::port::Port;
use super::stats::{GuestStats, VsockStats};

/// How often the doorbells of those that are not polled are, while others are busy.
const CHECK: Duration = Duration::from_micros(20);

/// A VM with such a device.
pub struct Vm {
    /// What the log calls its device.
    device: String,
    /// Its rings, while they run.
    pub port: Option<Box<Port>>,
    /// It is out of service: it gets no rings.
    pub shut: bool,
    /// It has had no buffers for longer than a packet may wait.
    pub stalled: bool,
    /// When a packet for it last waited for longer than in its sender's ring.
    pub slow: Option<Instant>,
    /// Its packets that wait.
    pub backlog: Backlog,
    /// What its rings cause is charged to it.
    pub account: Account,
    pub stats: Arc<GuestStats>,
    watch: Watch,
    /// Packets of it when it was last asked whether it is idle.
    packets: u64,
}

impl Vm {
    /// Without rings.
    pub fn new(device: String, account: Account, stats: Arc<GuestStats>) -> Vm {
        let (port, watch) = (None, Watch::new(false, Instant::now()));
        let (slow, backlog, packets) = (None, Backlog::default(), 0);
        Vm { device, port, shut: false, stalled: false, slow, backlog, account, stats, watch, packets }
    }

    /// A fault of ours came while it was served, and has left its rings in an unknown state: they end.
    #[cold]
    pub fn fault(&mut self, stats: &VsockStats) {
        stats.panics.bump(1);
        self.stats.panics.bump(1);
        tracing::error!(
            device = self.device.as_str(),
            "serving a virtio-vsock device panicked; the device is stopped"
        );
        self.end_port();
    }

    /// Ends its rings for good: its driver is notified.
    #[cold]
    pub fn end_port(&mut self) {
        self.backlog.clear();
        let Some(mut port) = self.port.take() else { return };
        let _ = contained(|| port.fail());
        let _ = contained(|| drop(port));
    }

    /// Will it announce what it does, once it is asked to?
    fn announces_all(&self) -> bool {
        self.backlog.is_empty() && self.port.as_deref().is_none_or(Port::announces_all)
    }

    /// Notes whether something has happened to it. True if nothing has for a while.
    fn note_quiet(&mut self, now: Instant) -> bool {
        let packets = self.stats.packets_sent.get().wrapping_add(self.stats.packets_received.get());
        if std::mem::replace(&mut self.packets, packets) != packets {
            self.watch.busy = now;
        }
        self.watch.is_idle(now, QUIET)
    }
}

/// All of them, by CID.
pub struct Vms {
    all: BTreeMap<u32, Vm>,
    /// Those that are polled.
    polled: Vec<u32>,
    doorbells: Arc<Doorbells>,
    check: Interval,
}

impl Vms {
    pub fn new() -> std::io::Result<Vms> {
        let doorbells = Arc::new(Doorbells::new()?);
        let check = Interval::new(CHECK, Instant::now());
        Ok(Vms { all: BTreeMap::new(), polled: Vec::new(), doorbells, check })
    }

    pub fn get(&self, cid: u32) -> Option<&Vm> {
        self.all.get(&cid)
    }

    /// Its rings are not to be changed by that: [`Self::woken`].
    pub fn get_mut(&mut self, cid: u32) -> Option<&mut Vm> {
        self.all.get_mut(&cid)
    }

    /// The same, and it is polled from now on.
    pub fn woken(&mut self, cid: u32) -> Option<&mut Vm> {
        let vm = self.all.get_mut(&cid)?;
        if !vm.watch.polled {
            vm.watch.polled = true;
            vm.watch.busy = Instant::now();
            self.polled.push(cid);
        }
        Some(vm)
    }

    /// A VM's rings, if they run. It is polled from now on.
    pub fn port(&mut self, cid: u32) -> Option<&mut Port> {
        self.woken(cid)?.port.as_deref_mut()
    }

    pub fn insert(&mut self, cid: u32, vm: Vm) {
        self.all.insert(cid, vm);
        self.woken(cid);
    }

    pub fn remove(&mut self, cid: u32) -> Option<Vm> {
        self.polled.retain(|&other| other != cid);
        self.all.remove(&cid)
    }

    pub fn contains(&self, cid: u32) -> bool {
        self.all.contains_key(&cid)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Vm)> {
        self.all.iter().map(|(&cid, vm)| (cid, vm))
    }

    /// Gives a VM its rings.
    pub fn attach(&mut self, cid: u32, mut port: Box<Port>) {
        let doorbells = self.doorbells.clone();
        let Some(vm) = self.woken(cid) else { return };
        // Those before it are gone first: the doorbell may be the same.
        vm.port = None;
        port.announce_to(doorbells, cid, &vm.device);
        vm.port = Some(port);
        vm.stalled = false;
    }

    /// The CIDs of those that are polled.
    pub fn polled(&self) -> &[u32] {
        &self.polled
    }

    /// Does something wait for a receiver?
    pub fn holds_packets(&self) -> bool {
        self.polled.iter().filter_map(|cid| self.all.get(cid)).any(|vm| !vm.backlog.is_empty())
    }

    /// Nothing of any VM waits for `cid` any more, nor anything of its own.
    pub fn forget_waiting(&mut self, cid: u32) {
        self.all.values_mut().for_each(|vm| vm.backlog.forget(cid));
        if let Some(vm) = self.all.get_mut(&cid) {
            vm.backlog.clear();
        }
    }

    /// The rings of those that are polled.
    pub fn polled_ports(&self) -> impl Iterator<Item = &Port> {
        self.polled.iter().filter_map(|cid| self.all.get(cid)?.port.as_deref())
    }

    /// Calls `action` with each VM that is polled.
    pub fn each_polled(&mut self, mut action: impl FnMut(&mut Vm)) {
        for cid in &self.polled {
            if let Some(vm) = self.all.get_mut(cid) {
                action(vm);
            }
        }
    }

    /// Its guest is asked to announce what it does.
    pub fn arm(vm: &mut Vm) {
        vm.watch.armed = true;
        if let Some(port) = &mut vm.port {
            port.arm(true);
        }
    }

    /// A guest that was asked to announce what it does is notified that it need not.
    pub fn disarm(vm: &mut Vm) {
        if vm.watch.take_armed()
            && let Some(port) = &mut vm.port
        {
            port.disarm();
        }
    }

    /// Those whose doorbell rings are polled from now on.
    pub fn poll_doorbells(&mut self, now: Instant) {
        self.check.restart(now);
        let doorbells = self.doorbells.clone();
        doorbells.poll(|number| {
            if let Some(vm) = self.woken(number as u32) {
                // So that it is silenced.
                vm.watch.armed = true;
            }
        });
    }

    /// The same while others are busy: now and then.
    pub fn check_now_and_then(&mut self, now: Instant) {
        if self.polled.len() < self.all.len() && self.check.tick(now) {
            self.poll_doorbells(now);
        }
    }

    /// While others are busy: those are not polled any more to which nothing has happened for a while.
    pub fn leave_quiet(&mut self, now: Instant, arm: impl Fn(&mut Vm)) {
        let mut any = false;
        for cid in &self.polled {
            if let Some(vm) = self.all.get_mut(cid)
                && vm.note_quiet(now)
                && vm.announces_all()
            {
                arm(vm);
                any = true;
            }
        }
        if any {
            fence(Ordering::SeqCst);
            self.leave(|vm| vm.watch.armed && vm.port.as_deref().is_none_or(|port| !port.waits()));
        }
    }

    /// Those for which `may` returns true, and which will announce what they do, are not polled any more.
    pub fn leave(&mut self, may: impl Fn(&Vm) -> bool) {
        let all = &mut self.all;
        self.polled.retain(|cid| {
            let Some(vm) = all.get_mut(cid) else { return false };
            vm.watch.polled = !(may(vm) && vm.announces_all());
            vm.watch.polled
        });
    }

    /// Readable while the doorbell of one rings that is not polled.
    pub fn doorbells(&self) -> BorrowedFd<'_> {
        self.doorbells.as_fd()
    }
}
