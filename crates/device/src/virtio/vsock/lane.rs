//! One connection between a guest here and what is no virtio guest: the end of a stream whose source is the
//! guest's packets and whose sink is its receive buffers, under its credit.
//!
//! The device's worker and the stream's engine share a [`Lane`]; both are on one thread, so it is borrowed
//! and never locked. For the time of one turn of the stream the payload of packets is *in flight*: the lane
//! knows where in the guest's memory it lies, and the stream copies it from there. What its peer has no room
//! for is then copied once more, into the lane's place in its device's file, and no more than the credit that
//! was announced. So outside a turn nothing here refers to a chain, and the next daemon has all of it.

use std::collections::VecDeque;
use std::sync::Arc;

use atomic_refcell::AtomicRefCell;
use vmlane_mem::{MemoryMap, Spans, copy_spans};
use vmlane_port::{
    Bytes, End, Notifications, PortFault, RingSlice, Scattered, StreamAddress, StreamInfo, StreamPort,
    Survival,
};
use vmlane_vsock::Counts;
use vmlane_wire::virtio_vsock::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, op};

use super::bridge::Name;
use super::credit::{CREDIT, Flow};
use super::kept::{Place, Word};
use super::receive::{Inlet, Receive, SHOWN};
use super::repeats::Credit;

/// No connection has carried so many.
const MOST_BYTES: u64 = 1 << 62;

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

/// How far the bytes of a guest have come.
struct BytesOfGuest {
    /// Those that came, those in flight apart.
    received: u64,
    /// Which of them is at the beginning of the place.
    base: u64,
    taken: u64,
    /// How many of those the guest was notified of.
    reported: u64,
}

struct State {
    /// Where the guest receives; none while its rings do not run, and when the connection is over for it.
    inlet: Option<Arc<Inlet>>,
    /// What the next daemon goes on with.
    place: Place,
    /// Bytes of the guest that its peer had no room for, from the one after those that were taken up to those
    /// that were received.
    kept: Spans,
    /// Those behind them, where the guest has them; the first ones are taken already.
    in_flight: Spans,
    flight_taken: usize,
    bytes: BytesOfGuest,
    /// So many of those that come next were taken before a previous daemon's death, out of chains that it did
    /// not complete.
    skipped: usize,
    /// Bytes that the guest was given.
    sent: u64,
    /// What the guest is given.
    flow: Flow,
    /// It is to be asked for credit for that.
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

    /// Calls `each` with the parts of `[from, from + len)`: which of these bytes is the first, where it lies,
    /// how many.
    fn parts(&self, from: usize, len: usize, mut each: impl FnMut(usize, &Spans, usize, usize)) {
        let own = len.min(self.kept.len().saturating_sub(from));
        if own > 0 {
            each(0, &self.kept, from, own);
        }
        if len > own {
            let at = self.flight_taken + (from + own - self.kept.len());
            each(own, &self.in_flight, at, len - own);
        }
    }

    /// The bytes that are kept are these now: those that came and were not taken.
    fn set_kept(&mut self) {
        // A previous daemon's counts may be damaged.
        let len = self.bytes.received.saturating_sub(self.bytes.taken).min(CREDIT as u64) as usize;
        self.place.set(&mut self.kept, self.bytes.taken.wrapping_sub(self.bytes.base), len);
    }
}

impl Lane {
    /// One that has `place`. If a previous daemon had it there, [`Counts::resume`] comes next.
    pub fn new(name: Name, notes: Arc<Notes>, inlet: Option<Arc<Inlet>>, place: Place) -> Arc<Lane> {
        let [sent, received, base, taken] =
            [Word::Sent, Word::Received, Word::Base, Word::Taken].map(|word| place.load(word) % MOST_BYTES);
        let state = State {
            inlet,
            kept: place.bytes(),
            place,
            in_flight: nothing(),
            flight_taken: 0,
            bytes: BytesOfGuest { received, base, taken, reported: taken },
            skipped: 0,
            sent,
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

    /// The number of its place.
    pub fn place(&self) -> usize {
        self.state.borrow().place.number()
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
        state.flow.update(header);
        state.blocked && state.flow.left() > 0
    }

    /// The guest has answered, or has been answered. Its stream is to be kicked.
    pub fn open(&self) {
        self.state.borrow_mut().open = true;
    }

    /// What the guest announces once it has taken all of it.
    pub fn all_taken(&self) -> Credit {
        self.state.borrow().flow.all_taken()
    }

    /// `len` bytes of `payload` are in flight until [`Lane::keep_rest`]. False: more than the guest had
    /// credit for.
    pub fn receive(&self, payload: &Spans, len: usize) -> bool {
        let mut state = self.state.borrow_mut();
        if state.pending() + len > CREDIT {
            return false;
        }
        let skipped = len.min(state.skipped);
        state.skipped -= skipped;
        state.bytes.received += skipped as u64;
        if state.in_flight.is_empty() {
            state.in_flight.follow(payload);
        }
        state.in_flight.append(payload, skipped, len - skipped)
    }

    /// What is left of what was in flight is kept here; then nothing is.
    pub fn keep_rest(&self) {
        let state = &mut *self.state.borrow_mut();
        let rest = state.in_flight();
        if rest > 0 {
            if state.kept.is_empty() {
                state.bytes.base = state.bytes.taken;
            }
            let first = state.bytes.taken + state.kept.len() as u64;
            state.place.set(&mut state.kept, first.wrapping_sub(state.bytes.base), rest);
            copy_spans(&state.kept, 0, &state.in_flight, state.flight_taken, rest);
        }
        state.bytes.received += state.in_flight.len() as u64;
        state.in_flight.clear();
        state.flight_taken = 0;
        state.set_kept();
    }

    /// The chains of what was in flight are completed with the next commit.
    pub fn note_received(&self) {
        let State { place, bytes: BytesOfGuest { received, base, .. }, .. } = &*self.state.borrow();
        place.note(Word::Received, *received);
        if place.load(Word::Base) != *base {
            place.note(Word::Base, *base);
        }
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

impl Counts for Lane {
    fn sent(&self) -> u64 {
        self.state.borrow().sent
    }

    /// What is noted here is less by less than the ring holds.
    fn resume(&self, tail: u64, size: u64) -> bool {
        let Ok(mut state) = self.state.try_borrow_mut() else { return false };
        let state = &mut *state;
        let most = CREDIT as u64;
        if tail >= size {
            return false;
        }
        state.bytes.taken += (tail + size - state.bytes.taken % size) % size;
        if state.bytes.received.abs_diff(state.bytes.taken) > most {
            return false;
        }
        state.place.store(Word::Taken, state.bytes.taken);
        state.skipped = state.bytes.taken.saturating_sub(state.bytes.received) as usize;
        state.set_kept();
        // What was reported, and the credit that the guest gives, are not known.
        state.bytes.reported = state.bytes.taken.wrapping_sub(most);
        state.flow = Flow::resumed(state.sent as u32);
        state.asks = true;
        true
    }
}

impl State {
    fn packet(&mut self, name: &Name, op: u16) -> Header {
        self.bytes.reported = self.bytes.taken;
        Header {
            buf_alloc: (CREDIT as u32).into(),
            fwd_cnt: (self.bytes.taken as u32).into(),
            ..name.packet(op)
        }
    }

    fn is_update_due(&self) -> bool {
        self.bytes.taken.wrapping_sub(self.bytes.reported) >= CREDIT as u64 / 2
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
        state.flight_taken += len - kept;
        state.bytes.taken += len as u64;
        // At once, and behind the index that the peer's ring has by now.
        state.place.store(Word::Taken, state.bytes.taken);
        if kept > 0 {
            state.set_kept();
        }
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
            drop(receive);
            state.sent += (done - begin) as u64;
            state.place.note(Word::Sent, state.sent);
            state.place.commit();
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
        let state = self.0.state.borrow();
        state.parts(0, len, |done, spans, at, len| to.advanced(done).write_spans(spans, at, len));
    }

    fn copy_to_spans(&self, from: usize, to: &Spans, at: usize, len: usize) {
        let state = self.0.state.borrow();
        state.parts(from, len, |done, spans, source, len| copy_spans(to, at + done, spans, source, len));
    }

    fn read(&self, from: usize, out: &mut [u8]) {
        let (state, len) = (self.0.state.borrow(), out.len());
        state.parts(from, len, |done, spans, at, len| {
            if let Some(out) = out.get_mut(done..done + len) {
                spans.read(at, out);
            }
        });
    }
}
