//! Endpoints that are no VMCI guests: the hypervisor speaks the control protocol for them, in both versions
//! and both directions, and every way to fail is reported to both ends.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_guestsim::{Guest, Options, Path, Pattern, Placement, SocketError, Stream};
use vmlane_port::queue_pair::Protocol;
use vmlane_port::shared_ring::RingProcess;
use vmlane_port::{End, Shutdown, Side, StreamEnd, StreamId};
use vmlane_sock::ring::{self, Incoming, Outgoing};
use vmlane_testkit::{LONGEST, eventually, wait_until};
use vmlane_vsock::{Call, ConnectError, DatagramError, Endpoint, Failed, Key, Remote, Router};
use vmlane_wire::host::layout;
use vmlane_wire::vmci::Handle;

use super::{World, check_pattern, rings, send_pattern};

const RING: u64 = 64 << 10;
const HOST: u32 = 2;

#[derive(Debug, PartialEq)]
enum Event {
    Joined(StreamId, Side),
    Failed(Failed),
    Ended(End),
}

/// What a host program is notified of one connection, in order.
struct Recorder(Mutex<Sender<Event>>);

impl RingProcess for Recorder {
    fn wake(&self, _room: bool) {}
    fn broke(&self) {}
    fn ended(&self, end: End) {
        let _ = self.0.lock().send(Event::Ended(end));
    }
}

impl Remote for Recorder {
    fn joined(&self, _: Call, lane: StreamId, side: Side) {
        let _ = self.0.lock().send(Event::Joined(lane, side));
    }
    fn failed(&self, _: Call, why: Failed) {
        let _ = self.0.lock().send(Event::Failed(why));
    }
}

/// A host program's end of a connection; it polls its ring.
struct HostEnd {
    router: Arc<Router>,
    call: Option<Call>,
    lane: Option<(StreamId, Side)>,
    out: Outgoing,
    incoming: Incoming,
    events: Receiver<Event>,
}

fn recorder() -> (Arc<Recorder>, Receiver<Event>) {
    let (sender, events) = channel();
    (Arc::new(Recorder(Mutex::new(sender))), events)
}

fn end() -> (StreamEnd, Arc<Recorder>, Receiver<Event>, (Outgoing, Incoming)) {
    let (recorder, events) = recorder();
    let (end, fd) = crate::host::end(RING, recorder.clone());
    (end, recorder, events, ring::map(fd, RING).expect("a ring"))
}

impl HostEnd {
    fn connect(router: &Arc<Router>, from: u32, to: (u32, u32)) -> Result<HostEnd, ConnectError> {
        let (end, recorder, events, (out, incoming)) = end();
        let call = router.open(Key { client: (HOST, from), server: to }, Some(end), recorder)?;
        Ok(HostEnd { router: router.clone(), call: Some(call), lane: None, out, incoming, events })
    }

    fn next_event(&self) -> Event {
        self.events.recv_timeout(LONGEST).expect("an event in time")
    }

    fn join(mut self) -> HostEnd {
        match self.next_event() {
            Event::Joined(lane, side) => self.lane = Some((lane, side)),
            other => panic!("{other:?}"),
        }
        self
    }

    fn kick(&self, kick: bool) {
        if let Some((lane, _)) = self.lane.filter(|_| kick) {
            self.router.streams().kick(lane);
        }
    }

    fn send_all(&mut self, mut data: &[u8]) {
        wait_until("room for all of it", || {
            let moved = self.out.write(data).expect("a ring in order");
            data = &data[moved.len..];
            self.kick(moved.kick);
            data.is_empty()
        });
    }

    fn finish(&self) {
        let (lane, side) = self.lane.expect("a joined end");
        self.router.streams().shutdown(lane, side, Shutdown::Send);
    }

    /// Everything up to the end of the stream, checked. Returns the number of bytes.
    fn check(&mut self, pattern: Pattern) -> u64 {
        let (mut at, mut buffer) = (0, vec![0; RING as usize]);
        eventually("the end of the stream", || {
            let over = self.incoming.is_over();
            let moved = self.incoming.read(&mut buffer).expect("a ring in order");
            pattern.check(at, &buffer[..moved.len]);
            at += moved.len as u64;
            self.kick(moved.kick);
            (over && moved.len == 0).then_some(at)
        })
    }
}

impl Drop for HostEnd {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            self.router.close(call);
        }
    }
}

/// A datagram's source and payload.
type Got = ((u32, u32), Vec<u8>);
type Datagrams = Receiver<Got>;

/// The host: takes requests for one port.
struct Host {
    requests: Mutex<Sender<(Call, u64)>>,
    datagrams: Mutex<Sender<Got>>,
}

impl Endpoint for Host {
    fn requested(&self, call: Call, size: Option<u64>) -> Result<(), ConnectError> {
        let _ = self.requests.lock().send((call, size.expect("a guest asks for a size")));
        Ok(())
    }

    fn datagram(&self, from: (u32, u32), port: u32, payload: &[u8]) -> Result<(), DatagramError> {
        if port != 77 {
            return Err(DatagramError::Port);
        }
        self.datagrams.lock().send((from, payload.to_vec())).map_err(|_| DatagramError::Full)
    }
}

fn host(world: &World) -> (Receiver<(Call, u64)>, Datagrams) {
    let (requests, asked) = channel();
    let (datagrams, got) = channel();
    let host = Host { requests: Mutex::new(requests), datagrams: Mutex::new(datagrams) };
    world.router.set_endpoint(HOST, Arc::new(host));
    (asked, got)
}

fn accept(world: &World, call: Call) -> HostEnd {
    let (end, recorder, events, (out, incoming)) = end();
    assert!(world.router.accept(call, end, recorder), "the guest still waits");
    HostEnd { router: world.router.clone(), call: Some(call), lane: None, out, incoming, events }
}

/// A guest's connection to the host, both ends.
fn from_guest(
    world: &World,
    asked: &Receiver<(Call, u64)>,
    guest: &Arc<Guest>,
    protocol: Protocol,
) -> (HostEnd, Stream) {
    let options = Options { protocol, ..rings(RING) };
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| guest.connect((HOST, 99), options).expect("acceptance"));
        let (call, size) = asked.recv_timeout(LONGEST).expect("a request");
        assert_eq!((call.key.server, size), ((HOST, 99), RING));
        let end = accept(world, call).join();
        (end, connecting.join().expect("the guest's thread"))
    })
}

fn to_guest(world: &World, guest: &Arc<Guest>, port: u32) -> (HostEnd, Stream) {
    let listener = guest.listen(port, Placement::Scattered);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().expect("a connection"));
        let end = HostEnd::connect(&world.router, 4000 + port, (3, port)).expect("a way").join();
        (end, accepting.join().expect("the guest's thread"))
    })
}

/// 8 MiB each way at once, both ends checked, then both ends closed.
fn both_ways(world: &World, mut end: HostEnd, stream: Stream) {
    const BYTES: u64 = 8 << 20;
    let (down, up) = (Pattern { seed: 1 }, Pattern { seed: 2 });
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&stream, up, BYTES, 70_000));
        let reading = scope.spawn(|| check_pattern(&stream, down, 50_000));
        // One thread serves the host's end: what it sends is never more than what it can.
        let (mut sent, mut got) = (0u64, 0u64);
        let (mut buffer, mut chunk) = (vec![0; 30_000], vec![0; 20_000]);
        let (mut finished, deadline) = (false, Instant::now() + LONGEST);
        while got < BYTES || !finished {
            let len = chunk.len().min((BYTES - sent) as usize);
            down.fill(sent, &mut chunk[..len]);
            let moved = end.out.write(&chunk[..len]).expect("a ring in order");
            sent += moved.len as u64;
            end.kick(moved.kick);
            if sent == BYTES && !finished {
                end.finish();
                finished = true;
            }
            let moved = end.incoming.read(&mut buffer).expect("a ring in order");
            up.check(got, &buffer[..moved.len]);
            got += moved.len as u64;
            end.kick(moved.kick);
            assert!(Instant::now() < deadline, "{sent} sent, {got} received of {BYTES}");
        }
        assert_eq!(reading.join().expect("the reader"), BYTES);
    });
    stream.close();
    drop(end);
    wait_until("nothing is left", || world.hypervisor.connections().is_empty());
    assert_eq!(world.view(3).queue_pairs, 0);
    world.assert_clean();
}

#[test]
fn a_guest_connects_to_the_host() {
    for (path, protocol) in
        [(Path::Dma, Protocol::Qstate), (Path::Dma, Protocol::Pkt), (Path::Ports, Protocol::Qstate)]
    {
        let world = World::new();
        let (asked, _) = host(&world);
        let machine = world.machine(3);
        let guest = machine.boot(path);
        let (end, stream) = from_guest(&world, &asked, &guest, protocol);
        both_ways(&world, end, stream);
    }
}

#[test]
fn the_host_connects_to_a_guest() {
    for path in [Path::Dma, Path::Ports] {
        let world = World::new();
        let _host = host(&world);
        let machine = world.machine(3);
        let guest = machine.boot(path);
        let (end, stream) = to_guest(&world, &guest, 5000);
        assert_eq!(stream.peer(), (HOST, 9000));
        both_ways(&world, end, stream);
    }
}

#[test]
fn refusals_are_received_on_either_side() {
    let world = World::new();
    let (asked, _) = host(&world);
    let machine = world.machine(3);
    let guest = machine.boot(Path::Dma);
    // No program listens in the guest.
    let done = AtomicBool::new(false);
    let serving = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                guest.service();
            }
        });
        let end = HostEnd::connect(&world.router, 4000, (3, 1)).expect("a way");
        let events = end.next_event();
        done.store(true, Ordering::Relaxed);
        events
    });
    assert_eq!(serving, Event::Failed(Failed::Refused));
    // The host hangs up instead of accepting.
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| guest.connect((HOST, 1), rings(RING)).err());
        world.router.close(asked.recv_timeout(LONGEST).expect("a request").0);
        assert_eq!(connecting.join().expect("the guest's thread"), Some(SocketError::Refused));
    });
    // No such VM, and one whose driver is not loaded.
    let _off = world.machine(4);
    for cid in [4, 5, 2] {
        let refused = HostEnd::connect(&world.router, 4000, (cid, 1)).err();
        assert_eq!(refused, Some(ConnectError::Unreachable), "CID {cid}");
    }
    wait_until("nothing is left", || world.hypervisor.connections().is_empty());
}

#[test]
fn bytes_sent_before_a_close_arrive_and_the_end_behind_them() {
    let world = World::new();
    let (asked, _) = host(&world);
    let machine = world.machine(3);
    let guest = machine.boot(Path::Dma);
    // The guest closes with bytes on the way.
    let (mut end, stream) = from_guest(&world, &asked, &guest, Protocol::Qstate);
    let pattern = Pattern { seed: 3 };
    let mut bytes = vec![0; RING as usize - 1];
    pattern.fill(0, &mut bytes);
    stream.send_all(&bytes).expect("room");
    stream.close();
    assert_eq!(end.check(pattern), RING - 1);
    assert_eq!(end.next_event(), Event::Ended(End::Detached));
    drop(end);
    // The host closes with bytes on the way.
    let (mut end, stream) = from_guest(&world, &asked, &guest, Protocol::Qstate);
    end.send_all(&bytes);
    drop(end);
    assert_eq!(check_pattern(&stream, pattern, 1000), RING - 1);
    stream.close();
    wait_until("nothing is left", || world.hypervisor.connections().is_empty());
    world.assert_clean();
}

#[test]
fn a_guest_that_dies_ends_its_streams_and_its_handshakes() {
    let world = World::new();
    let (asked, _) = host(&world);
    let machine = world.machine(3);
    let guest = machine.boot(Path::Dma);
    let (end, stream) = from_guest(&world, &asked, &guest, Protocol::Qstate);
    let hanging = HostEnd::connect(&world.router, 4001, (3, 9)).expect("a way");
    world.hypervisor.reset(3);
    assert_eq!(end.next_event(), Event::Ended(End::Detached));
    assert_eq!(hanging.next_event(), Event::Failed(Failed::Gone));
    drop((end, hanging, stream));
    wait_until("nothing is left", || world.hypervisor.connections().is_empty());
}

#[test]
fn a_handshake_that_stops_expires_and_leaves_no_pair() {
    let world = World::new();
    let _host = host(&world);
    let machine = world.machine(3);
    let _driver = machine.probe(Path::Dma);
    let end = HostEnd::connect(&world.router, 4000, (3, 9)).expect("a way");
    world.hypervisor.expire_at(Instant::now() + Duration::from_secs(31));
    assert_eq!(end.next_event(), Event::Failed(Failed::Gone));
    assert!(world.hypervisor.connections().is_empty());
}

#[test]
fn an_endpoint_that_breaks_its_ring_loses_its_stream_only() {
    let world = World::new();
    let (asked, _) = host(&world);
    let machine = world.machine(3);
    let guest = machine.boot(Path::Dma);
    let (good, good_stream) = from_guest(&world, &asked, &guest, Protocol::Qstate);
    let (recorder, events) = recorder();
    let (end, fd) = crate::host::end(RING, recorder.clone());
    let listener = guest.listen(6000, Placement::Scattered);
    let (call, stream) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().expect("a connection"));
        let key = Key { client: (HOST, 4444), server: (3, 6000) };
        let call = world.router.open(key, Some(end), recorder.clone()).expect("a way");
        (call, accepting.join().expect("the guest's thread"))
    });
    let Ok(Event::Joined(lane, _)) = events.recv_timeout(LONGEST) else { panic!("not joined") };
    // A tail outside the ring, written straight into the file.
    let page = layout::process_page(RING);
    std::fs::File::from(fd).write_all_at(&u64::MAX.to_le_bytes(), page).expect("to write");
    world.router.streams().kick(lane);
    assert_eq!(stream.recv(&mut [0; 8]), Ok(0), "its peer is notified that it is gone");
    world.router.close(call);
    stream.close();
    assert_eq!(world.stats.broken.get(), 1);
    let mut good = good;
    good.send_all(b"unharmed");
    let mut bytes = [0; 8];
    assert_eq!((good_stream.recv_all(&mut bytes), &bytes), (Ok(8), b"unharmed"));
}

#[test]
fn datagrams_go_both_ways_without_events() {
    let world = World::new();
    let (_asked, got) = host(&world);
    let machine = world.machine(3);
    let guest = machine.boot(Path::Dma);
    let to = |port| Handle::new(HOST, port);
    assert_eq!(guest.driver(|driver| driver.send_to(to(77), 1234, b"hello")), 29);
    assert_eq!(got.recv_timeout(LONGEST).expect("a datagram"), ((3, 1234), b"hello".to_vec()));
    assert!(guest.driver(|driver| driver.send_to(to(78), 1234, b"hello")) < 0);
    world.router.send_datagram((HOST, 77), (3, 1234), b"answer").expect("room");
    let datagram = guest.next_datagram().expect("a datagram");
    assert_eq!(datagram.payload, b"answer");
    assert!(world.router.send_datagram((HOST, 77), (3, 0), b"event").is_err());
    assert!(world.router.send_datagram((HOST, 77), (9, 5), b"absent").is_err());
}
