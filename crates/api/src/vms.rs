//! VMs that are added, removed and listed while the daemon runs.

use serde::{Deserialize, Serialize};

/// To `vm_add`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmAdded {
    pub name: String,
    #[serde(default)]
    pub cid: Option<u32>,
    /// Where the daemon keeps it.
    pub file: String,
    /// What does not work nevertheless.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// To `vm_remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRemoved {
    pub name: String,
    /// Where the daemon kept it.
    pub file: String,
    /// What does not work nevertheless.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// To `vm_list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmList {
    pub vms: Vec<ListedVm>,
}

/// One VM in [`VmList`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedVm {
    pub name: String,
    /// None for a VM without vsock.
    #[serde(default)]
    pub cid: Option<u32>,
    pub group: String,
    /// `vmci`, `virtio`, `hybrid` or `none`.
    pub vsock: String,
    /// How many it has.
    pub nics: usize,
    /// `UID`, `UID:GID` or `:GID`, if it has one.
    #[serde(default)]
    pub owner: Option<String>,
    /// A VMM is connected.
    pub attached: bool,
    /// It was added at run time; else it is of the configuration.
    pub added: bool,
    /// Where it is described.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// Where its connects to CID 2 lead.
    #[serde(default)]
    pub forwards: Vec<ListedForward>,
}

/// A forward in [`ListedVm`], by the names of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedForward {
    pub port: u32,
    pub to: String,
}
