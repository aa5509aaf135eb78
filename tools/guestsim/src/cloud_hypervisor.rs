//! A VMM that treats a vhost-user device as Cloud Hypervisor's sources do (`--generic-vhost-user`;
//! `virtio-devices/src/vhost_user/` at ae44c297, after version 53): which requests it sends, in which order,
//! and what it does when its connection is closed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vmlane_device::virtio::vhost::RingSetup;
use vmlane_testkit::eventually;
use vmlane_wire::vhost_user::{ConfigSpace, InflightArea, RingState, protocol, request};
use vmlane_wire::virtio::feature;
use zerocopy::{FromBytes, IntoBytes};

use crate::Ram;
use crate::vhost_user::{Front, RingEvents};
use crate::virtio::DriverRing;

/// What it takes of a back end's protocol features.
const PROTOCOL: u64 = protocol::CONFIG
    | protocol::MULTI_QUEUE
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::REPLY_ACK
    | protocol::INFLIGHT_SHMFD
    | protocol::LOG_SHMFD
    | protocol::BACKEND_REQ;
/// What it offers to any guest: neither packed rings nor anything of one kind of device.
const FEATURES: u64 = feature::INDIRECT | feature::EVENT_INDEX | feature::VERSION_1;

/// A VMM with one device.
pub struct CloudHypervisor {
    socket: PathBuf,
    front: Front,
    /// Those of the protocol and of the device that are agreed on.
    protocol: u64,
    features: u64,
    ram: Arc<Ram>,
    rings: Vec<(RingSetup, RingEvents)>,
    inflight: Option<(InflightArea, OwnedFd)>,
    /// Where the back end could ask, and its end of it.
    questions: Option<(UnixStream, UnixStream)>,
}

/// A connection on which the back end has announced what it can do. It tries again for a minute.
fn connect(socket: &Path) -> (Front, u64) {
    eventually("a back end", || {
        let mut front = Front::new(UnixStream::connect(socket).ok()?).ok()?;
        front.send(request::SET_OWNER, &[], &[]).ok()?;
        let features = front.get(request::GET_FEATURES).ok()?;
        Some((front, features))
    })
}

impl CloudHypervisor {
    /// The VMM starts; its guest has not loaded a driver.
    pub fn start(socket: &Path, ram: &Arc<Ram>, queues: u64) -> io::Result<CloudHypervisor> {
        let (mut front, offered) = connect(socket);
        let protocol = PROTOCOL & front.get(request::GET_PROTOCOL_FEATURES)?;
        front.set_protocol(protocol)?;
        assert!(queues <= front.get(request::GET_QUEUE_NUM)?, "it would not start");
        let features = FEATURES & offered;
        let (socket, ram, rings) = (socket.to_owned(), ram.clone(), Vec::new());
        Ok(CloudHypervisor { socket, front, protocol, features, ram, rings, inflight: None, questions: None })
    }

    /// A driver reads its configuration space.
    pub fn config(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let space = ConfigSpace { offset: 0.into(), size: (len as u32).into(), flags: 0.into() };
        let asked = [space.as_bytes(), &vec![0; len]].concat();
        let answer = self.front.answer(request::GET_CONFIG, &asked)?;
        Ok(answer.get(size_of::<ConfigSpace>()..).unwrap_or_default().to_vec())
    }

    /// A driver takes these features and states that it is ready, with these rings. Returns the event fds of
    /// each.
    pub fn activate(&mut self, features: u64, rings: &[&DriverRing]) -> io::Result<Vec<RingEvents>> {
        assert_eq!(features & !self.features, 0, "features that are not on offer");
        self.features = features;
        self.rings.clear();
        for ring in rings {
            self.rings.push((ring.setup(), RingEvents::new()?));
        }
        self.inflight = None;
        self.questions = Some(UnixStream::pair()?);
        self.set_up()?;
        self.rings.iter().map(|(_, events)| events.try_clone()).collect()
    }

    fn set_up(&mut self) -> io::Result<()> {
        let front = &mut self.front;
        let features = self.features | feature::PROTOCOL_FEATURES;
        front.ask(request::SET_FEATURES, features.as_bytes(), &[])?;
        front.set_memory(&self.ram)?;
        for (index, (setup, _)) in (0..).zip(&self.rings) {
            front.set_ring(request::SET_VRING_NUM, index, setup.size.into())?;
        }
        if self.protocol & protocol::INFLIGHT_SHMFD != 0 {
            if self.inflight.is_none() {
                let size = self.rings.first().map_or(0, |(setup, _)| setup.size);
                self.inflight = Some(front.get_inflight(self.rings.len() as u16, size)?);
            }
            if let Some((area, file)) = &self.inflight {
                front.set_inflight(area, file)?;
            }
        }
        for (index, (setup, events)) in (0..).zip(&self.rings) {
            front.set_address(index, setup)?;
            // Where the driver is, whatever of that is not done.
            let mut available = [0; 2];
            self.ram.read(setup.driver + 2, &mut available);
            front.set_ring(request::SET_VRING_BASE, index, u16::from_le_bytes(available).into())?;
            front.set_events(index, events)?;
        }
        self.enable(true)?;
        if let Some((_, theirs)) = &self.questions
            && self.protocol & protocol::BACKEND_REQ != 0
        {
            self.front.ask(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        }
        Ok(())
    }

    /// Its VM is paused, or goes on.
    pub fn enable(&mut self, enabled: bool) -> io::Result<()> {
        for index in 0..self.rings.len() as u32 {
            self.front.set_ring(request::SET_VRING_ENABLE, index, enabled.into())?;
        }
        Ok(())
    }

    /// Its guest resets the device. Returns where each ring was.
    pub fn reset(&mut self) -> io::Result<Vec<u32>> {
        let mut positions = Vec::new();
        for index in 0..self.rings.len() as u32 {
            self.front.set_ring(request::SET_VRING_ENABLE, index, 0)?;
            let asked = RingState { index: index.into(), number: 0.into() };
            let answer = self.front.answer(request::GET_VRING_BASE, asked.as_bytes())?;
            let state = RingState::read_from_bytes(&answer).map_err(|_| io::ErrorKind::InvalidData)?;
            positions.push(state.number.get());
        }
        self.rings.clear();
        Ok(positions)
    }

    /// Its connection was closed: it sees that as soon as it is not in a request.
    pub fn is_closed(&self) -> bool {
        self.front.is_closed()
    }

    /// What it does then: it connects again, and sets up all rings as they are.
    pub fn reconnect(&mut self) -> io::Result<()> {
        (self.front, _) = connect(&self.socket);
        self.front.set_protocol(self.protocol)?;
        self.set_up()
    }
}
