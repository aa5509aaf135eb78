//! A port as the worker has it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use vmlane_port::{DropReason, Filter, FramePort, PortId, PortStats, RxCapabilities, Token};
use vmlane_wire::ethernet::{Mac, Tci};

use crate::flood::Bucket;
use crate::forward::Tally;
use crate::spec::{Policy, PortSpec, VlanMode};
use crate::table::{Slot, key};

/// Frames that may wait for one receiver.
pub const MAX_PARKED: usize = 1024;
/// Of those, frames of one sender once the receiver has let frames wait for longer than it may: a
/// receiver that takes one now and then must not use up a sender's look-ahead.
pub const MAX_SLOW: u16 = 64;

/// A frame that waits for a receiver's buffers.
#[derive(Clone, Copy, Debug)]
pub struct Parked {
    pub sender: Slot,
    pub token: Token,
    pub tag: Option<Tci>,
    /// Segments delivered before.
    pub next: u16,
}

/// What others may see of a port without asking the worker.
#[derive(Debug, Default)]
pub struct PortState {
    pub attached: AtomicBool,
    pub stalled: AtomicBool,
    /// The address in force; 0 if unknown.
    pub mac: AtomicU64,
}

/// What a sender last did: the next frame mostly goes the same way.
#[derive(Clone, Copy)]
pub struct Route {
    pub to: u64,
    pub from: u64,
    pub vlan: u16,
    pub receiver: Slot,
    /// Of the tables that it was looked up in.
    pub epoch: u64,
}

/// A port and what is attached to it.
pub struct Port {
    pub id: PortId,
    /// Whose port it is: an index into the fabric's allowances.
    pub party: u16,
    pub group: u16,
    pub mac: Mac,
    pub vlan: VlanMode,
    pub policy: Policy,
    pub uplink: bool,
    pub stats: Arc<PortStats>,
    pub state: Arc<PortState>,
    pub end: Option<Box<dyn FramePort>>,

    /// The address in force.
    pub effective: Mac,
    /// Nothing may be attached to it.
    pub shut: bool,
    /// Its guest changed the address and may not.
    pub blocked: bool,
    /// Frames to its own address are wanted.
    pub takes_own: bool,
    /// Wants all frames of its VLANs and may have them.
    pub mirror: bool,
    /// Wants frames to addresses that nobody knows, and may have them.
    pub floods: bool,
    /// The VLAN of the frames it sends without a tag; None if it may not.
    pub untagged: Option<u16>,
    /// As of this round.
    pub capabilities: RxCapabilities,

    pub parked: VecDeque<Parked>,
    /// By sender: how many of `parked` are its frames.
    pub parked_of: Vec<u16>,
    /// When the receiver last took a frame, or the first one began to wait.
    pub progress: Instant,
    /// Since when frames have been waiting without a break.
    pub waiting_since: Instant,
    pub stalled: bool,

    pub route: Route,
    /// What it may still send to several at once, and in vain.
    pub flood: Bucket,
    pub vain: Bucket,
    /// It sent too much in vain: until then nothing is taken from it.
    pub rests_until: Option<Instant>,
    /// It got or finished frames since its last flush.
    pub dirty: bool,
    pub tx_frames: u64,
    pub tx_bytes: u64,
    pub tx_tso: u64,
    pub rx: Tally,
}

const NOTHING: RxCapabilities = RxCapabilities {
    frame: 0,
    aggregate: 0,
    tso4: false,
    tso6: false,
    uso4: false,
    uso6: false,
    partial_sum: false,
    partial_frame: false,
};

impl Port {
    pub fn new(
        id: PortId,
        group: u16,
        spec: &PortSpec,
        stats: Arc<PortStats>,
        state: Arc<PortState>,
    ) -> Port {
        let now = Instant::now();
        Port {
            id,
            party: 0,
            group,
            mac: spec.mac,
            vlan: spec.vlan.clone(),
            policy: spec.policy,
            uplink: spec.uplink,
            stats,
            state,
            end: None,
            effective: spec.mac,
            shut: false,
            blocked: false,
            takes_own: false,
            mirror: false,
            floods: false,
            untagged: None,
            capabilities: NOTHING,
            parked: VecDeque::with_capacity(MAX_PARKED),
            parked_of: Vec::new(),
            progress: now,
            waiting_since: now,
            stalled: false,
            flood: Bucket::new(now),
            vain: Bucket::new(now),
            rests_until: None,
            route: Route { to: 0, from: 0, vlan: 0, receiver: 0, epoch: 0 },
            dirty: false,
            tx_frames: 0,
            tx_bytes: 0,
            tx_tso: 0,
            rx: Tally::default(),
        }
    }

    /// Derives what follows from filter and policy.
    pub fn adopt(&mut self) {
        self.untagged = self.ingress_vlan(None);
        let Some(end) = &self.end else {
            self.state.attached.store(false, Ordering::Relaxed);
            self.state.mac.store(0, Ordering::Relaxed);
            return;
        };
        let Filter { mac, unicast, promiscuous, .. } = *end.filter();
        let changed = mac.is_unicast() && mac != self.mac && !self.uplink;
        self.blocked = changed && !self.policy.mac_changes;
        self.effective = if changed && !self.blocked { mac } else { self.mac };
        self.mirror = promiscuous && self.policy.promiscuous && !self.uplink;
        self.floods = promiscuous && (self.uplink || self.policy.promiscuous || self.policy.forged_transmits);
        self.takes_own = unicast || promiscuous;
        self.capabilities = end.capabilities();
        self.state.attached.store(true, Ordering::Relaxed);
        self.state.mac.store(key(0, self.effective), Ordering::Relaxed);
    }

    /// Does the guest want frames to this group address?
    #[inline]
    pub fn takes_group(&self, to: Mac) -> bool {
        self.floods || self.end.as_ref().is_some_and(|end| end.filter().takes(to))
    }

    /// The VLAN of a frame that came in with `tag`; None if the port does not take it.
    #[inline]
    pub fn ingress_vlan(&self, tag: Option<Tci>) -> Option<u16> {
        let vlan = tag.map_or(0, Tci::vlan);
        match &self.vlan {
            VlanMode::Untagged => (vlan == 0).then_some(0),
            VlanMode::Access(own) => (vlan == 0).then_some(*own),
            VlanMode::Trunk(set) => set.contains(vlan).then_some(vlan),
        }
    }

    /// Counts a drop.
    pub fn lose(&self, reason: DropReason) {
        let stats: &PortStats = &self.stats;
        stats.drop(reason);
    }

    /// How many frames of a sender wait for this port.
    pub fn count_parked(&mut self, sender: Slot) -> &mut u16 {
        let at = usize::from(sender);
        if self.parked_of.len() <= at {
            self.parked_of.resize(at + 1, 0);
        }
        &mut self.parked_of[at]
    }

    /// Writes what was counted since the last time.
    pub fn settle(&mut self) {
        let stats = &self.stats;
        for (counter, amount) in [
            (&stats.tx_frames, &mut self.tx_frames),
            (&stats.tx_bytes, &mut self.tx_bytes),
            (&stats.tx_tso, &mut self.tx_tso),
            (&stats.rx_frames, &mut self.rx.frames),
            (&stats.rx_bytes, &mut self.rx.bytes),
            (&stats.rx_aggregates, &mut self.rx.aggregates),
            (&stats.rx_segments, &mut self.rx.segments),
            (&stats.rx_checksums, &mut self.rx.checksums),
        ] {
            if *amount > 0 {
                counter.bump(std::mem::take(amount));
            }
        }
    }
}
