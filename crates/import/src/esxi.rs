//! The networks of an ESXi host, as its tools print them: a text with the output of several commands, as
//! tables, as records, or as JSON, with the commands in front of it or without them. A policy does not name
//! what it is of: only the command above it does.
//!
//! | file | what it reads | public listings |
//! | --- | --- | --- |
//! | `command.rs` | commands, and prompts in front of them | 1 to 4 |
//! | `tables.rs` | `vswitch standard portgroup list`, `nic list`, `esxcfg-vswitch -l` | 1, 2, 3 |
//! | `fields.rs` | `vswitch standard list`, `dvs vmware list` | 1, 2 |
//! | `policy.rs` | `policy security get` | 5, labels only |
//! | `policy.rs` | `policy failover get`, `policy shaping get` | none: untried |
//! | `fields.rs` | JSON of all these | none: untried |
//! | `net_dvs.rs` | `net-dvs -l` | 2, 4; with private VLANs none: untried |
//!
//! Posts of github.com/elatov/elatov.github.io (`_posts`): (1) 2024-01-10, migrating from ESXi to Proxmox;
//! (2) 2012-10-09, VCAP5-DCA objective 2.1; (3) 2018-02-20, I219-V NIC; (4) 2012-09-09, Windows NLB in
//! unicast mode. (5) github.com/josenk/terraform-provider-esxi, `esxi/vswitch_functions.go`, which reads
//! these labels from hosts. Of what is untried, public programs have names of keys.

mod command;
mod fields;
mod net_dvs;
mod policy;
mod reader;
mod tables;

pub(crate) use self::policy::{Balancing, Failover, Policies, Security, Shaping};
use self::reader::Reader;
use crate::kind::{Expected, refuse_others};
use crate::machine::Note;
use crate::network::Switch;
use crate::text;
use crate::{Error, MOST_BYTES};

/// Port groups of a listing, at most: ESXi has 512.
const MOST: usize = 4096;

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

    fn parse(text: &str) -> Result<Vlan, String> {
        match text.parse::<u16>() {
            Ok(0) => Ok(Vlan::None),
            Ok(4095) => Ok(Vlan::ALL),
            Ok(vlan) if vlan < 4095 => Ok(Vlan::Tagged(vlan)),
            _ => Err(text.to_owned()),
        }
    }
}

/// The networks of a host: what its tools print (see above), in one text. `name`: what the host is to be
/// called in notes.
///
/// # Errors
/// It lists no switch and no port group, or too many; its JSON is none.
pub fn host(name: &str, source: impl AsRef<[u8]>) -> Result<Host, Error> {
    let source = source.as_ref();
    if source.len() > MOST_BYTES {
        return Err(Error::TooLong(source.len()));
    }
    refuse_others(source, Expected::Listing)?;
    let source = text::decoded(source, encoding_rs::UTF_8);
    let mut reader = Reader::new(name);
    reader.read(&source)?;
    reader.finish()
}

#[cfg(test)]
mod tests;
