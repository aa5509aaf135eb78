//! Captures of datagrams: taps that inspect them while they are sent.
//!
//! A sender takes a [`Watch`] before it delivers a datagram and reports to it afterwards, with no lock held
//! in between. A tap is removed when the last watch is dropped that may know of it, so nothing is recorded
//! later.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;
use vmlane_port::StreamAddress;
use vmlane_port::wrap::{StreamTap, wall_clock};

use crate::address::SocketAddress;

/// The taps of a moment.
struct Taps {
    taps: Vec<Arc<dyn StreamTap>>,
    /// Its other end is notified when these are used no more.
    _in_use: SyncSender<Infallible>,
}

impl Taps {
    fn new(taps: Vec<Arc<dyn StreamTap>>) -> (Arc<Taps>, Receiver<Infallible>) {
        let (sender, unused) = sync_channel(0);
        (Arc::new(Taps { taps, _in_use: sender }), unused)
    }
}

/// A tap that inspects a datagram that is being delivered.
#[must_use]
pub struct Watch {
    taps: Arc<Taps>,
    time: u64,
}

impl Watch {
    /// It was delivered. Its time is that of [`crate::Router::watch_datagram`], so an answer is never older.
    pub fn delivered(self, from: SocketAddress, to: SocketAddress, payload: &[u8]) {
        let address = StreamAddress { cid: from.0, port: from.1, peer_cid: to.0, peer_port: to.1 };
        self.taps.taps.iter().for_each(|tap| tap.datagram(address, payload, self.time));
    }
}

/// Taps, and how they change.
pub(crate) struct DatagramTaps {
    /// There are any. All that is asked where there is no capture.
    any: AtomicBool,
    current: Mutex<Arc<Taps>>,
    /// Of the current ones. Held throughout a change, so that none begins before the taps of the one before
    /// are unused.
    change: Mutex<Receiver<Infallible>>,
}

impl Default for DatagramTaps {
    fn default() -> DatagramTaps {
        let (taps, unused) = Taps::new(Vec::new());
        DatagramTaps { any: AtomicBool::new(false), current: Mutex::new(taps), change: Mutex::new(unused) }
    }
}

impl DatagramTaps {
    pub fn watch(&self) -> Option<Watch> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        Some(Watch { taps: self.current.lock().clone(), time: wall_clock() })
    }

    /// Blocks until no thread uses taps that `change` has removed.
    pub fn change(&self, change: impl FnOnce(&mut Vec<Arc<dyn StreamTap>>)) {
        let mut watched = self.change.lock();
        let mut taps = self.current.lock().taps.clone();
        change(&mut taps);
        self.any.store(!taps.is_empty(), Ordering::Release);
        let (taps, unused) = Taps::new(taps);
        let before = std::mem::replace(&mut *self.current.lock(), taps);
        let before_unused = std::mem::replace(&mut *watched, unused);
        drop(before);
        // Nothing is ever sent: this ends with the last sender, which the last watch drops.
        let _ = before_unused.recv();
    }
}
