//! One hostile VM beside an honest pair on one saturated worker: the pair keeps its share, and the daemon
//! does not grow.
//!
//! Workers are turned by hand, one thread does everything, and what is compared is work, never time: what the
//! pair moves in as many rounds as without the attack, and what the attack made the worker do, counted at the
//! attack's own rings and priced as the worker's meter prices it. Where both VMs have their shares, the pair
//! has n of n + 1 of all work beside the shares of n attackers.
//!
//! An attack is a row of [`frames::ATTACKS`], [`sockets::ATTACKS`] or [`streams::ATTACKS`].
//! `VMLANE_ATTACK_MINUTES`: how long each of them runs while memory is watched, and a mixture of all six
//! times as long; without it, some thousand rounds. `VMLANE_ATTACK=name` runs those whose names contain it.
//! Printed, but not judged: the CPU time of a round.

mod frames;
mod sockets;
mod streams;

use std::time::{Duration, Instant};

use vmlane_device::virtio::queue::Segment;
use vmlane_guestsim::virtio::DriverRing;
use vmlane_testkit::ran_alone;
use vmlane_wire::virtio::desc;

/// What an owner may cause in a round of the switch and of virtio-vsock, in bytes copied.
pub const QUOTA: usize = 256 << 10;
/// What other work costs, in bytes copied (`vmlane_worker::Work`).
pub const DESCRIPTOR: usize = 96;
pub const TURN: usize = 2048;
pub const POLL: usize = 512;
pub const REBUILD: usize = 64 << 10;

/// Pieces of a chain of a virtio ring, at most.
pub const PIECES: usize = 1024;

/// A table of the pieces of a chain, for any number of descriptors that lead to it: its guest address.
pub fn table(ring: &DriverRing, pieces: &[Segment], packed: bool) -> u64 {
    let at = ring.alloc(pieces.len() * desc::SIZE);
    for (number, piece) in pieces.iter().enumerate() {
        let last = number + 1 == pieces.len();
        let write = if piece.writable { desc::WRITE } else { 0 };
        let words = match (packed, last) {
            (true, _) => [0, write],
            (false, false) => [write | desc::NEXT, number as u16 + 1],
            (false, true) => [write, 0],
        };
        let mut entry = [0; desc::SIZE];
        entry[..8].copy_from_slice(&piece.addr.to_le_bytes());
        entry[8..12].copy_from_slice(&piece.len.to_le_bytes());
        entry[12..].copy_from_slice(words.map(u16::to_le_bytes).as_flattened());
        ring.ram.write(at + (number * desc::SIZE) as u64, &entry);
    }
    at
}

/// An honest pair and an attack on one worker.
pub trait Neighbours {
    /// The attack acts, and the pair posts what it has.
    fn act(&mut self);

    /// The worker is turned once.
    fn turn(&mut self);

    /// Bytes that the pair has moved so far.
    fn honest(&self) -> u64;

    /// What the attack has caused so far, in bytes copied.
    fn caused(&self) -> u64;
}

/// A row of the table.
pub struct Attack {
    pub name: &'static str,
    /// VMs that take part in it.
    pub vms: u64,
    /// What the pair may cause in a round.
    pub quota: usize,
    pub alone: fn() -> Box<dyn Neighbours>,
    pub make: fn() -> Box<dyn Neighbours>,
}

/// What a run came to.
struct Run {
    honest: u64,
    caused: u64,
    cpu: Duration,
}

/// Before anything is counted: caches and queues fill.
const WARM_UP: usize = 50;
const ROUNDS: usize = 400;

fn attacks() -> impl Iterator<Item = &'static Attack> {
    let wanted = std::env::var("VMLANE_ATTACK").unwrap_or_default();
    let all = frames::ATTACKS.iter().chain(sockets::ATTACKS).chain(streams::ATTACKS);
    all.filter(move |attack| attack.name.contains(&wanted))
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn run(mut world: Box<dyn Neighbours>) -> Run {
    let rounds = |world: &mut Box<dyn Neighbours>, count: usize| -> Duration {
        let round = |_| {
            world.act();
            let began = cpu();
            world.turn();
            cpu() - began
        };
        (0..count).map(round).sum()
    };
    rounds(&mut world, WARM_UP);
    let (honest, caused) = (world.honest(), world.caused());
    let cpu = rounds(&mut world, ROUNDS);
    Run { honest: world.honest() - honest, caused: world.caused() - caused, cpu }
}

#[test]
fn an_honest_pair_keeps_its_share_beside_each_attack() {
    let mut wrong = Vec::new();
    println!("{:44} {:>7} {:>9} {:>8} {:>9}", "attack", "share", "moved", "caused", "us/round");
    for attack in attacks() {
        let (alone, beside) = (run((attack.alone)()), run((attack.make)()));
        let moved = beside.honest as f64 / alone.honest as f64;
        let due = (attack.quota * ROUNDS) as f64;
        // Of the work of pair and attack, what the pair does, as a part of n of n + 1.
        let own = due * moved;
        let share = own / (own + beside.caused as f64) * (attack.vms + 1) as f64;
        let caused = beside.caused as f64 / due;
        let micros = |run: &Run| run.cpu.as_secs_f64() * 1e6 / ROUNDS as f64;
        println!(
            "{:44} {:>7.2} {moved:>9.2} {caused:>8.2} {:>9.1} ({:.1} alone)",
            attack.name,
            share.min(moved),
            micros(&beside),
            micros(&alone)
        );
        if share.min(moved) < 0.9 {
            wrong.push(format!("{}: {:.2} of its share", attack.name, share.min(moved)));
        }
        if beside.caused == 0 {
            wrong.push(format!("{}: the attack does nothing", attack.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Anonymous memory of this process, in KiB.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a file of Linux");
    let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("Linux 4.5");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

/// How much memory may grow after the first part of a run, in KiB.
const GROWTH: u64 = 4 << 10;
/// Rounds between two checks.
const INTERVAL: usize = 256;

/// Runs `round` for `minutes`, or for `rounds` rounds, and checks memory: the most that it was above what
/// it was after a tenth of the run, or a minute, in KiB.
fn growth(minutes: Option<f64>, rounds: usize, mut round: impl FnMut()) -> u64 {
    let began = Instant::now();
    let length = minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let (mut done, mut before, mut most) = (0, None, 0);
    loop {
        (0..INTERVAL).for_each(|_| round());
        done += INTERVAL;
        let part = match length {
            Some(length) => began.elapsed().as_secs_f64() / length.as_secs_f64(),
            None => done as f64 / rounds as f64,
        };
        let warm = part >= 0.1 || began.elapsed() > Duration::from_secs(60);
        if warm {
            let now = anonymous();
            most = most.max(now.saturating_sub(*before.get_or_insert(now)));
        }
        if part >= 1.0 {
            return most;
        }
    }
}

fn minutes() -> Option<f64> {
    std::env::var("VMLANE_ATTACK_MINUTES").ok().and_then(|text| text.parse().ok())
}

#[test]
fn memory_is_flat_under_each_attack() {
    if ran_alone() {
        return;
    }
    let mut wrong = Vec::new();
    for attack in attacks() {
        let mut world = (attack.make)();
        let grown = growth(minutes(), 3000, || {
            world.act();
            world.turn();
        });
        println!("{:44} {grown} KiB", attack.name);
        if grown > GROWTH {
            wrong.push(format!("{}: {grown} KiB more", attack.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn memory_is_flat_under_all_attacks_together() {
    if ran_alone() {
        return;
    }
    let mut worlds: Vec<_> = attacks().map(|attack| (attack.make)()).collect();
    let mut next = 0;
    let grown = growth(minutes().map(|minutes| 6.0 * minutes), 30_000, || {
        next = (next + 1) % worlds.len();
        worlds[next].act();
        worlds[next].turn();
    });
    println!("all attacks together {grown} KiB");
    assert!(grown <= GROWTH, "{grown} KiB more");
}
