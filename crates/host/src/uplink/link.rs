//! What the kernel says about an interface: one question by rtnetlink(7), which needs no rights.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// Bytes of a message's header, and of `struct ifinfomsg` behind it.
const HEADER: usize = 16;
const INFO: usize = 16;
/// Kinds of messages.
const ERROR: u16 = 2;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const REQUEST: u16 = 1;
/// Attributes.
const NAME: u16 = 3;
const MTU: u16 = 4;
const MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const RX_QUEUES: u16 = 32;
const INFO_KIND: u16 = 1;
/// Bits of an attribute's kind that are none of it.
const KIND: u16 = 0x3fff;

/// Flags of an interface (linux/if.h).
const UP: u32 = 1;
const PROMISCUOUS: u32 = 1 << 8;

/// An interface as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number, which stays when its name changes.
    pub index: u32,
    /// Bytes of the longest packet, without its Ethernet header.
    pub mtu: usize,
    flags: u32,
    /// Receive queues that its driver may have.
    pub rx_queues: u32,
    /// The number of the bridge, bond or the like that it belongs to.
    pub master: Option<u32>,
    /// `veth`, `tun` ...; empty for a network card.
    pub kind: String,
}

impl Link {
    /// Asks for the interface of that name. `ErrorKind::NotFound` or ENODEV: there is none.
    pub fn query(name: &str) -> io::Result<Link> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // NETLINK_ROUTE
        )?;
        send(&socket, &request(name), SendFlags::empty())?;
        let mut answer = vec![0; 64 << 10];
        let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
        parse(answer.get(..len).unwrap_or_default())
    }

    /// The operator has brought it up.
    pub fn is_up(&self) -> bool {
        self.flags & UP != 0
    }

    /// It receives frames to any address.
    pub fn is_promiscuous(&self) -> bool {
        self.flags & PROMISCUOUS != 0
    }
}

fn request(name: &str) -> Vec<u8> {
    let attribute = 4 + name.len() + 1;
    let len = HEADER + INFO + attribute;
    let mut bytes = Vec::with_capacity(len + 3);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(GET_LINK.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.resize(HEADER + INFO, 0);
    bytes.extend((attribute as u16).to_ne_bytes());
    bytes.extend(NAME.to_ne_bytes());
    bytes.extend(name.bytes());
    bytes.push(0);
    bytes
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn parse(answer: &[u8]) -> io::Result<Link> {
    let short = || io::Error::other("an answer of the kernel about an interface is too short");
    match word16(answer, 4).ok_or_else(short)? {
        ERROR => {
            let code = word32(answer, HEADER).ok_or_else(short)?.cast_signed();
            return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
        }
        NEW_LINK => {}
        other => return Err(io::Error::other(format!("an answer of kind {other} about an interface"))),
    }
    let len = word32(answer, 0).ok_or_else(short)? as usize;
    let message = answer.get(..len).ok_or_else(short)?;
    let mut link = Link {
        index: word32(message, HEADER + 4).ok_or_else(short)?,
        flags: word32(message, HEADER + 8).ok_or_else(short)?,
        ..Link::default()
    };
    for (kind, value) in attributes(message.get(HEADER + INFO..).ok_or_else(short)?) {
        match kind {
            MTU => link.mtu = word32(value, 0).unwrap_or(0) as usize,
            MASTER => link.master = word32(value, 0),
            RX_QUEUES => link.rx_queues = word32(value, 0).unwrap_or(0),
            LINK_INFO => {
                let kind = attributes(value).find(|(kind, _)| *kind == INFO_KIND);
                let bytes = kind.map(|(_, value)| value.split(|byte| *byte == 0).next().unwrap_or_default());
                link.kind = String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
            }
            _ => {}
        }
    }
    Ok(link)
}

/// The attributes one after the other, each with its kind. What is cut short ends them.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(word16(bytes, 0)?), word16(bytes, 2)? & KIND);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_known_and_another_one_is_not() {
        let link = Link::query("lo").unwrap();
        assert_eq!((link.index, link.master, link.kind.as_str()), (1, None, ""));
        assert!(link.mtu > 1000 && link.rx_queues > 0, "{link:?}");
        let error = Link::query("vmlane-no-such").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn answers_that_are_cut_short_are_errors_or_have_fewer_attributes() {
        let mut answer = request("eth7");
        answer[4..6].copy_from_slice(&NEW_LINK.to_ne_bytes());
        answer[HEADER + 4] = 7;
        answer.extend([0; 3]);
        answer.extend([8, 0, 4, 0, 0xdc, 5, 0, 0]);
        let len = answer.len() as u32;
        answer[..4].copy_from_slice(&len.to_ne_bytes());
        let link = parse(&answer).unwrap();
        assert_eq!((link.index, link.mtu), (7, 1500));
        for cut in 0..answer.len() {
            assert!(parse(&answer[..cut]).is_err(), "{cut} bytes");
        }
        answer[..4].copy_from_slice(&(len - 4).to_ne_bytes());
        assert_eq!(parse(&answer).unwrap().mtu, 0);
    }
}
