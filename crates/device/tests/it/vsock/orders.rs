//! What one end of a connection does, the other one sees, however far its own handshake has come: bytes, the
//! end of either half, close and reset, at every stage, for every pair of kinds of endpoint.

use std::sync::Arc;
use std::time::Duration;

use vmlane_guestsim::vsock::{Bench, Guest, vm};
use vmlane_guestsim::{Datagram, Driver, Machine, PairSpec, Path, Placement, Queues};
use vmlane_port::{Shutdown, StreamEnd};
use vmlane_sock::ring::{self, Incoming, Outgoing};
use vmlane_stream::Inline;
use vmlane_vsock::Vm as VsockVm;
use vmlane_vsock::{Call, Forward, Key};
use vmlane_wire::host::ended;
use vmlane_wire::virtio_vsock::{self as virtio, Header, kind, op};
use vmlane_wire::vmci::{Handle, QP_ATTACH_ONLY, event};
use vmlane_wire::vmci_stream::{self as control, ControlPacket, PacketType};

use crate::host::{self, Host};

const HOST: u32 = 2;
const CLIENT: u32 = 3;
const SERVER: u32 = 4;
const CLIENT_PORT: u32 = 1500;
const SERVER_PORT: u32 = 80;
/// Where a virtio guest reaches another one through the daemon.
const FORWARDED: u32 = 700;
const RING: u64 = 64 << 10;
const BYTES: &[u8] = b"all of it";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Vmci,
    Virtio,
    Host,
}

/// What an end does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Send,
    FinishSending,
    StopReceiving,
    Close,
    Reset,
}

/// Every order that makes a difference.
const ORDERS: [&[Act]; 19] = [
    &[],
    &[Act::Send],
    &[Act::FinishSending],
    &[Act::StopReceiving],
    &[Act::Close],
    &[Act::Reset],
    &[Act::Send, Act::FinishSending],
    &[Act::Send, Act::StopReceiving],
    &[Act::StopReceiving, Act::Send],
    &[Act::Send, Act::Close],
    &[Act::Send, Act::Reset],
    &[Act::Send, Act::FinishSending, Act::StopReceiving],
    &[Act::Send, Act::StopReceiving, Act::FinishSending],
    &[Act::StopReceiving, Act::Send, Act::FinishSending],
    &[Act::StopReceiving, Act::Send, Act::Close],
    &[Act::StopReceiving, Act::Send, Act::Reset],
    &[Act::Send, Act::FinishSending, Act::Close],
    &[Act::Send, Act::FinishSending, Act::Reset],
    &[Act::FinishSending, Act::Close],
];

/// What an end has seen of its peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    connected: bool,
    bytes: Vec<u8>,
    /// No more bytes will come.
    finished: bool,
    /// The peer reads no more.
    refused: bool,
    /// The connection was reset.
    reset: bool,
}

impl Seen {
    fn after(acts: &[Act]) -> Seen {
        let did = |act| acts.contains(&act);
        let over = did(Act::Close) || did(Act::Reset);
        Seen {
            connected: true,
            bytes: if did(Act::Send) { BYTES.to_vec() } else { Vec::new() },
            finished: over || did(Act::FinishSending),
            refused: over || did(Act::StopReceiving),
            reset: did(Act::Reset),
        }
    }
}

struct World {
    bench: Bench,
    streams: Arc<Inline>,
    host: Arc<Host>,
}

impl World {
    fn new() -> World {
        let streams = Arc::new(Inline::default());
        let bench = Bench::new(streams.clone());
        let host = Arc::new(Host::default());
        bench.router.set_endpoint(HOST, host.clone());
        World { bench, streams, host }
    }

    fn run(&mut self) {
        for _ in 0..4 {
            assert!(self.bench.run());
            self.streams.turn_all();
        }
    }

    /// The same, with what waits a moment after an ATTACH.
    fn settle(&mut self) {
        self.run();
        std::thread::sleep(Duration::from_millis(2));
        self.run();
    }

    fn end(&mut self, kind: Kind, cid: u32) -> Box<dyn End> {
        match kind {
            Kind::Vmci => Box::new(VmciEnd::new(self, cid)),
            Kind::Virtio => Box::new(VirtioEnd::new(self, cid)),
            Kind::Host => Box::new(HostEnd::default()),
        }
    }
}

/// One end of the connection, driven by hand.
trait End {
    fn connect(&mut self, world: &mut World, to: (u32, u32));
    /// Continues as the server; true once it has accepted.
    fn accept(&mut self, world: &mut World) -> bool;
    /// Continues as the client; false if there is nothing to continue.
    fn step(&mut self, world: &mut World) -> bool;
    fn act(&mut self, world: &mut World, act: Act);
    fn seen(&mut self, world: &mut World) -> Seen;
}

/// A VMCI guest that speaks the control protocol packet by packet.
struct VmciEnd {
    driver: Driver,
    _machine: Machine,
    own: u32,
    peer: (u32, u32),
    queues: Option<Queues>,
    seen: Seen,
}

impl VmciEnd {
    fn new(world: &World, cid: u32) -> VmciEnd {
        let spec = vmlane_guestsim::vm_with(cid, |vm| vm.group = "one".into());
        let machine = Machine::new(&world.bench.hypervisor, spec);
        let driver = machine.probe(Path::Dma);
        let own = if cid == CLIENT { CLIENT_PORT } else { SERVER_PORT };
        VmciEnd { driver, _machine: machine, own, peer: (0, 0), queues: None, seen: Seen::default() }
    }

    fn send_packet(&mut self, packet: ControlPacket) {
        let sent = self.driver.control(self.peer.0, packet.with_ports(self.own, self.peer.1));
        assert!(sent > 0, "{:?} was refused: {sent}", packet.kind());
    }

    fn allocate(&mut self, handle: Handle, flags: u32) {
        let spec = PairSpec { handle, peer: self.peer.0, flags, produce: RING, consume: RING };
        self.queues = Some(self.driver.alloc(&spec, Placement::Scattered).expect("a queue pair"));
    }

    /// Takes what has come; true if that was a step of the handshake.
    fn take(&mut self) -> bool {
        let mut stepped = false;
        for datagram in self.driver.service() {
            stepped |= self.on_datagram(&datagram);
        }
        stepped
    }

    fn on_datagram(&mut self, datagram: &Datagram) -> bool {
        if datagram.event() == Some(event::QP_PEER_DETACH) {
            (self.seen.finished, self.seen.refused) = (true, true);
            // As in Linux: an end that still connects has failed then.
            return false;
        }
        let Some(packet) = datagram.control() else { return false };
        match packet.kind() {
            Some(PacketType::Request2) => {
                self.peer = (datagram.src.context, packet.src_port());
                let answer = ControlPacket::new(PacketType::Negotiate2, 0, 0);
                self.send_packet(answer.with_size(RING, control::PROTO_QSTATE));
            }
            Some(PacketType::Negotiate2) => {
                let handle = Handle::new(self.driver.cid, 3000);
                self.allocate(handle, 0);
                self.send_packet(ControlPacket::new(PacketType::Offer, 0, 0).with_handle(handle));
            }
            Some(PacketType::Offer) => {
                self.allocate(packet.handle(), QP_ATTACH_ONLY);
                self.send_packet(ControlPacket::new(PacketType::Attach, 0, 0).with_handle(packet.handle()));
                self.seen.connected = true;
            }
            Some(PacketType::Attach) => self.seen.connected = true,
            Some(PacketType::Shutdown) => {
                self.seen.finished |= packet.mode() & control::SHUTDOWN_SEND != 0;
                self.seen.refused |= packet.mode() & control::SHUTDOWN_RECEIVE != 0;
                return false;
            }
            Some(PacketType::Rst) => {
                (self.seen.finished, self.seen.refused, self.seen.reset) = (true, true, true);
                return false;
            }
            _ => return false,
        }
        true
    }

    fn shut(&mut self, mode: u64) {
        self.send_packet(ControlPacket::new(PacketType::Shutdown, 0, 0).with_mode(mode));
    }
}

impl End for VmciEnd {
    fn connect(&mut self, _: &mut World, to: (u32, u32)) {
        self.peer = to;
        let request = ControlPacket::new(PacketType::Request2, 0, 0);
        self.send_packet(request.with_size(RING, control::PROTO_QSTATE));
    }

    fn accept(&mut self, _: &mut World) -> bool {
        self.take();
        self.seen.connected
    }

    fn step(&mut self, _: &mut World) -> bool {
        self.take()
    }

    fn act(&mut self, _: &mut World, act: Act) {
        match act {
            Act::Send => {
                assert_eq!(self.queues.as_ref().expect("a pair").enqueue(BYTES), BYTES.len());
                self.send_packet(ControlPacket::new(PacketType::Wrote, 0, 0));
            }
            Act::FinishSending => self.shut(control::SHUTDOWN_SEND),
            Act::StopReceiving => self.shut(control::SHUTDOWN_RECEIVE),
            Act::Close => {
                let queues = self.queues.take().expect("a pair");
                assert_eq!(self.driver.detach(queues), 0);
            }
            Act::Reset => self.send_packet(ControlPacket::new(PacketType::Rst, 0, 0)),
        }
    }

    fn seen(&mut self, _: &mut World) -> Seen {
        self.take();
        if let Some(queues) = &self.queues {
            let mut bytes = vec![0; queues.ready() as usize];
            queues.dequeue(&mut bytes);
            self.seen.bytes.extend(bytes);
        }
        self.seen.clone()
    }
}

struct VirtioEnd {
    guest: Guest,
    own: u32,
    peer: (u32, u32),
    seen: Seen,
    asked: bool,
}

impl VirtioEnd {
    fn new(world: &mut World, cid: u32) -> VirtioEnd {
        let forwards = vec![Forward { port: FORWARDED, to_cid: SERVER, to_port: SERVER_PORT }];
        let mut guest = world.bench.guest(VsockVm { forwards, ..vm(cid) }, false);
        guest.post_buffers(40, 4096);
        let own = if cid == CLIENT { CLIENT_PORT } else { SERVER_PORT };
        VirtioEnd { guest, own, peer: (0, 0), seen: Seen::default(), asked: false }
    }

    fn send_packet(&mut self, op: u16, payload: &[u8]) {
        self.guest.packet(self.own, self.peer, kind::STREAM, op, payload);
    }

    fn shut(&mut self, flags: u32) {
        let header = Header::new((self.guest.cid, self.own), self.peer, kind::STREAM, op::SHUTDOWN);
        self.guest.send(&Header { flags: flags.into(), ..header }, &[]);
    }

    fn take(&mut self) {
        for (header, payload) in self.guest.received() {
            match header.op.get() {
                op::REQUEST => {
                    self.peer = (header.src_cid.get() as u32, header.src_port.get());
                    self.asked = true;
                }
                op::RESPONSE => self.seen.connected = true,
                op::RW => self.seen.bytes.extend(payload),
                op::SHUTDOWN => {
                    self.seen.finished |= header.flags.get() & virtio::SHUTDOWN_SEND != 0;
                    self.seen.refused |= header.flags.get() & virtio::SHUTDOWN_RECEIVE != 0;
                }
                op::RST => (self.seen.finished, self.seen.refused, self.seen.reset) = (true, true, true),
                _ => {}
            }
        }
    }
}

impl End for VirtioEnd {
    fn connect(&mut self, _: &mut World, to: (u32, u32)) {
        self.peer = to;
        self.send_packet(op::REQUEST, &[]);
    }

    fn accept(&mut self, _: &mut World) -> bool {
        self.take();
        if self.asked {
            self.send_packet(op::RESPONSE, &[]);
            self.seen.connected = true;
        }
        self.asked
    }

    fn step(&mut self, _: &mut World) -> bool {
        let before = self.seen.connected;
        self.take();
        self.seen.connected != before
    }

    fn act(&mut self, _: &mut World, act: Act) {
        match act {
            Act::Send => self.send_packet(op::RW, BYTES),
            Act::FinishSending => self.shut(virtio::SHUTDOWN_SEND),
            Act::StopReceiving => self.shut(virtio::SHUTDOWN_RECEIVE),
            Act::Close => self.shut(virtio::SHUTDOWN_SEND | virtio::SHUTDOWN_RECEIVE),
            Act::Reset => self.send_packet(op::RST, &[]),
        }
    }

    fn seen(&mut self, _: &mut World) -> Seen {
        self.take();
        self.seen.clone()
    }
}

/// A program of the host with a ring of its own.
#[derive(Default)]
struct HostEnd {
    ring: Option<(Outgoing, Incoming)>,
    call: Option<Call>,
    seen: Seen,
}

impl HostEnd {
    fn end(&mut self, world: &World) -> StreamEnd {
        let (end, fd) = host::end(RING, world.host.clone());
        self.ring = Some(ring::map(fd, RING).expect("a ring"));
        end
    }
}

impl End for HostEnd {
    fn connect(&mut self, world: &mut World, to: (u32, u32)) {
        let end = self.end(world);
        let key = Key { client: (HOST, CLIENT_PORT), server: to };
        self.call = Some(world.bench.router.open(key, Some(end), world.host.clone()).expect("a way"));
    }

    fn accept(&mut self, world: &mut World) -> bool {
        let Some(call) = world.host.calls.lock().pop() else { return false };
        let end = self.end(world);
        self.call = Some(call);
        self.seen.connected = true;
        world.bench.router.accept(call, end, world.host.clone())
    }

    fn step(&mut self, world: &mut World) -> bool {
        !std::mem::replace(&mut self.seen.connected, world.host.joined.lock().is_some())
            && self.seen.connected
    }

    fn act(&mut self, world: &mut World, act: Act) {
        let call = self.call.expect("a call");
        let router = &world.bench.router;
        match act {
            Act::Send => {
                let (out, _) = self.ring.as_mut().expect("a ring");
                assert_eq!(out.write(BYTES).expect("a ring in order").len, BYTES.len());
                if let Some((lane, _)) = *world.host.joined.lock() {
                    router.streams().kick(lane);
                }
            }
            Act::FinishSending => router.shutdown(call, Shutdown::Send),
            Act::StopReceiving => router.shutdown(call, Shutdown::Receive),
            Act::Close => router.close(call),
            Act::Reset => router.reset(call),
        }
    }

    fn seen(&mut self, _: &mut World) -> Seen {
        let (_, incoming) = self.ring.as_mut().expect("a ring");
        let mut bytes = vec![0; 1000];
        let moved = incoming.read(&mut bytes).expect("a ring in order");
        self.seen.bytes.extend(&bytes[..moved.len]);
        let ended = incoming.ended();
        let over = ended & (ended::DETACHED | ended::RESET) != 0;
        self.seen.finished = over || ended & ended::FINISHED != 0;
        self.seen.refused = over || ended & ended::REFUSED != 0;
        self.seen.reset = ended & ended::RESET != 0;
        self.seen.clone()
    }
}

/// Who acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    /// After so many steps of the client behind the acceptance; the first comes with it.
    Server { stage: usize },
    /// As soon as it is connected.
    Client,
}

/// A connection from `client` to `server`; what the end that does not act has seen at last.
fn run(client: Kind, server: Kind, actor: Actor, acts: &[Act]) -> Seen {
    let mut world = World::new();
    let mut to = world.end(server, SERVER);
    let mut from = world.end(client, CLIENT);
    from.connect(
        &mut world,
        match (client, server) {
            (_, Kind::Host) => (HOST, SERVER_PORT),
            (Kind::Virtio, Kind::Virtio) => (HOST, FORWARDED),
            _ => (SERVER, SERVER_PORT),
        },
    );
    world.run();
    let mut left = 10;
    while !to.accept(&mut world) {
        world.run();
        from.step(&mut world);
        world.run();
        left -= 1;
        assert!(left > 0, "it is never accepted");
    }
    if let Actor::Server { stage } = actor {
        for step in 0..stage {
            world.run();
            if step > 0 {
                from.step(&mut world);
            }
        }
        acts.iter().for_each(|act| to.act(&mut world, *act));
        world.settle();
    }
    world.run();
    while from.step(&mut world) {
        world.run();
    }
    world.settle();
    if actor == Actor::Client {
        acts.iter().for_each(|act| from.act(&mut world, *act));
        world.settle();
        return to.seen(&mut world);
    }
    from.seen(&mut world)
}

#[test]
fn every_act_at_every_stage_of_the_peer_s_handshake_is_seen_by_it() {
    let kinds = [Kind::Vmci, Kind::Virtio, Kind::Host];
    let pairs = kinds.into_iter().flat_map(|client| kinds.map(|server| (client, server)));
    let mut wrong = Vec::new();
    for (client, server) in pairs.filter(|pair| *pair != (Kind::Host, Kind::Host)) {
        let actors = (0..5).map(|stage| Actor::Server { stage }).chain([Actor::Client]);
        for (actor, acts) in actors.flat_map(|actor| ORDERS.map(|acts| (actor, acts))) {
            let seen = run(client, server, actor, acts);
            if seen != Seen::after(acts) {
                wrong.push(format!("{client:?} to {server:?}, {actor:?} {acts:?}: {seen:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// A VMCI guest whose request to the host has been accepted; `port` is its own.
fn accepted(world: &mut World, guest: &mut VmciEnd, port: u32) -> Call {
    guest.own = port;
    guest.connect(world, (HOST, SERVER_PORT));
    let mut host = HostEnd::default();
    assert!(host.accept(world));
    host.call.expect("a call")
}

#[test]
fn an_acceptance_is_taken_back_only_before_the_client_is_through() {
    let mut world = World::new();
    let mut guest = VmciEnd::new(&world, CLIENT);
    let call = accepted(&mut world, &mut guest, 1);
    world.bench.router.withdraw(call);
    let answers: Vec<_> = guest.driver.service().iter().filter_map(Datagram::control).collect();
    let kinds: Vec<_> = answers.iter().map(ControlPacket::kind).collect();
    assert_eq!(kinds, [Some(PacketType::Negotiate2), Some(PacketType::Rst)]);
    assert!(world.bench.hypervisor.connections().is_empty());
}

#[test]
fn so_many_clients_may_be_late_and_no_more() {
    let mut world = World::new();
    let mut guest = VmciEnd::new(&world, CLIENT);
    for port in 1..=300 {
        let call = accepted(&mut world, &mut guest, port);
        world.bench.router.close(call);
        let refused = guest
            .driver
            .service()
            .iter()
            .filter_map(Datagram::control)
            .any(|packet| packet.kind() == Some(PacketType::Rst));
        assert_eq!(refused, port > 256, "{port}");
    }
    assert_eq!(world.bench.hypervisor.connections().len(), 256);
    world.bench.hypervisor.expire_at(std::time::Instant::now() + Duration::from_secs(31));
    assert!(world.bench.hypervisor.connections().is_empty());
    let call = accepted(&mut world, &mut guest, 301);
    world.bench.router.close(call);
    assert!(guest.driver.service().iter().filter_map(Datagram::control).count() == 1, "there is room again");
}
