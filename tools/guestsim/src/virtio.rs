//! Virtqueues from the driver's side: chains posted as Linux posts them or as no driver would, completions
//! taken.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use vmlane_mem::Window;
use vmlane_wire::virtio::{desc, event, split_bytes};

use super::ram::{PAGE, Placement, Ram};
use vmlane_device::virtio::queue::Segment;
use vmlane_device::virtio::vhost::RingSetup;

/// A ring and what its driver knows of it.
#[derive(Debug)]
pub struct DriverRing {
    pub ram: Arc<Ram>,
    pub size: u16,
    packed: bool,
    pub descriptors: Window,
    pub driver: Window,
    pub device: Window,
    addresses: [u64; 3],
    pub position: Arc<AtomicU32>,
    /// Next descriptor (split: any free one, taken round), and in packed rings its lap's wrap counter.
    next: u16,
    wrap: bool,
    /// Chains made available.
    posted: u16,
    /// Where the next completion is expected, and in which lap.
    used: u16,
    used_wrap: bool,
    /// By id: descriptors of the ring that a chain takes.
    counts: Vec<u16>,
}

impl DriverRing {
    pub fn new(ram: &Arc<Ram>, size: u16, packed: bool) -> DriverRing {
        let bytes = split_bytes(size);
        let area = |bytes: usize| ram.alloc(bytes.div_ceil(PAGE), Placement::Contiguous)[0];
        let addresses = bytes.map(area);
        let window = |at: usize| {
            let len = bytes[at].next_multiple_of(8);
            ram.map().window(addresses[at], len, true).expect("pages of this memory")
        };
        let [descriptors, driver, device] = [0, 1, 2].map(window);
        DriverRing {
            ram: ram.clone(),
            size,
            packed,
            descriptors,
            driver,
            device,
            addresses,
            position: Arc::new(AtomicU32::new(if packed { 0x8000_8000 } else { 0 })),
            next: 0,
            wrap: true,
            posted: 0,
            used: 0,
            used_wrap: true,
            counts: vec![0; size.into()],
        }
    }

    pub fn setup(&self) -> RingSetup {
        let [descriptors, driver, device] = self.addresses;
        let position = self.position.clone();
        RingSetup { size: self.size, descriptors, driver, device, position, record: None, log: None }
    }

    /// Memory of `bytes`, zeroed.
    pub fn alloc(&self, bytes: usize) -> u64 {
        self.ram.alloc(bytes.div_ceil(PAGE), Placement::Contiguous)[0]
    }

    /// Posts a chain of at least one piece, a descriptor each; its id.
    pub fn post(&mut self, pieces: &[Segment]) -> u16 {
        let first = self.next;
        let count = pieces.len() as u16;
        let mut held = None;
        for (at, piece) in pieces.iter().enumerate() {
            let (index, wrap) = (self.next, self.wrap);
            self.step();
            let mut flags = if piece.writable { desc::WRITE } else { 0 };
            flags |= if at + 1 < pieces.len() { desc::NEXT } else { 0 };
            if !self.packed {
                self.write_split(index, piece.addr, piece.len, flags, self.next);
                continue;
            }
            flags |= if wrap { desc::AVAIL } else { desc::USED };
            let word = u64::from(piece.len) | u64::from(first) << 32 | u64::from(flags) << 48;
            // The first one is made available last.
            if at == 0 { held = Some((piece.addr, word)) } else { self.write(index, piece.addr, word) }
        }
        if let Some((addr, word)) = held {
            self.write(first, addr, word);
        }
        self.counts[usize::from(first)] = count;
        if !self.packed {
            self.publish(first);
        }
        first
    }

    /// Posts the pieces in a table of their own.
    pub fn post_indirect(&mut self, pieces: &[Segment]) -> u16 {
        let table = self.alloc(pieces.len() * desc::SIZE);
        for (at, piece) in pieces.iter().enumerate() {
            let write = if piece.writable { desc::WRITE } else { 0 };
            let more = at + 1 < pieces.len();
            let (a, b) = if self.packed {
                (0, write)
            } else {
                (write | if more { desc::NEXT } else { 0 }, if more { at as u16 + 1 } else { 0 })
            };
            let mut entry = [0; desc::SIZE];
            entry[..8].copy_from_slice(&piece.addr.to_le_bytes());
            entry[8..12].copy_from_slice(&piece.len.to_le_bytes());
            entry[12..14].copy_from_slice(&a.to_le_bytes());
            entry[14..].copy_from_slice(&b.to_le_bytes());
            self.ram.write(table + (at * desc::SIZE) as u64, &entry);
        }
        self.post_table(table, (pieces.len() * desc::SIZE) as u32)
    }

    /// Posts one descriptor that points to a table at `addr`.
    pub fn post_table(&mut self, addr: u64, len: u32) -> u16 {
        self.post_raw(addr, len, desc::INDIRECT)
    }

    /// Posts one descriptor with these flags.
    pub fn post_raw(&mut self, addr: u64, len: u32, flags: u16) -> u16 {
        let (index, wrap) = (self.next, self.wrap);
        self.step();
        self.counts[usize::from(index)] = 1;
        if self.packed {
            let flags = flags | if wrap { desc::AVAIL } else { desc::USED };
            self.write(index, addr, u64::from(len) | u64::from(index) << 32 | u64::from(flags) << 48);
        } else {
            self.write_split(index, addr, len, flags, self.next);
            self.publish(index);
        }
        index
    }

    fn step(&mut self) {
        self.next += 1;
        if self.next == self.size {
            self.next = 0;
            self.wrap = !self.wrap;
        }
    }

    pub fn write_split(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        self.write(index, addr, u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48);
    }

    fn write(&self, index: u16, addr: u64, word: u64) {
        self.descriptors.store_pair(index.into(), [addr, word]);
    }

    /// Makes the chain at `head` available (split rings).
    pub fn publish(&mut self, head: u16) {
        let slot = usize::from(self.posted % self.size);
        self.driver.store_u16(4 + 2 * slot, head);
        self.posted = self.posted.wrapping_add(1);
        self.driver.store_u16(2, self.posted);
    }

    /// Takes the next completion: id and bytes.
    pub fn take(&mut self) -> Option<(u16, u32)> {
        if !self.packed {
            if self.device.load_u16(2) == self.used {
                return None;
            }
            let entry = 4 + 8 * usize::from(self.used % self.size);
            self.used = self.used.wrapping_add(1);
            let id = self.device.load_u32(entry);
            return Some((u16::try_from(id).expect("an id of the ring"), self.device.load_u32(entry + 4)));
        }
        let word = self.descriptors.load_half(self.used.into(), true);
        let flags = (word >> 48) as u16;
        let (avail, used) = (flags & desc::AVAIL != 0, flags & desc::USED != 0);
        if avail != used || used != self.used_wrap {
            return None;
        }
        let id = (word >> 32) as u16;
        self.used += self.counts[usize::from(id)];
        if self.used >= self.size {
            self.used -= self.size;
            self.used_wrap = !self.used_wrap;
        }
        Some((id, word as u32))
    }

    /// Does the device want to be notified of chains?
    pub fn wants_kick(&self) -> bool {
        if self.packed { self.device.load_u16(2) != event::DISABLE } else { self.device.load_u16(0) & 1 == 0 }
    }

    /// Completions are not to be announced.
    pub fn mute(&self) {
        if self.packed {
            self.driver.store_u16(2, event::DISABLE);
        } else {
            self.driver.store_u16(0, 1);
        }
    }
}

/// A piece that the device reads.
pub fn out(addr: u64, len: usize) -> Segment {
    Segment { addr, len: len as u32, writable: false }
}

/// A piece that the device writes.
pub fn into(addr: u64, len: usize) -> Segment {
    Segment { addr, len: len as u32, writable: true }
}
