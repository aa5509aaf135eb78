//! Datagrams between VMs: sizes, batches, quotas, and who may send what to whom.

use vmlane_guestsim::{Driver, Path, vm_with};
use vmlane_wire::vmci::{CID_ANY, DatagramHeader, Handle, MAX_DATAGRAM_PAYLOAD, VmciError, call, datagram};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};
use zerocopy::IntoBytes;

use super::World;

const TO: Handle = Handle::new(4, 77);

fn code(error: VmciError) -> i32 {
    error.code()
}

fn two(world: &World, first: Path, second: Path) -> [Driver; 2] {
    [world.machine(3).probe(first), world.machine(4).probe(second)]
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + len) as u8).collect()
}

#[test]
fn every_size_arrives_on_every_path() {
    for [from, to] in [[Path::Dma, Path::Ports], [Path::Ports, Path::Dma], [Path::DmaPosted, Path::DmaPosted]]
    {
        let world = World::new();
        let [mut a, mut b] = two(&world, from, to);
        for len in [0, 1, 8, 24, 100, 4048, 4049, 4072, 4073, 8192, MAX_DATAGRAM_PAYLOAD] {
            assert_eq!(a.send_to(TO, 55, &payload(len)), 24 + len as i32);
            let got = b.await_datagrams();
            assert_eq!(got.len(), 1);
            assert_eq!((got[0].src, got[0].dst), (Handle::new(3, 55), TO));
            assert!(got[0].payload == payload(len), "{len} bytes from {from:?} to {to:?}");
        }
    }
}

#[test]
fn one_byte_more_is_refused() {
    let world = World::new();
    let [mut a, mut b] = two(&world, Path::Ports, Path::Dma);
    let much = payload(MAX_DATAGRAM_PAYLOAD + 1);
    assert_eq!(a.send_to(TO, 55, &much), code(VmciError::PayloadTooLarge));
    // The driver itself refuses this one on the other path; the device answers the stray check.
    assert_eq!(b.send_to(Handle::new(3, 55), 77, &much), code(VmciError::InvalidArgs));
    assert_eq!(a.send_to(TO, 55, b"well"), 28, "the port has found its way back");
    assert_eq!(b.await_datagrams()[0].payload, b"well");
}

#[test]
fn a_batch_has_an_end_although_the_buffer_has_more() {
    for path in Path::ALL {
        let world = World::new();
        let [mut a, mut b] = two(&world, Path::Dma, path);
        let sizes = |driver: &mut Driver| -> Vec<usize> {
            driver.await_datagrams().iter().map(|datagram| datagram.payload.len()).collect()
        };
        for len in [1, 3000, 17] {
            assert_eq!(a.send_to(TO, 55, &payload(len)), 24 + len as i32);
        }
        assert_eq!(sizes(&mut b), [1, 3000, 17]);
        assert_eq!(a.send_to(TO, 55, &payload(5)), 29);
        assert_eq!(sizes(&mut b), [5], "{path:?}: what the buffer still holds of older batches is not read");
    }
}

#[test]
fn batches_larger_than_a_page_or_a_buffer_lose_nothing() {
    for path in Path::ALL {
        let world = World::new();
        let [mut a, mut b] = two(&world, Path::Dma, path);
        let c = &mut world.machine(5).probe(Path::Dma);
        let mut sent = Vec::new();
        for len in [4048, 4049, 0, 4072, 4073, 24, 8192, 12_000, 1] {
            for driver in [&mut a, c] {
                assert_eq!(driver.send_to(TO, 55, &payload(len)), 24 + len as i32);
                sent.push((driver.cid, payload(len)));
            }
        }
        let mut got = Vec::new();
        while got.len() < sent.len() {
            got.extend(
                b.await_datagrams().into_iter().map(|datagram| (datagram.src.context, datagram.payload)),
            );
        }
        assert!(got == sent, "{path:?}");
    }
}

#[test]
fn a_sender_takes_no_more_of_a_queue_than_it_leaves_to_others() {
    let world = World::new();
    let [mut a, mut b] = two(&world, Path::Dma, Path::Dma);
    let mut c = world.machine(5).probe(Path::Dma);
    let mut d = world.machine(6).probe(Path::Dma);
    let flood = |driver: &mut Driver| -> usize {
        let sent = (0..10_000).take_while(|_| driver.send_to(TO, 55, &payload(1000)) == 1024).count();
        assert_eq!(driver.send_to(TO, 55, &payload(1000)), code(VmciError::NoResources));
        sent
    };
    assert_eq!(flood(&mut a), 68, "half of 139264 bytes");
    assert_eq!(flood(&mut c), 34, "half of the other half");
    assert_eq!(d.send_to(TO, 55, &payload(30_000)), 30_024, "there is room for the next sender");
    let request = ControlPacket::new(PacketType::Request2, 1030, 5000).with_size(4096, 1);
    assert_eq!(d.control(4, request), 56, "and for connections in any case");
    assert!(world.view(4).inbox_bytes <= 139_264);
    assert_eq!(world.view(3).stats.refused_full.get(), 2);
    let (used, limit, refused) = world.bound(4, "inbox_bytes");
    assert!(refused == 4 && used <= limit, "{used} of {limit}, {refused} refused");
    let mut got = 0;
    while got < 68 + 34 + 2 {
        got += b.await_datagrams().len();
    }
    assert_eq!(flood(&mut a), 68);
}

#[test]
fn a_forged_source_is_refused() {
    let world = World::new();
    for path in [Path::Dma, Path::Ports] {
        let world = World::new();
        let [mut a, _b] = two(&world, path, path);
        let forged = [
            (Handle::new(4, 55), TO),
            (Handle::new(0, 0), TO),
            (Handle::new(0, 0), Handle::new(4, 0)),
            (Handle::new(2, 1), Handle::new(4, 1)),
            (Handle::INVALID, TO),
            (Handle::new(CID_ANY, 55), TO),
            (Handle::new(4, 55), Handle::new(0, call::GET_CONTEXT_ID)),
            (Handle::new(CID_ANY, 55), Handle::new(0, call::GET_CONTEXT_ID)),
            // Resource 0 of a VM takes the device's events and nothing else.
            (Handle::new(3, 55), Handle::new(4, 0)),
            (Handle::new(3, 0), Handle::new(4, 0)),
        ];
        for (src, dst) in forged {
            let bytes = datagram(dst, src, &[0; 40]);
            assert_eq!(a.send(&bytes), code(VmciError::NoAccess), "{src} to {dst}");
        }
        assert_eq!(world.view(3).stats.refused_source.get(), forged.len() as u64);
        assert_eq!(world.view(4).inbox_bytes, 0);
    }
    drop(world);
}

#[test]
fn who_is_not_there_and_who_is_not_for_you_are_indistinguishable() {
    let world = World::new();
    let [mut a, _b] = two(&world, Path::Dma, Path::Dma);
    let mut stranger = world.machine_with(vm_with(5, |vm| vm.group = "other".into())).probe(Path::Dma);
    let _not_ready = world.machine(6);
    for cid in [1, 2, 5, 6, 7, 0x7fff_ffff, CID_ANY - 1] {
        assert_eq!(a.send_to(Handle::new(cid, 77), 55, b"?"), code(VmciError::InvalidResource), "CID {cid}");
    }
    assert_eq!(a.send_to(Handle::new(CID_ANY, 77), 55, b"?"), code(VmciError::InvalidArgs));
    assert_eq!(stranger.send_to(TO, 55, b"?"), code(VmciError::InvalidResource));
    assert_eq!(a.send_to(Handle::new(3, 77), 55, b"me"), 26, "one's own CID leads back");
    assert_eq!(a.await_datagrams()[0].payload, b"me");
}

#[test]
fn a_batch_is_not_cut_short_by_another_guest() {
    let world = World::new();
    let [mut a, mut b] = two(&world, Path::Dma, Path::Dma);
    assert_eq!(a.send_to(TO, 55, b"one"), 27);
    // This resource marks the end of a batch.
    assert_eq!(a.send_to(Handle::new(4, u32::MAX), 55, b""), code(VmciError::InvalidArgs));
    assert_eq!(a.send_to(TO, 55, b"two"), 27);
    assert_eq!(b.await_datagrams().len(), 2);
}

#[test]
fn a_restricted_vm_talks_to_trusted_ones_only() {
    let world = World::new();
    let mut plain = world.machine(3).probe(Path::Dma);
    let mut restricted = world.machine_with(vm_with(4, |vm| vm.restricted = true)).probe(Path::Dma);
    let mut trusted = world.machine_with(vm_with(5, |vm| vm.trusted = true)).probe(Path::Dma);
    let refused = code(VmciError::InvalidResource);
    assert_eq!(plain.send_to(Handle::new(4, 77), 1, b""), refused);
    assert_eq!(restricted.send_to(Handle::new(3, 77), 9, b""), refused);
    assert_eq!(restricted.send_to(Handle::new(5, 77), 9, b""), 24);
    assert_eq!(trusted.send_to(Handle::new(4, 77), 9, b""), 24);
    assert_eq!(trusted.send_to(Handle::new(3, 77), 9, b""), 24);
}

#[test]
fn a_size_that_is_not_there_is_refused() {
    let world = World::new();
    let [mut a, _b] = two(&world, Path::Dma, Path::Dma);
    for claimed in [101, 70_000, 262_225, usize::MAX] {
        let mut bytes = DatagramHeader::new(TO, Handle::new(3, 55), claimed).as_bytes().to_vec();
        bytes.extend_from_slice(&[0; 100]);
        assert_eq!(a.send(&bytes), code(VmciError::InvalidArgs), "{claimed} bytes claimed");
    }
    let longer = [datagram(TO, Handle::new(3, 55), b"one"), vec![9; 50]].concat();
    assert_eq!(a.send(&longer), 27, "what follows the payload is not part of it");
}

#[test]
fn a_port_that_lost_count_heals_itself() {
    let world = World::new();
    let [mut a, mut b] = two(&world, Path::Ports, Path::Ports);
    for claimed in [100, 262_225, usize::MAX] {
        let header = DatagramHeader::new(TO, Handle::new(3, 55), claimed);
        // Half a datagram; the result that is read next belongs to nothing.
        assert!(a.send(header.as_bytes()) < 0);
        assert_eq!(a.send_to(TO, 55, b"whole"), 29, "after {claimed} were claimed");
        assert_eq!(b.await_datagrams()[0].payload, b"whole");
    }
}
