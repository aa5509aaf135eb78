//! The rings of a running NIC as a [`FramePort`]: what one worker owns while frames flow.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use vmlane_mem::Spans;
use vmlane_port::{Filter, FramePort, Lent, MAX_HEAD, Packet, PortStats, Reason, Refusal, Takes, Token};
use vmlane_wire::ethernet::{HEADER, TAG};
use vmlane_wire::virtio::{feature, net_feature};

use super::device::{NetConfig, VirtioNetStats};
use super::rx::{Bench, LONG_HEADER, RxQueue, RxRules, SHORT_HEADER, Undelivered};
use super::steering::Steering;
use super::tx::{TxQueue, TxRules};
use crate::virtio::queue::{Broken, Queue};
use crate::virtio::vhost::{Lines, Setup};

/// Frames taken from one transmit ring before the next one has its turn.
const BURST: u32 = 16;
/// Bytes of the longest super-frame: what an IPv4 length can tell, behind an Ethernet header.
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
    /// The transmit ring whose turn it is, and how many frames it may still have.
    turn: usize,
    burst: u32,
    tx_rules: TxRules,
    rx_rules: RxRules,
    takes: Takes,
    filter: Filter,
    steering: Steering,
    /// Frames delivered since they were last made visible.
    hidden: u32,
    bench: Bench,
    lines: Arc<dyn Lines>,
    stats: Arc<PortStats>,
    counters: Arc<VirtioNetStats>,
}

impl NetPort {
    /// Runs the rings of `setup`; those that make no sense are reported to the VMM and left out.
    pub fn new(
        config: NetConfig,
        setup: Setup,
        lines: Arc<dyn Lines>,
        stats: Arc<PortStats>,
        counters: Arc<VirtioNetStats>,
    ) -> NetPort {
        let Setup { features, memory, rings } = setup;
        let has = |feature: u64| features & feature != 0;
        let long = has(feature::VERSION_1) || has(net_feature::MERGEABLE);
        let header = if long { LONG_HEADER } else { SHORT_HEADER };
        let (mut tx, mut rx) = (Vec::new(), Vec::new());
        for (number, ring) in rings.iter().enumerate() {
            let Some(ring) = ring else { continue };
            match Queue::new(ring, features, &memory) {
                Ok(queue) if number % 2 == 0 => rx.push(RxQueue::new(queue, number)),
                Ok(queue) => tx.push(TxQueue::new(queue, number, &memory)),
                Err(error) => {
                    counters.bad_rings.inc();
                    tracing::warn!(ring = number, %error, "a virtio ring cannot run");
                    lines.fail(number);
                }
            }
        }
        let checksum = has(net_feature::GUEST_CSUM);
        let (tso4, tso6) =
            (checksum && has(net_feature::GUEST_TSO4), checksum && has(net_feature::GUEST_TSO6));
        let frame = usize::from(config.mtu) + HEADER;
        let mergeable = has(net_feature::MERGEABLE);
        let smallest = rx.iter().map(|queue| usize::from(queue.queue.size())).min().unwrap_or(0);
        let aggregate = if mergeable && smallest < AMPLE_RING { smallest / 4 * BUFFER } else { AGGREGATE };
        let mut port = NetPort {
            steering: Steering::new(rx.len().min(tx.len())),
            tx,
            rx,
            turn: 0,
            burst: BURST,
            tx_rules: TxRules {
                header,
                frame: TxRules::longest(config.mtu),
                checksum: has(net_feature::CSUM),
                tso4: has(net_feature::HOST_TSO4),
                tso6: has(net_feature::HOST_TSO6),
            },
            rx_rules: RxRules { header, frame: frame + 2 * TAG, mergeable, checksum, tso: tso4 || tso6 },
            takes: Takes {
                frame,
                aggregate: aggregate.clamp(frame, AGGREGATE.max(frame)),
                tso4,
                tso6,
                partial_sum: checksum,
                partial_frame: checksum,
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
            hidden: 0,
            bench: Bench {
                header: Spans::new(memory.clone(), true),
                into: Spans::new(memory, true),
                segments: Vec::with_capacity(64),
                chains: Vec::with_capacity(64),
                scratch: Box::new([0; MAX_HEAD]),
            },
            lines,
            stats,
            counters,
        };
        port.rx.iter_mut().for_each(|queue| queue.queue.quiet());
        port.disarm();
        port
    }

    #[cold]
    fn broke(&self, ring: usize, broken: Broken) {
        self.counters.broken_rings.inc();
        tracing::debug!(ring, %broken, "a virtio ring broke");
        self.lines.fail(ring);
    }

    fn next_turn(&mut self) {
        self.turn = if self.turn + 1 < self.tx.len() { self.turn + 1 } else { 0 };
        self.burst = BURST;
    }

    /// Completes the finished frames of some transmit rings.
    fn settle(&mut self, which: impl Fn(&TxQueue) -> bool) {
        for queue in self.tx.iter_mut().filter(|queue| which(queue)) {
            if queue.flush() {
                self.counters.calls.bump(1);
                self.lines.call(queue.ring);
            }
        }
    }

    /// Makes deliveries visible.
    fn show(&mut self) {
        self.hidden = 0;
        for queue in &mut self.rx {
            if queue.queue.publish() {
                self.counters.calls.bump(1);
                self.lines.call(queue.ring);
            }
        }
    }
}

/// A slot of a queue, as a token.
fn token(queue: usize, slot: u16) -> Token {
    Token((queue as u32) << 16 | u32::from(slot))
}

fn slot(token: Token) -> (usize, u16) {
    ((token.0 >> 16) as usize, token.0 as u16)
}

impl FramePort for NetPort {
    #[inline]
    fn fetch(&mut self) -> Option<Token> {
        for _ in 0..=self.tx.len() {
            if self.burst > 0 && self.turn < self.tx.len() {
                self.burst -= 1;
                let queue = &mut self.tx[self.turn];
                match queue.fetch(&self.tx_rules, &self.stats) {
                    Ok(Some(slot)) => {
                        self.steering.sent(queue.lent(slot).head, self.turn);
                        return Some(token(self.turn, slot));
                    }
                    Ok(None) => {}
                    Err(broken) => {
                        let ring = queue.ring;
                        self.broke(ring, broken);
                    }
                }
            }
            self.next_turn();
        }
        None
    }

    #[inline]
    fn lent(&self, token: Token) -> Lent<'_> {
        let (queue, slot) = slot(token);
        self.tx[queue].lent(slot)
    }

    #[inline]
    fn finish(&mut self, token: Token) {
        let (queue, slot) = slot(token);
        self.tx[queue].finish(slot);
    }

    #[inline]
    fn takes(&self) -> Takes {
        self.takes
    }

    #[inline]
    fn filter(&self) -> &Filter {
        &self.filter
    }

    #[inline]
    fn deliver(&mut self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let fits = match packet.aggregate {
            Some(_) => self.rx_rules.tso,
            None => packet.len() <= self.rx_rules.frame,
        };
        if !fits {
            return Err(Refusal::Drop(Reason::TooLong));
        }
        let pair = self.steering.pair(packet.head);
        let Some(queue) = self.rx.get_mut(pair) else { return Err(Refusal::Drop(Reason::NoBuffers)) };
        match queue.deliver(packet, &self.rx_rules, &mut self.bench) {
            Ok(()) => {
                self.hidden += 1;
                if self.hidden == VISIBLE {
                    self.show();
                }
                Ok(())
            }
            Err(Undelivered::Refused(refusal)) => Err(refusal),
            Err(Undelivered::Broken(broken)) => {
                queue.broken = true;
                let ring = queue.ring;
                self.broke(ring, broken);
                Err(Refusal::Drop(Reason::BadReceiver))
            }
        }
    }

    fn has_room(&mut self) -> bool {
        let starved = self.rx.iter().any(RxQueue::is_starved);
        self.rx.iter().filter(|queue| !starved || queue.is_starved()).any(RxQueue::has_room)
    }

    fn flush(&mut self, _: Instant) {
        self.show();
        self.settle(|_| true);
    }

    fn tick(&mut self, _: Instant) -> bool {
        self.settle(|queue| queue.skipped);
        false
    }

    fn arm(&mut self) -> bool {
        self.tx.iter_mut().for_each(|queue| queue.queue.listen());
        // A driver stores a chain and then loads the wish: one of the two looks sees the other's store.
        fence(Ordering::SeqCst);
        self.tx.iter().any(TxQueue::waits)
    }

    fn disarm(&mut self) {
        self.tx.iter_mut().for_each(|queue| queue.queue.quiet());
        self.lines.clear();
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.lines.bell()
    }
}

impl Drop for NetPort {
    fn drop(&mut self) {
        self.show();
        for queue in &mut self.rx {
            let next = queue.queue.next;
            queue.queue.leave(next);
        }
        self.settle(|_| true);
    }
}
