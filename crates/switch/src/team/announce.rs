//! The worker reads the links of teams, and the network is notified of addresses whose member has changed.

use vmlane_wire::ethernet::Mac;

use std::sync::Arc;

use super::choice::Choice;
use super::{Team, TeamPolicy, TeamState, Teams};
use crate::Slot;
use crate::announce::{Announcement, Announcements, vlans};
use crate::fdb::{Fdb, unkey};
use crate::table::Table;

impl Teams {
    /// Through which member of team number `at` an address of the port at `slot` is reached, if that is
    /// another one than before.
    fn moved(&self, at: usize, before: &Choice, slot: Slot, mac: Mac) -> Option<Slot> {
        let team = self.list.get(at).filter(|_| mac.is_unicast())?;
        team.moved(before, self.number_of(slot), mac)
    }

    /// Is an address of the port at `slot` to be announced through this uplink? In a team, that is the member
    /// that serves the port.
    pub fn announces(&self, uplink: Slot, slot: Slot, mac: Mac) -> bool {
        self.team_of(uplink).is_none_or(|(team, at)| {
            team.spec.notify && team.choice.place(team.number(self.number_of(slot), mac)) == Some(at)
        })
    }

    /// The team of an uplink, if it has one; `Err`: it is a member that is not in use.
    pub fn state_if_in_use(&self, uplink: Slot) -> Result<Option<Arc<TeamState>>, NotInUse> {
        match self.team_of(uplink) {
            None => Ok(None),
            Some((team, at)) if team.choice.is_in_use(at) => Ok(Some(team.state.clone())),
            Some(_) => Err(NotInUse),
        }
    }

    fn count_not_notified(&self, at: usize) {
        self.list.get(at).iter().for_each(|team| team.state.stats.not_notified.inc());
    }

    /// Is this uplink a member of a team?
    pub fn has(&self, uplink: Slot) -> bool {
        self.team_of(uplink).is_some()
    }
}

/// A member of a team that frames do not leave through.
#[derive(Debug)]
pub struct NotInUse;

impl Team {
    /// Where a sender's frames leave now, if that is another member than `before`.
    fn moved(&self, before: &Choice, number: usize, mac: Mac) -> Option<Slot> {
        let number = self.number(number, mac);
        let now = self.choice.place(number)?;
        let moved = before.place(number) != Some(now);
        self.slots.get(usize::from(now)).copied().flatten().filter(|_| moved)
    }

    fn notifies(&self) -> bool {
        // Links that the network takes for one need no notice.
        self.spec.notify && self.spec.policy != TeamPolicy::IpHash
    }
}

/// Reads the links of all teams: to be called in every round of a switch with teams.
#[cold]
pub fn read_links(table: &mut Table, fdb: &Fdb, announcements: &mut Announcements) {
    for at in 0..table.ports.teams.list.len() {
        if let Some((before, change)) = table.ports.read_links_of(at)
            && (change.lost || change.gained)
            && !before.is_new()
        {
            announce_moved(table, fdb, announcements, (at, &before));
        }
    }
}

/// The network is to learn of every address whose member has changed.
fn announce_moved(
    table: &Table,
    fdb: &Fdb,
    announcements: &mut Announcements,
    (at, before): (usize, &Choice),
) {
    let ports = &table.ports;
    let Some(team) = ports.teams.list.get(at).filter(|team| team.notifies()) else { return };
    let representative = team.representative();
    let Some(group) = representative.and_then(|slot| ports.get(slot)).map(|port| port.group) else { return };
    let mut found: Vec<(Slot, (Mac, u16))> = Vec::new();
    let mut number = 0;
    while let Some(slot) = ports.member(group, number) {
        number += 1;
        let Some(port) = ports.get(slot).filter(|port| !port.config.uplink && !port.is_down()) else {
            continue;
        };
        found.extend(vlans(port).into_iter().map(|vlan| (slot, (port.access.effective, vlan))));
    }
    // Addresses that a VM uses beside its card's.
    let learned = fdb.learned().into_iter().filter_map(|(key, vlan, slot, _)| {
        let port = ports.get(slot).filter(|port| !port.config.uplink && port.group == group);
        port.map(|_| (slot, (unkey(key), vlan)))
    });
    found.extend(learned);
    for (slot, (mac, vlan)) in found {
        let Some(uplink) = ports.teams.moved(at, before, slot, mac) else { continue };
        if !announcements.add(Announcement { uplink, group, mac, vlan }) {
            ports.teams.count_not_notified(at);
        }
    }
}
