//! Into the port of a receiver: a flow that is closed, whole or as the segments that came.

use vmlane_port::{DropReason, FramePort, Token};

use crate::Slot;
use crate::coalesce::Flow;
use crate::egress::{Egress, To};
use crate::ingress::Frame;
use crate::pending::PendingFrame;
use crate::table::Table;

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
    if whole && table.deliver(from, to, |receiver| egress.merged(flow, receiver)).is_ok() {
        return;
    }
    for &token in flow.tokens() {
        let tx = end.frame(token);
        let outcome = if ready(table, to.slot, true) {
            let mut scratch = egress.take_scratch();
            let outcome = Frame::new(&tx, &mut scratch).and_then(|frame| {
                // It succeeded when the frame came in, from the same private bytes.
                let sent = flow.first(token, &frame).map_or_else(|| frame.check(), Ok)?;
                table.deliver(from, to, |receiver| egress.deliver(&sent, &mut 0, receiver))
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
