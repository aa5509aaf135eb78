//! NICs that are ports of OVN's integration bridge, between the daemon and its helper.

use serde::{Deserialize, Serialize};

/// What the helper has found out about a NIC's port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OvnReport {
    pub vm: String,
    /// `nic0`, `nic1` ...
    pub nic: String,
    /// `bound`: OVN has the logical port here, and its flows are in place. `waiting`: it has not yet. `down`:
    /// it is not to be here. `failed`: `problem` is the reason.
    pub state: String,
    /// What is wrong or missing; empty if nothing is.
    pub problem: String,
    /// The bridge takes super-frames.
    pub whole: bool,
}

/// To `ovn`: every NIC that is a port of OVN's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OvnEntries {
    pub entries: Vec<OvnEntry>,
}

/// One NIC. What its port is called and where it is, the helper reads in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OvnEntry {
    pub vm: String,
    pub nic: String,
    /// A VMM is connected, and the operator has not set the link down.
    pub up: bool,
}

/// The port of a NIC, in [`NicStatus`](crate::NicStatus).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OvnStatus {
    /// The logical port, as the configuration names it.
    pub port: String,
    /// As in [`OvnReport`]; `no helper` if none has asked for a while.
    pub state: String,
    pub problem: String,
    /// Super-frames stay whole.
    pub whole: bool,
}
