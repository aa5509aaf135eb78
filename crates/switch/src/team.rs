//! Teams: uplinks that lead to the same network and serve as one.
//!
//! | file | what |
//! | --- | --- |
//! | `spec.rs` | how a team is configured; what others see of it |
//! | `choice.rs` | which members are in use, and which of them serves a sender |
//! | `hash.rs` | numbers of senders, by what is in their frames |
//! | `announce.rs` | which addresses the network is notified of when links change |
//!
//! A frame to the outside leaves through one member: the one that the policy picks for its sender. A frame
//! from the outside that the network sends to all its links (broadcast, multicast, unknown addresses) comes
//! in through every member; a port takes it from the member that serves the port, and from no other. What a
//! VM sent and the network sends back through another member is dropped. An address that was seen behind one
//! member is behind the team: it is kept under the first one.
//!
//! Links are read once in each round, whatever changed them: the daemon (carrier, the operator's word),
//! an end that went, an interface that refused a frame. A switch without teams pays one test for that, and
//! one for each frame to several receivers or from an uplink to an address that its last frame did not go to.

mod announce;
mod choice;
mod hash;
mod spec;

use std::sync::Arc;

use arrayvec::ArrayVec;
use tracing::{info, warn};
use vmlane_port::PortId;
use vmlane_wire::ethernet::Mac;

use crate::ingress::Checked;
use crate::port::Port;
use crate::{Slot, place_of};

pub use self::announce::read_links;
pub use self::choice::{Change, Choice};
pub use self::spec::{
    MOST_MEMBERS, MemberState, TeamMember, TeamPolicy, TeamSpec, TeamState, TeamStats, TeamView,
};

/// What is known of the port at a slot.
#[derive(Clone, Copy, Debug, Default)]
struct OfSlot {
    /// Its team, and which member it is.
    member: Option<(usize, u8)>,
    /// Of a VM's port: its isolation group, and its number there. Numbers are as low as can be, and stay.
    number: Option<(u16, u16)>,
    /// The interface behind it has no link.
    no_carrier: bool,
    /// Frames that the interface had refused for want of a link when that was last read.
    refused: u64,
}

impl OfSlot {
    /// Has the interface refused frames since that was last read?
    fn has_refused(&self, port: &Port) -> bool {
        port.stats.drop_uplink_down.get() != self.refused
    }

    /// Reads its link.
    fn read_links(&mut self, port: &Port) -> MemberState {
        self.no_carrier |= self.has_refused(port);
        self.refused = port.stats.drop_uplink_down.get();
        self.link(port)
    }

    /// How its link is. [`MemberState::Active`]: up.
    fn link(&self, port: &Port) -> MemberState {
        if port.end.is_none() {
            MemberState::Detached
        } else if port.is_down() {
            MemberState::SetDown
        } else if self.no_carrier || self.has_refused(port) {
            MemberState::LinkDown
        } else {
            MemberState::Active
        }
    }
}

/// One team.
struct Team {
    spec: TeamSpec,
    state: Arc<TeamState>,
    slots: ArrayVec<Option<Slot>, MOST_MEMBERS>,
    choice: Choice,
    /// How the members' links were when last read.
    links: ArrayVec<MemberState, MOST_MEMBERS>,
}

impl Team {
    fn new(spec: TeamSpec, state: Arc<TeamState>, slot: impl Fn(PortId) -> Option<Slot>) -> Team {
        let members = || spec.members.iter().take(MOST_MEMBERS);
        let wanted = match spec.policy {
            TeamPolicy::Failover => 1,
            _ => spec.members.len().saturating_sub(spec.standby),
        };
        Team {
            slots: members().map(|member| member.port.and_then(&slot)).collect(),
            links: members().map(|_| MemberState::Missing).collect(),
            choice: Choice::new(spec.members.len(), wanted, spec.failback),
            state,
            spec,
        }
    }

    /// Under which slot addresses behind any member are kept.
    fn representative(&self) -> Option<Slot> {
        self.slots.iter().flatten().next().copied()
    }

    /// The number that the policy goes by, of a sender whose port has `number`.
    #[inline]
    fn number(&self, number: usize, source: Mac) -> usize {
        match self.spec.policy {
            TeamPolicy::Mac => hash::of_mac(source),
            TeamPolicy::Failover => 0,
            TeamPolicy::Port | TeamPolicy::IpHash => number,
        }
    }

    /// The member for a frame of a port that has `number`.
    #[inline]
    fn pick(&self, number: usize, sent: &Checked<'_>) -> Option<Slot> {
        let number = match self.spec.policy {
            TeamPolicy::IpHash => hash::of_packet(sent),
            _ => self.number(number, sent.frame.source()),
        };
        self.choice.place(number).and_then(|at| self.slots.get(usize::from(at)).copied().flatten())
    }

    /// Does a port take from member number `at` what the network sends to all links? With a hash of IP
    /// addresses the network takes the links for one, and sends it once.
    fn serves(&self, at: u8, number: usize, mac: Mac) -> bool {
        match self.spec.policy {
            TeamPolicy::IpHash => self.choice.is_in_use(at),
            _ => self.choice.place(self.number(number, mac)) == Some(at),
        }
    }

    /// Reads the links. None: they are as they were.
    fn read_links(
        &mut self,
        silent: bool,
        mut link: impl FnMut(Slot) -> MemberState,
    ) -> Option<(Choice, Change)> {
        let links: ArrayVec<MemberState, MOST_MEMBERS> =
            self.slots.iter().map(|slot| slot.map_or(MemberState::Missing, &mut link)).collect();
        if links == self.links {
            return None;
        }
        self.links = links;
        let up = (0..).zip(&self.links).filter(|(_, link)| **link == MemberState::Active);
        let up = up.fold(0, |up, (at, _): (u8, _)| up | 1 << at);
        let before = self.choice.clone();
        let change = self.choice.update(up);
        if silent {
            return None;
        }
        self.publish(&before);
        self.state.stats.failovers.bump(u64::from(change.lost));
        self.state.stats.failbacks.bump(u64::from(change.back && !change.lost));
        Some((before, change))
    }

    /// Publishes how the members are, and logs what has changed.
    fn publish(&self, before: &Choice) {
        for ((at, link), member) in (0..).zip(&self.links).zip(&self.spec.members) {
            let state = match link {
                MemberState::Active if self.choice.is_in_use(at) => MemberState::Active,
                MemberState::Active if self.choice.prefers(at) => MemberState::Recovered,
                MemberState::Active => MemberState::Standby,
                down => *down,
            };
            self.state.set(at.into(), state);
            let (team, uplink) = (&self.spec.name, &member.name);
            match (before.is_in_use(at), self.choice.is_in_use(at)) {
                (true, false) => warn!(team, uplink, why = state.reason(), "not in use any more"),
                (false, true) => info!(team, uplink, "in use"),
                _ => {}
            }
        }
    }
}

/// All teams.
#[derive(Default)]
pub struct Teams {
    list: Vec<Team>,
    slots: Vec<OfSlot>,
    /// Another worker publishes how the members are, and notifies the network of where addresses are.
    silent: bool,
}

impl Teams {
    /// Of a worker with this number.
    pub fn of_worker(number: usize) -> Teams {
        Teams { silent: number > 0, ..Teams::default() }
    }

    /// Are there none?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// These teams are there from now on. One that stays as it was goes on; of others nothing is known yet.
    /// Returns the members of teams that have changed, were or are.
    pub fn set(
        &mut self,
        teams: Vec<(TeamSpec, Arc<TeamState>)>,
        slot: impl Fn(PortId) -> Option<Slot>,
    ) -> Vec<Slot> {
        let mut before = std::mem::take(&mut self.list);
        let mut changed = Vec::new();
        for (spec, state) in teams {
            match before.iter().position(|team| team.spec == spec) {
                Some(same) => self.list.push(before.swap_remove(same)),
                None => {
                    let team = Team::new(spec, state, &slot);
                    changed.extend(team.slots.iter().flatten());
                    self.list.push(team);
                }
            }
        }
        changed.extend(before.iter().flat_map(|team| &team.slots).flatten());
        self.slots.iter_mut().for_each(|of| of.member = None);
        for team in 0..self.list.len() {
            let members = self.list.get(team).map(|team| team.slots.clone()).unwrap_or_default();
            for (at, slot) in (0..).zip(members) {
                let Some(slot) = slot else { continue };
                self.of_mut(slot).member = Some((team, at));
            }
        }
        changed
    }

    fn of_mut(&mut self, slot: Slot) -> &mut OfSlot {
        place_of(&mut self.slots, slot)
    }

    /// The interface behind a port has a link, or has none. True: it had none until now.
    pub fn set_carrier(&mut self, slot: Slot, port: &Port, up: bool) -> bool {
        let of = self.of_mut(slot);
        of.refused = port.stats.drop_uplink_down.get();
        std::mem::replace(&mut of.no_carrier, !up) && up
    }

    /// Has the interface behind a port a link, as far as is known?
    pub fn has_carrier(&self, slot: Slot) -> bool {
        self.slots.get(usize::from(slot)).is_none_or(|of| !of.no_carrier)
    }

    /// The port at a slot is gone.
    pub fn forget(&mut self, slot: Slot) {
        *self.of_mut(slot) = OfSlot::default();
        for member in self.list.iter_mut().flat_map(|team| &mut team.slots) {
            if *member == Some(slot) {
                *member = None;
            }
        }
    }

    /// Gives VMs' ports that have none their numbers: the lowest that are free in their groups.
    pub fn number<'p>(&mut self, ports: impl Iterator<Item = (Slot, &'p Port)>) {
        for (slot, port) in ports.filter(|(_, port)| !port.config.uplink) {
            let group = port.group;
            if self.of_mut(slot).number.is_some_and(|(of, _)| of == group) {
                continue;
            }
            self.of_mut(slot).number = None;
            let in_group = self.slots.iter().filter_map(|of| of.number).filter(|(of, _)| *of == group);
            let mut taken: Vec<u16> = in_group.map(|(_, number)| number).collect();
            taken.sort_unstable();
            let free = (0..).zip(&taken).find(|(number, taken)| number != *taken).map(|(number, _)| number);
            self.of_mut(slot).number = Some((group, free.unwrap_or(taken.len() as u16)));
        }
    }

    #[inline]
    fn team_of(&self, slot: Slot) -> Option<(&Team, u8)> {
        let (team, at) = self.slots.get(usize::from(slot))?.member?;
        Some((self.list.get(team)?, at))
    }

    /// The number of a VM's port.
    #[inline]
    fn number_of(&self, slot: Slot) -> usize {
        let number = self.slots.get(usize::from(slot)).and_then(|of| of.number);
        number.map_or(0, |(_, number)| usize::from(number))
    }

    /// Where addresses behind an uplink are kept, if it is in a team.
    #[inline]
    pub fn representative(&self, slot: Slot) -> Option<Slot> {
        self.team_of(slot)?.0.representative()
    }

    /// Do others of its team serve while this one is gone?
    pub fn outlasts(&self, slot: Slot) -> bool {
        self.team_of(slot).is_some_and(|(team, at)| {
            team.links
                .iter()
                .enumerate()
                .any(|(other, link)| other != usize::from(at) && *link == MemberState::Active)
        })
    }

    /// Which port a frame to the address behind `receiver` leaves through. If no member has a link, it is
    /// lost at the one that is named.
    #[inline]
    pub fn route(&self, receiver: Slot, sender: Slot, sent: &Checked<'_>) -> Slot {
        let team = self.team_of(receiver);
        team.and_then(|(team, _)| team.pick(self.number_of(sender), sent)).unwrap_or(receiver)
    }

    /// Is a frame to several receivers for this one? The sender is an uplink, or not.
    pub fn passes(
        &self,
        (sender, uplink): (Slot, bool),
        sent: &Checked<'_>,
        receiver: (Slot, &Port),
    ) -> bool {
        let (slot, port) = receiver;
        if uplink {
            let number = self.number_of(slot);
            return self
                .team_of(sender)
                .is_none_or(|(team, at)| team.serves(at, number, port.access.effective));
        }
        let Some((team, _)) = self.team_of(slot) else { return true };
        team.pick(self.number_of(sender), sent).or_else(|| team.representative()) == Some(slot)
    }

    /// Has any link changed since it was read?
    pub fn have_changed<'p>(&self, port: impl Fn(Slot) -> Option<&'p Port>) -> bool {
        let link = |slot: Slot| Some(self.slots.get(usize::from(slot))?.link(port(slot)?));
        self.list.iter().any(|team| {
            let links = team.slots.iter().map(|slot| slot.and_then(link).unwrap_or(MemberState::Missing));
            !links.eq(team.links.iter().copied())
        })
    }

    /// Reads the links of team number `at`. None: they are as they were.
    pub fn read_links<'p>(
        &mut self,
        at: usize,
        port: impl Fn(Slot) -> Option<&'p Port>,
    ) -> Option<(Choice, Change)> {
        let Teams { list, slots, silent, .. } = self;
        list.get_mut(at)?.read_links(*silent, |slot| {
            let of = slots.get_mut(usize::from(slot));
            of.zip(port(slot)).map_or(MemberState::Missing, |(of, port)| of.read_links(port))
        })
    }
}
