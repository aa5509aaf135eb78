//! The other end of an uplink that is a vhost-user front end: a back end whose every answer and every word in
//! the rings is chosen.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use vmlane_mem::Window;
use vmlane_wire::vhost_user::{HEADER, Header, MemoryRegion, MemoryTable, RingAddress, protocol, request};
use vmlane_wire::virtio::feature;
use zerocopy::{FromBytes, IntoBytes};

use crate::{TIMEOUT, fds};

/// Bytes of the header in front of a frame.
pub const VNET: usize = 12;

/// What the back end offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub features: u64,
    pub protocol: u64,
}

/// A connection whose rings run.
pub struct RawPeer {
    pub socket: UnixStream,
    /// As the front end has accepted them.
    pub features: u64,
    memory: Window,
    base: u64,
    rings: [RingAddress; 2],
    pub calls: Vec<OwnedFd>,
    /// Entries of the used rings written, and of the available rings read.
    used: [u16; 2],
    taken: [u16; 2],
    size: u16,
}

/// The next connection of an uplink.
pub fn accept(listener: &UnixListener) -> UnixStream {
    let (socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// A message and its descriptors; None: the connection is closed.
pub fn receive(socket: &mut UnixStream) -> Option<(Header, Vec<u8>, Vec<OwnedFd>)> {
    let (bytes, fds) = match fds::receive::<HEADER>(socket) {
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            return None;
        }
        received => received.expect("a message, or the end"),
    };
    let header = Header::read_from_bytes(&bytes).unwrap();
    assert!(header.is_request());
    let mut payload = vec![0; header.size.get() as usize];
    socket.read_exact(&mut payload).unwrap();
    Some((header, payload, fds))
}

pub fn answer(socket: &mut UnixStream, code: u32, number: u64) {
    let header = Header::reply(code, 8);
    socket.write_all(&[header.as_bytes(), number.as_bytes()].concat()).unwrap();
}

impl RawPeer {
    /// Follows the set-up of a connection to its end.
    pub fn serve(mut socket: UnixStream, offer: Offer) -> RawPeer {
        let (mut features, mut size, mut rings, mut calls) = (0, 0, [None; 2], Vec::new());
        let mut memory = None;
        let mut started = 0;
        loop {
            let (header, payload, mut fds) = receive(&mut socket).expect("the set-up goes on");
            let code = header.request.get();
            match code {
                request::GET_FEATURES => answer(&mut socket, code, offer.features),
                request::GET_PROTOCOL_FEATURES => answer(&mut socket, code, offer.protocol),
                request::SET_FEATURES => features = u64::read_from_bytes(&payload).unwrap(),
                request::SET_MEM_TABLE => {
                    let (_, region) = MemoryTable::read_from_prefix(&payload).unwrap();
                    let region = MemoryRegion::read_from_bytes(region).unwrap();
                    let window = Window::over_file(&fds.pop().unwrap(), region.size.get()).unwrap();
                    memory = Some((window, region.user.get()));
                }
                request::SET_VRING_NUM => {
                    size = payload[4..].iter().rev().fold(0, |n, &b| n << 8 | u16::from(b))
                }
                request::SET_VRING_ADDR => {
                    let address = RingAddress::read_from_bytes(&payload).unwrap();
                    rings[address.index.get() as usize] = Some(address);
                }
                request::SET_VRING_CALL => calls.append(&mut fds),
                request::SET_VRING_KICK => started += 1,
                _ => {}
            }
            let asked = matches!(code, request::GET_FEATURES | request::GET_PROTOCOL_FEATURES);
            if header.needs_reply() && !asked {
                answer(&mut socket, code, 0);
            }
            let acknowledges =
                features & feature::PROTOCOL_FEATURES != 0 && offer.protocol & protocol::REPLY_ACK != 0;
            let last = match acknowledges {
                true => code == request::SET_VRING_ENABLE && payload[0] == 1,
                false => code == request::GET_FEATURES && started == 2,
            };
            if last {
                let (memory, base) = memory.unwrap();
                let rings = rings.map(Option::unwrap);
                return RawPeer {
                    socket,
                    features,
                    memory,
                    base,
                    rings,
                    calls,
                    used: [0; 2],
                    taken: [0; 2],
                    size,
                };
            }
        }
    }

    fn at(&self, address: u64) -> usize {
        (address - self.base) as usize
    }

    /// The next buffer that the front end has made available in a ring.
    pub fn take(&mut self, ring: usize) -> Option<u16> {
        let available = self.at(self.rings[ring].available.get());
        if self.memory.load_u16(available + 2) == self.taken[ring] {
            return None;
        }
        let slot = usize::from(self.taken[ring] % self.size);
        self.taken[ring] = self.taken[ring].wrapping_add(1);
        Some(self.memory.load_u16(available + 4 + 2 * slot))
    }

    /// Where a descriptor's bytes lie, and how many they are.
    pub fn bytes(&self, ring: usize, id: u16) -> (usize, usize) {
        let at = self.at(self.rings[ring].descriptors.get()) + 16 * usize::from(id);
        (self.at(self.memory.load_u64(at)), self.memory.load_u32(at + 8) as usize)
    }

    /// All of the memory that both ends share.
    pub fn memory(&self) -> &Window {
        &self.memory
    }

    /// Where a ring's descriptors, its available ring and its used ring begin.
    pub fn areas(&self, ring: usize) -> [usize; 3] {
        let address = &self.rings[ring];
        [address.descriptors, address.available, address.used].map(|part| self.at(part.get()))
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.memory.write(at, bytes);
    }

    /// Gives a buffer back, for what that describes.
    pub fn give_back(&mut self, ring: usize, id: u32, len: u32) {
        let used = self.at(self.rings[ring].used.get());
        let slot = usize::from(self.used[ring] % self.size);
        self.memory.store_u32(used + 4 + 8 * slot, id);
        self.memory.store_u32(used + 8 + 8 * slot, len);
        self.used[ring] = self.used[ring].wrapping_add(1);
    }

    /// Shows what was given back, and `more` that was not.
    pub fn publish(&mut self, ring: usize, more: u16) {
        let used = self.at(self.rings[ring].used.get());
        self.memory.store_u16(used + 2, self.used[ring].wrapping_add(more));
        rustix::io::write(&self.calls[ring], &1u64.to_ne_bytes()).unwrap();
    }

    /// Sends bytes behind a header that claims `buffers`, in one buffer.
    pub fn send(&mut self, header: [u8; 10], buffers: u16, frame: &[u8]) {
        let id = self.take(0).expect("a buffer");
        let (at, _) = self.bytes(0, id);
        self.write(at, &[&header[..], &buffers.to_le_bytes(), frame].concat());
        self.give_back(0, id.into(), (VNET + frame.len()) as u32);
        self.publish(0, 0);
    }

    /// Waits until the front end closes the connection.
    pub fn expect_end(&mut self) {
        let end = receive(&mut self.socket);
        assert!(end.is_none(), "the front end sent {:?}", end.map(|(header, ..)| header));
    }
}
