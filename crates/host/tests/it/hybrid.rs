//! VMs whose VMMs have hybrid Unix sockets, with simulated VMMs: streams both ways with guests and programs
//! of every kind, and what hostile VMMs do.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use vmlane_access::Owner;
use vmlane_guestsim::{Options, Pattern, Placement, vm_with};
use vmlane_host::sockets::{HybridStats, HybridView};
use vmlane_sock::{Listener, Stream};
use vmlane_testkit::hybrid_vmm::{Vmm, is_closed};
use vmlane_testkit::{ran_alone, wait_until};
use vmlane_vsock::{Forward, Vm};

use crate::host_world::{Duplex, SECOND, World, both_ways, far_end};

/// The VMCI guest's CID is 3; these are VMs with hybrid sockets.
const FIRST: u32 = 5;
const SECOND_VM: u32 = 6;
/// Their forwards: to a port of the VMCI guest, to a program of the host, to the other one.
const TO_GUEST: u32 = 5000;
const TO_HOST: u32 = 700;
const TO_OTHER: u32 = 22;

fn forwards() -> Vec<Forward> {
    vec![
        Forward { port: TO_GUEST, to_cid: 3, to_port: 80 },
        Forward { port: TO_HOST, to_cid: 2, to_port: TO_HOST },
        Forward { port: TO_OTHER, to_cid: SECOND_VM, to_port: 2222 },
    ]
}

fn path(world: &World, cid: u32) -> PathBuf {
    world.dir.path().join(format!("v{cid}.sock"))
}

/// Serves a VM, with something of it changed.
fn serve(world: &World, cid: u32, change: impl FnOnce(&mut Vm)) -> Vec<String> {
    let mut vm = vm_with(cid, |vm| vm.forwards = forwards()).vm;
    change(&mut vm);
    world.hypervisor.router().vms().add(vm).unwrap();
    world.sockets().set_hybrid(cid, path(world, cid), &Arc::default())
}

/// A world with a VM that has a hybrid socket, and its VMM.
fn with_vmm() -> (World, Vmm) {
    let world = World::new();
    assert_eq!(serve(&world, FIRST, |_| ()), [""; 0]);
    let vmm = Vmm::start(&path(&world, FIRST));
    (world, vmm)
}

fn view(world: &World, cid: u32) -> HybridView {
    world.sockets().hybrids().into_iter().find(|view| view.cid == cid).unwrap()
}

fn stats(world: &World, cid: u32) -> Arc<HybridStats> {
    view(world, cid).stats
}

/// A program of the host connects, and the guest of `vmm` accepts.
fn to_vmm(world: &World, vmm: &Vmm, port: u32) -> (Stream, UnixStream) {
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| vmm.accept(port));
        let near = Stream::connect_by(&world.host(), FIRST, port, 30 * SECOND).unwrap();
        (near, accepting.join().unwrap())
    })
}

fn code(result: std::io::Result<Stream>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Nothing is left of any connection.
fn assert_clean(world: &World) {
    wait_until("no connection is left", || world.sockets().hybrid_connections().is_empty());
    world.assert_clean();
}

#[test]
fn programs_and_vmci_guests_connect_to_it() {
    let (world, vmm) = with_vmm();
    let (near, far) = to_vmm(&world, &vmm, 22);
    assert_eq!((near.peer_addr().cid, near.peer_addr().port), (FIRST, 22));
    both_ways(&near, &far);
    drop((near, far));
    let (guest, far) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| vmm.accept(23));
        (world.guest.connect((FIRST, 23), Options::default()).unwrap(), accepting.join().unwrap())
    });
    assert_eq!(guest.peer(), (FIRST, 23));
    let connections = world.sockets().hybrid_connections();
    assert_eq!((connections.len(), connections[0].server, connections[0].client.0), (1, (FIRST, 23), 3));
    wait_until("both ends know", || world.sockets().hybrid_connections()[0].state() == "established");
    both_ways(&guest, &far);
    drop(far);
    guest.close();
    let stats = stats(&world, FIRST);
    assert_eq!((stats.asked.get(), stats.established.get(), stats.connects.get()), (2, 2, 0));
    assert_eq!((stats.bytes_sent.get(), stats.bytes_received.get()), (8 << 20, 8 << 20));
    assert_clean(&world);
}

#[test]
fn its_guest_reaches_what_its_forwards_lead_to() {
    let (world, vmm) = with_vmm();
    serve(&world, SECOND_VM, |_| ());
    let other = Vmm::start(&path(&world, SECOND_VM));
    // A VMCI guest. Bytes that come before it accepts are not lost.
    let listener = world.guest.listen(80, Placement::Scattered);
    let near = vmm.connect(TO_GUEST).unwrap();
    (&near).write_all(b"early").unwrap();
    let far = listener.accept().unwrap();
    assert_eq!(far.peer().0, FIRST);
    let mut early = [0; 5];
    assert_eq!((far.recv_all(&mut early), &early), (Ok(5), b"early"));
    both_ways(&near, &far);
    drop(near);
    far.close();
    // A program of the host.
    let program = Listener::bind_by(&world.host(), TO_HOST).unwrap();
    let near = vmm.connect(TO_HOST).unwrap();
    let (far, from) = program.accept().unwrap();
    assert_eq!(from.cid, FIRST);
    both_ways(&near, &far);
    drop((near, far));
    // Another VM with a hybrid socket.
    let near = vmm.connect(TO_OTHER).unwrap();
    let far = other.accept(2222);
    assert_eq!((view(&world, FIRST).opened, view(&world, SECOND_VM).opened), (1, 0));
    // The second end is joined a moment after its VMM has it.
    let both = || (view(&world, FIRST).connections, view(&world, SECOND_VM).connections);
    wait_until("both have the connection", || both() == (1, 1));
    both_ways(&near, &far);
    drop((near, far));
    // A port without a forward: there is no socket.
    assert_eq!(vmm.connect(9).unwrap_err().kind(), ErrorKind::NotFound);
    let stats = stats(&world, FIRST);
    assert_eq!((stats.connects.get(), stats.established.get(), stats.connects_refused.get()), (3, 3, 0));
    assert_clean(&world);
}

#[test]
fn what_was_written_before_a_close_arrives() {
    let (world, vmm) = with_vmm();
    let pattern = Pattern::new(3);
    let mut bytes = vec![0; 150_000];
    pattern.fill(0, &mut bytes);
    let (mut near, far) = to_vmm(&world, &vmm, 22);
    (&far).write_all(&bytes).unwrap();
    drop(far);
    let mut got = Vec::new();
    near.read_to_end(&mut got).unwrap();
    assert_eq!(got, bytes);
    drop(near);
    let (near, far) = to_vmm(&world, &vmm, 22);
    near.write_whole(&bytes);
    drop(near);
    assert_eq!(far_end(&far, pattern), bytes.len() as u64);
    drop(far);
    // A VMM that accepts, writes and closes at once; and one that connects, writes and closes at once.
    let mut near = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut far, _) = vmm.asked();
            far.write_all(b"OK 5\ndone").unwrap();
        });
        Stream::connect_by(&world.host(), FIRST, 22, 30 * SECOND).unwrap()
    });
    got.clear();
    near.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"done");
    drop(near);
    let listener = world.guest.listen(80, Placement::Scattered);
    vmm.connect(TO_GUEST).unwrap().write_all(b"gone").unwrap();
    let far = listener.accept().unwrap();
    let mut bytes = [0; 4];
    assert_eq!((far.recv_all(&mut bytes), &bytes), (Ok(4), b"gone"));
    assert_eq!(far.recv(&mut bytes), Ok(0));
    far.close();
    assert_clean(&world);
}

#[test]
fn errors_are_those_of_the_address_family() {
    let world = World::new();
    serve(&world, FIRST, |_| ());
    let connect = |port| code(Stream::connect_by(&world.host(), FIRST, port, 30 * SECOND));
    assert_eq!(connect(22), Some(19), "no VMM has been started: ENODEV");
    let vmm = Vmm::start(&path(&world, FIRST));
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| drop(vmm.asked()));
        connect(22)
    });
    assert_eq!(refused, Some(104), "no program listens in the guest: ECONNRESET");
    // A program gives up before the VMM answers, of which the VMM is notified.
    let late = code(Stream::connect_by(&world.host(), FIRST, 22, SECOND / 20));
    assert_eq!(late, Some(110), "no answer: ETIMEDOUT");
    assert!(is_closed(&mut vmm.asked().0));
    // What its guest asks for in vain: its connection ends.
    assert!(is_closed(&mut vmm.connect(TO_HOST).unwrap()), "no program of the host listens");
    assert!(is_closed(&mut vmm.connect(TO_OTHER).unwrap()), "there is no such VM");
    vmm.dies();
    assert_eq!(connect(22), Some(19), "the VMM is gone, and its socket's file is there: ENODEV");
    let refusals = world.guest.connect((FIRST, 22), Options::default());
    assert!(refusals.is_err(), "a VMCI guest is refused, too");
    let stats = stats(&world, FIRST);
    assert_eq!((stats.absent.get(), stats.refused_by_vmm.get(), stats.connects_refused.get()), (3, 1, 2));
    assert_clean(&world);
}

#[test]
fn nothing_crosses_groups() {
    let world = World::new();
    serve(&world, FIRST, |vm| vm.group = "other".into());
    let vmm = Vmm::start(&path(&world, FIRST));
    assert!(world.guest.connect((FIRST, 22), Options::default()).is_err());
    let _listener = world.guest.listen(80, Placement::Scattered);
    assert!(is_closed(&mut vmm.connect(TO_GUEST).unwrap()));
    let stats = stats(&world, FIRST);
    assert_eq!((stats.asked.get(), stats.connects_refused.get()), (0, 1));
    assert_clean(&world);
}

#[test]
fn hostile_answers_end_their_own_connection_only() {
    let (world, vmm) = with_vmm();
    let (near, far) = to_vmm(&world, &vmm, 22);
    for answer in [&b"OK\n"[..], b"OK x\n", b"HELLO\n", b"\n", &[b'A'; 4096], &[0; 64], b"OK 99999999999\n"] {
        let refused = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = vmm.asked();
                let _ = stream.write_all(answer);
                assert!(is_closed(&mut stream), "{answer:?} was taken for an answer");
            });
            code(Stream::connect_by(&world.host(), FIRST, 22, 30 * SECOND))
        });
        assert_eq!(refused, Some(104), "{answer:?}");
    }
    assert_eq!(stats(&world, FIRST).malformed.get(), 7);
    // One byte, and then nothing: the daemon waits for so long and no longer.
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = vmm.asked();
            stream.write_all(b"O").unwrap();
            assert!(is_closed(&mut stream));
        });
        code(Stream::connect_by(&world.host(), FIRST, 22, 60 * SECOND))
    });
    assert_eq!((refused, stats(&world, FIRST).late.get()), (Some(110), 1));
    both_ways(&near, &far);
    drop((near, far));
    assert_clean(&world);
}

/// The limit counts connections of both directions; beyond, both are refused and counted, and it is given
/// back.
#[test]
fn a_vm_has_so_many_connections_and_no_more() {
    let world = World::new();
    serve(&world, FIRST, |vm| vm.connections = 4);
    let vmm = Vmm::start(&path(&world, FIRST));
    let program = Listener::bind_by(&world.host(), TO_HOST).unwrap();
    let mut held: Vec<_> = (0..2).map(|_| to_vmm(&world, &vmm, 22)).collect();
    let opened: Vec<_> = (0..2).map(|_| (vmm.connect(TO_HOST).unwrap(), program.accept().unwrap())).collect();
    assert_eq!(code(Stream::connect_by(&world.host(), FIRST, 22, 30 * SECOND)), Some(104));
    assert!(is_closed(&mut vmm.connect(TO_HOST).unwrap()));
    let seen = view(&world, FIRST);
    assert_eq!((seen.connections, seen.opened, seen.limit), (4, 2, 4));
    assert_eq!(seen.stats.over_connections.get(), 2);
    held.pop();
    wait_until("its place is free", || view(&world, FIRST).connections == 3);
    held.push(to_vmm(&world, &vmm, 22));
    drop((held, opened));
    assert_clean(&world);
}

#[test]
fn many_connections_at_once() {
    // It has both ends of all of them: nearly as many files as a process may have where those are 1,024.
    if ran_alone() {
        return;
    }
    let (world, vmm) = with_vmm();
    let program = Listener::bind_by(&world.host(), TO_HOST).unwrap();
    let pairs: Vec<(UnixStream, Stream)> = (0..100)
        .map(|_| (vmm.connect(TO_HOST).unwrap(), program.accept().unwrap().0))
        .chain((0..100).map(|_| to_vmm(&world, &vmm, 22)).map(|(near, far)| (far, near)))
        .collect();
    for (number, (mut far, _)) in pairs.iter().map(|(far, near)| (far, near)).enumerate() {
        far.write_all(&[number as u8]).unwrap();
        far.shutdown(Shutdown::Write).unwrap();
    }
    for (number, (_, near)) in pairs.iter().enumerate() {
        let mut all = Vec::new();
        let mut near = near;
        near.read_to_end(&mut all).unwrap();
        assert_eq!(all, [number as u8]);
    }
    drop(pairs);
    assert_clean(&world);
}

/// Where one side does not read, what waits is bounded by rings and sockets; others are served meanwhile.
#[test]
fn a_slow_reader_holds_up_its_sender_and_nothing_else() {
    let (world, vmm) = with_vmm();
    let (near, far) = to_vmm(&world, &vmm, 22);
    let (stuck_near, stuck_far) = to_vmm(&world, &vmm, 23);
    stuck_near.set_nonblocking(true).unwrap();
    stuck_far.set_nonblocking(true).unwrap();
    let mut sent = [0, 0];
    let fill = |stream: &mut dyn Write, sent: &mut usize| match stream.write(&[7; 50_000]) {
        Ok(len) => {
            *sent += len;
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    };
    both_ways(&near, &far);
    let mut idle = 0;
    while idle < 50 {
        let more = [fill(&mut &stuck_near, &mut sent[0]), fill(&mut &stuck_far, &mut sent[1])];
        idle = if more == [false, false] { idle + 1 } else { 0 };
        std::thread::sleep(SECOND / 100);
    }
    assert!(sent.iter().all(|&sent| sent > 0 && sent < 4 << 20), "{sent:?} bytes wait");
    drop((near, far));
    let (near, far) = to_vmm(&world, &vmm, 22);
    both_ways(&near, &far);
    // All of it arrives when it is read.
    stuck_near.set_nonblocking(false).unwrap();
    stuck_near.finish();
    stuck_far.set_nonblocking(false).unwrap();
    let (mut got, mut chunk) = (0, vec![0; 60_000]);
    loop {
        match stuck_far.read_some(&mut chunk) {
            0 => break,
            len => got += len,
        }
    }
    assert_eq!(got, sent[0]);
    drop((near, far, stuck_near, stuck_far));
    assert_clean(&world);
}

#[test]
fn a_vmm_that_leaves_bytes_unread_resets_the_connection() {
    let (world, vmm) = with_vmm();
    let (guest, far) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| vmm.accept(23));
        (world.guest.connect((FIRST, 23), Options::default()).unwrap(), accepting.join().unwrap())
    });
    guest.send_all(b"not read").unwrap();
    wait_until("the bytes are there", || stats(&world, FIRST).bytes_received.get() == 8);
    let before = guest.resets();
    drop(far);
    let mut bytes = [0; 8];
    while matches!(guest.recv(&mut bytes), Ok(1..)) {}
    wait_until("the guest gets a reset", || {
        world.guest.service();
        guest.resets() > before
    });
    guest.close();
    assert_clean(&world);
}

#[test]
fn a_vmm_that_starts_again_is_reached_again() {
    let (world, vmm) = with_vmm();
    let (near, far) = to_vmm(&world, &vmm, 22);
    drop(far);
    vmm.dies();
    assert_eq!((&near).read(&mut [0; 8]).unwrap(), 0, "its connections end");
    std::fs::remove_file(path(&world, FIRST)).unwrap();
    let vmm = Vmm::start(&path(&world, FIRST));
    let (near, far) = to_vmm(&world, &vmm, 22);
    both_ways(&near, &far);
    let program = Listener::bind_by(&world.host(), TO_HOST).unwrap();
    let opened = (vmm.connect(TO_HOST).unwrap(), program.accept().unwrap().0);
    both_ways(&opened.0, &opened.1);
    drop((near, far, opened));
    assert_clean(&world);
}

#[test]
fn forwards_come_and_go_and_a_removed_vm_leaves_nothing() {
    let (world, vmm) = with_vmm();
    let file = |port: u32| world.dir.path().join(format!("v{FIRST}.sock_{port}"));
    assert!([TO_GUEST, TO_HOST, TO_OTHER].into_iter().all(|port| file(port).exists()));
    let (mut near, far) = to_vmm(&world, &vmm, 22);
    let changed = vm_with(FIRST, |vm| vm.forwards = vec![Forward { port: 9, to_cid: 3, to_port: 81 }]);
    world.hypervisor.router().vms().update(changed.vm);
    assert_eq!(world.sockets().set_hybrid(FIRST, path(&world, FIRST), &Arc::default()), [""; 0]);
    assert!(file(9).exists() && ![TO_GUEST, TO_HOST, TO_OTHER].into_iter().any(|port| file(port).exists()));
    let listener = world.guest.listen(81, Placement::Scattered);
    let opened = vmm.connect(9).unwrap();
    let guest = listener.accept().unwrap();
    both_ways(&opened, &guest);
    drop(opened);
    guest.close();
    // Its directory loses the name: it is made again.
    std::fs::remove_file(file(9)).unwrap();
    world.sockets().reopen_forwards();
    assert!(file(9).exists());
    both_ways(&near, &far);
    world.sockets().remove_hybrid(FIRST);
    assert!(!file(9).exists() && path(&world, FIRST).exists(), "the VMM's file is the VMM's");
    let _ = near.read(&mut [0; 8]);
    let mut far = far;
    assert!(is_closed(&mut far), "its connections end");
    assert!(Stream::connect_by(&world.host(), FIRST, 22, 30 * SECOND).is_err());
    drop((near, far));
    assert_clean(&world);
}

/// A directory that others write to: what stands in the way of a forward's socket is not removed, and it is
/// tried again.
#[test]
fn what_is_in_the_way_of_a_forward_stays_and_others_are_served() {
    let world = World::new();
    let file = |port: u32| world.dir.path().join(format!("v{FIRST}.sock_{port}"));
    std::fs::create_dir(file(TO_HOST)).unwrap();
    std::fs::write(file(TO_OTHER), "notes").unwrap();
    let problems = serve(&world, FIRST, |_| ());
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().all(|problem| problem.contains("something else than a socket")), "{problems:?}");
    let vmm = Vmm::start(&path(&world, FIRST));
    let listener = world.guest.listen(80, Placement::Scattered);
    let near = vmm.connect(TO_GUEST).unwrap();
    let far = listener.accept().unwrap();
    both_ways(&near, &far);
    drop(near);
    far.close();
    std::fs::remove_dir(file(TO_HOST)).unwrap();
    world.sockets().reopen_forwards();
    assert!(vmm.connect(TO_HOST).is_ok());
    assert_eq!(std::fs::read_to_string(file(TO_OTHER)).unwrap(), "notes");
    assert_clean(&world);
}

/// A name in the VMM's directory may lead to another process's socket, which gets no byte.
#[test]
fn a_socket_of_another_users_is_not_connected_to() {
    let world = World::new();
    let other = rustix::process::getuid().as_raw() + 1;
    serve(&world, FIRST, |vm| vm.owner = Some(Owner { uid: Some(other), gid: None }));
    let vmm = Vmm::start(&path(&world, FIRST));
    assert_eq!(code(Stream::connect_by(&world.host(), FIRST, 22, 30 * SECOND)), Some(19));
    let stats = stats(&world, FIRST);
    assert_eq!((stats.not_owner.get(), stats.absent.get()), (1, 0));
    let mut seen = vmm.first().unwrap();
    let mut all = Vec::new();
    seen.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"", "not even the request");
    assert_clean(&world);
}
