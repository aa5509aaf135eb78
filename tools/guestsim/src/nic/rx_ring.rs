//! A receive queue as Linux drives it, with the checks on which Linux panics.

use std::sync::Arc;

use vmlane_mem::Window;
use vmlane_wire::vmxnet3::desc::{CONTROL, RxCompletion, RxDesc, SIZE, completion_generation};

use super::desc::{RxFields, rx_desc};
use super::{alloc, window};
use crate::ram::Ram;

/// Bytes of a BODY buffer.
pub const BODY: usize = 4096;
/// What Linux leaves free in front of a HEAD buffer (room for headers, and to align IP), and what it
/// keeps behind it.
const BEFORE: usize = 64 + 2;
const BEHIND: usize = 320;

/// How a driver lays out a receive queue.
#[derive(Clone, Debug)]
pub struct RxShape {
    pub ring0: u16,
    /// 0: none.
    pub ring1: u16,
    pub completions: u16,
    /// Bytes of a HEAD.
    pub head: usize,
    /// BODYs behind each HEAD in ring 0.
    pub bodies: u16,
    /// Bytes of a slot of the data ring; 0: none.
    pub data: u16,
    /// Bodies of one packet, beyond which a driver panics.
    pub most_bodies: usize,
    /// Descriptors that are never posted.
    pub unused: u16,
}

impl RxShape {
    /// Linux below revision 7 with an MTU of 1500, two rings of `size` and `size / 2`.
    pub fn linux(size: u16) -> RxShape {
        RxShape {
            ring0: size,
            ring1: size / 2,
            completions: size + size / 2,
            head: 1522,
            bodies: 0,
            data: 0,
            most_bodies: 17,
            unused: 1,
        }
    }

    /// Bytes from one HEAD to the next: they lie side by side, as Linux cuts them from larger pieces. (In
    /// pages of their own they would all fight for the same cache sets.)
    pub fn head_stride(&self) -> usize {
        head_stride(self.head)
    }

    /// The same with an MTU of 9000: a HEAD and two BODYs for each packet in ring 0.
    pub fn linux_jumbo() -> RxShape {
        RxShape { ring0: 1056, ring1: 576, completions: 1632, head: 3072, bodies: 2, ..RxShape::linux(0) }
    }
}

fn head_stride(len: usize) -> usize {
    (len + BEFORE).next_multiple_of(64) + BEHIND
}

/// A packet as the driver hands it to its stack.
#[derive(Clone, Debug, Default)]
pub struct Received {
    pub bytes: Vec<u8>,
    /// First and last completion.
    pub first: Option<RxCompletion>,
    pub last: Option<RxCompletion>,
    pub buffers: usize,
    /// From the data ring.
    pub data_ring: bool,
}

impl Received {
    /// First completion.
    pub fn start(&self) -> RxCompletion {
        self.first.expect("a packet has a first completion")
    }

    /// Last completion.
    pub fn end(&self) -> RxCompletion {
        self.last.expect("a packet has a last completion")
    }
}

/// One of the two command rings, with what the driver remembers of each slot.
#[derive(Debug)]
struct Posted {
    window: Window,
    addr: u64,
    size: u16,
    /// The next slot to post again, and its generation.
    fill: u16,
    generation: bool,
    /// The first slot that is not completed yet.
    complete: u16,
    slots: Vec<RxDesc>,
}

impl Posted {
    fn new(ram: &Arc<Ram>, shapes: impl Iterator<Item = (usize, bool)> + Clone) -> Posted {
        let stride = |(len, body): (usize, bool)| if body { len } else { head_stride(len) };
        let mut next = alloc(ram, shapes.clone().map(stride).sum());
        let slots: Vec<RxDesc> = shapes
            .map(|(len, body)| {
                let addr = if body { next } else { next + BEFORE as u64 };
                next += stride((len, body)) as u64;
                rx_desc(addr, len, body, false)
            })
            .collect();
        let bytes = slots.len() * SIZE;
        let addr = alloc(ram, bytes);
        let size = slots.len() as u16;
        Posted { window: window(ram, addr, bytes), addr, size, fill: 0, generation: true, complete: 0, slots }
    }

    fn post(&mut self) {
        let slot = self.slots[usize::from(self.fill)];
        let desc = rx_desc(slot.addr, slot.len(), slot.is_body(), self.generation);
        self.window.store_u64(usize::from(self.fill) * SIZE, desc.addr);
        self.window.store_u64(usize::from(self.fill) * SIZE + CONTROL, desc.control());
        self.fill += 1;
        if self.fill == self.size {
            self.fill = 0;
            self.generation = !self.generation;
        }
    }

    /// A completion named slot `index`: the device has not changed the descriptor.
    fn check(&self, index: u16) -> RxDesc {
        assert!(index < self.size, "index {index} of {}", self.size);
        let slot = self.slots[usize::from(index)];
        let at = usize::from(index) * SIZE;
        let seen = RxDesc::from_words(self.window.load_u64(at), self.window.load_u64(at + CONTROL));
        assert_eq!((seen.addr, seen.len()), (slot.addr, slot.len()), "a descriptor was changed");
        slot
    }

    /// Everything up to `index` is completed (what lies before it was skipped). How many slots.
    fn completed(&mut self, index: u16) -> u16 {
        let skipped = (index + self.size - self.complete) % self.size;
        self.complete = (index + 1) % self.size;
        skipped + 1
    }
}

/// The driver's half of a receive queue.
#[derive(Debug)]
pub struct RxRings {
    ram: Arc<Ram>,
    rings: Vec<Posted>,
    pub completions: Window,
    completion_addr: u64,
    shape: RxShape,
    data: u64,
    number: u16,
    queues: u16,
    next: u16,
    generation: bool,
    open: Option<Received>,
    /// Completed descriptors are posted again at once.
    pub reposts: bool,
    held_back: [u16; 2],
}

impl RxRings {
    /// Queue `number` of `queues`, nothing posted.
    pub fn new(ram: &Arc<Ram>, shape: &RxShape, number: u16, queues: u16) -> RxRings {
        let group = shape.bodies + 1;
        let ring0 =
            (0..shape.ring0).map(|at| if at % group == 0 { (shape.head, false) } else { (BODY, true) });
        let mut rings = vec![Posted::new(ram, ring0)];
        if shape.ring1 > 0 {
            rings.push(Posted::new(ram, (0..shape.ring1).map(|_| (BODY, true))));
        }
        let bytes = usize::from(shape.completions) * SIZE;
        let completion_addr = alloc(ram, bytes);
        RxRings {
            ram: ram.clone(),
            rings,
            completions: window(ram, completion_addr, bytes),
            completion_addr,
            shape: shape.clone(),
            data: alloc(ram, usize::from(shape.ring0) * usize::from(shape.data)),
            number,
            queues,
            next: 0,
            generation: true,
            open: None,
            reposts: true,
            held_back: [0; 2],
        }
    }

    /// Guest addresses of ring 0, ring 1 (0: none) and the completions.
    pub fn addresses(&self) -> [u64; 3] {
        [self.rings[0].addr, self.rings.get(1).map_or(0, |ring| ring.addr), self.completion_addr]
    }

    pub fn shape(&self) -> &RxShape {
        &self.shape
    }

    /// Guest address of the data ring and bytes of a slot, if there is one.
    pub fn data(&self) -> Option<(u64, u16)> {
        (self.shape.data > 0).then_some((self.data, self.shape.data))
    }

    /// The window of ring 0 or ring 1.
    pub fn window(&self, ring: usize) -> &Window {
        &self.rings[ring].window
    }

    /// The descriptor in a slot, as the driver remembers it.
    pub fn slot(&self, ring: usize, index: u16) -> RxDesc {
        self.rings[ring].slots[usize::from(index)]
    }

    /// Has slot `index` of a ring hold another buffer, before it is posted.
    pub fn set_slot(&mut self, ring: usize, index: u16, desc: RxDesc) {
        self.rings[ring].slots[usize::from(index)] = desc;
    }

    /// Posts as many as a driver does at first.
    pub fn fill(&mut self) {
        for ring in 0..self.rings.len() {
            self.post(ring, self.rings[ring].size - self.shape.unused);
        }
    }

    /// Posts the next `count` of a ring.
    pub fn post(&mut self, ring: usize, count: u16) {
        (0..count).for_each(|_| self.rings[ring].post());
    }

    /// Posts again what was completed while [`Self::reposts`] was off.
    pub fn repost(&mut self) {
        for ring in 0..self.rings.len() {
            let count = std::mem::take(&mut self.held_back[ring]);
            self.post(ring, count);
        }
    }

    /// The next completion, if one is there.
    fn next_completion(&mut self) -> Option<RxCompletion> {
        let at = usize::from(self.next) * SIZE;
        let high = self.completions.load_u64(at + CONTROL);
        if completion_generation(high) != self.generation {
            return None;
        }
        let completion = RxCompletion::from_words(self.completions.load_u64(at), high);
        self.next += 1;
        if self.next == self.shape.completions {
            self.next = 0;
            self.generation = !self.generation;
        }
        Some(completion)
    }

    /// The next packet.
    pub fn receive(&mut self) -> Option<Received> {
        loop {
            let Some(done) = self.next_completion() else {
                assert!(self.open.is_none(), "a poll ended in the middle of a packet");
                return None;
            };
            let (ring, slot) = self.consume(done);
            let data_ring = done.ring() == self.number + 2 * self.queues;
            let from = if data_ring {
                assert!(done.len() <= usize::from(self.shape.data) && done.is_start() && done.is_end());
                self.data + u64::from(done.index()) * u64::from(self.shape.data)
            } else {
                slot.addr
            };
            self.append(done, ring, slot, from, data_ring);
            if done.is_end() {
                return self.open.take();
            }
        }
    }

    /// Only counts: takes every completion that is there and posts its buffers again. Returns packets
    /// and bytes.
    #[inline]
    pub fn drain(&mut self) -> (u64, u64) {
        let (mut packets, mut bytes) = (0, 0);
        while let Some(done) = self.next_completion() {
            self.consume(done);
            bytes += done.len() as u64;
            packets += u64::from(done.is_end());
        }
        (packets, bytes)
    }

    /// Checks a completion's buffer and posts it again; its ring and what it was.
    #[inline]
    fn consume(&mut self, done: RxCompletion) -> (usize, RxDesc) {
        let ring = match done.ring() {
            name if name == self.number => 0,
            name if name == self.number + self.queues => 1,
            name if name == self.number + 2 * self.queues => 0,
            other => panic!("ring {other} is none of queue {}", self.number),
        };
        let slot = self.rings[ring].check(done.index());
        let count = self.rings[ring].completed(done.index());
        if self.reposts {
            self.post(ring, count);
        } else {
            self.held_back[ring] += count;
        }
        (ring, slot)
    }

    fn append(&mut self, done: RxCompletion, ring: usize, slot: RxDesc, from: u64, data_ring: bool) {
        assert!(data_ring || done.len() <= slot.len(), "{} bytes in {}", done.len(), slot.len());
        if done.is_start() {
            assert!(self.open.is_none(), "a packet begins inside another");
            assert!(ring == 0 && !slot.is_body(), "a packet begins in a body");
            assert!(!done.is_empty() || done.is_end());
            self.open = Some(Received { first: Some(done), data_ring, ..Received::default() });
        } else {
            assert!(
                slot.is_body() && slot.len() == BODY && !done.is_empty(),
                "{done:?} continues in {slot:?}"
            );
        }
        let packet = self.open.as_mut().expect("a body outside any packet");
        let at = packet.bytes.len();
        packet.bytes.resize(at + done.len(), 0);
        self.ram.read(from, &mut packet.bytes[at..]);
        packet.buffers += 1;
        assert!(packet.buffers <= 1 + self.shape.most_bodies, "{} buffers", packet.buffers);
        packet.last = Some(done);
        assert_eq!(done.kind() == 3, done.aggregate().is_none());
        if done.kind() == 3 {
            assert_eq!(done.sum(), 0, "a value here makes Linux take the packet for partial_checksum");
        }
        assert!(done.is_frame_good() && !done.is_error());
    }
}
