//! All ports, and the way of a frame between them. One worker owns it.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use tracing::error;
use vmlane_port::{DropReason, FramePort, MAX_HEAD, PortId, Token};
use vmlane_worker::Heartbeat;

use crate::port::Port;
use crate::spec::Settings;
use crate::table::{KnownTable, LearnedTable, Slot, key};
use crate::worker::WorkerStats;

/// What one party may still send in this round.
#[derive(Clone, Copy)]
pub struct Allowance {
    pub frames: u32,
    pub bytes: usize,
}

/// The attached ports of one party: a part of [`Fabric::attached`].
#[derive(Clone, Copy)]
struct Run {
    start: usize,
    len: usize,
    /// Who of them is served first.
    first: usize,
}

/// `at + by`, begun anew at `len`; both are smaller than that.
#[inline]
fn rotated(at: usize, by: usize, len: usize) -> usize {
    let sum = at + by;
    if sum < len { sum } else { sum - len }
}

/// The ports and what is known about them.
pub struct Fabric {
    pub settings: Settings,
    pub stats: Arc<WorkerStats>,
    pub beat: Arc<Heartbeat>,
    /// A port is taken out while it has its turn.
    pub slots: Vec<Option<Box<Port>>>,
    by_id: HashMap<PortId, Slot>,
    groups: HashMap<String, u16>,
    parties: HashMap<String, u16>,
    /// By party.
    pub allowances: Vec<Allowance>,
    /// By group: attached ports.
    pub members: Vec<Vec<Slot>>,
    /// By group: does anyone look at others' frames?
    pub mirrored: Vec<bool>,
    /// Ports of one party lie side by side.
    pub attached: Vec<Slot>,
    /// The parties in it, in turns.
    runs: Vec<Run>,
    pub known: KnownTable,
    pub learned: LearnedTable,
    /// Of `known` and of the ports' configuration.
    pub epoch: u64,
    /// Ports whose ends want a flush.
    pub dirty: Vec<Slot>,
    /// Ports for which frames wait, at the most.
    pub waiting: usize,
    first: usize,
    pub now: Instant,
    /// Seconds since the start.
    pub seconds: u32,
    started: Instant,
    pub edit: Box<[u8; MAX_HEAD]>,
    /// The port whose code is running, for blame.
    pub serving: Slot,
    /// The frame whose way is being found, in a sender's turn.
    pub in_flight: Option<Token>,
}

impl Fabric {
    pub fn new(settings: Settings, stats: Arc<WorkerStats>, beat: Arc<Heartbeat>) -> Fabric {
        let learned = LearnedTable::new();
        let now = Instant::now();
        Fabric {
            settings,
            stats,
            beat,
            slots: Vec::new(),
            by_id: HashMap::new(),
            groups: HashMap::new(),
            parties: HashMap::new(),
            allowances: Vec::new(),
            members: Vec::new(),
            mirrored: Vec::new(),
            attached: Vec::new(),
            runs: Vec::new(),
            known: KnownTable::new(std::iter::empty(), learned.seed()),
            learned,
            epoch: 1,
            dirty: Vec::new(),
            waiting: 0,
            first: 0,
            now,
            seconds: 0,
            started: now,
            edit: Box::new([0; MAX_HEAD]),
            serving: 0,
            in_flight: None,
        }
    }

    /// Attached ports.
    pub fn attached(&self) -> &[Slot] {
        &self.attached
    }

    pub fn end(&mut self, slot: Slot) -> Option<&mut Box<dyn FramePort>> {
        self.slots.get_mut(usize::from(slot))?.as_mut()?.end.as_mut()
    }

    /// Files that become readable when a frame waits.
    pub fn wake_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ports = self.attached.iter().filter_map(|&slot| self.slots[usize::from(slot)].as_ref());
        ports.filter_map(|port| port.end.as_ref()?.wake_fd())
    }

    /// Files that say so until their ends are disarmed. Those of ports that rest are not listened to.
    pub fn bells(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ports = self.attached.iter().filter_map(|&slot| self.slots[usize::from(slot)].as_ref());
        ports.filter(|port| port.rests_until.is_none()).filter_map(|port| port.end.as_ref()?.bell())
    }

    pub fn slot(&self, id: PortId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    /// Does any frame wait for a receiver?
    pub fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    fn group(&mut self, name: &str) -> u16 {
        let next = self.groups.len() as u16;
        *self.groups.entry(name.to_owned()).or_insert(next)
    }

    /// The party that a port's name speaks of.
    fn party(&mut self, name: &str) -> u16 {
        let next = self.parties.len() as u16;
        let owner = name.split_once('/').map_or(name, |(owner, _)| owner);
        *self.parties.entry(owner.to_owned()).or_insert(next)
    }

    pub fn add(&mut self, id: PortId, name: &str, make: impl FnOnce(u16) -> Port, group: &str) {
        let group = self.group(group);
        let mut port = Box::new(make(group));
        port.party = self.party(name);
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(port);
        self.by_id.insert(id, slot as Slot);
        self.rebuild();
    }

    /// Changes a port's configuration in place.
    pub fn update(&mut self, id: PortId, group: &str, change: impl FnOnce(&mut Port)) {
        let Some(slot) = self.slot(id) else { return };
        let group = self.group(group);
        self.drop_parked_between(slot);
        self.learned.forget(slot);
        if let Some(port) = &mut self.slots[usize::from(slot)] {
            change(port);
            port.group = group;
        }
        self.rebuild();
    }

    pub fn remove(&mut self, id: PortId) {
        let Some(slot) = self.slot(id) else { return };
        self.detach(slot);
        self.by_id.remove(&id);
        self.slots[usize::from(slot)] = None;
        self.rebuild();
    }

    pub fn attach(&mut self, slot: Slot, end: Box<dyn FramePort>) {
        self.detach(slot);
        if let Some(port) = self.slots[usize::from(slot)].as_mut().filter(|port| !port.shut) {
            port.end = Some(end);
            port.stalled = false;
        }
        self.rebuild();
    }

    /// Lets go of a port's end.
    pub fn detach(&mut self, slot: Slot) {
        self.drop_parked_between(slot);
        self.learned.forget(slot);
        let Some(port) = self.slots[usize::from(slot)].as_mut() else { return };
        port.settle();
        if let Some(end) = port.end.take()
            && catch_unwind(AssertUnwindSafe(|| drop(end))).is_err()
        {
            port.stats.panics.inc();
        }
        self.rebuild();
    }

    /// Ends a port's traffic, its party told, or lets it have some again.
    pub fn shut(&mut self, slot: Slot, shut: bool) {
        self.guarded(slot, |fabric| {
            if let Some(end) = fabric.end(slot).filter(|_| shut) {
                end.fail();
            }
        });
        if shut {
            self.detach(slot);
        }
        if let Some(port) = &mut self.slots[usize::from(slot)] {
            port.shut = shut;
        }
    }

    pub fn refresh(&mut self, slot: Slot) {
        self.guarded(slot, |fabric| {
            if let Some(end) = fabric.end(slot) {
                end.refresh();
            }
        });
        self.rebuild();
    }

    /// Drops the frames that wait for a port and those of it that wait elsewhere.
    fn drop_parked_between(&mut self, slot: Slot) {
        self.drop_parked(slot, DropReason::Gone);
        for other in 0..self.slots.len() as Slot {
            let Some(mut receiver) = self.slots[usize::from(other)].take() else { continue };
            if receiver.parked_of.get(usize::from(slot)).is_some_and(|&count| count > 0) {
                let mut gone = Vec::new();
                receiver.parked.retain(|parked| {
                    if parked.sender == slot {
                        gone.push(parked.token);
                    }
                    parked.sender != slot
                });
                receiver.parked_of[usize::from(slot)] = 0;
                gone.iter().for_each(|_| receiver.lose(DropReason::Gone));
                gone.into_iter().for_each(|token| self.finish(slot, token));
            }
            self.slots[usize::from(other)] = Some(receiver);
        }
        self.count_waiting();
    }

    /// Drops the frames that wait for a port.
    pub fn drop_parked(&mut self, slot: Slot, reason: DropReason) {
        let Some(mut receiver) = self.slots[usize::from(slot)].take() else { return };
        while let Some(parked) = receiver.parked.pop_front() {
            *receiver.count_parked(parked.sender) -= 1;
            receiver.lose(reason);
            self.finish(parked.sender, parked.token);
        }
        self.slots[usize::from(slot)] = Some(receiver);
    }

    pub fn finish(&mut self, sender: Slot, token: Token) {
        self.guarded(sender, |fabric| {
            if let Some(end) = fabric.end(sender) {
                end.finish(token);
            }
        });
        self.mark(sender);
    }

    pub fn mark(&mut self, slot: Slot) {
        if let Some(port) = &mut self.slots[usize::from(slot)]
            && !port.dirty
        {
            port.dirty = true;
            self.dirty.push(slot);
        }
    }

    pub fn count_waiting(&mut self) {
        self.waiting = self.slots.iter().flatten().filter(|port| !port.parked.is_empty()).count();
    }

    /// Derives the tables from the ports.
    fn rebuild(&mut self) {
        self.epoch += 1;
        for port in self.slots.iter_mut().flatten() {
            if catch_unwind(AssertUnwindSafe(|| port.adopt())).is_err() {
                port.stats.panics.inc();
                self.stats.panics.inc();
                if let Some(mut end) = port.end.take() {
                    let _ = catch_unwind(AssertUnwindSafe(|| end.fail()));
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(end)));
                }
            }
        }
        let attached = || {
            let slots = self.slots.iter().enumerate();
            slots.filter_map(|(slot, port)| {
                Some((slot as Slot, port.as_ref().filter(|port| port.end.is_some())?))
            })
        };
        self.members = vec![Vec::new(); self.groups.len()];
        self.mirrored = vec![false; self.groups.len()];
        for (slot, port) in attached() {
            self.members[usize::from(port.group)].push(slot);
            self.mirrored[usize::from(port.group)] |= port.mirror;
        }
        // A port that has its address from its operator comes before one that chose it.
        let vms = || attached().filter(|(_, port)| !port.uplink);
        let own = vms().filter(|(_, port)| port.effective == port.mac);
        let chosen = vms().filter(|(_, port)| port.effective != port.mac);
        let entries: Vec<_> =
            own.chain(chosen).map(|(slot, port)| (key(port.group, port.effective), slot)).collect();
        self.known = KnownTable::new(entries.into_iter(), self.learned.seed());
        let mut parties: Vec<(u16, Slot)> = attached().map(|(slot, port)| (port.party, slot)).collect();
        parties.sort_unstable();
        self.attached = parties.iter().map(|&(_, slot)| slot).collect();
        self.runs.clear();
        for of_one in parties.chunk_by(|a, b| a.0 == b.0) {
            let start = self.runs.last().map_or(0, |run| run.start + run.len);
            self.runs.push(Run { start, len: of_one.len(), first: 0 });
        }
    }

    /// Runs `action`; a panic of ours ends the port that was being served.
    fn guarded<T>(&mut self, slot: Slot, action: impl FnOnce(&mut Fabric) -> T) -> Option<T> {
        self.serving = slot;
        let result = catch_unwind(AssertUnwindSafe(|| action(self)));
        if result.is_err() {
            self.blame();
        }
        result.ok()
    }

    #[cold]
    pub fn blame(&mut self) {
        let slot = self.serving;
        self.stats.panics.inc();
        let Some(port) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) else { return };
        error!(port = port.id.0, "serving a port panicked; the port is detached");
        port.stats.panics.inc();
        // The end is in an unknown state: its frames are not finished but forgotten with it.
        if let Some(mut end) = port.end.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| end.fail()));
            let _ = catch_unwind(AssertUnwindSafe(|| drop(end)));
        }
        self.detach(slot);
    }

    /// One look at every port. True if a frame moved.
    pub fn round(&mut self, now: Instant) -> bool {
        self.now = now;
        let mut moved = false;
        for at in 0..self.attached.len() {
            let Some(&slot) = self.attached.get(at) else { break };
            self.guarded(slot, |fabric| {
                if let Some(port) = fabric.slots[usize::from(slot)].as_mut()
                    && let Some(end) = &port.end
                {
                    port.capabilities = end.capabilities();
                }
            });
        }
        if self.waiting > 0 || self.any_stalled() {
            moved |= self.retry();
        }
        let Settings { frames, bytes, .. } = self.settings;
        self.allowances.clear();
        self.allowances.resize(self.parties.len(), Allowance { frames, bytes });
        let count = self.runs.len();
        self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
        for at in 0..count {
            // A turn may detach a port: then this looks at another one, which harms nobody.
            let Some(run) = self.runs.get_mut(rotated(self.first, at, count)) else { break };
            run.first = if run.first + 1 < run.len { run.first + 1 } else { 0 };
            let Run { start, len, first } = *run;
            for at in 0..len {
                let Some(&slot) = self.attached.get(start + rotated(first, at, len)) else { break };
                moved |= self.turn(slot);
                self.flush();
            }
        }
        moved
    }

    fn any_stalled(&self) -> bool {
        self.attached
            .iter()
            .any(|&slot| self.slots[usize::from(slot)].as_ref().is_some_and(|port| port.stalled))
    }

    /// Flushes the ends that got or finished something.
    fn flush(&mut self) {
        while let Some(slot) = self.dirty.pop() {
            let now = self.now;
            self.guarded(slot, |fabric| {
                let Some(port) = fabric.slots[usize::from(slot)].as_mut() else { return };
                port.dirty = false;
                port.settle();
                if let Some(end) = &mut port.end {
                    end.flush(now);
                }
            });
        }
    }

    /// Looks at every port though nothing moves. True if one wants to be looked at again soon.
    pub fn tick(&mut self, now: Instant) -> bool {
        let (mut soon, mut changed) = (false, false);
        let mut at = 0;
        while let Some(&slot) = self.attached.get(at) {
            let ticked = self.guarded(slot, |fabric| {
                let end = fabric.end(slot)?;
                Some((end.tick(now), end.changed()))
            });
            if let Some((again, differs)) = ticked.flatten() {
                soon |= again;
                changed |= differs;
            }
            at += 1;
        }
        if changed {
            self.rebuild();
        }
        soon
    }

    /// Asks every end to announce its next frame; true if one has a frame already. Ports that rest are looked at
    /// when their time comes.
    pub fn arm(&mut self) -> bool {
        self.any_port(|port| port.rests_until.is_none() && port.end.as_mut().is_some_and(|end| end.arm()))
    }

    /// The ends announce nothing any more.
    pub fn disarm(&mut self) {
        self.any_port(|port| {
            port.end.iter_mut().for_each(|end| end.disarm());
            false
        });
    }

    /// Calls `action` with every attached port; true if any call was.
    fn any_port(&mut self, action: impl Fn(&mut Port) -> bool) -> bool {
        let mut any = false;
        let mut at = 0;
        while let Some(&slot) = self.attached.get(at) {
            let one = self
                .guarded(slot, |fabric| fabric.slots[usize::from(slot)].as_deref_mut().is_some_and(&action));
            any |= one == Some(true);
            at += 1;
        }
        any
    }

    /// After a fault outside any port's turn: what can be derived is derived anew.
    #[cold]
    pub fn recover(&mut self) {
        self.dirty.clear();
        self.slots.iter_mut().flatten().for_each(|port| port.dirty = false);
        self.count_waiting();
        self.rebuild();
        (0..self.slots.len() as Slot).for_each(|slot| self.mark(slot));
    }

    /// Once a second or so.
    pub fn housekeeping(&mut self) {
        let seconds = self.now.duration_since(self.started).as_secs() as u32;
        if seconds != self.seconds {
            self.seconds = seconds;
            if seconds.is_multiple_of(16) {
                self.learned.age(seconds);
                self.epoch += 1;
            }
        }
    }
}
