//! Stream set-up spoken by hand: VM 3 connects to a port of VM 4.

use vmlane_guestsim::{Datagram, Driver, PairSpec, Path, Placement, Queues};
use vmlane_wire::vmci::{Handle, QP_ATTACH_ONLY};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};

use super::World;

pub const CLIENT: (u32, u32) = (3, 1030);
pub const SERVER: (u32, u32) = (4, 5000);
pub const PAIR: Handle = Handle::new(3, 2000);
pub const CREATE: PairSpec = PairSpec { handle: PAIR, peer: 4, flags: 0, produce: 4096, consume: 4096 };
pub const ATTACH: PairSpec = PairSpec { peer: 3, flags: QP_ATTACH_ONLY, ..CREATE };

/// A control packet as it arrived: from whom, what, to which port.
pub type Seen = ((u32, u32), PacketType, u32);

pub fn send_packet(driver: &mut Driver, to: (u32, u32), from_port: u32, kind: PacketType) -> i32 {
    let packet = match kind {
        PacketType::Request2 | PacketType::Negotiate2 => {
            ControlPacket::new(kind, from_port, to.1).with_size(4096, 1)
        }
        PacketType::Request | PacketType::Negotiate => {
            ControlPacket::new(kind, from_port, to.1).with_size(4096, 0)
        }
        PacketType::Offer | PacketType::Attach => ControlPacket::new(kind, from_port, to.1).with_handle(PAIR),
        _ => ControlPacket::new(kind, from_port, to.1),
    };
    driver.control(to.0, packet)
}

/// The control packets that wait for this guest.
pub fn received(driver: &mut Driver) -> Vec<Seen> {
    let seen = |datagram: Datagram| {
        let packet = datagram.control()?;
        Some(((datagram.src.context, packet.src_port()), packet.kind()?, packet.dst_port()))
    };
    driver.service().into_iter().filter_map(seen).collect()
}

pub fn two(world: &World) -> [Driver; 2] {
    [3, 4].map(|cid| world.machine(cid).probe(Path::Dma))
}

pub fn states(world: &World) -> Vec<&'static str> {
    world.hypervisor.connections().iter().map(|connection| connection.state).collect()
}

/// Says something that is passed on to the other end as it is.
pub fn pass(from: &mut Driver, to: &mut Driver, [source, target]: [(u32, u32); 2], kind: PacketType) {
    assert_eq!(send_packet(from, target, source.1, kind), 56);
    assert_eq!(received(to), [(source, kind, target.1)]);
}

/// As far as an offer that the server has not answered.
pub fn offered(a: &mut Driver, b: &mut Driver) -> Queues {
    pass(a, b, [CLIENT, SERVER], PacketType::Request2);
    pass(b, a, [SERVER, CLIENT], PacketType::Negotiate2);
    let queues = a.alloc(&CREATE, Placement::Scattered).expect("a pair");
    pass(a, b, [CLIENT, SERVER], PacketType::Offer);
    queues
}

pub fn established(a: &mut Driver, b: &mut Driver) -> [Queues; 2] {
    let client = offered(a, b);
    let server = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    pass(b, a, [SERVER, CLIENT], PacketType::Attach);
    [client, server]
}
