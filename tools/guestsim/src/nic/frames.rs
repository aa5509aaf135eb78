//! A switch of one port, without a thread: the test holds its end and moves frames by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vmlane_port::{FramePort, Frames, PortId, PortStats};

/// The port that machines of tests are connected to.
pub const PORT: PortId = PortId(7);

/// What a device asked for, and the end it attached.
#[derive(Default)]
pub struct InlineFrames {
    end: Mutex<Option<Box<dyn FramePort>>>,
    pub stats: Arc<PortStats>,
    attached: AtomicU64,
    detached: AtomicU64,
    refreshed: AtomicU64,
    kicked: AtomicU64,
}

impl InlineFrames {
    /// Runs `act` on the attached end. None: nothing is attached.
    pub fn with<T>(&self, act: impl FnOnce(&mut dyn FramePort) -> T) -> Option<T> {
        self.end.lock().as_mut().map(|end| act(end.as_mut()))
    }

    pub fn is_attached(&self) -> bool {
        self.end.lock().is_some()
    }

    /// Calls of `attach` so far, of `detach`, of `refresh`, of `kick`.
    pub fn calls(&self) -> [u64; 4] {
        [&self.attached, &self.detached, &self.refreshed, &self.kicked]
            .map(|count| count.load(Ordering::SeqCst))
    }
}

impl Frames for InlineFrames {
    fn attach(&self, port: PortId, end: Box<dyn FramePort>) {
        assert_eq!(port, PORT);
        self.attached.fetch_add(1, Ordering::SeqCst);
        *self.end.lock() = Some(end);
    }

    fn detach(&self, port: PortId) {
        assert_eq!(port, PORT);
        self.detached.fetch_add(1, Ordering::SeqCst);
        *self.end.lock() = None;
    }

    fn refresh(&self, port: PortId) {
        assert_eq!(port, PORT);
        self.refreshed.fetch_add(1, Ordering::SeqCst);
        self.with(|end| end.refresh());
    }

    fn kick(&self, port: PortId) {
        assert_eq!(port, PORT);
        self.kicked.fetch_add(1, Ordering::SeqCst);
    }

    fn announce(&self, port: PortId) {
        assert_eq!(port, PORT);
    }

    fn stats(&self, _port: PortId) -> Arc<PortStats> {
        self.stats.clone()
    }
}
