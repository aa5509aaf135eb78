//! What identifies the network of a card. Cards are in one network only if all of that is equal.

use std::fmt;

/// What a card was joined to.
///
/// Readers put in everything that a description has of it, and leave out only what is known to be
/// of one port. A card of which nothing is known has a network of its own, so no reader can put it
/// beside others by leaving something out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    /// A port group of a standard switch: what listings of a host name.
    PortGroup(String),
    /// A port group of a distributed switch, by both ids. It is never one of a host's, whatever it is called.
    Distributed { switch: String, port_group: String },
    /// Everything else: what the description calls it, each with its value. The network or the
    /// bridge is first, where there is one.
    Words(Vec<(String, String)>),
    /// Nothing that identifies it is known, and why. Each such card is by itself.
    Alone(String),
}

impl Network {
    /// Of words with values; of none, the card is alone.
    pub(crate) fn of(words: Vec<(String, String)>, otherwise: &str) -> Network {
        if words.is_empty() { Network::Alone(otherwise.into()) } else { Network::Words(words) }
    }

    /// What a port group for it would best be called. None: there is nothing to call it after.
    pub(crate) fn wish(&self) -> Option<String> {
        match self {
            Network::PortGroup(name) => Some(name.clone()),
            Network::Distributed { port_group, .. } => Some(port_group.clone()),
            Network::Words(words) => {
                let values: Vec<&str> = words.iter().map(|(_, value)| value.as_str()).collect();
                Some(values.join("-"))
            }
            Network::Alone(_) => None,
        }
    }

    /// Does this name alone identify it, or is there nothing to call it after?
    pub(crate) fn is_called(&self, name: &str) -> bool {
        match self {
            Network::PortGroup(was) => was == name,
            Network::Words(words) => matches!(words.as_slice(), [(_, was)] if was == name),
            Network::Alone(_) => true,
            Network::Distributed { .. } => false,
        }
    }

    /// The switch that it is of, as far as the description itself has it.
    pub(crate) fn switch(&self) -> Option<Switch> {
        match self {
            Network::PortGroup(_) | Network::Alone(_) => None,
            Network::Distributed { switch, .. } => Some(Switch::Distributed(switch.clone())),
            Network::Words(words) => {
                // The portgroups of one of libvirt's networks are on one bridge. Everything else (a
                // profile, a port's number, a mode) may decide where frames of the same VLAN go.
                let words = match words.as_slice() {
                    [network, (portgroup, _)] if network.0 == "network" && portgroup == "portgroup" => {
                        vec![network.clone()]
                    }
                    words => words.to_vec(),
                };
                Some(Switch::Other(Network::Words(words)))
            }
        }
    }

    /// Texts in it that a file has in its own encoding.
    pub(crate) fn texts(&self) -> Vec<&str> {
        match self {
            Network::PortGroup(name) => vec![name],
            Network::Distributed { switch, port_group } => vec![switch, port_group],
            Network::Words(words) => words.iter().map(|(_, value)| value.as_str()).collect(),
            Network::Alone(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Network::PortGroup(name) => write!(f, "network {name:?}"),
            Network::Distributed { switch, port_group } => {
                write!(f, "distributed port group {port_group:?} of the switch {switch:?}")
            }
            Network::Words(words) => {
                for (number, (key, value)) in words.iter().enumerate() {
                    match (number, key.as_str()) {
                        (0, "network") => write!(f, "network {value:?}")?,
                        (0, key) => write!(f, "network {value:?} ({key})")?,
                        (_, key) => write!(f, ", {key} {value:?}")?,
                    }
                }
                Ok(())
            }
            Network::Alone(why) => write!(f, "a network of its own ({why})"),
        }
    }
}

/// What port groups were on: those of one switch were apart by their VLANs only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Switch {
    /// A standard switch of a listing, by its name.
    Standard(String),
    /// By its id.
    Distributed(String),
    /// A network, or a bridge, that is a switch by itself.
    Other(Network),
}

impl Switch {
    /// What it would best be called.
    pub(crate) fn wish(&self) -> String {
        match self {
            Switch::Standard(name) | Switch::Distributed(name) => name.clone(),
            Switch::Other(network) => network.wish().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Switch::Standard(name) => write!(f, "standard switch {name:?}"),
            Switch::Distributed(id) => write!(f, "distributed switch {id:?}"),
            Switch::Other(network) => network.fmt(f),
        }
    }
}

/// The VLANs of a card, as far as the description itself has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tagging {
    /// They are the network's affair.
    #[default]
    OfNetwork,
    /// The switch tags.
    Access(u16),
    /// The guest tags with these.
    Trunk(Vec<u16>),
    /// The description has something that is no VLAN. It still sets the card apart from those that have none.
    Unusable(String),
}
