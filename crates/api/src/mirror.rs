//! Mirrors of the switch as they are asked for and shown.

use serde::{Deserialize, Serialize};

use crate::counters::CounterList;

/// A mirror that lasts until it is removed or the daemon ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorRequest {
    pub name: String,
    /// NICs (`VM/nicN`), uplinks, port groups.
    pub from: Vec<String>,
    /// A NIC or an uplink.
    pub to: String,
    /// `in`, `out` or `both`; both by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<String>,
    /// The tag of all copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Bytes of each frame that are copied; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snap: Option<u64>,
}

/// A mirror in [`crate::Ports`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    pub name: String,
    /// NICs, uplinks and port groups, as the operator wrote them.
    pub from: Vec<String>,
    /// The ports that these are now.
    pub ports: Vec<String>,
    pub to: String,
    /// `in`, `out` or `both`.
    pub direction: String,
    /// The tag of all copies; none: their own.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// Bytes of each frame that are copied; none: all.
    #[serde(default)]
    pub snap: Option<u64>,
    /// It is of the configuration; else it ends with the daemon.
    pub configured: bool,
    /// Copies that were delivered.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies that were not.
    pub dropped: u64,
    /// Why not: counters that are not 0.
    #[serde(default)]
    pub drops: CounterList,
}
