//! Networks as port groups, each on a switch that was theirs: nothing crosses from one switch to another, so
//! networks that were apart stay apart. One whose VLAN or switch is not known has a switch of its own.
//! None is on vmlane's own switch, where the host may already have others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::esxi::{PortGroup, Vlan};
use crate::machine::{MOST_NICS, Machine, Nic, Note};
use crate::names::{Names, quoted};
use crate::network::{Network, Switch, Tagging};

/// vmlane's own switch, and its port group.
const RESERVED: &str = "default";

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

    /// What its port group would best be called.
    fn wish(&self, card: &str) -> String {
        let plain = self.network.wish().unwrap_or_else(|| card.to_owned());
        match &self.tagging {
            Tagging::Access(vlan) => format!("{plain}-vlan{vlan}"),
            Tagging::Trunk(vlans) => {
                let vlans: Vec<String> = vlans.iter().map(u16::to_string).collect();
                format!("{plain}-trunk{}", vlans.join("-"))
            }
            Tagging::Unusable(_) | Tagging::OfNetwork => plain,
        }
    }
}

/// Writes the port groups of all cards, and their switches, each once.
///
/// Returns the names of the port groups, by machine and card.
pub fn write(
    machines: &[Machine],
    names: &[String],
    listed: &[PortGroup],
    toml: &mut String,
    notes: &mut Vec<Note>,
) -> Vec<Vec<String>> {
    let (switches, groups) = (BTreeMap::new(), BTreeMap::new());
    let mut writer = Writer { listed, names: Names::without(RESERVED), toml, notes, switches, groups };
    let machines = machines.iter().zip(names).enumerate().map(|(number, (machine, name))| {
        let cards = machine.nics.iter().take(MOST_NICS).enumerate();
        let groups = cards.map(|(card, nic)| {
            writer.group_of(Key::of(number, card, nic), &format!("{name}: {}", nic.place))
        });
        groups.collect()
    });
    machines.collect()
}

struct Writer<'a> {
    listed: &'a [PortGroup],
    /// Of port groups and of switches: vmlane has a port group for each switch, by its name.
    names: Names,
    toml: &'a mut String,
    notes: &'a mut Vec<Note>,
    switches: BTreeMap<Switch, String>,
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

    /// The VLANs of a network, as vmlane's configuration has them, or why they are not known.
    fn vlan(&self, key: &Key) -> Result<String, String> {
        match &key.tagging {
            Tagging::Access(vlan) => return Ok(vlan.to_string()),
            Tagging::Trunk(vlans) => return Ok(format!("{vlans:?}")),
            Tagging::Unusable(text) => return Err(format!("its VLAN {text:?} is none")),
            Tagging::OfNetwork => {}
        }
        let found = self.find(&key.network);
        let vlans: BTreeSet<&Result<Vlan, String>> = found.iter().map(|group| &group.vlan).collect();
        let mut vlans = vlans.into_iter();
        match (vlans.next(), vlans.next()) {
            (Some(Ok(Vlan::None)), None) => Ok("0".into()),
            (Some(Ok(Vlan::Tagged(vlan))), None) => Ok(vlan.to_string()),
            (Some(Ok(Vlan::Trunk)), None) => Ok(quoted("trunk")),
            (Some(Err(text)), None) => Err(format!(
                "--port-groups lists it with the VLAN ID {text:?}, which is no number from 0 to 4095"
            )),
            (Some(_), Some(_)) => Err("--port-groups lists it several times, with different VLANs".into()),
            (None, _) => Err(self.unlisted(&key.network)),
        }
    }

    /// The switch that a network was of, or why it is not known.
    fn switch(&self, network: &Network) -> Result<Switch, String> {
        if let Some(switch) = network.switch() {
            return Ok(switch);
        }
        let found = self.find(network);
        let switches: BTreeSet<&Option<String>> = found.iter().map(|group| &group.switch).collect();
        let mut switches = switches.into_iter();
        match (switches.next(), switches.next()) {
            (Some(Some(name)), None) => Ok(Switch::Standard(name.clone())),
            (Some(None), None) => Err("--port-groups lists it without its switch".into()),
            (Some(_), Some(_)) => Err("--port-groups lists it on several switches".into()),
            (None, _) => Err(self.unlisted(network)),
        }
    }

    /// Why nothing more is known of a network.
    fn unlisted(&self, network: &Network) -> String {
        match network {
            Network::Alone(why) => why.clone(),
            Network::Distributed { .. } => {
                "no listing of a host has the VLAN of a distributed port group".into()
            }
            Network::Words(_) => "its VLAN is not in this description".into(),
            Network::PortGroup(_) if self.listed.is_empty() => {
                "its VLAN and its switch are not in this description: give --port-groups".into()
            }
            Network::PortGroup(_) => "is none of the port groups that --port-groups lists".into(),
        }
    }

    /// The port group of a network, which is written for its first card.
    fn group_of(&mut self, key: Key, card: &str) -> String {
        if let Some(name) = self.groups.get(&key) {
            return name.clone();
        }
        let wish = key.wish(card);
        let (vlan, switch) = (self.vlan(&key), self.switch(&key.network));
        let name = match (vlan, switch) {
            (Ok(vlan), Ok(switch)) => {
                let switch = self.on(switch);
                let name = self.names.take(&wish, "network");
                self.port_group(&key.network, &name, &switch, &vlan);
                name
            }
            (vlan, switch) => {
                let name = self.names.take(&wish, "network");
                let why = vlan.as_ref().err().cloned().or(switch.err()).unwrap_or_default();
                self.note(&key.network, card, &why, &name);
                self.write_switch(&name, None);
                // Untagged, it meets nothing: nothing else is on this switch.
                self.port_group(&key.network, &name, &name, vlan.as_deref().unwrap_or("0"));
                name
            }
        };
        self.groups.insert(key, name.clone());
        name
    }

    fn note(&mut self, network: &Network, card: &str, why: &str, name: &str) {
        let what = match network {
            Network::Alone(_) => format!("network of {card}"),
            network => network.to_string(),
        };
        let then = format!("{why}; port group {name:?} has a switch of its own: set its switch and vlan");
        self.notes.push(Note { what, then });
    }

    /// The name of a switch, which is written for its first port group.
    fn on(&mut self, switch: Switch) -> String {
        if let Some(name) = self.switches.get(&switch) {
            return name.clone();
        }
        let wish = switch.wish();
        let name = self.names.take(&wish, "switch");
        self.write_switch(&name, (wish != name).then_some(&switch));
        self.switches.insert(switch, name.clone());
        name
    }

    fn write_switch(&mut self, name: &str, was: Option<&Switch>) {
        let name = quoted(name);
        let _ = writeln!(
            self.toml,
            "# Nothing leads out of it until there is an [[uplink]] with switch = {name}."
        );
        let _ = writeln!(self.toml, "[[switch]]\nname = {name}");
        if let Some(was) = was {
            let _ = writeln!(self.toml, "# was {was}");
        }
        self.toml.push('\n');
    }

    fn port_group(&mut self, network: &Network, name: &str, switch: &str, vlan: &str) {
        let _ = writeln!(self.toml, "[[port_group]]\nname = {}", quoted(name));
        if !network.is_called(name) {
            let _ = writeln!(self.toml, "# was {network}");
        }
        let _ = writeln!(self.toml, "switch = {}\nvlan = {vlan}\n", quoted(switch));
    }
}
