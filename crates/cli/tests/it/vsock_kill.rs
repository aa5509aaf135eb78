//! `kill -9` under streams between virtio-vsock guests whose VMMs never connect again: the next daemon goes on where the last
//! one was, in the same session, and every byte arrives once.

use std::time::{Duration, Instant};

use vmlane_guestsim::vsock_vm::VsockVm;
use vmlane_testkit::{Daemon, LONGEST, wait_until};

use crate::common::daemon;

const CONFIG: &str = "\
[[vm]]
name = \"a\"
cid = 3
vsock = \"virtio\"
[[vm]]
name = \"b\"
cid = 4
vsock = \"virtio\"
";
const STREAMS: u32 = 8;
/// Connections in which nothing happens meanwhile.
const IDLE: u32 = 200;

/// The ends of a and of b.
fn name(number: u32) -> ([u32; 3], [u32; 3]) {
    ([1000 + number, 4, 2000 + number], [2000 + number, 3, 1000 + number])
}

/// Two guests with connections, of which the first ones carry bytes both ways, as many as the daemon moves.
struct World {
    daemon: Daemon,
    a: VsockVm,
    b: VsockVm,
    /// Connections so far.
    count: u32,
}

impl World {
    fn new(packed: bool) -> World {
        let daemon = daemon(CONFIG);
        let attach = |cid, vm| VsockVm::attach(cid, &daemon.socket(vm, "vsock.sock"), packed);
        let (a, b) = (attach(3, "a"), attach(4, "b"));
        let mut world = World { daemon, a, b, count: 0 };
        (0..STREAMS + IDLE).for_each(|_| world.connect());
        world.until("all are connected", |world| world.b.ends.len() == (STREAMS + IDLE) as usize);
        world
    }

    fn connect(&mut self) {
        let ([port, peer, peer_port], _) = name(self.count);
        self.count += 1;
        self.a.connect((port, peer, peer_port));
    }

    fn turn(&mut self) {
        for number in 0..STREAMS {
            let ([port, peer, peer_port], [own, other, other_port]) = name(number);
            for (vm, name) in
                [(&mut self.a, (port, peer, peer_port)), (&mut self.b, (own, other, other_port))]
            {
                vm.ends.entry(name).and_modify(|end| end.wanted = end.sent + (1 << 20));
            }
        }
        if !(self.a.turn() | self.b.turn()) {
            std::thread::yield_now();
        }
        assert!(
            self.a.ends.values().chain(self.b.ends.values()).all(|end| !end.reset),
            "a connection was reset"
        );
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
        let since = Instant::now();
        while !is_so(self) {
            self.turn();
            assert!(since.elapsed() < LONGEST, "not within {LONGEST:?}: {what}");
        }
    }

    fn received(&self) -> u64 {
        self.b.ends.values().map(|end| end.received).sum()
    }

    fn kill(&self) {
        self.daemon.kill();
        self.daemon.launch();
    }

    /// Everything sent arrives, and a byte each way in every connection.
    fn finish(mut self) -> u64 {
        for end in self.a.ends.values_mut().chain(self.b.ends.values_mut()) {
            end.wanted = end.sent + 1;
        }
        wait_until("all that was sent has arrived", || {
            self.a.turn();
            self.b.turn();
            (0..self.count).all(|number| {
                let ([port, peer, peer_port], [own, other, other_port]) = name(number);
                let ends =
                    (self.a.ends.get(&(port, peer, peer_port)), self.b.ends.get(&(own, other, other_port)));
                let (Some(a), Some(b)) = ends else { return false };
                assert!(!a.reset && !b.reset, "connection {number} was reset");
                a.established
                    && a.sent == a.wanted
                    && b.sent == b.wanted
                    && a.sent == b.received
                    && b.sent == a.received
            })
        });
        wait_until("all chains have come back", || {
            self.a.turn();
            self.b.turn();
            self.a.is_settled() && self.b.is_settled()
        });
        self.received()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.daemon.log());
        }
    }
}

/// Streams go on, and connects that were under way succeed.
fn killed(packed: bool, kills: u64) {
    let mut world = World::new(packed);
    for kill in 0..kills {
        let before = world.received();
        // Another amount each time, so that it dies elsewhere.
        let enough = before + (64 << 10) + kill * 977 % (256 << 10);
        world.until("streams go on", |world| world.received() >= enough);
        world.connect();
        (0..kill % 4).for_each(|_| world.turn());
        world.kill();
    }
    let count = world.count;
    println!("packed {packed}: {kills} kills, {count} connections, {} bytes", world.finish());
}

#[test]
fn streams_of_virtio_vsock_guests_go_on() {
    killed(false, 60);
    killed(true, 20);
}

/// Each daemon is killed while it takes over.
#[test]
fn streams_of_virtio_vsock_guests_outlast_a_crash_loop() {
    let mut world = World::new(false);
    for _ in 0..5 {
        let enough = world.received() + (256 << 10);
        world.until("streams go on", |world| world.received() >= enough);
        for turns in 0..20 {
            world.kill();
            std::thread::sleep(Duration::from_millis(turns));
        }
    }
    println!("100 kills, {} bytes", world.finish());
}
