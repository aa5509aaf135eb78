//! A frame port that is captured: what its guest sends before any decision about it, and what it is given.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::FrameWrapper;
use crate::{BURST, DropReason, FramePort, Refused, RxCapabilities, RxFrame, Token, TxFrame};

/// Looks at the frames of one port of the switch. The worker that owns the port calls it, between two of the
/// port's own calls; it must not wait. Times are nanoseconds since 1970.
pub trait FrameTap: Send + Sync {
    /// The guest sent a frame, and nothing is decided about it yet. All that were sent before have gone their
    /// way.
    fn sent(&self, frame: &TxFrame<'_>, time: u64);

    /// The switch dropped the frame that was sent last, or (None) all that were sent have gone their way.
    fn settle(&self, dropped: Option<DropReason>);

    /// A frame was delivered to the guest, or was refused by its port for good.
    fn received(&self, frame: &RxFrame<'_>, time: u64, dropped: Option<DropReason>);

    /// The switch did not deliver a frame, shown as its sender described it, that was on its way to the port.
    fn refused(&self, frame: &TxFrame<'_>, time: u64, reason: DropReason);

    /// The port exists, and frames without a tag belong to this VLAN; None: there is no such port.
    fn placed(&self, vlan: Option<u16>);
}

/// Nanoseconds since 1970.
pub fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// A port with taps. It is there only while there is a capture: [`CapturedFrames::wrap`] and
/// [`CapturedFrames::unwrap`] may be called between any two calls of the port, and tokens stay good.
pub struct CapturedFrames {
    inner: Box<dyn FramePort>,
    taps: Vec<Arc<dyn FrameTap>>,
    /// The frames that were fetched last; from `next` on they were not asked for yet.
    fetched: [Token; BURST],
    len: usize,
    next: Cell<usize>,
}

impl CapturedFrames {
    /// Has `taps` examine a port; none: the port as it is.
    pub fn wrap(inner: Box<dyn FramePort>, taps: &[Arc<dyn FrameTap>]) -> Box<dyn FramePort> {
        if taps.is_empty() {
            return inner;
        }
        let fetched = [Token(0); BURST];
        Box::new(CapturedFrames { inner, taps: taps.to_vec(), fetched, len: 0, next: Cell::new(0) })
    }

    /// The port as it was before [`CapturedFrames::wrap`].
    pub fn unwrap(end: Box<dyn FramePort>) -> Box<dyn FramePort> {
        let any: &dyn Any = &*end;
        if !any.is::<CapturedFrames>() {
            return end;
        }
        let any: Box<dyn Any> = end;
        match any.downcast::<CapturedFrames>() {
            Ok(captured) => {
                captured.settle();
                captured.inner
            }
            Err(_) => unreachable!("just found to be one"),
        }
    }

    #[inline]
    fn settle(&self) {
        self.taps.iter().for_each(|tap| tap.settle(None));
    }
}

impl FrameWrapper for CapturedFrames {
    fn inner(&self) -> &dyn FramePort {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn FramePort {
        &mut *self.inner
    }

    /// What is captured is complete.
    fn capabilities(&self) -> RxCapabilities {
        RxCapabilities { verdicts: false, ..self.inner.capabilities() }
    }

    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        let count = self.inner.fetch(tokens);
        self.len = 0;
        self.next.set(0);
        for (to, from) in self.fetched.iter_mut().zip(tokens.iter().take(count)) {
            *to = *from;
            self.len += 1;
        }
        count
    }

    /// The switch asks for each frame once when it takes it, in the order in which they were fetched, and
    /// again if the frame had to wait: only the first time it is shown to the taps.
    #[inline]
    fn frame(&self, token: Token) -> TxFrame<'_> {
        let frame = self.inner.frame(token);
        let next = self.next.get();
        if self.fetched.iter().take(self.len).nth(next) == Some(&token) {
            self.next.set(next + 1);
            let now = wall_clock();
            self.taps.iter().for_each(|tap| tap.sent(&frame, now));
        }
        frame
    }

    fn finish(&mut self, tokens: &[Token]) {
        self.settle();
        self.inner.finish(tokens);
    }

    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        let outcome = self.inner.deliver(frames);
        let now = wall_clock();
        let count = outcome.map_or_else(|refused| refused.at, |()| frames.len());
        for frame in frames.iter().take(count) {
            self.taps.iter().for_each(|tap| tap.received(frame, now, None));
        }
        // A frame without buffers may wait: the switch decides what becomes of it.
        if let Err(Refused { at, reason }) = outcome
            && reason != DropReason::NoBuffers
            && let Some(frame) = frames.get(at)
        {
            self.taps.iter().for_each(|tap| tap.received(frame, now, Some(reason)));
        }
        outcome
    }
}
