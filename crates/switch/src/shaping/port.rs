//! A port whose traffic is shaped, or whose link is down, whatever device it is of.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_port::wrap::FrameWrapper;
use vmlane_port::{
    DropReason, FramePort, FramePortInfo, MAX_FRAME, Needs, Overhead, PortStats, Refused, RxFrame, Ticked,
    Token,
};

use super::{FrameQueue, Output, Shaper, ShaperCell, received_bytes, sent_bytes};
use crate::price::PIECE_COST;

/// The worker polls again soon for frames that may go within this time. For others it sleeps no longer than
/// that anyway (`vmlane_worker`, `waiting.rs`).
const SOON: Duration = Duration::from_millis(5);
/// A guest that has had no buffers for this long loses what waits for it, as in the switch itself.
const HOLD: Duration = Duration::from_millis(5);
/// Bytes that leave the queue in one poll: a fair share of a round.
const RELEASED: usize = 256 << 10;

/// Counts dropped frames.
fn lose(stats: &PortStats, reason: DropReason, frames: usize) {
    (0..frames).for_each(|_| stats.drop(reason));
}

/// A port whose frames wait for tokens. Time is the worker's, as of its last poll.
pub struct ShapedPort {
    inner: Box<dyn FramePort>,
    shaper: Option<Box<Shaper>>,
    cell: ShaperCell,
    stats: Arc<PortStats>,
    now: Instant,
    /// That of the port inside, to which copies into the queue are added.
    overhead: Overhead,
}

impl ShapedPort {
    /// The shaper is what lies in `cell`.
    pub fn new(
        inner: Box<dyn FramePort>,
        cell: ShaperCell,
        stats: Arc<PortStats>,
        now: Instant,
    ) -> ShapedPort {
        let (shaper, overhead) = (cell.take(), inner.info().overhead);
        ShapedPort { inner, shaper, cell, stats, now, overhead }
    }

    fn is_down(&self) -> bool {
        self.shaper.as_ref().is_some_and(|shaper| shaper.down)
    }

    /// Drops what the guest sends.
    #[cold]
    fn discard(&mut self, tokens: &mut [Token]) {
        let fetched = self.inner.fetch(tokens);
        if let Some(fetched) = tokens.get(..fetched) {
            lose(&self.stats, DropReason::LinkDown, fetched.len());
            self.overhead.add(fetched.len());
            self.inner.finish(fetched);
        }
    }

    fn output(&mut self) -> Option<&mut Output> {
        self.shaper.as_mut()?.output.as_mut()
    }

    /// Does the guest wait for tokens?
    fn is_blocked(&self) -> bool {
        let input = self.shaper.as_ref().and_then(|shaper| shaper.input.as_ref());
        input.is_some_and(|input| input.blocked.is_some())
    }

    /// Do frames wait in the queue?
    fn holds_frames(&self) -> bool {
        let output = self.shaper.as_ref().and_then(|shaper| shaper.output.as_ref());
        output.is_some_and(|output| output.waiting.is_some())
    }

    /// Delivers frames of the queue for which there are tokens. True if a frame left it.
    fn release(&mut self) -> bool {
        let ShapedPort { inner, shaper, stats, now, .. } = self;
        let Some(output) = shaper.as_mut().and_then(|shaper| shaper.output.as_mut()) else { return false };
        let Output { bucket, queue: Some(queue), waiting, refused } = output else { return false };
        if queue.is_empty() {
            return false;
        }
        bucket.fill(*now, true);
        let (mut any, mut left) = (false, RELEASED);
        while bucket.is_ready() && left > 0 {
            let Some((frame, capabilities)) = queue.front() else { break };
            // A guest that takes other frames now than when the switch made this one.
            let outcome = if capabilities == inner.capabilities() {
                inner.deliver(std::slice::from_ref(&frame)).map_err(|refused| refused.reason)
            } else {
                Err(DropReason::Shaped)
            };
            left = left.saturating_sub(frame.len());
            let bytes = received_bytes(&frame);
            match outcome {
                Ok(()) => {
                    bucket.take(bytes);
                    stats.rx_shaped_bytes.bump(bytes);
                }
                Err(DropReason::NoBuffers) => {
                    if now.saturating_duration_since(*refused.get_or_insert(*now)) > HOLD {
                        lose(stats, DropReason::NoBuffers, queue.len());
                        queue.clear();
                    }
                    break;
                }
                Err(reason) => lose(stats, reason, 1),
            }
            *refused = None;
            any = true;
            queue.pop();
        }
        if queue.is_empty() {
            bucket.idle();
            *refused = None;
            let since = waiting.take().unwrap_or(*now);
            stats.rx_shaped_us.bump(now.saturating_duration_since(since).as_micros() as u64);
        }
        any
    }

    /// Is there something that the worker should poll for soon?
    fn soon(&self) -> bool {
        let Some(shaper) = &self.shaper else { return false };
        let input = shaper.input.as_ref().filter(|input| input.blocked.is_some());
        let output = shaper.output.as_ref().filter(|output| output.waiting.is_some());
        let buckets = [input.map(|input| &input.bucket), output.map(|output| &output.bucket)];
        buckets.into_iter().flatten().any(|bucket| bucket.wait() <= SOON)
    }

    /// Another shaper takes over. What waits for the old one is delivered as far as there is room, and lost
    /// otherwise.
    fn adopt(&mut self) {
        let Some(next) = self.cell.take() else { return };
        let before = self.shaper.replace(next);
        let queue = before.and_then(|shaper| shaper.output).and_then(|output| output.queue);
        let Some(mut queue) = queue else { return };
        let down = self.is_down();
        while let Some((frame, capabilities)) = queue.front() {
            let fits = capabilities == self.inner.capabilities();
            if down || !fits || self.inner.deliver(std::slice::from_ref(&frame)).is_err() {
                lose(&self.stats, DropReason::Shaped, 1);
            }
            queue.pop();
        }
        self.inner.flush(self.now);
    }
}

impl Drop for ShapedPort {
    fn drop(&mut self) {
        if let Some(shaper) = self.shaper.take() {
            let lost = shaper.output.as_ref().and_then(|output| output.queue.as_ref());
            lose(&self.stats, DropReason::Gone, lost.map_or(0, FrameQueue::len));
            self.cell.give_back(shaper);
        }
    }
}

impl FrameWrapper for ShapedPort {
    fn inner(&self) -> &dyn FramePort {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn FramePort {
        &mut *self.inner
    }

    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        if self.is_down() {
            self.discard(tokens);
            return 0;
        }
        let ShapedPort { inner, shaper, stats, now, .. } = self;
        let Some(input) = shaper.as_mut().and_then(|shaper| shaper.input.as_mut()) else {
            return inner.fetch(tokens);
        };
        input.bucket.fill(*now, input.blocked.is_some());
        let (mut count, mut bytes) = (0, 0);
        while let Some(rest) = tokens.get_mut(count..).filter(|rest| !rest.is_empty()) {
            if !input.bucket.is_ready() {
                // The guest may have more: it waits from here on, or goes on waiting.
                input.blocked.get_or_insert(*now);
                break;
            }
            let most = input.bucket.frames(MAX_FRAME).min(rest.len());
            let Some(places) = rest.get_mut(..most) else { break };
            let fetched = inner.fetch(places).min(most);
            if let Some(since) = input.blocked.take_if(|_| fetched > 0) {
                stats.tx_shaped_us.bump(now.saturating_duration_since(since).as_micros() as u64);
            }
            for token in places.iter().take(fetched) {
                let sent = sent_bytes(&inner.frame(*token));
                input.bucket.take(sent);
                bytes += sent;
            }
            count += fetched;
            if fetched < most {
                input.blocked = None;
                input.bucket.idle();
                break;
            }
        }
        stats.tx_shaped_bytes.bump(bytes);
        count
    }

    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        if self.is_down() {
            return Err(Refused { at: 0, reason: DropReason::LinkDown });
        }
        let ShapedPort { inner, shaper, cell, stats, now, overhead } = self;
        let Some(output) = shaper.as_mut().and_then(|shaper| shaper.output.as_mut()) else {
            return inner.deliver(frames);
        };
        let waits = output.queue.as_ref().is_some_and(|queue| !queue.is_empty());
        output.bucket.fill(*now, waits);
        let mut passing = 0;
        for frame in frames {
            if waits || !output.bucket.is_ready() {
                break;
            }
            output.bucket.take(received_bytes(frame));
            passing += 1;
        }
        let (at_once, rest) = frames.split_at_checked(passing).unwrap_or((frames, &[]));
        let outcome = if at_once.is_empty() { Ok(()) } else { inner.deliver(at_once) };
        let delivered = outcome.map_or_else(|refused| refused.at, |()| passing);
        for (at, frame) in at_once.iter().enumerate() {
            let bytes = received_bytes(frame);
            if at < delivered {
                stats.rx_shaped_bytes.bump(bytes);
            } else {
                output.bucket.give_back(bytes);
            }
        }
        outcome?;
        let claim = cell.claim();
        for (at, frame) in rest.iter().enumerate() {
            let capabilities = inner.capabilities();
            if !output.queue.as_mut().is_some_and(|queue| queue.push(frame, capabilities, claim)) {
                return Err(Refused { at: passing + at, reason: DropReason::Shaped });
            }
            output.waiting.get_or_insert(*now);
            overhead.add(frame.len() / PIECE_COST + 1);
        }
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        let queue = self.output().and_then(|output| output.queue.as_ref()).filter(|queue| !queue.is_empty());
        let fits = queue.map(|queue| queue.fits(MAX_FRAME));
        fits.unwrap_or_else(|| self.inner.has_room())
    }

    fn flush(&mut self, now: Instant) {
        self.now = now;
        self.inner.flush(now);
    }

    fn tick(&mut self, now: Instant) -> Ticked {
        self.now = now;
        if self.release() {
            self.inner.flush(now);
        }
        if let Some(input) = self.shaper.as_mut().and_then(|shaper| shaper.input.as_mut())
            && input.blocked.is_some()
        {
            input.bucket.fill(now, true);
        }
        let ticked = self.inner.tick(now);
        Ticked { soon: ticked.soon | self.soon(), ..ticked }
    }

    fn refresh(&mut self) {
        self.inner.refresh();
        self.adopt();
    }

    fn info(&self) -> FramePortInfo {
        FramePortInfo { overhead: self.overhead.clone(), ..self.inner.info() }
    }

    /// A frame that waits for tokens is no reason to stay awake.
    fn arm(&mut self) -> bool {
        self.inner.arm() && !self.is_blocked()
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.doorbell_fd().filter(|_| !self.is_blocked())
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.readable_fd().filter(|_| !self.is_blocked())
    }

    /// When the first of the frames that wait for tokens may go depends on the clock.
    fn needs(&self) -> Needs {
        if self.is_blocked() || self.holds_frames() { Needs::Turn } else { self.inner.needs() }
    }
}
