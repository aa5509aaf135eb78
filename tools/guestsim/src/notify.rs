//! When a stream socket notifies its peer of bytes and room. Sources: `vmci_transport_notify_qstate.c`
//! (the ring's state shows who may sleep), `vmci_transport_notify.c` (who sleeps has announced it).
//!
//! Called with the socket locked; each call names the packet to send, if any.

use std::sync::atomic::{Ordering, fence};

use vmlane_wire::vmci_stream::{ControlPacket, PacketType};

use vmlane_port::queue_pair::Protocol;

use super::queues::Queues;
use super::ram::PAGE;

/// What a packet is besides its ports.
type Packet = Option<ControlPacket>;

/// One socket's state of either protocol.
#[derive(Clone, Debug)]
pub struct Notify {
    pub protocol: Protocol,
    window: u64,
    min_window: u64,
    /// The peer may wait for room.
    peer_waits_for_room: bool,
    detected: bool,
    on_block: bool,
    /// Older protocol: the peer waits for bytes; what this end has announced.
    peer_waits_for_bytes: bool,
    announced_waiting_read: bool,
    announced_waiting_write: bool,
}

fn packet(kind: PacketType) -> ControlPacket {
    ControlPacket::new(kind, 0, 0)
}

impl Notify {
    pub fn new(protocol: Protocol, consume_size: u64) -> Notify {
        Notify {
            protocol,
            window: consume_size,
            min_window: consume_size.min(PAGE as u64),
            peer_waits_for_room: false,
            detected: false,
            on_block: false,
            peer_waits_for_bytes: false,
            announced_waiting_read: false,
            announced_waiting_write: false,
        }
    }

    /// A receive that wants at least `target` bytes begins.
    pub fn receive_begins(&mut self, target: u64) {
        if self.min_window < target + 1 {
            self.min_window = target + 1;
            if self.window < self.min_window {
                self.window = self.min_window;
                self.on_block = true;
            }
        }
    }

    /// The reader is about to sleep on an empty ring.
    pub fn reader_blocks(&mut self, queues: &Queues, target: u64) -> Packet {
        self.widen(queues);
        if self.protocol == Protocol::Pkt {
            return self.announce_waiting_read(queues, target);
        }
        if std::mem::take(&mut self.on_block) { self.read_due(queues) } else { None }
    }

    /// A poll found less than it wants.
    pub fn poll_unsatisfied(&mut self, queues: &Queues, target: u64) -> Packet {
        self.widen(queues);
        if self.protocol == Protocol::Pkt { self.announce_waiting_read(queues, target) } else { None }
    }

    fn widen(&mut self, queues: &Queues) {
        self.window = (self.window + PAGE as u64).min(queues.consume_size);
    }

    fn announce_waiting_read(&mut self, queues: &Queues, target: u64) -> Packet {
        if std::mem::replace(&mut self.announced_waiting_read, true) {
            return None;
        }
        let (_, head) = queues.own_indices();
        let room = queues.consume_size - head;
        let (generation, offset) = if target >= room { (1, target - room) } else { (0, head + target) };
        Some(packet(PacketType::WaitingRead).with_waiting(generation, offset))
    }

    /// `len` bytes were read.
    pub fn after_dequeue(&mut self, queues: &Queues, len: usize) -> Packet {
        if self.protocol == Protocol::Qstate {
            fence(Ordering::SeqCst);
            self.peer_waits_for_room |= queues.unread_room() == len as u64;
        }
        self.read_due(queues)
    }

    /// The READ test: has the peer, if it waits, room enough to be woken for?
    fn read_due(&mut self, queues: &Queues) -> Packet {
        if !self.peer_waits_for_room {
            return None;
        }
        if !std::mem::replace(&mut self.detected, true) {
            self.window = self.window.saturating_sub(PAGE as u64).max(self.min_window);
        }
        if queues.unread_room() <= queues.consume_size - self.window {
            return None;
        }
        self.peer_waits_for_room = false;
        self.detected = false;
        Some(packet(PacketType::Read))
    }

    /// `len` bytes were written.
    pub fn after_enqueue(&mut self, queues: &Queues, len: usize) -> Packet {
        let due = match self.protocol {
            Protocol::Qstate => {
                fence(Ordering::SeqCst);
                queues.unsent() == len as u64
            }
            Protocol::Pkt => std::mem::take(&mut self.peer_waits_for_bytes),
        };
        due.then(|| packet(PacketType::Wrote))
    }

    /// The writer is about to sleep on a full ring.
    pub fn writer_blocks(&mut self, queues: &Queues) -> Packet {
        if self.protocol == Protocol::Qstate || std::mem::replace(&mut self.announced_waiting_write, true) {
            return None;
        }
        let (tail, _) = queues.own_indices();
        let room = queues.produce_size - tail;
        let (generation, offset) = if room <= 2 { (1, 2 - room) } else { (0, tail + 2) };
        Some(packet(PacketType::WaitingWrite).with_waiting(generation, offset))
    }

    /// A packet of the protocol has arrived. The answer to it, if any.
    pub fn arrived(&mut self, queues: &Queues, kind: PacketType) -> Packet {
        match kind {
            PacketType::Wrote => self.announced_waiting_read = false,
            PacketType::Read => self.announced_waiting_write = false,
            PacketType::WaitingRead if queues.unsent() > 0 => return Some(packet(PacketType::Wrote)),
            PacketType::WaitingRead => self.peer_waits_for_bytes = true,
            PacketType::WaitingWrite => {
                self.peer_waits_for_room = true;
                return self.read_due(queues);
            }
            _ => {}
        }
        None
    }
}
