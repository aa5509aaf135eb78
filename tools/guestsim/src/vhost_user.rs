//! A vhost-user front end, small and synchronous, for synthetic drivers. It trusts the back end.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::{Ram, fds};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use vmlane_device::virtio::vhost::RingSetup;
use vmlane_wire::vhost_user::{
    HEADER, Header, InflightArea, MemoryRegion, RingAddress, RingState, protocol, request,
};
use vmlane_wire::virtio::feature;
use zerocopy::{FromBytes, IntoBytes};

/// What this front end's addresses are: the guest's, moved.
const USER: u64 = 0x7f00_0000_0000;
const PROTOCOL: u64 = protocol::REPLY_ACK | protocol::MULTI_QUEUE | protocol::INFLIGHT_SHMFD;

/// A VMM that has connected one device.
#[derive(Debug)]
pub struct Front {
    socket: UnixStream,
    /// The back end answers requests that want it.
    acknowledges: bool,
}

/// The event fds of a ring.
#[derive(Debug)]
pub struct RingEvents {
    pub kick: OwnedFd,
    pub call: OwnedFd,
}

impl Front {
    /// Connects, and agrees on `features` (PROTOCOL_FEATURES is added).
    pub fn connect(path: &Path, features: u64) -> io::Result<Front> {
        Front::over(UnixStream::connect(path)?, features)
    }

    /// A connected socket over which nothing was sent yet.
    pub fn new(socket: UnixStream) -> io::Result<Front> {
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Front { socket, acknowledges: false })
    }

    /// Agrees on `features` over a connected socket.
    pub fn over(socket: UnixStream, features: u64) -> io::Result<Front> {
        let mut front = Front::new(socket)?;
        front.send(request::SET_OWNER, &[], &[])?;
        front.get(request::GET_FEATURES)?;
        let common = front.get(request::GET_PROTOCOL_FEATURES)? & PROTOCOL;
        front.set_protocol(common)?;
        front.ask(request::SET_FEATURES, (features | feature::PROTOCOL_FEATURES).as_bytes(), &[])?;
        Ok(front)
    }

    /// Agrees on features of the protocol.
    pub fn set_protocol(&mut self, features: u64) -> io::Result<()> {
        self.send(request::SET_PROTOCOL_FEATURES, features.as_bytes(), &[])?;
        self.acknowledges = features & protocol::REPLY_ACK != 0;
        Ok(())
    }

    /// Has the other end closed the connection? Nothing is to be answered meanwhile.
    pub fn is_closed(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(recv(&self.socket, &mut [0; 1], flags), Ok((_, 0)) | Err(Errno::CONNRESET))
    }

    fn message(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>], answered: bool) -> io::Result<()> {
        let header = Header::request(code, payload.len(), answered);
        fds::send(&self.socket, &[header.as_bytes(), payload].concat(), fds)
    }

    /// A request that is not answered.
    pub fn send(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.message(code, payload, fds, false)
    }

    fn reply(&mut self) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let (bytes, mut files) = fds::receive::<HEADER>(&self.socket)?;
        let header = Header::read_from_bytes(&bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut payload = vec![0; header.size.get() as usize];
        self.socket.read_exact(&mut payload)?;
        Ok((payload, files.pop()))
    }

    /// A request whose success is answered. Back ends without REPLY_ACK answer the next question when it is
    /// done, and report nothing of its success.
    pub fn ask(&mut self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.message(code, payload, fds, self.acknowledges)?;
        if !self.acknowledges {
            return self.get(request::GET_FEATURES).map(drop);
        }
        let (answer, _) = self.reply()?;
        if answer == [0; 8] { Ok(()) } else { Err(io::Error::other(format!("request {code} was refused"))) }
    }

    /// A request with a number for an answer.
    pub fn get(&mut self, code: u32) -> io::Result<u64> {
        let answer = self.answer(code, &[])?;
        u64::read_from_bytes(&answer).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// A request that is always answered.
    pub fn answer(&mut self, code: u32, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.message(code, payload, &[], self.acknowledges)?;
        Ok(self.reply()?.0)
    }

    /// All of a guest's memory.
    pub fn set_memory(&mut self, ram: &Ram) -> io::Result<()> {
        let regions = ram.regions();
        let mut table = [(regions.len() as u32).to_le_bytes(), [0; 4]].concat();
        for (guest, size, offset) in regions {
            let user = (USER + guest).into();
            let region = MemoryRegion { guest: guest.into(), size: size.into(), user, offset: offset.into() };
            table.extend_from_slice(region.as_bytes());
        }
        let fds = regions.map(|_| ram.fd().as_fd());
        self.ask(request::SET_MEM_TABLE, &table, &fds)
    }

    /// Memory of the back end's making for what is in flight in `rings` rings.
    pub fn get_inflight(&mut self, rings: u16, ring_size: u16) -> io::Result<(InflightArea, OwnedFd)> {
        let (size, offset) = (0.into(), 0.into());
        let area = InflightArea { size, offset, rings: rings.into(), ring_size: ring_size.into() };
        self.message(request::GET_INFLIGHT_FD, area.as_bytes(), &[], self.acknowledges)?;
        let (answer, file) = self.reply()?;
        let area = InflightArea::read_from_bytes(&answer).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok((area, file.ok_or(io::ErrorKind::InvalidData)?))
    }

    pub fn set_inflight(&mut self, area: &InflightArea, file: &OwnedFd) -> io::Result<()> {
        self.ask(request::SET_INFLIGHT_FD, area.as_bytes(), &[file.as_fd()])
    }

    /// Starts and enables a ring at the position that `setup` has.
    pub fn start(&mut self, index: u32, setup: &RingSetup) -> io::Result<RingEvents> {
        let events = RingEvents::new()?;
        let position = setup.position.load(std::sync::atomic::Ordering::Acquire);
        self.set_ring(request::SET_VRING_NUM, index, setup.size.into())?;
        self.set_ring(request::SET_VRING_BASE, index, position)?;
        self.set_address(index, setup)?;
        self.set_events(index, &events)?;
        self.set_ring(request::SET_VRING_ENABLE, index, 1)?;
        Ok(events)
    }

    /// One of the requests that set a number of a ring.
    pub fn set_ring(&mut self, code: u32, index: u32, number: u32) -> io::Result<()> {
        self.ask(code, RingState { index: index.into(), number: number.into() }.as_bytes(), &[])
    }

    pub fn set_address(&mut self, index: u32, setup: &RingSetup) -> io::Result<()> {
        let address = RingAddress {
            index: index.into(),
            flags: 0.into(),
            descriptors: (USER + setup.descriptors).into(),
            used: (USER + setup.device).into(),
            available: (USER + setup.driver).into(),
            log: 0.into(),
        };
        self.ask(request::SET_VRING_ADDR, address.as_bytes(), &[])
    }

    /// A ring with a kick has started.
    pub fn set_events(&mut self, index: u32, events: &RingEvents) -> io::Result<()> {
        let number = u64::from(index);
        self.ask(request::SET_VRING_CALL, number.as_bytes(), &[events.call.as_fd()])?;
        self.ask(request::SET_VRING_KICK, number.as_bytes(), &[events.kick.as_fd()])
    }
}

impl RingEvents {
    pub fn new() -> io::Result<RingEvents> {
        Ok(RingEvents { kick: crate::eventfd()?, call: crate::eventfd()? })
    }

    pub fn try_clone(&self) -> io::Result<RingEvents> {
        Ok(RingEvents { kick: self.kick.try_clone()?, call: self.call.try_clone()? })
    }
}
