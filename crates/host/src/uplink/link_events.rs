//! How the links of the host's interfaces are, and each change as it happens: rtnetlink(7), which needs no
//! rights. A confined daemon cannot open such a socket any more, but goes on reading one that it has.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, bind, netlink, recv, send};

use super::rtnetlink::{
    DEL_LINK, DONE, DUMP, INFO, NAME, NEW_LINK, attributes, messages, question, socket, text, word32,
};

/// The group of changes of links (linux/rtnetlink.h, RTMGRP_LINK).
const LINKS: u32 = 1;
/// The attribute with the number of the interface that it is a port of (IFLA_MASTER).
const BRIDGE: u16 = 10;
/// The attribute with an interface's number in the network namespace that it moves to.
const NEW_INDEX: u16 = 49;
/// Flags of an interface (linux/if.h): it is up, may send, and has a carrier.
const USABLE: u32 = 1 | 1 << 6 | 1 << 16;
/// Bytes of messages that are read at once: the kernel's dumps come in pieces of 32 KiB at most.
const ROOM: usize = 64 << 10;
/// How long the kernel may take to list all links.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What an interface's link is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Frames pass.
    Up,
    /// The interface is down, or has no carrier.
    Down,
    /// There is no such interface any more.
    Gone,
    /// It is in another network namespace now: no more events come of it.
    Moved,
}

/// News of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEvent {
    /// Its number, which stays when its name changes.
    pub index: u32,
    /// Its name now.
    pub name: String,
    /// Its link now.
    pub state: LinkState,
    /// The number of the bridge, or the like, that it is a port of.
    pub bridge: Option<u32>,
}

/// A socket of the kernel's link events.
#[derive(Debug)]
pub struct LinkEvents {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl LinkEvents {
    /// Begins to listen. Returns also how all links are.
    pub fn open() -> io::Result<(LinkEvents, Vec<LinkEvent>)> {
        let socket = socket()?;
        bind(&socket, &netlink::SocketAddrNetlink::new(0, LINKS))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        let mut events = LinkEvents { socket, buffer: vec![0; ROOM] };
        events.ask()?;
        let mut all = Vec::new();
        while !events.read(&mut all)? {}
        Ok((events, all))
    }

    /// Asks for all links.
    fn ask(&self) -> io::Result<()> {
        send(&self.socket, &question(DUMP, None), SendFlags::empty())?;
        Ok(())
    }

    /// Reads events into `list`. True: the answer to a question is complete.
    fn read(&mut self, list: &mut Vec<LinkEvent>) -> io::Result<bool> {
        let len = match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
            Ok((len, _)) => len,
            Err(Errno::INTR) => return Ok(false),
            // Events were lost: all links are asked for again.
            Err(Errno::NOBUFS) => return self.ask().map(|()| false),
            Err(error) => return Err(error.into()),
        };
        Ok(parse(self.buffer.get(..len).unwrap_or_default(), list))
    }

    /// The next events; none may have come. Waits for them, unless the socket is readable.
    pub fn receive(&mut self) -> io::Result<Vec<LinkEvent>> {
        let mut list = Vec::new();
        match self.read(&mut list) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => drop(outcome?),
        }
        Ok(list)
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Adds the events of the messages. True: one of them ends the answer.
fn parse(bytes: &[u8], list: &mut Vec<LinkEvent>) -> bool {
    let mut complete = false;
    for (kind, body) in messages(bytes) {
        match kind {
            DONE => complete = true,
            NEW_LINK | DEL_LINK => list.extend(link(kind == DEL_LINK, body)),
            _ => {}
        }
    }
    complete
}

fn link(gone: bool, body: &[u8]) -> Option<LinkEvent> {
    // A bridge reports its ports by messages of its own family: one that leaves the bridge is not gone.
    if *body.first()? != 0 {
        return None;
    }
    let (index, flags) = (word32(body, 4)?, word32(body, 8)?);
    let all = || attributes(body.get(INFO..).unwrap_or_default());
    let name = all().find(|(kind, _)| *kind == NAME).map(|(_, value)| text(value))?;
    let moved = all().any(|(kind, _)| kind == NEW_INDEX);
    let state = match flags & USABLE {
        _ if gone && moved => LinkState::Moved,
        _ if gone => LinkState::Gone,
        USABLE => LinkState::Up,
        _ => LinkState::Down,
    };
    let bridge = all().find(|(kind, _)| *kind == BRIDGE).and_then(|(_, value)| word32(value, 0));
    Some(LinkEvent { index, name, state, bridge })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use vmlane_testkit::{Process, again, role, run, skipped, wait_until};

    use super::*;
    use crate::uplink::rtnetlink::HEADER;

    /// A message as the kernel makes it.
    fn message(kind: u16, family: u8, index: u32, flags: u32, name: &str) -> Vec<u8> {
        let mut body = vec![family, 0, 1, 0];
        body.extend(index.to_ne_bytes());
        body.extend(flags.to_ne_bytes());
        body.extend([0; 4]);
        // Other attributes first: the queue length, and of one the bridge.
        body.extend([8, 0, 13, 0, 232, 3, 0, 0]);
        if index == 8 {
            body.extend([8, 0, BRIDGE as u8, 0, 5, 0, 0, 0]);
        }
        body.extend((4 + name.len() as u16 + 1).to_ne_bytes());
        body.extend(NAME.to_ne_bytes());
        body.extend(name.bytes());
        body.resize(body.len() + 4 - name.len() % 4, 0);
        let mut message = (HEADER as u32 + body.len() as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.resize(HEADER, 0);
        message.extend(body);
        message
    }

    #[test]
    fn messages_give_the_state_of_each_link() {
        let mut all = message(NEW_LINK, 0, 7, 0x11043, "eth0");
        all.extend(message(NEW_LINK, 0, 8, 0x1003, "tap1"));
        all.extend(message(DEL_LINK, 7, 7, 0x11043, "eth0"));
        all.extend(message(DEL_LINK, 0, 9, 0x11043, "a"));
        let bridge = |index| (index == 8).then_some(5);
        let event =
            |index, name: &str, state| LinkEvent { index, name: name.into(), state, bridge: bridge(index) };
        let expected = [
            event(7, "eth0", LinkState::Up),
            event(8, "tap1", LinkState::Down),
            event(9, "a", LinkState::Gone),
        ];
        let mut list = Vec::new();
        assert!(!parse(&all, &mut list));
        assert_eq!(list, expected);
        // The end of an answer.
        let done = [&20u32.to_ne_bytes()[..], &DONE.to_ne_bytes(), &[0; 14]].concat();
        assert!(parse(&done, &mut list) && list.len() == 3);
        // Cut anywhere, or with lengths that cannot be.
        for end in 0..all.len() {
            parse(&all[..end], &mut Vec::new());
        }
        for at in 0..all.len() {
            for byte in [0, 1, 0xff] {
                let mut bad = all.clone();
                bad[at] = byte;
                parse(&bad, &mut Vec::new());
            }
        }
    }

    /// In a network namespace of its own; without the right to make one, it is skipped.
    #[test]
    fn an_interface_that_goes_is_distinguished_from_one_that_moves() {
        let ip = |words: &str| {
            let status = Command::new("ip").args(words.split(' ')).status().unwrap();
            assert!(status.success(), "ip {words}");
        };
        if role().is_none() {
            match Command::new("unshare").args(["-n", "true"]).status() {
                Ok(status) if status.success() => {
                    let inside = run(again(&["unshare", "-n"], "in a namespace"));
                    assert!(inside.code == 0 && inside.out.contains("1 passed"), "{inside:?}");
                }
                _ => skipped("needs root"),
            }
            return;
        }
        let (mut events, _) = LinkEvents::open().unwrap();
        let mut last = |name: &str, wanted: LinkState| {
            wait_until(&format!("{name} is {wanted:?}"), || {
                events.receive().unwrap().iter().any(|one| one.name == name && one.state == wanted)
            });
        };
        ip("link add v0 type veth peer name v1");
        last("v0", LinkState::Down);
        ip("link set v1 up");
        ip("link set v0 up");
        last("v0", LinkState::Up);
        let other = Process(Command::new("unshare").args(["-n", "sleep", "60"]).spawn().unwrap());
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        wait_until("another namespace", || namespace(&other.id().to_string()) != namespace("self"));
        ip(&format!("link set v1 netns {}", other.id()));
        last("v1", LinkState::Moved);
        ip("link del v0");
        last("v0", LinkState::Gone);
    }

    #[test]
    fn the_kernel_lists_all_links() {
        let (_, all) = LinkEvents::open().unwrap();
        assert!(all.iter().any(|link| link.name == "lo"), "{all:?}");
    }
}
