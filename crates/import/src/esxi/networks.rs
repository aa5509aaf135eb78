//! What the listings of a host come to.

use super::policy::Policies;
use crate::machine::Note;
use crate::network::Switch;

/// Port groups of a listing, at most: ESXi has 512.
pub(crate) const MOST: usize = 4096;

/// What a host prints of its networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The host's, or its file's.
    pub name: String,
    pub(crate) switches: Vec<VirtualSwitch>,
    pub(crate) port_groups: Vec<PortGroup>,
    pub(crate) adapters: Vec<Adapter>,
    /// What of it is not used, or is untried.
    pub notes: Vec<Note>,
}

/// A switch of the host, or its part of a distributed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VirtualSwitch {
    pub of: Switch,
    /// A distributed switch's; a standard one is its name.
    pub name: Option<String>,
    /// None: no listing has them.
    pub uplinks: Option<Vec<String>>,
    pub mtu: Option<u32>,
    pub policies: Policies,
}

/// A port group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortGroup {
    pub name: String,
    /// The switch that it is of. None: no line above it has one.
    pub switch: Option<Switch>,
    /// If it is not known, only this port group is not.
    pub vlan: Result<Vlan, Unknown>,
    pub policies: Policies,
}

/// A network card of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Adapter {
    pub name: String,
    pub mac: String,
    pub mtu: Option<u32>,
}

/// What VMware's VLAN ID of a port group means.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Vlan {
    /// 0.
    None,
    Tagged(u16),
    /// Guests tag, with these; with any if there are none.
    Trunk(Vec<u16>),
}

/// Why the VLAN of a port group is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unknown {
    /// What stands there is no VLAN.
    NoNumber(String),
    /// A setting that vmlane does not have, as a private VLAN: what reaches what in it is not known.
    Setting(String),
    /// No listing has it.
    Missing,
    /// Listings contradict each other.
    Several,
}

impl Vlan {
    /// 4095.
    pub const ALL: Vlan = Vlan::Trunk(Vec::new());

    pub fn parse(text: &str) -> Result<Vlan, String> {
        match text.parse::<u16>() {
            Ok(0) => Ok(Vlan::None),
            Ok(4095) => Ok(Vlan::ALL),
            Ok(vlan) if vlan < 4095 => Ok(Vlan::Tagged(vlan)),
            _ => Err(text.to_owned()),
        }
    }
}
