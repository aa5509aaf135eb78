//! Control packets that the device makes itself for one guest's end of one stream connection.
//!
//! The device is each guest's peer in the notification protocol: it consumes what the guests send
//! and sends its own, with the address of the peer that the guest knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_port::End;
use vmlane_state::Journal;
use vmlane_wire::vmci::{DATAGRAM_HEADER, DatagramHeader, Handle, QueuePairEvent, datagram, event};
use vmlane_wire::vmci_stream::{
    CONTROL_PACKET, CONTROL_RESOURCE, ControlPacket, PacketType, SHUTDOWN_RECEIVE, SHUTDOWN_SEND,
};
use zerocopy::IntoBytes;

use super::inbox::Inbox;
use super::record;

/// Bytes of a notice as a datagram.
pub const NOTICE_LEN: usize = DATAGRAM_HEADER + CONTROL_PACKET;

/// How long the first notice (or end) to a connecting guest waits after ATTACH: Linux handles packets of one
/// socket in work items that may run out of order, and resets a connection on any other packet before ATTACH.
const AFTER_ATTACH: Duration = Duration::from_millis(1);

/// Packets of which one per connection waits at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Notice {
    Wrote = 1,
    Read = 2,
    WaitingRead = 4,
    WaitingWrite = 8,
}

/// Bit beside those of [`Notice`]: ends are held back.
const ENDS: u8 = 0x80;

/// How the two ends of a connection tell each other of bytes and room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Inferred from the indices: empty to non-empty, full to non-full.
    Qstate,
    /// Announced: an end that is about to wait says so first.
    Pkt,
}

/// Address of one guest's end of a connection, as this guest knows it.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub cid: u32,
    pub port: u32,
    pub peer_cid: u32,
    pub peer_port: u32,
}

/// Which end of which queue pair it is, as records name them.
#[derive(Clone, Debug, Default)]
pub struct Place {
    pub log: Option<Arc<Journal>>,
    pub serial: u64,
    pub side: u64,
}

/// When the guest may get its first notice.
#[derive(Clone, Copy, Debug)]
enum Hold {
    None,
    UntilAttach,
    Until(Instant),
}

/// Tells one guest's end of a connection what its peer, the device, has to say. It has more than 16 fields because
/// they name one end and what is still owed to it: no part of them is used without the others.
pub struct Notifier {
    inbox: Arc<Inbox>,
    /// Its pair and end, for the next daemon.
    place: Place,
    /// `None` for a queue pair outside any vSockets connection: events only.
    address: Option<Address>,
    /// The guest's own context id.
    cid: u32,
    handle: Handle,
    peer_cid: u32,
    protocol: Protocol,
    /// Bits of [`Notice`] that wait in the inbox.
    queued: AtomicU8,
    /// Ends already told, one bit each; and those of them that are recorded as such.
    told: AtomicU8,
    recorded: AtomicU8,
    closed: AtomicBool,
    hold: Mutex<Hold>,
    /// False once `hold` is over for good: the common case, looked at without the lock.
    holding: AtomicBool,
    /// Bits of [`Notice`] that are owed but held back, and [`ENDS`].
    deferred: AtomicU8,
    deferred_ends: Mutex<Vec<End>>,
    /// The guest announced that it waits for bytes (older protocol).
    pub guest_waits_for_bytes: AtomicBool,
    /// The guest announced that it waits for room (older protocol).
    pub guest_waits_for_room: AtomicBool,
    waiting: [AtomicU64; 2],
}

impl Notifier {
    /// `address`: the guest's end of the connection, if the pair belongs to one. `handle` and
    /// `peer_cid`: the pair, and whose detaching the guest is to be told of. `hold`: the guest is the
    /// connecting side, its ATTACH is still to come.
    pub fn new(
        inbox: Arc<Inbox>,
        cid: u32,
        address: Option<Address>,
        (handle, peer_cid): (Handle, u32),
        protocol: Protocol,
        hold: bool,
        place: Place,
    ) -> Arc<Notifier> {
        Arc::new(Notifier {
            inbox,
            place,
            recorded: AtomicU8::new(0),
            address,
            cid,
            handle,
            peer_cid,
            protocol,
            queued: AtomicU8::new(0),
            told: AtomicU8::new(0),
            closed: AtomicBool::new(false),
            hold: Mutex::new(if hold { Hold::UntilAttach } else { Hold::None }),
            holding: AtomicBool::new(hold),
            deferred: AtomicU8::new(0),
            deferred_ends: Mutex::default(),
            guest_waits_for_bytes: AtomicBool::new(false),
            guest_waits_for_room: AtomicBool::new(false),
            waiting: Default::default(),
        })
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// False for queue pairs that no vSockets connection announces anything for.
    pub fn connected(&self) -> bool {
        self.address.is_some()
    }

    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Queues a notice unless one of its kind waits.
    pub fn owe(self: &Arc<Self>, notice: Notice) {
        if self.address.is_none() || self.closed.load(Ordering::Relaxed) {
            return;
        }
        let bit = notice as u8;
        if self.held() {
            self.deferred.fetch_or(bit, Ordering::Relaxed);
            return;
        }
        if self.queued.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
            self.inbox.push_notice(self.clone(), notice);
        }
    }

    fn held(&self) -> bool {
        if !self.holding.load(Ordering::Relaxed) {
            return false;
        }
        let mut hold = self.hold.lock();
        match *hold {
            Hold::None => false,
            Hold::UntilAttach => true,
            Hold::Until(time) if Instant::now() < time => true,
            Hold::Until(_) => {
                *hold = Hold::None;
                self.holding.store(false, Ordering::Relaxed);
                false
            }
        }
    }

    /// ATTACH has been forwarded to this guest.
    pub fn attached(&self) {
        let mut hold = self.hold.lock();
        if matches!(*hold, Hold::UntilAttach) {
            *hold = Hold::Until(Instant::now() + AFTER_ATTACH);
        }
    }

    /// Sends what was held back if it may go now. True while it may not: the stream must not sleep.
    pub fn deferring(self: &Arc<Self>) -> bool {
        // Before ATTACH nothing can go, however long the server takes: the ATTACH wakes the stream.
        if self.deferred.load(Ordering::Relaxed) == 0 || matches!(*self.hold.lock(), Hold::UntilAttach) {
            return false;
        }
        if self.held() {
            return true;
        }
        let deferred = self.deferred.swap(0, Ordering::Relaxed);
        for notice in [Notice::Wrote, Notice::Read, Notice::WaitingRead, Notice::WaitingWrite] {
            if deferred & notice as u8 != 0 {
                self.owe(notice);
            }
        }
        self.tell_deferred();
        false
    }

    /// The server has gone or refused: if its ATTACH has not come by now, it never will.
    fn abandon_attach(&self) {
        let mut hold = self.hold.lock();
        if matches!(*hold, Hold::UntilAttach) {
            *hold = Hold::None;
            self.holding.store(false, Ordering::Relaxed);
            drop(hold);
            self.deferred.store(0, Ordering::Relaxed);
            self.tell_deferred();
        }
    }

    fn tell_deferred(&self) {
        for end in std::mem::take(&mut *self.deferred_ends.lock()) {
            self.tell(end);
        }
    }

    /// What the device waits for, for the next WAITING_READ (0) or WAITING_WRITE (1).
    pub fn set_waiting(&self, which: usize, generation: u64, offset: u64) {
        self.waiting[which].store(generation << 32 | offset, Ordering::Relaxed);
    }

    /// The packet for a notice that leaves the inbox now; `None` if the connection has ended.
    pub fn take(&self, notice: Notice) -> Option<[u8; NOTICE_LEN]> {
        // Cleared before the guest can see the packet: what is owed from here on is queued anew.
        self.queued.fetch_and(!(notice as u8), Ordering::SeqCst);
        let address = self.address.filter(|_| !self.closed.load(Ordering::Relaxed))?;
        let stats = &self.inbox.stats;
        let packet = |kind| ControlPacket::new(kind, address.peer_port, address.port);
        let waiting = |which: usize| {
            let value = self.waiting[which].load(Ordering::Relaxed);
            (value >> 32, value & 0xffff_ffff)
        };
        let packet = match notice {
            Notice::Wrote => {
                stats.wrote_received.inc();
                packet(PacketType::Wrote)
            }
            Notice::Read => {
                stats.read_received.inc();
                packet(PacketType::Read)
            }
            Notice::WaitingRead => {
                let (generation, offset) = waiting(0);
                packet(PacketType::WaitingRead).with_waiting(generation, offset)
            }
            Notice::WaitingWrite => {
                let (generation, offset) = waiting(1);
                packet(PacketType::WaitingWrite).with_waiting(generation, offset)
            }
        };
        let mut bytes = [0; NOTICE_LEN];
        let header = control_header(&address);
        bytes[..DATAGRAM_HEADER].copy_from_slice(header.as_bytes());
        bytes[DATAGRAM_HEADER..].copy_from_slice(packet.as_bytes());
        Some(bytes)
    }

    /// Tells the guest how its stream ends; each end once.
    pub fn end(&self, end: End) {
        let bit = 1 << end as u8;
        if self.told.fetch_or(bit, Ordering::SeqCst) & bit != 0 {
            return;
        }
        if matches!(end, End::Detached | End::Reset) {
            self.abandon_attach();
        }
        if self.held() {
            self.deferred_ends.lock().push(end);
            self.deferred.fetch_or(ENDS, Ordering::Relaxed);
            return;
        }
        self.tell(end);
    }

    /// A previous daemon had told these ends.
    pub fn restore_told(&self, bits: u8) {
        self.told.store(bits, Ordering::SeqCst);
        self.recorded.store(bits, Ordering::SeqCst);
    }

    /// Where the guest reads `bytes` that its peer has left, from index `tail` on.
    pub fn keep(&self, tail: u64, bytes: &[u8]) {
        if let Some(log) = &self.place.log {
            log.write((record::SPILL, self.place.serial, self.place.side), &record::spill(tail, bytes));
        }
    }

    fn queue(&self, end: End, bytes: Box<[u8]>) {
        let bits = self.recorded.fetch_or(1 << end as u8, Ordering::SeqCst) | 1 << end as u8;
        self.inbox.push_told(bytes, ((record::TOLD, self.place.serial, self.place.side), &[bits]));
    }

    fn tell(&self, end: End) {
        if end == End::Detached {
            let event = QueuePairEvent::new(event::QP_PEER_DETACH, self.handle, self.peer_cid);
            let dst = Handle::new(self.cid, vmlane_wire::vmci::EVENT_RESOURCE);
            self.queue(end, datagram(dst, Handle::new(0, 0), event.as_bytes()).into());
            return;
        }
        let Some(address) = self.address else { return };
        let packet = |kind| ControlPacket::new(kind, address.peer_port, address.port);
        let packet = match end {
            End::Finished => packet(PacketType::Shutdown).with_mode(SHUTDOWN_SEND),
            End::Refused => packet(PacketType::Shutdown).with_mode(SHUTDOWN_RECEIVE),
            End::Reset | End::Detached => packet(PacketType::Rst),
        };
        let mut bytes = control_header(&address).as_bytes().to_vec();
        bytes.extend_from_slice(packet.as_bytes());
        self.queue(end, bytes.into());
    }

    /// The engine has let go of this end: after what was held back, nothing more is said.
    pub fn close(&self) {
        self.tell_deferred();
        self.closed.store(true, Ordering::Relaxed);
    }
}

fn control_header(address: &Address) -> DatagramHeader {
    DatagramHeader::new(
        Handle::new(address.cid, CONTROL_RESOURCE),
        Handle::new(address.peer_cid, CONTROL_RESOURCE),
        CONTROL_PACKET,
    )
}
