//! A guest sends the RST of a connection once more, as Linux does when its program closes the socket: a new
//! connection of the same ports does not end by it.

use std::time::Duration;

use vmlane_device::virtio::vsock::{Relay, Settings};
use vmlane_device::vmci::Hypervisor;
use vmlane_guestsim::{Machine, Path, Placement, vm};
use vmlane_wire::virtio_vsock::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, kind, op};

use super::{LOCAL, Served, Vm, connect, relay};

const ROOM: u32 = 256 << 10;
const BYTES: &[u8] = b"bytes";

/// A packet without payload of a socket whose program has taken so many bytes.
fn packet(from: &mut Vm, ports: (u32, u32), to: u32, op: u16, taken: usize) {
    let header = Header::new((from.guest.cid, ports.0), (to, ports.1), kind::STREAM, op);
    let flags = if op == op::SHUTDOWN { SHUTDOWN_RECEIVE | SHUTDOWN_SEND } else { 0 };
    let (buf_alloc, fwd_cnt) = (ROOM.into(), (taken as u32).into());
    from.guest.send(&Header { flags: flags.into(), buf_alloc, fwd_cnt, ..header }, &[]);
    from.outstanding += 1;
    from.kick();
}

/// The server's RST of a connection in which it has taken `BYTES`.
fn reset(server: &mut Vm) {
    packet(server, (5000, LOCAL), 3, op::RST, BYTES.len());
}

/// `BYTES` to the server, and the end: the client closes.
fn use_and_close(client: &mut Vm, server: &mut Vm) {
    client.send(LOCAL, (4, 5000), kind::STREAM, op::RW, BYTES);
    assert_eq!(server.expect(op::RW), BYTES);
    packet(client, (LOCAL, 5000), 4, op::SHUTDOWN, 0);
    server.expect(op::SHUTDOWN);
    reset(server);
    client.expect(op::RST);
}

fn worker(relay: Option<Relay>) -> Served {
    let settings = Settings { spin: Duration::from_millis(1), poll: false };
    Served::start(settings, relay)
}

#[test]
fn a_second_rst_ends_no_new_connection_of_two_virtio_guests() {
    let worker = worker(None);
    let (mut a, mut b) = (Vm::new(&worker, 3, false), Vm::new(&worker, 4, false));
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
    use_and_close(&mut a, &mut b);
    // Before the new connection's request, between its request and its response, and after both.
    for order in 0..3 {
        if order == 0 {
            reset(&mut b);
            a.receives_nothing(&worker);
        }
        a.send(LOCAL, (4, 5000), kind::STREAM, op::REQUEST, &[]);
        b.expect(op::REQUEST);
        if order == 1 {
            reset(&mut b);
            a.receives_nothing(&worker);
        }
        b.send(5000, (3, LOCAL), kind::STREAM, op::RESPONSE, &[]);
        a.expect(op::RESPONSE);
        if order == 2 {
            reset(&mut b);
            a.receives_nothing(&worker);
        }
        assert_eq!(worker.connections().len(), 1, "{order}");
        use_and_close(&mut a, &mut b);
        assert!(worker.connections().is_empty());
    }
    // A refusal, and a reset that is no second one, arrive.
    a.send(LOCAL, (4, 5000), kind::STREAM, op::REQUEST, &[]);
    b.expect(op::REQUEST);
    let refusal = Header::new((3, LOCAL), (4, 5000), kind::STREAM, op::REQUEST).reset();
    b.guest.send(&refusal, &[]);
    b.kick();
    a.expect(op::RST);
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
    packet(&mut b, (5000, LOCAL), 3, op::RST, 0);
    a.expect(op::RST);
    // The one that was expected still is.
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
    reset(&mut b);
    a.receives_nothing(&worker);
    reset(&mut b);
    a.expect(op::RST);
}

#[test]
fn a_second_rst_ends_no_new_connection_to_a_vmci_guest() {
    let (router, relay) = relay();
    let hypervisor = Hypervisor::new(router.clone());
    let worker = worker(Some(relay));
    let machine = Machine::new(&hypervisor, vm(3));
    let vmci = machine.boot(Path::Dma);
    let mut b = Vm::new(&worker, 4, false);
    router.set_endpoint(4, worker.endpoint(4));
    let listener = vmci.listen(5000, Placement::Scattered);
    let mut connected = || {
        b.send(LOCAL, (3, 5000), kind::STREAM, op::REQUEST, &[]);
        let stream = listener.accept().expect("a connection");
        b.expect(op::RESPONSE);
        stream.send_all(BYTES).expect("to be taken");
        assert_eq!(b.expect(op::RW), BYTES);
        stream.close();
        while b.next().0.flags.get() != SHUTDOWN_RECEIVE | SHUTDOWN_SEND {}
        // What it has announced of the connection by the time it closes its socket.
        packet(&mut b, (LOCAL, 5000), 3, op::RST, BYTES.len());
    };
    connected();
    connected();
    b.send(LOCAL, (3, 5000), kind::STREAM, op::REQUEST, &[]);
    let stream = listener.accept().expect("a connection");
    b.expect(op::RESPONSE);
    for _ in 0..2 {
        packet(&mut b, (LOCAL, 5000), 3, op::RST, BYTES.len());
    }
    b.receives_nothing(&worker);
    stream.send_all(BYTES).expect("to be taken");
    assert_eq!(b.expect(op::RW), BYTES);
    assert_eq!(worker.connections().len(), 1);
}
