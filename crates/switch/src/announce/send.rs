//! Announcements leave.

use super::queue::{Announcement, Announcements};
use super::rarp;
use crate::Slot;
use crate::port::Port;
use crate::spec::VlanMode;
use crate::table::Table;

/// Frames that leave in one round.
const IN_A_ROUND: usize = 32;
/// VLANs in which an address of a guest that tags is announced: if it is in more, untagged only.
const MOST_VLANS: usize = 64;
/// The last VLAN, and what behind it no VLAN has.
const VLANS: std::ops::Range<u16> = 1..4095;

/// The VLANs in which a port's guest sends.
pub fn vlans(port: &Port) -> Vec<u16> {
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

impl Announcements {
    /// The network behind the uplinks of a VM's port is to learn where its address is; of an uplink: the
    /// network behind it, of all addresses of its group.
    pub fn announce(&mut self, table: &Table, slot: Slot) {
        let Some(port) = table.ports.get(slot).filter(|port| port.end.is_some()) else { return };
        if !port.config.uplink {
            return self.add_port(slot);
        }
        // A team watches its links itself.
        let (group, ours) = (port.group, port.remote.is_none() && !table.ports.teams.has(slot));
        let mut number = 0;
        while let Some(slot) = table.ports.member(group, number).filter(|_| ours) {
            number += 1;
            self.add_port(slot);
        }
    }

    /// Sends some of the announcements that wait. True if one left.
    #[cold]
    pub fn send(&mut self, table: &mut Table) -> bool {
        let mut sent = false;
        for _ in 0..IN_A_ROUND {
            let Some(announcement) = self.next_announcement(table) else { break };
            let Announcement { uplink, group, mac, vlan } = announcement;
            let in_use = table.ports.teams.state_if_in_use(uplink);
            let Ok(team) = in_use else { continue };
            let left = table.attributed(uplink, |table| {
                let Table { ports, nothing, .. } = table;
                let fits = |port: &&mut Port| port.config.uplink && port.group == group && port.carries(vlan);
                let port = ports.get_mut(uplink).filter(fits)?;
                let tag = port.config.vlan.egress_tag(vlan, None);
                port.send_own(&rarp::frame(mac), tag, nothing).then_some(())
            });
            if left.flatten().is_some() {
                team.iter().for_each(|team| team.stats.notified.bump(1));
                sent = true;
            }
            table.mark(uplink);
        }
        table.flush();
        sent
    }

    fn next_announcement(&mut self, table: &Table) -> Option<Announcement> {
        loop {
            if let Some(next) = self.next() {
                return Some(next);
            }
            let slot = self.next_port(table.now)?;
            self.announce_port(table, slot);
        }
    }

    /// Has the address of a VM's port leave through each uplink of this worker that serves the port.
    fn announce_port(&mut self, table: &Table, slot: Slot) {
        let Some(port) = table.ports.get(slot) else { return };
        let hidden = port.config.uplink || port.copies().is_some() || port.access.blocked || port.is_down();
        let (mac, group) = (port.access.effective, port.group);
        if hidden || port.end.is_none() || !mac.is_unicast() {
            return;
        }
        let mut vlans_of_port = None;
        let mut number = 0;
        while let Some(uplink) = table.ports.member(group, number) {
            number += 1;
            let notified = |port: &Port| {
                port.config.uplink && port.config.notify && port.remote.is_none() && !port.is_down()
            };
            let ours = table.ports.get(uplink).is_some_and(notified);
            if !ours || !table.ports.teams.announces(uplink, slot, mac) {
                continue;
            }
            let vlans =
                vlans_of_port.get_or_insert_with(|| table.ports.get(slot).map(vlans).unwrap_or_default());
            for &vlan in vlans.iter() {
                // Without a place it is not announced, which its guest's own frames make good.
                self.add(Announcement { uplink, group, mac, vlan });
            }
        }
    }
}
