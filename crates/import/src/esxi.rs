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
mod networks;
mod policy;
mod reader;
mod tables;

pub use self::networks::Host;
pub(crate) use self::networks::{PortGroup, Unknown, VirtualSwitch, Vlan};
pub(crate) use self::policy::{Balancing, Failover, Policies, Security, Shaping};
use self::reader::Reader;
use crate::kind::{Expected, refuse_others};
use crate::text;
use crate::{Error, MOST_BYTES};

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
