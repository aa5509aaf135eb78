//! The control queue (virtio 1.2, section 5.1.6.5): what the guest wants to receive, where the VMM hands
//! that queue over. QEMU and Cloud Hypervisor serve it themselves, User Mode Linux does not.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_mem::MemoryMap;
use vmlane_port::{Filter, Overhead, VlanSet};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::virtio::control::{self, class};
use vmlane_wire::virtio::net_feature;

use crate::virtio::queue::{Broken, Queue, Segment};

/// Bytes of the longest command: a table of some 600 addresses.
const MAX_COMMAND: usize = 4096;
/// Commands carried out in one go, and how long until the next go: each makes the switch examine all ports.
const BATCH: usize = 16;
const PAUSE: Duration = Duration::from_millis(1);
const MAC: usize = 6;
/// What a command costs beside its pieces and the addresses in it, in descriptors read.
const COMMAND: usize = 16;
/// Offloads that the guest may switch while it runs: the bits of its features.
const SWITCHED: u64 = net_feature::GUEST_CSUM
    | net_feature::GUEST_TSO4
    | net_feature::GUEST_TSO6
    | net_feature::GUEST_ECN
    | net_feature::GUEST_USO4
    | net_feature::GUEST_USO6;

/// What the guest has asked for, with the features agreed on, while the rings do not run.
pub type Checkpoint = Mutex<Option<(u64, Requested)>>;

/// What the guest has asked for so far. Outlives the running rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    mac: Mac,
    promiscuous: bool,
    all_multicast: bool,
    all_unicast: bool,
    no_multicast: bool,
    no_unicast: bool,
    no_broadcast: bool,
    /// It has addresses beside its own.
    others: bool,
    multicast: Vec<Mac>,
    vlans: Option<VlanSet>,
    /// Pairs of queues in use.
    pub pairs: u16,
    /// Offloads in force, of those that were agreed on.
    pub offloads: u64,
}

impl Requested {
    /// What holds until the guest asks for something else: as after a reset.
    pub fn new(mac: Mac, features: u64) -> Requested {
        let has = |feature: u64| features & feature != 0;
        Requested {
            mac,
            promiscuous: true,
            all_multicast: true,
            all_unicast: false,
            no_multicast: false,
            no_unicast: false,
            no_broadcast: false,
            others: false,
            multicast: Vec::new(),
            vlans: has(net_feature::CTRL_VLAN).then(VlanSet::none),
            pairs: 1,
            offloads: features & SWITCHED,
        }
    }

    /// The guest has asked for something, and it is not known for what: it gets everything.
    pub fn unknown(mac: Mac, features: u64, pairs: u16) -> Requested {
        Requested { vlans: None, pairs, ..Requested::new(mac, features) }
    }

    /// What the port takes.
    pub fn filter(&self) -> Filter {
        let multicast = if self.no_multicast { Vec::new() } else { self.multicast.clone() };
        Filter {
            mac: self.mac,
            unicast: !self.no_unicast,
            broadcast: !self.no_broadcast,
            all_multicast: self.all_multicast && !self.no_multicast,
            // Addresses beside its own are a request that the policy must allow.
            promiscuous: self.promiscuous || self.all_unicast || self.others && !self.no_unicast,
            multicast,
            vlans: self.vlans.clone(),
        }
    }

    /// One command: class, number, data. False: it is refused and changed nothing.
    pub fn apply(&mut self, command: &[u8], features: u64, most_pairs: u16) -> bool {
        let Some((&[class, number], data)) = command.split_first_chunk::<2>() else { return false };
        let has = |feature: u64| features & feature != 0;
        match class {
            class::RX if has(net_feature::CTRL_RX) => {
                let extra = number >= control::rx::ALL_UNICAST;
                let Some(&on) = data.first().filter(|_| !extra || has(net_feature::CTRL_RX_EXTRA)) else {
                    return false;
                };
                self.receive(number, on != 0)
            }
            class::MAC => match number {
                control::mac::TABLE if has(net_feature::CTRL_RX) => self.table(data),
                control::mac::ADDRESS if has(net_feature::CTRL_MAC_ADDR) => {
                    let mac = data.first_chunk::<MAC>().copied().map(Mac);
                    let mac = mac.filter(|mac| !mac.is_multicast());
                    mac.inspect(|&mac| self.mac = mac).is_some()
                }
                _ => false,
            },
            class::VLAN if has(net_feature::CTRL_VLAN) => self.vlan(number, data),
            class::MQ if has(net_feature::MULTI_QUEUE) && number == control::mq::PAIRS => {
                let pairs = data.first_chunk::<2>().map(|bytes| u16::from_le_bytes(*bytes));
                let pairs = pairs.filter(|pairs| (1..=most_pairs).contains(pairs));
                pairs.inspect(|&pairs| self.pairs = pairs).is_some()
            }
            class::OFFLOADS if has(net_feature::CTRL_GUEST_OFFLOADS) && number == control::offloads::SET => {
                let wanted = data.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
                let wanted = wanted.filter(|wanted| wanted & !(features & SWITCHED) == 0);
                wanted.inspect(|&wanted| self.offloads = wanted).is_some()
            }
            _ => false,
        }
    }

    fn receive(&mut self, number: u8, on: bool) -> bool {
        let flag = match number {
            control::rx::PROMISCUOUS => &mut self.promiscuous,
            control::rx::ALL_MULTICAST => &mut self.all_multicast,
            control::rx::ALL_UNICAST => &mut self.all_unicast,
            control::rx::NO_MULTICAST => &mut self.no_multicast,
            control::rx::NO_UNICAST => &mut self.no_unicast,
            control::rx::NO_BROADCAST => &mut self.no_broadcast,
            _ => return false,
        };
        *flag = on;
        true
    }

    /// Two lists, each with its length in front: unicast and multicast addresses.
    fn table(&mut self, data: &[u8]) -> bool {
        fn list(data: &[u8]) -> Option<(&[u8], &[u8])> {
            let (count, rest) = data.split_first_chunk::<4>()?;
            let bytes = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(MAC)?;
            rest.split_at_checked(bytes)
        }
        let Some((unicast, rest)) = list(data) else { return false };
        let Some((multicast, _)) = list(rest) else { return false };
        self.others = !unicast.is_empty();
        let addresses = multicast.chunks_exact(MAC).filter_map(|bytes| bytes.first_chunk::<MAC>());
        self.multicast = addresses.map(|bytes| Mac(*bytes)).collect();
        self.multicast.sort_unstable();
        self.multicast.dedup();
        true
    }

    fn vlan(&mut self, number: u8, data: &[u8]) -> bool {
        const VLANS: u16 = 4096;
        let id = data.first_chunk::<2>().map(|bytes| u16::from_le_bytes(*bytes));
        let (Some(vlans), Some(id)) = (&mut self.vlans, id.filter(|&id| id < VLANS)) else { return false };
        match number {
            control::vlan::ADD => vlans.insert(id),
            control::vlan::REMOVE => vlans.remove(id),
            _ => return false,
        }
        true
    }
}

/// The running control queue.
#[derive(Debug)]
pub struct ControlQueue {
    queue: Queue,
    /// Number of the virtqueue.
    pub ring: usize,
    memory: MemoryMap,
    segments: Vec<Segment>,
    bytes: Vec<u8>,
    broken: bool,
    served: Option<Instant>,
    /// What its commands have cost, in descriptors.
    overhead: Overhead,
}

/// What came of a poll of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The driver wants to be notified.
    pub notify: bool,
    /// Commands were carried out.
    pub changed: bool,
    /// There is more, for later.
    pub more: bool,
}

impl ControlQueue {
    pub fn new(queue: Queue, ring: usize, memory: &MemoryMap, overhead: Overhead) -> ControlQueue {
        ControlQueue {
            queue,
            ring,
            memory: memory.clone(),
            segments: Vec::new(),
            bytes: Vec::new(),
            broken: false,
            served: None,
            overhead,
        }
    }

    #[inline]
    pub fn waits(&self) -> bool {
        !self.broken && self.queue.is_there(self.queue.next)
    }

    pub fn listen(&mut self) {
        self.queue.listen();
    }

    pub fn suppress_kicks(&mut self) {
        self.queue.suppress_kicks();
    }

    /// Has `apply` carry out the commands that wait.
    pub fn serve(&mut self, now: Instant, mut apply: impl FnMut(&[u8]) -> bool) -> Result<Served, Broken> {
        let mut served = Served::default();
        if !self.waits() {
            return Ok(served);
        }
        if self.served.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            return Ok(Served { more: true, ..served });
        }
        self.served = Some(now);
        for _ in 0..BATCH {
            self.segments.clear();
            let taken = match self.queue.read(self.queue.next, &mut self.segments) {
                Ok(Some(taken)) => taken,
                Ok(None) => break,
                Err(broken) => {
                    self.broken = true;
                    return Err(broken);
                }
            };
            self.queue.next = taken.next();
            let done = self.gather() && apply(&self.bytes);
            self.overhead.add(COMMAND + self.segments.len() + self.bytes.len() / MAC);
            served.changed |= done;
            let written = self.answer(if done { control::OK } else { control::ERROR });
            self.queue.complete(taken.id(), taken.count(), written);
        }
        served.notify = self.queue.publish();
        served.more = self.waits();
        Ok(served)
    }

    /// The bytes that the device reads, once.
    fn gather(&mut self) -> bool {
        self.bytes.clear();
        for segment in self.segments.iter().filter(|segment| !segment.writable) {
            let (at, len) = (self.bytes.len(), segment.len as usize);
            if len > MAX_COMMAND - at {
                return false;
            }
            self.bytes.resize(at + len, 0);
            let read = self.bytes.get_mut(at..).map(|place| self.memory.read(segment.addr, place));
            if !matches!(read, Some(Ok(()))) {
                return false;
            }
        }
        true
    }

    /// The answer is the first byte that the device may write. Returns the bytes written.
    fn answer(&self, answer: u8) -> u32 {
        let place = self.segments.iter().find(|segment| segment.writable && segment.len > 0);
        let Some(place) = place else { return 0 };
        if self.memory.write(place.addr, &[answer]).is_err() {
            return 0;
        }
        if let Some(log) = self.queue.log() {
            log.mark(place.addr, 1);
        }
        1
    }
}

impl Drop for ControlQueue {
    fn drop(&mut self) {
        let next = self.queue.next;
        self.queue.leave(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net_feature::*;

    const OWN: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
    const ALL: u64 = CTRL_RX
        | CTRL_RX_EXTRA
        | CTRL_VLAN
        | CTRL_MAC_ADDR
        | MULTI_QUEUE
        | CTRL_GUEST_OFFLOADS
        | GUEST_CSUM
        | GUEST_TSO4;

    fn command(class: u8, number: u8, data: &[u8]) -> Vec<u8> {
        [&[class, number], data].concat()
    }

    #[test]
    fn receive_modes_addresses_and_vlans() {
        let mut requested = Requested::new(OWN, ALL);
        assert!(requested.filter().promiscuous && requested.filter().all_multicast);
        for number in [control::rx::PROMISCUOUS, control::rx::ALL_MULTICAST] {
            assert!(requested.apply(&command(class::RX, number, &[0]), ALL, 1));
        }
        let group = Mac([1, 0, 0x5e, 0, 0, 9]);
        let filter = requested.filter();
        assert!(filter.accepts(OWN) && filter.accepts(Mac([0xff; 6])) && !filter.accepts(group));
        assert!(!filter.accepts_vlan(7) && filter.accepts_vlan(0));
        let table = [&0u32.to_le_bytes()[..], &1u32.to_le_bytes(), &group.0].concat();
        assert!(requested.apply(&command(class::MAC, control::mac::TABLE, &table), ALL, 1));
        assert!(requested.filter().accepts(group) && !requested.filter().promiscuous);
        assert!(requested.apply(&command(class::VLAN, control::vlan::ADD, &7u16.to_le_bytes()), ALL, 1));
        assert!(requested.filter().accepts_vlan(7));
        assert!(requested.apply(&command(class::VLAN, control::vlan::REMOVE, &7u16.to_le_bytes()), ALL, 1));
        assert!(!requested.filter().accepts_vlan(7));
        let new = Mac([0x52, 0x54, 0, 0, 0, 9]);
        assert!(requested.apply(&command(class::MAC, control::mac::ADDRESS, &new.0), ALL, 1));
        assert!(requested.filter().accepts(new) && !requested.filter().accepts(OWN));
        assert!(requested.apply(&command(class::RX, control::rx::NO_BROADCAST, &[1]), ALL, 1));
        assert!(!requested.filter().accepts(Mac([0xff; 6])));
        // A second unicast address: as promiscuous mode, which the port's policy must allow.
        let table = [&1u32.to_le_bytes()[..], &[2; 6], &0u32.to_le_bytes()].concat();
        assert!(requested.apply(&command(class::MAC, control::mac::TABLE, &table), ALL, 1));
        assert!(requested.filter().promiscuous);
    }

    #[test]
    fn pairs_and_offloads_within_what_was_agreed_on() {
        let mut requested = Requested::new(OWN, ALL);
        let pairs = |count: u16| command(class::MQ, control::mq::PAIRS, &count.to_le_bytes());
        assert!(requested.apply(&pairs(4), ALL, 4) && requested.pairs == 4);
        assert!(!requested.apply(&pairs(0), ALL, 4) && !requested.apply(&pairs(5), ALL, 4));
        let set = |bits: u64| command(class::OFFLOADS, control::offloads::SET, &bits.to_le_bytes());
        assert_eq!(requested.offloads, GUEST_CSUM | GUEST_TSO4);
        assert!(requested.apply(&set(GUEST_CSUM), ALL, 4) && requested.offloads == GUEST_CSUM);
        assert!(!requested.apply(&set(GUEST_TSO6), ALL, 4), "not agreed on");
    }

    #[test]
    fn commands_that_cannot_be_change_nothing() {
        let mut requested = Requested::new(OWN, ALL);
        let before = requested.clone();
        let huge = [u32::MAX.to_le_bytes(), [0; 4]].concat();
        for bad in [
            vec![],
            vec![0],
            command(class::RX, 0, &[]),
            command(class::RX, 6, &[1]),
            command(class::MAC, control::mac::TABLE, &[]),
            command(class::MAC, control::mac::TABLE, &huge),
            command(class::MAC, control::mac::TABLE, &[1, 0, 0, 0, 1, 2, 3]),
            command(class::MAC, control::mac::ADDRESS, &[0; 5]),
            command(class::MAC, control::mac::ADDRESS, &[0xff; 6]),
            command(class::MAC, 2, &[0; 12]),
            command(class::VLAN, control::vlan::ADD, &4096u16.to_le_bytes()),
            command(class::VLAN, control::vlan::ADD, &[1]),
            command(class::VLAN, 2, &[1, 0]),
            command(class::MQ, 1, &[1, 0]),
            command(class::OFFLOADS, control::offloads::SET, &[0; 7]),
            command(99, 0, &[1]),
        ] {
            assert!(!requested.apply(&bad, ALL, 4), "{bad:?}");
        }
        // Nothing was agreed on.
        for class in 0..8 {
            assert!(!requested.apply(&command(class, 0, &[1; 8]), 0, 4));
        }
        assert_eq!(requested, before);
    }
}
