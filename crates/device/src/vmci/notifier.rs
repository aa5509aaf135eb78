//! Control packets that the device makes itself for one guest's end of one stream connection.
//!
//! The device is each guest's peer in the notification protocol: it consumes what the guests send
//! and sends its own, with the address of the peer that the guest knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_port::End;
use vmlane_port::queue_pair::{Notice, Protocol};
use vmlane_state::Journal;
use vmlane_wire::vmci::{EVENT_RESOURCE, Handle, QueuePairEvent, datagram, event};
use vmlane_wire::vmci_stream::{PacketType, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};
use zerocopy::IntoBytes;

use super::inbox::Inbox;
use super::notice::{Address, Notices};
use super::record;

/// How long the first notice (or end) to a connecting guest waits after the guest has taken ATTACH: Linux
/// handles packets of one socket in work items that may run out of order, and resets a connection on any
/// other packet before ATTACH.
const AFTER_ATTACH: Duration = Duration::from_millis(1);
/// How long it is waited for that the guest takes ATTACH: its vCPU may have to wait for a CPU. Some guests
/// take nothing that they are not looking for.
const TAKES_ATTACH: Duration = Duration::from_millis(20);

/// Bit beside those of [`Notice`]: ends are held back.
const ENDS: u8 = 0x80;

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
    /// Until the guest has taken so many items of its inbox ([`Inbox::queued`]), or that time has come.
    UntilTaken(u64, Instant),
    Until(Instant),
}

/// Notifies one guest's end of a connection of bytes, room and ends at its peer, the device.
pub struct Notifier {
    inbox: Arc<Inbox>,
    /// Its pair and end, for the next daemon.
    place: Place,
    /// The end's address is in there; a queue pair outside any vSockets connection has none, and events only.
    notices: Arc<Notices>,
    /// The guest's own context id.
    cid: u32,
    handle: Handle,
    peer_cid: u32,
    protocol: Protocol,
    /// Ends already notified of, one bit each; and those of them that are recorded as such.
    notified: AtomicU8,
    recorded: AtomicU8,
    hold: Mutex<Hold>,
    /// False once `hold` is over for good: the common case, examined without the lock.
    holding: AtomicBool,
    /// Bits of [`Notice`] that are due but deferred, and [`ENDS`].
    deferred: AtomicU8,
    deferred_ends: Mutex<Vec<End>>,
    /// The guest announced that it waits for bytes (older protocol).
    pub guest_waits_for_bytes: AtomicBool,
    /// The guest announced that it waits for room (older protocol).
    pub guest_waits_for_room: AtomicBool,
}

impl Notifier {
    /// `address`: the guest's end of the connection, if the pair belongs to one. `handle` and
    /// `peer_cid`: the pair, and whose detaching the guest is to be notified of. `hold`: the guest is the
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
            notices: Arc::new(Notices::new(address)),
            cid,
            handle,
            peer_cid,
            protocol,
            notified: AtomicU8::new(0),
            hold: Mutex::new(if hold { Hold::UntilAttach } else { Hold::None }),
            holding: AtomicBool::new(hold),
            deferred: AtomicU8::new(0),
            deferred_ends: Mutex::default(),
            guest_waits_for_bytes: AtomicBool::new(false),
            guest_waits_for_room: AtomicBool::new(false),
        })
    }

    /// The end's connection, if it belongs to one.
    pub fn address(&self) -> Option<Address> {
        self.notices.address().copied()
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// False for queue pairs that no vSockets connection announces anything for.
    pub fn connected(&self) -> bool {
        self.notices.address().is_some()
    }

    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Queues a notice unless one of its kind waits.
    pub fn notify(&self, notice: Notice) {
        if !self.notices.is_open() {
            return;
        }
        if self.held() {
            self.deferred.fetch_or(notice as u8, Ordering::Relaxed);
            return;
        }
        if self.notices.claim(notice) {
            self.inbox.push_notice(self.notices.clone(), notice);
        }
    }

    /// The device is about to wait until the guest has passed `index` (older protocol).
    pub fn wait_for(&self, notice: Notice, index: u64) {
        // Linux stores generation and offset and never examines them.
        self.notices.set_waiting(notice, 0, index);
        self.notify(notice);
    }

    fn held(&self) -> bool {
        if !self.holding.load(Ordering::Relaxed) {
            return false;
        }
        let mut hold = self.hold.lock();
        match *hold {
            Hold::None => false,
            Hold::UntilAttach => true,
            Hold::UntilTaken(items, limit) => {
                let now = Instant::now();
                if self.inbox.dequeued() >= items || now >= limit {
                    *hold = Hold::Until(now + AFTER_ATTACH);
                }
                true
            }
            Hold::Until(time) if Instant::now() < time => true,
            Hold::Until(_) => {
                *hold = Hold::None;
                self.holding.store(false, Ordering::Relaxed);
                false
            }
        }
    }

    /// ATTACH is in this guest's inbox.
    pub fn attached(&self) {
        let mut hold = self.hold.lock();
        if matches!(*hold, Hold::UntilAttach) {
            *hold = Hold::UntilTaken(self.inbox.queued(), Instant::now() + TAKES_ATTACH);
        }
    }

    /// Sends what was deferred if it may go now. True while it may not: the stream must not sleep.
    pub fn deferring(&self) -> bool {
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
                self.notify(notice);
            }
        }
        self.send_deferred();
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
            self.send_deferred();
        }
    }

    fn send_deferred(&self) {
        for end in std::mem::take(&mut *self.deferred_ends.lock()) {
            self.send(end);
        }
    }

    /// Notifies the guest of how its stream ends; each end once.
    pub fn end(&self, end: End) {
        let bit = 1 << end as u8;
        if self.notified.fetch_or(bit, Ordering::SeqCst) & bit != 0 {
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
        self.send(end);
    }

    /// A previous daemon had notified the guest of these ends.
    pub fn restore_notified(&self, bits: u8) {
        self.notified.store(bits, Ordering::SeqCst);
        self.recorded.store(bits, Ordering::SeqCst);
    }

    /// Where the guest reads `bytes` that its peer has left, from index `tail` on.
    pub fn keep(&self, tail: u64, bytes: &[u8]) {
        if let Some(log) = &self.place.log {
            log.write((record::OVERFLOW, self.place.serial, self.place.side), &record::overflow(tail, bytes));
        }
    }

    fn queue(&self, end: End, bytes: Box<[u8]>) {
        let bits = self.recorded.fetch_or(1 << end as u8, Ordering::SeqCst) | 1 << end as u8;
        self.inbox.push_with(bytes, ((record::NOTIFIED, self.place.serial, self.place.side), &[bits]));
    }

    fn send(&self, end: End) {
        if end == End::Detached {
            let event = QueuePairEvent::new(event::QP_PEER_DETACH, self.handle, self.peer_cid);
            let dst = Handle::new(self.cid, EVENT_RESOURCE);
            self.queue(end, datagram(dst, Handle::new(0, 0), event.as_bytes()).into());
            return;
        }
        let Some(address) = self.notices.address() else { return };
        let packet = match end {
            End::Finished => address.packet(PacketType::Shutdown).with_mode(SHUTDOWN_SEND),
            End::Refused => address.packet(PacketType::Shutdown).with_mode(SHUTDOWN_RECEIVE),
            End::Reset | End::Detached => address.packet(PacketType::Rst),
        };
        let mut bytes = address.header().as_bytes().to_vec();
        bytes.extend_from_slice(packet.as_bytes());
        self.queue(end, bytes.into());
    }

    /// The engine has let go of this end: after what was deferred, nothing more is sent.
    pub fn close(&self) {
        self.send_deferred();
        self.notices.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::irq::NoInterrupts;
    use crate::vmci::signals::Signals;

    /// A connecting guest whose ATTACH waits in its inbox, and that is due a notice.
    fn attaching() -> (Arc<Inbox>, Arc<Notifier>) {
        let signals = Signals::new(Arc::new(NoInterrupts), Arc::default());
        let inbox = Arc::new(Inbox::new(1 << 16, signals, Arc::default(), (3, None, 1)));
        let address = Address { cid: 3, port: 1024, peer_cid: 4, peer_port: 5000 };
        let pair = (Handle::new(3, 7), 4);
        let place = Place::default();
        let notifier = Notifier::new(inbox.clone(), 3, Some(address), pair, Protocol::Qstate, true, place);
        inbox.push_own(vec![1; 24].into());
        notifier.attached();
        notifier.notify(Notice::Wrote);
        (inbox, notifier)
    }

    fn wait_out(notifier: &Notifier) {
        while notifier.deferring() {
            std::thread::yield_now();
        }
    }

    /// However long the guest takes to fetch ATTACH, up to a limit: what may not overtake it comes a while
    /// after that.
    #[test]
    fn the_first_notice_waits_until_attach_is_taken() {
        let (inbox, notifier) = attaching();
        std::thread::sleep(2 * AFTER_ATTACH);
        assert!(notifier.deferring(), "ATTACH waits, and the notice behind it");
        assert_eq!(inbox.own(), 1);
        assert!(inbox.pop_into(&mut Vec::new(), usize::MAX));
        assert!(notifier.deferring(), "only just taken");
        wait_out(&notifier);
        assert_eq!(inbox.own(), 1, "the notice");
    }

    /// A guest that never fetches keeps no stream awake for ever.
    #[test]
    fn a_guest_that_takes_nothing_is_not_waited_for() {
        let (inbox, notifier) = attaching();
        wait_out(&notifier);
        assert_eq!(inbox.own(), 2);
    }
}
