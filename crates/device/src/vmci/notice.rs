//! Notices: control packets about bytes and room. Of each kind at most one waits per end of a connection, so
//! an inbox never refuses one.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use vmlane_port::queue_pair::Notice;
use vmlane_wire::vmci::{DATAGRAM_HEADER, DatagramHeader, Handle};
use vmlane_wire::vmci_stream::{CONTROL_PACKET, CONTROL_RESOURCE, ControlPacket, PacketType};
use zerocopy::IntoBytes;

use super::stats::VmciStats;

/// Bytes of a notice as a datagram.
pub const NOTICE_LEN: usize = DATAGRAM_HEADER + CONTROL_PACKET;

/// Address of one guest's end of a connection, as this guest knows it.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub cid: u32,
    pub port: u32,
    pub peer_cid: u32,
    pub peer_port: u32,
}

impl Address {
    /// The header of a control packet to this end, in its peer's name.
    pub fn header(&self) -> DatagramHeader {
        DatagramHeader::new(
            Handle::new(self.cid, CONTROL_RESOURCE),
            Handle::new(self.peer_cid, CONTROL_RESOURCE),
            CONTROL_PACKET,
        )
    }

    /// The control packet itself.
    pub fn packet(&self, kind: PacketType) -> ControlPacket {
        ControlPacket::new(kind, self.peer_port, self.port)
    }
}

/// The notices of one guest's end of a connection: which wait in its inbox, and what they carry when they
/// leave it.
pub struct Notices {
    /// `None` for a queue pair outside any vSockets connection: it has no notices.
    address: Option<Address>,
    /// Bits of [`Notice`] that wait in the inbox.
    queued: AtomicU8,
    closed: AtomicBool,
    /// What the device waits for: generation and offset, for WAITING_READ and WAITING_WRITE.
    read: AtomicU64,
    write: AtomicU64,
}

impl Notices {
    pub fn new(address: Option<Address>) -> Notices {
        Notices {
            address,
            queued: AtomicU8::new(0),
            closed: AtomicBool::new(false),
            read: AtomicU64::new(0),
            write: AtomicU64::new(0),
        }
    }

    pub fn address(&self) -> Option<&Address> {
        self.address.as_ref()
    }

    /// A notice can still reach its guest.
    pub fn is_open(&self) -> bool {
        self.address.is_some() && !self.closed.load(Ordering::Relaxed)
    }

    /// Those that wait are dropped when their turn comes.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// True if none of its kind waits: the caller puts it into the inbox.
    pub fn claim(&self, notice: Notice) -> bool {
        let bit = notice as u8;
        self.queued.fetch_or(bit, Ordering::SeqCst) & bit == 0
    }

    /// The device waits for `offset` in the ring: carried by the next notice of this kind, if it is one of
    /// those.
    pub fn set_waiting(&self, notice: Notice, generation: u64, offset: u64) {
        let what = generation << 32 | offset;
        match notice {
            Notice::WaitingRead => self.read.store(what, Ordering::Relaxed),
            Notice::WaitingWrite => self.write.store(what, Ordering::Relaxed),
            Notice::Wrote | Notice::Read => {}
        }
    }

    /// The packet for a notice that leaves the inbox now; `None` if the connection has ended.
    pub fn take(&self, notice: Notice, stats: &VmciStats) -> Option<[u8; NOTICE_LEN]> {
        // Cleared before the guest can see the packet: what is due from here on is queued anew.
        self.queued.fetch_and(!(notice as u8), Ordering::SeqCst);
        let address = self.address.as_ref().filter(|_| self.is_open())?;
        let waiting = |kind, what: &AtomicU64| {
            let what = what.load(Ordering::Relaxed);
            address.packet(kind).with_waiting(what >> 32, what & 0xffff_ffff)
        };
        let packet = match notice {
            Notice::Wrote => {
                stats.wrote_received.inc();
                address.packet(PacketType::Wrote)
            }
            Notice::Read => {
                stats.read_received.inc();
                address.packet(PacketType::Read)
            }
            Notice::WaitingRead => waiting(PacketType::WaitingRead, &self.read),
            Notice::WaitingWrite => waiting(PacketType::WaitingWrite, &self.write),
        };
        let mut bytes = [0; NOTICE_LEN];
        let (header, body) = bytes.split_at_mut(DATAGRAM_HEADER);
        header.copy_from_slice(address.header().as_bytes());
        body.copy_from_slice(packet.as_bytes());
        Some(bytes)
    }
}
