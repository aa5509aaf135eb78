//! A synthetic virtio-vsock guest of a daemon.

use std::path::Path;
use std::sync::Arc;

use vmlane_guestsim::Ram;
use vmlane_guestsim::vhost_user::{Front, RingEvents};
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_testkit::eventually;
use vmlane_wire::virtio::feature;
use vmlane_wire::virtio_vsock::{HEADER, Header, STREAM, kind, op};
use zerocopy::{FromBytes, IntoBytes};

const BUFFER: usize = 4096;

/// A guest's device, from its driver's and its VMM's side.
pub struct Guest {
    cid: u32,
    rx: DriverRing,
    tx: DriverRing,
    /// By the descriptor that they are posted with.
    buffers: Vec<u64>,
    _vmm: Front,
    events: [RingEvents; 2],
}

impl Guest {
    pub fn attach(socket: &Path, cid: u32) -> Guest {
        Guest::attach_with(socket, cid, 32)
    }

    /// The same with so many buffers to receive into.
    pub fn attach_with(socket: &Path, cid: u32, buffers: usize) -> Guest {
        let ram = Arc::new(Ram::new(4 << 20));
        let (rx, tx) = (DriverRing::new(&ram, 64, false), DriverRing::new(&ram, 64, false));
        let mut vmm = Front::connect(socket, feature::VERSION_1 | STREAM).unwrap();
        vmm.set_memory(&ram).unwrap();
        let events = [vmm.start(0, &rx.setup()).unwrap(), vmm.start(1, &tx.setup()).unwrap()];
        let mut guest = Guest { cid, rx, tx, buffers: vec![0; 64], _vmm: vmm, events };
        guest.give(buffers);
        guest
    }

    /// More buffers to receive into.
    pub fn give(&mut self, count: usize) {
        for _ in 0..count {
            let addr = self.rx.alloc(BUFFER);
            self.post_buffer(addr);
        }
    }

    fn post_buffer(&mut self, addr: u64) {
        let id = self.rx.post(&[into(addr, BUFFER)]);
        self.buffers[usize::from(id)] = addr;
        rustix::io::write(&self.events[0].kick, &1u64.to_ne_bytes()).unwrap();
    }

    pub fn send(&mut self, from: u32, to: (u32, u32), op: u16, payload: &[u8]) {
        let header = Header::new((self.cid, from), to, kind::STREAM, op);
        self.post(
            Header { len: (payload.len() as u32).into(), buf_alloc: (256 << 10).into(), ..header },
            payload,
        );
    }

    fn post(&mut self, header: Header, payload: &[u8]) {
        let bytes = [header.as_bytes(), payload].concat();
        let addr = self.tx.alloc(bytes.len());
        self.tx.ram.write(addr, &bytes);
        self.tx.post(&[out(addr, bytes.len())]);
        rustix::io::write(&self.events[1].kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Shuts down directions: bits of SHUTDOWN's flags.
    pub fn shut(&mut self, from: u32, to: (u32, u32), what: u32) {
        let header = Header::new((self.cid, from), to, kind::STREAM, op::SHUTDOWN);
        self.post(Header { flags: what.into(), buf_alloc: (256 << 10).into(), ..header }, &[]);
    }

    /// The next packet is of this kind.
    pub fn expect(&mut self, op: u16) {
        self.receive(op);
    }

    /// The same, with what is in it; its buffer is given back.
    pub fn receive(&mut self, op: u16) -> (Header, Vec<u8>) {
        let (header, payload) = self.any();
        assert_eq!(header.op.get(), op, "{header:?}");
        (header, payload)
    }

    /// The next packet, whatever it is; its buffer is given back.
    pub fn any(&mut self) -> (Header, Vec<u8>) {
        let (header, payload, addr) = self.take();
        self.post_buffer(addr);
        (header, payload)
    }

    /// The next packet, whatever it is, and the address of its buffer.
    pub fn take(&mut self) -> (Header, Vec<u8>, u64) {
        let (id, len) = eventually("a packet", || self.rx.take());
        let addr = self.buffers[usize::from(id)];
        let mut bytes = vec![0; len as usize];
        self.rx.ram.read(addr, &mut bytes);
        let header = Header::read_from_bytes(&bytes[..HEADER]).unwrap();
        (header, bytes.split_off(HEADER), addr)
    }
}
