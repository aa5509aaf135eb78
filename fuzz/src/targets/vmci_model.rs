//! Datagrams and stream handshakes of three guests against a model of what may arrive: a datagram that was
//! accepted arrives once, whole, in its sender's order, where it was sent and nowhere else; a packet of a
//! handshake arrives at most once, and only where its connection has come so far.

use std::collections::{HashMap, HashSet, VecDeque};

use std::sync::Arc;
use vmlane_device::vmci::{Hypervisor, Limits};
use vmlane_guestsim::{Datagram, Driver, Lines, Machine, PairSpec, Path, Placement, Queues, vm};
use vmlane_stream::Inline;
use vmlane_vsock::Router;
use vmlane_wire::vmci::{CID_HOST, Handle};
use vmlane_wire::vmci_stream::{CONTROL_RESOURCE, ControlPacket, PacketType};
use zerocopy::IntoBytes;

use crate::Input;

const CIDS: [u32; 3] = [3, 4, 5];
/// No VM has this one.
const ABSENT: u32 = 9;
const PORTS: [u32; 2] = [7, 2000];
/// Waiting bytes up to which a datagram must be accepted: half of what a VM's queue holds is for one sender.
const SURE: usize = 16 << 10;

/// From, its port, to, its port.
type Way = (u32, u32, u32, u32);

/// Resources and payload of a datagram.
type Sent = (u32, u32, Vec<u8>);

#[derive(Default)]
struct Model {
    /// Accepted and not seen: by sender and receiver, resources and payload.
    datagrams: HashMap<(u32, u32), VecDeque<Sent>>,
    /// Control packets sent and not seen; the device may keep some for itself.
    packets: HashMap<Way, VecDeque<Vec<u8>>>,
    /// Kinds that a guest has sent at all.
    announced: HashSet<(Way, u8)>,
}

impl Model {
    fn waiting(&self, to: u32) -> usize {
        let queues = self.datagrams.iter().filter(|((_, receiver), _)| *receiver == to);
        queues.flat_map(|(_, queue)| queue).map(|(.., payload)| payload.len() + 32).sum()
    }

    fn has_announced(&self, way: Way, kinds: &[PacketType]) -> bool {
        kinds.iter().any(|kind| self.announced.contains(&(way, *kind as u8)))
    }

    /// What guest `cid` found in its device.
    fn arrived(&mut self, cid: u32, datagram: Datagram) {
        if datagram.src == Handle::new(0, 0) {
            return; // an event about queue pairs
        }
        assert_eq!(datagram.dst.context, cid, "delivered to another guest");
        let from = datagram.src.context;
        if datagram.dst.resource != CONTROL_RESOURCE {
            let queue = self.datagrams.entry((from, cid)).or_default();
            let expected = queue.pop_front();
            let got = (datagram.src.resource, datagram.dst.resource, datagram.payload);
            assert_eq!(Some(got), expected, "{from} to {cid}");
            return;
        }
        let packet = ControlPacket::parse(&datagram.payload).expect("the device sends whole packets");
        let kind = packet.kind().expect("the device sends packets of the protocol");
        let way = (from, packet.src_port(), cid, packet.dst_port());
        let back = (cid, packet.dst_port(), from, packet.src_port());
        use PacketType as P;
        if from == CID_HOST {
            // There is no listener: it refuses, and does nothing else.
            assert!(matches!(kind, P::Rst | P::Invalid), "{kind:?} from the host: {way:?}");
            return;
        }
        assert!(same_group(from, cid), "{kind:?} crosses groups: {way:?}");
        match kind {
            // In the other end's name, whichever end refuses.
            P::Rst => return,
            // The device's own, once a queue pair was offered.
            P::Wrote | P::Read | P::WaitingRead | P::WaitingWrite | P::Shutdown => {
                let far = self.has_announced(back, &[P::Offer]) && self.has_announced(way, &[P::Attach]);
                let near = self.has_announced(back, &[P::Attach]) && self.has_announced(way, &[P::Offer]);
                assert!(far || near, "{kind:?} without a connection: {way:?}");
                return;
            }
            P::Invalid if !self.has_announced(way, &[P::Invalid]) => return,
            P::Request | P::Request2 => {}
            P::Invalid | P::Negotiate | P::Negotiate2 => {
                assert!(self.has_announced(back, &[P::Request, P::Request2]), "{kind:?} unasked: {way:?}");
            }
            P::Offer => {
                assert!(self.has_announced(back, &[P::Negotiate, P::Negotiate2]), "OFFER unasked: {way:?}");
            }
            P::Attach => assert!(self.has_announced(back, &[P::Offer]), "ATTACH unasked: {way:?}"),
        }
        let sent = self.packets.entry(way).or_default();
        let place = sent.iter().position(|bytes| bytes[..] == datagram.payload[..]);
        let place = place.unwrap_or_else(|| panic!("{kind:?} was not sent, or comes twice or late: {way:?}"));
        sent.drain(..=place);
    }
}

fn same_group(one: u32, other: u32) -> bool {
    [one, other].iter().all(|cid| [3, 4].contains(cid)) || one == other
}

fn check(model: &mut Model, guests: &mut [Driver], which: usize) {
    for datagram in guests[which].receive() {
        model.arrived(CIDS[which], datagram);
    }
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let hypervisor = Hypervisor::new(Router::new(Arc::new(Inline::default())));
    let paths = input.byte();
    let machines = CIDS.map(|cid| {
        let mut spec = vm(cid);
        spec.vm.group = if cid == 5 { "other" } else { "one" }.into();
        spec.vm.connections = 8;
        spec.limits = Limits { queue_pairs: 8, doorbells: 8, ..Limits::default() };
        Machine::with(&hypervisor, spec, 1 << 20, Lines::msix())
    });
    let mut guests: Vec<Driver> = machines
        .iter()
        .zip(0..)
        .map(|(machine, bit)| machine.probe(if paths >> bit & 1 == 0 { Path::Dma } else { Path::Ports }))
        .collect();
    let mut model = Model::default();
    let mut pairs: Vec<(usize, Queues)> = Vec::new();
    while !input.is_empty() {
        let (what, which) = (input.byte(), usize::from(input.byte()) % CIDS.len());
        let own = CIDS[which];
        let to = [3, 4, 5, ABSENT, CID_HOST][usize::from(input.byte()) % 5];
        match what % 8 {
            0 | 1 => {
                let (source, target) = (20 + u32::from(input.byte() & 1), 30 + u32::from(input.byte() & 1));
                let len = usize::from(input.byte()) * usize::from(input.byte() & 15);
                let payload = vec![what; len];
                let waiting = model.waiting(to);
                let result = guests[which].send_to(Handle::new(to, target), source, &payload);
                if result >= 0 && to != CID_HOST {
                    assert!(same_group(own, to), "{own} to {to} was accepted");
                    model.datagrams.entry((own, to)).or_default().push_back((source, target, payload));
                } else if same_group(own, to) && own != to {
                    assert!(waiting + len > SURE, "{own} to {to} was refused: {result}, {waiting} waiting");
                }
            }
            2..=5 => {
                let kind = PacketType::from_wire(input.byte() % 13).unwrap_or(PacketType::Invalid);
                let ports = input.byte();
                let (from, dst) = (PORTS[usize::from(ports & 1)], PORTS[usize::from(ports >> 1 & 1)]);
                let packet = ControlPacket::new(kind, from, dst);
                let handle = Handle::new(3 + u32::from(ports >> 2 & 1), 1024 + u32::from(ports >> 3 & 1));
                let packet = match kind {
                    PacketType::Offer | PacketType::Attach => packet.with_handle(handle),
                    PacketType::Shutdown => packet.with_mode(u64::from(ports >> 2 & 3)),
                    _ => packet.with_size(4096, u16::from(ports >> 2 & 1)),
                };
                let way = (own, from, to, dst);
                // Known before it is sent: what it brings about may come within the call.
                model.announced.insert((way, kind as u8));
                model.packets.entry(way).or_default().push_back(packet.as_bytes().to_vec());
                guests[which].control(to, packet);
            }
            6 => {
                let bits = input.byte();
                if bits & 3 == 3 {
                    if let Some(at) = pairs.iter().position(|(owner, _)| *owner == which) {
                        let (_, queues) = pairs.swap_remove(at);
                        guests[which].detach(queues);
                    }
                    continue;
                }
                if pairs.len() >= 12 {
                    continue;
                }
                let handle = Handle::new(3 + u32::from(bits >> 2 & 1), 1024 + u32::from(bits >> 3 & 1));
                let spec =
                    PairSpec { handle, peer: to, flags: u32::from(bits & 2), produce: 4096, consume: 4096 };
                if let Ok(queues) = guests[which].alloc(&spec, Placement::Contiguous) {
                    pairs.push((which, queues));
                }
            }
            _ => check(&mut model, &mut guests, which),
        }
    }
    for (driver, cid) in guests.iter_mut().zip(CIDS) {
        // Through byte ports a batch ends at the end of a page; an interrupt announces the rest.
        while let batch @ [_, ..] = &mut driver.receive()[..] {
            batch.iter_mut().for_each(|datagram| model.arrived(cid, datagram.clone()));
        }
    }
    let left: Vec<_> = model.datagrams.iter().filter(|(_, queue)| !queue.is_empty()).collect();
    assert!(left.is_empty(), "accepted, and never came: {left:?}");
}
