//! One connection between a guest here and what is no virtio guest: the end of a stream whose source is the guest's packets
//! and whose sink is its receive buffers, under its credit.
//!
//! The device's worker and the stream's engine share a [`Lane`]; both are on one thread, so it is borrowed and never
//! locked. For the time of one turn of the stream the payload of packets is *in flight*: the lane knows where in the guest's
//! memory it lies, and the stream copies it from there. What its peer has no room for is then copied once more, into the
//! lane's own memory, and no more than the credit that was announced. So outside a turn nothing here refers to a chain.

use std::collections::VecDeque;
use std::sync::Arc;

use atomic_refcell::AtomicRefCell;
use vmlane_mem::{MemoryMap, Spans};
use vmlane_port::{
    Bytes, End, Notifications, PortFault, RingSlice, Scattered, StreamAddress, StreamInfo, StreamPort,
    Survival,
};
use vmlane_wire::virtio_vsock::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, op};

use super::bridge::Name;
use super::credit::Flow;
use super::receive::{Inlet, Receive, SHOWN};
use super::repeats::Credit;

/// Bytes that a guest may have sent and its peer not taken: what a Linux socket has by default.
pub const CREDIT: usize = 256 << 10;
/// Memory that is kept while no byte waits.
const KEPT: usize = 16 << 10;

/// What happened on the worker's thread while streams had their turns.
#[derive(Debug, Default)]
pub struct Notes(AtomicRefCell<Noted>);

#[derive(Debug, Default)]
struct Noted {
    /// Lanes with something to report to their guests, each once.
    lanes: VecDeque<Name>,
    /// VMs whose receive rings were written to.
    written: Vec<u32>,
}

impl Notes {
    /// The next lane.
    pub fn pop(&self) -> Option<Name> {
        self.0.borrow_mut().lanes.pop_front()
    }

    /// One whose guest takes no report yet is behind all others.
    pub fn push(&self, name: Name) {
        self.0.borrow_mut().lanes.push_back(name);
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> usize {
        self.0.borrow().lanes.len()
    }

    /// A VM whose receive ring was written to.
    pub fn pop_written(&self) -> Option<u32> {
        self.0.borrow_mut().written.pop()
    }
}

/// How a peer's stream has ended, as far as it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Flags of SHUTDOWN.
    pub shut: u32,
    pub detached: bool,
    pub reset: bool,
}

/// What the worker has of a connection, and, by way of its port, the stream's engine.
pub struct Lane {
    name: Name,
    notes: Arc<Notes>,
    state: AtomicRefCell<State>,
}

struct State {
    /// Where the guest receives; none while its rings do not run, and when the connection is over for it.
    inlet: Option<Arc<Inlet>>,
    /// Bytes of the guest that its peer had no room for.
    kept: VecDeque<u8>,
    /// Those behind them, where the guest has them; the first ones are taken already.
    in_flight: Spans,
    flight_taken: usize,
    /// Bytes of the guest that were taken, modulo 2^32, and how many of them were reported to it.
    taken: u32,
    reported_taken: u32,
    /// What the guest is given.
    flow: Flow,
    /// It is to be asked for news of that.
    asks: bool,
    ends: Ends,
    /// The guest knows that it is connected: it may be given bytes.
    open: bool,
    /// The peer's bytes wait for that, for credit, or for buffers.
    blocked: bool,
    /// It is on the list of those that wait for buffers.
    waits: bool,
    noted: bool,
}

/// Of no guest's memory.
fn nothing() -> Spans {
    Spans::new(MemoryMap::default(), false)
}

impl State {
    fn in_flight(&self) -> usize {
        self.in_flight.len() - self.flight_taken
    }

    fn pending(&self) -> usize {
        self.kept.len() + self.in_flight()
    }

    /// Calls `kept` and `in_flight` with the parts of `[from, from + len)`: the first is in this lane's memory, the second begins at
    /// that byte of what is in flight.
    fn parts(
        &self,
        from: usize,
        len: usize,
        mut kept: impl FnMut(&[u8]),
        in_flight: impl FnOnce(&Spans, usize, usize),
    ) {
        let mut left = len;
        let (first, second) = self.kept.as_slices();
        let mut skip = from;
        for part in [first, second] {
            let part = part.get(skip.min(part.len())..).unwrap_or_default();
            let here = left.min(part.len());
            kept(part.get(..here).unwrap_or_default());
            left -= here;
            skip = skip.saturating_sub(first.len());
        }
        if left > 0 {
            in_flight(&self.in_flight, self.flight_taken + from.saturating_sub(self.kept.len()), left);
        }
    }
}

impl Lane {
    pub fn new(name: Name, notes: Arc<Notes>, inlet: Option<Arc<Inlet>>) -> Arc<Lane> {
        let state = State {
            inlet,
            kept: VecDeque::new(),
            in_flight: nothing(),
            flight_taken: 0,
            taken: 0,
            reported_taken: 0,
            flow: Flow::default(),
            asks: false,
            ends: Ends::default(),
            open: false,
            blocked: false,
            waits: false,
            noted: false,
        };
        Arc::new(Lane { name, notes, state: AtomicRefCell::new(state) })
    }

    /// The end of its stream.
    pub fn port(self: &Arc<Lane>) -> LanePort {
        LanePort(self.clone())
    }

    /// A packet to the guest, with our side of the credit.
    pub fn packet(&self, op: u16) -> Header {
        self.state.borrow_mut().packet(&self.name, op)
    }

    /// A packet of the guest has its credit. True if its peer has waited for that.
    pub fn receive_credit(&self, header: &Header) -> bool {
        let mut state = self.state.borrow_mut();
        state.flow.hears(header);
        state.blocked && state.flow.left() > 0
    }

    /// The guest has answered, or has been answered. Its stream is to be kicked.
    pub fn open(&self) {
        self.state.borrow_mut().open = true;
    }

    /// What the guest says that has taken all of it.
    pub fn all_taken(&self) -> Credit {
        self.state.borrow().flow.all_taken()
    }

    /// `len` bytes of `payload` are in flight until [`Lane::keep_rest`]. False: more than the guest had credit for.
    pub fn receive(&self, payload: &Spans, len: usize) -> bool {
        let mut state = self.state.borrow_mut();
        if state.pending() + len > CREDIT {
            return false;
        }
        if state.in_flight.is_empty() {
            state.in_flight.follow(payload);
        }
        state.in_flight.append(payload, 0, len)
    }

    /// What is left of what was in flight is kept here; then nothing is.
    pub fn keep_rest(&self) {
        let state = &mut *self.state.borrow_mut();
        let (mut at, mut chunk) = (state.flight_taken, [0; 4096]);
        while at < state.in_flight.len() {
            let here = chunk.len().min(state.in_flight.len() - at);
            if let Some(chunk) = chunk.get_mut(..here) {
                state.in_flight.read(at, chunk);
                state.kept.extend(&*chunk);
            }
            at += here;
        }
        state.in_flight.clear();
        state.flight_taken = 0;
    }

    /// The guest's rings run from here on, or do so no longer: what is in flight is lost with them.
    pub fn set_inlet(&self, inlet: Option<Arc<Inlet>>) {
        let mut state = self.state.borrow_mut();
        (state.inlet, state.waits) = (inlet, false);
        (state.in_flight, state.flight_taken) = (nothing(), 0);
    }

    /// There are buffers now.
    pub fn forget_wait(&self) {
        self.state.borrow_mut().waits = false;
    }

    /// What there is to report is reported now: the lane is noted again from here on.
    pub fn forget_note(&self) {
        self.state.borrow_mut().noted = false;
    }

    /// There may be something to report that could not be when the lane was noted last.
    pub fn note_again(&self) {
        let mut state = self.state.borrow_mut();
        state.noted = false;
        self.note_in(&mut state);
    }

    fn note_in(&self, state: &mut State) {
        if !std::mem::replace(&mut state.noted, true) {
            self.notes.push(self.name);
        }
    }

    /// Is a CREDIT_UPDATE due? Is a CREDIT_REQUEST? The latter once.
    pub fn take_due(&self) -> [bool; 2] {
        let mut state = self.state.borrow_mut();
        [state.is_update_due(), std::mem::take(&mut state.asks)]
    }

    pub fn ends(&self) -> Ends {
        self.state.borrow().ends
    }

    /// Bytes of room in the guest's buffers, of `credit` that it may be given.
    fn room(&self, inlet: &Inlet, credit: usize) -> usize {
        let mut receive = inlet.borrow_mut();
        // Replies come before payload.
        if receive.holds_replies() {
            self.writes(&mut receive);
            receive.send_replies();
        }
        if receive.holds_replies() { 0 } else { receive.room(credit).min(credit) }
    }

    fn writes(&self, receive: &mut Receive) {
        if !std::mem::replace(&mut receive.written, true) {
            self.notes.0.borrow_mut().written.push(self.name.cid);
        }
    }
}

impl State {
    fn packet(&mut self, name: &Name, op: u16) -> Header {
        self.reported_taken = self.taken;
        Header { buf_alloc: (CREDIT as u32).into(), fwd_cnt: self.taken.into(), ..name.packet(op) }
    }

    fn is_update_due(&self) -> bool {
        self.taken.wrapping_sub(self.reported_taken) as usize >= CREDIT / 2
    }
}

/// The end of a stream. Used on the thread of its device's worker alone.
pub struct LanePort(Arc<Lane>);

/// Marks the ring as unusable should a panic pass by while it is written to.
struct Writes<'a>(&'a mut Receive);

impl Drop for Writes<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail();
        }
    }
}

impl StreamPort for LanePort {
    fn readable(&mut self) -> Result<usize, PortFault> {
        Ok(self.0.state.borrow().pending())
    }

    fn source(&self) -> Bytes<'_> {
        Bytes::Elsewhere(self)
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        let state = &mut *self.0.state.borrow_mut();
        let kept = len.min(state.kept.len());
        state.kept.drain(..kept);
        if state.kept.is_empty() && state.kept.capacity() > KEPT {
            state.kept = VecDeque::new();
        }
        state.flight_taken += len - kept;
        state.taken = state.taken.wrapping_add(len as u32);
        if state.is_update_due() {
            self.0.note_in(state);
        }
        Ok(())
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        Ok(self.readable()? == 0)
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        let state = &mut *self.0.state.borrow_mut();
        let credit = if state.open { state.flow.left() as usize } else { 0 };
        let inlet = state.inlet.as_ref().filter(|_| credit > 0);
        let room = inlet.map_or(0, |inlet| self.0.room(inlet, credit));
        state.blocked = room == 0;
        if let Some(inlet) = inlet.filter(|_| room == 0)
            && !std::mem::replace(&mut state.waits, true)
        {
            inlet.borrow_mut().wait(self.0.name);
        }
        Ok(room)
    }

    fn keep_free(&self) -> usize {
        0
    }

    fn fill(&mut self, from: Bytes<'_>, len: usize) -> Result<(), PortFault> {
        let lane = &*self.0;
        let state = &mut *lane.state.borrow_mut();
        let inlet = state.inlet.clone().ok_or_else(PortFault::buffers)?;
        let mut done = 0;
        while done < len {
            let begin = done;
            let mut receive = inlet.borrow_mut();
            lane.writes(&mut receive);
            let writes = Writes(&mut receive);
            while done < len && done - begin < SHOWN {
                let header = state.packet(&lane.name, op::RW);
                let sent = writes.0.send(header, len - done, |into| from.copy_to_spans(done, into));
                let sent = sent.map_err(|_| PortFault::buffers())?;
                state.asks |= state.flow.sends(sent as u32);
                done += sent;
            }
            writes.0.copied += done - begin;
            drop(writes);
            let transaction = receive.transaction().clone();
            drop(receive);
            transaction.commit();
        }
        if state.asks {
            lane.note_in(state);
        }
        Ok(())
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        Ok(self.writable()? == 0)
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn end(&mut self, end: End) {
        let state = &mut *self.0.state.borrow_mut();
        match end {
            End::Finished => state.ends.shut |= SHUTDOWN_SEND,
            End::Refused => state.ends.shut |= SHUTDOWN_RECEIVE,
            End::Detached => state.ends.detached = true,
            End::Reset => state.ends.reset = true,
        }
        self.0.note_in(state);
    }

    fn info(&self) -> StreamInfo<'_> {
        let Name { cid, port, peer, peer_port } = self.0.name;
        StreamInfo {
            address: Some(StreamAddress { cid, port, peer_cid: peer, peer_port }),
            ..StreamInfo::default()
        }
    }

    fn notifications(&mut self) -> Option<&mut dyn Notifications> {
        None
    }

    fn survival(&mut self) -> Option<&mut dyn Survival> {
        None
    }
}

impl Scattered for LanePort {
    fn most(&self) -> usize {
        CREDIT
    }

    fn copy_to(&self, to: RingSlice<'_>, len: usize) {
        let (state, mut done) = (self.0.state.borrow(), 0);
        let kept = len.min(state.kept.len());
        let put = |bytes: &[u8]| {
            to.advanced(done).write(bytes);
            done += bytes.len();
        };
        state.parts(0, len, put, |spans, at, len| to.advanced(kept).write_spans(spans, at, len));
    }

    fn copy_to_spans(&self, from: usize, to: &Spans, at: usize, len: usize) {
        let (state, mut done) = (self.0.state.borrow(), 0);
        let kept = len.min(state.kept.len().saturating_sub(from));
        let put = |bytes: &[u8]| {
            to.write(at + done, bytes);
            done += bytes.len();
        };
        state.parts(from, len, put, |spans, source, len| {
            vmlane_mem::copy_spans(to, at + kept, spans, source, len);
        });
    }

    fn read(&self, from: usize, out: &mut [u8]) {
        let (state, mut done) = (self.0.state.borrow(), 0);
        let (len, kept) = (out.len(), out.len().min(state.kept.len().saturating_sub(from)));
        let (own, rest) = out.split_at_mut(kept);
        let put = |bytes: &[u8]| {
            if let Some(out) = own.get_mut(done..done + bytes.len()) {
                out.copy_from_slice(bytes);
                done += bytes.len();
            }
        };
        state.parts(from, len, put, |spans, at, _| spans.read(at, rest));
    }
}

#[cfg(test)]
mod tests {
    use vmlane_mem::{MapRequest, Pages, memfd};

    use super::*;

    const NAME: Name = Name { cid: 4, port: 1, peer: 3, peer_port: 2 };
    const MEMORY: usize = 1 << 20;

    /// Memory whose every byte differs from those near it.
    fn memory() -> MemoryMap {
        let fd = memfd("lane", MEMORY as u64).unwrap();
        let request = MapRequest { guest: 0, len: MEMORY as u64, offset: 0, fd, writable: true };
        let map = MemoryMap::default().map(request).unwrap();
        let bytes: Vec<u8> = (0..MEMORY).map(|at| ((at * 31) >> 3) as u8).collect();
        pages(&map).write(0, &bytes);
        map
    }

    fn pages(map: &MemoryMap) -> Pages {
        map.pages((0..MEMORY as u64).step_by(4096), 12).unwrap()
    }

    fn spans(map: &MemoryMap, at: usize, len: usize) -> Spans {
        let mut spans = Spans::new(map.clone(), true);
        spans.push(at as u64, len).unwrap();
        spans
    }

    fn bytes(map: &MemoryMap, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        pages(map).read(at, &mut bytes);
        bytes
    }

    fn lane() -> Arc<Lane> {
        Lane::new(NAME, Arc::default(), None)
    }

    /// What was kept, which begins anew in its memory, then what is in flight, of which a part is taken: from any byte on, to any place.
    #[test]
    fn bytes_are_copied_from_wherever_they_lie() {
        let (map, lane) = (memory(), lane());
        let mut port = lane.port();
        let sizes = [700, 5000, 300];
        let mut want = Vec::new();
        for (turn, len) in sizes.into_iter().enumerate() {
            assert!(lane.receive(&spans(&map, turn * 10_000, len), len));
            want.extend(bytes(&map, turn * 10_000, len));
            port.consume(150).unwrap();
            want.drain(..150);
            if turn < 2 {
                lane.keep_rest();
            }
        }
        assert_eq!(port.readable().unwrap(), want.len());
        // So that the ring begins anew in the middle, too.
        let target = memory();
        for (from, len) in [(0, want.len()), (1, 10), (549, 4000), (5200, 200), (5549, 1), (5550, 300)] {
            let len = len.min(want.len() - from);
            let part = &want[from..from + len];
            let mut out = vec![0; len];
            Bytes::Elsewhere(&port).read(from, &mut out);
            assert!(out == part, "{len} bytes from {from} on");
            let to = spans(&target, 40_000, len);
            Bytes::Elsewhere(&port).copy_to_spans(from, &to);
            assert!(bytes(&target, 40_000, len) == part, "{len} bytes from {from} on, to spans");
            if from == 0 {
                let ring = RingSlice { pages: &pages(&target), base: 0, size: 8192, at: 7000 };
                Bytes::Elsewhere(&port).copy_to(ring, len);
                let ring = [bytes(&target, 7000, 8192 - 7000), bytes(&target, 0, 7000)].concat();
                assert!(&ring[..len] == part, "to a ring");
            }
        }
    }

    #[test]
    fn no_more_than_the_credit_is_kept_and_its_memory_is_given_back() {
        let (map, lane) = (memory(), lane());
        let mut port = lane.port();
        for _ in 0..2 {
            for _ in 0..4 {
                assert!(lane.receive(&spans(&map, 0, CREDIT / 4), CREDIT / 4));
                lane.keep_rest();
            }
            assert!(!lane.receive(&spans(&map, 0, 1), 1), "beyond its credit");
            assert!(!lane.take_due()[0]);
            port.consume(CREDIT).unwrap();
            assert!(lane.take_due()[0], "that all of it was taken is to be reported");
            assert_eq!(lane.packet(op::CREDIT_UPDATE).buf_alloc.get() as usize, CREDIT);
            assert_eq!(lane.state.borrow().kept.capacity(), 0);
        }
    }

    #[test]
    fn what_is_in_flight_is_forgotten_with_the_rings() {
        let (map, lane) = (memory(), lane());
        assert!(lane.receive(&spans(&map, 0, 100), 100));
        lane.keep_rest();
        assert!(lane.receive(&spans(&map, 100, 100), 100));
        lane.set_inlet(None);
        assert_eq!(lane.port().readable().unwrap(), 100);
        assert!(lane.receive(&spans(&memory(), 0, 10), 10), "of other memory, too");
    }
}
