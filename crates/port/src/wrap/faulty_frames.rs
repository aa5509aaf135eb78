//! A frame port that fails on request, whatever device is behind it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::trigger::{Fault, Trigger};
use crate::{
    Filter, FramePort, Frames, PortId, PortStats, Refused, RxCapabilities, RxFrame, Token, TxFrame, WakeUp,
};

/// The switch as one device sees it: what the device attaches is wrapped on its way.
pub struct FaultyFrames {
    inner: Arc<dyn Frames>,
    trigger: Arc<Trigger>,
    attached: AtomicBool,
}

impl FaultyFrames {
    /// Nothing fails until [`FaultyFrames::arm`] says so.
    pub fn new(inner: Arc<dyn Frames>) -> FaultyFrames {
        FaultyFrames { inner, trigger: Arc::default(), attached: AtomicBool::new(false) }
    }

    /// The worker's next look at the port goes wrong. False if nothing is attached.
    pub fn arm(&self, fault: Fault) -> bool {
        let attached = self.attached.load(Ordering::Acquire);
        if attached {
            self.trigger.arm(fault);
        }
        attached
    }
}

impl Frames for FaultyFrames {
    fn attach(&self, port: PortId, end: Box<dyn FramePort>) {
        self.inner.attach(port, Box::new(FaultyPort { inner: end, trigger: self.trigger.clone() }));
        self.attached.store(true, Ordering::Release);
    }

    fn detach(&self, port: PortId) {
        self.attached.store(false, Ordering::Release);
        self.inner.detach(port);
    }

    fn refresh(&self, port: PortId) {
        self.inner.refresh(port);
    }

    fn kick(&self, port: PortId) {
        self.inner.kick(port);
    }

    fn stats(&self, port: PortId) -> Arc<PortStats> {
        self.inner.stats(port)
    }
}

struct FaultyPort {
    inner: Box<dyn FramePort>,
    trigger: Arc<Trigger>,
}

impl FramePort for FaultyPort {
    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        self.inner.fetch(tokens)
    }

    fn frame(&self, token: Token) -> TxFrame<'_> {
        self.inner.frame(token)
    }

    fn finish(&mut self, tokens: &[Token]) {
        self.inner.finish(tokens);
    }

    fn capabilities(&self) -> RxCapabilities {
        self.inner.capabilities()
    }

    fn filter(&self) -> &Filter {
        self.inner.filter()
    }

    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        self.inner.deliver(frames)
    }

    fn has_room(&mut self) -> bool {
        self.inner.has_room()
    }

    fn flush(&mut self, now: Instant) {
        self.inner.flush(now);
    }

    fn tick(&mut self, now: Instant) -> bool {
        self.trigger.fire();
        self.inner.tick(now)
    }

    fn changed(&mut self) -> bool {
        self.inner.changed()
    }

    fn refresh(&mut self) {
        self.inner.refresh();
    }

    fn fail(&mut self) {
        self.inner.fail();
    }
}

impl WakeUp for FaultyPort {
    fn arm(&mut self) -> bool {
        self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.doorbell_fd()
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.readable_fd()
    }
}
