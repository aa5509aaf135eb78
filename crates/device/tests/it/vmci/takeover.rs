//! The daemon dies and the next one restores its state: streams, handshakes, datagrams, doorbells, quotas.

mod with_host;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmlane_device::vmci::{Bound, Limits};
use vmlane_guestsim::restart::{Moment, RestartableDaemon};
use vmlane_guestsim::{
    Driver, Options, PairSpec, Path, Pattern, Placement, Queues, SocketError, VmSpec, vm, vm_with,
};
use vmlane_port::queue_pair::Protocol;
use vmlane_testkit::wait_until;
use vmlane_vsock::Forward;
use vmlane_wire::vmci::{Handle, QP_ATTACH_ONLY, Reg, call, event};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};

use super::talk::{ATTACH, CLIENT, CREATE, PAIR, SERVER, send_packet};
use super::{about, check_pattern, connect, connect_to, fill, link, ring, rings, send_pattern};

fn two() -> Arc<RestartableDaemon> {
    RestartableDaemon::new(vec![vm(3), vm(4)])
}

fn drivers(world: &RestartableDaemon, path: Path) -> [Driver; 2] {
    [world.probe(3, path), world.probe(4, path)]
}

/// What a guest receives, without what may be sent twice: notices of bytes and room.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Received {
    Packet((u32, u32), PacketType, u32),
    /// A queue pair event: its number and handle.
    Event(u32, Handle),
    Bytes(Vec<u8>),
}

fn is_notice(kind: PacketType) -> bool {
    use PacketType::{Read, WaitingRead, WaitingWrite, Wrote};
    matches!(kind, Wrote | Read | WaitingRead | WaitingWrite)
}

fn receive_all(driver: &mut Driver) -> Vec<Received> {
    let received =
        driver.service().into_iter().map(|datagram| match (datagram.control(), datagram.event()) {
            (Some(packet), _) => Received::Packet(
                (datagram.src.context, packet.src_port()),
                packet.kind().expect("a kind that is known"),
                packet.dst_port(),
            ),
            (_, Some(event)) => {
                let word = |at: usize| u32::from_le_bytes(datagram.payload[at..at + 4].try_into().unwrap());
                Received::Event(event, Handle::new(word(8), word(12)))
            }
            _ => Received::Bytes(datagram.payload),
        });
    received.collect()
}

fn receive(driver: &mut Driver) -> Vec<Received> {
    let mut received = receive_all(driver);
    received.retain(|received| !matches!(received, Received::Packet(_, kind, _) if is_notice(*kind)));
    received
}

fn pass(from: &mut Driver, to: &mut Driver, [source, target]: [(u32, u32); 2], kind: PacketType) {
    assert_eq!(send_packet(from, target, source.1, kind), 56, "{kind:?}");
    assert_eq!(receive(to), [Received::Packet(source, kind, target.1)]);
}

fn attach(a: &mut Driver, b: &mut Driver) -> Queues {
    let server = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    assert_eq!(receive_all(a), [Received::Event(event::QP_PEER_ATTACH, PAIR)]);
    assert_eq!(send_packet(b, CLIENT, SERVER.1, PacketType::Attach), 56);
    // Linux gives a connection up that is notified of bytes before it is attached.
    let received = receive_all(a);
    assert_eq!(received[0], Received::Packet(SERVER, PacketType::Attach, CLIENT.1), "{received:?}");
    server
}

/// Sends `bytes` and makes the receiver take them.
fn carry(from: (&mut Driver, &Queues), to: &Queues, [source, target]: [(u32, u32); 2], bytes: &[u8]) {
    assert_eq!(from.1.enqueue(bytes), bytes.len());
    assert_eq!(send_packet(from.0, target, source.1, PacketType::Wrote), 56);
    let mut got = vec![0; bytes.len() + 1];
    assert_eq!(to.dequeue(&mut got), bytes.len());
    assert_eq!(got[..bytes.len()], *bytes);
}

/// Requests that either guest makes at least in a whole [`life`]: fewer, and it was not lived.
const FEWEST: usize = 40;
const UP: [(u32, u32); 2] = [CLIENT, SERVER];
const DOWN: [(u32, u32); 2] = [SERVER, CLIENT];
const DOORBELL: Handle = Handle::new(4, 2100);

/// Everything two guests do with each other, from probe to detach; every answer and everything received is
/// checked on the way.
fn life(world: &RestartableDaemon, path: Path) {
    let [mut a, mut b] = drivers(world, path);
    assert_eq!(link(&mut b, DOORBELL, 7), 0);
    assert_eq!(b.call(call::DATAGRAM_REQUEST_MAP, &[2200u32, 0].map(u32::to_le_bytes).concat()), 0);
    for to in [Handle::new(4, 77), Handle::new(1, 2200)] {
        assert_eq!(a.send_to(to, 55, b"once and once only"), 42);
        assert_eq!(receive(&mut b), [Received::Bytes(b"once and once only".to_vec())]);
    }
    assert!(ring(&mut a, DOORBELL) >= 0);
    assert_eq!(b.doorbells(), [7]);
    pass(&mut a, &mut b, UP, PacketType::Request2);
    pass(&mut b, &mut a, DOWN, PacketType::Negotiate2);
    let client = a.alloc(&CREATE, Placement::Scattered).expect("a pair");
    assert_eq!((world.used(3, "queue_pairs"), world.used(3, "connections")), (1, 1));
    pass(&mut a, &mut b, UP, PacketType::Offer);
    let server = attach(&mut a, &mut b);
    carry((&mut a, &client), &server, UP, b"some way up");
    carry((&mut b, &server), &client, DOWN, &[7; 3000]);
    carry((&mut b, &server), &client, DOWN, &[8; 3000]);
    assert_eq!(client.enqueue(b"the last words"), 14);
    assert_eq!(a.control(4, ControlPacket::new(PacketType::Shutdown, CLIENT.1, SERVER.1).with_mode(2)), 56);
    let mut words = [0; 20];
    assert_eq!(server.dequeue(&mut words), 14);
    assert_eq!(receive(&mut b), [Received::Packet(CLIENT, PacketType::Shutdown, SERVER.1)]);
    for cid in [3, 4] {
        assert_eq!(world.used(cid, "queue_pair_bytes"), 8192, "of VM {cid}");
    }
    assert_eq!(a.detach(client), 0);
    assert_eq!(receive(&mut b), [Received::Event(event::QP_PEER_DETACH, PAIR)]);
    assert_eq!(b.detach(server), 0);
    assert_eq!(receive(&mut a), []);
    assert_eq!(about(&mut b, call::DOORBELL_UNLINK, DOORBELL), 0);
    for (cid, name) in
        [3, 4].into_iter().flat_map(|cid| world.view(cid).bounds.into_iter().map(move |b| (cid, b.name)))
    {
        assert_eq!(world.used(cid, name), 0, "{name} of VM {cid}");
    }
    assert_eq!(world.hypervisor().connections(), []);
    // Both drivers can be loaded again.
    a.remove();
    b.remove();
    let [mut a, _b] = drivers(world, path);
    assert_eq!(a.send_to(Handle::new(4, 77), 55, b"again"), 29);
}

/// In whatever request of either guest the daemon dies, and at whatever moment of it: both live the same
/// life.
#[test]
fn no_request_is_the_wrong_one_to_die_in() {
    for path in Path::ALL {
        for (cid, moment) in [3, 4].into_iter().flat_map(|cid| Moment::ALL.map(|moment| (cid, moment))) {
            // How many requests a life takes depends on the clock: for a millisecond after ATTACH was taken
            // the device holds notices back, and one that it did not hold back is fetched. So no life counts
            // for another: each dies in its request number `nth`, until one is over before it has made so
            // many.
            let requests = (0..).take_while(|&nth| dies_in(path, cid, nth, moment)).count();
            assert!(requests > FEWEST, "{path:?}: only {requests} requests of VM {cid}");
        }
    }
}

/// A life whose daemon dies in request `nth` of VM `cid`. False: that VM made no such request.
fn dies_in(path: Path, cid: u32, nth: u64, moment: Moment) -> bool {
    let world = two();
    let seat = world.seat(cid);
    seat.die_in(nth, moment);
    let lived = std::panic::catch_unwind(AssertUnwindSafe(|| life(&world, path)));
    assert!(lived.is_ok(), "{path:?}: death in request {nth} of VM {cid}: {moment:?}");
    let came = seat.requests() > nth;
    assert_eq!(!seat.is_doomed(), came, "{path:?}: request {nth} of VM {cid} of {}", seat.requests());
    came
}

/// A daemon that dies twice in the same request, and once more in the next one.
#[test]
fn deaths_in_a_row_are_as_harmless_as_one() {
    let world = two();
    life(&world, Path::Dma);
    let requests = world.seat(3).requests();
    for nth in 0..requests {
        let world = two();
        world.seat(3).die_in(nth, Moment::Worked);
        world.seat(4).die_in(nth, Moment::Committed);
        life(&world, Path::Dma);
        world.replace();
        world.replace();
        life(&world, Path::Dma);
    }
}

/// Kills the daemon every few milliseconds until dropped.
struct Killer(Option<std::thread::JoinHandle<()>>, Arc<AtomicBool>);

impl Killer {
    fn of(world: &Arc<RestartableDaemon>, seed: u64) -> Killer {
        let stop = Arc::new(AtomicBool::new(false));
        let (world, over) = (world.clone(), stop.clone());
        let mut random = seed | 1;
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                std::thread::sleep(Duration::from_micros(200 + random % 4000));
                world.replace();
            }
        });
        Killer(Some(thread), stop)
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
        let killed = self.0.take().map(|thread| thread.join());
        assert!(std::thread::panicking() || killed.is_some_and(|killed| killed.is_ok()));
    }
}

const BYTES: u64 = 8 << 20;

fn stream_under_deaths(path: Path, protocol: Protocol) {
    let world = RestartableDaemon::threaded(vec![vm(3), vm(4)]);
    let guests = [world.boot(3, path), world.boot(4, path)];
    let options = Options { protocol, ..rings(65_536) };
    let streams: Vec<_> =
        (0..3).map(|n| connect(&guests[n % 2], &guests[1 - n % 2], 5000 + n as u32, options)).collect();
    let killer = Killer::of(&world, 7 + path as u64);
    let deaths = || world.deaths.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        for (n, (a, b)) in streams.iter().enumerate() {
            let pattern = move |way| Pattern::new(100 * n as u64 + way);
            scope.spawn(move || send_pattern(a, pattern(1), BYTES, 30_000));
            scope.spawn(move || send_pattern(b, pattern(2), BYTES, 9_000));
            scope.spawn(move || assert_eq!(check_pattern(b, pattern(1), 20_000), BYTES));
            scope.spawn(move || assert_eq!(check_pattern(a, pattern(2), 40_000), BYTES));
        }
        // More streams come and go meanwhile.
        let (guests, deaths) = (&guests, &deaths);
        scope.spawn(move || {
            for n in (0..).take_while(|&n| n < 6 || deaths() <= 5) {
                let (a, b) = connect(&guests[0], &guests[1], 6000 + n, options);
                a.send_all(b"here for a moment").expect("to be taken");
                a.shutdown(2);
                let mut got = [0; 100];
                assert_eq!(b.recv_all(&mut got), Ok(17));
            }
        });
    });
    drop(killer);
    assert!(deaths() > 5, "{} deaths", deaths());
    drop(streams);
    assert_eq!(world.hypervisor().connections(), []);
    assert_eq!([3, 4].map(|cid| world.used(cid, "queue_pairs")), [0, 0]);
}

#[test]
fn streams_are_whole_whatever_dies_under_them() {
    for path in Path::ALL {
        stream_under_deaths(path, Protocol::Qstate);
    }
    stream_under_deaths(Path::Dma, Protocol::Pkt);
}

#[test]
fn bytes_left_behind_outlive_their_sender_and_its_daemon() {
    for path in [Path::Dma, Path::Ports] {
        let world = RestartableDaemon::threaded(vec![vm(3), vm(4)]);
        let (client, server) = (world.boot(3, path), world.boot(4, path));
        let (a, b) = connect(&client, &server, 5000, rings(16_384));
        let pattern = Pattern::new(5);
        let sent = fill(&a, pattern, 16_384);
        let charged = || world.used(3, "overflow_bytes");
        a.close();
        let kept = charged();
        assert!(kept > 10_000, "{kept} bytes are kept");
        world.replace();
        wait_until("what is kept is charged to who left it", || charged() == kept);
        let mut got = vec![0; 9_000];
        assert_eq!(b.recv_all(&mut got), Ok(9_000));
        pattern.check(0, &got);
        wait_until("there is more to read", || b.queues(|queues| queues.ready()) > 10_000);
        assert_eq!(charged(), kept, "until the last byte");
        world.replace();
        wait_until("the rest is kept", || (1..kept).contains(&charged()));
        // After a restart of the reader, too.
        let mut rest = vec![0; 60_000];
        let len = b.recv_all(&mut rest).expect("the rest");
        pattern.check(9_000, &rest[..len]);
        assert_eq!(9_000 + len as u64, sent);
        assert_eq!(b.peer_shutdown(), 3);
        wait_until("nothing is charged any more", || charged() == 0);
        assert_eq!(b.send(b"anyone?"), Err(SocketError::Closed));
        b.close();
        assert_eq!(world.hypervisor().connections(), []);
    }
}

#[test]
fn an_end_that_was_notified_is_not_notified_again() {
    let world = two();
    let [mut a, mut b] = drivers(&world, Path::Dma);
    pass(&mut a, &mut b, UP, PacketType::Request2);
    pass(&mut b, &mut a, DOWN, PacketType::Negotiate2);
    let client = a.alloc(&CREATE, Placement::Scattered).expect("a pair");
    pass(&mut a, &mut b, UP, PacketType::Offer);
    let server = attach(&mut a, &mut b);
    assert_eq!(a.detach(client), 0);
    world.replace();
    assert_eq!(receive(&mut b), [Received::Event(event::QP_PEER_DETACH, PAIR)], "it waited and waits");
    world.replace();
    assert_eq!(receive(&mut b), [], "it was notified already");
    world.replace();
    assert_eq!(b.detach(server), 0);
    assert_eq!([3, 4].map(|cid| world.used(cid, "queue_pairs")), [0, 0]);
}

#[test]
fn datagrams_wait_in_order_and_charged_to_their_senders() {
    let world = RestartableDaemon::new(vec![vm(3), vm(4), vm(5)]);
    let mut drivers = [3, 4, 5].map(|cid| world.probe(cid, Path::Dma));
    let [a, b, c] = &mut drivers;
    let mut sent = Vec::new();
    // Until their shares are used up.
    for n in 0u32.. {
        let payload = vec![n as u8; 2000];
        let results = [&mut *a, &mut *c].map(|driver| driver.send_to(Handle::new(4, 77), 55, &payload));
        sent.extend(
            results.into_iter().filter(|result| *result > 0).map(|_| Received::Bytes(payload.clone())),
        );
        if results.into_iter().all(|result| result < 0) {
            break;
        }
    }
    let used = world.used(4, "inbox_bytes");
    assert!(sent.len() > 20 && used > 60_000, "{} datagrams, {used} bytes", sent.len());
    world.replace();
    assert_eq!(world.used(4, "inbox_bytes"), used);
    assert!(a.send_to(Handle::new(4, 77), 55, &[0; 2000]) < 0, "its share is used up as before");
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let more = receive(b);
        assert!(!more.is_empty(), "{} of {} came", received.len(), sent.len());
        received.extend(more);
        world.replace();
    }
    assert_eq!(received, sent);
    assert_eq!(world.used(4, "inbox_bytes"), 0);
    assert_eq!(a.send_to(Handle::new(4, 77), 55, &[0; 2000]), 2024);
}

/// Half a datagram in, half a batch out: byte ports stop anywhere.
#[test]
fn byte_ports_go_on_in_the_middle_of_a_datagram() {
    let world = two();
    let [mut a, mut b] = drivers(&world, Path::Ports);
    let datagram = vmlane_wire::vmci::datagram(Handle::new(4, 77), Handle::new(3, 55), &[9; 50]);
    for cut in 1..datagram.len() {
        let registers = a.registers_mut();
        registers.write_bytes(0, Reg::DataOut.offset(), &datagram[..cut]);
        world.replace();
        a.registers_mut().write_bytes(0, Reg::DataOut.offset(), &datagram[cut..]);
        assert_eq!(a.read(Reg::ResultLow), 74, "cut at {cut}");
        let mut page = [0; 4096];
        b.lines.take(0);
        let (front, back) = page.split_at_mut(cut * 4);
        b.registers_mut().read_bytes(0, Reg::DataIn.offset(), front);
        world.replace();
        b.registers_mut().read_bytes(0, Reg::DataIn.offset(), back);
        assert_eq!(page[..74], datagram[..], "cut at {cut}");
        assert!(page[80..].iter().all(|byte| *byte == 0xff), "cut at {cut}");
    }
}

/// The creator was reset, its peer still holds its end; the creator's next kernel uses the handle again.
#[test]
fn a_pair_whose_creator_was_reset_goes_on_beside_its_namesake() {
    let world = two();
    let [mut a, mut b] = drivers(&world, Path::Dma);
    let first = a.alloc(&CREATE, Placement::Scattered).expect("a pair");
    let attached = b.alloc(&ATTACH, Placement::Scattered).expect("to attach");
    assert_eq!(first.enqueue(b"before the reset"), 16);
    world.hypervisor().connections();
    a.remove();
    world.replace();
    let mut a = world.probe(3, Path::Dma);
    let second = a.alloc(&CREATE, Placement::Scattered).expect("the same handle, in a new life");
    world.replace();
    assert_eq!(world.used(4, "queue_pairs"), 1);
    assert_eq!(b.detach(attached), 0);
    let again = b.alloc(&ATTACH, Placement::Scattered).expect("the new one");
    world.replace();
    assert_eq!(second.enqueue(b"anew"), 4);
    // Outside of connections there are no notifications: the stream polls.
    world.replace();
    let mut got = [0; 9];
    assert_eq!(again.dequeue(&mut got), 4);
    assert_eq!((a.detach(second), b.detach(again)), (0, 0));
    assert_eq!([3, 4].map(|cid| world.used(cid, "queue_pairs")), [0, 0]);
}

#[test]
fn a_vm_that_is_gone_is_missed() {
    for gone in [3, 4] {
        let world = RestartableDaemon::threaded(vec![vm(3), vm(4)]);
        let [mut a, mut b] = drivers(&world, Path::Dma);
        pass(&mut a, &mut b, UP, PacketType::Request2);
        pass(&mut b, &mut a, DOWN, PacketType::Negotiate2);
        let client = a.alloc(&CREATE, Placement::Scattered).expect("a pair");
        pass(&mut a, &mut b, UP, PacketType::Offer);
        let server = attach(&mut a, &mut b);
        assert_eq!((client.enqueue(b"to whom"), server.enqueue(b"to whom")), (7, 7));
        let legacy = world.kill();
        world.lose(gone);
        world.succeed(legacy);
        let (left, queues, cid) = if gone == 3 { (&mut b, server, 4) } else { (&mut a, client, 3) };
        let mut received = Vec::new();
        wait_until("the end is reported", || {
            received.extend(receive(left));
            received.contains(&Received::Event(event::QP_PEER_DETACH, PAIR))
        });
        assert_eq!(left.detach(queues), 0);
        assert_eq!((world.used(cid, "queue_pairs"), world.used(cid, "connections")), (0, 0));
        assert_eq!(world.hypervisor().connections(), []);
    }
}

/// Handshakes wait their turn; those that waited continue, in order.
#[test]
fn requests_that_wait_their_turn_get_it() {
    let world = two();
    let [mut a, mut b] = drivers(&world, Path::Ports);
    let ports = 2000..2040u32;
    for port in ports.clone() {
        assert_eq!(send_packet(&mut a, SERVER, port, PacketType::Request2), 56);
    }
    let mut answered = Vec::new();
    for _ in 0..200 {
        world.replace();
        for received in receive(&mut b) {
            let Received::Packet((3, port), PacketType::Request2, _) = received else {
                panic!("{received:?}")
            };
            assert_eq!(send_packet(&mut b, (3, port), SERVER.1, PacketType::Rst), 56);
            answered.push(port);
        }
        world.replace();
        receive(&mut a);
        world.hypervisor().expire();
        if answered.len() == ports.len() {
            break;
        }
    }
    assert_eq!(answered, ports.collect::<Vec<_>>());
    assert_eq!((world.used(3, "connections"), world.hypervisor().connections()), (0, vec![]));
}

/// By way of the host's address, in the older protocol.
#[test]
fn a_connection_through_the_map_goes_on() {
    let forward = Forward { port: 7000, to_cid: 4, to_port: 5000 };
    let world = RestartableDaemon::threaded(vec![vm_with(3, |vm| vm.forwards = vec![forward]), vm(4)]);
    let (client, server) = (world.boot(3, Path::Dma), world.boot(4, Path::Dma));
    let listener = server.listen(5000, Placement::Scattered);
    let options = Options { protocol: Protocol::Pkt, ..rings(8192) };
    let (a, b) = connect_to(&client, &listener, (2, 7000), options);
    world.replace();
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&a, Pattern::new(1), 200_000, 5000));
        scope.spawn(|| {
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(2));
                world.replace();
            }
        });
        assert_eq!(check_pattern(&b, Pattern::new(1), 5000), 200_000);
    });
    b.close();
    wait_until("the client is notified of the end", || {
        client.service();
        a.peer_shutdown() == 3
    });
    a.close();
    assert_eq!(world.hypervisor().connections(), []);
}

/// Bounds are as used as they were, and enforced.
#[test]
fn quotas_survive() {
    let limits = Limits { queue_pairs: 3, doorbells: 2, ..Limits::default() };
    let few = VmSpec { limits, ..vm_with(3, |vm| vm.connections = 2) };
    let world = RestartableDaemon::new(vec![few, vm(4)]);
    let [mut a, mut b] = drivers(&world, Path::Dma);
    let handles = |n: u32| PairSpec { handle: Handle::new(3, 2000 + n), ..CREATE };
    let pairs: Vec<Queues> =
        (0..3).map(|n| a.alloc(&handles(n), Placement::Scattered).expect("a pair")).collect();
    for n in 0..2 {
        assert_eq!(send_packet(&mut a, SERVER, 1030 + n, PacketType::Request2), 56);
        assert_eq!(link(&mut a, Handle::new(3, 2100 + n), 1), 0);
    }
    receive(&mut b);
    let before = world.view(3).bounds;
    world.replace();
    let after = world.view(3).bounds;
    let used = |bounds: &[Bound]| bounds.iter().map(|b| (b.name, b.used, b.limit)).collect::<Vec<_>>();
    assert_eq!(used(&before), used(&after));
    assert!(a.alloc(&handles(9), Placement::Scattered).is_err());
    assert!(send_packet(&mut a, SERVER, 1040, PacketType::Request2) < 0 || receive(&mut a).len() == 1);
    assert!(link(&mut a, Handle::new(3, 2110), 1) < 0);
    for pair in pairs {
        assert_eq!(a.detach(pair), 0);
    }
    assert!(
        a.alloc(&PairSpec { flags: QP_ATTACH_ONLY, ..handles(1) }, Placement::Scattered).is_err(),
        "all are gone"
    );
    assert_eq!(world.used(3, "queue_pairs"), 0);
}
