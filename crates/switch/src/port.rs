//! A port as the worker has it: its configuration, what is attached to it, and a part for each stage.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use vmlane_port::wrap::{CapturedFrames, FrameTap, wall_clock};
use vmlane_port::{
    DropReason, FramePort, FramePortInfo, PortId, PortStats, RxCapabilities, RxFrame, Token, TxFrame,
};
use vmlane_wire::ethernet::{Mac, Tci};
use vmlane_worker::Watch;

use crate::Slot;
use crate::access::{Access, Config};
use crate::coalesce::MergeHistory;
use crate::egress::{Receiver, RxCounts};
use crate::fdb::{Route, key};
use crate::flight::Flight;
use crate::handover::Origin;
use crate::impair::{ImpairedPort, Impairment, Line};
use crate::ingress::{Checked, TxBurst};
use crate::mirror::Copies;
use crate::multicast::{ANY, Snooped};
use crate::pending::{Claim, PendingQueue};
use crate::port_state::{NOWHERE, PortState};
use crate::rate_limit::SenderLimits;
use crate::shaping::{ShapedPort, Shaper, ShaperCell};

/// What a sender sent and its counters do not know yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxCounts {
    pub frames: u64,
    pub bytes: u64,
    pub tso: u64,
}

/// A port's numbers.
#[derive(Clone, Copy, Debug)]
pub struct Numbered {
    pub id: PortId,
    /// The same with every worker.
    pub slot: Slot,
    pub owner: u16,
    pub group: u16,
    /// The worker whose port it is, if not the one that is asked.
    pub remote: Option<usize>,
}

#[cfg(test)]
impl Numbered {
    /// Of a port of its own owner, in one group with all others.
    pub fn nth(number: u32) -> Numbered {
        let slot = number as u16 - 1;
        Numbered { id: PortId(number), slot, owner: slot, group: 0, remote: None }
    }
}

/// A port and what is attached to it.
pub struct Port {
    pub id: PortId,
    /// Whose port it is, and its isolation group: numbers that [`crate::Switch`] gave.
    pub owner: u16,
    pub group: u16,
    /// The worker whose port it is, if not this one's.
    pub remote: Option<usize>,
    pub transfer: Transfer,
    pub attached: Attached,
    pub config: Config,
    pub access: Access,
    pub stats: Arc<PortStats>,
    pub state: Arc<PortState>,
    pub end: Option<Box<dyn FramePort>>,
    extras: Extras,
    /// It got or finished frames since its last flush.
    pub dirty: bool,
    pub tx: TxPart,
    pub rx: RxPart,
    pub watch: Watch,
}

/// A port on its way to another worker.
#[derive(Default)]
pub struct Transfer {
    /// It sends nothing new, and of others' frames for it none is handed over.
    pub moving: bool,
    /// Since then: how many frames had come from which ports of other workers, if they have not had their
    /// turns yet.
    pub before: Vec<(Slot, u64)>,
}

/// What is attached, or was.
#[derive(Default)]
pub struct Attached {
    /// Which of the ends that were ever attached to the port this one is.
    pub number: u32,
    /// It is about to be dropped.
    pub retired: bool,
    pub info: FramePortInfo,
}

/// What only some ports have: a shape, an impaired wire, groups that are kept to them, a mirror's
/// destination, captures.
#[derive(Default)]
struct Extras {
    /// Where the shaper is while nothing is attached.
    cell: ShaperCell,
    /// The operator wants it shaped.
    wanted: bool,
    /// The operator set its link down.
    down: bool,
    /// Nothing may be attached to it.
    shut: bool,
    /// What is attached is wrapped, and has the shaper.
    wrapped: bool,
    /// The line that it is at the end of, while nothing is attached: else that has it, outside of all.
    line: Option<Box<Line>>,
    /// The groups of its guest, where the operator keeps multicast to who asked.
    snooped: Option<Box<Snooped>>,
    /// It is a mirror's.
    copies: Option<Copies>,
    /// What captures its frames: empty while there is no capture. `end` is wrapped for it.
    taps: Vec<Arc<dyn FrameTap>>,
}

/// A port's part as a receiver.
pub struct RxPart {
    /// What `end` can receive, as of this round.
    pub capabilities: RxCapabilities,
    /// As configured. With many ports, what is read for each frame is to be in as few cache lines as can be.
    endpoint: bool,
    pub counts: RxCounts,
    pub pending: PendingQueue,
}

/// A port's part as a sender.
pub struct TxPart {
    pub burst: TxBurst,
    pub route: Route,
    pub limits: SenderLimits,
    pub counts: TxCounts,
    pub merging: MergeHistory,
}

impl Port {
    pub fn new(of: Numbered, config: Config, stats: Arc<PortStats>, state: Arc<PortState>) -> Port {
        let Numbered { id, owner, group, remote, .. } = of;
        let now = Instant::now();
        let pending = if remote.is_some() { PendingQueue::small(now) } else { PendingQueue::new(now) };
        let mut port = Port {
            id,
            owner,
            group,
            remote,
            transfer: Transfer::default(),
            attached: Attached::default(),
            access: Access::detached(&config),
            config,
            stats,
            state,
            end: None,
            extras: Extras::default(),
            dirty: false,
            tx: TxPart {
                burst: TxBurst::new(),
                route: Route::default(),
                limits: SenderLimits::new(now),
                counts: TxCounts::default(),
                merging: MergeHistory::default(),
            },
            rx: RxPart {
                capabilities: RxCapabilities::default(),
                endpoint: false,
                counts: RxCounts::default(),
                pending,
            },
            watch: Watch::new(true, now),
        };
        let config = port.config.clone();
        port.configure(config);
        port
    }

    /// What the operator wants of it. The groups of a remote port's guest are its own worker's to read.
    pub fn configure(&mut self, config: Config) {
        self.rx.endpoint = config.endpoint;
        self.config = config;
        self.config.snoop &= self.remote.is_none();
    }

    /// It as the lender of a frame. `slot`: where it is.
    #[inline]
    pub fn origin(&self, slot: Slot) -> Origin {
        Origin { slot, owner: self.owner, attachment: self.attached.number }
    }

    /// A frame of it, `sent`, which its `end` calls `token`, on its way through the stages.
    #[inline]
    pub fn flight<'f>(
        &self,
        slot: Slot,
        sent: Checked<'f>,
        (end, token): (&'f dyn FramePort, Token),
        vlan: u16,
    ) -> Flight<'f> {
        Flight {
            sent,
            slot,
            group: self.group,
            uplink: self.config.uplink,
            remote: self.remote.is_some(),
            origin: self.origin(slot),
            end,
            token,
            vlan,
            epoch: None,
            more: false,
            merges: true,
            multicast: ANY,
        }
    }

    /// It as the receiver of a frame, with the tag that it sees; `mirror`: it only watches others' frames.
    /// None: nothing is attached.
    #[inline]
    pub fn receiver(&mut self, tag: Option<Tci>, mirror: bool) -> Option<Receiver<'_>> {
        let end = &mut **self.end.as_mut()?;
        let capabilities = &self.rx.capabilities;
        let unsummed = self.rx.endpoint && capabilities.verdicts && !mirror;
        Some(Receiver { end, capabilities, counts: &mut self.rx.counts, tag, mirror, unsummed })
    }

    /// Attaches `end`, wrapped if the port is shaped or its wire impaired.
    pub fn plug(&mut self, end: Box<dyn FramePort>, now: Instant) {
        self.attached.number = self.attached.number.wrapping_add(1);
        self.attached.retired = false;
        self.watch = Watch::new(true, now);
        self.attached.info = end.info();
        self.end = Some(CapturedFrames::wrap(end, &self.extras.taps));
        self.extras.snooped = None;
        self.snoop(now);
        self.extras.wrapped = false;
        if self.extras.wanted {
            self.wrap(now);
        }
        let line = self.extras.line.take();
        self.put_on_line(line);
    }

    fn wrap(&mut self, now: Instant) {
        self.within_line(|port, end| {
            let end = CapturedFrames::unwrap(end);
            let shaped = ShapedPort::new(end, port.extras.cell.clone(), port.stats.clone(), now);
            port.attached.info = shaped.info();
            port.extras.wrapped = true;
            CapturedFrames::wrap(Box::new(shaped), &port.extras.taps)
        });
    }

    /// Replaces what is attached, at the end of its line if it has one.
    fn within_line(&mut self, change: impl FnOnce(&mut Port, Box<dyn FramePort>) -> Box<dyn FramePort>) {
        let line = self.take_off_line();
        let end = self.end.take().map(|end| change(self, end));
        self.end = end;
        self.put_on_line(line);
    }

    fn take_off_line(&mut self) -> Option<Box<Line>> {
        let Some((end, line)) = self.end.take().map(ImpairedPort::unwrap) else {
            return self.extras.line.take();
        };
        self.end = Some(end);
        line
    }

    fn put_on_line(&mut self, line: Option<Box<Line>>) {
        match (self.end.take(), line) {
            (Some(end), Some(line)) => {
                let (stats, state) = (self.stats.clone(), self.state.clone());
                self.end = Some(ImpairedPort::wrap(end, line, stats, state));
            }
            (end, line) => (self.end, self.extras.line) = (end, line),
        }
    }

    /// Has frames on their way to it be impaired from now on. `spare`: a line, if it needs one and has none.
    pub fn impair(&mut self, impairment: Impairment, spare: Option<Box<Line>>, now: Instant) {
        let mut line = self.take_off_line().or(spare);
        line.iter_mut().for_each(|line| line.set(impairment));
        if let (Some(line), Some(end)) = (&mut line, &mut self.end)
            && impairment.is_none()
        {
            line.end(&mut **end, now, &self.stats);
        }
        self.put_on_line(line.filter(|_| !impairment.is_none()));
        self.state.waiting.store(0, Ordering::Relaxed);
    }

    /// Begins or ends to snoop its guest's groups, as it is configured.
    pub fn snoop(&mut self, now: Instant) {
        if !self.config.snoop {
            self.extras.snooped = None;
        } else if self.extras.snooped.is_none() {
            self.extras.snooped = Some(Box::new(Snooped::new(now)));
        }
    }

    /// The groups of its guest; None: multicast is not kept from it.
    pub fn snooped(&self) -> Option<&Snooped> {
        self.extras.snooped.as_deref()
    }

    /// The same, to be changed.
    pub fn snooped_mut(&mut self) -> Option<&mut Snooped> {
        self.extras.snooped.as_deref_mut()
    }

    /// Where its frames go, whatever their addresses: it is a mirror's port.
    pub fn copies(&self) -> Option<Copies> {
        self.extras.copies
    }

    /// Makes it a mirror's port.
    pub fn set_copies(&mut self, copies: Copies) {
        self.extras.copies = Some(copies);
    }

    /// Whose frames are delivered next: only ports that are shaped are interested.
    #[inline]
    pub fn comes_from(&self, claim: Claim) {
        if self.extras.wrapped {
            self.extras.cell.set_claim(claim);
        }
    }

    /// Shapes the port from now on, also what is attached to it. None: as before.
    pub fn shape(&mut self, shaper: Option<Box<Shaper>>, now: Instant) {
        let Some(shaper) = shaper else { return };
        self.extras.wanted = shaper.limits();
        self.extras.down = shaper.is_down();
        self.extras.cell.put(shaper);
        if self.end.is_some() && self.extras.wrapped {
            self.end.iter_mut().for_each(|end| end.refresh());
        } else if self.end.is_some() && self.extras.wanted {
            self.wrap(now);
        }
        if self.extras.down {
            let line = self.lose_line(DropReason::LinkDown);
            self.put_on_line(line);
        }
    }

    /// Takes the line off; what was on its way is lost.
    fn lose_line(&mut self, reason: DropReason) -> Option<Box<Line>> {
        let mut line = self.take_off_line();
        line.iter_mut().for_each(|line| line.clear(reason, &self.stats));
        self.state.waiting.store(0, Ordering::Relaxed);
        line
    }

    /// The operator set the link of a remote port down, or up: its own worker sees to it.
    pub fn set_down(&mut self, down: bool) {
        self.extras.down = down;
    }

    /// Did the operator set its link down?
    pub fn is_down(&self) -> bool {
        self.extras.down
    }

    /// Derives what follows from configuration, filter and capabilities.
    pub fn adopt(&mut self) {
        let effective = if let Some(end) = &self.end {
            self.access = Access::new(&self.config, end.filter());
            self.rx.capabilities = end.capabilities();
            key(0, self.access.effective)
        } else {
            self.access = Access::detached(&self.config);
            0
        };
        if self.remote.is_none() {
            self.state.attached.store(self.end.is_some(), Ordering::Relaxed);
            self.state.mac.store(effective, Ordering::Relaxed);
        }
    }

    /// Drops what is attached, with its frames in flight. False if its code panicked.
    pub fn drop_end(&mut self) -> bool {
        self.extras.taps.iter().for_each(|tap| tap.settle(None));
        self.tx.burst.forget();
        self.watch.forget();
        self.extras.line = self.lose_line(DropReason::Gone);
        let end = self.end.take();
        catch_unwind(AssertUnwindSafe(|| drop(end))).is_ok()
    }

    /// A fault of ours: what is attached is in an unknown state. It is notified, and dropped; its frames in
    /// flight are forgotten, not finished.
    #[cold]
    pub fn fail_end(&mut self) {
        self.stats.panics.inc();
        if let Some(end) = &mut self.end {
            let _ = catch_unwind(AssertUnwindSafe(|| end.fail()));
        }
        self.drop_end();
    }

    /// Nothing may be attached to it from now on, or something may again.
    pub fn set_shut(&mut self, shut: bool) {
        self.extras.shut = shut;
    }

    /// May nothing be attached to it?
    pub fn is_shut(&self) -> bool {
        self.extras.shut
    }

    /// Is it captured?
    pub fn is_captured(&self) -> bool {
        !self.extras.taps.is_empty()
    }

    /// Is it in this VLAN?
    #[inline]
    pub fn carries(&self, vlan: u16) -> bool {
        self.config.vlan.carries(vlan)
    }

    /// Are frames to this address its own, rather than others' that it watches? All that come over a cable
    /// are.
    #[inline]
    pub fn is_own(&self, to: Mac) -> bool {
        self.access.is_own(to) || self.config.uplink || self.config.direct
    }

    /// Does the guest want frames to this group address?
    #[inline]
    pub fn accepts_group(&self, to: Mac) -> bool {
        self.access.unknown || self.end.as_ref().is_some_and(|end| end.filter().accepts(to))
    }

    /// Does it take TCP super-frames whole?
    #[inline]
    pub fn aggregates(&self) -> bool {
        self.rx.capabilities.tso4 || self.rx.capabilities.tso6
    }

    /// Counts a drop.
    pub fn lose(&self, reason: DropReason) {
        let stats: &PortStats = &self.stats;
        stats.drop(reason);
    }

    /// Drops the frame that it sent last, for its own fault.
    #[cold]
    pub fn lose_sent(&self, reason: DropReason) {
        self.lose(reason);
        self.extras.taps.iter().for_each(|tap| tap.settle(Some(reason)));
    }

    /// Drops a frame that was on its way to it, and shows it.
    #[cold]
    pub fn refuse(&self, frame: &TxFrame<'_>, reason: DropReason) {
        self.lose(reason);
        self.show_lost(frame, reason);
    }

    /// Shows a frame that was on its way to it and was dropped, as it was fetched.
    #[cold]
    pub fn show_lost(&self, frame: &TxFrame<'_>, reason: DropReason) {
        if !self.extras.taps.is_empty() {
            let now = wall_clock();
            self.extras.taps.iter().for_each(|tap| tap.refused(frame, now, reason));
        }
    }

    /// The same for a frame as it would have been delivered.
    #[cold]
    pub fn show_undelivered(&self, frame: &RxFrame<'_>, reason: DropReason) {
        if !self.extras.taps.is_empty() {
            let now = wall_clock();
            self.extras.taps.iter().for_each(|tap| tap.received(frame, now, Some(reason)));
        }
    }

    /// From here on `taps` see what goes through the port.
    pub fn set_taps(&mut self, taps: Vec<Arc<dyn FrameTap>>) {
        self.within_line(|_, end| CapturedFrames::wrap(CapturedFrames::unwrap(end), &taps));
        self.extras.taps = taps;
    }

    /// The receiver took nothing for too long, or has room again.
    pub fn set_stalled(&mut self, stalled: bool) {
        if self.rx.pending.stalled != stalled {
            self.rx.pending.stalled = stalled;
            self.state.stalled.store(stalled, Ordering::Relaxed);
        }
    }

    /// Publishes what was counted since the last time. What remote ports send was counted when their guests
    /// sent it.
    pub fn publish_counts(&mut self) {
        if self.remote.is_some() {
            self.tx.counts = TxCounts::default();
            return;
        }
        let Route { to, receiver, .. } = self.tx.route;
        self.state.last_to.store(if to == 0 { NOWHERE } else { receiver }, Ordering::Relaxed);
        let stats = &self.stats;
        for (counter, amount) in [
            (&stats.tx_frames, &mut self.tx.counts.frames),
            (&stats.tx_bytes, &mut self.tx.counts.bytes),
            (&stats.tx_tso, &mut self.tx.counts.tso),
            (&stats.rx_frames, &mut self.rx.counts.frames),
            (&stats.rx_bytes, &mut self.rx.counts.bytes),
            (&stats.rx_aggregates, &mut self.rx.counts.aggregates),
            (&stats.rx_segments, &mut self.rx.counts.segments),
            (&stats.rx_checksums, &mut self.rx.counts.checksums),
            (&stats.rx_coalesced, &mut self.rx.counts.coalesced),
            (&stats.rx_coalesced_segments, &mut self.rx.counts.coalesced_segments),
        ] {
            if *amount > 0 {
                counter.bump(std::mem::take(amount));
            }
        }
    }
}
