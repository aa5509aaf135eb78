//! A mirror's turn: its copies go to their destination.

use vmlane_port::{BURST, DropReason, FramePort, MAX_HEAD, TxFrame};

use super::spec::Copies;
use crate::Slot;
use crate::core::Core;
use crate::egress::Receiver;
use crate::ingress::Frame;
use crate::port::Port;
use crate::price::{DELIVERY_COST, PIECE_COST};

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
        let mut left = self.ports.allowances.left(sender.owner).bytes.saturating_mul(copies.parts);
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
        let is_over = self.ports.get(receiver).is_some_and(|port| self.ports.allowances.is_over(port.owner));
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
        let frame = Frame::new(tx, scratch)?;
        let sent = frame.check()?;
        let own = sent.frame.tag;
        let tag = vlan.map(|vlan| own.unwrap_or_default().with_vlan(vlan)).or(own);
        let mirror = !port.config.uplink;
        let to =
            Receiver { end: &mut **end, capabilities: &port.capabilities, counts: &mut port.rx, tag, mirror };
        self.serving = receiver;
        let outcome = self.egress.deliver(&sent, &mut 0, to);
        self.serving = slot;
        let (owner, overhead) = (port.owner, port.info.overhead.take());
        self.ports.allowances.charge(owner, overhead * PIECE_COST);
        self.mark(receiver);
        outcome
    }
}
