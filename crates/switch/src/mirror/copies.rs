//! A mirror's turn: its copies go to their destination.

use vmlane_port::{BURST, DropReason, FramePort, TxFrame};

use super::spec::Copies;
use crate::Slot;
use crate::egress::{Egress, To};
use crate::ingress::Frame;
use crate::port::Port;
use crate::price::{DELIVERY_COST, PIECE_COST};
use crate::table::Table;

/// A mirror's turn: copies go to its destination until there are none or its part of the round is used up.
#[cold]
pub fn send_copies(
    table: &mut Table,
    egress: &mut Egress,
    slot: Slot,
    sender: &mut Port,
    end: &mut dyn FramePort,
    copies: Copies,
) -> bool {
    let receiver = copies.to.and_then(|id| table.slot(id));
    let mut left = table.ports.allowances.left(sender.owner).bytes.saturating_mul(copies.parts);
    let mut moved = false;
    while left > 0 && (sender.tx.burst.has_frames() || sender.tx.burst.fetch(end, BURST as u32) > 0) {
        moved = true;
        while left > 0
            && let Some(token) = sender.tx.burst.take()
        {
            // A receiver's panic must not leave it in flight.
            sender.tx.burst.done(token);
            let frame = end.frame(token);
            left = left.saturating_sub(frame.len() + DELIVERY_COST + frame.spans.pieces() * PIECE_COST);
            match deliver_copy(table, egress, slot, receiver, &frame, copies.vlan) {
                Ok(()) => {
                    sender.tx.counts.frames += 1;
                    sender.tx.counts.bytes += frame.len() as u64;
                }
                Err(reason) => sender.lose(reason),
            }
        }
        end.finish(sender.tx.burst.take_done());
    }
    moved
}

/// Delivers a copy now or never.
fn deliver_copy(
    table: &mut Table,
    egress: &mut Egress,
    slot: Slot,
    receiver: Option<Slot>,
    tx: &TxFrame<'_>,
    vlan: Option<u16>,
) -> Result<(), DropReason> {
    let receiver = receiver.ok_or(DropReason::NoReceiver)?;
    let port = table.ports.get(receiver).ok_or(DropReason::NoReceiver)?;
    let end = port.end.as_ref().ok_or(DropReason::NoReceiver)?;
    if table.ports.allowances.is_over(port.owner) || port.rx.pending.stalled || !port.rx.pending.is_empty() {
        return Err(DropReason::NoBuffers);
    }
    // A guest gets others' frames only if it asks its card for all.
    if !port.config.uplink && !end.filter().promiscuous {
        return Err(DropReason::Filtered);
    }
    let mirror = !port.config.uplink;
    let mut scratch = egress.take_scratch();
    let outcome = Frame::new(tx, &mut scratch).and_then(|frame| {
        let sent = frame.check()?;
        let own = sent.frame.tag;
        let tag = vlan.map(|vlan| own.unwrap_or_default().with_vlan(vlan)).or(own);
        let to = To { slot: receiver, tag, mirror };
        table.deliver(slot, to, |end| egress.deliver(&sent, &mut 0, end))
    });
    egress.put_scratch(scratch);
    outcome
}
