//! The table of ports: by number, by group, by owner.

use std::collections::HashMap;
use std::sync::Arc;

use vmlane_port::PortId;
use vmlane_worker::Source;

use crate::allowances::{Allowance, Allowances};
use crate::fdb::key;
use crate::port::Port;
use crate::team::{Change, Choice, TeamSpec, TeamState, Teams};
use crate::turns::Turns;
use crate::{Slot, place_of};

/// The attached ports of one isolation group.
#[derive(Default)]
pub struct Group {
    pub members: Vec<Slot>,
    /// One of them watches others' frames.
    pub mirrored: bool,
}

/// All ports.
#[derive(Default)]
pub struct Ports {
    /// A port is taken out while it has its turn.
    slots: Vec<Option<Box<Port>>>,
    by_id: HashMap<PortId, Slot>,
    groups: Vec<Group>,
    /// The attached ones of this worker, and when each has its turn.
    pub turns: Turns,
    /// Those of other workers.
    remote: Vec<Slot>,
    pub allowances: Allowances,
    pub teams: Teams,
}

impl Ports {
    /// Of a worker with this number: the first one alone speaks for teams.
    pub fn of_worker(number: usize) -> Ports {
        Ports { teams: Teams::of_worker(number), ..Ports::default() }
    }

    pub fn slot(&self, id: PortId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    #[inline]
    pub fn get(&self, slot: Slot) -> Option<&Port> {
        self.slots.get(usize::from(slot))?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Port> {
        self.slots.get_mut(usize::from(slot))?.as_deref_mut()
    }

    /// Takes a port out of the table, for its turn.
    #[inline]
    pub fn take(&mut self, slot: Slot) -> Option<Box<Port>> {
        self.slots.get_mut(usize::from(slot))?.take()
    }

    /// Puts it back.
    #[inline]
    pub fn put(&mut self, slot: Slot, port: Box<Port>) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = Some(port);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Port> {
        self.slots.iter().flatten().map(|port| &**port)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Port> {
        self.slots.iter_mut().flatten().map(|port| &mut **port)
    }

    /// All numbers of ports, given or not.
    pub fn all(&self) -> std::ops::Range<Slot> {
        0..self.slots.len() as Slot
    }

    /// The attached ports of this worker that are polled.
    pub fn polled(&self) -> impl Iterator<Item = &Port> {
        self.turns.polled().filter_map(|slot| self.get(slot))
    }

    #[inline]
    pub fn is_mirrored(&self, group: u16) -> bool {
        self.groups.get(usize::from(group)).is_some_and(|group| group.mirrored)
    }

    /// May frames of `sender` get to others than their destination, or to any member of a team?
    #[inline]
    pub fn go_aside(&self, sender: &Port) -> bool {
        self.is_mirrored(sender.group) || !self.teams.is_empty() && !sender.config.uplink
    }

    /// The port at the other end of a direct one, if something is attached there.
    pub fn other_end(&self, slot: Slot, group: u16) -> Option<Slot> {
        let members = self.groups.get(usize::from(group))?.members.iter().copied();
        let mut others = members.filter(|&other| other != slot);
        let other = others.next();
        // While a change of the configuration is under way there may be a third.
        other.filter(|_| others.next().is_none())
    }

    /// Notes for each port of this worker whether the other end of its cable is up, if it has one.
    pub fn note_carriers(&self) {
        for (slot, port) in (0..).zip(&self.slots) {
            let Some(port) = port.as_ref().filter(|port| port.remote.is_none()) else { continue };
            let is_up = |other: Slot| {
                self.teams.has_carrier(other) && self.get(other).is_some_and(|port| !port.is_down())
            };
            let up = || self.other_end(slot, port.group).is_some_and(is_up);
            port.state.carrier.set(!port.config.direct || up());
        }
    }

    /// Member number `at` of a group.
    #[inline]
    pub fn member(&self, group: u16, at: usize) -> Option<Slot> {
        self.groups.get(usize::from(group))?.members.get(at).copied()
    }

    /// The attached port of another worker number `at`.
    #[inline]
    pub fn remote_at(&self, at: usize) -> Option<Slot> {
        self.remote.get(at).copied()
    }

    /// Can all that waits for a port be handed over, nothing that it has in part or that came from another
    /// worker?
    pub fn may_take_along(&self, port: &Port) -> bool {
        port.rx.pending.frames().all(|frame| {
            frame.next == 0 && self.get(frame.sender).is_some_and(|sender| sender.remote.is_none())
        })
    }

    /// Adds a port.
    pub fn add(&mut self, slot: Slot, port: Box<Port>) {
        place_of(&mut self.slots, slot);
        self.allowances.add(port.owner);
        self.by_id.insert(port.id, slot);
        self.put(slot, port);
    }

    pub fn remove(&mut self, id: PortId) {
        if let Some(slot) = self.by_id.remove(&id) {
            self.take(slot);
            self.teams.forget(slot);
        }
    }

    /// Derives groups and turns from the ports. Returns the addresses of VMs' ports: one that has its address
    /// from its operator comes before one that chose it.
    pub fn rebuild(&mut self) -> Vec<(u64, Slot)> {
        let attached: Vec<(Slot, &Port)> = (0..)
            .zip(&self.slots)
            .filter_map(|(slot, port)| Some((slot, &**port.as_ref().filter(|port| port.end.is_some())?)))
            .collect();
        if !self.teams.is_empty() {
            let ports = (0..).zip(&self.slots);
            self.teams.number(ports.filter_map(|(slot, port)| Some((slot, &**port.as_ref()?))));
        }
        self.groups.clear();
        for &(slot, port) in &attached {
            let group = place_of(&mut self.groups, port.group);
            group.members.push(slot);
            group.mirrored |= port.access.mirror;
        }
        let vms = || attached.iter().filter(|(_, port)| !port.config.uplink);
        let is_own = |port: &Port| port.access.effective == port.config.mac;
        let configured = vms().filter(|(_, port)| is_own(port));
        let chosen = vms().filter(|(_, port)| !is_own(port));
        let address = |&(slot, port): &(Slot, &Port)| (key(port.group, port.access.effective), slot);
        let addresses = configured.chain(chosen).map(address).collect();
        let (own, remote): (Vec<_>, Vec<_>) = attached.iter().partition(|(_, port)| port.remote.is_none());
        self.remote = remote.iter().map(|(slot, _)| *slot).collect();
        let own = own.iter().map(|(slot, port)| (port.owner, *slot)).collect();
        self.turns.set(own);
        let slots = &mut self.slots;
        for slot in self.turns.attached() {
            if let Some(port) = slots.get_mut(usize::from(slot)).and_then(Option::as_deref_mut) {
                port.watch.polled = true;
            }
        }
        addresses
    }

    /// The interface behind a port has a link, or has none. True: it had none until now.
    pub fn set_carrier(&mut self, slot: Slot, up: bool) -> bool {
        let Ports { slots, teams, .. } = self;
        let port = slots.get(usize::from(slot)).and_then(Option::as_deref);
        port.is_some_and(|port| teams.set_carrier(slot, port, up))
    }

    /// See [`Teams::set`].
    pub fn set_teams(&mut self, wanted: Vec<(TeamSpec, Arc<TeamState>)>) -> Vec<Slot> {
        let Ports { by_id, teams, .. } = self;
        teams.set(wanted, |id| by_id.get(&id).copied())
    }

    /// See [`Teams::have_changed`].
    pub fn teams_have_changed(&self) -> bool {
        self.teams.have_changed(|slot| self.slots.get(usize::from(slot))?.as_deref())
    }

    /// See [`Teams::read_links`].
    pub fn read_links_of(&mut self, at: usize) -> Option<(Choice, Change)> {
        let Ports { slots, teams, .. } = self;
        teams.read_links(at, |slot| slots.get(usize::from(slot))?.as_deref())
    }

    /// A round begins: every owner may send so much. Returns how many owners have turns in it.
    pub fn begin_round(&mut self, share: Allowance) -> usize {
        self.allowances.begin_round(share);
        self.turns.begin_round()
    }

    /// Ports whose [`Watch`](vmlane_worker::Watch) is set so are not polled from now on.
    pub fn leave_out(&mut self) {
        let Ports { slots, turns, .. } = self;
        turns.leave_out(|slot| {
            let port = slots.get_mut(usize::from(slot))?.as_deref_mut()?;
            (!port.watch.polled).then(|| port.watch.source.take().unwrap_or(Source::Words(Vec::new())))
        });
    }
}
