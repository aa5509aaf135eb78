//! What one worker owns: the ports and a part for each stage. Here is what is asked of it from outside; the way of
//! frames is in `turn.rs`, that of frames that wait in `retry.rs`.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tracing::error;
use vmlane_mem::{MemoryMap, Spans};
use vmlane_port::{DropReason, FramePort, MAX_HEAD, PortId, Token};
use vmlane_worker::{Doorbells, Heartbeat, Interval};

use crate::Slot;
use crate::access::Config;
use crate::announce::Announcements;
use crate::coalesce::Coalescer;
use crate::egress::Egress;
use crate::fdb::{Fdb, LearnedAddresses, unkey};
use crate::handover::{HandedFrame, Lender, Links};
use crate::pending::{Claim, Held, PendingFrame};
use crate::port::Port;
use crate::ports::Ports;
use crate::price::{PIECE_COST, REBUILD};
use crate::queue::Change;
use crate::shaping::Shaper;
use crate::spec::{LearnedAddress, PortSpec, Settings};
use crate::stats::WorkerStats;
use crate::team::{TeamSpec, TeamState};

#[cfg(test)]
impl Place {
    /// Of the only worker.
    pub fn alone() -> Place {
        Place {
            number: 0,
            links: Links::none(),
            learned: Arc::new(LearnedAddresses::new()),
            coalesce: Arc::default(),
        }
    }
}

/// While some ports are busy, how often it is checked whether those have something to do that are not polled.
pub const CHECK: Duration = Duration::from_micros(50);

/// The switch without its thread.
pub struct Core {
    pub settings: Settings,
    /// Whether segments are to be merged from the next round on.
    pub coalesce: Arc<AtomicBool>,
    pub stats: Arc<WorkerStats>,
    pub heartbeat: Arc<Heartbeat>,
    pub ports: Ports,
    pub fdb: Fdb,
    pub egress: Egress,
    pub coalescer: Coalescer,
    /// Addresses that the network is to be told of.
    pub announcements: Announcements,
    /// Ports whose ends want a flush.
    pub dirty: Vec<Slot>,
    /// Ports for which frames wait, at the most.
    pub waiting: usize,
    /// The frames of each sender that wait.
    pub held: Held,
    pub now: Instant,
    /// A port is there that gets only the multicast that its guest asked for.
    pub snooping: bool,
    /// No bytes, for frames of the switch's own.
    pub nothing: Spans,
    /// The port whose code is running, for blame.
    pub serving: Slot,
    /// Where heads of frames are edited, while no turn has it: clearing it in each turn would cost idle ports more
    /// than all else.
    pub scratch: Option<Box<[u8; MAX_HEAD]>>,
    /// Bytes of all frames that ports have sent.
    pub moved_bytes: u64,
    /// Which of the switch's workers this is.
    pub number: usize,
    /// The others.
    pub links: Links,
    /// Whether remote ports are served before this worker's own in this round.
    pub remote_first: bool,
    /// Frames that they are done with, and frames of theirs: empty between rounds.
    pub finished: Vec<(Lender, Token)>,
    pub arriving: Vec<(usize, Box<HandedFrame>)>,
    /// The doorbells of ports that are not polled; without them all are.
    pub doorbells: Option<Arc<Doorbells>>,
    /// How often it is checked which ports are to be polled.
    pub check: Interval,
    /// Ports that were found then: empty between checks.
    pub found: Vec<Slot>,
}

/// What all workers of a switch have in common, and what is each one's own.
pub struct Place {
    pub number: usize,
    pub links: Links,
    pub learned: Arc<LearnedAddresses>,
    /// Whether segments are to be merged from the next round on.
    pub coalesce: Arc<AtomicBool>,
}

impl Core {
    pub fn new(settings: Settings, place: Place, stats: Arc<WorkerStats>, heartbeat: Arc<Heartbeat>) -> Core {
        let Place { number, links, learned, coalesce } = place;
        let now = Instant::now();
        Core {
            settings,
            coalesce,
            stats,
            heartbeat,
            ports: Ports::of_worker(number),
            fdb: Fdb::new(learned),
            egress: Egress::new(),
            coalescer: Coalescer::new(),
            announcements: Announcements::default(),
            dirty: Vec::new(),
            waiting: 0,
            held: Held::default(),
            now,
            snooping: false,
            nothing: Spans::new(MemoryMap::default(), false),
            serving: 0,
            scratch: None,
            moved_bytes: 0,
            number,
            links,
            remote_first: false,
            finished: Vec::new(),
            arriving: Vec::new(),
            doorbells: Doorbells::new().ok().map(Arc::new),
            check: Interval::new(CHECK, now),
            found: Vec::new(),
        }
    }

    /// Is nothing attached?
    pub fn is_empty(&self) -> bool {
        self.ports.turns.count_attached() == 0
    }

    /// Does any frame wait for a receiver?
    pub fn has_pending(&self) -> bool {
        self.waiting > 0
    }

    /// Has a port something done that its guest does not see yet?
    pub fn has_unflushed(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Files that are readable while a frame waits. Ports with one are always polled.
    pub fn readable_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.polled().filter_map(|port| port.end.as_ref()?.readable_fd())
    }

    /// Files that become readable when a guest announces a frame, of ports that are polled. Those of ports that are
    /// paused are not listened to.
    pub fn doorbell_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listened = self.ports.polled().filter(|port| !port.tx.limits.is_paused());
        listened.filter_map(|port| port.end.as_ref()?.doorbell_fd())
    }

    pub fn slot(&self, id: PortId) -> Option<Slot> {
        self.ports.slot(id)
    }

    pub fn end(&mut self, slot: Slot) -> Option<&mut Box<dyn FramePort>> {
        self.ports.get_mut(slot)?.end.as_mut()
    }

    pub fn add(&mut self, slot: Slot, port: Port) {
        self.ports.add(slot, Box::new(port));
        self.rebuild();
    }

    /// Changes a port's configuration in place. `shaper`: None if it stays shaped as it is.
    /// Carries out what is asked about a port.
    pub fn change(&mut self, slot: Slot, change: Change) {
        match change {
            Change::Update { spec, group, shaper } => self.update(slot, &spec, group, shaper),
            Change::Remove => self.remove(slot),
            Change::Attach(end) => self.attach(slot, end),
            Change::Detach => self.detach(slot),
            Change::Refresh => self.refresh(slot),
            Change::Tap(taps) => {
                if let Some(port) = self.ports.get_mut(slot) {
                    port.set_taps(taps);
                }
            }
            Change::Shut(shut) => self.shut(slot, shut),
            Change::Carrier(up) => self.set_carrier(slot, up),
            Change::Announce => self.announce(slot),
            Change::Copy(copies) => {
                if let Some(port) = self.ports.get_mut(slot) {
                    port.set_copies(copies);
                }
            }
            Change::Retire => self.retire(slot),
            Change::Adopt => self.adopt_remote(slot),
            Change::Fault => self.fault(slot),
            Change::Move(step) => self.move_port(slot, step),
        }
    }

    pub fn update(&mut self, slot: Slot, spec: &PortSpec, group: u16, shaper: Option<Box<Shaper>>) {
        self.drop_pending_between(slot);
        self.fdb.forget(slot);
        let now = self.now;
        let remote = self.ports.get(slot).is_some_and(|port| port.remote.is_some());
        if let Some(port) = self.ports.get_mut(slot) {
            port.configure(Config::from(spec));
            port.group = group;
            port.snoop(now);
        }
        if let (true, Some(shaper)) = (remote, &shaper) {
            self.ports.get_mut(slot).iter_mut().for_each(|port| port.set_down(shaper.is_down()));
        } else if shaper.is_some() {
            self.guarded(slot, |core| {
                let now = core.now;
                if let Some(port) = core.ports.get_mut(slot) {
                    port.shape(shaper, now);
                }
            });
            self.mark(slot);
        }
        self.rebuild();
        self.announce(slot);
    }

    pub fn remove(&mut self, slot: Slot) {
        self.detach(slot);
        if let Some(port) = self.ports.get(slot) {
            self.ports.remove(port.id);
        }
        // Also what a team has kept there.
        self.fdb.forget(slot);
        self.rebuild();
    }

    pub fn attach(&mut self, slot: Slot, end: Box<dyn FramePort>) {
        self.detach(slot);
        self.held.set_places(slot, end.info().look_ahead);
        let now = self.now;
        if let Some(port) = self.ports.get_mut(slot).filter(|port| !port.shut) {
            port.plug(end, now);
            port.set_stalled(false);
        }
        self.rebuild();
        self.publish(slot);
        self.announce(slot);
    }

    /// Lets go of what is attached to a port.
    pub fn detach(&mut self, slot: Slot) {
        // What other workers had of it has come back.
        self.take_handed();
        self.drop_pending_between(slot);
        let Some(port) = self.ports.get_mut(slot) else { return };
        let remote = port.remote.is_some();
        port.publish_counts();
        if !port.drop_end() {
            port.stats.panics.inc();
        }
        self.links.forget(slot);
        // What is behind a team is reached through another member.
        if !remote && !self.ports.teams.outlasts(slot) {
            self.fdb.forget(slot);
        }
        self.rebuild();
        self.publish(slot);
    }

    /// Ends a port's traffic, its guest told, or lets it have some again.
    pub fn shut(&mut self, slot: Slot, shut: bool) {
        self.guarded(slot, |core| {
            if let Some(end) = core.end(slot).filter(|_| shut) {
                end.fail();
            }
        });
        if shut {
            self.detach(slot);
        }
        if let Some(port) = self.ports.get_mut(slot) {
            port.shut = shut;
        }
    }

    /// The interface behind a port has a link, or has none.
    pub fn set_carrier(&mut self, slot: Slot, up: bool) {
        if self.ports.set_carrier(slot, up) {
            self.announce(slot);
        }
    }

    /// Makes the teams these.
    pub fn set_teams(&mut self, teams: Vec<(TeamSpec, Arc<TeamState>)>) {
        for slot in self.ports.set_teams(teams) {
            self.fdb.forget(slot);
        }
        self.rebuild();
    }

    /// Puts the learned addresses into `list`, as far as it has room.
    pub fn tell_learned(&self, list: &mut Vec<LearnedAddress>) {
        let room = list.capacity() - list.len();
        let known = self.fdb.learned().into_iter().filter_map(|(key, vlan, slot, seconds)| {
            Some(LearnedAddress { port: self.ports.get(slot)?.id, mac: unkey(key), vlan, seconds })
        });
        list.extend(known.take(room));
    }

    /// Charges a port's owner for a change that costs as much as so many rebuilds. False: it has had its share for now.
    pub fn charge_change(&mut self, id: PortId, rebuilds: usize) -> bool {
        let owner = self.slot(id).and_then(|slot| self.ports.get(slot)).map(|port| port.owner);
        owner.is_none_or(|owner| self.ports.allowances.charge_change(owner, rebuilds * REBUILD))
    }

    pub fn refresh(&mut self, slot: Slot) {
        self.guarded(slot, |core| {
            let Some(port) = core.ports.get_mut(slot) else { return };
            port.watch.doorbell = None;
            port.end.iter_mut().for_each(|end| end.refresh());
        });
        // Its memory may be another one now.
        self.links.let_go();
        self.rebuild();
        self.publish(slot);
    }

    /// Drops the frames that wait for a port and those of it that wait elsewhere.
    pub fn drop_pending_between(&mut self, slot: Slot) {
        self.drop_pending(slot, DropReason::Gone);
        for other in self.ports.all() {
            let Some(receiver) = self.ports.get_mut(other) else { continue };
            let (tokens, owner) = (receiver.pending.remove_of(slot), receiver.owner);
            tokens.iter().for_each(|_| receiver.lose(DropReason::Gone));
            for token in tokens {
                self.held.give_back(slot, owner);
                self.finish(slot, token);
            }
        }
        self.count_waiting();
    }

    /// Drops the frames that wait for a port.
    pub fn drop_pending(&mut self, slot: Slot, reason: DropReason) {
        let now = self.now;
        while let Some(receiver) = self.ports.get_mut(slot)
            && let Some(frame) = receiver.pending.pop(now)
        {
            receiver.lose(reason);
            self.held.give_back(frame.sender, receiver.owner);
            self.show_lost(slot, &frame, reason);
            self.finish(frame.sender, frame.token);
        }
    }

    /// Shows a frame that waited in vain to those who look at its receiver.
    pub fn show_lost(&mut self, receiver: Slot, frame: &PendingFrame, reason: DropReason) {
        if self.ports.get(receiver).is_none_or(|port| port.taps.is_empty()) {
            return;
        }
        self.guarded(frame.sender, |core| {
            let sender = core.ports.get(frame.sender).and_then(|port| port.end.as_ref());
            if let (Some(sender), Some(port)) = (sender, core.ports.get(receiver)) {
                port.show_lost(&sender.frame(frame.token), reason);
            }
        });
    }

    /// One of those who had a frame is done with it; the last one finishes it.
    pub fn finish(&mut self, sender: Slot, token: Token) {
        if !self.links.is_last(sender, token) {
            return;
        }
        self.give_back(sender, &[token]);
        self.mark(sender);
    }

    /// Tells a port that frames which it lent are done with.
    pub fn give_back(&mut self, slot: Slot, tokens: &[Token]) {
        self.guarded(slot, |core| {
            let Some(port) = core.ports.get_mut(slot) else { return };
            if let Some(end) = &mut port.end {
                port.tx.burst.came_back(tokens.len());
                end.finish(tokens);
            }
        });
    }

    /// The port wants a flush.
    #[inline]
    pub fn mark(&mut self, slot: Slot) {
        if let Some(port) = self.ports.get_mut(slot)
            && !port.dirty
        {
            port.dirty = true;
            self.dirty.push(slot);
            self.note(slot);
        }
    }

    pub fn count_waiting(&mut self) {
        self.waiting = self.ports.iter().filter(|port| !port.pending.is_empty()).count();
    }

    /// Derives the tables from the ports.
    pub fn rebuild(&mut self) {
        let mut failed = Vec::new();
        for slot in self.ports.all() {
            let Some(port) = self.ports.get_mut(slot) else { continue };
            if catch_unwind(AssertUnwindSafe(|| port.adopt())).is_err() {
                self.stats.panics.inc();
                port.fail_end();
                failed.push(slot);
            }
        }
        failed.into_iter().for_each(|slot| self.publish(slot));
        for slot in self.ports.all() {
            if let Some(port) = self.ports.get(slot) {
                let claim = Claim { owner: port.owner, shares: port.config.shares };
                self.held.set_claim(slot, claim);
            }
        }
        self.snooping = self.ports.iter().any(|port| port.snooped().is_some());
        let addresses = self.ports.rebuild();
        self.fdb.rebuild(addresses.into_iter());
    }

    /// Runs `action`; a panic of ours ends the port that was being served.
    pub fn guarded<T>(&mut self, slot: Slot, action: impl FnOnce(&mut Core) -> T) -> Option<T> {
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
        let Some(port) = self.ports.get_mut(slot) else { return };
        error!(port = port.id.0, "serving a port panicked; the port is detached");
        port.fail_end();
        self.detach(slot);
        self.blame_remote(slot);
    }

    /// Another worker's code panicked with what is attached to a port of this one.
    #[cold]
    pub fn fault(&mut self, slot: Slot) {
        if self.ports.get(slot).is_some_and(|port| port.remote.is_some()) {
            // It has gone to that one since.
            return self.blame_remote(slot);
        }
        if let Some(port) = self.ports.get_mut(slot) {
            port.fail_end();
        }
        self.detach(slot);
    }

    /// Has every port that is polled do what is due by the clock. True if something of one is due again soon.
    pub fn tick(&mut self, now: Instant) -> bool {
        let (mut soon, mut changed) = (false, false);
        let mut at = 0;
        while let Some(slot) = self.ports.turns.polled_at(at) {
            at += 1;
            let Some(owner) = self.ports.get(slot).map(|port| port.owner) else { continue };
            if self.ports.allowances.is_over(owner) {
                soon = true;
                continue;
            }
            let ticked = self.guarded(slot, |core| {
                let port = core.ports.get_mut(slot)?;
                let end = port.end.as_mut()?;
                let ticked = end.tick(now);
                port.watch.due_soon = ticked.soon;
                Some((ticked, port.info.overhead.take()))
            });
            if let Some((ticked, overhead)) = ticked.flatten() {
                soon |= ticked.soon;
                changed |= ticked.changed;
                if ticked.changed {
                    self.publish(slot);
                }
                let rebuilds = if ticked.changed { REBUILD } else { 0 };
                self.ports.allowances.charge(owner, overhead * PIECE_COST + rebuilds);
            }
        }
        if changed {
            self.rebuild();
        }
        if self.snooping {
            self.query_all(now);
        }
        self.fdb.age(self.now);
        soon
    }

    /// Has the guests asked for their groups whose time it is.
    #[cold]
    fn query_all(&mut self, now: Instant) {
        let mut at = 0;
        while let Some(slot) = self.ports.turns.attached_at(at) {
            at += 1;
            self.guarded(slot, |core| core.query(slot, now));
        }
        self.flush();
    }

    /// After a fault outside any port's turn: what can be derived is derived anew.
    #[cold]
    pub fn recover(&mut self) {
        self.dirty.clear();
        self.ports.iter_mut().for_each(|port| port.dirty = false);
        self.count_waiting();
        let waiting =
            self.ports.iter().flat_map(|port| port.pending.frames().map(|frame| (frame.sender, port.owner)));
        self.held.recount(waiting);
        self.rebuild();
        self.ports.all().for_each(|slot| self.mark(slot));
    }
}
