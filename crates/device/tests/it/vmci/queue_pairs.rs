//! Queue pairs: every check of ALLOC one by one, attaching, detaching.

use vmlane_device::vmci::Limits;
use vmlane_guestsim::{Driver, Lines, Machine, PairSpec, Path, Placement, Queues, VmSpec, vm, vm_with};
use vmlane_testkit::wait_until;
use vmlane_wire::vmci::{CID_ANY, Handle, QP_ATTACH_ONLY, QP_LOCAL, VmciError, call, event};

use super::{World, detach};

const PAIR: Handle = Handle::new(3, 2000);
/// VM 3 creates, for VM 4.
const CREATE: PairSpec = PairSpec { handle: PAIR, peer: 4, flags: 0, produce: 8192, consume: 5000 };
const ATTACH: PairSpec =
    PairSpec { handle: PAIR, peer: 3, flags: QP_ATTACH_ONLY, produce: 5000, consume: 8192 };

fn three(world: &World) -> [Driver; 3] {
    [3, 4, 5].map(|cid| world.machine(cid).probe(Path::Dma))
}

fn refused(driver: &mut Driver, spec: PairSpec) -> i32 {
    driver.alloc(&spec, Placement::Scattered).map(|_| 0).unwrap_or_else(|error| error)
}

fn alloc(driver: &mut Driver, spec: PairSpec) -> Queues {
    driver.alloc(&spec, Placement::Scattered).expect("a queue pair")
}

/// Events about pairs that wait for this guest: number, handle, whose doing.
fn events(driver: &mut Driver) -> Vec<(u32, Handle, u32)> {
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a word"));
    let about = |datagram: vmlane_guestsim::Datagram| {
        let (event, bytes) = (datagram.event().expect("an event"), &datagram.payload);
        (event, Handle::new(word(bytes, 8), word(bytes, 12)), word(bytes, 16))
    };
    driver.service().into_iter().map(about).collect()
}

#[test]
fn every_number_of_a_creation_is_checked() {
    let world = World::new();
    let [mut a, _b, _c] = three(&world);
    let _other = world.machine_with(vm_with(6, |vm| vm.group = "other".into())).probe(Path::Dma);
    let args = VmciError::InvalidArgs;
    let cases = [
        ("no context", PairSpec { handle: Handle::new(CID_ANY, 2000), ..CREATE }, args),
        ("a reserved resource", PairSpec { handle: Handle::new(3, 1023), ..CREATE }, args),
        ("no resource", PairSpec { handle: Handle::new(3, CID_ANY), ..CREATE }, args),
        ("an unknown flag", PairSpec { flags: 16, ..CREATE }, args),
        ("a local pair", PairSpec { flags: QP_LOCAL, ..CREATE }, args),
        ("no bytes at all", PairSpec { produce: 0, consume: 0, ..CREATE }, args),
        ("a pair that is not there", PairSpec { flags: QP_ATTACH_ONLY, ..CREATE }, VmciError::NotFound),
        ("another VM's handle", PairSpec { handle: Handle::new(5, 2000), ..CREATE }, VmciError::NoAccess),
        ("the peer's handle", PairSpec { handle: Handle::new(4, 2000), ..CREATE }, VmciError::NoAccess),
        ("a peer of another group", PairSpec { peer: 6, ..CREATE }, VmciError::NoAccess),
        ("a peer that does not exist", PairSpec { peer: 99, ..CREATE }, VmciError::NoAccess),
    ];
    for (what, spec, error) in cases {
        assert_eq!(refused(&mut a, spec), error.code(), "{what}");
    }
    assert_eq!((world.view(3).queue_pairs, world.view(3).queue_pair_bytes), (0, 0));
    let pair = alloc(&mut a, CREATE);
    assert_eq!(refused(&mut a, CREATE), VmciError::AlreadyExists.code());
    assert_eq!((world.view(3).queue_pairs, world.view(3).queue_pair_bytes), (1, 13_192));
    assert_eq!(a.detach(pair), 0);
}

#[test]
fn sizes_and_page_lists_must_agree() {
    let world = World::new();
    let machine = world.machine(3);
    let mut a = machine.probe(Path::Ports);
    let pages = machine.ram.alloc(7, Placement::Scattered);
    let call = |produce: u64, consume: u64, claimed: u64, pages: &[u64]| {
        let spec = PairSpec { peer: CID_ANY, produce, consume, ..CREATE };
        let queue = vmlane_guestsim::alloc_call(&spec, pages, true);
        [&queue[..32], &claimed.to_le_bytes(), &queue[40..]].concat()
    };
    let args = VmciError::InvalidArgs.code();
    let with = |at: usize, page: u64| {
        let mut pages = pages[..6].to_vec();
        pages[at] = page;
        pages
    };
    let outside = 0x4000_0000;
    let end = machine.ram.regions()[0];
    let cases = [
        ("a page less than needed", call(8192, 5000, 5, &pages[..5]), args),
        ("a page more than needed", call(8192, 5000, 7, &pages[..7]), args),
        ("a list shorter than claimed", call(8192, 5000, 6, &pages[..5]), args),
        ("a sum that wraps", call(u64::MAX, 2, 6, &pages[..6]), args),
        (
            "sizes that round up to nothing",
            call(u64::MAX - 1, 1, 2, &pages[..2]),
            VmciError::NoResources.code(),
        ),
        ("more than 128 MiB", call(64 << 20, (64 << 20) + 1, 6, &pages[..6]), VmciError::NoResources.code()),
        ("a header outside memory", call(8192, 5000, 6, &with(0, outside)), args),
        ("a data page outside memory", call(8192, 5000, 6, &with(2, outside)), args),
        ("the page behind the last one", call(8192, 5000, 6, &with(5, end.0 + end.1)), args),
        ("a page number that overflows", call(8192, 5000, 6, &with(3, 0)), args),
        ("half a call", call(8192, 5000, 6, &pages[..6])[..39].to_vec(), args),
    ];
    for (what, mut payload, error) in cases {
        if what.ends_with("overflows") {
            payload[40 + 3 * 8..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
        }
        assert_eq!(a.call(call::QUEUEPAIR_ALLOC, &payload), error, "{what}");
    }
    assert_eq!(a.call(call::QUEUEPAIR_ALLOC, &call(8192, 5000, 6, &pages[..6])), 0);
}

#[test]
fn quotas_are_checked_before_anything_is_kept() {
    let world = World::new();
    let limits = Limits { queue_pairs: 2, queue_pair_bytes: Some(20_000), ..Limits::default() };
    let mut a = world.machine_with(VmSpec { limits, ..vm(3) }).probe(Path::Dma);
    let spec =
        |resource, produce| PairSpec { handle: Handle::new(3, resource), peer: CID_ANY, produce, ..CREATE };
    assert_eq!(refused(&mut a, spec(1, 15_001)), VmciError::InvalidArgs.code());
    assert_eq!(refused(&mut a, spec(2000, 15_001)), VmciError::NoResources.code());
    let pair = alloc(&mut a, spec(2000, 8192));
    assert_eq!(refused(&mut a, spec(2001, 8192)), VmciError::NoResources.code(), "bytes of all pairs");
    alloc(&mut a, spec(2001, 100));
    assert_eq!(refused(&mut a, spec(2002, 1)), VmciError::NoResources.code(), "number of pairs");
    assert_eq!(a.detach(pair), 0);
    alloc(&mut a, spec(2002, 1));
    assert_eq!(world.view(3).stats.refused_quota.get(), 3);
    assert_eq!(world.bound(3, "queue_pairs"), (2, 2, 1));
    let (used, limit, refused) = world.bound(3, "queue_pair_bytes");
    assert!((limit, refused) == (20_000, 2) && used > 0 && used <= limit);
}

/// A server with Linux's default buffers, 512 KiB a connection, does not meet the limit before its memory is
/// short.
#[test]
fn unless_configured_half_of_the_memory_is_the_limit() {
    let world = World::new();
    let limit = |machine: &Machine| {
        machine.probe(Path::Dma);
        world.bound(machine.cid, "queue_pair_bytes").1
    };
    for (cid, memory, expected) in [(3, 64 << 20, 256 << 20), (4, 1 << 30, 512 << 20)] {
        let machine = Machine::with(&world.hypervisor, vm(cid), memory, Lines::msix());
        assert_eq!(limit(&machine), expected);
    }
    let configured = Limits { queue_pair_bytes: Some(1 << 20), ..Limits::default() };
    let machine =
        Machine::with(&world.hypervisor, VmSpec { limits: configured, ..vm(5) }, 1 << 30, Lines::msix());
    assert_eq!(limit(&machine), 1 << 20);
    let most = Limits::default().queue_pair_bytes(1 << 40);
    assert!(most >= 1000 * (512 << 10) && most == 2 << 30);
}

#[test]
fn only_the_one_it_was_made_for_attaches() {
    let world = World::new();
    let [mut a, mut b, mut c] = three(&world);
    let _pair = alloc(&mut a, CREATE);
    assert_eq!(refused(&mut c, ATTACH), VmciError::NoAccess.code());
    assert_eq!(refused(&mut a, ATTACH), VmciError::AlreadyExists.code(), "the creator");
    assert_eq!(
        refused(&mut b, PairSpec { peer: 5, ..ATTACH }),
        VmciError::NoAccess.code(),
        "made by another"
    );
    let mismatch = VmciError::QueuePairMismatch.code();
    assert_eq!(
        refused(&mut b, PairSpec { produce: 8192, consume: 5000, ..ATTACH }),
        mismatch,
        "not mirrored"
    );
    assert_eq!(refused(&mut b, PairSpec { produce: 4999, ..ATTACH }), mismatch);
    assert_eq!(detach(&mut b, PAIR), VmciError::NotFound.code(), "not attached");
    let mine = alloc(&mut b, ATTACH);
    assert_eq!(refused(&mut b, ATTACH), VmciError::AlreadyExists.code());
    assert_eq!(refused(&mut c, ATTACH), VmciError::Unavailable.code());
    assert_eq!(detach(&mut c, PAIR), VmciError::NotFound.code());
    assert_eq!(b.detach(mine), 0);
    assert_eq!(refused(&mut b, ATTACH), VmciError::Unavailable.code(), "half of it is gone");
    assert_eq!(world.view(4).queue_pairs, 0);
}

#[test]
fn anyone_attaches_what_was_made_for_anyone() {
    let world = World::new();
    let [mut a, _b, mut c] = three(&world);
    let _pair = alloc(&mut a, PairSpec { peer: CID_ANY, ..CREATE });
    let mut stranger = world.machine_with(vm_with(6, |vm| vm.group = "other".into())).probe(Path::Dma);
    assert_eq!(refused(&mut stranger, ATTACH), VmciError::NoAccess.code());
    alloc(&mut c, PairSpec { peer: CID_ANY, flags: 0, ..ATTACH });
    assert_eq!(events(&mut a), [(event::QP_PEER_ATTACH, PAIR, 5)]);
}

#[test]
fn both_ends_are_notified_of_each_other() {
    let world = World::new();
    let [mut a, mut b, _c] = three(&world);
    let mine = alloc(&mut a, CREATE);
    let theirs = alloc(&mut b, ATTACH);
    for queues in [&mine, &theirs] {
        let mut handle = [0; 8];
        queues.produce.read(0, &mut handle);
        assert_eq!(handle, [3, 0, 0, 0, 0xd0, 7, 0, 0]);
        assert_eq!((queues.ready(), queues.room()), (0, queues.produce_size - 1));
    }
    assert_eq!(events(&mut a), [(event::QP_PEER_ATTACH, PAIR, 4)]);
    assert_eq!(a.detach(mine), 0);
    wait_until("the other end is notified of it", || b.lines.pending(0));
    assert_eq!(events(&mut b), [(event::QP_PEER_DETACH, PAIR, 3)]);
    assert_eq!(b.detach(theirs), 0);
    assert_eq!((events(&mut a), events(&mut b)), (vec![], vec![]));
    alloc(&mut a, CREATE);
}

#[test]
fn detaching_before_anyone_attached_ends_the_pair() {
    let world = World::new();
    let [mut a, mut b, _c] = three(&world);
    let pair = alloc(&mut a, CREATE);
    assert_eq!(a.detach(pair), 0);
    assert_eq!(detach(&mut a, PAIR), VmciError::NotFound.code());
    assert_eq!(refused(&mut b, ATTACH), VmciError::NotFound.code());
}

#[test]
fn bytes_move_without_any_stream_connection() {
    let world = World::new();
    let [mut a, mut b, _c] = three(&world);
    let mine = alloc(&mut a, CREATE);
    assert_eq!(mine.enqueue(b"before anyone attached"), 22);
    let theirs = alloc(&mut b, ATTACH);
    wait_until("bytes of a silent writer arrive", || theirs.ready() == 22);
    let mut got = [0; 22];
    assert_eq!(theirs.dequeue(&mut got), 22);
    assert_eq!(&got, b"before anyone attached");
    assert_eq!(theirs.enqueue(&[7; 4999]), 4999);
    wait_until("and back", || mine.ready() == 4999);
    world.assert_clean();
}

#[test]
fn one_ring_may_be_missing() {
    let world = World::new();
    let [mut a, mut b, _c] = three(&world);
    let mine = alloc(&mut a, PairSpec { consume: 0, ..CREATE });
    let theirs = alloc(&mut b, PairSpec { produce: 0, ..ATTACH });
    assert_eq!(mine.enqueue(&[5; 3000]), 3000);
    wait_until("bytes arrive", || theirs.ready() == 3000);
    assert_eq!((a.detach(mine), b.detach(theirs)), (0, 0));
    world.assert_clean();
}
