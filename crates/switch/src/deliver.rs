//! The last stage: a frame, or segments that were merged, into the port of a receiver.

use vmlane_port::{DropReason, FramePort, Token};
use vmlane_wire::ethernet::Tci;

use crate::Slot;
use crate::coalesce::Flow;
use crate::egress::{Egress, Receiver};
use crate::ingress::{Checked, Frame};
use crate::pending::PendingFrame;
use crate::table::Table;

/// Which port gets a frame, and as what.
#[derive(Clone, Copy)]
pub struct To {
    pub slot: Slot,
    /// The tag that it sees.
    pub tag: Option<Tci>,
    /// It is not the one addressed, and gets only complete frames.
    pub mirror: bool,
}

/// Runs a delivery into a port. `from`: whose frame it is.
#[inline]
fn into_port(
    table: &mut Table,
    from: Slot,
    to: To,
    deliver: impl FnOnce(Receiver<'_>) -> Result<(), DropReason>,
) -> Result<(), DropReason> {
    let claim = table.held.claim(from);
    let port = table.ports.get_mut(to.slot).ok_or(DropReason::Gone)?;
    port.comes_from(claim);
    let receiver = port.receiver(to.tag, to.mirror).ok_or(DropReason::Gone)?;
    let outcome = table.serving.attribute(to.slot, || deliver(receiver));
    table.delivered(to.slot);
    outcome
}

/// Delivers a frame. `next`: segments delivered before, and how many when this returns.
#[inline]
pub fn deliver(
    egress: &mut Egress,
    table: &mut Table,
    from: Slot,
    sent: &Checked<'_>,
    next: &mut u16,
    to: To,
) -> Result<(), DropReason> {
    into_port(table, from, to, |receiver| egress.deliver(sent, next, receiver))
}

/// Delivers a flow that is closed: whole, or where that cannot be each of its segments as it came. `waits`
/// gets those that wait for their receiver's buffers.
pub fn deliver_flow(
    egress: &mut Egress,
    table: &mut Table,
    flow: &Flow,
    (from, end): (Slot, &dyn FramePort),
    mut waits: impl FnMut(Token),
) {
    let to = To { slot: flow.receiver, tag: flow.tag, mirror: false };
    let Some(port) = table.ports.get(to.slot) else { return };
    if port.end.is_none() {
        return flow.tokens().iter().for_each(|_| port.lose(DropReason::Gone));
    }
    let whole = flow.is_merged() && ready(table, to.slot, false);
    if whole && into_port(table, from, to, |receiver| egress.merged(flow, receiver)).is_ok() {
        return;
    }
    for &token in flow.tokens() {
        let tx = end.frame(token);
        let outcome = if ready(table, to.slot, true) {
            let mut scratch = egress.take_scratch();
            let outcome = Frame::new(&tx, &mut scratch).and_then(|frame| {
                // It succeeded when the frame came in, from the same private bytes.
                let sent = flow.first(token, &frame).map_or_else(|| frame.check(), Ok)?;
                deliver(egress, table, from, &sent, &mut 0, to)
            });
            egress.put_scratch(scratch);
            outcome
        } else {
            Err(DropReason::NoBuffers)
        };
        match outcome {
            Ok(()) => {}
            Err(DropReason::NoBuffers) => {
                let (sender, len) = (from, tx.len() as u32);
                let frame = PendingFrame { sender, token, len, tag: to.tag, next: 0, since: table.now };
                match table.pend(to.slot, frame, true) {
                    Ok(()) => waits(token),
                    Err(reason) => {
                        table.ports.get(to.slot).iter().for_each(|port| port.show_lost(&tx, reason));
                    }
                }
            }
            Err(reason) => table.ports.get(to.slot).iter().for_each(|port| port.lose(reason)),
        }
    }
}

/// May a port be given a frame before those that wait for it? `charged`: nor if its owner has caused too
/// much.
fn ready(table: &Table, slot: Slot, charged: bool) -> bool {
    let Some(port) = table.ports.get(slot) else { return true };
    port.rx.pending.is_empty() && !(charged && table.ports.allowances.is_over(port.owner))
}

#[cfg(test)]
mod tests;
