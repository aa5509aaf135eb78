//! A port at the end of an impaired wire, whatever device it is of.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use vmlane_port::wrap::FrameWrapper;
use vmlane_port::{
    FramePort, Needs, Overhead, PortStats, Refused, RxCapabilities, RxFrame, Ticked, deliver_each,
};

use super::Line;
use crate::port_state::PortState;
use crate::price::PIECE_COST;

/// A port whose frames come over a line.
pub struct ImpairedPort {
    inner: Box<dyn FramePort>,
    line: Box<Line>,
    stats: Arc<PortStats>,
    state: Arc<PortState>,
    /// That of the port inside, to which copies into the queue are added.
    overhead: Overhead,
}

impl ImpairedPort {
    /// What is on its way on the line goes to `inner`.
    pub fn wrap(
        inner: Box<dyn FramePort>,
        line: Box<Line>,
        stats: Arc<PortStats>,
        state: Arc<PortState>,
    ) -> Box<dyn FramePort> {
        let overhead = inner.info().overhead;
        Box::new(ImpairedPort { inner, line, stats, state, overhead })
    }

    /// The port as it was before [`ImpairedPort::wrap`], and the line, if it has one.
    pub fn unwrap(end: Box<dyn FramePort>) -> (Box<dyn FramePort>, Option<Box<Line>>) {
        let any: &dyn Any = &*end;
        if !any.is::<ImpairedPort>() {
            return (end, None);
        }
        let any: Box<dyn Any> = end;
        match any.downcast::<ImpairedPort>() {
            Ok(impaired) => (impaired.inner, Some(impaired.line)),
            Err(_) => unreachable!("just found to be one"),
        }
    }

    fn show_waiting(&self) {
        self.state.waiting.store(self.line.len() as u32, Ordering::Relaxed);
    }
}

impl FrameWrapper for ImpairedPort {
    fn inner(&self) -> &dyn FramePort {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn FramePort {
        &mut *self.inner
    }

    fn capabilities(&self) -> RxCapabilities {
        self.line.restrict(self.inner.capabilities())
    }

    /// The worker's own time may be that before a long sleep.
    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        let now = Instant::now();
        let ImpairedPort { inner, line, stats, overhead, .. } = self;
        let outcome = deliver_each(frames, |frame| {
            let before = line.len();
            let outcome = line.carry(frame, now, &mut **inner, stats);
            overhead.add((line.len() - before) * (frame.len() / PIECE_COST + 1));
            outcome
        });
        self.show_waiting();
        outcome
    }

    /// Frames wait on the line.
    fn has_room(&mut self) -> bool {
        true
    }

    fn tick(&mut self, now: Instant) -> Ticked {
        let ImpairedPort { inner, line, stats, .. } = self;
        if line.release(now, &mut **inner, stats) {
            inner.flush(now);
            self.show_waiting();
        }
        let ticked = self.inner.tick(now);
        let due = ticked.due.into_iter().chain(self.line.next()).min();
        Ticked { soon: ticked.soon || self.line.is_refused(), due, ..ticked }
    }

    /// When the first of the frames on their way is due depends on the clock.
    fn needs(&self) -> Needs {
        if self.line.is_empty() { self.inner.needs() } else { Needs::Turn }
    }
}
