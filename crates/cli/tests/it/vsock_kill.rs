//! `kill -9` under streams between virtio-vsock guests whose VMMs never connect again: the next daemon goes
//! on where the last one was, in the same session, and every byte arrives once.

use std::time::{Duration, Instant};

use vmlane_guestsim::vsock_vm::VsockVm;
use vmlane_testkit::{Daemon, LONGEST, TWO_VSOCK, wait_until};

use crate::common::daemon;

const STREAMS: u32 = 8;

/// The ends of a and of b.
pub fn name(number: u32) -> ([u32; 3], [u32; 3]) {
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
    /// `idle`: connections in which nothing happens meanwhile.
    fn new(packed: bool, idle: u32) -> World {
        let daemon = daemon(TWO_VSOCK);
        let attach = |cid, vm| VsockVm::attach(cid, &daemon.socket(vm, "vsock.sock"), packed);
        let (a, b) = (attach(3, "a"), attach(4, "b"));
        let mut world = World { daemon, a, b, count: 0 };
        (0..STREAMS + idle).for_each(|_| world.connect());
        world.until("all are connected", |world| world.b.ends.len() == (STREAMS + idle) as usize);
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

    /// The longest time in which one of the streams received nothing.
    fn pause(&self) -> Duration {
        let ends = (0..STREAMS).map(name).flat_map(|(ours, theirs)| {
            [(&self.a, ours), (&self.b, theirs)]
                .map(|(vm, [port, peer, peer_port])| &vm.ends[&(port, peer, peer_port)])
        });
        ends.map(|end| end.pause).max().unwrap_or_default()
    }

    fn kill(&self) {
        self.daemon.kill();
        self.daemon.launch();
    }

    /// Everything sent arrives, and a byte each way in every connection.
    fn report(self, what: &str) {
        let (count, pause) = (self.count, self.pause());
        println!("{what}: {count} connections, longest pause {pause:?}, {} bytes", self.finish());
    }

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
fn killed(packed: bool, idle: u32, kills: u64) {
    let mut world = World::new(packed, idle);
    for kill in 0..kills {
        let before = world.received();
        // Another amount each time, so that it dies elsewhere.
        let enough = before + (64 << 10) + kill * 977 % (256 << 10);
        world.until("streams go on", |world| world.received() >= enough);
        world.connect();
        (0..kill % 4).for_each(|_| world.turn());
        world.kill();
    }
    world.report(&format!("packed {packed}, {kills} kills"));
}

#[test]
fn streams_of_virtio_vsock_guests_go_on() {
    killed(false, 200, 60);
    killed(true, 200, 20);
}

/// Each of which then moves a byte both ways.
#[test]
fn a_thousand_idle_connections_go_on() {
    killed(false, 1000, 5);
    killed(true, 1000, 2);
}

/// Each daemon is killed while it takes over: 20 within a minute, five times.
#[test]
fn streams_of_virtio_vsock_guests_outlast_a_crash_loop() {
    let mut world = World::new(false, 200);
    for _ in 0..5 {
        let enough = world.received() + (256 << 10);
        world.until("streams go on", |world| world.received() >= enough);
        for turns in 0..20 {
            world.kill();
            std::thread::sleep(Duration::from_millis(turns));
        }
    }
    world.report("100 kills");
}
