//! A transmit queue as Linux drives it.

use std::collections::VecDeque;
use std::sync::Arc;

use vmlane_mem::Window;
use vmlane_wire::ethernet::Tci;
use vmlane_wire::vmxnet3::desc::{CONTROL, OffloadMode, SIZE, TxCompletion, TxDesc, completion_generation};

use super::desc::{TxFields, tx_completion, tx_desc};
use super::{alloc, window};
use crate::ram::Ram;

/// Bytes of the buffer that each descriptor has for [`TxRing::send`].
const BUFFER: usize = 4096;

/// What a driver asks for a packet.
#[derive(Clone, Copy, Debug)]
pub struct TxRequest {
    pub mode: OffloadMode,
    /// `hlen`.
    pub header: u16,
    /// `msscof`.
    pub mss_or_field: u16,
    pub tag: Option<Tci>,
    /// `ext1`.
    pub inner: bool,
    pub outer_sum: bool,
    /// `cq`.
    pub completion: bool,
}

impl TxRequest {
    pub const NONE: TxRequest = TxRequest {
        mode: OffloadMode::None,
        header: 0,
        mss_or_field: 0,
        tag: None,
        inner: false,
        outer_sum: false,
        completion: true,
    };

    /// The checksum from `start` on goes to `field`.
    pub fn checksum(start: u16, field: u16) -> TxRequest {
        TxRequest { mode: OffloadMode::Checksum, header: start, mss_or_field: field, ..TxRequest::NONE }
    }

    /// Segments of `mss` bytes behind `header` bytes.
    pub fn segment(header: u16, mss: u16) -> TxRequest {
        TxRequest { mode: OffloadMode::Segment, header, mss_or_field: mss, ..TxRequest::NONE }
    }

    fn first(&self, desc: TxDesc) -> TxDesc {
        let desc = desc.with_offload(self.mode, self.header, self.mss_or_field);
        let desc = if self.inner { desc.with_inner() } else { desc };
        let desc = if self.outer_sum { desc.with_outer_sum() } else { desc };
        self.tag.map_or(desc, |tag| desc.with_tag(tag))
    }
}

/// The driver's half of a transmit queue.
#[derive(Debug)]
pub struct TxRing {
    ram: Arc<Ram>,
    pub commands: Window,
    pub completions: Window,
    /// Guest addresses of the two.
    pub addresses: [u64; 2],
    size: u16,
    completion_size: u16,
    next: u16,
    generation: bool,
    next_completion: u16,
    completion_generation: bool,
    /// Last descriptor and descriptors of each packet that wants a completion, in order. A packet
    /// without one adds its descriptors to the next that has.
    posted: VecDeque<(u16, u16)>,
    silent: u16,
    in_use: u16,
    /// A buffer for each descriptor, once [`Self::send`] needs them.
    buffers: Option<u64>,
}

impl TxRing {
    pub fn new(ram: &Arc<Ram>, size: u16, completion_size: u16) -> TxRing {
        let addresses = [size, completion_size].map(|size| alloc(ram, usize::from(size) * SIZE));
        TxRing {
            ram: ram.clone(),
            commands: window(ram, addresses[0], usize::from(size) * SIZE),
            completions: window(ram, addresses[1], usize::from(completion_size) * SIZE),
            addresses,
            size,
            completion_size,
            next: 0,
            generation: true,
            next_completion: 0,
            completion_generation: true,
            posted: VecDeque::new(),
            silent: 0,
            in_use: 0,
            buffers: None,
        }
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    pub fn completion_size(&self) -> u16 {
        self.completion_size
    }

    /// Descriptors that may be filled; one stays unused.
    pub fn room(&self) -> u16 {
        self.size - 1 - self.in_use
    }

    /// Packets that ask for a completion and have none yet.
    pub fn outstanding(&self) -> usize {
        self.posted.len()
    }

    /// Posts a packet whose pieces lie at guest addresses. False: there is no room.
    #[inline]
    pub fn post(&mut self, parts: &[(u64, usize)], request: &TxRequest) -> bool {
        if parts.len() > usize::from(self.room()) {
            return false;
        }
        let first = (self.next, self.generation);
        for (at, &(addr, len)) in parts.iter().enumerate() {
            let mut desc = tx_desc(addr, len);
            if at == 0 {
                desc = request.first(desc);
            }
            if at + 1 == parts.len() {
                desc = desc.with_end(request.completion);
                self.in_use += parts.len() as u16;
                self.silent += parts.len() as u16;
                if request.completion {
                    self.posted.push_back((self.next, std::mem::take(&mut self.silent)));
                }
            }
            // The first one goes to the device last.
            let generation = if at == 0 { !self.generation } else { self.generation };
            self.store(self.next, desc.with_generation(generation));
            self.step();
        }
        let (index, generation) = first;
        let at = usize::from(index) * SIZE + CONTROL;
        let control = self.commands.load_u64(at) & !(1 << 14) | u64::from(generation) << 14;
        self.commands.store_u64(at, control);
        true
    }

    /// Posts `frame`, copied into buffers of the ring's own: `split` bytes in each descriptor but the
    /// last, which has the rest.
    pub fn send(&mut self, frame: &[u8], split: &[usize], request: &TxRequest) -> bool {
        let mut parts = Vec::new();
        let mut left = frame;
        let mut sizes = split.iter().copied();
        let mut index = self.next;
        let bytes = usize::from(self.size) * BUFFER;
        let buffers = *self.buffers.get_or_insert_with(|| alloc(&self.ram, bytes));
        while !left.is_empty() {
            let len = sizes.next().unwrap_or(BUFFER).min(left.len()).min(BUFFER);
            let addr = buffers + u64::from(index) * BUFFER as u64;
            parts.push((addr, len));
            index = if index + 1 == self.size { 0 } else { index + 1 };
            if parts.len() <= usize::from(self.room()) {
                self.ram.write(addr, &left[..len]);
            }
            left = &left[len..];
        }
        self.post(&parts, request)
    }

    /// Writes any words as the next descriptor, as a driver gone wrong would. The generation bit is the
    /// caller's.
    pub fn post_raw(&mut self, addr: u64, control: u64) {
        self.commands.store_u64(usize::from(self.next) * SIZE, addr);
        self.commands.store_u64(usize::from(self.next) * SIZE + CONTROL, control);
        self.step();
    }

    /// The generation of the next descriptor.
    pub fn generation(&self) -> bool {
        self.generation
    }

    fn store(&mut self, index: u16, desc: TxDesc) {
        self.commands.store_u64(usize::from(index) * SIZE, desc.addr);
        self.commands.store_u64(usize::from(index) * SIZE + CONTROL, desc.control());
    }

    fn step(&mut self) {
        self.next += 1;
        if self.next == self.size {
            self.next = 0;
            self.generation = !self.generation;
        }
    }

    /// Takes the completions that are there; how many packets were completed. Panics as Linux does
    /// when they are not those of the oldest packets, in order.
    #[inline]
    pub fn reap(&mut self) -> usize {
        let mut count = 0;
        while let Some(completion) = self.next_completion() {
            let (end, descriptors) = self.posted.pop_front().expect("a completion without a request");
            assert_eq!(completion.index, end, "completions come in ring order");
            self.in_use -= descriptors;
            count += 1;
        }
        count
    }

    /// The next completion as it is, unchecked.
    pub fn next_completion(&mut self) -> Option<TxCompletion> {
        let at = usize::from(self.next_completion) * SIZE;
        let high = self.completions.load_u64(at + CONTROL);
        if completion_generation(high) != self.completion_generation {
            return None;
        }
        let completion = tx_completion(self.completions.load_u64(at), high);
        self.next_completion += 1;
        if self.next_completion == self.completion_size {
            self.next_completion = 0;
            self.completion_generation = !self.completion_generation;
        }
        Some(completion.expect("no bits but index and generation"))
    }
}
