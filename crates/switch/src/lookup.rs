//! Whether a sender may send from an address, and where the one it sends to is.

use vmlane_port::DropReason;

use crate::fabric::Fabric;
use crate::frame::Frame;
use crate::port::{Port, Route};
use crate::table::{Slot, key};

/// Where a frame goes.
#[derive(Clone, Copy)]
pub enum Way {
    One(Slot),
    /// To all of the VLAN that want the group address.
    Group,
    /// To all of the VLAN that look for strangers.
    Unknown,
}

impl Fabric {
    /// Checks the source address and finds the destination.
    #[inline]
    pub fn look_up(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        frame: &Frame<'_>,
        vlan: u16,
    ) -> Result<Way, DropReason> {
        let to = key(sender.group, frame.destination());
        let from = key(sender.group, frame.source());
        let Route { to: last_to, from: last_from, vlan: last_vlan, receiver, epoch } = sender.route;
        if to == last_to && from == last_from && vlan == last_vlan && epoch == self.epoch {
            return Ok(Way::One(receiver));
        }
        let way = self.find(slot, sender, frame, vlan)?;
        if let Way::One(receiver) = way {
            sender.route = Route { to, from, vlan, receiver, epoch: self.epoch };
        }
        Ok(way)
    }

    fn find(&mut self, slot: Slot, sender: &Port, frame: &Frame<'_>, vlan: u16) -> Result<Way, DropReason> {
        let (source, destination) = (frame.source(), frame.destination());
        if !source.is_unicast() {
            return Err(DropReason::ForgedSource);
        }
        let from = key(sender.group, source);
        if sender.uplink || source != sender.effective {
            match sender {
                Port { uplink: false, policy, blocked, .. } if !policy.forged_transmits => {
                    return Err(if *blocked { DropReason::MacChanged } else { DropReason::ForgedSource });
                }
                // The address of a port is known and never learned elsewhere.
                _ if self.known.find(from, |_| true).is_none() => {
                    let moved = self.learned.learn(from, vlan, slot, sender.uplink, self.seconds);
                    // Routes that led to where it was are of no use.
                    self.epoch += u64::from(moved);
                }
                _ => {}
            }
        }
        if destination.is_multicast() {
            return Ok(Way::Group);
        }
        let to = key(sender.group, destination);
        let carries =
            |other: Slot| self.slots[usize::from(other)].as_ref().is_some_and(|port| port.vlan.carries(vlan));
        if let Some(receiver) = self.known.find(to, carries) {
            return Ok(Way::One(receiver));
        }
        if to == key(sender.group, sender.effective) {
            return Err(DropReason::NoReceiver);
        }
        match self.learned.find(to, vlan, self.seconds) {
            Some(behind) if behind == slot => Err(DropReason::NoReceiver),
            Some(behind) if carries(behind) && !(sender.uplink && self.is_uplink(behind)) => {
                Ok(Way::One(behind))
            }
            _ => Ok(Way::Unknown),
        }
    }

    fn is_uplink(&self, slot: Slot) -> bool {
        self.slots[usize::from(slot)].as_ref().is_some_and(|port| port.uplink)
    }
}
