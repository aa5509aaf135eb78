//! Control packets that are refused, and that do no harm by being sent.

use vmlane_guestsim::{Driver, PairSpec, Path, Placement, vm_with};
use vmlane_testkit::wait_until;
use vmlane_wire::vmci::{Handle, VmciError};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};
use zerocopy::IntoBytes;

use super::World;
use super::talk::{
    ATTACH, CLIENT, CREATE, PAIR, SERVER, established, offered, pass, received, send_packet, states, two,
};

#[test]
fn connecting_to_a_closed_port_fails() {
    let world = World::new();
    let [mut a, _b] = two(&world);
    let _other = world.machine_with(vm_with(6, |vm| vm.group = "other".into())).probe(Path::Dma);
    for cid in [1, 5, 6, 99] {
        let result = send_packet(&mut a, (cid, 5000), 1030, PacketType::Request2);
        assert!(result == VmciError::InvalidResource.code(), "CID {cid}: {result}");
    }
    // The host itself: no program listens there.
    assert_eq!(send_packet(&mut a, (2, 5000), 1030, PacketType::Request2), 56);
    assert_eq!(received(&mut a), [((2, 5000), PacketType::Rst, 1030)]);
    assert_eq!(states(&world), [""; 0]);
}

#[test]
fn packets_out_of_turn_are_answered_with_rst() {
    use PacketType::*;
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let refused = |driver: &mut Driver, to: (u32, u32), from: (u32, u32), kind| {
        assert_eq!(send_packet(driver, to, from.1, kind), 56);
        assert_eq!(received(driver), [(to, Rst, from.1)], "{kind:?}");
    };
    for kind in [Negotiate2, Offer, Attach, Wrote, Read, Shutdown, WaitingRead, WaitingWrite, Invalid] {
        refused(&mut a, SERVER, CLIENT, kind);
    }
    pass(&mut a, &mut b, [CLIENT, SERVER], Request2);
    for kind in [Offer, Attach, Negotiate2, Wrote, Shutdown] {
        refused(&mut a, SERVER, CLIENT, kind);
    }
    for kind in [Attach, Offer, Wrote, Shutdown, Read] {
        refused(&mut b, CLIENT, SERVER, kind);
    }
    pass(&mut b, &mut a, [SERVER, CLIENT], Negotiate2);
    refused(&mut b, CLIENT, SERVER, Negotiate2);
    refused(&mut a, SERVER, CLIENT, Wrote);
    // Offers of what does not exist, or attaches that did not happen.
    refused(&mut a, SERVER, CLIENT, Offer);
    let _pair = a.alloc(&CREATE, Placement::Scattered).expect("a pair");
    pass(&mut a, &mut b, [CLIENT, SERVER], Offer);
    refused(&mut b, CLIENT, SERVER, Attach);
    assert_eq!(states(&world), ["offered"], "none of this has hurt the connection");
    assert_eq!(send_packet(&mut a, (4, 9), 9, Rst), 56);
    assert_eq!((received(&mut a), received(&mut b)), (vec![], vec![]), "an RST is never answered");
}

#[test]
fn a_stranger_cannot_meddle() {
    use PacketType::*;
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let mut c = world.machine(5).probe(Path::Dma);
    let pairs = established(&mut a, &mut b);
    for kind in [Negotiate2, Offer, Attach, Wrote, Read, Rst, Shutdown, WaitingRead, WaitingWrite, Invalid] {
        for to in [CLIENT, SERVER] {
            for from_port in [CLIENT.1, SERVER.1] {
                assert_eq!(send_packet(&mut c, to, from_port, kind), 56);
            }
        }
    }
    let spec = PairSpec { peer: 3, ..ATTACH };
    assert!(c.alloc(&spec, Placement::Scattered).is_err());
    assert_eq!(c.call(11, &[3, 0, 0, 0, 0xd0, 7, 0, 0]), VmciError::NotFound.code());
    assert_eq!((received(&mut a), received(&mut b)), (vec![], vec![]));
    assert_eq!(states(&world), ["established"]);
    pairs[0].enqueue(b"still here");
    assert_eq!(send_packet(&mut a, SERVER, CLIENT.1, Wrote), 56);
    wait_until("bytes still move", || pairs[1].ready() == 10);
}

#[test]
fn a_pair_of_another_vm_cannot_be_offered() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let mut c = world.machine(5).probe(Path::Dma);
    let theirs = PairSpec { handle: PAIR, peer: 4, ..CREATE };
    let _made = a.alloc(&theirs, Placement::Scattered).expect("a pair");
    let own = (5, 1030);
    pass(&mut c, &mut b, [own, SERVER], PacketType::Request2);
    pass(&mut b, &mut c, [SERVER, own], PacketType::Negotiate2);
    assert_eq!(send_packet(&mut c, SERVER, own.1, PacketType::Offer), 56);
    assert_eq!(received(&mut c), [(SERVER, PacketType::Rst, own.1)]);
    assert_eq!(received(&mut b), []);
    assert_eq!(world.view(5).stats.refused_queue_pair.get(), 1);
}

#[test]
fn malformed_control_packets_are_refused() {
    let world = World::new();
    let [mut a, mut b] = two(&world);
    let mut request = ControlPacket::new(PacketType::Request2, 1030, 5000).with_size(4096, 1);
    let endpoint = Handle::new(4, 1);
    let bytes = request.as_mut_bytes();
    assert_eq!(a.send_to(endpoint, 1, &bytes[..31]), VmciError::InvalidArgs.code());
    assert_eq!(a.send_to(endpoint, 2, bytes), VmciError::NoAccess.code());
    assert_eq!(a.send_to(endpoint, 1, &[&*bytes, &[0; 8]].concat()), 64, "longer ones are tolerated");
    assert_eq!(received(&mut b), [(CLIENT, PacketType::Request2, 5000)]);
    bytes[1] = 13;
    assert_eq!(a.send_to(endpoint, 1, bytes), 56);
    assert_eq!(received(&mut a), [(SERVER, PacketType::Invalid, CLIENT.1)]);
}

#[test]
fn connections_have_a_quota() {
    let world = World::new();
    let mut a = world.machine_with(vm_with(3, |vm| vm.connections = 2)).probe(Path::Dma);
    let _b = world.machine(4).probe(Path::Dma);
    assert_eq!([1030, 1031].map(|port| send_packet(&mut a, SERVER, port, PacketType::Request2)), [56, 56]);
    assert_eq!(send_packet(&mut a, SERVER, 1032, PacketType::Request2), VmciError::NoResources.code());
    assert_eq!(world.bound(3, "connections"), (2, 2, 1));
    assert_eq!(send_packet(&mut a, SERVER, 1030, PacketType::Rst), 56);
    assert_eq!(send_packet(&mut a, SERVER, 1032, PacketType::Request2), 56);
}

#[test]
fn a_server_may_refuse_at_any_time() {
    for steps in 0..3 {
        let world = World::new();
        let [mut a, mut b] = two(&world);
        match steps {
            0 => pass(&mut a, &mut b, [CLIENT, SERVER], PacketType::Request2),
            1 => {
                pass(&mut a, &mut b, [CLIENT, SERVER], PacketType::Request2);
                pass(&mut b, &mut a, [SERVER, CLIENT], PacketType::Negotiate2);
            }
            _ => drop(offered(&mut a, &mut b)),
        }
        pass(&mut b, &mut a, [SERVER, CLIENT], PacketType::Rst);
        assert_eq!(states(&world), [""; 0], "after {steps} steps");
        assert_eq!(world.view(3).connections, 0);
        pass(&mut a, &mut b, [CLIENT, SERVER], PacketType::Request2);
    }
}
