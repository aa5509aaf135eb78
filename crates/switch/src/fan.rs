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

#[cfg(test)]
mod tests {
    use vmlane_port::{MAX_HEAD, Offload};
    use vmlane_wire::ethernet::Mac;

    use super::*;
    use crate::ingress::Frame;
    use crate::multicast::ANY;
    use crate::table::testing::{Bench, Kind, OTHER_WORKER, frame};

    const SENDER: Slot = 0;
    const PLAIN: Slot = 1;
    const WATCHER: Slot = 2;
    const UPLINK: Slot = 3;

    /// Which ports get a frame to all, and which other workers.
    fn receivers(want: Want, change: impl Fn(&mut Flight<'_>)) -> (Vec<Slot>, Vec<usize>) {
        let mut bench = Bench::new(&[Kind::Guest, Kind::Guest, Kind::Watcher, Kind::Uplink, Kind::Remote]);
        bench.wire(SENDER).send(&frame(Mac([0xff; 6]), SENDER, 60, 0), Offload::None, None);
        let (mut sender, end) = bench.begin_turn(SENDER);
        let token = sender.tx.burst.take().unwrap();
        let tx = end.frame(token);
        let mut scratch = [0; MAX_HEAD];
        let frame = Frame::new(&tx, &mut scratch).unwrap();
        let mut flight = sender.flight(SENDER, frame.check().unwrap(), (&*end, token), 0);
        change(&mut flight);
        let mut fan = Fan::new(want);
        let here = std::iter::from_fn(|| fan.next(&bench.table, &flight)).collect();
        (here, fan.others.iter().collect())
    }

    #[test]
    fn a_frame_to_a_group_goes_to_all_here_and_once_to_each_other_worker() {
        let all = vec![PLAIN, WATCHER, UPLINK];
        assert_eq!(receivers(Want::Group(ANY), |_| ()), (all.clone(), vec![OTHER_WORKER]));
        let handed_over = receivers(Want::Group(ANY), |flight| flight.remote = true);
        assert_eq!(handed_over, (all, vec![]), "another worker's frame is not sent on");
        let from_outside = receivers(Want::Group(ANY), |flight| flight.uplink = true);
        assert_eq!(from_outside.0, [PLAIN, WATCHER], "nor from one uplink to another");
    }

    #[test]
    fn an_unknown_address_and_a_mirror_have_the_ports_that_may_see_it() {
        assert_eq!(receivers(Want::Unknown, |_| ()).0, [WATCHER, UPLINK]);
        assert_eq!(receivers(Want::Mirror { receiver: PLAIN }, |_| ()).0, [WATCHER]);
        assert!(
            receivers(Want::Mirror { receiver: WATCHER }, |_| ()).0.is_empty(),
            "it gets the frame itself"
        );
        assert!(receivers(Want::Group(ANY), |flight| flight.vlan = 7).0.is_empty(), "another VLAN");
    }
}
