//! A frame port that fails on request, or lies behind a bad line, whatever device it is of.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use vmlane_port::wrap::{Fault, FrameWrapper};
use vmlane_port::{FramePort, Frames, Needs, PortId, PortStats, Refused, RxFrame, Ticked};

use crate::line::{Impairment, Line};
use crate::trigger::Trigger;

/// The switch as one device sees it: what the device attaches is wrapped on its way.
pub struct FaultyFrames {
    inner: Arc<dyn Frames>,
    trigger: Arc<Trigger>,
    state: Mutex<State>,
    next: Arc<NextLine>,
}

#[derive(Default)]
struct State {
    attached: Option<PortId>,
    impairment: Impairment,
}

/// The line that a port takes up at its next refresh, if it is to have another one or none.
#[derive(Default)]
struct NextLine(Mutex<Option<Option<Line>>>);

impl NextLine {
    fn set(&self, line: Option<Line>) {
        *self.0.lock() = Some(line);
    }

    fn take(&self) -> Option<Option<Line>> {
        self.0.lock().take()
    }
}

fn line(impairment: Impairment) -> io::Result<Option<Line>> {
    (!impairment.is_none()).then(|| Line::new(impairment)).transpose()
}

impl FaultyFrames {
    /// Nothing fails until [`FaultyFrames::arm`] or [`FaultyFrames::impair`] says so.
    pub fn new(inner: Arc<dyn Frames>) -> FaultyFrames {
        FaultyFrames { inner, trigger: Arc::default(), state: Mutex::default(), next: Arc::default() }
    }

    /// The worker's next look at the port goes wrong. False if nothing is attached.
    pub fn arm(&self, fault: Fault) -> bool {
        let attached = self.state.lock().attached.is_some();
        if attached {
            self.trigger.arm(fault);
        }
        attached
    }

    /// What happens from here on to frames on their way to the port, now and whenever one is attached. The
    /// default ends it. Fails if there is no memory for frames that are held.
    pub fn impair(&self, impairment: Impairment) -> io::Result<()> {
        let line = line(impairment)?;
        let mut state = self.state.lock();
        state.impairment = impairment;
        if let Some(port) = state.attached {
            self.next.set(line);
            self.inner.refresh(port);
        }
        Ok(())
    }
}

impl Frames for FaultyFrames {
    fn attach(&self, port: PortId, end: Box<dyn FramePort>) {
        let mut state = self.state.lock();
        // Without memory for a line the port works as it should.
        let line = line(state.impairment).ok().flatten();
        let (trigger, next, stats) = (self.trigger.clone(), self.next.clone(), self.inner.stats(port));
        drop(next.take());
        self.inner.attach(port, Box::new(FaultyPort { inner: end, trigger, line, next, stats }));
        state.attached = Some(port);
    }

    fn detach(&self, port: PortId) {
        let mut state = self.state.lock();
        state.attached = None;
        self.inner.detach(port);
    }

    fn refresh(&self, port: PortId) {
        self.inner.refresh(port);
    }

    fn kick(&self, port: PortId) {
        self.inner.kick(port);
    }

    fn announce(&self, port: PortId) {
        self.inner.announce(port);
    }

    fn stats(&self, port: PortId) -> Arc<PortStats> {
        self.inner.stats(port)
    }
}

struct FaultyPort {
    inner: Box<dyn FramePort>,
    trigger: Arc<Trigger>,
    line: Option<Line>,
    next: Arc<NextLine>,
    stats: Arc<PortStats>,
}

impl FrameWrapper for FaultyPort {
    fn inner(&self) -> &dyn FramePort {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn FramePort {
        &mut *self.inner
    }

    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        let Some(line) = &mut self.line else { return self.inner.deliver(frames) };
        let now = Instant::now();
        for (at, frame) in frames.iter().enumerate() {
            let offered = line.offer(&mut *self.inner, frame, now, &self.stats);
            line.release(&mut *self.inner, now, &self.stats);
            offered.map_err(|reason| Refused { at, reason })?;
        }
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        self.line.as_ref().is_none_or(Line::has_room) && self.inner.has_room()
    }

    fn tick(&mut self, now: Instant) -> Ticked {
        self.trigger.fire();
        let mut holds = false;
        if let Some(line) = &mut self.line {
            if line.release(&mut *self.inner, now, &self.stats) {
                self.inner.flush(now);
            }
            holds = line.holds_frames();
        }
        let ticked = self.inner.tick(now);
        Ticked { soon: ticked.soon || holds, ..ticked }
    }

    fn refresh(&mut self) {
        self.inner.refresh();
        if let Some(next) = self.next.take()
            && let Some(line) = std::mem::replace(&mut self.line, next)
        {
            line.end(&mut *self.inner, &self.stats);
            self.inner.flush(Instant::now());
        }
    }

    fn needs(&self) -> Needs {
        let holds = self.line.as_ref().is_some_and(Line::holds_frames);
        if holds { Needs::Turn } else { self.inner.needs() }
    }
}
