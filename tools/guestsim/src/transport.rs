//! A guest's stream sockets and the driver that they share: what `vmci_transport.c` keeps.
//!
//! Lock order: one socket, then the driver; the table is never held while another lock is taken.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vmlane_wire::vmci::{FIRST_FREE_RESOURCE, Handle};
use vmlane_wire::vmci_stream::ControlPacket;

use super::driver::Driver;
use super::receive::Datagram;
use super::socket::{Backlog, Key, Socket};

/// How often a notice is sent again that the device refuses.
const RETRIES: usize = 10;

#[derive(Default)]
pub(super) struct Table {
    pub backlogs: HashMap<u32, Arc<Backlog>>,
    pub sockets: HashMap<Key, Arc<Socket>>,
    /// Datagrams that no part takes: they are neither control packets nor queue pair events.
    pub others: VecDeque<Datagram>,
}

/// The sockets of one guest, by connection, and the numbers that it gives out.
pub(super) struct Transport {
    cid: u32,
    pub driver: Mutex<Driver>,
    pub table: Mutex<Table>,
    next_port: AtomicU64,
    next_resource: AtomicU64,
}

impl Transport {
    pub fn new(driver: Driver) -> Transport {
        Transport {
            cid: driver.cid,
            driver: Mutex::new(driver),
            table: Mutex::default(),
            next_port: AtomicU64::new(u64::from(FIRST_FREE_RESOURCE)),
            next_resource: AtomicU64::new(u64::from(FIRST_FREE_RESOURCE)),
        }
    }

    pub fn free_port(&self) -> u32 {
        self.next_port.fetch_add(1, Ordering::Relaxed) as u32
    }

    pub fn free_handle(&self) -> Handle {
        Handle::new(self.cid, self.next_resource.fetch_add(1, Ordering::Relaxed) as u32)
    }

    /// Sends a control packet of one socket.
    pub fn send_control(&self, key: Key, packet: ControlPacket) -> i32 {
        let ((cid, port), own) = key;
        self.driver.lock().control(cid, packet.with_ports(own, port))
    }

    /// Sends the peer of a socket the notice that its notification protocol asks for, if any.
    pub fn notify(&self, socket: &Socket, packet: Option<ControlPacket>) {
        let Some(packet) = packet else { return };
        let sent = (0..RETRIES).any(|_| self.send_control(socket.key, packet) > 0);
        assert!(sent, "the device refused {:?} of a live connection", packet.kind());
    }
}
