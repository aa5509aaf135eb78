//! One connection: what it asked for, and how far it has come.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use vmlane_access::Peer;
use vmlane_port::shared_ring::SharedMap;
use vmlane_vsock::Call;
use vmlane_wire::host::{REQUEST, Reply, Request};
use vmlane_wire::route::{MOST_TEXT, RECORD, Record};
use zerocopy::{FromBytes, IntoBytes};

use super::inbox::{StreamWaker, Token};
use super::socket::{self, Io};
use super::stream::{Pump, Stream, StreamKind};

/// A line of text has so many bytes at most, its end included.
const LINE: usize = 32;

/// How a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Records, at `host.sock`.
    Native,
    /// Lines of text, at the Unix socket of this VM.
    Hybrid(u32),
    /// None: the VMM of this VM connects at the socket of a forward of this port.
    Forward(u32, u32),
    /// Records of [`vmlane_wire::route`], at `route.sock`.
    Route,
}

impl Dialect {
    /// The VM whose socket it is.
    pub fn cid(self) -> Option<u32> {
        match self {
            Dialect::Native | Dialect::Route => None,
            Dialect::Hybrid(cid) | Dialect::Forward(cid, _) => Some(cid),
        }
    }
}

/// Whose places, time and memory a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Account {
    /// Of the host.
    User(u32),
    /// The VM with this CID, whose VMM has a hybrid socket.
    Vm(u32),
    /// Another host, by a number of its own.
    Peer(u32),
}

impl Account {
    pub fn is_user(self) -> bool {
        matches!(self, Account::User(_))
    }
}

/// A client as it is served.
pub struct Client {
    pub socket: Arc<OwnedFd>,
    pub peer: Arc<Peer>,
    pub account: Account,
    pub state: State,
    /// By when the state must have changed.
    pub deadline: Option<Instant>,
    pub waker: Option<Arc<StreamWaker>>,
}

pub enum State {
    /// Its request has not arrived whole.
    Asking {
        dialect: Dialect,
        bytes: Vec<u8>,
    },
    /// A VMM has been asked for a connection to its guest, and has not answered.
    Asked(Call),
    /// A guest has been asked.
    Connecting(Opening, Dialect, u32),
    /// A guest has been accepted; its end of the stream goes to the listener `to` with this record.
    Accepting(Opening, Option<Delivery>),
    Streaming(Box<Stream>),
    Listening {
        port: u32,
        ring: bool,
    },
    Datagrams {
        port: u32,
        socket: Arc<OwnedFd>,
    },
    /// The helper's line to other hosts: its packet socket.
    Line(OwnedFd),
    /// Only while the next one is made of the last.
    Changing,
}

impl State {
    pub fn is_asking(&self) -> bool {
        matches!(self, State::Asking { .. })
    }
}

/// A stream that is not joined yet.
pub struct Opening {
    pub call: Call,
    pub ring: RingUse,
}

/// A ring and how it will be used.
pub enum RingUse {
    /// By the process: the mapping, and the file to hand over.
    Theirs(SharedMap, OwnedFd),
    /// By the pump.
    Ours(Box<Pump>),
    /// By the process and the helper for other hosts.
    Left(SharedMap),
    /// The same, as the helper's.
    Helpers(SharedMap),
}

/// What a listener gets for a connection.
pub struct Delivery {
    pub to: Token,
    pub reply: Reply,
    pub socket: OwnedFd,
}

/// What a client asks for.
#[derive(Clone, Debug)]
pub enum Asked {
    Record(Request),
    /// A port of the VM.
    Line(u32),
    /// A record of [`vmlane_wire::route`] and its text.
    Route(Vec<u8>),
}

/// A request, none yet, or none ever.
pub enum Arrival {
    Whole(Asked),
    Later,
    Never,
}

impl RingUse {
    pub fn into_kind(self) -> (StreamKind, Option<OwnedFd>) {
        match self {
            RingUse::Theirs(map, fd) => (StreamKind::Ring { map, announced: 0 }, Some(fd)),
            RingUse::Ours(pump) => (StreamKind::Plain(pump), None),
            RingUse::Left(map) => (StreamKind::Left(map), None),
            RingUse::Helpers(map) => (StreamKind::Helpers(map), None),
        }
    }
}

/// Reads on in a request. What follows it belongs to the stream and stays in the socket.
#[expect(
    clippy::indexing_slicing,
    reason = "`bytes` is shorter than a request until it is whole; no read returns more than its buffer has"
)]
pub fn arrival(socket: &OwnedFd, dialect: Dialect, bytes: &mut Vec<u8>) -> Arrival {
    match dialect {
        Dialect::Native => loop {
            let mut buffer = [0; REQUEST];
            match socket::read(socket, &mut buffer[..REQUEST - bytes.len()]) {
                Io::Done(len) => bytes.extend_from_slice(&buffer[..len]),
                Io::WouldBlock => return Arrival::Later,
                Io::Over => return Arrival::Never,
            }
            if bytes.len() == REQUEST {
                let request = Request::read_from_bytes(bytes);
                return request.map_or(Arrival::Never, |request| Arrival::Whole(Asked::Record(request)));
            }
        },
        Dialect::Hybrid(_) => {
            let mut buffer = [0; LINE];
            let seen = match socket::peek(socket, &mut buffer) {
                Io::Done(len) => &buffer[..len],
                Io::WouldBlock => return Arrival::Later,
                Io::Over => return Arrival::Never,
            };
            let Some(end) = seen.iter().position(|&byte| byte == b'\n') else {
                return if seen.len() < LINE { Arrival::Later } else { Arrival::Never };
            };
            let port = line(&seen[..end]);
            let mut taken = [0; LINE];
            // It is all there: nothing else reads this socket.
            let _ = socket::read(socket, &mut taken[..=end]);
            port.map_or(Arrival::Never, |port| Arrival::Whole(Asked::Line(port)))
        }
        Dialect::Route => loop {
            let whole = match Record::read_from_prefix(bytes) {
                Ok((record, _)) if record.op().is_none() => return Arrival::Never,
                Ok((record, _)) => RECORD + record.len.get() as usize,
                Err(_) => RECORD,
            };
            if bytes.len() == whole {
                return Arrival::Whole(Asked::Route(std::mem::take(bytes)));
            }
            let mut buffer = [0; RECORD + MOST_TEXT];
            match socket::read(socket, &mut buffer[..whole - bytes.len()]) {
                Io::Done(len) => bytes.extend_from_slice(&buffer[..len]),
                Io::WouldBlock => return Arrival::Later,
                Io::Over => return Arrival::Never,
            }
        },
        // It has nothing to ask for.
        Dialect::Forward(..) => Arrival::Never,
    }
}

/// What a VMM answers to `CONNECT <port>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmmAnswer {
    Accepted,
    Refused,
    /// Not whole yet.
    Later,
    Malformed,
}

/// Reads on in a VMM's answer. What follows it belongs to the stream and stays in the socket.
#[expect(
    clippy::indexing_slicing,
    reason = "`end` is a place in `seen`, which is no longer than the buffers"
)]
pub fn vmm_answer(socket: &OwnedFd) -> VmmAnswer {
    let mut buffer = [0; LINE];
    let seen = match socket::peek(socket, &mut buffer) {
        Io::Done(len) => &buffer[..len],
        Io::WouldBlock => return VmmAnswer::Later,
        Io::Over => return VmmAnswer::Refused,
    };
    let Some(end) = seen.iter().position(|&byte| byte == b'\n') else {
        return if seen.len() < LINE { VmmAnswer::Later } else { VmmAnswer::Malformed };
    };
    if !is_ok(&seen[..end]) {
        return VmmAnswer::Malformed;
    }
    let mut taken = [0; LINE];
    // It is all there: nothing else reads this socket.
    let _ = socket::read(socket, &mut taken[..=end]);
    VmmAnswer::Accepted
}

/// Is it `OK <port>`? The port is the VMM's for its own end, and of no use here.
fn is_ok(text: &[u8]) -> bool {
    let port = std::str::from_utf8(text).ok().and_then(|text| text.strip_prefix("OK "));
    port.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u32>().is_ok())
}

/// The port of `CONNECT <port>`, in any case.
fn line(text: &[u8]) -> Option<u32> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let verb = words.next()?;
    let port = words.next()?.parse().ok()?;
    (verb.eq_ignore_ascii_case("connect") && words.next().is_none()).then_some(port)
}

impl Client {
    /// Answers a record; false if the client is gone.
    pub fn reply(&self, reply: Reply, fd: Option<&OwnedFd>) -> bool {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        socket::write_with(&*self.socket, reply.as_bytes(), &fds) == Io::Done(reply.as_bytes().len())
    }

    /// The stream is there.
    pub fn greet(&self, dialect: Dialect, port: u32, fd: Option<&OwnedFd>) -> bool {
        match dialect {
            Dialect::Native | Dialect::Route => {
                self.reply(Reply::new(0, vmlane_wire::vmci::CID_HOST, port), fd)
            }
            Dialect::Hybrid(_) => {
                let line = format!("OK {port}\n");
                socket::write(&*self.socket, line.as_bytes()) == Io::Done(line.len())
            }
            // The VMM has notified its guest already.
            Dialect::Forward(..) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::{VmmAnswer, is_ok, line, vmm_answer};

    #[test]
    fn lines_are_read_as_firecracker_reads_them() {
        for (text, port) in [
            ("CONNECT 52", Some(52)),
            ("connect 52", Some(52)),
            ("CONNECT 52\r", Some(52)),
            ("CONNECT 4294967295", Some(u32::MAX)),
            ("CONNECT 4294967296", None),
            ("CONNECT -1", None),
            ("CONNECT", None),
            ("CONNECT 52 x", None),
            ("HELLO 52", None),
            ("", None),
        ] {
            assert_eq!(line(text.as_bytes()), port, "{text:?}");
        }
        assert_eq!(line(b"CONNECT \xff"), None);
    }

    #[test]
    fn answers_are_those_that_firecracker_gives_and_no_others() {
        for (text, good) in [
            ("OK 1073741824", true),
            ("OK 4294967295", true),
            ("OK 4294967296", false),
            ("OK +5", false),
            ("OK ", false),
            ("OK", false),
            ("ok 5", false),
            ("OK 5 6", false),
            ("OK 5\r", false),
            ("ERROR", false),
            ("", false),
        ] {
            assert_eq!(is_ok(text.as_bytes()), good, "{text:?}");
        }
        assert!(!is_ok(b"OK \xff"));
    }

    #[test]
    fn an_answer_comes_in_pieces_and_what_follows_it_stays() {
        let (mut vmm, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        let ours = std::os::fd::OwnedFd::from(ours);
        assert_eq!(vmm_answer(&ours), VmmAnswer::Later);
        vmm.write_all(b"OK 10").unwrap();
        assert_eq!(vmm_answer(&ours), VmmAnswer::Later);
        vmm.write_all(b"7\nhello").unwrap();
        assert_eq!(vmm_answer(&ours), VmmAnswer::Accepted);
        let mut rest = [0; 16];
        assert_eq!(crate::sockets::socket::read(&ours, &mut rest), crate::sockets::socket::Io::Done(5));
        assert_eq!(&rest[..5], b"hello");
        vmm.write_all(&[b'A'; 4096]).unwrap();
        assert_eq!(vmm_answer(&ours), VmmAnswer::Malformed);
        let (vmm, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(vmm);
        assert_eq!(vmm_answer(&ours.into()), VmmAnswer::Refused);
    }
}
