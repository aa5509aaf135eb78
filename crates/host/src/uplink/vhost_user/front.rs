//! The front end's half of the vhost-user protocol (`docs/interop/vhost-user.rst` of QEMU): what is agreed
//! on, where the rings lie, and that they run.
//!
//! The back end is not trusted: each of its answers is awaited until one deadline for all of them, copied
//! once and checked.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use vmlane_wire::vhost_user::{
    HEADER, Header, MAX_FDS, MemoryRegion, MemoryTable, RingAddress, RingState, protocol, request,
};
use vmlane_wire::virtio::{feature, net_feature};
use zerocopy::{FromBytes, IntoBytes};

use super::memory::{BASE, Memory, RING};
use super::port::Lines;

/// How long a connection may take to be made.
const TIMEOUT: Duration = Duration::from_secs(5);
/// What a back end must have: headers as they are since virtio 1.0, and long frames in several buffers.
const NEEDED: [(u64, &str); 2] =
    [(feature::VERSION_1, "VIRTIO_F_VERSION_1"), (net_feature::MERGEABLE, "VIRTIO_NET_F_MRG_RXBUF")];
/// Checksums, and the kinds of super-frames that need them: what the back end takes, and what it may send.
const TO_PEER: (u64, u64) = {
    use net_feature::*;
    (CSUM, HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO)
};
const FROM_PEER: (u64, u64) = {
    use net_feature::*;
    (GUEST_CSUM, GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | GUEST_USO4 | GUEST_USO6)
};

/// Why a back end cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    #[error("the back end closed the connection during its set-up")]
    Closed,
    #[error("the back end did not answer request {0} in time")]
    Late(u32),
    #[error("the back end's answer to request {0} is not valid")]
    Answer(u32),
    #[error("the back end refused request {0}")]
    Refused(u32),
    #[error("the back end does not offer {0}, which is needed")]
    Feature(&'static str),
    #[error("stopped")]
    Stopped,
    #[error("{0}")]
    Host(#[from] io::Error),
}

impl From<Errno> for FrontError {
    fn from(error: Errno) -> FrontError {
        FrontError::Host(error.into())
    }
}

/// A connection that is being set up.
#[derive(Debug)]
pub struct Front<'s> {
    socket: &'s OwnedFd,
    /// Readable when the set-up is to be given up.
    stop: BorrowedFd<'s>,
    deadline: Instant,
    /// The back end answers requests that want it.
    acknowledges: bool,
    /// Rings stand still until they are enabled.
    enables: bool,
}

impl<'s> Front<'s> {
    pub fn new(socket: &'s OwnedFd, stop: BorrowedFd<'s>) -> Front<'s> {
        let deadline = Instant::now() + TIMEOUT;
        Front { socket, stop, deadline, acknowledges: false, enables: false }
    }

    /// Agrees on features, which it returns.
    pub fn agree(&mut self) -> Result<u64, FrontError> {
        self.notify(request::SET_OWNER, &[], &[])?;
        let offered = self.get(request::GET_FEATURES)?;
        if let Some((_, name)) = NEEDED.iter().find(|(bit, _)| offered & bit == 0) {
            return Err(FrontError::Feature(name));
        }
        let wanted = [TO_PEER, FROM_PEER].into_iter().map(|(checksum, whole)| {
            // Super-frames have their checksums left to their receivers.
            if offered & checksum == 0 { 0 } else { offered & (checksum | whole) }
        });
        let features = wanted.chain(NEEDED.map(|(bit, _)| bit)).fold(0, |all, some| all | some);
        let mut agreed = features;
        if offered & feature::PROTOCOL_FEATURES != 0 {
            let common = self.get(request::GET_PROTOCOL_FEATURES)? & protocol::REPLY_ACK;
            self.notify(request::SET_PROTOCOL_FEATURES, common.as_bytes(), &[])?;
            (self.acknowledges, self.enables) = (common & protocol::REPLY_ACK != 0, true);
            agreed |= feature::PROTOCOL_FEATURES;
        }
        self.ask(request::SET_FEATURES, agreed.as_bytes(), &[])?;
        Ok(features)
    }

    /// Shares the memory, and starts its two rings.
    pub fn start(&mut self, memory: &Memory, lines: &Lines) -> Result<(), FrontError> {
        let (file, size) = memory.file();
        let table = MemoryTable { regions: 1.into(), padding: 0.into() };
        let region =
            MemoryRegion { guest: BASE.into(), size: size.into(), user: BASE.into(), offset: 0.into() };
        self.ask(request::SET_MEM_TABLE, &[table.as_bytes(), region.as_bytes()].concat(), &[file])?;
        let rings = memory.places.iter().zip(lines.kicks.iter().zip(&lines.calls));
        for (index, (place, (kick, call))) in (0u32..).zip(rings) {
            let state = |number: u32| RingState { index: index.into(), number: number.into() };
            let address = RingAddress {
                index: index.into(),
                flags: 0.into(),
                descriptors: place.descriptors.into(),
                used: place.used.into(),
                available: place.available.into(),
                log: 0.into(),
            };
            let number = u64::from(index);
            self.ask(request::SET_VRING_NUM, state(RING.into()).as_bytes(), &[])?;
            self.ask(request::SET_VRING_BASE, state(0).as_bytes(), &[])?;
            self.ask(request::SET_VRING_ADDR, address.as_bytes(), &[])?;
            self.ask(request::SET_VRING_CALL, number.as_bytes(), &[call.as_fd()])?;
            self.ask(request::SET_VRING_KICK, number.as_bytes(), &[kick.as_fd()])?;
        }
        for index in (0..2u32).filter(|_| self.enables) {
            let state = RingState { index: index.into(), number: 1.into() };
            self.ask(request::SET_VRING_ENABLE, state.as_bytes(), &[])?;
        }
        // Without acknowledgments: when this is answered, all before it is done.
        if self.acknowledges { Ok(()) } else { self.get(request::GET_FEATURES).map(drop) }
    }

    fn send(
        &self,
        code: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
        answered: bool,
    ) -> Result<(), FrontError> {
        let header = Header::request(code, payload.len(), answered);
        let bytes = [header.as_bytes(), payload].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        // Some hundred bytes in all: a socket without room for them has a back end that does not read.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(self.socket, &[IoSlice::new(&bytes)], &mut control, flags) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN) => Err(FrontError::Late(code)),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(FrontError::Closed),
            Err(error) => Err(error.into()),
        }
    }

    /// A request that is not answered.
    fn notify(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrontError> {
        self.send(code, payload, fds, false)
    }

    /// A request whose success is answered, where the back end does that.
    fn ask(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrontError> {
        self.send(code, payload, fds, self.acknowledges)?;
        match self.acknowledges {
            true if self.number(code)? != 0 => Err(FrontError::Refused(code)),
            _ => Ok(()),
        }
    }

    /// A request with a number for an answer.
    fn get(&self, code: u32) -> Result<u64, FrontError> {
        self.notify(code, &[], &[])?;
        self.number(code)
    }

    /// The answer to a request.
    fn number(&self, code: u32) -> Result<u64, FrontError> {
        let mut answer = [0; HEADER + size_of::<u64>()];
        self.fill(code, &mut answer)?;
        let (header, number) = Header::read_from_prefix(&answer).map_err(|_| FrontError::Answer(code))?;
        let number = u64::read_from_bytes(number).map_err(|_| FrontError::Answer(code))?;
        let fits = header.is_reply()
            && header.request.get() == code
            && header.size.get() as usize == size_of::<u64>();
        if fits { Ok(number) } else { Err(FrontError::Answer(code)) }
    }

    /// Reads until `to` is full. Descriptors that come along are closed by the kernel.
    fn fill(&self, code: u32, mut to: &mut [u8]) -> Result<(), FrontError> {
        while !to.is_empty() {
            self.wait(code)?;
            match recv(self.socket, &mut *to, RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return Err(FrontError::Closed),
                Ok((_, got)) => to = to.get_mut(got..).unwrap_or_default(),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Until the socket can be read.
    fn wait(&self, code: u32) -> Result<(), FrontError> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let mut files =
                [PollFd::new(self.socket, PollFlags::IN), PollFd::from_borrowed_fd(self.stop, PollFlags::IN)];
            match poll(&mut files, Some(&timespec(left))) {
                Ok(0) => return Err(FrontError::Late(code)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [socket, stop] = files.map(|file| !file.revents().is_empty());
            match (stop, socket) {
                (true, _) => return Err(FrontError::Stopped),
                (false, true) => return Ok(()),
                (false, false) => {}
            }
        }
    }
}

/// A length of time as the kernel takes it.
pub fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}
