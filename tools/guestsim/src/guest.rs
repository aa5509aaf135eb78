//! A guest as its threads share it: interrupts are handled by any thread that waits.
//!
//! Lock order: dispatch, then the order that `transport.rs` states.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::TIMEOUT;
use super::driver::Driver;
use super::lines::Lines;
use super::receive::Datagram;
use super::socket::SocketError;
use super::transport::Transport;

/// A guest with a loaded driver and stream sockets. Shared by the guest's threads.
pub struct Guest {
    pub cid: u32,
    lines: Arc<Lines>,
    pub(super) transport: Transport,
    dispatch: Mutex<()>,
    /// Nanoseconds a waiter spins before it sleeps.
    spin: AtomicU64,
}

impl Guest {
    pub fn new(driver: Driver) -> Arc<Guest> {
        Arc::new(Guest {
            cid: driver.cid,
            lines: driver.lines.clone(),
            transport: Transport::new(driver),
            dispatch: Mutex::new(()),
            spin: AtomicU64::new(5_000),
        })
    }

    /// How long a waiting thread spins for an interrupt before it sleeps.
    pub fn set_spin(&self, spin: Duration) {
        self.spin.store(spin.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Uses the driver directly.
    pub fn driver<T>(&self, action: impl FnOnce(&mut Driver) -> T) -> T {
        action(&mut self.transport.driver.lock())
    }

    /// Handles a pending interrupt. True if there was one.
    pub fn service(&self) -> bool {
        if !self.lines.pending(0) {
            return false;
        }
        let dispatching = self.dispatch.lock();
        let batch = self.transport.driver.lock().service();
        for datagram in batch {
            self.transport.dispatch(datagram);
        }
        drop(dispatching);
        self.lines.ring();
        true
    }

    /// Handles interrupts until `done` holds.
    pub fn wait_until(&self, what: &'static str, mut done: impl FnMut() -> bool) -> Result<(), SocketError> {
        let deadline = Instant::now() + TIMEOUT;
        let spin = Duration::from_nanos(self.spin.load(Ordering::Relaxed));
        loop {
            let ticket = self.lines.ticket();
            if done() {
                return Ok(());
            }
            if !self.service() && !self.lines.wait(ticket, spin, deadline) {
                return Err(SocketError::TimedOut(what));
            }
        }
    }

    /// A datagram that no stream socket takes.
    pub fn next_datagram(&self) -> Result<Datagram, SocketError> {
        let mut found = None;
        self.wait_until("a datagram", || {
            found = found.take().or_else(|| self.transport.table.lock().others.pop_front());
            found.is_some()
        })?;
        found.ok_or(SocketError::Closed)
    }
}
