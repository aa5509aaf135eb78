//! What the switch should do, written down once more, without tables, caches, rounds and workers: where a
//! port's frames may go, and with which tag.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use vmlane_guestsim::memory_port::PLAIN;
use vmlane_port::Filter;
use vmlane_switch::Policy;
use vmlane_wire::ethernet::{HEADER, Mac, TAG, Tci};

/// Where a port is. No frame goes from one place to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    Switch { number: u8, group: u8 },
    Wire(u8),
}

/// The VLANs of a port, and who tags.
#[derive(Clone, Debug)]
pub enum Vlans {
    None,
    Access(u16),
    Trunk(Vec<u16>),
    All,
}

#[derive(Clone, Debug)]
pub struct Port {
    /// Its address for its operator; none of an uplink.
    pub own: Mac,
    pub uplink: bool,
    pub place: Place,
    pub vlans: Vlans,
    pub policy: Policy,
    pub filter: Filter,
    pub attached: bool,
}

/// A frame as its sender sends it, perhaps with a tag beside it.
#[derive(Clone, Debug)]
pub struct Frame {
    pub bytes: Vec<u8>,
    pub beside: Option<Tci>,
}

/// The same without its outer tag.
#[derive(Clone)]
pub struct Untagged {
    pub to: Mac,
    pub from: Mac,
    pub tag: Option<Tci>,
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Untagged {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Untagged { to, from, tag, bytes } = self;
        write!(out, "{from} to {to}, {tag:?}, {} bytes", bytes.len())
    }
}

impl Frame {
    /// None: it is no frame.
    pub fn untagged(&self) -> Option<Untagged> {
        let mut bytes = self.bytes.clone();
        let mut tag = self.beside;
        if tag.is_none() && bytes.get(12..14)? == [0x81, 0x00] {
            tag = Some(Tci(u16::from_be_bytes(*bytes.get(14..)?.first_chunk()?)));
            bytes.drain(12..12 + TAG);
        }
        let to = Mac(*bytes.first_chunk()?);
        let from = Mac(*bytes.get(6..)?.first_chunk()?);
        (bytes.len() >= HEADER).then_some(Untagged { to, from, tag, bytes })
    }
}

impl Untagged {
    /// Tags within the frame, of those that a port takes beside its MTU.
    fn inner_tags(&self) -> usize {
        let types = self.bytes[HEADER - 2..].chunks(TAG).take(2);
        types.take_while(|at| at.starts_with(&[0x81, 0x00]) || at.starts_with(&[0x88, 0xa8])).count()
    }
}

impl Vlans {
    fn contain(&self, vlan: u16) -> bool {
        match self {
            Vlans::None => vlan == 0,
            Vlans::Access(own) => vlan == *own,
            Vlans::Trunk(list) => list.contains(&vlan),
            Vlans::All => true,
        }
    }

    /// The VLAN of what the port sends with this tag.
    fn of_sent(&self, tag: Option<Tci>) -> Option<u16> {
        let tagged = tag.map_or(0, Tci::vlan);
        match self {
            Vlans::Access(own) => (tagged == 0).then_some(*own),
            _ => self.contain(tagged).then_some(tagged),
        }
    }
}

impl Port {
    fn changed_its_address(&self) -> bool {
        !self.uplink && self.filter.mac.is_unicast() && self.filter.mac != self.own
    }

    fn blocked(&self) -> bool {
        self.changed_its_address() && !self.policy.mac_changes
    }

    pub fn address(&self) -> Mac {
        if self.changed_its_address() && !self.blocked() { self.filter.mac } else { self.own }
    }

    fn on_wire(&self) -> bool {
        matches!(self.place, Place::Wire(_))
    }

    /// Gets frames to addresses that no one is known to have.
    fn wants_unknown(&self) -> bool {
        let Policy { promiscuous, forged_transmits, .. } = self.policy;
        self.filter.promiscuous && (self.uplink || promiscuous || forged_transmits)
    }

    /// Gets also what is for others.
    fn watches(&self) -> bool {
        self.filter.promiscuous && self.policy.promiscuous && !self.uplink
    }

    /// The VLAN of what it sends, if it may send it.
    fn sends(&self, frame: &Untagged) -> Option<u16> {
        let vlan = self.vlans.of_sent(frame.tag)?;
        let forged = !self.uplink && frame.from != self.address() && !self.policy.forged_transmits;
        (self.on_wire() || frame.from.is_unicast() && !forged).then_some(vlan)
    }

    /// The tag that its guest sees; None: its guest does not get the frame.
    fn sees(&self, frame: &Untagged, vlan: u16) -> Option<Option<Tci>> {
        let for_it = if frame.to == self.address() {
            self.filter.unicast || self.filter.promiscuous
        } else {
            // On a switch, it was chosen for its filter.
            self.wants_unknown() || frame.to.is_multicast() && (!self.on_wire() || self.accepts(frame.to))
        };
        let by_guest = matches!(self.vlans, Vlans::Trunk(_) | Vlans::All);
        let filtered = vlan != 0 && by_guest && !self.filter.promiscuous && !self.filter.accepts_vlan(vlan);
        let tag = match self.vlans {
            Vlans::Access(_) => None,
            _ if vlan == 0 => frame.tag,
            _ => Some(frame.tag.unwrap_or_default().with_vlan(vlan)),
        };
        let fits = frame.bytes.len() <= PLAIN.frame + TAG * frame.inner_tags();
        (for_it && fits && !filtered && !self.blocked()).then_some(tag)
    }

    fn accepts(&self, to: Mac) -> bool {
        self.filter.promiscuous || self.filter.accepts(to)
    }
}

/// An address that was seen behind a port that has another one: where, and in which VLAN.
pub type Seen = (Place, Mac, u16);

/// The address that a frame has its switch learn.
pub fn learned(ports: &[Port], sender: usize, frame: &Untagged) -> Option<Seen> {
    let port = &ports[sender];
    let vlan = port.sends(frame)?;
    let foreign = port.uplink || frame.from != port.address();
    let known = holders(ports, port.place, frame.from).next().is_some();
    (!port.on_wire() && foreign && !known).then_some((port.place, frame.from, vlan))
}

/// The VMs' ports that have this address: those that have it from their operator come first.
fn holders(ports: &[Port], place: Place, address: Mac) -> impl Iterator<Item = usize> {
    let have = move |&at: &usize| {
        let port = &ports[at];
        port.attached && !port.uplink && port.place == place && port.address() == address
    };
    let given = move |at: &usize| ports[*at].own == address;
    let all = || (0..ports.len()).filter(have);
    all().filter(given).chain(all().filter(move |at| !given(at)))
}

/// Is this port the one that frames to this address are for, where it is?
pub fn has(ports: &[Port], at: usize, address: Mac) -> bool {
    holders(ports, ports[at].place, address).next() == Some(at)
}

/// Who gets a frame, and the tag that each of them sees. `behind`: the port behind which its destination was
/// seen.
pub fn receivers(
    ports: &[Port],
    sender: usize,
    frame: &Untagged,
    behind: Option<usize>,
) -> BTreeMap<usize, Option<Tci>> {
    let from = &ports[sender];
    let Some(vlan) = from.sends(frame) else { return BTreeMap::new() };
    let others = || (0..ports.len()).filter(|&at| at != sender && ports[at].attached);
    let beside = others().filter(|&at| ports[at].place == from.place).collect::<Vec<_>>();
    let chosen = match from.place {
        Place::Wire(_) => {
            if beside.len() == 1 {
                beside
            } else {
                Vec::new()
            }
        }
        Place::Switch { .. } => {
            let reached = |at: &usize| ports[*at].vlans.contain(vlan) && !(from.uplink && ports[*at].uplink);
            let members: Vec<usize> = beside.into_iter().filter(reached).collect();
            on_switch(ports, (sender, &members), frame, behind)
        }
    };
    chosen.into_iter().filter_map(|at| Some((at, ports[at].sees(frame, vlan)?))).collect()
}

/// Which of these members of its VLAN a switch chooses.
fn on_switch(
    ports: &[Port],
    (sender, members): (usize, &[usize]),
    frame: &Untagged,
    behind: Option<usize>,
) -> Vec<usize> {
    let all = |want: &dyn Fn(&Port) -> bool| -> Vec<usize> {
        members.iter().copied().filter(|&at| want(&ports[at])).collect()
    };
    let one = |one: usize| [vec![one], all(&Port::watches)].concat();
    if frame.to.is_multicast() {
        return all(&|port| port.wants_unknown() || port.filter.accepts(frame.to));
    }
    let known = holders(ports, ports[sender].place, frame.to).find(|at| members.contains(at));
    match (known, behind) {
        (Some(at), _) => one(at),
        // For itself, or for what is behind it: no one else sees it.
        _ if frame.to == ports[sender].address() => Vec::new(),
        (_, Some(at)) if at == sender => Vec::new(),
        (_, Some(at)) if members.contains(&at) => one(at),
        _ => all(&Port::wants_unknown),
    }
}

/// The ports behind which an address may have been seen last; None: none of them.
pub type Behind = BTreeSet<Option<usize>>;

/// Where addresses were seen, as far as the order of frames on their way leaves no doubt.
#[derive(Clone, Default)]
pub struct Learned(HashMap<Seen, Behind>);

impl Learned {
    pub fn behind(&self, seen: &Seen) -> Behind {
        self.0.get(seen).cloned().unwrap_or_else(|| Behind::from([None]))
    }

    /// Where the address is after a frame from `sender`: what is outside the host stays there.
    pub fn moved(ports: &[Port], before: &Behind, sender: usize) -> Behind {
        let stays = |at: usize| ports[at].uplink && !ports[sender].uplink;
        before.iter().map(|at| Some(at.filter(|&at| stays(at)).unwrap_or(sender))).collect()
    }

    /// Frames of these senders came from the address, in an order that is not known.
    pub fn add(&mut self, ports: &[Port], seen: Seen, senders: &BTreeSet<usize>) {
        let mut behind = self.behind(&seen);
        for sender in senders.iter().chain(senders) {
            behind.extend(Learned::moved(ports, &behind, *sender));
        }
        self.0.insert(seen, behind);
    }

    /// Frames of this sender alone came from the address.
    pub fn set(&mut self, ports: &[Port], seen: Seen, sender: usize) {
        let behind = Learned::moved(ports, &self.behind(&seen), sender);
        self.0.insert(seen, behind);
    }

    /// The address was seen where the other one has it.
    pub fn copy(&mut self, other: &Learned, seen: Seen) {
        self.0.insert(seen, other.behind(&seen));
    }

    /// What was seen behind a port may be forgotten; `surely`: it is.
    pub fn forget(&mut self, port: usize, surely: impl Fn(&Seen) -> bool) {
        for (seen, behind) in &mut self.0 {
            if behind.contains(&Some(port)) {
                behind.insert(None);
                if surely(seen) {
                    behind.remove(&Some(port));
                }
            }
        }
    }
}

/// The address that a frame goes to, as one that may have been seen.
pub fn destination(ports: &[Port], sender: usize, frame: &Untagged) -> Option<Seen> {
    let vlan = ports[sender].sends(frame)?;
    Some((ports[sender].place, frame.to, vlan))
}
