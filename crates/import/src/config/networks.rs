//! Networks as port groups, each on a switch that was theirs: nothing crosses from one switch to another, so
//! networks that were apart stay apart. One whose VLAN or switch is not known has a switch of its own.
//! None is on vmlane's own switch, where the host may already have others.

use std::collections::BTreeMap;

use super::output::Output;
use super::switches::{self, Listed, begin_group, write_switch};
use crate::esxi::{Host, Security};
use crate::machine::{MOST_NICS, Machine, Nic};
use crate::network::{Network, Switch, Tagging};

/// What makes two cards be in one port group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    network: Network,
    tagging: Tagging,
    /// The machine and the card, where nothing else identifies the network.
    alone: Option<(usize, usize)>,
}

impl Key {
    fn of(place: (usize, usize), nic: &Nic, is_apart: bool) -> Key {
        let is_alone = is_apart || matches!(nic.network, Network::Alone(_));
        let alone = is_alone.then_some(place);
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

/// Writes the listed networks, and those of all cards that are not listed, each once.
///
/// Returns the names of the port groups, by machine and card.
pub fn write(machines: &[Machine], names: &[String], hosts: &[Host], out: &mut Output) -> Vec<Vec<String>> {
    let listed = switches::write(hosts, out);
    let mut writer = Writer { listed, out, switches: BTreeMap::new(), groups: BTreeMap::new() };
    let machines = machines.iter().zip(names).enumerate().map(|(number, (machine, name))| {
        let cards = machine.nics.iter().take(MOST_NICS).enumerate();
        let groups =
            cards.map(|(card, nic)| writer.group_of((number, card), nic, &format!("{name}: {}", nic.place)));
        groups.collect()
    });
    machines.collect()
}

struct Writer<'a> {
    listed: Listed,
    out: &'a mut Output,
    switches: BTreeMap<Switch, String>,
    groups: BTreeMap<Key, String>,
}

impl Writer<'_> {
    /// The VLANs of a network, as vmlane's configuration has them, or why they are not known.
    fn vlan(&self, key: &Key) -> Result<String, String> {
        match &key.tagging {
            Tagging::Access(vlan) => Ok(vlan.to_string()),
            Tagging::Trunk(vlans) => Ok(format!("{vlans:?}")),
            Tagging::Unusable(text) => Err(format!("its VLAN {text:?} is none")),
            Tagging::OfNetwork => Err(self.unlisted(&key.network)),
        }
    }

    /// Why nothing more is known of a network.
    fn unlisted(&self, network: &Network) -> String {
        match network {
            Network::Alone(why) => why.clone(),
            Network::Distributed { .. } if self.listed.is_empty => {
                "its VLAN is not in this description: give --listing".into()
            }
            Network::Words(_) => "its VLAN is not in this description".into(),
            Network::PortGroup(_) if self.listed.is_empty => {
                "its VLAN and its switch are not in this description: give --listing".into()
            }
            Network::PortGroup(_) | Network::Distributed { .. } => {
                "is none of the port groups that --listing has".into()
            }
        }
    }

    /// The port group of a card: a listed one, or one that is written for the first card of its network.
    fn group_of(&mut self, place: (usize, usize), nic: &Nic, card: &str) -> String {
        let listed = self.listed.find(&nic.network).filter(|_| nic.tagging == Tagging::OfNetwork);
        let apart = match listed {
            Some(Ok(name)) => return name.to_owned(),
            Some(Err(why)) => Some(why),
            None => None,
        };
        let key = Key::of(place, nic, apart.is_some());
        if let Some(name) = self.groups.get(&key) {
            return name.clone();
        }
        let wish = key.wish(card);
        let switch = key.network.switch().ok_or_else(|| self.unlisted(&key.network));
        let known = match apart {
            Some(why) => Err(why),
            None => self.vlan(&key).and_then(|vlan| Ok((vlan, switch?))),
        };
        let name = match known {
            Ok((vlan, switch)) => {
                let switch = self.on(switch);
                let name = self.out.names.take(&wish, "network");
                self.port_group(&key.network, &name, &switch, &vlan);
                name
            }
            Err(why) => {
                let name = self.out.names.take(&wish, "network");
                let what = match &key.network {
                    Network::Alone(_) => format!("network of {card}"),
                    network => network.to_string(),
                };
                let then =
                    format!("{why}; port group {name:?} has a switch of its own: set its switch and vlan");
                self.out.note(what, then);
                write_switch(&mut self.out.toml, &name, None, Security::default(), false);
                // Untagged, it meets nothing: nothing else is on this switch.
                let vlan = self.vlan(&key).unwrap_or_else(|_| "0".into());
                self.port_group(&key.network, &name, &name, &vlan);
                name
            }
        };
        self.groups.insert(key, name.clone());
        name
    }

    /// The name of a switch, which is written for its first port group.
    fn on(&mut self, switch: Switch) -> String {
        if let Some(name) = self.switches.get(&switch) {
            return name.clone();
        }
        let wish = switch.wish();
        let name = self.out.names.take(&wish, "switch");
        write_switch(
            &mut self.out.toml,
            &name,
            (wish != name).then_some(&switch),
            Security::default(),
            false,
        );
        self.switches.insert(switch, name.clone());
        name
    }

    fn port_group(&mut self, network: &Network, name: &str, switch: &str, vlan: &str) {
        begin_group(&mut self.out.toml, network, name, switch, vlan);
        self.out.toml.push('\n');
    }
}
