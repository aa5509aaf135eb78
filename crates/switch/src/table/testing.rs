//! A few ports in a worker's table, for tests of one stage: without a switch, a thread or a round.

use std::sync::Arc;

use etherparse::PacketBuilder;
use vmlane_guestsim::memory_port::Wire;
use vmlane_port::{BURST, FramePort, PortId, RxCapabilities, Token};
use vmlane_wire::ethernet::Mac;
use vmlane_worker::Parking;

use super::Table;
use crate::Slot;
use crate::allowances::Allowance;
use crate::handover::Links;
use crate::pending::PendingFrame;
use crate::port::{Numbered, Port};
use crate::queue::Requests;
use crate::spec::{Policy, PortSpec, Settings};

/// The worker whose ports are the remote ones.
pub const OTHER_WORKER: usize = 1;

/// What a port is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A guest's, as any.
    Guest,
    /// That of a guest that watches the frames of others.
    Watcher,
    Uplink,
    /// That of a guest of [`OTHER_WORKER`].
    Remote,
}

pub fn mac(slot: Slot) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, slot as u8])
}

/// A frame of no protocol that is known, with a number as its last byte.
pub fn frame(to: Mac, from: Slot, len: usize, number: u8) -> Vec<u8> {
    let mut frame = [&to.0[..], &mac(from).0, &[0x88, 0xb5]].concat();
    frame.resize(len - 1, 0);
    frame.push(number);
    frame
}

/// TCP segments that follow each other, of so many bytes of payload each.
pub fn segments(to: Slot, from: Slot, count: usize, payload: usize) -> Vec<Vec<u8>> {
    let segment = |number| {
        let builder = PacketBuilder::ethernet2(mac(from).0, mac(to).0)
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(40000, 5201, (number * payload) as u32, 500)
            .ack(1);
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &vec![number as u8; payload]).unwrap();
        bytes
    };
    (0..count).map(segment).collect()
}

/// A table, the guests' ends of its ports by slot, and what the other worker has of it.
pub struct Bench {
    pub table: Table,
    pub wires: Vec<Wire>,
    pub other: Links,
}

impl Bench {
    /// Each port has an owner of its own; the first one's slot is 0.
    pub fn new(kinds: &[Kind]) -> Bench {
        let requests = [(); OTHER_WORKER + 1].map(|()| Arc::new(Requests::new(Parking::new().unwrap())));
        let [links, other] = Links::between(&requests).unwrap().try_into().ok().unwrap();
        let settings = Settings::default();
        let mut table = Table::new(settings, Arc::default(), links, 0);
        table.ports.begin_round(Allowance { frames: settings.frames, bytes: settings.bytes });
        let mut bench = Bench { table, wires: Vec::new(), other };
        (0..).zip(kinds).for_each(|(slot, kind)| bench.add(slot, *kind));
        bench.table.rebuild();
        bench
    }

    fn add(&mut self, slot: Slot, kind: Kind) {
        let (wire, end) = Wire::new(mac(slot));
        wire.change_filter(|filter| filter.promiscuous = [Kind::Watcher, Kind::Uplink].contains(&kind));
        let policy = Policy { promiscuous: kind == Kind::Watcher, ..Policy::default() };
        let spec = PortSpec { policy, uplink: kind == Kind::Uplink, ..PortSpec::plain("port", mac(slot)) };
        let id = PortId(u32::from(slot) + 1);
        let remote = (kind == Kind::Remote).then_some(OTHER_WORKER);
        let of = Numbered { id, slot, owner: slot, group: 0, remote };
        let mut port = Port::new(of, (&spec).into(), Arc::default(), Arc::default());
        port.plug(end, self.table.now);
        port.end.iter_mut().for_each(|end| end.refresh());
        self.table.held.set_places(slot, port.attached.info.lookahead);
        self.table.ports.add(slot, Box::new(port));
        self.wires.push(wire);
    }

    pub fn wire(&self, slot: Slot) -> &Wire {
        &self.wires[usize::from(slot)]
    }

    pub fn port(&mut self, slot: Slot) -> &mut Port {
        self.table.ports.get_mut(slot).unwrap()
    }

    /// What a port takes, as of this round.
    pub fn set_capabilities(&mut self, slot: Slot, capabilities: RxCapabilities) {
        self.wire(slot).set_capabilities(capabilities);
        self.port(slot).rx.capabilities = capabilities;
    }

    /// Takes a port out of the table for its turn, and fetches what its guest has sent.
    pub fn begin_turn(&mut self, slot: Slot) -> (Box<Port>, Box<dyn FramePort>) {
        let mut port = self.table.ports.take(slot).unwrap();
        let mut end = port.end.take().unwrap();
        port.tx.burst.fetch(&mut *end, BURST as u32);
        (port, end)
    }

    /// Completes what the port is done with, and puts it back.
    pub fn end_turn(&mut self, slot: Slot, (mut port, mut end): (Box<Port>, Box<dyn FramePort>)) {
        end.finish(port.tx.burst.take_done());
        port.end = Some(end);
        self.table.ports.put(slot, port);
    }

    /// Frames of `sender` that wait for `receiver` since now.
    pub fn wait(&mut self, sender: Slot, receiver: Slot, frames: &[Vec<u8>]) {
        frames.iter().for_each(|frame| self.wire(sender).send(frame, vmlane_port::Offload::None, None));
        self.wait_sent(sender, receiver);
    }

    /// The same for those that the guest has sent.
    pub fn wait_sent(&mut self, sender: Slot, receiver: Slot) {
        while self.wire(sender).queued() > 0 {
            let (mut port, end) = self.begin_turn(sender);
            let tokens: Vec<Token> = std::iter::from_fn(|| port.tx.burst.take()).collect();
            let lens: Vec<u32> = tokens.iter().map(|&token| end.frame(token).len() as u32).collect();
            self.end_turn(sender, (port, end));
            for (token, len) in tokens.into_iter().zip(lens) {
                let since = self.table.now;
                let frame = PendingFrame { sender, token, len, tag: None, next: 0, since };
                self.table.pend(receiver, frame, true).unwrap();
            }
        }
    }

    /// How many frames wait for a port.
    pub fn waiting(&mut self, slot: Slot) -> usize {
        self.port(slot).rx.pending.frames().count()
    }

    /// The bytes of what a port received since the last call.
    pub fn received(&self, slot: Slot) -> Vec<Vec<u8>> {
        self.wire(slot).received().into_iter().map(|frame| frame.bytes).collect()
    }

    /// The lengths of the frames that the other worker finds.
    pub fn handed_over(&mut self) -> Vec<usize> {
        self.table.links.send_all();
        let mut lens = Vec::new();
        self.other.take_arrived(|_, mut frame| {
            frame.prepare();
            lens.push(frame.frame().len());
        });
        lens
    }
}
