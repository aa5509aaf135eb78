//! What the worker keeps of each VM, and which of them it looks at.
//!
//! A VM is awake from the moment on that something happens to its rings until nothing has for a while. Only those that
//! are awake are looked at in a round. One that dozes was asked to announce what it does ([`Port::arm`]); so what an idle
//! VM costs is its memory.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use vmlane_worker::{Account, Doorbells, contained};

use super::backlog::Backlog;
use super::port::Port;
use super::stats::{GuestStats, VsockStats};

/// How long nothing happens to a VM until it dozes while others are busy. Longer than a worker spins by default: where all
/// are idle it sleeps instead.
const DOZE: Duration = Duration::from_millis(1);
/// How long after a look the doorbells of those that doze are looked at again while others are busy.
const LOOK: Duration = Duration::from_micros(20);

/// A VM with such a device.
pub struct Vm {
    cid: u32,
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
}

/// Whether a VM is looked at.
struct Watch {
    awake: bool,
    /// It was asked to announce what it does, and not yet told that it need not.
    armed: bool,
    /// Packets of it when it was looked at last, and when there was one more than before.
    packets: u64,
    busy: Instant,
}

impl Vm {
    /// Without rings.
    pub fn new(cid: u32, account: Account, stats: Arc<GuestStats>) -> Vm {
        let watch = Watch { awake: false, armed: false, packets: 0, busy: Instant::now() };
        let (port, slow, backlog) = (None, None, Backlog::default());
        Vm { cid, port, shut: false, stalled: false, slow, backlog, account, stats, watch }
    }

    /// A fault of ours came while it was served, and has left its rings in an unknown state: they end.
    #[cold]
    pub fn fault(&mut self, stats: &VsockStats) {
        stats.panics.bump(1);
        self.stats.panics.bump(1);
        tracing::error!(cid = self.cid, "serving a virtio-vsock device panicked; the device is stopped");
        self.end_port();
    }

    /// Ends its rings for good: its driver is told.
    #[cold]
    pub fn end_port(&mut self) {
        self.backlog = Backlog::default();
        let Some(mut port) = self.port.take() else { return };
        let _ = contained(|| port.fail());
        let _ = contained(|| drop(port));
    }

    /// Will it announce what it does, once it is asked to?
    fn may_doze(&self) -> bool {
        self.backlog.is_empty() && self.port.as_deref().is_none_or(Port::may_doze)
    }

    /// Has nothing happened to it for a while?
    fn is_idle(&mut self, now: Instant) -> bool {
        let packets = self.stats.packets_sent.get().wrapping_add(self.stats.packets_received.get());
        if std::mem::replace(&mut self.watch.packets, packets) != packets {
            self.watch.busy = now;
        }
        now.saturating_duration_since(self.watch.busy) >= DOZE
    }
}

/// All of them, by CID.
pub struct Vms {
    all: BTreeMap<u32, Vm>,
    /// Those that are looked at.
    awake: Vec<u32>,
    doorbells: Arc<Doorbells>,
    looked: Instant,
}

impl Vms {
    pub fn new() -> std::io::Result<Vms> {
        let doorbells = Arc::new(Doorbells::new()?);
        Ok(Vms { all: BTreeMap::new(), awake: Vec::new(), doorbells, looked: Instant::now() })
    }

    pub fn get(&self, cid: u32) -> Option<&Vm> {
        self.all.get(&cid)
    }

    /// Its rings are not to be changed by that: [`Self::woken`].
    pub fn get_mut(&mut self, cid: u32) -> Option<&mut Vm> {
        self.all.get_mut(&cid)
    }

    /// The same, and it is looked at from now on.
    pub fn woken(&mut self, cid: u32) -> Option<&mut Vm> {
        let vm = self.all.get_mut(&cid)?;
        if !vm.watch.awake {
            vm.watch.awake = true;
            vm.watch.busy = Instant::now();
            self.awake.push(cid);
        }
        Some(vm)
    }

    /// A VM's rings, if they run. It is looked at from now on.
    pub fn port(&mut self, cid: u32) -> Option<&mut Port> {
        self.woken(cid)?.port.as_deref_mut()
    }

    pub fn insert(&mut self, cid: u32, vm: Vm) {
        self.all.insert(cid, vm);
        self.woken(cid);
    }

    pub fn remove(&mut self, cid: u32) -> Option<Vm> {
        self.awake.retain(|&other| other != cid);
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
        port.announce_to(doorbells, cid);
        vm.port = Some(port);
        vm.stalled = false;
    }

    /// The CIDs of those that are awake.
    pub fn awake(&self) -> &[u32] {
        &self.awake
    }

    /// Does something wait for a receiver?
    pub fn holds_packets(&self) -> bool {
        self.awake.iter().filter_map(|cid| self.all.get(cid)).any(|vm| !vm.backlog.is_empty())
    }

    /// Nothing of any VM waits for `cid` any more, nor anything of its own.
    pub fn forget_waiting(&mut self, cid: u32) {
        self.all.values_mut().for_each(|vm| vm.backlog.forget(cid));
        if let Some(vm) = self.all.get_mut(&cid) {
            vm.backlog = Backlog::default();
        }
    }

    /// The rings of those that are awake.
    pub fn awake_ports(&self) -> impl Iterator<Item = &Port> {
        self.awake.iter().filter_map(|cid| self.all.get(cid)?.port.as_deref())
    }

    /// Calls `action` with each VM that is awake.
    pub fn each_awake(&mut self, mut action: impl FnMut(&mut Vm)) {
        for cid in &self.awake {
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

    /// A guest that was asked to announce what it does is told that it need not.
    pub fn disarm(vm: &mut Vm) {
        if std::mem::take(&mut vm.watch.armed)
            && let Some(port) = &mut vm.port
        {
            port.disarm();
        }
    }

    /// Those whose doorbell rings are awake from now on.
    pub fn look_at_doorbells(&mut self, now: Instant) {
        self.looked = now;
        let doorbells = self.doorbells.clone();
        doorbells.look(|number| {
            if let Some(vm) = self.woken(number as u32) {
                // So that it is silenced.
                vm.watch.armed = true;
            }
        });
    }

    /// The same while others are busy: now and then.
    pub fn look_now_and_then(&mut self, now: Instant) {
        if self.awake.len() < self.all.len() && now.saturating_duration_since(self.looked) >= LOOK {
            self.look_at_doorbells(now);
        }
    }

    /// All were armed, and none of them has anything to do: those that will announce it doze.
    pub fn doze_all(&mut self) {
        self.doze(|_| true);
    }

    /// While others are busy: those doze to which nothing has happened for a while.
    pub fn doze_idle(&mut self, now: Instant, arm: impl Fn(&mut Vm)) {
        let mut any = false;
        for cid in &self.awake {
            if let Some(vm) = self.all.get_mut(cid)
                && vm.is_idle(now)
                && vm.may_doze()
            {
                arm(vm);
                any = true;
            }
        }
        if any {
            fence(Ordering::SeqCst);
            self.doze(|vm| vm.watch.armed && vm.port.as_deref().is_none_or(|port| !port.waits()));
        }
    }

    fn doze(&mut self, may: impl Fn(&Vm) -> bool) {
        let all = &mut self.all;
        self.awake.retain(|cid| {
            let Some(vm) = all.get_mut(cid) else { return false };
            vm.watch.awake = !(may(vm) && vm.may_doze());
            vm.watch.awake
        });
    }

    /// Readable while the doorbell of one that dozes rings.
    pub fn doorbells(&self) -> BorrowedFd<'_> {
        self.doorbells.as_fd()
    }
}
