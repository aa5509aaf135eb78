//! The worker's look at the links of teams, and what follows: the network is told of addresses whose member has changed.

use vmlane_wire::ethernet::Mac;

use super::choice::Choice;
use super::rarp::{self, Announcement};
use super::{Team, TeamPolicy, Teams};
use crate::Slot;
use crate::core::Core;
use crate::fdb::unkey;
use crate::port::Port;
use crate::spec::VlanMode;

/// Announcements that may wait.
const MOST: usize = 4096;
/// Those that leave in one round.
const IN_A_ROUND: usize = 32;
/// VLANs in which an address of a guest that tags is announced: if it is in more, untagged only.
const MOST_VLANS: usize = 64;
/// The last VLAN, and what behind it no VLAN has.
const VLANS: std::ops::Range<u16> = 1..4095;

/// The VLANs in which a port's guest sends.
fn vlans(port: &Port) -> Vec<u16> {
    let native = port.config.vlan.ingress(None);
    let mut vlans: Vec<u16> = native.into_iter().collect();
    if let (VlanMode::Trunk(set), Some(end)) = (&port.config.vlan, &port.end) {
        let filter = end.filter();
        let tagged = VLANS.filter(|&vlan| set.contains(vlan) && filter.accepts_vlan(vlan));
        let tagged: Vec<u16> = tagged.take(MOST_VLANS + 1).collect();
        if tagged.len() <= MOST_VLANS {
            vlans.extend(tagged);
        }
    }
    vlans
}

impl Teams {
    /// An address of the port at `slot` is behind another member than before, if `team` says so.
    fn announce(&mut self, at: usize, before: &Choice, slot: Slot, (mac, vlan): (Mac, u16)) {
        let number = self.number_of(slot);
        let Some(team) = self.list.get(at) else { return };
        let Some(member) = team.moved(before, number, mac).filter(|_| mac.is_unicast()) else { return };
        if self.announcements.len() >= MOST {
            return team.state.stats.not_notified.inc();
        }
        self.announcements.push_back(Announcement { member, mac, vlan });
    }
}

impl Team {
    /// Where a sender's frames leave now, if that is another member than `before`.
    fn moved(&self, before: &Choice, number: usize, mac: Mac) -> Option<Slot> {
        let number = self.number(number, mac);
        let now = self.choice.place(number)?;
        let moved = before.place(number) != Some(now);
        self.slots.get(usize::from(now)).copied().flatten().filter(|_| moved)
    }

    fn notifies(&self) -> bool {
        // Links that the network takes for one need no telling.
        self.spec.notify && self.spec.policy != TeamPolicy::IpHash
    }
}

impl Core {
    /// To be called in every round of a switch with teams. True if a frame left.
    #[cold]
    pub fn look_at_teams(&mut self) -> bool {
        for at in 0..self.ports.teams.list.len() {
            if let Some((before, change)) = self.ports.look_at_team(at)
                && (change.lost || change.gained)
                && !before.is_new()
            {
                self.announce_moved(at, &before);
            }
        }
        !self.ports.teams.announcements.is_empty() && self.send_announcements()
    }

    /// The network is to hear of every address whose member has changed.
    fn announce_moved(&mut self, at: usize, before: &Choice) {
        let Some(team) = self.ports.teams.list.get(at).filter(|team| team.notifies()) else { return };
        let face = team.face();
        let Some(group) = face.and_then(|slot| self.ports.get(slot)).map(|port| port.group) else { return };
        let mut found: Vec<(Slot, (Mac, u16))> = Vec::new();
        let mut number = 0;
        while let Some(slot) = self.ports.member(group, number) {
            number += 1;
            let Some(port) = self.ports.get(slot).filter(|port| !port.config.uplink && !port.is_down())
            else {
                continue;
            };
            found.extend(vlans(port).into_iter().map(|vlan| (slot, (port.access.effective, vlan))));
        }
        // Addresses that a VM uses beside its card's.
        let learned = self.fdb.learned().into_iter().filter_map(|(key, vlan, slot, _)| {
            let port = self.ports.get(slot).filter(|port| !port.config.uplink && port.group == group);
            port.map(|_| (slot, (unkey(key), vlan)))
        });
        found.extend(learned);
        for (slot, address) in found {
            self.ports.teams.announce(at, before, slot, address);
        }
    }

    /// Sends some of the announcements that wait. True if one left.
    fn send_announcements(&mut self) -> bool {
        let mut sent = false;
        for _ in 0..IN_A_ROUND {
            let Some(Announcement { member, mac, vlan }) = self.ports.teams.announcements.pop_front() else {
                break;
            };
            let in_use = |(team, at): (&Team, u8)| team.choice.is_in_use(at).then(|| team.state.clone());
            let Some(state) = self.ports.teams.team_of(member).and_then(in_use) else { continue };
            let said = self.guarded(member, |core| {
                let Core { ports, nothing, .. } = core;
                let port = ports.get_mut(member).filter(|port| port.carries(vlan))?;
                let tag = port.config.vlan.egress_tag(vlan, None);
                port.say(&rarp::frame(mac), tag, nothing).then_some(())
            });
            if said.flatten().is_some() {
                state.stats.notified.bump(1);
                sent = true;
            }
            self.mark(member);
        }
        self.flush();
        sent
    }
}
