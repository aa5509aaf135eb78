//! One direction of an impaired wire. It reads no clock.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use vmlane_port::{DropReason, FramePort, PortStats, RxCapabilities, RxFrame};
use vmlane_wire::ethernet::HEADER;

use super::Impairment;
use super::dice::{Dice, Lot};
use crate::pending::Claim;
use crate::shaping::{FrameQueue, LEAST_BYTES, MOST_BYTES, received_bytes};
use crate::spec::Traffic;

/// Beyond its delay, how long a frame waits for those before it at most, where the rate is limited.
const DEPTH: Duration = Duration::from_millis(50);
/// A guest that has had no buffers for this long loses what arrives, as in the switch itself.
const HOLD: Duration = Duration::from_millis(5);
/// Bytes that arrive in one poll: a fair share of a round.
const RELEASED: usize = 256 << 10;
/// All frames come from one port.
const CLAIM: Claim = Claim { owner: 0, shares: Traffic::NORMAL_SHARES };
const NANOS: u64 = 1_000_000_000;

/// When the last bit of all frames that were sent so far leaves, at a limited rate.
#[derive(Clone, Copy)]
struct Sent {
    at: Instant,
    /// What was rounded away of a nanosecond, multiplied by the rate.
    rest: u64,
}

impl Sent {
    /// The same after another frame.
    fn and(self, bytes: u64, rate: u64, now: Instant) -> Sent {
        let begin = if self.at > now { self } else { Sent { at: now, rest: 0 } };
        // Cut super-frames are far below 2^32 bits, rates below 2^42.
        let bits = bytes.saturating_mul(8 * NANOS).saturating_add(begin.rest);
        Sent { at: begin.at + Duration::from_nanos(bits / rate), rest: bits % rate }
    }
}

/// What is on its way to one port.
pub struct Line {
    of: Impairment,
    dice: Dice,
    queue: FrameQueue,
    /// When each frame of the queue is due; none before the one in front of it.
    due: VecDeque<Instant>,
    sent: Sent,
    /// Since when the guest has had no buffers for the first frame of the queue.
    refused: Option<Instant>,
}

impl Line {
    /// Nothing is on its way. The queue is allocated here. The same seed does the same to the same frames.
    pub fn new(of: Impairment, seed: u64, now: Instant) -> io::Result<Line> {
        let queue = FrameQueue::of_bytes(MOST_BYTES)?;
        let due = VecDeque::with_capacity(queue.most_frames());
        let sent = Sent { at: now, rest: 0 };
        Ok(Line { of, dice: Dice::new(seed), queue, due, sent, refused: None })
    }

    /// What happens to frames that come from now on. What is on its way stays so.
    pub fn set(&mut self, of: Impairment) {
        self.of = of;
    }

    /// How many frames are on their way.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Is none?
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// What the port gets, where it could receive `all`.
    pub fn restrict(&self, all: RxCapabilities) -> RxCapabilities {
        self.of.restrict(all)
    }

    /// A frame was sent to the port `to`. It is lost, delivered at once, or waits. An error: it was dropped,
    /// which is not counted here. Never [`DropReason::NoBuffers`]: chance is not asked twice.
    pub fn carry(
        &mut self,
        frame: &RxFrame<'_>,
        now: Instant,
        to: &mut dyn FramePort,
        stats: &PortStats,
    ) -> Result<(), DropReason> {
        let mut lot = self.dice.throw(&self.of);
        lot.corrupted &= frame.len() > HEADER;
        // It is changed in the queue.
        lot.early &= !lot.corrupted;
        if lot.lost {
            stats.drop(DropReason::Impaired);
            return Ok(());
        }
        let is_there = self.send(frame, lot, now, to)?;
        stats.wire_reordered.bump((lot.early && is_there).into());
        stats.wire_corrupted.bump(lot.corrupted.into());
        if lot.duplicated && self.send(frame, lot, now, to).is_ok() {
            stats.wire_duplicated.inc();
        }
        Ok(())
    }

    /// True: it is delivered already.
    fn send(
        &mut self,
        frame: &RxFrame<'_>,
        lot: Lot,
        now: Instant,
        to: &mut dyn FramePort,
    ) -> Result<bool, DropReason> {
        let sent = match self.of.rate {
            0 => Sent { at: now, rest: 0 },
            rate => self.sent.and(received_bytes(frame), rate, now),
        };
        let due = sent.at + self.dice.delay(&self.of);
        let at_once = lot.early || self.queue.is_empty() && due <= now;
        if at_once && !lot.corrupted {
            match to.deliver(std::slice::from_ref(frame)) {
                // It waits for them behind all others.
                Err(refused) if refused.reason == DropReason::NoBuffers => {}
                outcome => {
                    self.sent = sent;
                    return outcome.map(|()| true).map_err(|refused| refused.reason);
                }
            }
        }
        let capabilities = to.capabilities();
        let fits = self.queue.used() + frame.len() <= self.limit();
        let pushed = fits
            && if lot.corrupted {
                let bit = self.dice.between(HEADER * 8, frame.len() * 8);
                self.queue.push_corrupted(frame, capabilities, CLAIM, bit)
            } else {
                self.queue.push(frame, capabilities, CLAIM)
            };
        if !pushed {
            return Err(DropReason::WireFull);
        }
        self.due.push_back(self.due.back().map_or(due, |last| due.max(*last)));
        self.sent = sent;
        Ok(false)
    }

    /// Bytes that may wait: where the rate is limited, what it carries meanwhile.
    fn limit(&self) -> usize {
        let most = MOST_BYTES as usize;
        if self.of.rate == 0 {
            return most;
        }
        let time = (self.of.delay + self.of.jitter + DEPTH).as_micros();
        let bytes = time.saturating_mul(u128::from(self.of.rate)) / 8_000_000;
        usize::try_from(bytes).unwrap_or(most).clamp(LEAST_BYTES as usize, most)
    }

    /// Delivers what is due. True if a frame left the queue.
    pub fn release(&mut self, now: Instant, to: &mut dyn FramePort, stats: &PortStats) -> bool {
        let Line { queue, due, refused, .. } = self;
        let (mut any, mut left) = (false, RELEASED);
        while left > 0 && due.front().is_some_and(|due| *due <= now) {
            let Some((frame, capabilities)) = queue.front() else { break };
            left = left.saturating_sub(frame.len());
            // A guest may take other frames now than when the switch made this one.
            let outcome = if capabilities == to.capabilities() {
                to.deliver(std::slice::from_ref(&frame)).map_err(|refused| refused.reason)
            } else {
                Err(DropReason::Gone)
            };
            match outcome {
                Ok(()) => *refused = None,
                Err(DropReason::NoBuffers)
                    if now.saturating_duration_since(*refused.get_or_insert(now)) <= HOLD =>
                {
                    break;
                }
                Err(reason) => stats.drop(reason),
            }
            queue.pop();
            due.pop_front();
            any = true;
        }
        if queue.is_empty() {
            *refused = None;
        }
        any
    }

    /// When the next frame is due. None: nothing is on its way, or the guest has no buffers for it.
    pub fn next(&self) -> Option<Instant> {
        self.due.front().copied().filter(|_| self.refused.is_none())
    }

    /// Does a frame that is due wait for its guest's buffers?
    pub fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// The wire is not impaired any more: what is on its way arrives at once, as far as there is room.
    pub fn end(&mut self, to: &mut dyn FramePort, now: Instant, stats: &PortStats) {
        self.due.iter_mut().for_each(|due| *due = now);
        while self.release(now, to, stats) {}
        self.clear(DropReason::Gone, stats);
        to.flush(now);
    }

    /// What is on its way is lost for this reason.
    pub fn clear(&mut self, reason: DropReason, stats: &PortStats) {
        (0..self.len()).for_each(|_| stats.drop(reason));
        self.queue.clear();
        self.due.clear();
        self.refused = None;
    }
}
