//! Rows of a switch whose workers and guests have CPUs of their own: what more workers carry, and what it gains that ports
//! go to other workers by load. Only those are there that the machine has CPUs for.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vmlane_port::PortId;
use vmlane_switch::{Balancer, Settings, Switch};

use super::drive::{Counts, POSTS};
use super::guest::{Guest, Load};
use super::{GBITS, MFRAMES, switched};
use crate::baseline::Cpus;
use crate::report::Registry;

/// Workers, and pairs of guests; each pair has one thread more.
const COUNTS: [usize; 4] = [1, 2, 4, 8];
/// Between two looks at the workers' loads: a daemon's is a second.
const LOOK: Duration = Duration::from_millis(30);
/// Looks in a row without a move, after which ports are where they stay.
const SETTLED: u32 = 8;
/// Looks after which ports that still move are measured all the same.
const MOST_LOOKS: u32 = 100;
/// Frames flow for so long before they are counted.
const WARM_UP: Duration = Duration::from_millis(50);

/// Where ports are, and whether they stay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Places {
    /// Each pair has a worker of its own.
    Apart,
    /// The two of each pair are with different workers.
    Across,
    /// They begin across, and the switch's balancer moves them before anything is counted.
    Balanced,
}

/// Adds the rows.
pub fn register(registry: &mut Registry) {
    let cpus = Cpus::allowed().numbers().len();
    let mut add = |size: &str, unit, load, value: fn(&Counts) -> crate::report::Sample| {
        let one = format!("switch.cores.1{size}");
        for count in COUNTS.into_iter().filter(|&count| 2 * count <= cpus && cpus > 2) {
            let row = move |places| move |length| Ok(value(&run(count, places, load, length)?));
            let apart = format!("switch.cores.{count}{size}");
            let beside: &[&str] = if count == 1 { &[] } else { &[&one] };
            registry.add(&apart, unit, beside, row(Places::Apart));
            if count > 1 {
                let across = format!("switch.cores.across.{count}{size}");
                registry.add(&across, unit, &[&one, &apart], row(Places::Across));
                let balanced = format!("switch.cores.balanced.{count}{size}");
                registry.add(&balanced, unit, &[&across, &apart], row(Places::Balanced));
            }
        }
    };
    add("", MFRAMES, Load::Small, Counts::mframes);
    add(".1500", GBITS, Load::Full, Counts::gbits);
}

fn run(count: usize, places: Places, load: Load, length: Duration) -> io::Result<Counts> {
    let switch = Switch::start(Settings { workers: count, poll: true, ..Settings::default() })?;
    let mut pairs: Vec<([Guest; 2], [Received; 2])> = Vec::new();
    for pair in 0..count {
        let [(a, port_a), (b, port_b)] =
            [0, 1].map(|end| switched::connect(&switch, (2 * pair + end) as u16, load, true));
        move_to(&switch, port_a, pair)?;
        move_to(&switch, port_b, if places == Places::Apart { pair } else { (pair + 1) % count })?;
        pairs.push(([a, b], Default::default()));
    }
    let (over, cpus) = (AtomicBool::new(false), Cpus::allowed());
    let read = |counters: &[&[Received; 2]]| -> Vec<(u64, u64)> {
        counters.iter().flat_map(|pair| pair.iter()).map(Received::read).collect()
    };
    std::thread::scope(|scope| {
        let mut counters = Vec::new();
        for (number, (guests, received)) in pairs.iter_mut().enumerate() {
            let received: &[Received; 2] = received;
            counters.push(received);
            let (over, cpus) = (&over, &cpus);
            scope.spawn(move || {
                let _placed = cpus.pin(count + number);
                while !over.load(Ordering::Relaxed) {
                    for (guest, received) in guests.iter_mut().zip(received) {
                        guest.send(POSTS);
                        received.add(guest.receive());
                    }
                }
            });
        }
        std::thread::sleep(WARM_UP);
        if places == Places::Balanced {
            settle(&switch);
        }
        let (before, start) = (read(&counters), Instant::now());
        std::thread::sleep(length);
        let (after, time) = (read(&counters), start.elapsed());
        over.store(true, Ordering::Relaxed);
        let received =
            after.iter().zip(&before).map(|(after, before)| (after.0 - before.0, after.1 - before.1));
        Ok(Counts { received: received.collect(), time })
    })
}

fn move_to(switch: &Switch, port: PortId, worker: usize) -> io::Result<()> {
    let is_there = || switch.ports().iter().any(|view| view.id == port && view.worker == worker);
    if is_there() || switch.move_port(port, worker) && is_there() {
        return Ok(());
    }
    Err(io::Error::other(format!("port {} did not go to worker {worker}", port.0)))
}

/// Lets the balancer move ports until it finds nothing more to move.
fn settle(switch: &Switch) {
    let (mut balancer, mut still) = (Balancer::default(), 0);
    for _ in 0..MOST_LOOKS {
        std::thread::sleep(LOOK);
        still += 1;
        if let Some(relief) = balancer.look(switch, Instant::now()) {
            still = 0;
            relief.moves.iter().for_each(|&(id, to)| {
                switch.move_port(id, to);
            });
        }
        if still == SETTLED {
            return;
        }
    }
}

/// What one guest has received: frames and bytes. One thread adds, another one reads.
#[derive(Default)]
struct Received(AtomicU64, AtomicU64);

impl Received {
    #[inline]
    fn add(&self, (frames, bytes): (u64, u64)) {
        for (total, more) in [(&self.0, frames), (&self.1, bytes)] {
            total.store(total.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        }
    }

    fn read(&self) -> (u64, u64) {
        (self.0.load(Ordering::Relaxed), self.1.load(Ordering::Relaxed))
    }
}
