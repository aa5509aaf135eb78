//! Links as rtnetlink(7) describes them, as far as it is of interest here: whole messages, and attributes by
//! their kinds. Kinds and contents that are not known are passed over, so a message of any kernel can be read
//! (`docs/decisions/0017-teams.md`: why no crate does this).

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Bytes of a message's header, and of `struct ifinfomsg` behind it.
pub const HEADER: usize = 16;
pub const INFO: usize = 16;
/// Kinds of messages.
pub const ERROR: u16 = 2;
pub const DONE: u16 = 3;
pub const NEW_LINK: u16 = 16;
pub const DEL_LINK: u16 = 17;
pub const GET_LINK: u16 = 18;
/// Flags of a question about one link, and about all.
pub const REQUEST: u16 = 1;
pub const DUMP: u16 = 0x301;
/// The attribute with an interface's name.
pub const NAME: u16 = 3;

/// Bits of an attribute's kind that are none of it.
const KIND: u16 = 0x3fff;
const ATTRIBUTE: usize = 4;

/// A socket that questions may be asked by; it needs no rights.
pub fn socket() -> io::Result<OwnedFd> {
    // Protocol 0 is NETLINK_ROUTE.
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

/// The question about links, with an attribute if there is one.
pub fn question(flags: u16, attribute: Option<(u16, &[u8])>) -> Vec<u8> {
    let tail = attribute.map_or(0, |(_, value)| ATTRIBUTE + value.len());
    let len = HEADER + INFO + tail;
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(GET_LINK.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.resize(HEADER + INFO, 0);
    if let Some((kind, value)) = attribute {
        bytes.extend((tail as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
    }
    bytes
}

pub fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The bytes up to the first zero, as text.
pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// The messages one after the other: the kind of each, and what is behind its header. What is cut short ends
/// them.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (word32(bytes, 0)? as usize, word16(bytes, 4)?);
        let body = bytes.get(HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The attributes one after the other, each with its kind. What is cut short ends them.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(word16(bytes, 0)?), word16(bytes, 2)? & KIND);
        let value = bytes.get(ATTRIBUTE..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}
