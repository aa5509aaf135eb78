//! VMs as other systems describe them, as machines of one kind, and those as configuration of
//! vmlane and words for QEMU.
//!
//! | file | what |
//! | --- | --- |
//! | `kind.rs` | files that are no description, by what they are |
//! | `text.rs` | text in the encoding that a file names |
//! | `machine.rs` | a VM as some other system described it, and what cannot be carried over |
//! | `network.rs` | what identifies a card's network |
//! | `image.rs` | files of disks, and what they name |
//! | `vmx.rs`, `vmx/` | VMware's configuration files |
//! | `ovf.rs`, `ovf/` | OVF envelopes, as VMware exports them |
//! | `libvirt.rs`, `libvirt/` | libvirt's domains |
//! | `esxi.rs`, `esxi/` | the networks of a host, as ESXi's tools print them |
//! | `names.rs` | names that vmlane takes, of those that others gave |
//! | `config.rs`, `config/` | vmlane's configuration |
//! | `qemu.rs` | what else QEMU needs: processors, memory, disks |
//!
//! Files are of strangers: nothing in them is believed to be short, unique or valid. All readers
//! follow one rule:
//!
//! * What identifies a network is never dropped ([`Network`]): networks that were apart stay apart.
//! * What is not understood is noted. Each reader has a closed list of what may be left out without
//!   a word; all that is neither read nor in that list becomes a [`Note`].
//! * A bad line refuses only what it is about.
//! * A file of another kind is named as what it is ([`Error::Kind`]).

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod config;
mod esxi;
mod image;
mod kind;
mod libvirt;
mod machine;
mod names;
mod network;
mod ovf;
mod qemu;
mod text;
mod vmx;
mod xml;

pub use config::{Configuration, Options, configuration};
pub use esxi::{Host, host};
pub use image::{Format, Image, is_outside, references};
pub use libvirt::libvirt;
pub use machine::{Bus, Disk, Machine, Nic, NicModel, Note, Reach, Uuid, Vsock, VsockModel, joined};
pub use names::is_name;
pub use network::{Network, Tagging};
pub use ovf::{ovf, ovf_with};
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
    #[error("it is {is}; {way_out}")]
    Kind { is: String, way_out: String },
    #[error("it describes no VM: {0}")]
    NoMachine(&'static str),
    #[error("it describes a VM of another architecture ({0:?}); vmlane serves those of x86_64 and i686")]
    Architecture(String),
    #[error("it describes a VM that vmlane cannot serve: {0}")]
    OtherMachine(String),
    #[error("it describes {0} VMs; {MOST_MACHINES} at most")]
    TooMany(usize),
    #[error("it has no configuration {wanted:?}; {}", configurations(.declared))]
    NoConfiguration { wanted: String, declared: Vec<String> },
    #[error(
        "it lists no switch and no port group: give the output of `esxcli network vswitch standard portgroup list`, of others \
         that `vmlane import esxi --help` names, or of `esxcfg-vswitch -l`"
    )]
    NoPortGroup,
    #[error("it lists more than {0} switches, port groups or adapters: give the listing of one host a file")]
    TooManyPortGroups(usize),
}

impl Error {
    fn line(line: usize, what: impl Into<String>) -> Error {
        Error::Line { line, what: what.into() }
    }

    fn kind(is: impl Into<String>, way_out: impl Into<String>) -> Error {
        Error::Kind { is: is.into(), way_out: way_out.into() }
    }
}

fn configurations(declared: &[String]) -> String {
    if declared.is_empty() {
        return "it has none at all: omit --configuration".into();
    }
    format!("it has {}", declared.join(", "))
}
