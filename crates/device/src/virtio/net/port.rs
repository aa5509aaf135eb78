//! The rings of a running NIC as a [`FramePort`]: what one worker owns while frames flow.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use vmlane_mem::Spans;
use vmlane_port::{
    DropReason, Filter, FramePort, FramePortInfo, Needs, Overhead, PortStats, QueueTurns, Refused,
    RxCapabilities, RxFrame, Sign, Ticked, Token, TxFrame, WakeUp, deliver_each,
};
use vmlane_wire::ethernet::{HEADER, TAG};
use vmlane_wire::virtio::{feature, net_feature};

use super::config::{NetConfig, VirtioNetStats};
use super::control::{Checkpoint, ControlQueue, Requested, Served};
use super::rx::{LONG_HEADER, RxQueue, RxRules, SHORT_HEADER, Scratch};
use super::steering::Steering;
use super::tx::{TxQueue, TxRules};
use crate::virtio::queue::{Broken, Queue};
use crate::virtio::recall::Recall;
use crate::virtio::vhost::{Lines, Setup};

/// Bytes of the longest super-frame: what an IPv4 length can hold, behind an Ethernet header.
const AGGREGATE: usize = HEADER + u16::MAX as usize;
/// Smaller receive rings get shorter aggregates.
const AMPLE_RING: usize = 128;
/// Bytes that a mergeable buffer holds with most drivers.
const BUFFER: usize = 1500;
/// Frames delivered before they are made visible, at most: a guest may work on the first ones while
/// others arrive.
const VISIBLE: u32 = 32;

/// The rings of a running NIC.
pub struct NetPort {
    tx: Vec<TxQueue>,
    rx: Vec<RxQueue>,
    turns: QueueTurns,
    rules: Rules,
    capabilities: RxCapabilities,
    filter: Filter,
    steering: Steering,
    /// Pairs of queues in use: frames come in by one of them.
    pairs: usize,
    /// Frames delivered since they were last made visible.
    hidden: u32,
    /// The guest was called of frames for it since the last flush.
    announced: bool,
    recall: Recall,
    scratch: Scratch,
    lines: Arc<dyn Lines>,
    stats: Arc<PortStats>,
    counters: Arc<VirtioNetStats>,
    control: Option<Control>,
}

/// What the guest and its driver agreed on, each way.
struct Rules {
    tx: TxRules,
    rx: RxRules,
}

/// The control queue, where the VMM leaves it to us, and what the guest has asked for there.
struct Control {
    queue: ControlQueue,
    requested: Requested,
    checkpoint: Arc<Checkpoint>,
    features: u64,
    most_pairs: u16,
    changed: bool,
}

/// What the guest takes with partial checksums or whole.
struct Taken {
    checksum: bool,
    tso4: bool,
    tso6: bool,
    uso4: bool,
    uso6: bool,
}

impl Taken {
    /// By the features, or those of them that the guest has not switched off since.
    fn of(features: u64) -> Taken {
        use net_feature::{GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, GUEST_USO4, GUEST_USO6};
        let checksum = features & GUEST_CSUM != 0;
        let has = |feature: u64| checksum && features & feature != 0;
        let (tso4, tso6, uso4, uso6) = (has(GUEST_TSO4), has(GUEST_TSO6), has(GUEST_USO4), has(GUEST_USO6));
        Taken { checksum, tso4, tso6, uso4, uso6 }
    }

    fn aggregates(&self) -> bool {
        self.tso4 || self.tso6 || self.uso4 || self.uso6
    }
}

/// The number of the control queue.
fn control_ring(features: u64, config: &NetConfig) -> Option<usize> {
    let pairs = if features & net_feature::MULTI_QUEUE != 0 { usize::from(config.queues) } else { 1 };
    (features & net_feature::CTRL_VQ != 0).then_some(2 * pairs)
}

impl NetPort {
    /// Runs the rings of `setup`; those that make no sense are reported to the VMM and left out.
    pub fn new(
        config: NetConfig,
        setup: Setup,
        lines: Arc<dyn Lines>,
        stats: Arc<PortStats>,
        counters: Arc<VirtioNetStats>,
        checkpoint: Arc<Checkpoint>,
    ) -> NetPort {
        let Setup { features, memory, rings, .. } = setup;
        let has = |feature: u64| features & feature != 0;
        let long = has(feature::VERSION_1) || has(net_feature::MERGEABLE);
        let header = if long { LONG_HEADER } else { SHORT_HEADER };
        let (mut tx, mut rx, mut control) = (Vec::new(), Vec::new(), None);
        let overhead = Overhead::default();
        let control_ring = control_ring(features, &config);
        for (number, ring) in rings.iter().enumerate() {
            let Some(ring) = ring else { continue };
            match Queue::new(ring, features, &memory) {
                Ok(queue) if control_ring == Some(number) => {
                    let begins = ring.position.load(Ordering::Acquire) as u16 & 0x7fff == 0;
                    let before =
                        checkpoint.lock().take().filter(|(agreed, _)| !begins && *agreed == features);
                    let most_pairs = config.queues.into();
                    let requested = match before {
                        Some((_, requested)) => requested,
                        None if begins => Requested::new(config.mac, features),
                        None => Requested::unknown(config.mac, features, most_pairs),
                    };
                    let queue = ControlQueue::new(queue, number, &memory, overhead.clone());
                    let checkpoint = checkpoint.clone();
                    control =
                        Some(Control { queue, requested, checkpoint, features, most_pairs, changed: false });
                }
                Ok(queue) if number % 2 == 0 => rx.push(RxQueue::new(queue, number)),
                Ok(queue) => tx.push(TxQueue::new(queue, number, &memory, overhead.clone())),
                Err(error) => {
                    counters.bad_rings.inc();
                    tracing::warn!(ring = number, %error, "a virtio ring cannot run");
                    lines.fail(number);
                }
            }
        }
        let capabilities = Taken::of(features);
        let frame = usize::from(config.mtu) + HEADER;
        let mergeable = has(net_feature::MERGEABLE);
        let smallest = rx.iter().map(|queue| usize::from(queue.queue.size())).min().unwrap_or(0);
        let aggregate = if mergeable && smallest < AMPLE_RING { smallest / 4 * BUFFER } else { AGGREGATE };
        let mut port = NetPort {
            steering: Steering::new(rx.len().min(tx.len())),
            tx,
            rx,
            turns: QueueTurns::default(),
            rules: Rules {
                tx: TxRules {
                    header,
                    frame: TxRules::longest(config.mtu),
                    checksum: has(net_feature::CSUM),
                    tso4: has(net_feature::HOST_TSO4),
                    tso6: has(net_feature::HOST_TSO6),
                    uso: has(net_feature::HOST_USO),
                },
                rx: RxRules {
                    header,
                    frame: frame + 2 * TAG,
                    mergeable,
                    checksum: capabilities.checksum,
                    aggregates: capabilities.aggregates(),
                },
            },
            capabilities: RxCapabilities {
                frame,
                aggregate: aggregate.clamp(frame, AGGREGATE.max(frame)),
                tso4: capabilities.tso4,
                tso6: capabilities.tso6,
                uso4: capabilities.uso4,
                uso6: capabilities.uso6,
                partial_sum: capabilities.checksum,
                partial_frame: capabilities.checksum,
                // It is better off with what is partial: that can be sent on.
                verdicts: false,
            },
            // What the guest wants beyond its own address is between it and its VMM; the VMM filters.
            filter: Filter {
                mac: config.mac,
                unicast: true,
                broadcast: true,
                all_multicast: true,
                promiscuous: true,
                ..Filter::default()
            },
            pairs: usize::MAX,
            hidden: 0,
            announced: false,
            recall: Recall::new(&*lines),
            scratch: Scratch {
                header: Spans::new(memory.clone(), true),
                into: Spans::new(memory, true),
                segments: Vec::with_capacity(64),
                chains: Vec::with_capacity(64),
                overhead,
            },
            lines,
            stats,
            counters,
            control,
        };
        port.adopt();
        port.rx.iter_mut().for_each(|queue| queue.queue.suppress_kicks());
        port.disarm();
        port
    }

    /// What the guest has asked for on its control queue is in force from here on.
    fn adopt(&mut self) {
        let Some(control) = &self.control else { return };
        let requested = &control.requested;
        self.filter = requested.filter();
        if control.features & net_feature::MULTI_QUEUE != 0 {
            self.steering.limit(requested.pairs.into());
            self.pairs = requested.pairs.into();
        }
        let Taken { checksum, tso4, tso6, uso4, uso6 } = Taken::of(requested.offloads);
        (self.rules.rx.checksum, self.rules.rx.aggregates) =
            (checksum, Taken::of(requested.offloads).aggregates());
        let whole = RxCapabilities { tso4, tso6, uso4, uso6, ..self.capabilities };
        self.capabilities = RxCapabilities { partial_sum: checksum, partial_frame: checksum, ..whole };
    }

    /// Carries out what the guest has asked for meanwhile. True if there is more.
    fn control(&mut self, now: Instant) -> bool {
        let Some(control) = &mut self.control else { return false };
        let Control { queue, requested, features, most_pairs, changed, .. } = control;
        match queue.serve(now, |command| requested.apply(command, *features, *most_pairs)) {
            Ok(Served { notify, changed: new, more }) => {
                *changed |= new;
                if notify {
                    let ring = queue.ring;
                    self.counters.calls.bump(1);
                    self.lines.call(ring);
                }
                if new {
                    self.adopt();
                }
                more
            }
            Err(broken) => {
                let ring = queue.ring;
                self.broke(ring, broken);
                false
            }
        }
    }

    #[cold]
    fn broke(&self, ring: usize, broken: Broken) {
        self.counters.broken_rings.inc();
        tracing::debug!(ring, %broken, "a virtio ring broke");
        self.lines.fail(ring);
    }

    /// Lends the next frame of a transmit ring: its slot.
    #[inline]
    fn fetch_one(&mut self, number: usize) -> Option<u16> {
        let queue = self.tx.get_mut(number)?;
        match queue.fetch(&self.rules.tx, &self.stats) {
            Ok(slot) => {
                let slot = slot?;
                if number < self.pairs {
                    self.steering.sent(queue.frame(slot).head, number);
                }
                Some(slot)
            }
            Err(broken) => {
                let ring = queue.ring;
                self.broke(ring, broken);
                None
            }
        }
    }

    #[inline]
    fn deliver_one(&mut self, frame: &RxFrame<'_>) -> Result<(), DropReason> {
        let fits = match frame.aggregate {
            Some(_) => self.rules.rx.aggregates,
            None => frame.len() <= self.rules.rx.frame,
        };
        if !fits {
            return Err(DropReason::TooLong);
        }
        let pair = self.steering.pair(frame.head);
        let queue = self.rx.get_mut(pair).ok_or(DropReason::NoBuffers)?;
        if let Err(reason) = queue.deliver(frame, &self.rules.rx, &mut self.scratch) {
            if let Some(broken) = queue.take_broken() {
                let ring = queue.ring;
                self.broke(ring, broken);
            }
            return Err(reason);
        }
        self.hidden += 1;
        if self.hidden == VISIBLE {
            self.publish();
        }
        Ok(())
    }

    /// Completes the finished frames of some transmit rings.
    fn complete(&mut self, which: impl Fn(&TxQueue) -> bool) {
        for queue in self.tx.iter_mut().filter(|queue| which(queue)) {
            if queue.flush() {
                self.counters.calls.bump(1);
                self.lines.call(queue.ring);
            }
        }
    }

    /// Makes deliveries visible.
    fn publish(&mut self) {
        self.hidden = 0;
        for queue in &mut self.rx {
            if queue.queue.publish() {
                self.announced = true;
                self.counters.calls.bump(1);
                self.lines.call(queue.ring);
            }
        }
    }

    /// Calls a guest again that may have slept through the last call. True if it may have to be done once
    /// more.
    #[cold]
    fn repeat_call(&mut self, now: Instant) -> bool {
        let notified = self.rx.iter().all(|queue| queue.queue.is_notified());
        if self.recall.take_due(now, notified)
            && let Some(queue) = self.rx.first()
        {
            self.counters.calls.bump(1);
            self.lines.call(queue.ring);
        }
        self.recall.is_pending()
    }
}

impl FramePort for NetPort {
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
        let starved = self.rx.iter().any(RxQueue::is_starved);
        self.rx.iter().filter(|queue| !starved || queue.is_starved()).any(RxQueue::has_room)
    }

    fn flush(&mut self, now: Instant) {
        self.publish();
        self.complete(|_| true);
        if std::mem::take(&mut self.announced) {
            self.recall.called(now);
        }
    }

    fn tick(&mut self, now: Instant) -> Ticked {
        self.complete(|queue| queue.skipped);
        let again = self.recall.is_pending() && self.repeat_call(now);
        let soon = self.control.is_some() && self.control(now) || again;
        let changed = self.control.as_mut().is_some_and(|control| std::mem::take(&mut control.changed));
        Ticked { soon, changed, due: None }
    }

    fn refresh(&mut self) {}

    fn fail(&mut self) {}

    fn info(&self) -> FramePortInfo {
        let lookahead = self.tx.iter().map(TxQueue::lookahead).min().unwrap_or(0);
        FramePortInfo { lookahead, overhead: self.scratch.overhead.clone() }
    }
}

impl WakeUp for NetPort {
    fn arm(&mut self) -> bool {
        self.tx.iter_mut().for_each(|queue| queue.queue.listen());
        self.control.iter_mut().for_each(|control| control.queue.listen());
        // A driver stores a chain and then loads what we asked for: one of the two loads sees the other's
        // store.
        fence(Ordering::SeqCst);
        self.tx.iter().any(TxQueue::waits)
            || self.control.as_ref().is_some_and(|control| control.queue.waits())
    }

    fn disarm(&mut self) {
        self.tx.iter_mut().for_each(|queue| queue.queue.suppress_kicks());
        self.control.iter_mut().for_each(|control| control.queue.suppress_kicks());
        self.lines.clear();
    }

    fn needs(&self) -> Needs {
        let announces = self.lines.doorbell().is_some() && !self.recall.is_pending();
        if announces { Needs::Announces } else { Needs::Turn }
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        self.lines.doorbell()
    }

    fn signs(&self, _: &mut Vec<Sign>) -> bool {
        false
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for NetPort {
    fn drop(&mut self) {
        self.publish();
        for queue in &mut self.rx {
            let next = queue.queue.next;
            queue.queue.leave(next);
        }
        self.complete(|_| true);
        if let Some(control) = self.control.take() {
            *control.checkpoint.lock() = Some((control.features, control.requested));
        }
    }
}
