//! An active NIC's rings as a [`FramePort`]: what one worker owns while frames flow.
//!
//! | file | what |
//! | --- | --- |
//! | `ring.rs`, `place.rs` | rings by generation, positions in them |
//! | `checkpoint.rs` | positions that outlive the daemon |
//! | `tx.rs` | frames gathered, checked, described, completed in order |
//! | `rx.rs`, `layout.rs` | frames laid into posted buffers, completed |
//! | `rss.rs` | the receive queue of a frame |
//! | `moderation.rs` | when an interrupt is due |
//! | `counters.rs` | the driver's statistics |
//!
//! Everything in the rings is the guest's and may change at any moment: each descriptor is read once,
//! and what was read is checked. Nothing here allocates once it has run for a while, nothing locks
//! (but [`NicPort::refresh`]), nothing makes a system call but to raise an interrupt.

mod checkpoint;
pub(super) mod counters;
mod layout;
mod moderation;
mod place;
mod ring;
mod rss;
mod rx;
mod tx;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use vmlane_mem::{Spans, Window};
use vmlane_port::{
    DropReason, Filter, FramePort, FramePortInfo, MAX_FRAME, Needs, Overhead, PortStats, QueueTurns, Refused,
    RxCapabilities, RxFrame, Sign, Ticked, Token, TxFrame, WakeUp, deliver_each,
};
use vmlane_wire::ethernet::{HEADER, TAG};
use vmlane_wire::vmxnet3::regs::event;
use vmlane_wire::vmxnet3::shared::at;

use self::moderation::Moderator;
use self::rss::{Hash, Toeplitz};
use self::rx::{RxQueue, RxRules, Scratch};
#[doc(hidden)]
pub use self::tx::TxRules;
use self::tx::{Stopped, TxQueue};
use super::doorbell::Doorbell;
use super::setup::{Live, RxSetup, Setup, Shared, TxSetup};
use super::stats::QUEUE_LOST;

/// How long a masked vector keeps the worker from sleeping deeply. Drivers that poll for longer than
/// that poll by themselves; indices that never fire stay masked for ever.
const RESTLESS: Duration = Duration::from_millis(20);

/// When the NIC's vectors fire.
struct Interrupts {
    /// Where the driver's interrupt control word lies in the shared area.
    control: usize,
    moderator: Moderator,
    /// Until when a pending vector is worth examining often.
    restless: Option<Instant>,
}

impl Interrupts {
    /// Runs the moderator. Returns true if something waits for its time.
    fn run(&mut self, shared: &Shared, now: Instant) -> bool {
        let control = self.control;
        let outcome = self.moderator.run(&shared.vectors, || shared.area.load_u32(control), now);
        if outcome.fired {
            self.restless = Some(now + RESTLESS);
        }
        outcome.held
    }
}

/// The rings of an active NIC.
pub struct NicPort {
    tx: Vec<TxQueue>,
    rx: Vec<RxQueue>,
    turns: QueueTurns,
    tx_rules: TxRules,
    rx_rules: RxRules,
    filter: Filter,
    rss: Option<Toeplitz>,
    interrupts: Interrupts,
    capabilities: RxCapabilities,
    /// What the posted buffers hold of an aggregate is not known yet.
    unsized_buffers: bool,
    /// Where positions in the rings are stored for the next daemon.
    positions: Arc<Window>,
    scratch: Scratch,
    shared: Arc<Shared>,
    /// Where the driver announces what it sends.
    doorbell: Option<Arc<Doorbell>>,
    stats: Arc<PortStats>,
}

impl NicPort {
    /// The rings of `setup`, from their first descriptors on. Drops that are the guest's doing are
    /// counted in `stats`.
    pub fn new(setup: Setup, stats: Arc<PortStats>) -> NicPort {
        let port = NicPort::unstored(setup, stats);
        port.store();
        port
    }

    /// The rings of `setup` from where the previous daemon stopped; `None` if that is not known.
    pub fn restored(setup: Setup, stats: Arc<PortStats>) -> Option<NicPort> {
        let mut port = NicPort::unstored(setup, stats);
        let (tx, window) = (port.tx.len(), port.positions.clone());
        for (number, queue) in port.tx.iter_mut().enumerate() {
            queue.restore(&window, number)?;
        }
        for (number, queue) in port.rx.iter_mut().enumerate() {
            queue.restore(&window, tx + number)?;
        }
        port.store();
        Some(port)
    }

    #[inline]
    fn store(&self) {
        for (number, queue) in self.tx.iter().enumerate() {
            queue.store(&self.positions, number);
        }
        for (number, queue) in (self.tx.len()..).zip(&self.rx) {
            queue.store(&self.positions, number);
        }
    }

    fn unstored(setup: Setup, stats: Arc<PortStats>) -> NicPort {
        let Setup { revision, memory, mtu, max_rx_sg, tx, rx, shared, rx_depth, doorbell, positions } = setup;
        let extended = revision >= 6 && (tx.len() > 8 || rx.len() > 16);
        let queues = rx.len() as u16;
        let live = shared.live.lock().clone();
        let mut moderator = Moderator::new(live.moderation);
        let overhead = Overhead::default();
        let mut tx_queue = |setup: TxSetup| {
            let line = moderator.line(setup.vector);
            TxQueue::new(setup, line, &memory, overhead.clone())
        };
        let tx: Vec<_> = tx.into_iter().map(&mut tx_queue).collect();
        let mut rx_queue = |(number, setup): (u16, RxSetup)| {
            let line = moderator.line(setup.vector);
            RxQueue::new(setup, line, [number, number + queues, number + 2 * queues], rx_depth)
        };
        let rx: Vec<_> = (0..).zip(rx).map(&mut rx_queue).collect();
        let control = if extended { at::EXTENDED_INTERRUPT_CONTROL } else { at::INTERRUPT_CONTROL };
        let rx_rules = RxRules {
            frame: usize::from(mtu) + HEADER + 2 * TAG,
            limit: RxRules::limit(max_rx_sg),
            counts_segments: revision >= 2,
            features: live.features,
        };
        let frame = usize::from(mtu) + HEADER;
        let capabilities = RxCapabilities {
            frame,
            aggregate: frame,
            tso4: false,
            tso6: false,
            uso4: false,
            uso6: false,
            partial_sum: false,
            partial_frame: false,
            verdicts: false,
        };
        let mut port = NicPort {
            turns: QueueTurns::default(),
            tx_rules: TxRules::new(revision, mtu),
            rx_rules,
            filter: Filter::default(),
            rss: None,
            interrupts: Interrupts { control, moderator, restless: None },
            capabilities,
            unsized_buffers: true,
            positions,
            scratch: Scratch {
                into: Spans::new(memory, true),
                buffers: Vec::with_capacity(rx_rules.limit.min(64)),
                overhead,
            },
            tx,
            rx,
            shared,
            doorbell,
            stats,
        };
        port.adopt(live);
        port.disarm();
        port
    }

    fn adopt(&mut self, live: Live) {
        let Live { filter, features, rss, moderation } = live;
        self.filter = filter;
        self.rx_rules.features = features;
        self.rss = rss.filter(|rss| self.rx.len() > 1 && !rss.table.is_empty()).map(Toeplitz::new);
        self.interrupts.moderator.mode = moderation;
        // An aggregate's verdict cannot be reported where the driver wants no verdicts.
        let lro = features.rx_checksum;
        self.capabilities.tso4 = lro && features.lro4;
        self.capabilities.tso6 = lro && features.lro6;
        self.capabilities.verdicts = features.rx_checksum;
        self.capabilities.partial_sum = self.capabilities.tso4 || self.capabilities.tso6;
        self.size_buffers();
    }

    /// Looks how much of an aggregate the posted buffers hold.
    fn size_buffers(&mut self) {
        let largest = self.rx.iter_mut().filter_map(|queue| queue.largest(&self.rx_rules)).min();
        self.unsized_buffers = largest.is_none();
        if let Some(largest) = largest {
            self.capabilities.aggregate =
                largest.clamp(self.capabilities.frame, MAX_FRAME.max(self.capabilities.frame));
        }
    }

    /// A queue has stopped: the driver learns of it by an event and resets the device.
    #[cold]
    fn stopped(&self, descriptor: &Window, error: u32, event: u32) {
        descriptor.store_u32(at::ERROR, error);
        descriptor.store_u32(at::STOPPED, 1);
        self.shared.area.set_bits_u32(at::EVENTS, event);
        self.shared.vectors.publish(self.shared.event_vector, self.control_word());
    }

    fn control_word(&self) -> u32 {
        self.shared.area.load_u32(self.interrupts.control)
    }

    #[cold]
    fn tx_stopped(&self, queue: usize, Stopped(error): Stopped) {
        if let (Some(code), Some(queue)) = (self.shared.tx_errors.get(queue), self.tx.get(queue)) {
            code.store(error, Ordering::Release);
            self.stopped(&queue.descriptor, error, event::TX_QUEUE);
        }
    }

    #[cold]
    fn rx_stopped(&self, queue: usize, Stopped(error): Stopped) {
        if let (Some(code), Some(queue)) = (self.shared.rx_errors.get(queue), self.rx.get(queue)) {
            code.store(error, Ordering::Release);
            self.stopped(&queue.descriptor, error, event::RX_QUEUE);
        }
    }

    /// Lends the next frame of a transmit queue: its slot.
    #[inline]
    fn fetch_one(&mut self, number: usize) -> Option<u16> {
        let (queue, counters) = (self.tx.get_mut(number)?, self.shared.tx_stats.get(number)?);
        match queue.fetch(&self.tx_rules, &self.stats, counters) {
            Ok(slot) => slot,
            Err(stopped) => {
                self.tx_stopped(number, stopped);
                None
            }
        }
    }

    #[inline]
    fn deliver_one(&mut self, frame: &RxFrame<'_>) -> Result<(), DropReason> {
        let fits = match frame.aggregate {
            Some(_) => self.rx_rules.features.lro4 || self.rx_rules.features.lro6,
            None => frame.len() <= self.rx_rules.frame,
        };
        if !fits {
            return Err(DropReason::TooLong);
        }
        let (number, hash) = self.rss.as_ref().map_or((0, Hash::default()), |rss| rss.queue(frame));
        // The table of the hash names no other queues, and there is always the first.
        let (Some(queue), Some(counters)) = (self.rx.get_mut(number), self.shared.rx_stats.get(number))
        else {
            return Err(DropReason::NoRoom);
        };
        match queue.deliver(frame, hash, &self.rx_rules, &mut self.scratch, counters) {
            Ok(completions) => {
                self.interrupts.moderator.received(queue.line, completions);
                Ok(())
            }
            Err(reason) => {
                self.not_delivered(number, reason);
                Err(reason)
            }
        }
    }

    #[cold]
    fn not_delivered(&mut self, queue: usize, reason: DropReason) {
        if let Some(stopped) = self.rx.get_mut(queue).and_then(RxQueue::take_stop) {
            self.rx_stopped(queue, stopped);
        } else {
            self.unsized_buffers |= reason != DropReason::NoBuffers;
        }
    }
}

pub use checkpoint::forget;

/// Bytes for the positions of so many queues, of both kinds together.
pub const fn positions(queues: usize) -> usize {
    checkpoint::bytes(queues)
}

impl FramePort for NicPort {
    #[inline]
    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        let mut turns = self.turns;
        let count = turns.fetch(self.tx.len(), tokens, |queue| self.fetch_one(queue));
        self.turns = turns;
        count
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a token names a queue that `fetch` has taken a frame from")]
    fn frame(&self, token: Token) -> TxFrame<'_> {
        let (queue, slot) = token.slot();
        self.tx[queue].frame(slot)
    }

    #[inline]
    fn finish(&mut self, tokens: &[Token]) {
        for token in tokens {
            let (queue, slot) = token.slot();
            if let Some(queue) = self.tx.get_mut(queue) {
                queue.finish(slot);
            }
        }
    }

    #[inline]
    fn capabilities(&self) -> RxCapabilities {
        self.capabilities
    }

    #[inline]
    fn filter(&self) -> &Filter {
        &self.filter
    }

    #[inline]
    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        deliver_each(frames, |frame| self.deliver_one(frame))
    }

    fn has_room(&mut self) -> bool {
        // Where a frame was refused, its queue alone decides.
        let starved = self.rx.iter().any(RxQueue::is_starved);
        self.rx.iter_mut().filter(|queue| !starved || queue.is_starved()).any(RxQueue::has_room)
    }

    fn flush(&mut self, now: Instant) {
        self.rx.iter_mut().for_each(RxQueue::flush);
        for queue in &mut self.tx {
            let written = queue.flush();
            self.interrupts.moderator.sent(queue.line, written);
        }
        self.store();
        if self.unsized_buffers {
            self.size_buffers();
        }
        self.interrupts.run(&self.shared, now);
    }

    fn tick(&mut self, now: Instant) -> Ticked {
        let held = self.interrupts.run(&self.shared, now);
        let pending = self.shared.vectors.fire_pending(self.control_word());
        let soon = held || pending && self.interrupts.restless.is_some_and(|until| now < until);
        Ticked { soon, ..Ticked::default() }
    }

    /// All queues have stopped: Linux, Windows and FreeBSD reset the device when they see these events.
    fn fail(&mut self) {
        self.shared.failed.store(true, Ordering::Release);
        let queues = self.tx.iter().map(|queue| &queue.descriptor);
        for descriptor in queues.chain(self.rx.iter().map(|queue| &queue.descriptor)) {
            descriptor.store_u32(at::ERROR, QUEUE_LOST);
            descriptor.store_u32(at::STOPPED, 1);
        }
        self.shared.area.set_bits_u32(at::EVENTS, event::TX_QUEUE | event::RX_QUEUE);
        self.shared.vectors.publish(self.shared.event_vector, self.control_word());
    }

    fn refresh(&mut self) {
        let live = self.shared.live.lock().clone();
        self.adopt(live);
    }

    fn info(&self) -> FramePortInfo {
        let lookahead = self.tx.iter().map(TxQueue::lookahead).min().unwrap_or(0);
        FramePortInfo { lookahead, overhead: self.scratch.overhead.clone() }
    }
}

impl WakeUp for NicPort {
    fn arm(&mut self) -> bool {
        self.tx.iter().for_each(|queue| queue.descriptor.store_u32(at::TX_THRESHOLD, 1));
        // A driver stores a descriptor and then loads the threshold: one of the two loads sees the
        // other's store.
        fence(Ordering::SeqCst);
        self.tx.iter().any(TxQueue::waits)
    }

    fn disarm(&mut self) {
        self.tx.iter().for_each(|queue| queue.descriptor.store_u32(at::TX_THRESHOLD, u32::MAX));
        self.doorbell.iter().for_each(|doorbell| doorbell.silence());
    }

    fn needs(&self) -> Needs {
        let turn = self.tx.iter().any(TxQueue::waits) || self.shared.vectors.any_pending();
        let announces = || self.doorbell.as_ref().is_some_and(|doorbell| !doorbell.is_bypassed());
        match turn {
            true => Needs::Turn,
            false if announces() => Needs::Announces,
            false => Needs::Nothing,
        }
    }

    fn signs(&self, into: &mut Vec<Sign>) -> bool {
        into.extend(self.tx.iter().filter_map(TxQueue::sign));
        true
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        self.doorbell.as_deref().map(AsFd::as_fd)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
