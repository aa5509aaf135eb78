//! Routes: from one guest's packet to its receiver, or back as a refusal.

mod members;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use vmlane_port::wrap::StreamTap;
use vmlane_vsock::VmReader;
use vmlane_wire::virtio_vsock::{Header, kind, op};
use vmlane_worker::{Account, Meter, Rounds, Work, contained};

pub use self::members::Moved;
use super::backlog::{ALONE, ALONE_AND_FULL, BESIDE_OTHERS, Backlog};
use super::bridge::{Bridge, CONNECT, Relayed};
use super::kept::Transaction;
use super::own_packets::{ask_for_credit, peer_reset, reply, show};
use super::port::{Malformed, Outgoing, Port};
use super::receive::SHOWN;
use super::stats::VsockStats;
use super::table::{Passage, Table};
use super::vms::{Vm, Vms};

/// Packets of one guest before the next one has its turn.
const PACKETS: usize = 64;
/// What one guest's rings may cause in a round, in bytes copied (`vmlane_worker::Work`).
const QUOTA: usize = 256 << 10;
/// Descriptors of a receive ring that are read in a round: no more than the quota pays for.
const WALK: usize = QUOTA / 96;
/// Granules examined for a packet that waits, that cost as much as one descriptor.
const SEARCHED: usize = 64;
/// How long after the daemon has served all VMs one may take to come back before it counts as absent.
const GRACE: Duration = Duration::from_secs(3);
/// For so long after a packet has waited for a receiver, the next ones do not wait for it in their rings.
const SLOW: Duration = Duration::from_millis(100);

/// All VMs with such a device. One worker owns it.
pub struct Routes {
    /// What is configured of all VMs.
    known: VmReader,
    vms: Vms,
    table: Table,
    /// Connections to VMCI guests and to the host.
    bridge: Option<Bridge>,
    stats: Arc<VsockStats>,
    /// Who has had its share of a round.
    meter: Meter<u32>,
    /// When all VMs that a previous daemon had were served; none before, however long that takes.
    begun: Option<Instant>,
    /// Connections of which one end did not come back are over once the time for that has passed.
    restored: bool,
    transaction: Arc<Transaction>,
    first: usize,
    /// Used anew in each round.
    order: Vec<u32>,
    /// The same in each turn: packets whose payload is in flight.
    in_flight: Vec<Outgoing>,
    /// VMs to which nothing happens are not polled.
    leaves: bool,
    /// The tap of the packets, while there is a capture.
    taps: Vec<Arc<dyn StreamTap>>,
}

/// What became of a packet.
#[derive(Clone, Copy)]
enum Fate {
    Finished,
    /// Its payload is in flight to a stream.
    InFlight,
    Waits,
}

/// A guest whose turn it is.
struct Sender<'a> {
    cid: u32,
    account: Account,
    backlog: &'a mut Backlog,
}

impl Routes {
    /// `transaction`: with which all that is done becomes valid. `leaves`: VMs to which nothing happens are
    /// not polled, as a worker wants it that sleeps.
    pub fn new(
        known: VmReader,
        stats: Arc<VsockStats>,
        bridge: Option<Bridge>,
        transaction: Arc<Transaction>,
        leaves: bool,
    ) -> std::io::Result<Routes> {
        let (vms, table) = (Vms::new()?, Table::new(transaction.clone()));
        let meter = Meter::default();
        let (begun, first, taps) = (None, 0, Vec::new());
        let (order, in_flight) = (Vec::new(), Vec::new());
        Ok(Routes {
            known,
            vms,
            table,
            bridge,
            stats,
            meter,
            begun,
            restored: false,
            transaction,
            first,
            order,
            in_flight,
            leaves,
            taps,
        })
    }

    /// All VMs of a previous daemon are served. Who does not come back soon is absent.
    pub fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    /// See [`Routes::new`].
    pub fn transaction(&self) -> &Arc<Transaction> {
        &self.transaction
    }

    /// Has `taps`, and no others, inspect packets from one guest to another.
    pub fn set_taps(&mut self, taps: Vec<Arc<dyn StreamTap>>) {
        self.taps = taps;
    }

    /// Polls every VM that is to be polled. True if anything moved.
    pub fn round(&mut self, now: Instant) -> bool {
        self.vms.check_now_and_then(now);
        self.end_one_sided(now);
        let mut moved = self.begin_round();
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend_from_slice(self.vms.polled());
        self.first = if self.first + 1 < order.len() { self.first + 1 } else { 0 };
        for &cid in order.iter().cycle().skip(self.first).take(order.len()) {
            moved |= self.turn(cid, now);
        }
        self.order = order;
        moved |= self.turn_streams(now);
        moved |= self.end_round(moved, now);
        if self.leaves {
            let stats = &self.stats;
            self.vms.leave_quiet(now, |vm| within(vm, stats, Vms::arm));
        }
        moved
    }

    /// The turns of streams with ends here, and what follows from them.
    fn turn_streams(&mut self, now: Instant) -> bool {
        let early = self.is_early(now);
        let Some(bridge) = &mut self.bridge else { return false };
        let mut moved = bridge.rounds().is_some_and(|streams| streams.round(now));
        let waiting: Vec<_> = self.vms.polled_ports().flat_map(Port::take_waiting).collect();
        moved |= bridge.fill(waiting, now);
        moved |= bridge.turn(&mut self.vms, &mut self.meter, &self.stats, early);
        while let Some(cid) = bridge.pop_written() {
            self.vms.woken(cid);
        }
        moved
    }

    /// Every VM has its share of the round, less what was too much before. True if one is not through with
    /// the last.
    fn begin_round(&mut self) -> bool {
        self.meter.refill(QUOTA);
        let mut unfinished = false;
        let (meter, stats) = (&self.meter, &self.stats);
        self.vms.each_polled(|vm| {
            within(vm, stats, Vms::disarm);
            let walk = if meter.is_over(vm.account) { 0 } else { WALK };
            unfinished |= vm.port.as_mut().is_some_and(|port| port.begin_round(walk));
        });
        unfinished
    }

    /// What was done is shown to the guests, and they are charged for it. True if something more moved.
    fn end_round(&mut self, mut moved: bool, now: Instant) -> bool {
        let (meter, stats) = (&mut self.meter, &self.stats);
        let mut replied = false;
        self.vms.each_polled(|vm| {
            let account = vm.account;
            within(vm, stats, |vm| {
                let Some(port) = &mut vm.port else { return };
                let (replies, work) = port.end_round(now);
                charge(meter, stats, account, work);
                replied |= replies;
                moved |= replies;
                if !moved {
                    port.deliver_held(now);
                }
                port.repeat_call(now);
            });
        });
        replied
    }

    /// Calls `action` with every port that is polled; a panic of ours ends that VM's port and no other.
    fn each_port(&mut self, mut action: impl FnMut(&mut Port)) {
        let stats = &self.stats;
        self.vms.each_polled(|vm| {
            within(vm, stats, |vm| vm.port.iter_mut().for_each(|port| action(port)));
        });
    }

    /// One VM's turn: its packets go to their receivers. A panic of ours ends its port and no other.
    fn turn(&mut self, cid: u32, now: Instant) -> bool {
        let Some(vm) = self.vms.get_mut(cid) else { return false };
        let account = vm.account;
        if self.meter.is_over(account) {
            self.stats.deferred.bump(1);
            vm.stats.deferred.bump(1);
            return vm.port.is_some();
        }
        if vm.port.is_none() && vm.backlog.is_empty() {
            return false;
        }
        let (mut port, mut backlog) = (vm.port.take(), std::mem::take(&mut vm.backlog));
        let moved = contained(|| {
            let mut sender = Sender { cid, account, backlog: &mut backlog };
            let waited = self.deliver_waiting(&mut sender, port.as_deref_mut(), now);
            waited | port.as_deref_mut().is_some_and(|port| self.send(&mut sender, port, now))
        });
        if let Some(vm) = self.vms.get_mut(cid) {
            (vm.port, vm.backlog) = (port, backlog);
        }
        moved.unwrap_or_else(|| {
            self.fault(cid);
            true
        })
    }

    /// What waits goes to the receivers that have buffers by now.
    #[inline]
    fn deliver_waiting(
        &mut self,
        sender: &mut Sender<'_>,
        mut port: Option<&mut Port>,
        now: Instant,
    ) -> bool {
        let (mut moved, mut last) = (false, None);
        while let Some(to) = sender.backlog.next_receiver(last) {
            last = Some(to);
            match self.deliver_waiting_for(to, sender, now) {
                Some(bytes) => moved |= bytes,
                None => {
                    self.give_up(to, sender, port.as_deref_mut());
                    moved = true;
                }
            }
        }
        moved
    }

    /// What waits for one receiver. True if something moved; none if it is to wait no longer.
    fn deliver_waiting_for(&mut self, to: u32, sender: &mut Sender<'_>, now: Instant) -> Option<bool> {
        let (allowed, early) = (self.known.load().may_talk(sender.cid, to), self.is_early(now));
        // Of a previous daemon's VMs one is there before the other.
        let Some(vm) = self.vms.woken(to).filter(|_| allowed) else { return early.then_some(false) };
        let Some(receiver) = vm.port.as_deref_mut() else {
            return (early && !vm.shut).then_some(false);
        };
        let mut moved = false;
        while !self.meter.is_over(sender.account)
            && let Some(packet) = sender.backlog.first(to)
        {
            let before = packet.done;
            let delivered = receiver.deliver_waiting(packet);
            let (header, len, here) = (packet.header, packet.len, packet.done - before);
            let work = Work { bytes: here, ..Work::default() };
            charge(&mut self.meter, &self.stats, sender.account, work);
            if delivered || here > 0 {
                sender.backlog.moves(to, now);
                moved = true;
            }
            if !delivered {
                if !sender.backlog.check_timeout(to, now) {
                    break;
                }
                vm.stalled = true;
                self.stats.stalled.bump(1);
                vm.stats.stalled.bump(1);
                return None;
            }
            sender.backlog.pop(to);
            if self.table.delivered(&header, len) {
                ask_for_credit(receiver, &header, &self.taps);
            }
        }
        Some(moved)
    }

    /// The connections end of which something waits for `to`: both ends are notified.
    #[cold]
    fn give_up(&mut self, to: u32, sender: &mut Sender<'_>, mut port: Option<&mut Port>) {
        for header in sender.backlog.take(to) {
            if let Some(receiver) = self.vms.port(to) {
                reply(receiver, peer_reset(&header), &self.taps);
            }
            match &mut port {
                Some(port) => _ = self.refuse(port, &header),
                None => self.table.forget(&header),
            }
        }
    }

    fn send(&mut self, sender: &mut Sender<'_>, port: &mut Port, now: Instant) -> bool {
        let (mut moved, mut hidden) = (false, 0);
        let mut in_flight = std::mem::take(&mut self.in_flight);
        for _ in 0..PACKETS {
            if self.meter.is_over(sender.account) {
                break;
            }
            let mut outgoing = match port.fetch() {
                Ok(Some(outgoing)) => outgoing,
                Ok(None) => break,
                Err(Malformed) => {
                    self.stats.malformed.bump(1);
                    port.stats.malformed.bump(1);
                    charge(&mut self.meter, &self.stats, sender.account, port.take_work());
                    moved = true;
                    continue;
                }
            };
            // What may end a stream comes behind the bytes before it. What goes to another ring at once is
            // completed at once: it may be shown at any time.
            let stays = |header: &Header| header.op.get() == op::RW && self.is_relayed(header);
            if !in_flight.is_empty() && !stays(&outgoing.header) {
                self.settle(port, &mut in_flight, now);
            }
            let (before, to) = (outgoing.done, outgoing.header.dst_cid.get());
            let fate = self.route(sender, port, &mut outgoing, now);
            let here = outgoing.done - before;
            moved |= here > 0;
            self.stats.bytes.bump(here as u64);
            let work = port.take_work();
            charge(&mut self.meter, &self.stats, sender.account, Work { bytes: work.bytes + here, ..work });
            match fate {
                Fate::InFlight => {
                    in_flight.push(outgoing);
                    hidden += here;
                }
                Fate::Finished => {
                    // Chains are completed in their order.
                    self.settle(port, &mut in_flight, now);
                    self.finish(port, &outgoing);
                    hidden += here;
                }
                Fate::Waits => {
                    port.keep(outgoing);
                    break;
                }
            }
            moved = true;
            if hidden >= SHOWN {
                hidden = 0;
                self.settle(port, &mut in_flight, now);
                let to = u32::try_from(to).ok().and_then(|to| self.vms.port(to));
                to.into_iter().for_each(|receiver| receiver.flush(now));
                port.flush(now);
            }
        }
        self.settle(port, &mut in_flight, now);
        self.in_flight = in_flight;
        moved
    }

    /// The packets whose payload is in flight are delivered.
    #[inline]
    fn settle(&mut self, port: &mut Port, in_flight: &mut Vec<Outgoing>, now: Instant) {
        if in_flight.is_empty() {
            return;
        }
        self.bridge.iter_mut().for_each(|bridge| bridge.settle(now));
        in_flight.drain(..).for_each(|outgoing| self.finish(port, &outgoing));
    }

    fn finish(&mut self, port: &mut Port, outgoing: &Outgoing) {
        self.stats.packets.bump(1);
        port.finish(outgoing);
    }

    fn route(
        &mut self,
        sender: &mut Sender<'_>,
        port: &mut Port,
        outgoing: &mut Outgoing,
        now: Instant,
    ) -> Fate {
        let (cid, header) = (sender.cid, outgoing.header);
        if header.src_cid.get() != u64::from(cid) {
            self.stats.forged.bump(1);
            port.stats.forged.bump(1);
            return Fate::Finished;
        }
        let known = (op::REQUEST..=op::CREDIT_REQUEST).contains(&header.op.get());
        let to = u32::try_from(header.dst_cid.get()).ok().filter(|&to| to != cid && known);
        if !matches!(header.kind.get(), kind::STREAM | kind::SEQPACKET) {
            return self.refuse(port, &header);
        }
        if let Some(fate) = to.and_then(|_| self.relay(cid, port, outgoing, now)) {
            return fate;
        }
        let known = self.known.load();
        let Some(to) = to.filter(|&to| known.may_talk(cid, to)) else { return self.refuse(port, &header) };
        let most = match header.op.get() {
            op::REQUEST => known.get(cid).map_or(0, |vm| vm.connections),
            _ => 0,
        };
        // Once a packet, not once a try.
        let passed = std::mem::replace(&mut outgoing.passed, true);
        match if passed { Passage::Passes } else { self.table.pass(&header, most) } {
            Passage::Passes => {}
            Passage::Repeated => return Fate::Finished,
            Passage::Lost => return self.refuse(port, &header),
            Passage::TooMany => {
                port.stats.over_connections.bump(1);
                return self.refuse(port, &header);
            }
        }
        let Some(vm) = self.vms.woken(to) else { return self.refuse(port, &header) };
        let shut = vm.shut;
        let Some(receiver) = vm.port.as_deref_mut() else {
            let waits = !shut && self.is_early(now);
            return if waits {
                self.wait(to, sender, port, outgoing, now)
            } else {
                self.refuse(port, &header)
            };
        };
        let lacks = header.kind.get() == kind::SEQPACKET && !receiver.seqpacket;
        if vm.stalled && receiver.has_buffers() {
            vm.stalled = false;
        }
        if lacks || vm.stalled {
            return self.refuse(port, &header);
        }
        if sender.backlog.waits_for(to) {
            return self.wait(to, sender, port, outgoing, now);
        }
        let before = outgoing.done;
        let delivered = receiver.deliver(port, outgoing).is_ok();
        if !self.taps.is_empty() {
            show(&self.taps, port, outgoing, before, delivered);
        }
        if !delivered {
            return self.wait(to, sender, port, outgoing, now);
        }
        if self.table.delivered(&header, outgoing.len) {
            ask_for_credit(receiver, &header, &self.taps);
        }
        Fate::Finished
    }

    /// Does this packet go to what is no virtio-vsock guest, or is reached as one that is not?
    fn is_relayed(&self, header: &Header) -> bool {
        let to = u32::try_from(header.dst_cid.get());
        let here = to.is_ok_and(|to| self.vms.contains(to));
        self.bridge.as_ref().is_some_and(|bridge| !here || bridge.relays(header))
    }

    /// A packet to what is no virtio-vsock guest, or is reached as one that is not. None: it is none.
    #[inline]
    fn relay(&mut self, cid: u32, port: &mut Port, outgoing: &mut Outgoing, now: Instant) -> Option<Fate> {
        let header = outgoing.header;
        if !self.is_relayed(&header) {
            return None;
        }
        let bridge = self.bridge.as_mut()?;
        let known = self.known.load();
        let relayed = known.get(cid).map_or(Relayed::Refused, |vm| bridge.take(port, outgoing, vm, now));
        let refused = u64::from(relayed == Relayed::Refused);
        self.stats.refused.bump(refused);
        self.stats.relayed_bytes.bump(outgoing.done as u64);
        port.stats.refused.bump(refused);
        if header.op.get() == op::REQUEST
            && let Some(vm) = self.vms.get(cid)
        {
            self.meter.charge(vm.account, CONNECT);
        }
        Some(if relayed == Relayed::InFlight { Fate::InFlight } else { Fate::Finished })
    }

    /// The receiver of a packet has no buffers for it. It waits in its ring for a moment, and then in the
    /// backlog. If that is full its connection ends.
    #[cold]
    fn wait(
        &mut self,
        to: u32,
        sender: &mut Sender<'_>,
        port: &mut Port,
        outgoing: &mut Outgoing,
        now: Instant,
    ) -> Fate {
        let beside_others = self.table.talks_to_others(sender.cid, to)
            || self.bridge.as_ref().is_some_and(|bridge| bridge.has_connections(sender.cid));
        let since = *outgoing.waits.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        let slow = |vm: &Vm| vm.slow.is_some_and(|at| now.saturating_duration_since(at) < SLOW);
        let may_wait = !sender.backlog.waits_for(to) && !self.vms.get(to).is_some_and(slow);
        if may_wait && waited < if beside_others { BESIDE_OTHERS } else { ALONE } {
            return Fate::Waits;
        }
        let (header, rest) = (outgoing.header, outgoing.done..outgoing.len);
        let there_is_room = sender.backlog.push(to, header, (port.payload(), rest), since);
        let descriptors = sender.backlog.take_searched() / SEARCHED;
        charge(&mut self.meter, &self.stats, sender.account, Work { descriptors, ..Work::default() });
        if there_is_room {
            let before = std::mem::replace(&mut outgoing.done, outgoing.len);
            if !self.taps.is_empty() {
                show(&self.taps, port, outgoing, before, true);
            }
            if let Some(vm) = self.vms.get_mut(to) {
                vm.slow = Some(now);
            }
            return Fate::Finished;
        }
        if !beside_others && waited < ALONE_AND_FULL {
            return Fate::Waits;
        }
        let descriptors = sender.backlog.forget_connection(to, &header);
        charge(&mut self.meter, &self.stats, sender.account, Work { descriptors, ..Work::default() });
        if let Some(receiver) = self.vms.port(to) {
            reply(receiver, peer_reset(&header), &self.taps);
        }
        self.refuse(port, &header)
    }

    /// May VMs that are absent come back yet?
    fn is_early(&self, now: Instant) -> bool {
        self.begun.is_none_or(|begun| now.saturating_duration_since(begun) < GRACE)
    }

    /// The sender receives RST, unless that is what it sent.
    fn refuse(&mut self, port: &mut Port, header: &Header) -> Fate {
        self.table.forget(header);
        if header.op.get() != op::RST {
            self.stats.refused.bump(1);
            port.stats.refused.bump(1);
            reply(port, header.reset(), &self.taps);
        }
        Fate::Finished
    }

    /// Asks all guests to announce what they do. True if there is something to do already.
    pub fn arm(&mut self) -> bool {
        let stats = &self.stats;
        self.vms.each_polled(|vm| within(vm, stats, Vms::arm));
        fence(Ordering::SeqCst);
        if self.vms.polled_ports().any(Port::waits) || self.bridge.as_ref().is_some_and(Bridge::has_events) {
            return true;
        }
        self.vms.leave(|_| true);
        false
    }

    /// The worker is awake again; with `doorbell`, because a guest announced something.
    pub fn woken(&mut self, doorbell: bool) {
        if doorbell {
            self.vms.poll_doorbells(Instant::now());
        }
    }

    /// Readable while a guest announces something.
    pub fn doorbells(&self) -> BorrowedFd<'_> {
        self.vms.doorbells()
    }

    /// The engine of streams with ends here, if there is one.
    pub fn streams(&mut self) -> Option<&mut dyn Rounds> {
        self.bridge.as_mut()?.rounds()
    }

    /// The same, to be asked.
    pub fn streams_ref(&self) -> Option<&dyn Rounds> {
        self.bridge.as_ref()?.rounds_ref()
    }

    /// Commands for it may wait.
    pub fn notified(&mut self) {
        self.bridge.iter_mut().for_each(Bridge::run_commands);
    }

    /// Does a driver wait for a notice that is not due yet?
    pub fn undelivered(&self) -> bool {
        self.vms.polled_ports().any(Port::defers)
    }

    /// Every driver is notified of what was deferred.
    pub fn flush_deferred(&mut self, now: Instant) {
        self.each_port(|port| port.flush_deferred(now));
    }

    /// Is a guest to be called again soon?
    pub fn repeats(&self) -> bool {
        self.vms.polled_ports().any(Port::repeats)
    }

    /// Is there something for which nothing wakes the worker: a packet that waits for its receiver, a VM
    /// whose doorbell it cannot listen to?
    pub fn is_waiting(&self) -> bool {
        self.vms.polled_ports().any(|port| port.holds_packet() || port.is_waited_for() || !port.announces())
            || self.vms.holds_packets()
            || self.bridge.as_ref().is_some_and(Bridge::is_blocked)
    }
}

/// What a VM's rings have caused is charged to it.
fn charge(meter: &mut Meter<u32>, stats: &VsockStats, account: Account, work: Work) {
    stats.descriptors.bump(work.descriptors as u64);
    meter.charge(account, work);
}

/// Runs `action` on a VM; a panic of ours ends its port and no other.
#[inline]
fn within(vm: &mut Vm, stats: &VsockStats, action: impl FnOnce(&mut Vm)) {
    if contained(|| action(vm)).is_none() {
        vm.fault(stats);
    }
}
