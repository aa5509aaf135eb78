//! `kill -9` under streams between a virtio-vsock guest and a VMCI guest: the next daemon goes on where the
//! last one was, at both ends, and every byte arrives once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmlane_guestsim::vsock_vm::{BOTH, Name, VsockVm};
use vmlane_guestsim::{Guest, Options, Pattern, Placement, Stream, attached};
use vmlane_testkit::{Daemon, LONGEST};

use crate::common::daemon;

const CONFIG: &str = "\
[[vm]]
name = \"a\"
cid = 3
vsock = \"virtio\"
[[vm]]
name = \"v\"
cid = 5
";
const A: u32 = 3;
const V: u32 = 5;
/// Streams that each of the two guests opens.
const STREAMS: u32 = 4;
/// Bytes of the rings that the VMCI guest asks for.
const RINGS: [u64; STREAMS as usize] = [4096, 20_000, 65_536, 262_144];

/// What the VMCI guest's end of a stream has done.
#[derive(Default)]
struct Done {
    sent: AtomicU64,
    received: AtomicU64,
    /// It sends no more.
    stops: AtomicBool,
    /// Its peer has announced that it sends no more.
    finished: AtomicBool,
}

/// One stream: its end of the virtio guest, and the VMCI guest's, which a thread reads and another one
/// writes.
struct Pair {
    name: Name,
    done: Arc<Done>,
    threads: Vec<JoinHandle<()>>,
}

impl Pair {
    fn new(name: Name, stream: Stream, writes: bool) -> Pair {
        let (stream, done) = (Arc::new(stream), Arc::<Done>::default());
        done.stops.store(!writes, Ordering::Relaxed);
        let threads = vec![
            std::thread::spawn({
                let (stream, done) = (stream.clone(), done.clone());
                move || receive(&stream, name, &done)
            }),
            std::thread::spawn({
                let done = done.clone();
                move || send(&stream, name, &done)
            }),
        ];
        Pair { name, done, threads }
    }
}

fn receive(stream: &Stream, name: Name, done: &Done) {
    let pattern = Pattern::new(VsockVm::seed(A, name));
    let mut buffer = vec![0; 10_000];
    loop {
        let received = done.received.load(Ordering::Relaxed);
        let len = stream.recv(&mut buffer[..1 + (received * 977 % 9_999) as usize]).expect("bytes");
        if len == 0 {
            break done.finished.store(true, Ordering::Release);
        }
        pattern.check(received, &buffer[..len]);
        done.received.store(received + len as u64, Ordering::Release);
    }
}

fn send(stream: &Stream, (port, _, peer_port): Name, done: &Done) {
    let pattern = Pattern::new(VsockVm::seed(V, (peer_port, A, port)));
    while !done.stops.load(Ordering::Acquire) {
        let sent = done.sent.load(Ordering::Relaxed);
        let len = stream.send(&pattern.bytes(sent, 1 + (sent * 661 % 20_000) as usize)).expect("room");
        done.sent.store(sent + len as u64, Ordering::Release);
    }
}

struct World {
    daemon: Daemon,
    a: VsockVm,
    v: Arc<Guest>,
    pairs: Vec<Pair>,
}

impl World {
    fn new(packed: bool) -> World {
        let daemon = daemon(CONFIG);
        let a = VsockVm::attach(A, &daemon.socket("a", "vsock.sock"), packed);
        let v = Guest::new(attached::attach(&daemon.socket("v", "vmci.sock"), 64 << 20).expect("a device"));
        World { daemon, a, v, pairs: Vec::new() }
    }

    /// The virtio guest connects.
    fn connects(&mut self, number: u32, writes: bool) {
        let name = (1000 + number, V, 2000 + number);
        let listener = self.v.listen(name.2, Placement::Scattered);
        let accepting = std::thread::spawn(move || listener.accept());
        self.a.connect(name);
        let stream = self.turn_until(accepting).expect("a connection");
        self.pairs.push(Pair::new(name, stream, writes));
    }

    /// The VMCI guest connects.
    fn connect_guest(&mut self, number: u32, size: u64) {
        let name = (3000 + number, V, 4000 + number);
        let (v, options) = (self.v.clone(), Options { size, port: Some(name.2), ..Options::default() });
        let connecting = std::thread::spawn(move || v.connect((A, name.0), options));
        let stream = self.turn_until(connecting).expect("a connection");
        self.pairs.push(Pair::new(name, stream, true));
    }

    fn turn_until<T>(&mut self, thread: JoinHandle<T>) -> T {
        while !thread.is_finished() {
            self.turn();
        }
        thread.join().expect("a guest")
    }

    fn turn(&mut self) {
        if !self.a.turn() {
            std::thread::yield_now();
        }
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
        let since = Instant::now();
        while !is_so(self) {
            self.turn();
            assert!(since.elapsed() < LONGEST, "not within {LONGEST:?}: {what}");
            for pair in &self.pairs {
                let reset = self.a.ends.get(&pair.name).is_some_and(|end| end.reset);
                assert!(!reset, "{:?} was reset", pair.name);
                let over = pair.threads.iter().any(JoinHandle::is_finished);
                assert!(
                    !over || pair.done.stops.load(Ordering::Relaxed),
                    "{:?} is over at the VMCI guest",
                    pair.name
                );
            }
        }
    }

    /// The virtio guest sends so much more in each stream.
    fn wants(&mut self, bytes: u64) {
        for pair in &self.pairs {
            self.a.ends.entry(pair.name).and_modify(|end| end.wanted = end.sent + bytes);
        }
    }

    /// Bytes that have arrived at both guests.
    fn moved(&self) -> u64 {
        let to_a: u64 = self.a.ends.values().map(|end| end.received).sum();
        to_a + self.pairs.iter().map(|pair| pair.done.received.load(Ordering::Acquire)).sum::<u64>()
    }

    fn flow(&mut self, bytes: u64) {
        let enough = self.moved() + bytes;
        let since = Instant::now();
        while self.moved() < enough {
            self.wants(1 << 20);
            self.until("turns", |_| true);
            self.turn();
            assert!(since.elapsed() < LONGEST, "streams do not go on");
        }
    }

    fn kill(&self) {
        self.daemon.kill();
        self.daemon.launch();
    }

    /// No one sends any more, and all of it arrives.
    fn finish(mut self) -> u64 {
        self.wants(0);
        self.pairs.iter().for_each(|pair| pair.done.stops.store(true, Ordering::Release));
        self.until("all that was sent has arrived", |world| {
            world.pairs.iter().all(|pair| {
                let Some(end) = world.a.ends.get(&pair.name) else { return false };
                let [sent, received] =
                    [&pair.done.sent, &pair.done.received].map(|n| n.load(Ordering::Acquire));
                pair.threads[1].is_finished() && end.received == sent && end.sent == received
            })
        });
        let moved = self.moved();
        let names: Vec<Name> = self.pairs.iter().map(|pair| pair.name).collect();
        names.into_iter().for_each(|name| self.a.shut_down(name, BOTH));
        self.join();
        moved
    }

    /// Both ends of all streams are closed.
    fn join(&mut self) {
        for thread in std::mem::take(&mut self.pairs).into_iter().flat_map(|pair| pair.threads) {
            self.turn_until(thread);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.daemon.log());
        }
    }
}

/// Streams go on, whoever opened them and whatever the sizes of their rings.
fn killed(packed: bool, kills: u64) {
    let mut world = World::new(packed);
    for (number, size) in (0..STREAMS).zip(RINGS) {
        world.connects(number, true);
        world.connect_guest(number, size);
    }
    for kill in 0..kills {
        // Another amount each time, so that it dies elsewhere.
        world.flow((64 << 10) + kill * 97_711 % (256 << 10));
        world.kill();
    }
    println!("packed {packed}: {kills} kills, {} bytes", world.finish());
}

#[test]
fn streams_between_virtio_vsock_and_vmci_guests_go_on() {
    killed(false, 60);
    killed(true, 20);
}

/// The VMCI guest knows that it is connected, and the other one may not.
#[test]
fn connections_of_two_kinds_that_were_just_made_go_on() {
    let mut world = World::new(false);
    for number in 0..12 {
        world.connects(number, true);
        world.kill();
        world.connect_guest(number, 65_536);
        world.kill();
        world.flow(10_000);
    }
    println!("24 kills, {} bytes", world.finish());
}

/// Each daemon is killed while it takes over.
#[test]
fn streams_between_virtio_vsock_and_vmci_guests_outlast_a_crash_loop() {
    let mut world = World::new(false);
    for (number, size) in (0..STREAMS).zip(RINGS) {
        world.connects(number, true);
        world.connect_guest(number, size);
    }
    for _ in 0..5 {
        world.flow(256 << 10);
        for turns in 0..20 {
            world.kill();
            std::thread::sleep(Duration::from_millis(turns));
        }
    }
    println!("100 kills, {} bytes", world.finish());
}

/// The virtio guest closes as soon as it has sent everything; its peer has read little of it when the daemon
/// dies.
#[test]
fn what_a_virtio_vsock_guest_sent_before_it_closed_arrives() {
    let mut world = World::new(false);
    for number in 0..20 {
        world.connects(number, false);
        let pair = world.pairs.last().expect("a stream");
        let (name, done, bytes) = (pair.name, pair.done.clone(), 200_000 + u64::from(number) * 9_973);
        world.a.ends.entry(name).and_modify(|end| end.wanted = bytes);
        world.until("all is sent", |world| world.a.ends[&name].sent == bytes);
        world.a.shut_down(name, BOTH);
        (0..number % 7).for_each(|_| world.turn());
        world.kill();
        world.join();
        assert!(done.finished.load(Ordering::Acquire));
        assert_eq!(done.received.load(Ordering::Acquire), bytes, "stream {number}");
    }
}
