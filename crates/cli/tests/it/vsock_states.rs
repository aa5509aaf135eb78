//! What two virtio-vsock guests are in the middle of when the daemon is killed, or its keeper, or both: a
//! handshake or its end at each stage, half-closed streams, streams without credit.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use vmlane_guestsim::vsock_vm::{BOTH, CREDIT, End, Name, VsockVm};
use vmlane_testkit::{Daemon, LONGEST, TWO_VSOCK, wait_until};
use vmlane_wire::virtio_vsock::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, op};

use crate::common::daemon;
use crate::common::vsock::Guest;
use crate::vsock_kill::name;

/// The ends of a connection.
const A: Name = (1000, 4, 2000);
const B: Name = (2000, 3, 1000);

/// Two guests whose VMMs connect once, and never again.
struct Pair {
    daemon: Daemon,
    a: VsockVm,
    b: VsockVm,
}

impl Pair {
    /// With a connection.
    fn new(config: &str) -> Pair {
        let daemon = daemon(config);
        let (a, b) = Pair::attach(&daemon);
        let mut pair = Pair { daemon, a, b };
        pair.connect();
        pair
    }

    fn attach(daemon: &Daemon) -> (VsockVm, VsockVm) {
        let attach = |cid, vm| VsockVm::attach(cid, &daemon.socket(vm, "vsock.sock"), false);
        (attach(3, "a"), attach(4, "b"))
    }

    fn connect(&mut self) {
        assert_eq!(name(0), ([A.0, A.1, A.2], [B.0, B.1, B.2]));
        self.a.connect(A);
        self.until("a connection", |pair| pair.a.ends[&A].established);
    }

    fn kill(&self) {
        self.daemon.kill();
        self.daemon.launch();
    }

    fn turn(&mut self) {
        if !(self.a.turn() | self.b.turn()) {
            std::thread::yield_now();
        }
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Pair) -> bool) {
        let since = Instant::now();
        while !is_so(self) {
            self.turn();
            assert!(since.elapsed() < LONGEST, "not within {LONGEST:?}: {what}");
        }
    }

    /// Both guests run for a while, under one daemon.
    fn run(&mut self) {
        let pid = self.daemon.pid();
        wait_until("a daemon serves them", || self.daemon.ask(&["status"]).code == 0);
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            self.turn();
        }
        assert_eq!(self.daemon.pid(), pid);
    }

    fn ends(&mut self) -> [&mut End; 2] {
        let (a, b) = (self.a.ends.get_mut(&A), self.b.ends.get_mut(&B));
        [a.expect("an end"), b.expect("an end")]
    }

    /// So many bytes each way, and no end is reset.
    fn passes(&mut self, bytes: u64) {
        self.ends().into_iter().for_each(|end| end.wanted = end.sent + bytes);
        self.until("bytes both ways", |pair| {
            let (a, b) = (&pair.a.ends[&A], &pair.b.ends[&B]);
            a.sent == a.wanted && b.sent == b.wanted && a.sent == b.received && b.sent == a.received
        });
        assert!(self.ends().iter().all(|end| !end.reset));
    }
}

/// What an end (0: a, 1: b) sends in a stage, and the other one then receives.
type Stage = (usize, u16, &'static [u8]);

const STREAM: &[Stage] = &[
    (0, op::REQUEST, b""),
    (1, op::RESPONSE, b""),
    (0, op::RW, b"there"),
    (1, op::CREDIT_UPDATE, b""),
    (1, op::RW, b"and back"),
    (0, op::SHUTDOWN, b""),
    (1, op::RST, b""),
];
const REFUSED: &[Stage] = &[(0, op::REQUEST, b""), (1, op::RST, b"")];
const GIVEN_UP: &[Stage] = &[(0, op::REQUEST, b""), (0, op::RST, b"")];

/// When the daemon is killed, in a stage: before it, between what one end sends and the other receives, or
/// while what is sent waits in the ring of its sender.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    Before,
    Between,
    Without,
}

/// Two guests, and which of them have buffers before they need them.
struct Stages {
    daemon: Daemon,
    guests: [Guest; 2],
    buffers: bool,
}

impl Stages {
    fn new(buffers: bool) -> Stages {
        let daemon = daemon(TWO_VSOCK);
        let posted = if buffers { 32 } else { 0 };
        let attach = |vm, cid| Guest::attach_with(&daemon.socket(vm, "vsock.sock"), cid, posted);
        let guests = [attach("a", 3), attach("b", 4)];
        Stages { daemon, guests, buffers }
    }

    fn kill(&self) {
        self.daemon.kill();
        self.daemon.launch();
    }

    fn next(&mut self, guest: usize) -> (Header, Vec<u8>) {
        if self.buffers {
            return self.guests[guest].any();
        }
        self.guests[guest].give(1);
        let (header, payload, _) = self.guests[guest].take();
        (header, payload)
    }

    /// Plays the stages of a connection, the daemon being killed in some of them.
    fn play(&mut self, stages: &[Stage], ports: [u32; 2], kills: impl Fn(usize) -> Option<Moment>) {
        for (number, &(from, what, payload)) in stages.iter().enumerate() {
            let (moment, to) = (kills(number), 1 - from);
            let peer = (3 + to as u32, ports[to]);
            match moment {
                Some(Moment::Before) => self.kill(),
                Some(Moment::Without) => self.daemon.kill(),
                _ => {}
            }
            match what {
                op::SHUTDOWN => self.guests[from].shut(ports[from], peer, BOTH),
                what => self.guests[from].send(ports[from], peer, what, payload),
            }
            match moment {
                Some(Moment::Without) => self.daemon.launch(),
                Some(Moment::Between) => self.kill(),
                _ => {}
            }
            // Whatever came twice would be here, instead.
            let (header, got) = self.next(to);
            let is = (header.op.get(), header.src_cid.get(), header.src_port.get(), header.dst_port.get());
            assert_eq!(is, (what, 3 + from as u64, ports[from], ports[to]), "stage {number}");
            assert_eq!(got, payload, "stage {number}");
        }
    }
}

#[test]
fn a_connection_is_made_and_ends_at_whatever_stage_the_daemon_dies() {
    for buffers in [true, false] {
        let (mut world, mut port) = (Stages::new(buffers), 100);
        for stages in [STREAM, REFUSED, GIVEN_UP] {
            for moment in [Moment::Before, Moment::Between, Moment::Without] {
                // One kill in each connection, then one in each of its stages.
                for kill in (0..stages.len()).map(Some).chain([None]) {
                    port += 1;
                    world.play(stages, [port, port + 1000], |at| {
                        kill.is_none_or(|kill| kill == at).then_some(moment)
                    });
                }
            }
        }
        // Nothing is left over at either end.
        world.play(REFUSED, [1, 2], |_| None);
        world.play(&[(1, op::REQUEST, b""), (0, op::RST, b"")], [3, 4], |_| None);
    }
}

/// Of a stream that one end has shut down, the other direction goes on; so it does if the daemon dies before
/// that is known.
#[test]
fn half_closed_streams_go_on() {
    for (first, flags, dead) in [
        (0, SHUTDOWN_SEND, false),
        (1, SHUTDOWN_SEND, true),
        (0, SHUTDOWN_RECEIVE, true),
        (1, SHUTDOWN_RECEIVE, false),
    ] {
        let mut pair = Pair::new(TWO_VSOCK);
        pair.passes(100_000);
        if dead {
            pair.daemon.kill();
        }
        match first {
            0 => pair.a.shut_down(A, flags),
            _ => pair.b.shut_down(B, flags),
        }
        (0..3).for_each(|_| pair.turn());
        if dead {
            pair.daemon.launch();
        }
        let other = 1 - first;
        pair.until("it is known at the other end", |pair| {
            [&pair.a.ends[&A], &pair.b.ends[&B]][other].peer_shut == flags
        });
        pair.kill();
        // What is still open: from the other end, or from this one.
        let from = if flags == SHUTDOWN_SEND { other } else { first };
        let ends = pair.ends();
        ends[from].wanted += 300_000;
        pair.until("bytes in the middle", |pair| {
            [&pair.a.ends[&A], &pair.b.ends[&B]][1 - from].received > 200_000
        });
        pair.kill();
        pair.until("the other direction goes on", |pair| {
            let ends = [&pair.a.ends[&A], &pair.b.ends[&B]];
            ends[from].sent == ends[from].wanted && ends[1 - from].received == ends[from].sent
        });
        let ends = pair.ends();
        assert!(ends.iter().all(|end| !end.reset) && ends[other].peer_shut == flags);
        assert_eq!((ends[first].peer_shut, ends[from].received), (0, 100_000));
        // Both go now.
        pair.kill();
        pair.a.shut_down(A, BOTH);
        pair.until("its end", |pair| pair.a.ends[&A].reset && pair.b.ends[&B].reset);
    }
}

/// The receiver's program reads nothing while daemons die; the sender sends what the receiver takes, and no
/// byte more.
#[test]
fn streams_without_credit_wait_and_go_on() {
    let mut pair = Pair::new(TWO_VSOCK);
    for round in 1..=3 {
        let [a, b] = pair.ends();
        (a.keeps, b.keeps) = (true, true);
        let before = [a.received, b.received];
        a.wanted += 1 << 20;
        b.wanted += 1 << 20;
        let is_full = |end: &End, before: u64| end.received == before + u64::from(CREDIT);
        pair.until("all credit is used", |pair| {
            is_full(&pair.a.ends[&A], before[0]) && is_full(&pair.b.ends[&B], before[1])
        });
        for _ in 0..round {
            pair.kill();
            pair.run();
        }
        assert!(
            is_full(&pair.a.ends[&A], before[0]) && is_full(&pair.b.ends[&B], before[1]),
            "round {round}"
        );
        // What makes room may find no daemon.
        pair.daemon.kill();
        pair.a.reads(A);
        pair.b.reads(B);
        (0..3).for_each(|_| pair.turn());
        pair.daemon.launch();
        pair.passes(200_000);
    }
}

/// A keeper that is killed is replaced, and the new one has everything.
#[test]
fn streams_outlast_a_killed_keeper() {
    const RENEWED: &str = "the new keeper has everything";
    let mut pair = Pair::new(TWO_VSOCK);
    for kills in 1..=3 {
        pair.passes(100_000);
        kill_process(pair.daemon.beside("keeper").expect("a keeper"), Signal::KILL).unwrap();
        let daemon = &pair.daemon;
        wait_until("another keeper has everything", || daemon.log().matches(RENEWED).count() >= kills);
        pair.kill();
    }
    pair.passes(100_000);
}

/// What only those two held is closed, and their VMs' next VMMs are served.
#[test]
fn a_keeper_and_a_daemon_that_are_killed_end_sessions() {
    for daemon_first in [true, false] {
        let mut pair = Pair::new(TWO_VSOCK);
        pair.passes(1000);
        let keeper = pair.daemon.beside("keeper").expect("a keeper");
        if daemon_first {
            pair.daemon.kill();
        }
        kill_process(keeper, Signal::KILL).unwrap();
        pair.daemon.kill();
        wait_until("both connections are closed", || pair.a.is_closed() && pair.b.is_closed());
        pair.daemon.start();
        (pair.a, pair.b) = Pair::attach(&pair.daemon);
        pair.connect();
        pair.passes(100_000);
    }
}

/// Of one VM alone: its peer is notified.
#[test]
fn sessions_that_the_keeper_closed_are_over_and_the_next_vmms_are_served() {
    let mut pair = Pair::new(&format!("[daemon]\nhold = 1\n{TWO_VSOCK}"));
    pair.passes(1000);
    pair.daemon.kill();
    wait_until("both connections are closed", || pair.a.is_closed() && pair.b.is_closed());
    pair.daemon.start();
    assert_eq!(pair.daemon.vm("a")["state"], "lost");
    (pair.a, pair.b) = Pair::attach(&pair.daemon);
    pair.connect();
    pair.passes(100_000);
}
