//! What the kernel reports of an interface: one question by rtnetlink(7), which needs no rights.

use std::io;

use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::rtnetlink::{
    ERROR, INFO, NAME, NEW_LINK, REQUEST, attributes, messages, question, socket, text, word32,
};

/// Attributes.
const MTU: u16 = 4;
const MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const RX_QUEUES: u16 = 32;
const INFO_KIND: u16 = 1;

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
        let socket = socket()?;
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
    question(REQUEST, Some((NAME, &[name.as_bytes(), &[0]].concat())))
}

fn parse(answer: &[u8]) -> io::Result<Link> {
    let short = || io::Error::other("an answer of the kernel about an interface is too short");
    let (kind, message) = messages(answer).next().ok_or_else(short)?;
    match kind {
        ERROR => {
            let code = word32(message, 0).ok_or_else(short)?.cast_signed();
            return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
        }
        NEW_LINK => {}
        other => return Err(io::Error::other(format!("an answer of kind {other} about an interface"))),
    }
    let mut link = Link {
        index: word32(message, 4).ok_or_else(short)?,
        flags: word32(message, 8).ok_or_else(short)?,
        ..Link::default()
    };
    for (kind, value) in attributes(message.get(INFO..).ok_or_else(short)?) {
        match kind {
            MTU => link.mtu = word32(value, 0).unwrap_or(0) as usize,
            MASTER => link.master = word32(value, 0),
            RX_QUEUES => link.rx_queues = word32(value, 0).unwrap_or(0),
            LINK_INFO => {
                let kind = attributes(value).find(|(kind, _)| *kind == INFO_KIND);
                link.kind = kind.map(|(_, value)| text(value)).unwrap_or_default();
            }
            _ => {}
        }
    }
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uplink::rtnetlink::HEADER;

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
