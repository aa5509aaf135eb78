//! What one worker owns: the table of ports and each stage's state. Here is what is asked of it from outside;
//! the way of frames is in `round.rs`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use vmlane_port::{FramePort, MAX_HEAD, PortId};
use vmlane_worker::Heartbeat;

use crate::Slot;
use crate::access::Config;
use crate::announce::Announcements;
use crate::coalesce::Coalescer;
use crate::egress::Egress;
use crate::fdb::{Fdb, LearnedAddresses, unkey};
use crate::handover::{Arrivals, Links, adopt_remote, publish};
use crate::impair::{Impairment, Line};
use crate::multicast::ask_for_groups;
use crate::polled::Polling;
use crate::port::Port;
use crate::price::{PIECE_COST, REBUILD};
use crate::queue::Change;
use crate::shaping::Shaper;
use crate::spec::{LearnedAddress, PortSpec, Settings};
use crate::stats::WorkerStats;
use crate::table::Table;
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

/// The switch without its thread.
pub struct Core {
    pub table: Table,
    pub fdb: Fdb,
    pub egress: Egress,
    pub coalescer: Coalescer,
    /// Addresses that the network is to be notified of.
    pub announcements: Announcements,
    pub polling: Polling,
    pub arrivals: Arrivals,
    pub heartbeat: Arc<Heartbeat>,
    /// Whether segments are to be merged from the next round on.
    pub coalesce: Arc<AtomicBool>,
    /// A port is there that gets only the multicast that its guest asked for.
    pub snooping: bool,
    /// Where heads of frames are edited, while no turn has it: clearing it in each turn would cost idle ports
    /// more than all else.
    pub scratch: Option<Box<[u8; MAX_HEAD]>>,
    /// Bytes of all frames that ports have sent.
    pub moved_bytes: u64,
    /// Which of the switch's workers this is.
    pub number: usize,
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
        let table = Table::new(settings, stats, links, number);
        Core {
            polling: Polling::new(table.now),
            table,
            fdb: Fdb::new(learned),
            egress: Egress::new(),
            coalescer: Coalescer::new(),
            announcements: Announcements::default(),
            arrivals: Arrivals::default(),
            heartbeat,
            coalesce,
            snooping: false,
            scratch: None,
            moved_bytes: 0,
            number,
        }
    }

    /// Is nothing attached?
    pub fn is_empty(&self) -> bool {
        self.table.ports.turns.count_attached() == 0
    }

    /// Does any frame wait for a receiver?
    pub fn has_pending(&self) -> bool {
        self.table.waiting > 0
    }

    pub fn add(&mut self, slot: Slot, port: Port) {
        self.table.ports.add(slot, Box::new(port));
        self.rebuild();
    }

    /// Carries out what is asked about a port.
    pub fn change(&mut self, slot: Slot, change: Change) {
        match change {
            Change::Update { spec, group, shaper } => self.update(slot, &spec, group, shaper),
            Change::Remove => self.remove(slot),
            Change::Attach(end) => self.attach(slot, end),
            Change::Detach => self.detach(slot),
            Change::Refresh => self.refresh(slot),
            Change::Tap(taps) => {
                if let Some(port) = self.table.ports.get_mut(slot) {
                    port.set_taps(taps);
                }
            }
            Change::Shut(shut) => self.shut(slot, shut),
            Change::Carrier(up) => {
                if self.table.ports.set_carrier(slot, up) {
                    self.announce(slot);
                }
                self.table.ports.note_carriers();
            }
            Change::Impair(impairment, spare) => self.impair(slot, impairment, spare),
            Change::Announce => self.announce(slot),
            Change::Copy(copies) => {
                if let Some(port) = self.table.ports.get_mut(slot) {
                    port.set_copies(copies);
                }
            }
            Change::Retire => self.retire(slot),
            Change::Adopt => self.adopt_remote(slot),
            Change::Fault => self.fault(slot),
        }
        self.end_failed();
    }

    /// Changes a port's configuration in place. `shaper`: None if it stays shaped as it is.
    pub fn update(&mut self, slot: Slot, spec: &PortSpec, group: u16, shaper: Option<Box<Shaper>>) {
        let table = &mut self.table;
        table.drop_pending_between(slot);
        self.fdb.forget(slot);
        let now = table.now;
        let remote = table.ports.get(slot).is_some_and(|port| port.remote.is_some());
        if let Some(port) = table.ports.get_mut(slot) {
            port.configure(Config::from(spec));
            port.group = group;
            port.snoop(now);
        }
        if let (true, Some(shaper)) = (remote, &shaper) {
            table.ports.get_mut(slot).iter_mut().for_each(|port| port.set_down(shaper.is_down()));
        } else if shaper.is_some() {
            table.attributed(slot, |table| {
                if let Some(port) = table.ports.get_mut(slot) {
                    port.shape(shaper, now);
                }
            });
            table.mark(slot);
        }
        self.rebuild();
        self.announce(slot);
    }

    fn remove(&mut self, slot: Slot) {
        self.detach(slot);
        if let Some(port) = self.table.ports.get(slot) {
            self.table.ports.remove(port.id);
        }
        // Also what a team has kept there.
        self.fdb.forget(slot);
        self.rebuild();
    }

    pub fn attach(&mut self, slot: Slot, end: Box<dyn FramePort>) {
        self.detach(slot);
        let table = &mut self.table;
        table.held.set_places(slot, end.info().lookahead);
        let now = table.now;
        if let Some(port) = table.ports.get_mut(slot).filter(|port| !port.is_shut()) {
            port.plug(end, now);
            port.set_stalled(false);
        }
        self.rebuild();
        publish(&mut self.table, slot);
        self.announce(slot);
    }

    /// Drops what is attached to a port.
    pub fn detach(&mut self, slot: Slot) {
        // What other workers had of it has come back.
        self.take_arrived();
        let table = &mut self.table;
        table.drop_pending_between(slot);
        let Some(port) = table.ports.get_mut(slot) else { return };
        let remote = port.remote.is_some();
        port.publish_counts();
        if !port.drop_end() {
            port.stats.panics.inc();
        }
        table.links.forget(slot);
        // What is behind a team is reached through another member.
        if !remote && !table.ports.teams.outlasts(slot) {
            self.fdb.forget(slot);
        }
        self.rebuild();
        publish(&mut self.table, slot);
    }

    /// Ends a port's traffic, its guest notified, or lets it have some again.
    fn shut(&mut self, slot: Slot, shut: bool) {
        self.table.attributed(slot, |table| {
            if let Some(end) = table.end(slot).filter(|_| shut) {
                end.fail();
            }
        });
        if shut {
            self.detach(slot);
        }
        if let Some(port) = self.table.ports.get_mut(slot) {
            port.set_shut(shut);
        }
    }

    /// Changes what happens to frames on their way to a port of this worker.
    fn impair(&mut self, slot: Slot, impairment: Impairment, spare: Option<Box<Line>>) {
        let now = self.table.now;
        self.table.attributed(slot, |table| {
            if let Some(port) = table.ports.get_mut(slot) {
                port.impair(impairment, spare, now);
            }
        });
        self.rebuild();
        publish(&mut self.table, slot);
    }

    fn announce(&mut self, slot: Slot) {
        self.announcements.announce(&self.table, slot);
    }

    /// Makes the teams these.
    pub fn set_teams(&mut self, teams: Vec<(TeamSpec, Arc<TeamState>)>) {
        for slot in self.table.ports.set_teams(teams) {
            self.fdb.forget(slot);
        }
        self.rebuild();
    }

    /// Puts the learned addresses into `list`, as far as it has room.
    pub fn list_learned(&self, list: &mut Vec<LearnedAddress>) {
        let room = list.capacity() - list.len();
        let known = self.fdb.learned().into_iter().filter_map(|(key, vlan, slot, seconds)| {
            Some(LearnedAddress { port: self.table.ports.get(slot)?.id, mac: unkey(key), vlan, seconds })
        });
        list.extend(known.take(room));
    }

    /// Charges a port's owner for a change that costs as much as so many rebuilds. False: it has had its
    /// share for now.
    pub fn charge_change(&mut self, id: PortId, rebuilds: usize) -> bool {
        let ports = &mut self.table.ports;
        let owner = ports.slot(id).and_then(|slot| ports.get(slot)).map(|port| port.owner);
        owner.is_none_or(|owner| ports.allowances.charge_change(owner, rebuilds * REBUILD))
    }

    pub fn refresh(&mut self, slot: Slot) {
        self.table.attributed(slot, |table| {
            let Some(port) = table.ports.get_mut(slot) else { return };
            port.watch.doorbell = None;
            port.end.iter_mut().for_each(|end| end.refresh());
        });
        // Its memory may be another one now.
        self.table.links.let_go();
        self.rebuild();
        publish(&mut self.table, slot);
    }

    /// What is attached to a port is about to be dropped: it sends nothing more, and the other workers drop
    /// it, too.
    fn retire(&mut self, slot: Slot) {
        if let Some(port) = self.table.ports.get_mut(slot) {
            port.attached.retired = port.end.is_some();
        }
        publish(&mut self.table, slot);
    }

    /// What is attached to another worker's port has changed.
    fn adopt_remote(&mut self, slot: Slot) {
        if self.table.ports.get(slot).is_none_or(|port| port.remote.is_none()) {
            return;
        }
        let is_new = adopt_remote(&mut self.table, slot, self.number);
        self.rebuild();
        if is_new {
            self.announce(slot);
        }
    }

    /// Another worker's code panicked with what is attached to a port of this one.
    #[cold]
    fn fault(&mut self, slot: Slot) {
        if self.table.ports.get(slot).is_some_and(|port| port.remote.is_some()) {
            // It has gone to that one since.
            return self.table.report_fault(slot);
        }
        if let Some(port) = self.table.ports.get_mut(slot) {
            port.fail_end();
        }
        self.detach(slot);
    }

    /// Takes what other workers have handed over or are done with.
    pub fn take_arrived(&mut self) {
        self.arrivals.take(&mut self.table);
    }

    /// Detaches the ports whose code panicked.
    #[inline]
    pub fn end_failed(&mut self) {
        while let Some(slot) = self.table.take_failed() {
            self.detach(slot);
        }
    }

    /// Flushes the ports that got or completed something, and detaches those whose code panicked.
    #[inline]
    pub fn flush(&mut self) {
        self.table.flush();
        self.end_failed();
    }

    /// Derives the tables from the ports.
    pub fn rebuild(&mut self) {
        let (addresses, failed) = self.table.rebuild();
        failed.into_iter().for_each(|slot| publish(&mut self.table, slot));
        self.snooping = self.table.ports.iter().any(|port| port.snooped().is_some());
        self.fdb.rebuild(addresses.into_iter());
        self.table.ports.note_carriers();
    }

    /// Has every port that is polled do what is due by the clock. Returns whether something of one is due
    /// again soon, and when what has a time is.
    pub fn tick(&mut self, now: Instant) -> (bool, Option<Instant>) {
        let (mut soon, mut changed, mut due) = (false, false, None::<Instant>);
        let mut at = 0;
        while let Some(slot) = self.table.ports.turns.polled_at(at) {
            at += 1;
            let table = &mut self.table;
            let Some(owner) = table.ports.get(slot).map(|port| port.owner) else { continue };
            if table.ports.allowances.is_over(owner) {
                soon = true;
                continue;
            }
            let ticked = table.attributed(slot, |table| {
                let port = table.ports.get_mut(slot)?;
                let end = port.end.as_mut()?;
                let ticked = end.tick(now);
                port.watch.due_soon = ticked.soon;
                Some((ticked, port.attached.info.overhead.take()))
            });
            if let Some((ticked, overhead)) = ticked.flatten() {
                soon |= ticked.soon;
                changed |= ticked.changed;
                if let Some(at) = ticked.due {
                    due = Some(due.map_or(at, |due| due.min(at)));
                }
                if ticked.changed {
                    publish(table, slot);
                }
                let rebuilds = if ticked.changed { REBUILD } else { 0 };
                table.ports.allowances.charge(owner, overhead * PIECE_COST + rebuilds);
            }
            self.end_failed();
        }
        if changed {
            self.rebuild();
        }
        if self.snooping {
            self.ask_for_groups(now);
        }
        self.fdb.age(self.table.now);
        (soon, due)
    }

    /// Has the guests asked for their groups whose time it is.
    #[cold]
    fn ask_for_groups(&mut self, now: Instant) {
        let mut at = 0;
        while let Some(slot) = self.table.ports.turns.attached_at(at) {
            at += 1;
            self.table.attributed(slot, |table| ask_for_groups(table, slot, now));
        }
        self.flush();
    }

    /// After a fault outside any port's turn: what can be derived is derived anew.
    #[cold]
    pub fn recover(&mut self) {
        self.table.recount_waiting();
        self.rebuild();
        self.table.mark_all();
        self.end_failed();
    }
}
