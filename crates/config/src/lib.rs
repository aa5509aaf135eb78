//! The configuration: what its files may contain, checked as a whole before any of it takes effect. Nothing
//! else sees text from the files.
//!
//! [`Sources`] are the files, as they were read. [`Config::check`] makes one document of them (`merge.rs`),
//! with the place of every value (`raw.rs`), and has each section checked: a file here for each, whose
//! `judge` makes its part of the [`Config`] and leaves mistakes in the notes (`notes.rs`). The result is a
//! configuration, or everything that is wrong with it, each with its line. [`plan::plan`] finds what of a new
//! one a daemon can apply while VMs run.
//!
//! | file | what |
//! | --- | --- |
//! | `sources.rs`, `added.rs`, `files.rs`, `trusted.rs` | files: of the configuration; of VMs that were added at run time; as they are in force; as helpers with rights read them |
//! | `merge.rs`, `raw.rs`, `values.rs`, `shape.rs` | several files as one document; its keys; sizes and the like; messages about keys and kinds of values, and the JSON schema |
//! | `reference.rs` | all keys for readers, from `raw.rs` |
//! | `notes.rs`, `error.rs` | mistakes |
//! | `config.rs` | the whole, and the order of the checks |
//! | `daemon.rs`, `cpus.rs` | `[daemon]` |
//! | `topology.rs` | how many workers there are, and where they run |
//! | `vm.rs`, `vsock.rs`, `hybrid.rs`, `forward.rs`, `nic.rs`, `limits.rs`, `owner.rs`, `role.rs` | `[[vm]]`, each by itself |
//! | `unique.rs`, `targets.rs`, `fits.rs`, `memory.rs`, `ports.rs`, `ends.rs` | what VMs have of their own, where forwards lead, what goes together, what mirrors and wires may name |
//! | `port_group.rs`, `traffic.rs`, `vlan.rs`, `uplink.rs`, `team.rs`, `mirror.rs`, `wire.rs`, `impair.rs`, `ovn.rs` | the switch, and what is on none |
//! | `route.rs`, `rules.rs` | other hosts; who may what |
//! | `plan.rs` | what a reload does |
//! | `findings.rs`, `interrupts.rs`, `mtu.rs` | `vmlane check` |
//! | `paths.rs`, `names.rs` | where sockets are, what NICs are called |
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod added;
mod config;
mod cpus;
mod daemon;
mod ends;
mod error;
pub mod files;
pub mod findings;
mod fits;
mod forward;
mod hybrid;
mod impair;
mod interrupts;
mod limits;
mod memory;
mod merge;
mod mirror;
mod mtu;
mod names;
mod nic;
mod notes;
pub mod ovn;
mod owner;
pub mod paths;
pub mod plan;
mod port_group;
mod ports;
mod raw;
pub mod reference;
mod role;
mod route;
mod rules;
mod shape;
pub mod sources;
mod switch;
mod targets;
mod team;
#[cfg(test)]
mod tests;
mod topology;
mod traffic;
pub mod trusted;
mod unique;
mod uplink;
mod values;
mod vlan;
mod vm;
mod vsock;
pub mod wire;

pub use config::Config;
pub use cpus::CpuList;
pub use daemon::{DaemonConfig, FaultLimit, LogFormat, Mode, Workers};
pub use error::{ConfigError, Problem};
pub use forward::ForwardConfig;
pub use hybrid::HybridConfig;
pub use impair::impair_changed;
pub use limits::Limits;
pub use memory::host_memory;
pub use mirror::MirrorConfig;
pub use names::nic_name;
pub use nic::{FIRST_NICS, MOST_NICS, NicConfig, NicModel, VirtioNet};
pub use ovn::{OvnConfig, OvnNic};
pub use port_group::PortGroupConfig;
pub use role::Role;
pub use route::{PeerConfig, RouteConfig};
pub use rules::ControlRule;
pub use sources::Sources;
pub use team::TeamConfig;
pub use topology::{Placement, WorkerKind};
pub use uplink::{Listens, MOST_QUEUES, UplinkConfig, UplinkKind};
pub use vlan::Vlan;
pub use vm::{VmConfig, VmPlace};
pub use vsock::Vsock;
pub use wire::WireConfig;

/// Exit code of a process whose configuration is wrong: `EX_CONFIG` of sysexits.h. A service manager need not
/// try again (`RestartPreventExitStatus=` in packaging/systemd/vmlane.service).
pub const EXIT_CODE: u8 = 78;
/// Where the configuration is unless another file is named.
pub const DEFAULT_PATH: &str = "/etc/vmlane/vmlane.toml";
