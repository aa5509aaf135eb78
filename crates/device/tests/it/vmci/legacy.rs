//! Forged state: of another version, truncated, overwritten, or well-formed records of malformed content. It
//! is refused with a reason, the device that it describes is reset, the rest is restored; nothing
//! panics, and every driver that is loaded afterwards finds a working device.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::prelude::*;
use vmlane_guestsim::restart::{HALF, HYPERVISOR, Legacy, RestartableDaemon, SESSION};
use vmlane_guestsim::{Driver, PairSpec, Path, Placement, Queues, vm};
use vmlane_mem::memfd;
use vmlane_state::{Journal, Key, Records, Unusable};
use vmlane_wire::vmci::{Handle, QP_ATTACH_ONLY, call, event};
use vmlane_wire::vmci_stream::PacketType;

use super::talk::{ATTACH, CLIENT, CREATE, PAIR, SERVER, received, send_packet};
use super::{detach, link, ring};

/// Three guests: 3 and 4 with a stream, pairs in each state and things that wait; 5 with nothing of that.
struct Rich {
    world: Arc<RestartableDaemon>,
    drivers: [Driver; 3],
    queues: Vec<Queues>,
}

const DOORBELL: Handle = Handle::new(4, 2100);

fn rich(path: Path) -> Rich {
    let world = RestartableDaemon::new(vec![vm(3), vm(4), vm(5)]);
    let mut drivers = [3, 4, 5].map(|cid| world.probe(cid, path));
    let [a, b, _] = &mut drivers;
    let mut queues = Vec::new();
    for (to, from, kind) in [(SERVER, CLIENT, PacketType::Request2), (CLIENT, SERVER, PacketType::Negotiate2)]
    {
        let sender = if from == CLIENT { &mut *a } else { &mut *b };
        assert_eq!(send_packet(sender, to, from.1, kind), 56);
    }
    queues.push(a.alloc(&CREATE, Placement::Scattered).expect("a pair"));
    assert_eq!(send_packet(a, SERVER, CLIENT.1, PacketType::Offer), 56);
    queues.push(b.alloc(&ATTACH, Placement::Scattered).expect("to attach"));
    assert_eq!(send_packet(b, CLIENT, SERVER.1, PacketType::Attach), 56);
    queues[0].enqueue(&[1; 3000]);
    // Created and no more; joined outside of any connection; left with bytes in it; of a creator that went.
    let spec = |n: u32| PairSpec { handle: Handle::new(3, 3000 + n), ..CREATE };
    for n in 0..4 {
        queues.push(a.alloc(&spec(n), Placement::Scattered).expect("a pair"));
    }
    for n in 1..4 {
        let attach = PairSpec { peer: 3, flags: QP_ATTACH_ONLY, ..spec(n) };
        queues.push(b.alloc(&attach, Placement::Scattered).expect("to attach"));
    }
    // What takes over wakes every lane: so the first bytes are over there when more come.
    queues[4].enqueue(&[2; 4000]);
    world.replace();
    queues[4].enqueue(&[2; 4000]);
    for n in 2..4 {
        assert_eq!(detach(a, spec(n).handle), 0);
    }
    // A handshake that has just begun, doorbells, a name, datagrams and packets that wait.
    assert_eq!(send_packet(a, (4, 6000), 1040, PacketType::Request2), 56);
    for n in 0..3u64 {
        assert_eq!(link(b, Handle::new(4, DOORBELL.resource + n as u32), n), 0);
        assert_eq!(a.send_to(Handle::new(4, 77), 55, &vec![3; 100 * n as usize]), 24 + 100 * n as i32);
    }
    assert_eq!(b.call(call::DATAGRAM_REQUEST_MAP, &[2200u32, 0].map(u32::to_le_bytes).concat()), 0);
    Rich { world, drivers, queues }
}

fn records(file: &OwnedFd, kind: u32) -> Records {
    Journal::open(file.try_clone().unwrap(), kind, HALF).expect("a sound file").1
}

fn journal(kind: u32, records: &Records) -> OwnedFd {
    let journal = Journal::create("forged", kind, HALF).expect("a file");
    records.iter().for_each(|(key, record)| journal.stage(*key, record));
    journal.commit();
    journal.file().try_clone().unwrap()
}

/// Where nothing is known of a driver, or what is known is wrong, its buffers may be anywhere: it can only be
/// loaded anew.
fn begins_anew(Rich { world, drivers, queues }: Rich) {
    let [mut a, mut b, mut c] = drivers;
    [&mut a, &mut b, &mut c].into_iter().for_each(Driver::restore_addresses);
    lives_on(Rich { world, drivers: [a, b, c], queues }, false);
}

/// Whatever has become of them: guests do what guests do, and are answered; 5, whom nothing was about, goes
/// on with what it had; then all load their drivers anew and find devices that work.
fn lives_on(Rich { world, drivers, queues }: Rich, untouched: bool) {
    let [mut a, mut b, mut c] = drivers;
    for driver in [&mut a, &mut b] {
        for _ in 0..3 {
            driver.service();
        }
        ring(driver, DOORBELL);
        send_packet(driver, SERVER, CLIENT.1, PacketType::Wrote);
        send_packet(driver, CLIENT, SERVER.1, PacketType::Read);
        driver.send_to(Handle::new(1, 2200), 55, b"named");
    }
    if untouched {
        assert_eq!(c.send_to(Handle::new(5, 77), 55, b"to myself"), 33);
        let got: Vec<_> = c.service().into_iter().map(|datagram| datagram.payload).collect();
        assert!(got.contains(&b"to myself".to_vec()));
    }
    for queues in &queues {
        for driver in [&mut a, &mut b] {
            detach(driver, queues.handle);
        }
    }
    world.hypervisor().expire();
    [a, b, c].into_iter().for_each(Driver::remove);
    assert_eq!(world.hypervisor().connections(), []);
    for bound in [3, 4, 5].into_iter().flat_map(|cid| world.view(cid).bounds) {
        assert_eq!(bound.used, 0, "{}", bound.name);
    }
    let [mut a, mut b, _c] = [3, 4, 5].map(|cid| world.probe(cid, Path::Dma));
    for (to, from, kind, driver) in
        [(SERVER, CLIENT, PacketType::Request2, 0), (CLIENT, SERVER, PacketType::Negotiate2, 1)]
    {
        let (sender, other) = if driver == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        assert_eq!(send_packet(sender, to, from.1, kind), 56);
        assert_eq!(received(other), [(from, kind, to.1)]);
    }
    let client = a.alloc(&CREATE, Placement::Scattered).expect("a pair");
    assert_eq!(send_packet(&mut a, SERVER, CLIENT.1, PacketType::Offer), 56);
    let server = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    assert_eq!(send_packet(&mut b, CLIENT, SERVER.1, PacketType::Attach), 56);
    assert_eq!(client.enqueue(b"good as new"), 11);
    send_packet(&mut a, SERVER, CLIENT.1, PacketType::Wrote);
    assert_eq!(server.dequeue(&mut [0; 20]), 11);
    world.replace();
    assert_eq!((a.detach(client), b.detach(server)), (0, 0));
}

/// What holds in the intact state: no device is reset.
#[test]
fn what_is_sound_is_taken_over_whole() {
    for path in [Path::Dma, Path::Ports] {
        let rich = rich(path);
        let legacy = rich.world.kill();
        let kinds: HashSet<u32> =
            records(legacy.hypervisor.as_ref().unwrap(), HYPERVISOR).iter().map(|(key, _)| key.0).collect();
        assert!(kinds.is_superset(&(1..=11).collect()), "records of every kind: {kinds:?}");
        assert!(rich.world.succeed(legacy).values().all(Result::is_ok));
        lives_on(rich, true);
    }
}

fn bytes_of(file: &OwnedFd) -> Vec<u8> {
    let file = std::fs::File::from(file.try_clone().unwrap());
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn file_of(bytes: &[u8]) -> OwnedFd {
    let file = std::fs::File::from(memfd("forged", bytes.len() as u64).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    file.into()
}

#[test]
fn another_version_and_what_is_cut_short_are_refused_with_a_reason() {
    let rich_one = rich(Path::Dma);
    let legacy = rich_one.world.kill();
    for (kind, file) in [(HYPERVISOR, legacy.hypervisor.as_ref().unwrap()), (SESSION, &legacy.sessions[&3])] {
        let whole = bytes_of(file);
        for len in (0..64).chain([4095, 4096, HALF, HALF + 4096, whole.len() - 1]) {
            let refused = Journal::open(file_of(&whole[..len]), kind, HALF);
            let Err(refused @ Unusable::Short { .. }) = refused else { panic!("{len} bytes: {refused:?}") };
            assert!(refused.to_string().contains(&format!("{len} bytes")), "{refused}");
        }
        let mut other = whole.clone();
        other[8..12].copy_from_slice(&(vmlane_state::LAYOUT - 1).to_le_bytes());
        let refused = Journal::open(file_of(&other), kind, HALF).expect_err("another version");
        assert!(refused.to_string().contains("version"), "{refused}");
    }
    rich_one.world.succeed(legacy);
    // The router's: every device is reset. One session's: that device is.
    for lost in [None, Some(3), Some(4), Some(5)] {
        let rich = rich(Path::Dma);
        let mut legacy = rich.world.kill();
        let file = match lost {
            None => legacy.hypervisor.as_mut(),
            Some(cid) => legacy.sessions.get_mut(&cid),
        };
        let file = file.expect("a file");
        *file = file_of(&bytes_of(file)[..HALF]);
        let outcome = rich.world.succeed(legacy);
        let anew: HashSet<u32> =
            outcome.iter().filter(|(_, outcome)| outcome.is_err()).map(|(cid, _)| *cid).collect();
        assert_eq!(anew, lost.map_or([3, 4, 5].into(), |cid| [cid].into()));
        lives_on(rich, !anew.contains(&5));
    }
}

/// No file at all.
#[test]
fn what_is_missing_is_missed() {
    for (hypervisor, session) in [(true, false), (false, true), (true, true)] {
        let rich = rich(Path::DmaPosted);
        let mut legacy = rich.world.kill();
        legacy.hypervisor = legacy.hypervisor.filter(|_| !hypervisor);
        legacy.sessions.retain(|_, _| !session);
        assert!(rich.world.succeed(legacy).values().all(Result::is_err));
        if hypervisor && session { begins_anew(rich) } else { lives_on(rich, false) }
    }
}

/// Every record in turn is overwritten: the device it describes is reset or notified of the end; VM 5 never
/// notices.
#[test]
fn each_damaged_record_hurts_whom_it_is_about() {
    let sound = rich(Path::Dma);
    let legacy = sound.world.kill();
    let count = records(legacy.hypervisor.as_ref().unwrap(), HYPERVISOR).len();
    sound.world.succeed(legacy);
    assert!(count > 25, "{count} records");
    // Kinds of one context; the others describe streams, or nothing.
    let of_context = |key: &Key| [2, 3, 4, 10, 11].contains(&key.0).then_some(key.1 as u32);
    for number in 0..count {
        let rich = rich(Path::Dma);
        let legacy = rich.world.kill();
        let file = legacy.hypervisor.as_ref().unwrap();
        let keys: Vec<Key> = records(file, HYPERVISOR).into_iter().map(|(key, _)| key).collect();
        let Some(&victim) = keys.get(number) else { continue };
        let spoilt = Journal::spoil(file.try_clone().unwrap(), |key| key == Some(victim)).unwrap();
        assert_eq!(spoilt, 1);
        let outcome = rich.world.succeed(legacy);
        let anew: Vec<u32> =
            outcome.iter().filter(|(_, outcome)| outcome.is_err()).map(|(cid, _)| *cid).collect();
        let expected: Vec<u32> = of_context(&victim).into_iter().collect();
        assert_eq!(anew, expected, "{victim:?}");
        lives_on(rich, of_context(&victim) != Some(5));
    }
}

/// The stream whose records are damaged ends, and both ends are notified of it.
#[test]
fn both_ends_are_notified_of_a_damaged_stream() {
    for kinds in [[5, 5], [6, 6], [9, 9], [5, 9]] {
        let Rich { world, mut drivers, queues } = rich(Path::Dma);
        let [a, b, _] = &mut drivers;
        received(a);
        received(b);
        let legacy = world.kill();
        let file = legacy.hypervisor.as_ref().unwrap().try_clone().unwrap();
        Journal::spoil(file, |key| key.is_some_and(|key| kinds.contains(&key.0))).unwrap();
        assert!(world.succeed(legacy).values().all(Result::is_ok));
        let resets = |driver: &mut Driver| {
            let mut events = 0;
            let mut resets = Vec::new();
            for datagram in driver.service() {
                events += u32::from(datagram.event() == Some(event::QP_PEER_DETACH));
                if let Some(packet) =
                    datagram.control().filter(|packet| packet.kind() == Some(PacketType::Rst))
                {
                    resets.push((packet.src_port(), packet.dst_port()));
                }
            }
            (resets, events)
        };
        let (at_client, _) = resets(a);
        let (at_server, _) = resets(b);
        assert!(at_client.contains(&(SERVER.1, CLIENT.1)), "{kinds:?}: {at_client:?}");
        assert!(at_server.contains(&(CLIENT.1, SERVER.1)), "{kinds:?}: {at_server:?}");
        assert!(detach(a, PAIR) <= 0);
        lives_on(Rich { world, drivers, queues }, true);
    }
}

/// What is done to a record's bytes; its checksums are those of a sound one.
#[derive(Clone, Debug)]
enum Forgery {
    Cut(usize),
    Flip(usize, u8),
    Word(usize, u64),
    Longer(Vec<u8>),
    Empty,
    /// Numbers of its key.
    Key(u64, u64),
    Gone,
}

fn forgery() -> impl Strategy<Value = Forgery> {
    let edge = prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(u64::MAX - 1),
        Just(1 << 63),
        Just(1 << 32),
        Just(u64::from(u32::MAX)),
        Just(4096),
        any::<u64>()
    ];
    prop_oneof![
        2 => any::<usize>().prop_map(Forgery::Cut),
        4 => (any::<usize>(), any::<u8>()).prop_map(|(at, with)| Forgery::Flip(at, with)),
        6 => (any::<usize>(), edge.clone()).prop_map(|(at, word)| Forgery::Word(at, word)),
        1 => proptest::collection::vec(any::<u8>(), 1..100).prop_map(Forgery::Longer),
        1 => Just(Forgery::Empty),
        2 => (edge.clone(), edge).prop_map(|(a, b)| Forgery::Key(a, b)),
        1 => Just(Forgery::Gone),
    ]
}

fn forge(records: &mut Records, number: usize, forgery: Forgery) {
    if records.is_empty() {
        return;
    }
    let number = number % records.len();
    let (key, bytes) = &mut records[number];
    match forgery {
        Forgery::Cut(len) => bytes.truncate(len % (bytes.len() + 1)),
        Forgery::Flip(at, with) if !bytes.is_empty() => {
            let at = at % bytes.len();
            bytes[at] ^= with;
        }
        Forgery::Word(at, word) if !bytes.is_empty() => {
            let at = at % bytes.len();
            let len = (bytes.len() - at).min(8);
            bytes[at..at + len].copy_from_slice(&word.to_le_bytes()[..len]);
        }
        Forgery::Longer(more) => bytes.extend(more),
        Forgery::Empty => bytes.clear(),
        Forgery::Key(a, b) => (key.1, key.2) = (a, b),
        Forgery::Gone => drop(records.remove(number)),
        Forgery::Flip(..) | Forgery::Word(..) => {}
    }
}

fn take_over_forged(forgeries: Vec<(usize, usize, Forgery)>, path: Path) {
    let rich = rich(path);
    let Legacy { hypervisor, sessions } = rich.world.kill();
    let mut tables = records(&hypervisor.unwrap(), HYPERVISOR);
    let mut devices: Vec<(u32, Records)> = [3, 4].map(|cid| (cid, records(&sessions[&cid], SESSION))).into();
    // The session's own record of what was done is not the device's to check.
    let own: Vec<_> = devices.iter_mut().map(|(_, records)| records.remove(0)).collect();
    assert!(own.iter().all(|(key, _)| key.0 == 1));
    for (which, number, forgery) in forgeries {
        match which {
            0 => forge(&mut devices[0].1, number, forgery),
            1 => forge(&mut devices[1].1, number, forgery),
            _ => forge(&mut tables, number, forgery),
        }
    }
    let mut sessions = sessions;
    for ((cid, mut records), own) in devices.into_iter().zip(own) {
        records.push(own);
        sessions.insert(cid, journal(SESSION, &records));
    }
    rich.world.succeed(Legacy { hypervisor: Some(journal(HYPERVISOR, &tables)), sessions });
    begins_anew(rich);
}

/// One bit of each byte of what is recorded of pairs, connections and contexts.
#[test]
fn a_bit_that_is_wrong_in_a_record_leaves_nothing_behind() {
    let kinds = [2, 5, 9];
    for number in 0.. {
        let rich = rich(Path::Dma);
        let Legacy { hypervisor, sessions } = rich.world.kill();
        let mut tables = records(&hypervisor.unwrap(), HYPERVISOR);
        let mut places = tables.iter_mut().filter(|(key, _)| kinds.contains(&key.0));
        let mut at = number;
        let (key, byte) = loop {
            let Some((key, record)) = places.next() else { return };
            match record.get_mut(at) {
                Some(byte) => break (*key, byte),
                None => at -= record.len(),
            }
        };
        *byte ^= 1;
        let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            rich.world.succeed(Legacy { hypervisor: Some(journal(HYPERVISOR, &tables)), sessions });
            begins_anew(rich);
        }));
        assert!(lived.is_ok(), "byte {at} of record {key:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Records with sound checksums and malformed content in them.
    #[test]
    fn well_formed_records_of_random_content_cause_no_panic(
        forgeries in proptest::collection::vec((0usize..12, any::<usize>(), forgery()), 1..4),
        ports in any::<bool>(),
    ) {
        take_over_forged(forgeries, if ports { Path::Ports } else { Path::Dma });
    }

    /// Bytes anywhere in any file.
    #[test]
    fn random_overwrites_cause_no_panic(
        scribbles in proptest::collection::vec((0usize..4, 0usize..12_000, proptest::collection::vec(any::<u8>(), 1..40)), 1..4),
    ) {
        let rich = rich(Path::Dma);
        let mut legacy = rich.world.kill();
        for (which, at, bytes) in scribbles {
            let file = match which {
                0 => &legacy.sessions[&3],
                1 => &legacy.sessions[&4],
                _ => legacy.hypervisor.as_ref().unwrap(),
            };
            std::fs::File::from(file.try_clone().unwrap()).write_all_at(&bytes, at as u64).unwrap();
        }
        let outcome = rich.world.succeed(Legacy { hypervisor: legacy.hypervisor.take(), sessions: legacy.sessions });
        // Only the hypervisor's tables can hurt 5, and only all at once.
        match outcome.values().any(Result::is_err) {
            true => begins_anew(rich),
            false => lives_on(rich, true),
        }
    }
}
