//! An interface of the host by AF_XDP: frames to and from its queues without the host's network stack.
//!
//! The kernel (or the card itself, in zero-copy mode) receives into memory that it shares with us, from where
//! frames are in flight in the switch where they lie; frames to be sent are copied into that memory, once. It
//! knows no offloads: the switch cuts super-frames and makes checksums. `open.rs` is what needs rights,
//! `rings.rs` what the kernel shares, `program.rs` the program that directs frames to us.

mod open;
mod program;
mod rings;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use vmlane_mem::{MapRequest, MemoryMap, Spans};
use vmlane_port::{
    DropReason, Filter, FrameInFlight, FramePort, FramePortInfo, FramesInFlight, HEAD, Needs, PortCounts,
    PortStats, Refused, RxCapabilities, RxFrame, Sign, Ticked, Token, TxFrame, WakeUp, deliver_each,
};
use vmlane_wire::ethernet::{HEADER, TAG};

pub use self::open::{Lost, XdpError, XdpFacts, XdpFiles, XdpOptions, index_and_mtu};
use self::open::{Queue, RX_FRAMES, TX_FRAMES, lost, queue_bytes};
use self::rings::{Desc, Rings};
use super::flow::queue_of;
use super::tap::one_of;

/// Received frames that may be in flight at once.
const LOOKAHEAD: usize = 256;
/// Cache lines of a frame that are prefetched before it is read: its headers.
const LINES: usize = 1;
/// Frames that are fetched ahead.
const AHEAD: u32 = 4;
/// System calls for frames that the kernel has not taken, at most, at the end of a turn.
const MOST_CALLS: usize = 8;
/// How soon an interface that is down is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// Where a received frame in flight lies.
#[derive(Default)]
struct Lies {
    queue: usize,
    /// Where its place begins in the queue's memory.
    place: u64,
}

/// A queue of the interface.
struct ServedQueue {
    socket: OwnedFd,
    rings: Rings,
    /// Where its memory begins in that of all queues.
    base: u64,
    /// Places of frames to be sent that are free, by number.
    free: Vec<u32>,
    /// Places of received frames were put into the fill ring.
    filled: bool,
    /// Frames were put into the ring of frames to be sent, and the kernel has not taken all.
    unsent: bool,
}

/// An interface of the host, with some of its queues.
pub struct Xdp {
    queues: Vec<ServedQueue>,
    /// Readable when one of the queues has a frame.
    any: OwnedFd,
    chunk: u64,
    /// The queue that is polled first, so that each gets its turn.
    next: usize,
    /// The queue that last had no room.
    full: usize,
    /// The interface is down: since when it is to be tried again.
    down: Option<Instant>,
    mtu: Arc<AtomicUsize>,
    capabilities: RxCapabilities,
    filter: Filter,
    in_flight: FramesInFlight<Lies>,
    stats: Arc<PortStats>,
    /// Where a frame is sent from.
    out: Spans,
}

/// The files of an interface that a port uses: the program and the sockets end with the last holder. Ending
/// them takes the kernel some time, so the port's worker should not be the last one.
pub struct XdpHold {
    sockets: Vec<OwnedFd>,
    _program: OwnedFd,
}

impl XdpHold {
    /// What the kernel counted for all queues.
    pub fn lost(&self) -> Lost {
        self.sockets.iter().map(lost).fold(Lost::default(), |sum, one| Lost {
            dropped: sum.dropped + one.dropped,
            ring_full: sum.ring_full + one.ring_full,
            no_place: sum.no_place + one.no_place,
        })
    }

    /// Is the interface gone?
    pub fn is_gone(&self) -> bool {
        self.sockets.first().is_some_and(|socket| wake_rx(socket) == Err(Errno::NXIO))
    }
}

impl Xdp {
    /// The port of an interface whose files are open, and what is to be held until the port has been dropped.
    pub fn new(
        options: &XdpOptions,
        files: XdpFiles,
        stats: Arc<PortStats>,
    ) -> Result<(Xdp, XdpHold), XdpError> {
        let XdpFiles { facts, link, memory, queues } = files;
        let bytes = queue_bytes(facts.chunk);
        let len = bytes * queues.len() as u64;
        let failed = |source| XdpError::Memory { name: options.name.clone(), bytes: len, source };
        let map = MemoryMap::default()
            .map(MapRequest { guest: 0, len, offset: 0, fd: memory, writable: true })
            .map_err(|error| failed(io::Error::other(error)))?;
        let duplicates = queues.iter().map(|queue| queue.socket.try_clone());
        let sockets = duplicates.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        let any = one_of(&sockets).map_err(|error| failed(error.into()))?;
        let bases = (0..).map(|number| number * bytes);
        let queues =
            queues.into_iter().zip(bases).map(|(queue, base)| ServedQueue::new(queue, base, facts.chunk));
        let port = Xdp {
            queues: queues.collect(),
            any,
            chunk: facts.chunk as u64,
            next: 0,
            full: 0,
            down: None,
            mtu: Arc::new(AtomicUsize::new(facts.mtu)),
            capabilities: capabilities(facts.mtu),
            filter: Filter::open(),
            in_flight: FramesInFlight::new(map.clone(), true, LOOKAHEAD),
            stats,
            out: Spans::new(map, true),
        };
        Ok((port, XdpHold { sockets, _program: link }))
    }

    /// The interface's MTU as the port takes it to be. It picks up another one with its next
    /// [`FramePort::refresh`].
    pub fn mtu(&self) -> Arc<AtomicUsize> {
        self.mtu.clone()
    }

    /// Describes the frame of a descriptor in the slot. False: there is no such frame.
    fn describe(
        (frame, lies): &mut (FrameInFlight, Lies),
        queue: usize,
        base: u64,
        chunk: u64,
        desc: Desc,
    ) -> bool {
        let len = desc.len as usize;
        let place = desc.addr & !(chunk - 1);
        let fits = place < RX_FRAMES * chunk && u64::from(desc.len) <= chunk - (desc.addr - place);
        if !fits || len < HEADER || frame.spans.set(base + desc.addr, len).is_err() {
            return false;
        }
        frame.keep_head(HEAD);
        *lies = Lies { queue, place };
        true
    }

    /// Puts frames of one queue in flight; their tokens go to the front of `tokens`.
    fn fetch_from(&mut self, at: usize, tokens: &mut [Token]) -> usize {
        let chunk = self.chunk;
        let Some(queue) = self.queues.get_mut(at) else { return 0 };
        let mut count = 0;
        while let Some(to) = tokens.get_mut(count) {
            let Some(number) = self.in_flight.take() else { break };
            let (Some(slot), Some(desc)) = (self.in_flight.get_mut(number), queue.rings.rx.take()) else {
                self.in_flight.give_back(number);
                break;
            };
            if let Some(ahead) = queue.rings.rx.peek(AHEAD) {
                slot.0.spans.prefetch(queue.base.wrapping_add(ahead.addr), LINES);
            }
            if Xdp::describe(slot, at, queue.base, chunk, desc) {
                *to = Token(number.into());
                count += 1;
            } else {
                self.in_flight.give_back(number);
                PortCounts::drop(&self.stats, DropReason::BadLength);
                queue.give_back(desc.addr & !(chunk - 1), chunk);
            }
        }
        queue.rings.rx.publish();
        count
    }

    fn deliver_one(&mut self, frame: &RxFrame<'_>) -> Result<(), DropReason> {
        if self.down.is_some() {
            return Err(DropReason::Uplink);
        }
        let len = frame.len() + if frame.tag.is_some() { TAG } else { 0 };
        let at = queue_of(frame, self.queues.len());
        let Some(queue) = self.queues.get_mut(at) else { return Err(DropReason::Uplink) };
        if len as u64 > self.chunk {
            return Err(DropReason::TooLong);
        }
        let Some(number) = queue.take_place(self.chunk) else {
            self.full = at;
            return Err(DropReason::NoBuffers);
        };
        let addr = (RX_FRAMES + u64::from(number)) * self.chunk;
        if self.out.set(queue.base + addr, len).is_err() {
            queue.free.push(number);
            return Err(DropReason::Uplink);
        }
        frame.write(&self.out, true);
        // The ring has a place for each frame.
        queue.rings.tx.put(Desc { addr, len: len as u32, options: 0 });
        queue.unsent = true;
        Ok(())
    }

    /// Has the kernel send what it has not taken yet.
    fn send(&mut self, now: Instant) {
        for queue in self.queues.iter_mut().filter(|queue| queue.unsent) {
            if queue.send() == Err(Errno::NETDOWN) {
                self.down = Some(now + RETRY);
            }
        }
    }
}

impl ServedQueue {
    /// All places of received frames are the kernel's.
    fn new(Queue { socket, mut rings }: Queue, base: u64, chunk: usize) -> ServedQueue {
        for number in 0..RX_FRAMES {
            rings.fill.put(number * chunk as u64);
        }
        rings.fill.publish();
        let _ = wake_rx(&socket);
        let free = (0..TX_FRAMES as u32).rev().collect();
        ServedQueue { socket, rings, base, free, filled: false, unsent: false }
    }

    /// The place of a received frame is free again.
    fn give_back(&mut self, place: u64, chunk: u64) {
        if place < RX_FRAMES * chunk {
            // The ring has a place for each frame.
            self.rings.fill.put(place);
            self.filled = true;
        }
    }

    /// A free place of a frame to be sent.
    fn take_place(&mut self, chunk: u64) -> Option<u32> {
        self.free.pop().or_else(|| {
            self.reclaim(chunk);
            self.free.pop()
        })
    }

    /// Places of frames that were sent are free again.
    fn reclaim(&mut self, chunk: u64) {
        while let Some(addr) = self.rings.completion.take() {
            let number = (addr / chunk).wrapping_sub(RX_FRAMES);
            if number < TX_FRAMES && self.free.len() < TX_FRAMES as usize {
                self.free.push(number as u32);
            }
        }
        self.rings.completion.publish();
    }

    /// Publishes what is to be sent, and has the kernel send it if it asks for that.
    fn send(&mut self) -> rustix::io::Result<()> {
        self.rings.tx.publish();
        for _ in 0..MOST_CALLS {
            if !self.rings.tx.needs_wakeup() {
                // The driver polls by itself.
                self.unsent = false;
                return Ok(());
            }
            let result = send(&self.socket, &[], SendFlags::DONTWAIT);
            self.unsent = self.rings.tx.untaken() > 0;
            match result {
                Err(Errno::NETDOWN | Errno::NXIO) => return Err(Errno::NETDOWN),
                // Not more at once, or no buffers: another call may help.
                Ok(_) | Err(_) if self.unsent => {}
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Publishes free places, and notifies the driver of them if it asks for that.
    fn refill(&mut self) {
        if std::mem::take(&mut self.filled) && self.rings.fill.publish() && self.rings.fill.needs_wakeup() {
            let _ = wake_rx(&self.socket);
        }
    }
}

/// Has the driver poll the fill ring.
fn wake_rx(socket: impl AsFd) -> rustix::io::Result<()> {
    recv(socket, &mut [0u8; 0][..], RecvFlags::DONTWAIT).map(drop)
}

fn capabilities(mtu: usize) -> RxCapabilities {
    let frame = mtu + HEADER;
    RxCapabilities { frame, aggregate: frame, ..RxCapabilities::default() }
}

impl FramePort for Xdp {
    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        let queues = self.queues.len();
        let mut count = 0;
        for turn in 0..queues {
            let Some(rest) = tokens.get_mut(count..).filter(|rest| !rest.is_empty()) else { break };
            count += self.fetch_from((self.next + turn) % queues, rest);
        }
        self.next = (self.next + 1) % queues.max(1);
        count
    }

    fn frame(&self, token: Token) -> TxFrame<'_> {
        self.in_flight.frame(token.0 as u16)
    }

    fn finish(&mut self, tokens: &[Token]) {
        for token in tokens {
            let number = token.0 as u16;
            let Some((_, Lies { queue, place })) = self.in_flight.get_mut(number) else { continue };
            if let Some(queue) = self.queues.get_mut(*queue) {
                queue.give_back(*place, self.chunk);
            }
            self.in_flight.give_back(number);
        }
    }

    fn capabilities(&self) -> RxCapabilities {
        self.capabilities
    }

    fn filter(&self) -> &Filter {
        &self.filter
    }

    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        deliver_each(frames, |frame| self.deliver_one(frame))
    }

    fn has_room(&mut self) -> bool {
        let chunk = self.chunk;
        self.queues.get_mut(self.full).is_some_and(|queue| {
            if queue.free.is_empty() {
                let _ = queue.send();
                queue.reclaim(chunk);
            }
            !queue.free.is_empty()
        })
    }

    fn flush(&mut self, now: Instant) {
        self.queues.iter_mut().for_each(ServedQueue::refill);
        self.send(now);
    }

    fn tick(&mut self, now: Instant) -> Ticked {
        if self.down.is_some_and(|again| now >= again) {
            let is_down = |queue: &mut ServedQueue| queue.send() == Err(Errno::NETDOWN);
            self.down = self.queues.iter_mut().any(is_down).then_some(now + RETRY);
        } else if self.down.is_none() {
            self.send(now);
        }
        let soon = self.down.is_none() && self.queues.iter().any(|queue| queue.unsent);
        Ticked { soon, ..Ticked::default() }
    }

    /// The interface's MTU may have changed.
    fn refresh(&mut self) {
        self.capabilities = capabilities(self.mtu.load(Ordering::Relaxed));
    }

    fn fail(&mut self) {}

    fn info(&self) -> FramePortInfo {
        FramePortInfo { lookahead: LOOKAHEAD, ..FramePortInfo::default() }
    }
}

impl WakeUp for Xdp {
    fn arm(&mut self) -> bool {
        self.queues.iter_mut().any(|queue| queue.rings.rx.waiting() > 0)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.any.as_fd())
    }

    fn needs(&self) -> Needs {
        // What is not sent yet is sent by the clock.
        let turn = self.down.is_some() || self.queues.iter().any(|queue| queue.unsent);
        if turn { Needs::Turn } else { Needs::Announces }
    }

    fn disarm(&mut self) {}

    fn signs(&self, _: &mut Vec<Sign>) -> bool {
        false
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
