//! What a hostile VM may take of virtio-vsock: of a saturated worker, in metered work, never more than its
//! share; of connections, those of its own limit.

use vmlane_guestsim::virtio::out;
use vmlane_guestsim::vsock::{Bench, Guest, RING, vm};
use vmlane_vsock::Vm as VsockVm;
use vmlane_wire::virtio::desc;
use vmlane_wire::virtio_vsock::{Header, kind, op};
use zerocopy::IntoBytes;

use super::{bench, pair};

/// What a VM may cause in a round, in bytes copied, and what a descriptor costs.
const QUOTA: usize = 256 << 10;
const DESCRIPTOR: usize = 96;
const ROUNDS: usize = 40;
/// Pieces of a chain, at most.
const PIECES: usize = 1024;

/// An indirect table of as many pieces as a chain may have, each of `len` bytes at `addr`.
fn table(guest: &Guest, addr: u64, len: u32, write: bool) -> u64 {
    let at = guest.rx.alloc(PIECES * desc::SIZE);
    let write = if write { desc::WRITE } else { 0 };
    for piece in 0..PIECES {
        let last = piece + 1 == PIECES;
        let flags = write | if last { 0 } else { desc::NEXT };
        let next = if last { 0 } else { piece as u16 + 1 };
        let mut entry = [0; desc::SIZE];
        entry[..8].copy_from_slice(&addr.to_le_bytes());
        entry[8..12].copy_from_slice(&len.to_le_bytes());
        entry[12..14].copy_from_slice(&flags.to_le_bytes());
        entry[14..].copy_from_slice(&next.to_le_bytes());
        guest.rx.ram.write(at + (piece * desc::SIZE) as u64, &entry);
    }
    at
}

/// What a run came to.
struct Run {
    /// Bytes that the honest pair moved.
    honest: usize,
    /// Descriptors that were read for all VMs.
    descriptors: usize,
}

/// An honest VM that always has packets for another, which always has buffers, beside `attack`, which is
/// called before each round.
fn beside(attack: impl FnOnce(&mut Bench) -> Box<dyn FnMut()>) -> Run {
    let (mut bench, mut a, mut b) = pair(false);
    let mut attack = attack(&mut bench);
    let (mut queued, mut buffers, mut honest) = (0, 0, 0);
    for _ in 0..ROUNDS {
        attack();
        while queued < 20 {
            a.packet(1, (4, 1), kind::STREAM, op::RW, &[7; 16 << 10]);
            queued += 1;
        }
        while buffers < 40 {
            b.post_buffers(1, 17 << 10);
            buffers += 1;
        }
        bench.round();
        queued -= a.taken();
        let received = b.received();
        buffers -= received.len();
        honest += received.iter().map(|(_, payload)| payload.len()).sum::<usize>();
    }
    Run { honest, descriptors: bench.stats.descriptors.get() as usize }
}

/// The attack costs no more than its VMs' shares, and the honest pair has all of its own.
fn assert_fair(vms: usize, attack: impl FnOnce(&mut Bench) -> Box<dyn FnMut()>) {
    let (alone, beside) = (beside(|_| Box::new(|| ())), beside(attack));
    let cost = (beside.descriptors - alone.descriptors) * DESCRIPTOR / ROUNDS;
    assert!(
        beside.honest * 10 >= alone.honest * 9,
        "{} bytes beside it, {} alone",
        beside.honest,
        alone.honest
    );
    assert!(alone.honest / ROUNDS >= QUOTA * 9 / 10, "the worker is not saturated");
    // So the honest pair's share is at least n of n + 1, less what a chain more than the share may cost.
    assert!(
        cost <= vms * QUOTA * 11 / 10,
        "{cost} bytes' worth of descriptors in a round, {QUOTA} are a share"
    );
    assert!(cost >= QUOTA / 4, "the attack does nothing");
}

#[test]
fn receive_rings_of_endless_pieces_cost_their_own_vm() {
    assert_fair(2, |bench| {
        let (mut sender, mut receiver) = (bench.guest(vm(5), false), bench.guest(vm(6), false));
        let page = receiver.rx.alloc(4096);
        let table = table(&receiver, page, 1, true);
        let (mut posted, mut queued) = (0, 0);
        Box::new(move || {
            posted -= std::iter::from_fn(|| receiver.rx.take()).count();
            while posted < usize::from(RING) {
                receiver.rx.post_table(table, (PIECES * desc::SIZE) as u32);
                posted += 1;
            }
            queued -= sender.taken();
            while queued < 2 {
                sender.packet(9, (6, 9), kind::STREAM, op::RW, &[1; 64 << 10]);
                queued += 1;
            }
        })
    });
}

#[test]
fn chains_that_are_no_packets_cost_their_sender() {
    assert_fair(1, |bench| {
        let mut sender = bench.guest(vm(5), false);
        let page = sender.tx.alloc(4096);
        let table = table(&sender, page, 0, false);
        let mut posted = 0;
        Box::new(move || {
            posted -= sender.taken();
            while posted < usize::from(RING) {
                sender.tx.post_table(table, (PIECES * desc::SIZE) as u32);
                posted += 1;
            }
        })
    });
}

#[test]
fn a_packet_has_64_kib_at_most_whatever_its_pieces_overlap() {
    let (mut bench, mut a, mut b) = pair(false);
    b.post_buffers(60, 4096);
    let (addr, len) = (a.tx.alloc(1 << 20), 8 << 20);
    let header = Header::new((3, 1), (4, 1), kind::STREAM, op::RW);
    let header = Header { len: (len as u32).into(), ..header };
    a.tx.ram.write(addr, header.as_bytes());
    // The same MiB nine times.
    a.tx.post(&[out(addr, 1 << 20); 9]);
    bench.run();
    assert_eq!((a.taken(), bench.stats.malformed.get(), b.received().len()), (1, 1, 0));
    a.packet(1, (4, 1), kind::STREAM, op::RW, &[1; 64 << 10]);
    bench.run();
    assert_eq!(b.received().iter().map(|(_, payload)| payload.len()).sum::<usize>(), 64 << 10);
}

#[test]
fn siblings_are_bounded_by_their_own_limits() {
    let mut bench = bench();
    let mut few = bench.guest(VsockVm { connections: 4, ..vm(3) }, false);
    let mut many = bench.guest(VsockVm { connections: 100, ..vm(4) }, false);
    let mut third = bench.guest(VsockVm { connections: 100, ..vm(5) }, false);
    for guest in [&mut few, &mut many, &mut third] {
        guest.post_buffers(40, 4096);
    }
    let mut connects = |from: &mut Guest, to: &mut Guest, ports: std::ops::Range<u32>| {
        ports.for_each(|port| from.packet(port, (to.cid, port), kind::STREAM, op::REQUEST, &[]));
        assert!(bench.run());
        (to.received().len(), from.received().len())
    };
    assert_eq!(connects(&mut third, &mut few, 20..30), (10, 0), "what others open is theirs");
    assert_eq!(connects(&mut few, &mut many, 0..3), (3, 0), "and takes nothing from the server");
    assert_eq!(connects(&mut few, &mut many, 3..10), (1, 6), "its own limit, not that of its peer");
    assert_eq!(connects(&mut third, &mut many, 0..10), (10, 0), "not that of other clients");
}
