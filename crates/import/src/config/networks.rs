//! Networks as port groups. Those that were apart stay apart: each has a VLAN of its own unless its
//! VLAN is known, and where two whose VLANs are known meet, there is a note.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::esxi::{PortGroup, Vlan};
use crate::machine::{MOST_NICS, Machine, Nic, Note, joined};
use crate::names::{Names, quoted};
use crate::network::{Network, Tagging};

/// VLANs for networks whose own is not known: first these, then all below.
const APART: std::ops::Range<u16> = 3001..4095;
/// Where vmlane puts cards that name no port group: no network of a description is to be in it.
const RESERVED: &str = "default";
/// Notes on port groups that meet, at most.
const MOST_MEETINGS: usize = 100;

/// What makes two cards be in one port group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    network: Network,
    tagging: Tagging,
    /// The machine and the card, where nothing else identifies the network.
    alone: Option<(usize, usize)>,
}

impl Key {
    fn of(machine: usize, card: usize, nic: &Nic) -> Key {
        let is_alone = matches!(nic.network, Network::Alone(_));
        let alone = is_alone.then_some((machine, card));
        Key { network: nic.network.clone(), tagging: nic.tagging.clone(), alone }
    }
}

/// The VLANs of a port group, as vmlane's configuration has them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tags {
    /// 0: none.
    One(u16),
    Some(Vec<u16>),
    All,
}

impl Tags {
    fn meet(&self, other: &Tags) -> bool {
        match (self, other) {
            (Tags::All, _) | (_, Tags::All) => true,
            (Tags::One(one), Tags::One(other)) => one == other,
            (Tags::One(one), Tags::Some(several)) | (Tags::Some(several), Tags::One(one)) => {
                several.contains(one)
            }
            (Tags::Some(several), Tags::Some(others)) => several.iter().any(|one| others.contains(one)),
        }
    }

    fn toml(&self) -> String {
        match self {
            Tags::One(vlan) => vlan.to_string(),
            Tags::Some(several) => format!("{several:?}"),
            Tags::All => quoted("trunk"),
        }
    }

    /// For notes.
    fn shown(&self) -> String {
        match self {
            Tags::One(0) => "no VLAN".into(),
            Tags::One(vlan) => format!("VLAN {vlan}"),
            Tags::Some(several) => format!("VLANs {several:?}"),
            Tags::All => "all VLANs".into(),
        }
    }

    fn numbers(&self) -> &[u16] {
        match self {
            Tags::One(vlan) => std::slice::from_ref(vlan),
            Tags::Some(several) => several,
            Tags::All => &[],
        }
    }
}

/// A port group that is written.
#[derive(Debug)]
struct Written {
    name: String,
    /// The switch that it was of. Those of one switch were apart by their VLANs only, as they are in vmlane.
    switch: String,
    tags: Tags,
}

/// All VLANs are taken.
#[derive(Clone, Copy, Debug)]
struct NoneLeft;

/// The port groups of cards.
#[derive(Debug)]
pub struct Networks(BTreeMap<Key, String>);

impl Networks {
    /// The port group of a card. None: no VLAN was left for its network, and the card is left out.
    pub fn group_of(&self, machine: usize, card: usize, nic: &Nic) -> Option<&str> {
        self.0.get(&Key::of(machine, card, nic)).map(String::as_str)
    }

    /// Writes the port groups of all cards, each once.
    pub fn write(
        machines: &[Machine],
        names: &[String],
        listed: &[PortGroup],
        toml: &mut String,
        notes: &mut Vec<Note>,
    ) -> Networks {
        let mut writer = Writer {
            listed,
            names: Names::without(RESERVED),
            toml,
            notes,
            written: Vec::new(),
            groups: BTreeMap::new(),
        };
        let mut keys: Vec<(Key, String)> = Vec::new();
        let mut seen = BTreeSet::new();
        for (number, (machine, name)) in machines.iter().zip(names).enumerate() {
            for (card, nic) in machine.nics.iter().enumerate().take(MOST_NICS) {
                let key = Key::of(number, card, nic);
                if seen.insert(key.clone()) {
                    keys.push((key, format!("{name}: {}", nic.place)));
                }
            }
        }
        let known: Vec<Result<Tags, String>> = keys.iter().map(|(key, _)| writer.known(key)).collect();
        let mut used: BTreeSet<u16> = known.iter().flatten().flat_map(Tags::numbers).copied().collect();
        // Also those of the old host that none of these VMs is in: its uplinks carry them, and
        // other VMs will be.
        used.extend(listed.iter().filter_map(|group| match group.vlan {
            Ok(Vlan::Tagged(vlan)) => Some(vlan),
            _ => None,
        }));
        // Untagged frames are those of the uplinks' own networks: nothing that is unknown is put there.
        let mut free = APART.chain(1..APART.start).filter(|vlan| !used.contains(vlan));
        for ((key, card), known) in keys.into_iter().zip(known) {
            let tags = known.or_else(|why| writer.apart(&key, &card, &why, free.next()));
            if let Ok(tags) = tags {
                writer.port_group(key, &card, tags);
            }
        }
        writer.meetings();
        Networks(writer.groups)
    }
}

struct Writer<'a> {
    listed: &'a [PortGroup],
    names: Names,
    toml: &'a mut String,
    notes: &'a mut Vec<Note>,
    written: Vec<Written>,
    groups: BTreeMap<Key, String>,
}

impl Writer<'_> {
    /// The listed port groups of a name: more than one if the listings of several hosts were put together.
    fn find(&self, network: &Network) -> Vec<&PortGroup> {
        match network {
            Network::PortGroup(name) => self.listed.iter().filter(|group| group.name == *name).collect(),
            _ => Vec::new(),
        }
    }

    /// The VLANs of a network, or why they are not known.
    fn known(&self, key: &Key) -> Result<Tags, String> {
        match &key.tagging {
            Tagging::Access(vlan) => return Ok(Tags::One(*vlan)),
            Tagging::Trunk(vlans) => return Ok(Tags::Some(vlans.clone())),
            Tagging::Unusable(text) => return Err(format!("its VLAN {text:?} is none; set vlan yourself")),
            Tagging::OfNetwork => {}
        }
        let found = self.find(&key.network);
        let vlans: BTreeSet<&Result<Vlan, String>> = found.iter().map(|group| &group.vlan).collect();
        let mut vlans = vlans.into_iter();
        match (vlans.next(), vlans.next(), &key.network) {
            (Some(Ok(Vlan::None)), None, _) => Ok(Tags::One(0)),
            (Some(Ok(Vlan::Tagged(vlan))), None, _) => Ok(Tags::One(*vlan)),
            (Some(Ok(Vlan::Trunk)), None, _) => Ok(Tags::All),
            (Some(Err(text)), None, _) => Err(format!(
                "--port-groups lists it with the VLAN ID {text:?}, which is no number from 0 to 4095; set vlan yourself"
            )),
            (Some(_), Some(_), _) => {
                Err("--port-groups lists it several times, with different VLANs; set vlan yourself".into())
            }
            (None, _, Network::Distributed { .. }) => {
                Err("no listing of a host has the VLAN of a distributed port group; set vlan yourself".into())
            }
            (None, _, Network::Alone(why)) => Err(format!("{why}; set port_group or vlan yourself")),
            (None, _, Network::PortGroup(_)) if !self.listed.is_empty() => {
                Err("is none of the port groups that --port-groups lists; set vlan yourself".into())
            }
            (None, _, Network::PortGroup(_)) => {
                Err("its VLAN is not in this description: give --port-groups, or set vlan yourself".into())
            }
            (None, _, Network::Words(_)) => {
                Err("its VLAN is not in this description; set vlan yourself".into())
            }
        }
    }

    /// A VLAN that keeps a network apart from all others.
    fn apart(&mut self, key: &Key, card: &str, why: &str, free: Option<u16>) -> Result<Tags, NoneLeft> {
        let what = match &key.network {
            Network::Alone(_) => format!("network of {card}"),
            network => network.to_string(),
        };
        let Some(vlan) = free else {
            let then =
                format!("{why}; no VLAN is left that keeps it apart from the others: its cards are left out");
            self.notes.push(Note { what, then });
            return Err(NoneLeft);
        };
        let then = format!("{why} ({vlan} keeps it apart from the others here)");
        self.notes.push(Note { what, then });
        Ok(Tags::One(vlan))
    }

    fn port_group(&mut self, key: Key, card: &str, tags: Tags) {
        let plain = key.network.wish().unwrap_or_else(|| card.to_owned());
        let wish = match &key.tagging {
            Tagging::Access(vlan) => format!("{plain}-vlan{vlan}"),
            Tagging::Trunk(vlans) => {
                let vlans: Vec<String> = vlans.iter().map(u16::to_string).collect();
                format!("{plain}-trunk{}", vlans.join("-"))
            }
            Tagging::Unusable(_) | Tagging::OfNetwork => plain,
        };
        let name = self.names.take(&wish, "network");
        let _ = writeln!(self.toml, "[[port_group]]\nname = {}", quoted(&name));
        let was = match &key.network {
            Network::PortGroup(was) if *was == name => None,
            Network::PortGroup(was) => Some(quoted(was)),
            Network::Alone(_) => None,
            Network::Distributed { switch, port_group } => {
                Some(format!("{}, dvs.switchId {}", quoted(port_group), quoted(switch)))
            }
            Network::Words(words) => match words.as_slice() {
                [(_, was)] if *was == name => None,
                [(_, was)] => Some(quoted(was)),
                words => {
                    let words: Vec<String> =
                        words.iter().map(|(key, value)| format!("{key} {}", quoted(value))).collect();
                    Some(words.join(", "))
                }
            },
        };
        if let Some(was) = was {
            let _ = writeln!(self.toml, "# was {was}");
        }
        let _ = writeln!(self.toml, "vlan = {}\n", tags.toml());
        let listed = self.find(&key.network).first().map(|group| group.switch.clone());
        let switch = listed.or_else(|| key.network.switch().map(|(key, value)| format!("{key} {value}")));
        let switch = switch.unwrap_or_else(|| name.clone());
        self.written.push(Written { name: name.clone(), switch, tags });
        self.groups.insert(key, name);
    }

    /// Port groups of several switches are one network in vmlane if their VLANs are the same, and a
    /// trunk has those of all.
    fn meetings(&mut self) {
        let mut notes = Vec::new();
        for (at, one) in self.written.iter().enumerate() {
            let is_trunk = one.tags == Tags::All;
            // A pair is noted once: with its trunk, or with the first of both.
            let is_with_it = |(other_at, other): &(usize, &Written)| {
                other.switch != one.switch
                    && other.tags.meet(&one.tags)
                    && match (is_trunk, other.tags == Tags::All) {
                        (true, false) => true,
                        (false, true) => false,
                        _ => *other_at > at,
                    }
            };
            let met: Vec<&Written> =
                self.written.iter().enumerate().filter(is_with_it).map(|(_, other)| other).collect();
            if met.is_empty() {
                continue;
            }
            let shown =
                |other: &&Written| format!("{:?} ({}, {})", other.name, other.switch, other.tags.shown());
            let others = joined(&met.iter().map(shown).collect::<Vec<String>>());
            let then = if is_trunk {
                format!(
                    "its guests tag: they reached VLANs of {} only, and in vmlane they also reach {others}. Give it the VLANs that it needs (vlan = [10, 20]), or its VMs another group",
                    one.switch
                )
            } else {
                format!(
                    "was apart from {others}, and is one network with each of them in vmlane. Give one of each pair another vlan"
                )
            };
            notes.push(Note {
                what: format!("port group {:?} ({}, {})", one.name, one.switch, one.tags.shown()),
                then,
            });
        }
        let more = notes.len().saturating_sub(MOST_MEETINGS);
        notes.truncate(MOST_MEETINGS);
        self.notes.extend(notes);
        if more > 0 {
            let what = format!("{more} more port groups");
            self.notes.push(Note { what, then: "meet others in the same way".into() });
        }
    }
}
