//! A frame port over plain memory, and the test's end of it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{
    Aggregate, ChecksumStatus, DropReason, Filter, FramePort, FramePortInfo, HEAD, Layers, MAX_FRAME,
    MAX_HEAD, Needs, Offload, Overhead, Refused, RxCapabilities, RxFrame, Sign, Ticked, Token, TxFrame,
    WakeUp,
};
use vmlane_wire::ethernet::{HEADER, Mac, TAG, Tci};

/// Frames that the port describes at once, at most.
pub const LOOKAHEAD: usize = 256;
/// Bytes of memory for each.
const ROOM: usize = 68 << 10;

/// A frame as its receiver got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Without the tag.
    pub bytes: Vec<u8>,
    pub tag: Option<Tci>,
    pub layers: Layers,
    pub checksum: ChecksumStatus,
    pub aggregate: Option<Aggregate>,
}

/// When the port's own code panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    Fetch,
    Deliver,
    Finish,
    Flush,
    Tick,
}

/// Many fields: each call of the port has something that a test sets or examines.
#[derive(Default)]
struct Inner {
    capabilities: RxCapabilities,
    filter: Filter,
    sending: VecDeque<(Vec<u8>, Offload, Option<Tci>)>,
    received: Vec<Received>,
    /// Frames that may still be delivered; None: any number.
    room: Option<usize>,
    /// Frames of more bytes find no buffers; None: there are buffers for any.
    longest: Option<usize>,
    refuse: Option<DropReason>,
    in_flight: usize,
    finished: usize,
    /// Calls of `fetch` that had a frame, and of `flush`.
    flushes: usize,
    refreshes: usize,
    /// Descriptors read in vain with each burst that is fetched or delivered; those not reported yet, and
    /// all.
    overhead: usize,
    unreported: Overhead,
    overhead_so_far: usize,
    keeps: bool,
    /// Checksums of what it sends were verified, it claims.
    verifies: bool,
    dropped: bool,
    failed: bool,
    trap: Option<Trap>,
    /// An interrupt is held back.
    holds_back: bool,
    /// What a cheap poll finds, true or not; None: a turn.
    needs: Option<Needs>,
    /// What the guest announces frames by, if it does; the port has the same.
    doorbell: Option<OwnedFd>,
    /// Calls of `arm` and `disarm`.
    arms: usize,
    disarms: usize,
    /// Frames that the last call of `fetch` asked for.
    asked: usize,
}

/// The test's end of a [`MemoryPort`].
#[derive(Clone)]
pub struct Wire(Arc<Mutex<Inner>>);

/// What an ordinary NIC with an MTU of 1500 takes.
pub const PLAIN: RxCapabilities = RxCapabilities {
    frame: 1500 + HEADER,
    aggregate: 1500 + HEADER,
    tso4: false,
    tso6: false,
    uso4: false,
    uso6: false,
    partial_sum: false,
    partial_frame: false,
    verdicts: false,
};

/// What a NIC takes whose guest aggregates (LRO).
pub const LRO: RxCapabilities = RxCapabilities {
    aggregate: MAX_FRAME,
    tso4: true,
    tso6: true,
    partial_sum: true,
    partial_frame: false,
    ..PLAIN
};

impl Wire {
    /// A port whose guest has the address `mac`, wants its own frames and broadcasts, and takes [`PLAIN`].
    pub fn new(mac: Mac) -> (Wire, Box<MemoryPort>) {
        Wire::small(mac, LOOKAHEAD)
    }

    /// The same for one that describes at most `lookahead` frames at once: quickly made.
    pub fn small(mac: Mac, lookahead: usize) -> (Wire, Box<MemoryPort>) {
        let filter = Filter { mac, unicast: true, broadcast: true, ..Filter::default() };
        let inner = Inner { capabilities: PLAIN, filter: filter.clone(), keeps: true, ..Inner::default() };
        let wire = Wire(Arc::new(Mutex::new(inner)));
        let memory = memory(lookahead * ROOM);
        let port = MemoryPort {
            wire: wire.clone(),
            slots: (0..lookahead)
                .map(|_| Slot {
                    head: [0; MAX_HEAD],
                    head_len: 0,
                    spans: Spans::new(memory.clone(), true),
                    offload: Offload::None,
                    tag: None,
                })
                .collect(),
            free: (0..lookahead as u32).rev().collect(),
            filter,
            sink: Spans::new(self::memory(2 * ROOM), true),
            doorbell: None,
        };
        (wire, Box::new(port))
    }

    pub fn send(&self, frame: &[u8], offload: Offload, tag: Option<Tci>) {
        self.0.lock().sending.push_back((frame.to_vec(), offload, tag));
    }

    /// What arrived since the last call.
    pub fn received(&self) -> Vec<Received> {
        std::mem::take(&mut self.0.lock().received)
    }

    pub fn set_capabilities(&self, capabilities: RxCapabilities) {
        self.0.lock().capabilities = capabilities;
    }

    /// In force after the next refresh.
    pub fn change_filter(&self, change: impl FnOnce(&mut Filter)) {
        change(&mut self.0.lock().filter);
    }

    /// Lets `frames` more in; None: any number.
    pub fn set_room(&self, frames: Option<usize>) {
        self.0.lock().room = frames;
    }

    /// Has buffers for frames of so many bytes at most, as a ring that is almost full; None: for any.
    pub fn set_longest(&self, bytes: Option<usize>) {
        self.0.lock().longest = bytes;
    }

    /// Every delivery is refused for this reason.
    pub fn refuse(&self, reason: Option<DropReason>) {
        self.0.lock().refuse = reason;
    }

    /// From here on the port claims that checksums of what it sends were verified, as an uplink does for the
    /// host's kernel.
    pub fn verify(&self) {
        self.0.lock().verifies = true;
    }

    /// Frames are only counted from now on.
    pub fn forget_frames(&self) {
        self.0.lock().keeps = false;
    }

    pub fn set_trap(&self, trap: Trap) {
        self.0.lock().trap = Some(trap);
    }

    /// The port has an interrupt that is not due yet, or has none any more.
    pub fn hold_back(&self, on: bool) {
        self.0.lock().holds_back = on;
    }

    /// What a cheap poll of it finds from now on, true or not; [`Needs::Turn`] otherwise.
    pub fn set_needs(&self, needs: Needs) {
        self.0.lock().needs = Some(needs);
    }

    /// Rings the doorbell that [`MemoryPort::add_doorbell`] made.
    pub fn ring(&self) {
        let inner = self.0.lock();
        let doorbell = inner.doorbell.as_ref().expect("it has a doorbell");
        rustix::io::write(doorbell, &1u64.to_ne_bytes()).expect("rung");
    }

    /// How often it was asked to announce frames, and notified that it need not.
    pub fn arms_and_disarms(&self) -> (usize, usize) {
        let inner = self.0.lock();
        (inner.arms, inner.disarms)
    }

    /// How many frames it was asked for at once, the last time.
    pub fn asked_for(&self) -> usize {
        self.0.lock().asked
    }

    /// Frames that are in flight.
    pub fn outstanding(&self) -> usize {
        let inner = self.0.lock();
        inner.in_flight - inner.finished
    }

    /// Frames that were not fetched yet.
    pub fn queued(&self) -> usize {
        self.0.lock().sending.len()
    }

    pub fn flushes(&self) -> usize {
        self.0.lock().flushes
    }

    /// Calls of `refresh`.
    pub fn refreshes(&self) -> usize {
        self.0.lock().refreshes
    }

    /// From here on, so many descriptors are read in vain with each burst that is fetched or delivered.
    pub fn set_overhead(&self, descriptors: usize) {
        self.0.lock().overhead = descriptors;
    }

    /// All descriptors read in vain so far.
    pub fn overhead_so_far(&self) -> usize {
        self.0.lock().overhead_so_far
    }

    /// Was the port notified that it had failed?
    pub fn failed(&self) -> bool {
        self.0.lock().failed
    }

    /// The port is gone.
    pub fn dropped(&self) -> bool {
        self.0.lock().dropped
    }
}

fn memory(bytes: usize) -> MemoryMap {
    let len = bytes as u64;
    let fd = memfd("frames", len).expect("a memory file");
    MemoryMap::default()
        .map(MapRequest { guest: 0, len, offset: 0, fd, writable: true })
        .expect("a memory file to map")
}

struct Slot {
    head: [u8; MAX_HEAD],
    head_len: usize,
    spans: Spans,
    offload: Offload,
    tag: Option<Tci>,
}

/// A [`FramePort`] that sends what a test queued and keeps what it gets.
pub struct MemoryPort {
    wire: Wire,
    slots: Vec<Slot>,
    free: Vec<u32>,
    filter: Filter,
    sink: Spans,
    doorbell: Option<OwnedFd>,
}

impl MemoryPort {
    /// Gives it a doorbell, for [`Wire::ring`].
    pub fn add_doorbell(&mut self) {
        let doorbell = crate::events::eventfd().expect("an event fd");
        self.wire.0.lock().doorbell = Some(doorbell.try_clone().expect("one more descriptor"));
        self.doorbell = Some(doorbell);
    }

    fn spring(&self, trap: Trap) {
        assert!(self.wire.0.lock().trap != Some(trap), "the test wants a panic in {trap:?}");
    }

    fn fetch_one(&mut self) -> Option<Token> {
        let mut inner = self.wire.0.lock();
        let (frame, offload, tag) = match self.free.last() {
            Some(_) => inner.sending.pop_front()?,
            None => return None,
        };
        inner.in_flight += 1;
        drop(inner);
        self.spring(Trap::Fetch);
        let number = self.free.pop()?;
        let slot = &mut self.slots[number as usize];
        // Two pieces, so that frames are not in one run.
        let (at, cut) = (number as u64 * ROOM as u64, frame.len() / 3);
        slot.spans.clear();
        slot.spans.push(at, cut).expect("memory of its own");
        slot.spans.push(at + cut as u64 + 64, frame.len() - cut).expect("memory of its own");
        slot.spans.write(0, &frame);
        let spoken_of = match offload {
            Offload::None => 0,
            Offload::Checksum { field, .. } => usize::from(field) + 2,
            Offload::Segment { header, .. } | Offload::Tunnel { header, .. } => usize::from(header),
        };
        slot.head_len = frame.len().min(HEAD.max(spoken_of)).min(MAX_HEAD);
        slot.head[..slot.head_len].copy_from_slice(&frame[..slot.head_len]);
        (slot.offload, slot.tag) = (offload, tag);
        Some(Token(number))
    }

    fn deliver_one(&mut self, packet: &RxFrame<'_>) -> Result<(), DropReason> {
        self.spring(Trap::Deliver);
        let mut inner = self.wire.0.lock();
        if let Some(reason) = inner.refuse {
            return Err(reason);
        }
        if inner.longest.is_some_and(|longest| packet.len() > longest) {
            return Err(DropReason::NoBuffers);
        }
        match &mut inner.room {
            Some(0) => return Err(DropReason::NoBuffers),
            Some(room) => *room -= 1,
            None => {}
        }
        let capabilities = inner.capabilities;
        match packet.aggregate {
            None => {
                assert!(packet.len() <= capabilities.frame + 2 * TAG, "{} bytes are too long", packet.len())
            }
            Some(aggregate) => {
                assert!(packet.len() <= capabilities.aggregate && (2..=255).contains(&aggregate.segments));
                assert!(capabilities.tso4 || capabilities.tso6);
            }
        }
        self.sink.clear();
        self.sink.push(0, packet.len()).expect("memory of its own");
        let len = packet.write(&self.sink, false);
        if !inner.keeps {
            return Ok(());
        }
        let mut bytes = vec![0; len];
        self.sink.read(0, &mut bytes);
        inner.received.push(Received {
            bytes,
            tag: packet.tag,
            layers: packet.layers,
            checksum: packet.checksum,
            aggregate: packet.aggregate,
        });
        Ok(())
    }
}

impl Drop for MemoryPort {
    fn drop(&mut self) {
        self.wire.0.lock().dropped = true;
    }
}

impl Inner {
    fn read_in_vain(&mut self) {
        self.unreported.add(self.overhead);
        self.overhead_so_far += self.overhead;
    }
}

impl FramePort for MemoryPort {
    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        let mut inner = self.wire.0.lock();
        inner.asked = tokens.len();
        inner.read_in_vain();
        drop(inner);
        let mut count = 0;
        for place in tokens {
            let Some(token) = self.fetch_one() else { break };
            *place = token;
            count += 1;
        }
        count
    }

    fn frame(&self, token: Token) -> TxFrame<'_> {
        let Slot { head, head_len, spans, offload, tag } = &self.slots[token.0 as usize];
        let verified = self.wire.0.lock().verifies;
        TxFrame { head: &head[..*head_len], spans, offload: *offload, tag: *tag, verified }
    }

    fn finish(&mut self, tokens: &[Token]) {
        for token in tokens {
            self.spring(Trap::Finish);
            assert!(!self.free.contains(&token.0), "{token:?} was finished twice");
            self.free.push(token.0);
            self.wire.0.lock().finished += 1;
        }
    }

    fn capabilities(&self) -> RxCapabilities {
        self.wire.0.lock().capabilities
    }

    fn filter(&self) -> &Filter {
        &self.filter
    }

    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        self.wire.0.lock().read_in_vain();
        for (at, frame) in frames.iter().enumerate() {
            self.deliver_one(frame).map_err(|reason| Refused { at, reason })?;
        }
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        self.wire.0.lock().room != Some(0)
    }

    fn flush(&mut self, _: Instant) {
        self.spring(Trap::Flush);
        self.wire.0.lock().flushes += 1;
    }

    fn tick(&mut self, _: Instant) -> Ticked {
        self.spring(Trap::Tick);
        Ticked { soon: self.wire.0.lock().holds_back, ..Ticked::default() }
    }

    fn fail(&mut self) {
        self.wire.0.lock().failed = true;
    }

    fn refresh(&mut self) {
        self.wire.0.lock().refreshes += 1;
        self.filter = self.wire.0.lock().filter.clone();
    }

    fn info(&self) -> FramePortInfo {
        let lookahead = self.slots.len();
        FramePortInfo { lookahead, overhead: self.wire.0.lock().unreported.clone() }
    }
}

impl WakeUp for MemoryPort {
    fn arm(&mut self) -> bool {
        let mut inner = self.wire.0.lock();
        inner.arms += 1;
        !inner.sending.is_empty()
    }

    fn disarm(&mut self) {
        self.wire.0.lock().disarms += 1;
        if let Some(doorbell) = &self.doorbell {
            let _ = rustix::io::read(doorbell, &mut [0; 8]);
        }
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        self.doorbell.as_ref().map(AsFd::as_fd)
    }

    fn needs(&self) -> Needs {
        self.wire.0.lock().needs.unwrap_or(Needs::Turn)
    }

    fn signs(&self, _: &mut Vec<Sign>) -> bool {
        false
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
