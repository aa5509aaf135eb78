//! A simulated helper for streams to other hosts.

use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use vmlane_host::sockets::{Bounds, PeerView, RoutePeer, Routes};
use vmlane_sock::ring::{self, Incoming, Outgoing};
use vmlane_testkit::wait_until;
use vmlane_wire::host::{ANNOUNCED_CLOSE, RING, Reply, SIGNAL};
use vmlane_wire::route::{Op, Record};
use zerocopy::FromBytes;

use super::{SECOND, World};

/// The VMCI guest's CID is 3; the host's for others, and one of the peer's.
pub const OWN: u32 = 900;
pub const FAR: u32 = 2005;

pub fn routes() -> Routes {
    let peer = RoutePeer {
        name: "beta".into(),
        cids: vec![(2000, 2999)],
        groups: vec!["test".into(), "other".into()],
        trusted: false,
    };
    Routes { cids: vec![(3, 999)], host_cid: Some(OWN), owner: None, peers: vec![peer] }
}

/// What the daemon answers to the first record of a connection.
pub fn answer(socket: &UnixStream) -> Option<(Reply, Vec<OwnedFd>)> {
    socket.set_read_timeout(Some(50 * SECOND)).unwrap();
    let mut bytes = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [std::io::IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::empty()).unwrap();
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    (got.bytes == 16).then(|| (Reply::read_from_bytes(&bytes).unwrap(), fds))
}

pub struct Helper<'w> {
    world: &'w World,
    line: OwnedFd,
    _asked: UnixStream,
    flags: u32,
}

/// A stream's ring, as the helper has it.
pub struct End {
    socket: UnixStream,
    out: Outgoing,
    incoming: Incoming,
}

impl<'w> Helper<'w> {
    /// Reports for work; the peer is up.
    pub fn start(world: &'w World) -> Helper<'w> {
        Helper::with(world, 0)
    }

    /// One with the abilities of these flags.
    pub fn with(world: &'w World, flags: u32) -> Helper<'w> {
        let asked = Helper::ask_with(world, (Op::Line, flags), 0, Default::default(), "");
        let (reply, mut line) = answer(&asked).unwrap();
        assert_eq!(reply.error.get(), 0);
        let helper = Helper { world, line: line.pop().unwrap(), _asked: asked, flags };
        helper.send(Op::Status, 0, 0, "\nhelper\n");
        helper.send(Op::Status, 0, 0, "beta\nup\n\nbytes_sent 7");
        wait_until("the peer is up", || helper.view().state == "up");
        helper
    }

    pub fn ask(world: &World, op: Op, number: u64, ends: [(u32, u32); 2], text: &str) -> UnixStream {
        Helper::ask_with(world, (op, 0), number, ends, text)
    }

    fn ask_with(
        world: &World,
        (op, flags): (Op, u32),
        number: u64,
        ends: [(u32, u32); 2],
        text: &str,
    ) -> UnixStream {
        let mut socket = UnixStream::connect(world.dir.path().join("route.sock")).unwrap();
        socket.write_all(&Record::message(op, number, ends, flags, text)).unwrap();
        socket
    }

    pub fn send(&self, op: Op, number: u64, flags: u32, text: &str) {
        let message = Record::message(op, number, Default::default(), flags, text);
        rustix::net::send(&self.line, &message, rustix::net::SendFlags::empty()).unwrap();
    }

    /// The next message of the daemon.
    pub fn receive(&self) -> (Record, Op, String) {
        let mut message = vec![0; 16 << 10];
        let mut poll = [rustix::event::PollFd::new(&self.line, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 50, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut poll, Some(&timeout)), Ok(1), "a message of the daemon");
        let (len, _) = rustix::net::recv(&self.line, &mut message[..], RecvFlags::DONTWAIT).unwrap();
        let (record, op, text) = Record::parse(&message[..len]).unwrap();
        (record, op, text.to_owned())
    }

    /// A stream to this host; the errno if it is refused.
    pub fn open(&self, client: (u32, u32), server: (u32, u32), text: &str) -> Result<End, i32> {
        End::of(Helper::ask(self.world, Op::Open, 0, [client, server], text))
    }

    /// The same for a stream whose ring is to be this helper's and a program's.
    pub fn open_shared(&self, client: (u32, u32), server: (u32, u32), text: &str) -> UnixStream {
        Helper::ask_with(self.world, (Op::Open, self.flags), 0, [client, server], text)
    }

    /// Accepts a call for which the ring is to be this helper's and a program's.
    pub fn accept_shared(&self, number: u64) -> UnixStream {
        Helper::ask_with(self.world, (Op::Accept, self.flags), number, Default::default(), "")
    }

    pub fn view(&self) -> PeerView {
        self.world.sockets().peers().into_iter().find(|peer| peer.name == "beta").unwrap()
    }

    pub fn count(&self, counter: &str) -> u64 {
        self.view().counters.iter().find(|(name, _)| name == counter).map_or(0, |(_, count)| *count)
    }
}

impl End {
    pub fn of(socket: UnixStream) -> Result<End, i32> {
        let Some((reply, mut files)) = answer(&socket) else { return Err(0) };
        let memory = files.pop();
        match (reply.error.get(), memory) {
            (0, Some(memory)) => {
                let (out, incoming) = ring::map(memory, RING).unwrap();
                Ok(End { socket, out, incoming })
            }
            (errno, _) => Err(errno),
        }
    }

    pub fn signal(&self) {
        let _ = rustix::net::send(self.socket.as_fd(), &[SIGNAL], rustix::net::SendFlags::empty());
    }

    pub fn write(&mut self, bytes: &[u8]) {
        assert_eq!(self.out.write(bytes).unwrap().len, bytes.len());
        self.signal();
    }

    pub fn read(&mut self, len: usize) -> Vec<u8> {
        let mut all = vec![0; len];
        let incoming = &self.incoming;
        wait_until("bytes", || incoming.ready().unwrap() >= len);
        self.incoming.read(&mut all).unwrap();
        self.signal();
        all
    }

    pub fn ends(&self, bit: u64) {
        wait_until("the end", || self.incoming.ended() & bit != 0);
    }

    /// Leaves; what was written still counts.
    pub fn close(self) {
        self.out.voice().announce_end(ANNOUNCED_CLOSE);
    }
}

pub fn world(bounds: Bounds) -> World {
    let world = World::with(bounds);
    world.sockets().set_routes(&world.dir.path().join("route.sock"), Some(routes())).unwrap();
    world
}
