//! A program of the host, as the router sees one, and rings that it shares with the daemon.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_port::shared_ring::{RingProcess, SharedMap};
use vmlane_port::{Budget, End, Side, StreamEnd, StreamId};
use vmlane_vsock::{Call, ConnectError, Endpoint, Failed, Remote};
use vmlane_wire::host::layout;

/// Notes what it is notified of.
#[derive(Default)]
pub struct Host {
    pub calls: Mutex<Vec<Call>>,
    pub given_up: Mutex<Vec<Call>>,
    pub joined: Mutex<Option<(StreamId, Side)>>,
    pub failed: Mutex<Vec<Failed>>,
}

impl Endpoint for Host {
    fn requested(&self, call: Call, _: Option<u64>) -> Result<(), ConnectError> {
        self.calls.lock().push(call);
        Ok(())
    }

    fn given_up(&self, call: Call) {
        self.given_up.lock().push(call);
    }
}

impl Remote for Host {
    fn joined(&self, _: Call, stream: StreamId, side: Side) {
        *self.joined.lock() = Some((stream, side));
    }

    fn failed(&self, _: Call, why: Failed) {
        self.failed.lock().push(why);
    }
}

impl RingProcess for Host {
    fn wake(&self, _: bool) {}
    fn ended(&self, _: End) {}
    fn broke(&self) {}
}

/// The daemon's end of a new ring of `size` bytes, and the ring's file.
pub fn end(size: u64, waker: Arc<dyn RingProcess>) -> (StreamEnd, OwnedFd) {
    let fd = vmlane_mem::memfd("end", layout::file(size)).expect("a file");
    let map = SharedMap::new(fd.try_clone().expect("a descriptor"), size).expect("a mapping");
    let port = Box::new(map.port(waker).expect("a port"));
    (StreamEnd { port, budget: Arc::new(Budget::new(1 << 20)), slow: false, worker: None }, fd)
}
