//! Mirrors (SPAN): copies of what passes some ports go to another port.
//!
//! The sources are wrapped as for a capture: a [`MirrorTap`] copies frames into the mirror's [`Ring`], where it costs its
//! sender nothing but the copy, and never a wait. The mirror itself is a port that sends what is in its ring
//! ([`MirrorPort`]) to its destination and to no other. It is an owner of its own, so copies are paid for by the mirror: with
//! a part of each round as large as its sources may have together. Copies for which that is not enough, or for which the
//! destination has no room at once, are dropped and counted at the mirror.
//!
//! A copy never goes through ingress and the address table: nothing is learned from it, no policy of the destination's
//! port group concerns it, and isolation groups are crossed because the operator wrote so. A destination is no source of
//! any mirror, so copies are never copied. Without mirrors, nothing of this lies in any frame's way.

mod manage;
mod port;
mod ring;
mod tap;

use std::sync::Arc;

use vmlane_port::{BURST, DropReason, FramePort, MAX_HEAD, PortId, PortStats, TxFrame};

use crate::Slot;
use crate::core::Core;
use crate::egress::Receiver;
use crate::ingress::Frame;
use crate::port::Port;
use crate::price::{DELIVERY_COST, PIECE_COST};
pub use manage::Mirrors;

/// Which frames of a source are mirrored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MirrorDirection {
    /// Those that it sends into the switch.
    In,
    /// Those that it gets from the switch.
    Out,
    /// All.
    #[default]
    Both,
}

impl MirrorDirection {
    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            MirrorDirection::In => "in",
            MirrorDirection::Out => "out",
            MirrorDirection::Both => "both",
        }
    }

    /// The direction with a name.
    pub fn of_name(name: &str) -> Option<MirrorDirection> {
        [MirrorDirection::In, MirrorDirection::Out, MirrorDirection::Both]
            .into_iter()
            .find(|direction| direction.name() == name)
    }

    fn sees_in(self) -> bool {
        self != MirrorDirection::Out
    }

    fn sees_out(self) -> bool {
        self != MirrorDirection::In
    }
}

/// A mirror as the operator wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorSpec {
    pub name: String,
    /// The name of the port that gets the copies.
    pub to: String,
    pub direction: MirrorDirection,
    /// Copies carry this tag instead of their own; None: their own.
    pub vlan: Option<u16>,
    /// Bytes of each frame that are copied.
    pub snap: usize,
}

/// A mirror as it is.
#[derive(Clone, Debug)]
pub struct MirrorView {
    pub spec: MirrorSpec,
    /// Names of its sources, whether or not they exist.
    pub from: Vec<String>,
    /// Copies that were delivered are counted as sent (`tx_*`), those that were dropped by reason.
    pub stats: Arc<PortStats>,
}

/// Where a mirror's port sends its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// None: the port with that name does not exist.
    pub to: Option<PortId>,
    pub vlan: Option<u16>,
    /// Its part of a round, in parts of one VM.
    pub parts: usize,
}

impl Core {
    /// A mirror's turn: copies go to its destination until there are none or its part of the round is used up.
    #[cold]
    pub fn send_copies(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        end: &mut dyn FramePort,
        copies: Copies,
    ) -> bool {
        let receiver = copies.to.and_then(|id| self.slot(id));
        let mut left = self.ports.allowance(sender.owner).bytes.saturating_mul(copies.parts);
        let mut scratch = self.scratch.take().unwrap_or_else(|| Box::new([0; MAX_HEAD]));
        let mut moved = false;
        while left > 0 && (sender.tx.burst.has_frames() || sender.tx.burst.fetch(end, BURST as u32) > 0) {
            moved = true;
            while left > 0
                && let Some(token) = sender.tx.burst.take()
            {
                // A receiver's panic must not leave it lent.
                sender.tx.burst.done(token);
                let frame = end.frame(token);
                left = left.saturating_sub(frame.len() + DELIVERY_COST + frame.spans.pieces() * PIECE_COST);
                match self.deliver_copy(slot, receiver, &frame, copies.vlan, &mut scratch) {
                    Ok(()) => {
                        sender.tx.counts.frames += 1;
                        sender.tx.counts.bytes += frame.len() as u64;
                    }
                    Err(reason) => sender.lose(reason),
                }
            }
            end.finish(sender.tx.burst.take_done());
        }
        self.scratch = Some(scratch);
        moved
    }

    /// Delivers a copy now or never.
    fn deliver_copy(
        &mut self,
        slot: Slot,
        receiver: Option<Slot>,
        tx: &TxFrame<'_>,
        vlan: Option<u16>,
        scratch: &mut [u8; MAX_HEAD],
    ) -> Result<(), DropReason> {
        let receiver = receiver.ok_or(DropReason::NoReceiver)?;
        let claim = self.held.claim(slot);
        let is_over = self.ports.get(receiver).is_some_and(|port| self.ports.is_over(port.owner));
        let port = self.ports.get_mut(receiver).ok_or(DropReason::NoReceiver)?;
        port.comes_from(claim);
        let end = port.end.as_mut().ok_or(DropReason::NoReceiver)?;
        if is_over || port.pending.stalled || !port.pending.is_empty() {
            return Err(DropReason::NoBuffers);
        }
        // A guest gets others' frames only if it asks its card for all.
        if !port.config.uplink && !end.filter().promiscuous {
            return Err(DropReason::Filtered);
        }
        let sent = Frame::new(tx, scratch)?.check()?;
        let own = sent.frame.tag;
        let tag = vlan.map(|vlan| own.unwrap_or_default().with_vlan(vlan)).or(own);
        let mirror = !port.config.uplink;
        let to =
            Receiver { end: &mut **end, capabilities: &port.capabilities, counts: &mut port.rx, tag, mirror };
        self.serving = receiver;
        let outcome = self.egress.deliver(&sent, &mut 0, to);
        self.serving = slot;
        let (owner, overhead) = (port.owner, end.take_overhead());
        self.ports.charge(owner, overhead * PIECE_COST);
        self.mark(receiver);
        outcome
    }
}
