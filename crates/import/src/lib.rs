//! VMs as other systems describe them, as machines of one kind, and those as configuration of vmlane and words for QEMU.
//!
//! | file | what |
//! | --- | --- |
//! | `machine.rs` | a VM as some other system described it, and what cannot be carried over |
//! | `vmx.rs`, `vmx/` | VMware's configuration files |
//! | `ovf.rs` | OVF envelopes, as VMware exports them |
//! | `libvirt.rs` | libvirt's domains |
//! | `esxi.rs` | port groups of a standard switch, as ESXi's tools print them |
//! | `names.rs` | names that vmlane takes, of those that others gave |
//! | `config.rs` | vmlane's configuration |
//! | `qemu.rs` | what else QEMU needs: processors, memory, disks |
//!
//! Files are of strangers: nothing in them is believed to be short, unique or valid.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod config;
mod esxi;
mod libvirt;
mod machine;
mod names;
mod ovf;
mod qemu;
mod vmx;
mod xml;

pub use config::{Configuration, Options, configuration};
pub use esxi::{PortGroup, Vlan, port_groups};
pub use libvirt::libvirt;
pub use machine::{Bus, Disk, Machine, Nic, NicModel, Note};
pub use ovf::ovf;
pub use qemu::words;
pub use vmx::vmx;

/// Bytes of a description, at most.
pub const MOST_BYTES: usize = 8 << 20;
/// VMs of one description, at most.
pub const MOST_MACHINES: usize = 256;

/// Why a description cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("it has {0} bytes; a description has {MOST_BYTES} at most")]
    TooLong(usize),
    #[error("line {line}: {what}")]
    Line { line: usize, what: String },
    #[error("{0}")]
    Xml(String),
    #[error("it describes no VM: {0}")]
    NoMachine(&'static str),
    #[error("it describes {0} VMs; {MOST_MACHINES} at most")]
    TooMany(usize),
    #[error(
        "it lists no port group: give the output of `esxcli network vswitch standard portgroup list` or `esxcfg-vswitch -l`"
    )]
    NoPortGroup,
}

impl Error {
    fn line(line: usize, what: impl Into<String>) -> Error {
        Error::Line { line, what: what.into() }
    }
}
