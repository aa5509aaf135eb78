//! Who is connected to whom: so that peers are told when a VM goes, to bound what one may open, and to know what
//! is under way.

use std::collections::HashMap;

use vmlane_wire::virtio_vsock::{Header, op};

use super::credit::Flow;

/// A connection as one VM sees it: its port, the peer, the peer's port, the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Known {
    pub port: u32,
    pub peer: u32,
    pub peer_port: u32,
    pub kind: u16,
}

/// One VM's connections, with what it sends in each.
#[derive(Debug, Default)]
struct Connections {
    flows: HashMap<Known, Flow>,
    /// How many it has with which VM.
    peers: HashMap<u32, usize>,
}

impl Connections {
    fn add(&mut self, known: Known) {
        if self.flows.insert(known, Flow::default()).is_none() {
            *self.peers.entry(known.peer).or_default() += 1;
        }
    }

    fn remove(&mut self, known: &Known) {
        if self.flows.remove(known).is_some()
            && let Some(count) = self.peers.get_mut(&known.peer)
        {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&known.peer);
            }
        }
    }
}

/// Connections by VM; each is in the maps of both.
#[derive(Debug, Default)]
pub struct Table {
    known: HashMap<u32, Connections>,
}

impl Table {
    fn sides(header: &Header) -> [(u32, Known); 2] {
        let (src, dst) = (header.src_cid.get() as u32, header.dst_cid.get() as u32);
        let (port, peer_port, kind) = (header.src_port.get(), header.dst_port.get(), header.kind.get());
        [
            (src, Known { port, peer: dst, peer_port, kind }),
            (dst, Known { port: peer_port, peer: src, peer_port: port, kind }),
        ]
    }

    /// A packet passes. False if its sender has too many connections for another one.
    pub fn pass(&mut self, header: &Header, most: usize) -> bool {
        match header.op.get() {
            op::REQUEST => {
                let sides = Table::sides(header);
                if self.known.get(&sides[0].0).is_some_and(|set| set.flows.len() >= most) {
                    return false;
                }
                for (cid, known) in sides {
                    self.known.entry(cid).or_default().add(known);
                }
            }
            op::RST => self.forget(header),
            _ => {}
        }
        let [_, (cid, receiver)] = Table::sides(header);
        if let Some(flow) = self.flow(cid, &receiver) {
            flow.hears(header);
        }
        true
    }

    fn flow(&mut self, cid: u32, known: &Known) -> Option<&mut Flow> {
        self.known.get_mut(&cid)?.flows.get_mut(known)
    }

    /// The payload of a packet is with its receiver. True if that one should be asked for credit.
    pub fn delivered(&mut self, header: &Header, len: usize) -> bool {
        let [(cid, sender), _] = Table::sides(header);
        // One that began before this daemon did is not counted.
        len > 0 && self.flow(cid, &sender).is_some_and(|flow| flow.sends(len as u32))
    }

    /// The packet's connection is over.
    pub fn forget(&mut self, header: &Header) {
        for (cid, known) in Table::sides(header) {
            if let Some(set) = self.known.get_mut(&cid) {
                set.remove(&known);
            }
        }
    }

    /// Has `cid` a connection with a VM other than `peer`?
    pub fn talks_to_others(&self, cid: u32, peer: u32) -> bool {
        let Some(set) = self.known.get(&cid) else { return false };
        set.peers.len() > usize::from(set.peers.contains_key(&peer))
    }

    /// All connections of a VM are over; they are returned.
    pub fn clear(&mut self, cid: u32) -> Vec<Known> {
        let ended = self.known.remove(&cid).into_iter();
        let ended: Vec<Known> = ended.flat_map(|set| set.flows.into_keys()).collect();
        for known in &ended {
            if let Some(set) = self.known.get_mut(&known.peer) {
                set.remove(&Known {
                    port: known.peer_port,
                    peer: cid,
                    peer_port: known.port,
                    kind: known.kind,
                });
            }
        }
        ended
    }

    #[cfg(test)]
    pub fn count(&self, cid: u32) -> usize {
        self.known.get(&cid).map_or(0, |set| set.flows.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmlane_wire::virtio_vsock::kind;

    #[test]
    fn both_sides_know_and_forget() {
        let mut table = Table::default();
        let request = Header::new((3, 1000), (4, 22), kind::STREAM, op::REQUEST);
        assert!(table.pass(&request, 1) && table.pass(&Header::new((3, 1), (4, 2), 1, op::RW), 1));
        assert_eq!([3, 4].map(|cid| table.count(cid)), [1, 1]);
        assert!(!table.pass(&Header::new((3, 1001), (4, 22), kind::STREAM, op::REQUEST), 1));
        assert!(table.pass(&request.reset(), 1));
        assert_eq!([3, 4].map(|cid| table.count(cid)), [0, 0]);
        table.pass(&request, 1);
        table.pass(&request, 2);
        assert!(!table.talks_to_others(3, 4) && table.talks_to_others(3, 5) && !table.talks_to_others(5, 3));
        assert_eq!(table.clear(4), [Known { port: 22, peer: 3, peer_port: 1000, kind: 1 }]);
        assert_eq!(table.count(3), 0);
        assert!(!table.talks_to_others(3, 5));
    }
}
