//! The stage of frames to several receivers: which ports of a group get a frame, and which other workers.

use crate::Slot;
use crate::flight::Flight;
use crate::handover::Workers;
use crate::multicast::Group;
use crate::port::Port;
use crate::table::Table;

/// Which members of a VLAN want a frame.
#[derive(Clone, Copy)]
pub enum Want {
    /// Those in its multicast group.
    Group(Group),
    /// Those that want addresses that are not known.
    Unknown,
    /// Those that watch the frames of others, its receiver aside.
    Mirror { receiver: Slot },
}

/// A frame's receivers, one after the other.
pub struct Fan {
    want: Want,
    at: usize,
    /// The workers of those that are ports of other workers. Each gives the frame to all of its ports.
    pub others: Workers,
}

impl Fan {
    pub fn new(want: Want) -> Fan {
        Fan { want, at: 0, others: Workers::default() }
    }

    /// The next port of this worker that gets the frame.
    pub fn next(&mut self, table: &Table, flight: &Flight<'_>) -> Option<Slot> {
        while let Some(slot) = table.ports.member(flight.group, self.at) {
            self.at += 1;
            let Some(port) = table.ports.get(slot).filter(|port| self.wants(table, flight, slot, port))
            else {
                continue;
            };
            match port.remote {
                None => return Some(slot),
                // What another worker handed over goes to ports of this one only.
                Some(worker) if !flight.remote => self.others.add(worker),
                Some(_) => {}
            }
        }
        None
    }

    fn wants(&self, table: &Table, flight: &Flight<'_>, slot: Slot, port: &Port) -> bool {
        let to_all = |wants: bool| {
            let teams = &table.ports.teams;
            wants
                && !(flight.uplink && port.config.uplink)
                && (port.remote.is_some()
                    || teams.is_empty()
                    || teams.passes((flight.slot, flight.uplink), &flight.sent, (slot, port)))
        };
        // The port that sent it is not in the table.
        port.carries(flight.vlan)
            && match self.want {
                Want::Group(group) => {
                    to_all(port.accepts_group(flight.sent.frame.destination()) && port.gets(group, table.now))
                }
                Want::Unknown => to_all(port.access.unknown),
                Want::Mirror { receiver } => slot != receiver && port.access.mirror,
            }
    }
}
