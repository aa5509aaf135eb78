//! A virtio-net card of a synthetic VM, attached to a daemon's socket, that sends and receives numbered
//! frames.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use vmlane_testkit::eventually;
use vmlane_wire::vhost_user::InflightArea;
use vmlane_wire::virtio::{feature, net_feature};

use crate::Ram;
use crate::vhost_user::{Front, RingEvents};
use crate::virtio::{DriverRing, into, out};

/// Places in each ring.
pub const SIZE: u16 = 64;
const HEADER: usize = 12;
/// Bytes of a frame; its number is at 14.
pub const FRAME: usize = 60;
const BUFFER: usize = 2048;

/// A VM's card from its driver's and its VMM's side.
pub struct Nic {
    pub rx: DriverRing,
    tx: DriverRing,
    features: u64,
    inflight: Option<(InflightArea, std::os::fd::OwnedFd)>,
    vmm: Option<(Front, [RingEvents; 2])>,
    /// Frames by descriptor.
    pages: Vec<u64>,
    pub sent: VecDeque<u16>,
}

impl Nic {
    pub fn new(packed: bool) -> Nic {
        let ram = Arc::new(Ram::new(4 << 20));
        let (rx, tx) = (DriverRing::new(&ram, SIZE, packed), DriverRing::new(&ram, SIZE, packed));
        let pages = (0..2 * SIZE).map(|_| tx.alloc(BUFFER)).collect();
        let features = feature::VERSION_1 | net_feature::MAC | if packed { feature::PACKED } else { 0 };
        let mut nic = Nic { rx, tx, features, inflight: None, vmm: None, pages, sent: VecDeque::new() };
        (0..SIZE).for_each(|at| nic.post(at));
        nic
    }

    fn post(&mut self, id: u16) {
        let addr = self.pages[usize::from(SIZE + id)];
        assert_eq!(self.rx.post(&[into(addr, BUFFER)]), id, "buffers come back in order");
    }

    /// Until there is a daemon that takes it. The positions set are those of a ring never used: the record
    /// knows better.
    pub fn attach(&mut self, socket: &Path) {
        let what = format!("a card at {}", socket.display());
        eventually(&what, || self.try_attach(socket).ok());
    }

    fn try_attach(&mut self, socket: &Path) -> std::io::Result<()> {
        self.vmm = None;
        let mut front = Front::connect(socket, self.features)?;
        front.set_memory(&self.rx.ram)?;
        if self.inflight.is_none() {
            self.inflight = Some(front.get_inflight(2, SIZE)?);
        }
        let (area, file) = self.inflight.as_ref().expect("just made");
        front.set_inflight(area, file)?;
        let events = [front.start(0, &self.rx.setup())?, front.start(1, &self.tx.setup())?];
        self.vmm = Some((front, events));
        Ok(())
    }

    pub fn send(&mut self, number: u64) -> bool {
        if self.sent.len() == usize::from(SIZE) {
            return false;
        }
        let slot = (number % u64::from(SIZE)) as usize;
        let mut frame = vec![0; HEADER + FRAME];
        frame[HEADER..HEADER + 6].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 2]);
        frame[HEADER + 6..HEADER + 12].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 1]);
        frame[HEADER + 12..HEADER + 14].copy_from_slice(&[0x88, 0xb5]);
        frame[HEADER + 14..HEADER + 22].copy_from_slice(&number.to_le_bytes());
        self.tx.ram.write(self.pages[slot], &frame);
        let id = self.tx.post(&[out(self.pages[slot], frame.len())]);
        self.sent.push_back(id);
        if let Some((_, [_, tx])) = &self.vmm {
            let _ = rustix::io::write(&tx.kick, &1u64.to_ne_bytes());
        }
        true
    }

    /// Chains of sent frames that have come back.
    pub fn settle(&mut self) {
        while let Some((id, _)) = self.tx.take() {
            assert_eq!(Some(id), self.sent.pop_front(), "each chain comes back once, in order");
        }
    }

    /// The numbers of the frames that have come.
    pub fn receive(&mut self) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some((id, len)) = self.rx.take() {
            let mut bytes = vec![0; len as usize];
            self.rx.ram.read(self.pages[usize::from(SIZE + id)], &mut bytes);
            assert_eq!(bytes.len(), HEADER + FRAME);
            let number = bytes[HEADER + 14..HEADER + 22].first_chunk::<8>().expect("eight bytes");
            numbers.push(u64::from_le_bytes(*number));
            self.post(id);
        }
        numbers
    }
}
