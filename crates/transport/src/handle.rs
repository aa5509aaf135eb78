//! A session as other threads see it: they end it, and find out that its memory is lost.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vmlane_access::Peer;

/// Ends a session from another thread.
#[derive(Clone)]
pub struct SessionHandle(Arc<Shared>);

struct Shared {
    stream: UnixStream,
    stopped: AtomicBool,
    memory: Arc<MemoryWatch>,
}

impl SessionHandle {
    pub(crate) fn new(stream: UnixStream) -> SessionHandle {
        SessionHandle(Arc::new(Shared { stream, stopped: AtomicBool::new(false), memory: Arc::default() }))
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.0.stream
    }

    /// The process at the other end, as the kernel noted it; none if this PID namespace does not show it.
    pub fn peer_pid(&self) -> Option<u32> {
        let peer = Peer::of(&self.0.stream).ok()?;
        u32::try_from(peer.pid).ok().filter(|pid| *pid != 0)
    }

    pub(crate) fn memory(&self) -> &Arc<MemoryWatch> {
        &self.0.memory
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Acquire)
    }

    /// Shuts the socket down; `run` returns soon after.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Release);
        self.end();
    }

    /// Ends the session if a file of its guest's memory turned out shorter than what was mapped of it: its
    /// VMM may never send another message. To be called when [`vmlane_mem::poisonings`] has changed.
    pub fn check_memory(&self) {
        if self.0.memory.is_lost() {
            self.end();
        }
    }

    fn end(&self) {
        // An error means that the peer was faster, which ends the session just as well.
        let _ = self.0.stream.shutdown(Shutdown::Both);
    }
}

/// Is the memory of a session lost?
type IsLost = Box<dyn Fn() -> bool + Send>;

/// What a session uses of its VMM's memory files.
#[derive(Default)]
pub(crate) struct MemoryWatch(Mutex<Option<IsLost>>);

impl MemoryWatch {
    /// What is in use from now on. It lives until it is replaced.
    pub fn set(&self, is_lost: impl Fn() -> bool + Send + 'static) {
        *self.0.lock() = Some(Box::new(is_lost));
    }

    pub fn clear(&self) {
        *self.0.lock() = None;
    }

    fn is_lost(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|is_lost| is_lost())
    }
}
