//! Multicast kept to the ports that asked for it: which groups a port's guest is in, from its IGMP (RFC 2236,
//! RFC 3376) and MLD (RFC 2710, RFC 3810) reports, and which ports have routers behind them.
//!
//! A group is known by its Ethernet address in a VLAN, as NICs filter it. The bounds are those of one port: a
//! guest that joins more groups than its port remembers is refused the rest, which is counted, and gets all
//! multicast that its filter takes, as on a switch that keeps nothing to anyone. No other port notices.

mod query;
mod snoop;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use vmlane_wire::ethernet::Mac;

use query::{Answers, QUERY_EVERY};
pub use snoop::{ask_for_groups, classify};

/// Groups that a port may be in.
pub const MOST_GROUPS: usize = 256;
/// How long a group is kept to a port that reports nothing more of it, and a port counts as a router's: two
/// queries that are lost, and the time for an answer (RFC 3376, section 8).
pub const KEPT: Duration = Duration::from_secs(260);
/// Between the first two of a port.
const FIRST_QUERIES: Duration = Duration::from_secs(31);
/// How long a port gets everything when it is new: its guest has not been asked yet.
const LEARNING: Duration = Duration::from_secs(15);
/// How long others behind the port of one that leaves a group may report that they are still in it.
const LEAVING: Duration = Duration::from_secs(2);
/// Between two sweeps of groups that have ended, at least.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(1);
/// Between two queries, at least: a guest may leave and join without end.
const BETWEEN_QUERIES: Duration = Duration::from_secs(1);

/// What a frame to a group address is, and its group.
pub type Group = (Kind, u64);

/// Of frames that are not examined.
pub const ANY: Group = (Kind::All, 0);

/// What a frame to a group address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// For all of the VLAN: broadcast, link-local groups, protocols that no one asks for.
    All,
    /// For those who asked.
    Group,
    /// A report: for routers alone, because others in the group would then keep quiet.
    Report,
}

/// A group in a VLAN, as a number.
#[inline]
pub fn group_key(vlan: u16, address: Mac) -> u64 {
    let [a, b, c, d, e, f] = address.0;
    u64::from(vlan) << 48 | u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// A guest's word on one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Join(Mac),
    Leave(Mac),
}

/// What IGMP or MLD reports in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'p> {
    /// Of a router, about all groups or one.
    Query,
    One(Change),
    /// Records of a report of version 3 (IGMP) or 2 (MLD): how many, and their bytes.
    Records {
        v6: bool,
        count: u16,
        bytes: &'p [u8],
    },
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

/// The Ethernet address of an IPv4 group (RFC 1112, section 6.4).
fn v4_group(address: &[u8]) -> Option<Mac> {
    match *address.first_chunk::<4>()? {
        // Those of the link go to all anyway.
        [224, 0, 0, _] => None,
        [224..=239, b, c, d] => Some(Mac([1, 0, 0x5e, b & 0x7f, c, d])),
        _ => None,
    }
}

/// The same of IPv6 (RFC 2464, section 7).
fn v6_group(address: &[u8]) -> Option<Mac> {
    match *address.first_chunk::<16>()? {
        [0xff, scope, .., a, b, c, d] if scope & 0xf > 2 => Some(Mac([0x33, 0x33, a, b, c, d])),
        _ => None,
    }
}

const IGMP: u8 = 2;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;

/// What kind of frame it is that goes to a group address, by the packet in it. `packet`: its first bytes
/// behind the Ethernet header, at least those of the IP header.
pub fn kind(to: Mac, ether_type: u16, packet: &[u8]) -> Kind {
    use vmlane_wire::ethernet::ether_type::{IPV4, IPV6};
    match (ether_type, to.0) {
        (IPV4, [1, 0, 0x5e, ..]) => match packet.get(16..).and_then(v4_group) {
            Some(_) if packet.get(9) == Some(&IGMP) => Kind::Report,
            Some(_) => Kind::Group,
            None => Kind::All,
        },
        (IPV6, [0x33, 0x33, ..]) => match packet.get(24..).and_then(v6_group) {
            Some(_) if is_mld(packet) => Kind::Report,
            Some(_) => Kind::Group,
            None => Kind::All,
        },
        _ => Kind::All,
    }
}

/// Behind a hop-by-hop header (the router alert): reports of MLD.
fn is_mld(packet: &[u8]) -> bool {
    packet.get(6) == Some(&HOP_BY_HOP)
        && packet.get(40) == Some(&ICMPV6)
        && mld_at(packet).and_then(|at| packet.get(at)).is_some_and(|kind| matches!(kind, 131 | 132 | 143))
}

fn mld_at(packet: &[u8]) -> Option<usize> {
    (packet.get(6) == Some(&HOP_BY_HOP) && packet.get(40) == Some(&ICMPV6))
        .then_some(40 + (usize::from(*packet.get(41)?) + 1) * 8)
}

/// The IGMP or MLD message in a packet, if there is one.
pub fn message(ether_type: u16, packet: &[u8]) -> Option<Message<'_>> {
    use vmlane_wire::ethernet::ether_type::{IPV4, IPV6};
    match ether_type {
        IPV4 => igmp(packet),
        IPV6 => mld(packet),
        _ => None,
    }
}

fn igmp(packet: &[u8]) -> Option<Message<'_>> {
    let header = usize::from(packet.first()? & 0xf) * 4;
    let end = usize::from(word(packet, 2)?);
    let unfragmented = word(packet, 6)? & 0x3fff == 0;
    if packet.first()? >> 4 != 4 || header < 20 || packet.get(9) != Some(&IGMP) || !unfragmented {
        return None;
    }
    let igmp = packet.get(header..end.min(packet.len()))?;
    let address = igmp.get(4..8)?;
    match igmp.first()? {
        0x11 => Some(Message::Query),
        0x12 | 0x16 => v4_group(address).map(|group| Message::One(Change::Join(group))),
        0x17 => v4_group(address).map(|group| Message::One(Change::Leave(group))),
        0x22 => Some(Message::Records { v6: false, count: word(igmp, 6)?, bytes: igmp.get(8..)? }),
        _ => None,
    }
}

fn mld(packet: &[u8]) -> Option<Message<'_>> {
    let end = 40 + usize::from(word(packet, 4)?);
    let mld = packet.get(mld_at(packet)?..end.min(packet.len()))?;
    let address = || mld.get(8..24).and_then(v6_group);
    match mld.first()? {
        130 => Some(Message::Query),
        131 => address().map(|group| Message::One(Change::Join(group))),
        132 => address().map(|group| Message::One(Change::Leave(group))),
        143 => Some(Message::Records { v6: true, count: word(mld, 6)?, bytes: mld.get(8..)? }),
        _ => None,
    }
}

/// The records of a report: what each reports of its group. Ends with the bytes, whatever `count` is.
pub fn records(v6: bool, count: u16, bytes: &[u8]) -> impl Iterator<Item = Change> {
    let address = if v6 { 16 } else { 4 };
    let mut rest = bytes;
    (0..count)
        .map_while(move |_| {
            let (kind, auxiliary, sources) = (*rest.first()?, *rest.get(1)?, word(rest, 2)?);
            let group = rest.get(4..4 + address)?;
            let group = if v6 { v6_group(group) } else { v4_group(group) };
            let len = 4 + address + usize::from(sources) * address + usize::from(auxiliary) * 4;
            rest = rest.get(len..).unwrap_or_default();
            Some(group.and_then(|group| match (kind, sources) {
                // Is and becomes EXCLUDE, is and becomes INCLUDE, allows sources.
                (2 | 4, _) | (1 | 3 | 5, 1..) => Some(Change::Join(group)),
                (3, 0) => Some(Change::Leave(group)),
                _ => None,
            }))
        })
        .flatten()
}

#[derive(Clone, Copy, Debug)]
struct Membership {
    key: u64,
    until: Instant,
}

/// What is known of one port.
#[derive(Debug)]
pub struct Snooped {
    /// Sorted by key.
    groups: Vec<Membership>,
    /// A router is behind it until then: it gets everything.
    router: Option<Instant>,
    /// It gets everything until then: it is new, or in more groups than it may be.
    everything: Option<Instant>,
    next_query: Instant,
    last_query: Option<Instant>,
    /// Someone behind it has left a group.
    left: bool,
    /// When the groups that had ended were last taken out.
    swept: Option<Instant>,
}

impl Snooped {
    pub fn new(now: Instant) -> Snooped {
        Snooped {
            groups: Vec::with_capacity(MOST_GROUPS),
            router: None,
            everything: Some(now + LEARNING),
            next_query: now,
            last_query: None,
            left: false,
            swept: None,
        }
    }

    /// Does the port get a frame of this kind to the group?
    #[inline]
    pub fn wants(&self, kind: Kind, key: u64, now: Instant) -> bool {
        match kind {
            Kind::All => true,
            Kind::Report => self.router.is_some_and(|until| now < until),
            Kind::Group => {
                [self.router, self.everything].into_iter().flatten().any(|until| now < until)
                    || self.find(key).is_ok_and(|at| self.groups.get(at).is_some_and(|one| now < one.until))
            }
        }
    }

    fn find(&self, key: u64) -> Result<usize, usize> {
        self.groups.binary_search_by_key(&key, |one| one.key)
    }

    /// A query came from behind it.
    pub fn note_router(&mut self, now: Instant) {
        self.router = Some(now + KEPT);
    }

    /// Its guest joins or leaves a group. False: it is in as many as it may be.
    pub fn change(&mut self, vlan: u16, change: Change, now: Instant) -> bool {
        match change {
            Change::Join(group) => self.join(group_key(vlan, group), now),
            Change::Leave(group) => {
                if let Ok(at) = self.find(group_key(vlan, group))
                    && let Some(one) = self.groups.get_mut(at)
                {
                    // Another one behind the port may be in the group: it is asked at once.
                    one.until = one.until.min(now + LEAVING);
                    self.left = true;
                    let soonest = self.last_query.map_or(now, |last| now.max(last + BETWEEN_QUERIES));
                    self.next_query = self.next_query.min(soonest);
                }
                true
            }
        }
    }

    fn join(&mut self, key: u64, now: Instant) -> bool {
        let until = now + KEPT;
        match self.find(key) {
            Ok(at) => self.groups.iter_mut().skip(at).take(1).for_each(|one| one.until = until),
            Err(_) if self.groups.len() >= MOST_GROUPS => {
                // Hardly ever: a guest may try to join without end.
                if self.swept.is_none_or(|last| now >= last + BETWEEN_SWEEPS) {
                    self.swept = Some(now);
                    self.groups.retain(|one| now < one.until);
                }
                if self.groups.len() >= MOST_GROUPS {
                    self.everything = Some(until);
                    return false;
                }
                return self.join(key, now);
            }
            Err(at) => self.groups.insert(at, Membership { key, until }),
        }
        true
    }

    /// Is its guest to be asked for its groups now, and how soon is it to answer?
    pub fn asks(&mut self, now: Instant) -> Option<Answers> {
        if now < self.next_query {
            return None;
        }
        self.next_query = now + if self.last_query.is_none() { FIRST_QUERIES } else { QUERY_EVERY };
        self.last_query = Some(now);
        Some(if std::mem::take(&mut self.left) { Answers::Soon } else { Answers::Spread })
    }

    /// The next VLAN above `vlan` in which it is in any group.
    pub fn vlan_after(&self, vlan: u16) -> Option<u16> {
        let next = self.groups.partition_point(|one| one.key >> 48 <= u64::from(vlan));
        self.groups.get(next).map(|one| (one.key >> 48) as u16)
    }
}
