//! What a worker does for the ports of others, and they for its own.

use std::any::Any;

use arrayvec::ArrayVec;
use vmlane_port::{BURST, Token};

use super::frame::HandedFrame;
use super::origin::Origin;
use super::port::RemotePort;
use super::state::Attachment;
use crate::Slot;
use crate::port::Port;
use crate::queue::{Change, Request};
use crate::table::Table;

/// Workers, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workers(u64);

impl Workers {
    pub fn add(&mut self, worker: usize) {
        self.0 |= 1 << worker;
    }

    pub fn remove(&mut self, worker: usize) {
        self.0 &= !(1 << worker);
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..u64::BITS as usize).filter(move |worker| self.0 >> worker & 1 != 0)
    }
}

/// The remote port that is attached there.
pub fn remote_end(port: &mut Port) -> Option<&mut RemotePort> {
    let end: &mut dyn Any = &mut **port.end.as_mut()?;
    end.downcast_mut()
}

/// Has a port frames to send that came from another worker?
pub fn has_frames(port: &mut Port) -> bool {
    port.tx.burst.has_frames() || remote_end(port).is_some_and(|end| end.has_frames())
}

/// Notifies the other workers of what is attached to a port of this one, if that has changed.
pub fn publish(table: &mut Table, slot: Slot) {
    if table.links.is_alone() {
        return;
    }
    let attachment = table.attributed(slot, |table| {
        let port = table.ports.get(slot).filter(|port| !port.attached.retired)?;
        let end = port.end.as_ref()?;
        Some(Attachment { number: port.attached.number, filter: end.filter().clone() })
    });
    let Some(port) = table.ports.get(slot).filter(|port| port.remote.is_none()) else { return };
    if !port.state.remote.publish(attachment.flatten()) {
        return;
    }
    let (id, state) = (port.id, port.state.clone());
    for worker in table.links.others() {
        if state.remote.note_unnotified(worker) {
            table.links.ask(worker, Request::Of(id, Change::Adopt));
        }
    }
}

/// What is attached to another worker's port, `number` is this one's, has changed. True if it is another end
/// than before.
pub fn adopt_remote(table: &mut Table, slot: Slot, number: usize) -> bool {
    let Some(port) = table.ports.get(slot) else { return false };
    let Some(worker) = port.remote else { return false };
    let now = port.state.remote.read(number);
    let known = now.as_ref().is_some_and(|now| {
        let port = table.ports.get_mut(slot);
        port.and_then(remote_end)
            .filter(|end| end.is(now.number))
            .map(|end| end.set_filter(now.filter.clone()))
            .is_some()
    });
    if !known {
        table.drop_pending_between(slot);
        table.ports.get_mut(slot).map(Port::drop_end);
        put_remote(table, slot, worker, now);
    }
    !known
}

/// The port is that of another worker than before, and nothing of it is on the way.
pub fn attach_remote(table: &mut Table, slot: Slot, number: usize) {
    let Some(port) = table.ports.get(slot) else { return };
    let Some(worker) = port.remote else { return };
    let now = port.state.remote.read(number);
    put_remote(table, slot, worker, now);
}

fn put_remote(table: &mut Table, slot: Slot, worker: usize, now: Option<Attachment>) {
    let end = now.and_then(|now| Some(Box::new(RemotePort::new(now, table.links.done(worker)?))));
    if let Some(port) = table.ports.get_mut(slot) {
        port.end = end.map(|end| end as _);
    }
    table.held.set_places(slot, super::PLACES);
}

/// What has come from other workers.
#[derive(Default)]
pub struct Arrivals {
    /// Frames that they are done with, and frames of theirs: empty between rounds.
    finished: Vec<(Origin, Token)>,
    arriving: Vec<(usize, Box<HandedFrame>)>,
    /// Whether remote ports are served before this worker's own in this round.
    remote_first: bool,
}

impl Arrivals {
    /// A round begins. True if remote ports are served first in it.
    pub fn take_turns(&mut self) -> bool {
        self.remote_first = !self.remote_first;
        self.remote_first
    }

    /// Takes what other workers have handed over or are done with. True if there was anything.
    pub fn take(&mut self, table: &mut Table) -> bool {
        if table.links.is_alone() || !table.links.has_waiting() {
            return false;
        }
        let finished = &mut self.finished;
        table.links.take_back(|origin, token| finished.push((origin, token)));
        for of_one in finished.chunk_by(|a, b| a.0 == b.0) {
            let Some(&(Origin { slot, attachment, .. }, _)) = of_one.first() else { continue };
            if table.ports.get(slot).is_some_and(|port| port.attached.number == attachment) {
                finish_all(table, slot, of_one);
            } else {
                table.links.let_go();
            }
        }
        finished.clear();
        let arriving = &mut self.arriving;
        table.links.take_arrived(|worker, frame| arriving.push((worker, frame)));
        for (worker, frame) in arriving.drain(..) {
            arrive(table, worker, frame);
        }
        true
    }
}

/// Others are done with these frames of a port.
fn finish_all(table: &mut Table, slot: Slot, frames: &[(Origin, Token)]) {
    for some in frames.chunks(BURST) {
        let tokens: ArrayVec<Token, BURST> =
            some.iter().map(|(_, token)| *token).filter(|token| table.links.is_last(slot, *token)).collect();
        table.complete(slot, &tokens);
        table.mark(slot);
    }
}

/// A frame has come: its sender's remote port is to send it.
fn arrive(table: &mut Table, worker: usize, frame: Box<HandedFrame>) {
    let Origin { slot, attachment, .. } = frame.origin;
    let end = table.ports.get_mut(slot).filter(|port| port.remote == Some(worker)).and_then(remote_end);
    match end.filter(|end| end.is(attachment)) {
        Some(end) => {
            end.push(frame);
            if !table.links.arrived.contains(&slot) {
                table.links.arrived.push(slot);
            }
        }
        // Its sender is gone, or will be: its memory is not to be read.
        None => {
            if let Some(done) = table.links.done(worker) {
                done.lock().push(frame);
            }
        }
    }
}
