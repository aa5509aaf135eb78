//! The worker with its thread, and devices as vhost-user sessions drive them: who sleeps is woken, who stops
//! is left alone, who goes is missed; streams to VMCI guests.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use vmlane_device::virtio::vhost::VhostDevice;
use vmlane_device::virtio::vsock::{ConnectionView, Relay, Settings, VsockDevice, VsockWorker};
use vmlane_device::vmci::Hypervisor;
use vmlane_guestsim::{Machine, Path, Pattern, Placement, vm};
use vmlane_port::wrap::Fault;
use vmlane_testkit::{LONGEST, wait_until};
use vmlane_wire::virtio_vsock::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, kind, op};

use super::{LOCAL, Served, Vm, Wires, connect, driver, relay, setup, spec};

fn worker(spin: Duration, relay: Option<Relay>) -> Served {
    Served::start(Settings { spin, poll: false }, relay)
}

fn asleep(worker: &VsockWorker) {
    let before = worker.stats().sleeps.get();
    wait_until("the worker sleeps", || {
        worker.add(77);
        worker.stats().sleeps.get() > before
    });
}

#[test]
fn who_sleeps_is_woken_by_every_kick() {
    for packed in [false, true] {
        let worker = worker(Duration::ZERO, None);
        let (mut a, mut b) = (Vm::new(&worker, 3, packed), Vm::new(&worker, 4, !packed));
        connect(&mut a, &mut b, LOCAL, kind::STREAM);
        for n in 0..50u32 {
            if n % 10 == 0 {
                asleep(&worker);
            }
            let (from, to) = if n % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            let ports = if n % 2 == 0 { (LOCAL, 5000) } else { (5000, LOCAL) };
            from.send(ports.0, (to.guest.cid, ports.1), kind::STREAM, op::RW, &n.to_le_bytes());
            assert_eq!(to.expect(op::RW), n.to_le_bytes());
        }
        assert!(worker.stats().packets.get() >= 52 && worker.stats().bytes.get() >= 200);
        assert!(a.wires.called.iter().map(|called| called.load(Ordering::SeqCst)).sum::<u64>() > 20);
        assert_eq!(worker.stats().panics.get(), 0);
        assert_eq!([a.wires, b.wires].map(|wires| wires.failed.load(Ordering::SeqCst)), [0, 0]);
    }
}

/// Messages keep their bounds; a half-closed stream still goes the other way.
#[test]
fn an_operator_sees_vms_connections_and_what_moved() {
    let worker = worker(Duration::ZERO, None);
    let (mut a, mut b) = (Vm::new(&worker, 3, false), Vm::new(&worker, 4, true));
    worker.add(spec(5, "test"));
    a.send(LOCAL, (4, 5000), kind::STREAM, op::REQUEST, &[]);
    b.expect(op::REQUEST);
    let view = |established| ConnectionView { client: (3, LOCAL), server: (4, 5000), established };
    assert_eq!(*worker.connections(), [view(false)]);
    b.send(5000, (3, LOCAL), kind::STREAM, op::RESPONSE, &[]);
    a.expect(op::RESPONSE);
    a.send(LOCAL, (4, 5000), kind::STREAM, op::RW, &[7; 100]);
    b.expect(op::RW);
    a.send(LOCAL, (99, 1), kind::STREAM, op::REQUEST, &[]);
    a.expect(op::RST);
    assert_eq!(*worker.connections(), [view(true)]);
    let guests = worker.guests();
    let seen = guests.iter().map(|guest| (guest.cid, guest.ready, guest.opened, guest.connections));
    assert_eq!(seen.collect::<Vec<_>>(), [(3, true, 1, 1), (4, true, 0, 1), (5, false, 0, 0)]);
    let (one, two) = (&guests[0].stats, &guests[1].stats);
    assert_eq!((one.bytes_sent.get(), one.packets_sent.get(), one.refused.get()), (100, 3, 1));
    assert_eq!((two.bytes_received.get(), two.packets_received.get(), two.packets_sent.get()), (100, 2, 1));
    // What its device did stays known when the device is run again.
    a.device.stop();
    assert!(!worker.guests()[0].ready);
    a.device.run(setup(&a.guest, false));
    assert_eq!((worker.guests()[0].ready, worker.guests()[0].stats.bytes_sent.get()), (true, 100));
    a.device.gone();
    b.expect(op::RST);
    assert!(worker.connections().is_empty());
}

#[test]
fn messages_and_halves() {
    let worker = worker(Duration::from_millis(1), None);
    let (mut a, mut b) = (Vm::new(&worker, 3, false), Vm::new(&worker, 4, false));
    connect(&mut a, &mut b, LOCAL, kind::SEQPACKET);
    for (len, end) in [(10, 1), (4000, 0), (1, 3), (0, 1)] {
        let header = Header::new((3, LOCAL), (4, 5000), kind::SEQPACKET, op::RW);
        let header = Header { len: (len as u32).into(), flags: u32::into(end), ..header };
        a.guest.send(&header, &vec![len as u8; len]);
        a.kick();
        let (header, payload) = b.next();
        assert_eq!((header.op.get(), header.flags.get(), payload), (op::RW, end, vec![len as u8; len]));
    }
    connect(&mut a, &mut b, LOCAL + 1, kind::STREAM);
    let shut = Header::new((3, LOCAL + 1), (4, 5000), kind::STREAM, op::SHUTDOWN);
    a.guest.send(&Header { flags: SHUTDOWN_SEND.into(), ..shut }, &[]);
    a.kick();
    let (header, _) = b.next();
    assert_eq!((header.op.get(), header.flags.get()), (op::SHUTDOWN, SHUTDOWN_SEND));
    b.send(5000, (3, LOCAL + 1), kind::STREAM, op::RW, b"the other half");
    assert_eq!(a.expect(op::RW), b"the other half");
    a.guest.send(&Header { flags: (SHUTDOWN_SEND | SHUTDOWN_RECEIVE).into(), ..shut }, &[]);
    a.kick();
    b.expect(op::SHUTDOWN);
    b.send(5000, (3, LOCAL + 1), kind::STREAM, op::RST, &[]);
    a.expect(op::RST);
}

#[test]
fn a_device_that_is_stopped_is_left_alone_and_goes_on_where_it_was() {
    let worker = worker(Duration::from_millis(1), None);
    let (mut a, mut b) = (Vm::new(&worker, 3, false), Vm::new(&worker, 4, true));
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
    b.device.stop();
    a.send(LOCAL, (4, 5000), kind::STREAM, op::RW, b"to one that stands still");
    b.receives_nothing(&worker);
    // A migration's end, or a driver's pause: the rings run again, and nothing was lost or answered.
    b.device.run(setup(&b.guest, b.packed));
    assert_eq!(b.expect(op::RW), b"to one that stands still");
    // A device that stands still for long loses its connections, not its senders their rings.
    b.device.stop();
    a.send(LOCAL, (4, 5000), kind::STREAM, op::RW, b"in vain");
    a.expect(op::RST);
    b.device.stop();
    b.device.run(setup(&b.guest, b.packed));
    connect(&mut a, &mut b, LOCAL + 1, kind::STREAM);
}

#[test]
fn a_vm_that_goes_is_missed_by_its_peers_alone() {
    let worker = worker(Duration::from_millis(1), None);
    let [mut a, mut b, mut c] = [3, 4, 5].map(|cid| Vm::new(&worker, cid, false));
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
    connect(&mut c, &mut b, LOCAL, kind::STREAM);
    connect(&mut a, &mut c, LOCAL + 1, kind::SEQPACKET);
    b.device.stop();
    b.device.gone();
    for vm in [&mut a, &mut c] {
        let (header, _) = vm.next();
        assert_eq!((header.op.get(), header.src_cid.get()), (op::RST, 4));
    }
    a.send(LOCAL + 1, (5, 5000), kind::SEQPACKET, op::RW, b"unhurt");
    assert_eq!(c.expect(op::RW), b"unhurt");
    // The device itself goes, then the VM.
    drop(c.device);
    worker.remove(5);
    a.send(LOCAL + 2, (5, 5000), kind::STREAM, op::REQUEST, &[]);
    let refused = loop {
        let (header, _) = a.next();
        if header.dst_port.get() == LOCAL + 2 {
            break header;
        }
        assert_eq!(header.op.get(), op::RST);
    };
    assert_eq!((refused.op.get(), refused.src_cid.get()), (op::RST, 5));
    assert!(worker.stats().refused.get() > 0);
}

/// Moved to another group while it runs: no packet goes to the old one any more.
#[test]
fn a_vm_that_changes_groups_leaves_its_old_one() {
    let worker = worker(Duration::from_millis(1), None);
    let (mut a, mut b) = (Vm::new(&worker, 3, false), Vm::new(&worker, 4, false));
    worker.add(spec(4, "elsewhere"));
    a.send(LOCAL, (4, 5000), kind::STREAM, op::REQUEST, &[]);
    a.expect(op::RST);
    b.receives_nothing(&worker);
    worker.add(spec(4, "test"));
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
}

/// Rings that cannot be run are not; the session lives on and may try again.
#[test]
fn rings_outside_of_memory_do_not_run() {
    let worker = worker(Duration::from_millis(1), None);
    worker.add(spec(3, "test"));
    let guest = driver(3, false);
    let wires = Wires::new(&worker);
    let mut device = VsockDevice::new(3, worker.worker.clone(), wires.clone()).expect("a device");
    let mut broken = setup(&guest, false);
    broken.rings[1].as_mut().unwrap().descriptors = 1 << 50;
    device.run(broken);
    let mut few = setup(&guest, false);
    few.rings.truncate(1);
    device.run(few);
    device.stop();
    device.gone();
    assert_eq!(wires.failed.load(Ordering::SeqCst), 1, "the VMM is notified");
    assert_eq!(worker.stats().panics.get(), 0);
}

/// A VMCI guest and a virtio guest: every byte, both ways, and each end's close.
#[test]
fn streams_to_a_vmci_guest_are_whole() {
    let (router, relay) = relay();
    let hypervisor = Hypervisor::new(router.clone());
    let worker = worker(Duration::from_millis(1), Some(relay));
    let machine = Machine::new(&hypervisor, vm(3));
    let vmci = machine.boot(Path::Dma);
    let mut b = Vm::new(&worker, 4, false);
    router.set_endpoint(4, worker.endpoint(4));
    const BYTES: u64 = 1 << 20;
    // The virtio guest connects.
    let listener = vmci.listen(5000, Placement::Scattered);
    b.send(LOCAL, (3, 5000), kind::STREAM, op::REQUEST, &[]);
    let stream = listener.accept().expect("a connection");
    b.expect(op::RESPONSE);
    let (client, server) = ((4, LOCAL), (3, 5000));
    assert_eq!(*worker.connections(), [ConnectionView { client, server, established: true }]);
    let known = hypervisor.connections();
    assert!(
        known.iter().any(|one| (one.client, one.server) == (client, server)),
        "by the same name: {known:?}"
    );
    let (up, down) = (Pattern::new(1), Pattern::new(2));
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let (mut at, mut chunk) = (0, vec![0; 30_000]);
            while at < BYTES {
                let got = stream.recv(&mut chunk).expect("bytes");
                assert!(got > 0, "the end after {at} bytes");
                up.check(at, &chunk[..got]);
                at += got as u64;
            }
        });
        scope.spawn(|| {
            let (mut at, mut chunk) = (0, vec![0; 20_000]);
            while at < BYTES {
                let len = chunk.len().min((BYTES - at) as usize);
                down.fill(at, &mut chunk[..len]);
                stream.send_all(&chunk[..len]).expect("to be taken");
                at += len as u64;
            }
        });
        exchange(&mut b, BYTES, up, down);
        receiving.join().expect("every byte");
    });
    let view = worker.guests()[0].clone();
    assert_eq!((view.stats.bytes_sent.get(), view.stats.bytes_received.get()), (BYTES, BYTES));
    assert_eq!((view.opened, view.connections, worker.stats().relayed_bytes.get()), (1, 1, BYTES));
    stream.close();
    let (mut header, _) = b.next();
    while header.op.get() == op::CREDIT_UPDATE {
        (header, _) = b.next();
    }
    assert!([op::SHUTDOWN, op::RST].contains(&header.op.get()), "{header:?}");
    // The VMCI guest connects, and is refused, and connects.
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| vmci.connect((4, 99), Default::default()).err());
        let (header, _) = loop {
            let next = b.next();
            if next.0.op.get() == op::REQUEST {
                break next;
            }
        };
        b.send(99, (3, header.src_port.get()), kind::STREAM, op::RST, &[]);
        assert!(refused.join().expect("an answer").is_some());
        let accepted = scope.spawn(|| vmci.connect((4, 22), Default::default()));
        let (header, _) = b.next();
        assert_eq!((header.op.get(), header.dst_port.get()), (op::REQUEST, 22));
        b.send(22, (3, header.src_port.get()), kind::STREAM, op::RESPONSE, &[]);
        let stream = accepted.join().expect("an answer").expect("to be accepted");
        b.send(22, (3, header.src_port.get()), kind::STREAM, op::RW, b"welcome");
        let mut got = [0; 7];
        assert_eq!(stream.recv_all(&mut got), Ok(7));
        // Its VMM goes: the stream ends.
        b.device.stop();
        b.device.gone();
        assert_eq!(stream.recv(&mut got), Ok(0));
    });
    assert_eq!(worker.stats().panics.get(), 0);
}

/// Sends and receives so many bytes, minding the peer's credit and telling of its own.
fn exchange(b: &mut Vm, bytes: u64, up: Pattern, down: Pattern) {
    let (mut sent, mut credit, mut got, mut reported) = (0u64, 64u64 << 10, 0u64, 0u64);
    let deadline = Instant::now() + LONGEST;
    while sent < bytes || got < bytes {
        assert!(Instant::now() < deadline, "{sent} bytes sent, {got} received");
        b.poll();
        for (header, payload) in std::mem::take(&mut b.received) {
            assert!([op::RW, op::CREDIT_UPDATE, op::CREDIT_REQUEST].contains(&header.op.get()), "{header:?}");
            down.check(got, &payload);
            got += payload.len() as u64;
            let taken = u64::from(header.fwd_cnt.get());
            credit = taken + u64::from(header.buf_alloc.get());
        }
        let room = credit.saturating_sub(sent).min(bytes - sent).min(3000);
        if (room > 0 || got - reported > 32 << 10) && b.outstanding < 50 {
            let mut payload = vec![0; room as usize];
            up.fill(sent, &mut payload);
            let operation = if room > 0 { op::RW } else { op::CREDIT_UPDATE };
            let header = Header::new((4, LOCAL), (3, 5000), kind::STREAM, operation);
            let header = Header {
                len: (room as u32).into(),
                buf_alloc: (256u32 << 10).into(),
                fwd_cnt: (got as u32).into(),
                ..header
            };
            b.guest.send(&header, &payload);
            b.outstanding += 1;
            (sent, reported) = (sent + room, got);
            b.kick();
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// The worker sleeps with nothing deferred: a sender whose packets are sent has been notified of it by then.
#[test]
fn a_sender_is_notified_that_its_packet_is_sent_before_the_worker_sleeps() {
    let worker = worker(Duration::ZERO, None);
    let (mut a, mut b) = (Vm::new(&worker, 3, false), Vm::new(&worker, 4, false));
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
    const TX: usize = 1;
    for n in 0..20u64 {
        asleep(&worker);
        let earlier = a.wires.called[TX].load(Ordering::SeqCst);
        // It sleeps, and the packet is what wakes it.
        wait_until("it sleeps", || !worker.heartbeat().read().busy);
        let sleeps = worker.stats().sleeps.get();
        a.send(LOCAL, (4, 5000), kind::STREAM, op::RW, &n.to_le_bytes());
        b.expect(op::RW);
        wait_until("the notice comes", || a.wires.called[TX].load(Ordering::SeqCst) > earlier);
        let slept = a.wires.sleeps_at_call.load(Ordering::SeqCst) - sleeps;
        assert_eq!(slept, 0, "packet {n}: the worker slept with the notice deferred");
    }
}

/// Is a request of another thread answered?
fn answers(worker: &Arc<VsockWorker>) -> bool {
    let (done, finished) = channel();
    let worker = worker.clone();
    std::thread::spawn(move || {
        worker.add(77);
        let _ = done.send(());
    });
    finished.recv_timeout(LONGEST).is_ok()
}

#[test]
fn a_panic_in_a_request_is_contained_and_later_requests_are_answered() {
    // It does not sleep, so that a port that is dropped has a notice to deliver.
    let settings = Settings { spin: Duration::ZERO, poll: true };
    let worker = Served::start(settings, None);
    let (mut a, mut b) = (Vm::new(&worker, 3, false), Vm::new(&worker, 4, false));
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
    for attempt in 0.. {
        assert!(attempt < 1000, "the notice is never deferred when the device stops");
        a.send(LOCAL, (4, 5000), kind::STREAM, op::RW, b"a packet");
        // No pause: the device is to be stopped as soon as the packet has come.
        let deadline = Instant::now() + LONGEST;
        while b.received.is_empty() {
            assert!(Instant::now() < deadline);
            b.poll();
        }
        a.wires.fault_in_call.store(true, Ordering::SeqCst);
        a.device.stop();
        if !a.wires.fault_in_call.swap(false, Ordering::SeqCst) {
            break;
        }
        b.received.clear();
        a.device.run(setup(&a.guest, a.packed));
    }
    assert!(answers(&worker), "the worker is gone, and its callers wait for ever");
    assert!(worker.stats().panics.get() > 0);
    assert_eq!(b.wires.failed.load(Ordering::SeqCst), 0, "the other VM does not notice");
}

#[test]
fn a_panic_while_the_worker_goes_to_sleep_is_contained_to_its_vm() {
    let worker = worker(Duration::ZERO, None);
    let [mut a, mut b, c] = [3, 4, 5].map(|cid| Vm::new(&worker, cid, false));
    c.wires.fault_in_clear.store(true, Ordering::SeqCst);
    wait_until("the fault comes", || {
        assert!(answers(&worker), "the worker is gone, and its callers wait for ever");
        // Its doorbell alone is silenced, once it rings.
        c.wires.kick();
        !c.wires.fault_in_clear.load(Ordering::SeqCst)
    });
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
    wait_until("the port ends", || c.wires.failed.load(Ordering::SeqCst) > 0);
    assert_eq!(worker.stats().panics.get(), 1);
    assert_eq!(panics(&worker), [0, 0, 1]);
}

/// Faults that count for VMs 3, 4 and 5.
fn panics(worker: &VsockWorker) -> Vec<u64> {
    let guests = worker.guests();
    guests.iter().filter(|guest| guest.cid < 6).map(|guest| guest.stats.panics.get()).collect()
}

#[test]
fn a_fault_counts_for_the_vm_that_was_served_and_ends_its_rings_alone() {
    let worker = worker(Duration::from_millis(1), None);
    let [mut a, b, mut c] = [3, 4, 5].map(|cid| Vm::new(&worker, cid, false));
    let counted = worker.add(spec(4, "test"));
    worker.add(spec(6, "test"));
    assert!(!worker.inject(6, Fault::Panic), "its driver is not there");
    assert!(worker.inject(4, Fault::Panic));
    wait_until("the fault comes", || counted.panics.get() == 1);
    assert_eq!((panics(&worker), worker.stats().panics.get()), (vec![0, 1, 0], 1));
    assert!(b.wires.failed.load(Ordering::SeqCst) > 0 && !worker.inject(4, Fault::Panic));
    connect(&mut a, &mut c, LOCAL, kind::STREAM);
    assert_eq!([a.wires, c.wires].map(|wires| wires.failed.load(Ordering::SeqCst)), [0, 0]);
}

#[test]
fn a_vm_out_of_service_has_no_rings_until_it_is_taken_back_and_its_driver_comes_anew() {
    let worker = worker(Duration::from_millis(1), None);
    let [mut a, mut b, mut c] = [3, 4, 5].map(|cid| Vm::new(&worker, cid, false));
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
    connect(&mut c, &mut b, LOCAL, kind::STREAM);
    let ready = |worker: &VsockWorker| worker.guests().iter().map(|guest| guest.ready).collect::<Vec<_>>();
    worker.set_quarantined(4, true);
    for vm in [&mut a, &mut c] {
        let (header, _) = vm.next();
        assert_eq!((header.op.get(), header.src_cid.get()), (op::RST, 4));
    }
    let failed = b.wires.failed.load(Ordering::SeqCst);
    assert_eq!((ready(&worker), failed > 0), (vec![true, false, true], true), "its driver is notified");
    // A change of its configuration and a new driver do not bring it back.
    worker.add(spec(4, "test"));
    b.device.stop();
    b.device.run(setup(&b.guest, b.packed));
    assert!(b.wires.failed.load(Ordering::SeqCst) > failed, "and the new one, too");
    a.send(LOCAL + 1, (4, 5000), kind::STREAM, op::REQUEST, &[]);
    a.expect(op::RST);
    b.send(5000, (3, LOCAL), kind::STREAM, op::REQUEST, &[]);
    b.receives_nothing(&worker);
    assert_eq!(ready(&worker), [true, false, true, false], "the last one is absent");
    connect(&mut a, &mut c, LOCAL + 2, kind::SEQPACKET);

    worker.set_quarantined(4, false);
    assert!(!ready(&worker)[1]);
    b.device.stop();
    let mut b = Vm::new(&worker, 4, true);
    connect(&mut a, &mut b, LOCAL + 3, kind::STREAM);
    assert_eq!(worker.stats().panics.get(), 0);
}
