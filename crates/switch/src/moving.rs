//! A port goes to another worker, with all that is attached to it. No frame to or from it is lost or
//! overtakes another one, but for one to several that is on its way in the moment of the change: the port may
//! miss it, or get it twice. Frames for it wait meanwhile as those for a full receiver do, and as few may; a
//! port that watches others' frames may miss those that wait.
//!
//! Its rings are touched by one worker at any time: by the one that it leaves until that one has taken it out
//! of its table, and by the other one from when that one has put it into its own.
//!
//! | step | asked of | what it does |
//! | --- | --- | --- |
//! | [`Step::Hold`] | all | the port sends nothing more, and frames for it wait with the workers of their senders |
//! | [`Step::Settled`] | its worker, then the others | is nothing of it on the way? |
//! | [`Step::Leave`] | its worker | takes it out, if that is still so; in its place is a remote port |
//! | [`Step::Arrive`] | the other worker | puts it in, with the frames that wait there |
//! | [`Step::Follow`] | all but that one | frames for it are handed over to that one |
//! | [`Step::Resume`] | all | as ever |
//!
//! `moving/ask.rs` asks that of the workers, one step after the other.

mod ask;

use std::sync::atomic::Ordering;

use vmlane_port::{DropReason, MAX_HEAD};
use vmlane_wire::ethernet::Tci;
use vmlane_worker::Watch;

use crate::Slot;
use crate::core::Core;
use crate::fdb::Route;
use crate::handover::{PLACES, attach_remote, remote_end};
use crate::ingress::Frame;
use crate::pending::{PendingFrame, PendingQueue};
use crate::port::{Numbered, Port};
use crate::queue::Step;
use crate::table::Table;

pub use ask::Move;

/// Does a worker's part of a port's way to another one.
pub fn take_step(core: &mut Core, slot: Slot, step: Step) {
    match step {
        Step::Hold => {
            set_moving(&mut core.table, slot, true);
            note_arrived(core, slot);
        }
        Step::Resume => set_moving(&mut core.table, slot, false),
        Step::Settled(count) => {
            if is_settled(core, slot) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        Step::Leave { to, into } => {
            if is_settled(core, slot) {
                *into.lock() = take_out(core, slot, to);
            }
        }
        Step::Arrive(port) => put_in(core, slot, port),
        Step::Follow { to } => follow(core, slot, to),
    }
}

fn set_moving(table: &mut Table, slot: Slot, moving: bool) {
    if let Some(port) = table.ports.get_mut(slot) {
        port.transfer.moving = moving;
    }
    table.note(slot);
    // What was handed over before is on its way when this is done.
    table.send_handed();
}

/// Is nothing of a port on the way here?
fn is_settled(core: &mut Core, slot: Slot) -> bool {
    core.take_arrived();
    // Some of those may be for it.
    core.serve_remote();
    core.flush();
    let table = &mut core.table;
    table.send_handed();
    let Some(port) = table.ports.get(slot) else { return false };
    let sent = !port.tx.burst.has_in_flight();
    if port.remote.is_some() {
        return sent && !table.links.arrived.contains(&slot);
    }
    sent && !port.rx.pending.stalled && table.ports.may_take_along(port) && have_arrived_passed(table, slot)
}

/// Notes which frames have come from other workers until now: some of them may be for a port that is held,
/// and later ones are not.
fn note_arrived(core: &mut Core, slot: Slot) {
    core.take_arrived();
    let Table { ports, links, .. } = &mut core.table;
    let arrived = |&from: &Slot| {
        let end = ports.get_mut(from).and_then(remote_end)?;
        Some((from, end.count_arrived()))
    };
    let noted = links.arrived.iter().filter_map(arrived).collect();
    if let Some(port) = ports.get_mut(slot).filter(|port| port.remote.is_none()) {
        port.transfer.before = noted;
    }
}

/// Have those had their turns?
fn have_arrived_passed(table: &mut Table, slot: Slot) -> bool {
    let Table { ports, links, .. } = table;
    let noted = ports.get_mut(slot).map(|port| std::mem::take(&mut port.transfer.before));
    let mut left = noted.unwrap_or_default();
    left.retain(|&(from, count)| {
        let sender = ports.get_mut(from).filter(|_| links.arrived.contains(&from));
        sender.is_some_and(|sender| {
            let here = sender.tx.burst.count_left() as u64;
            remote_end(sender).is_some_and(|end| end.count_fetched().saturating_sub(here) < count)
        })
    });
    let all = left.is_empty();
    if let Some(port) = ports.get_mut(slot) {
        port.transfer.before = left;
    }
    all
}

/// Takes a port of this worker out of the table. Frames that wait for it stay, to be handed over.
fn take_out(core: &mut Core, slot: Slot, to: usize) -> Option<Box<Port>> {
    let table = &mut core.table;
    let mut port = table.ports.take(slot)?;
    port.publish_counts();
    port.watch.forget();
    let &mut Port { id, owner, group, .. } = &mut *port;
    let of = Numbered { id, slot, owner, group, remote: Some(to) };
    let mut remote = Port::new(of, port.config.clone(), port.stats.clone(), port.state.clone());
    remote.set_down(port.is_down());
    remote.transfer.moving = true;
    remote.rx.pending = std::mem::replace(&mut port.rx.pending, PendingQueue::small(table.now));
    table.ports.put(slot, Box::new(remote));
    follow(core, slot, to);
    set_moving(&mut core.table, slot, true);
    core.table.links.forget(slot);
    Some(port)
}

/// Puts a port that another worker had into the table.
fn put_in(core: &mut Core, slot: Slot, mut port: Box<Port>) {
    let table = &mut core.table;
    table.links.arrived.retain(|other| *other != slot);
    let mut waited = Vec::new();
    if let Some(mut remote) = table.ports.take(slot) {
        waited.extend(remote.rx.pending.frames().copied());
        port.group = remote.group;
        remote.drop_end();
    }
    port.transfer.before = Vec::new();
    // The other worker's tables, of which it is a part, are not this one's.
    port.tx.route = Route::default();
    port.rx.pending = PendingQueue::new(table.now);
    port.watch = Watch::new(true, table.now);
    let lookahead = if port.end.is_some() { port.attached.info.lookahead } else { PLACES };
    table.held.set_places(slot, lookahead);
    table.ports.put(slot, port);
    core.rebuild();
    waited.into_iter().for_each(|frame| wait_on(&mut core.table, slot, frame));
    core.table.count_waiting();
    core.table.mark(slot);
}

/// A frame that waited to be handed over waits for the port itself.
fn wait_on(table: &mut Table, slot: Slot, frame: PendingFrame) {
    let tag = table.attributed(frame.sender, |table| tag_of(table, slot, &frame)).flatten();
    let claim = table.held.claim(frame.sender);
    let Some(port) = table.ports.get_mut(slot) else { return };
    if tag.is_some_and(|tag| port.rx.pending.push(PendingFrame { tag, ..frame }, claim)) {
        return;
    }
    port.lose(if tag.is_some() { DropReason::NoBuffers } else { DropReason::Gone });
    table.held.give_back(frame.sender, port.owner);
    table.finish(frame.sender, frame.token);
}

/// The tag with which a port gets a frame; None: it does not get it.
fn tag_of(table: &Table, slot: Slot, frame: &PendingFrame) -> Option<Option<Tci>> {
    let (sender, port) = (table.ports.get(frame.sender)?, table.ports.get(slot)?);
    let in_flight = sender.end.as_ref()?.frame(frame.token);
    let mut scratch = [0; MAX_HEAD];
    let head = Frame::new(&in_flight, &mut scratch).ok()?;
    let (_, vlan, _) = head.admit(&sender.config, &sender.access).ok()?;
    let filter = port.end.as_ref()?.filter();
    port.access.receive(&port.config, filter, head.destination(), vlan, head.tag).ok()
}

/// A port of another worker is that of worker `to` now.
fn follow(core: &mut Core, slot: Slot, to: usize) {
    let table = &mut core.table;
    table.links.arrived.retain(|other| *other != slot);
    if let Some(port) = table.ports.get_mut(slot) {
        port.remote = Some(to);
        port.drop_end();
    }
    attach_remote(table, slot, core.number);
    core.rebuild();
    core.table.count_waiting();
    set_moving(&mut core.table, slot, false);
}
