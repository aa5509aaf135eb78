//! A guest's socket layer: one driver, many sockets, packets dispatched to them.
//!
//! Any thread of the guest that waits handles interrupts meanwhile. Lock order: dispatch, then one
//! socket, then the driver; the table is never held while another lock is taken.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_wire::vmci::{FIRST_FREE_RESOURCE, Handle, event};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};
use zerocopy::FromBytes;

use super::PATIENCE;
use super::driver::Driver;
use super::handshake::Backlog;
use super::lines::Lines;
use super::receive::Datagram;
use super::socket::{Socket, SocketError};

/// Peer's (CID, port), own port.
pub(super) type Key = ((u32, u32), u32);

#[derive(Default)]
pub(super) struct Table {
    pub backlogs: HashMap<u32, Arc<Backlog>>,
    pub sockets: HashMap<Key, Arc<Socket>>,
    /// Datagrams that no part takes: they are neither control packets nor queue pair events.
    others: VecDeque<Datagram>,
}

/// A guest with a loaded driver and stream sockets. Shared by the guest's threads.
pub struct Guest {
    pub cid: u32,
    pub(super) lines: Arc<Lines>,
    pub(super) driver: Mutex<Driver>,
    dispatch: Mutex<()>,
    pub(super) table: Mutex<Table>,
    next_port: AtomicU64,
    next_resource: AtomicU64,
    /// Nanoseconds a waiter spins before it sleeps.
    spin: AtomicU64,
}

impl Guest {
    pub fn new(driver: Driver) -> Arc<Guest> {
        Arc::new(Guest {
            cid: driver.cid,
            lines: driver.lines.clone(),
            driver: Mutex::new(driver),
            dispatch: Mutex::new(()),
            table: Mutex::default(),
            next_port: AtomicU64::new(u64::from(FIRST_FREE_RESOURCE)),
            next_resource: AtomicU64::new(u64::from(FIRST_FREE_RESOURCE)),
            spin: AtomicU64::new(5_000),
        })
    }

    /// How long a waiting thread spins for an interrupt before it sleeps.
    pub fn set_spin(&self, spin: Duration) {
        self.spin.store(spin.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Uses the driver directly.
    pub fn driver<T>(&self, action: impl FnOnce(&mut Driver) -> T) -> T {
        action(&mut self.driver.lock())
    }

    pub(super) fn free_port(&self) -> u32 {
        self.next_port.fetch_add(1, Ordering::Relaxed) as u32
    }

    pub(super) fn free_handle(&self) -> Handle {
        Handle::new(self.cid, self.next_resource.fetch_add(1, Ordering::Relaxed) as u32)
    }

    /// Sends a control packet of one socket.
    pub(super) fn send_control(&self, key: Key, packet: ControlPacket) -> i32 {
        let ((cid, port), own) = key;
        self.driver.lock().control(cid, packet.with_ports(own, port))
    }

    /// Handles a pending interrupt. True if there was one.
    pub fn service(&self) -> bool {
        if !self.lines.pending(0) {
            return false;
        }
        let dispatching = self.dispatch.lock();
        let batch = self.driver.lock().service();
        for datagram in batch {
            self.dispatch(datagram);
        }
        drop(dispatching);
        self.lines.ring();
        true
    }

    /// Handles interrupts until `done` holds.
    pub fn wait_until(&self, what: &'static str, mut done: impl FnMut() -> bool) -> Result<(), SocketError> {
        let deadline = Instant::now() + PATIENCE;
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
            found = found.take().or_else(|| self.table.lock().others.pop_front());
            found.is_some()
        })?;
        found.ok_or(SocketError::Closed)
    }

    fn dispatch(&self, datagram: Datagram) {
        if let Some(packet) = datagram.control() {
            return self.dispatch_control(datagram.src.context, packet);
        }
        match datagram.event() {
            Some(event::QP_PEER_DETACH) => {
                let handle = Handle::new(word(&datagram.payload, 8), word(&datagram.payload, 12));
                let sockets: Vec<_> = self.table.lock().sockets.values().cloned().collect();
                sockets.iter().for_each(|socket| socket.peer_detached(handle));
            }
            Some(event::QP_PEER_ATTACH) => {}
            _ => self.table.lock().others.push_back(datagram),
        }
    }

    /// Linux's order: a socket of exactly this connection, then a listener, then RST.
    fn dispatch_control(&self, cid: u32, packet: ControlPacket) {
        let key = ((cid, packet.src_port()), packet.dst_port());
        let table = self.table.lock();
        let socket = table.sockets.get(&key).cloned();
        let backlog = table.backlogs.get(&packet.dst_port()).cloned();
        drop(table);
        let request = matches!(packet.kind(), Some(PacketType::Request | PacketType::Request2));
        match (socket, backlog) {
            (Some(socket), _) => self.socket_packet(&socket, packet),
            (None, Some(backlog)) if request => self.request_arrived(&backlog, key, packet),
            _ if packet.kind() == Some(PacketType::Rst) => {}
            _ => {
                self.send_control(key, ControlPacket::new(PacketType::Rst, 0, 0));
            }
        }
    }
}

fn word(payload: &[u8], at: usize) -> u32 {
    let raw = payload.get(at..).map(zerocopy::little_endian::U32::read_from_prefix);
    raw.and_then(Result::ok).map_or(0, |(word, _)| word.get())
}
