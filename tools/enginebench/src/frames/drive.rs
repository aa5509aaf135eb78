//! Guests on one thread, the engine that moves their frames on another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::baseline::Cpus;
use crate::report::Sample;

use super::guest::Guest;

/// Frames that a guest posts in one turn.
pub const POSTS: usize = 64;
/// Rounds in which the engine has moved as many of each guest.
const TURNS: usize = 4;

/// What was received, by guest: frames and bytes.
pub struct Counts {
    pub received: Vec<(u64, u64)>,
    pub time: Duration,
}

impl Counts {
    /// Million frames a second, of all guests together.
    pub fn mframes(&self) -> Sample {
        let frames: u64 = self.received.iter().map(|(frames, _)| frames).sum();
        Sample { value: frames as f64 / self.time.as_secs_f64() / 1e6 }
    }

    pub fn gbits(&self) -> Sample {
        Sample::gbits(self.received.iter().map(|(_, bytes)| bytes).sum(), self.time)
    }

    /// What the guest with the least received, as a part of the mean.
    pub fn smallest_share(&self) -> Sample {
        let frames = || self.received.iter().map(|(frames, _)| *frames as f64);
        let mean = frames().sum::<f64>() / self.received.len() as f64;
        Sample { value: frames().fold(f64::INFINITY, f64::min) / mean }
    }
}

/// Runs `guests` on a thread of their own while `step` moves frames on this one, for about `length`.
/// Each has a CPU of its own where there are two.
fn beside<T: Send>(
    length: Duration,
    mut step: impl FnMut(),
    guests: impl FnOnce(&AtomicBool) -> T + Send,
) -> T {
    let cpus = Cpus::allowed();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let driving = scope.spawn(|| {
            let _placed = cpus.pin(1);
            guests(&stop)
        });
        let _placed = cpus.pin(0);
        let start = Instant::now();
        while start.elapsed() < length {
            (0..64).for_each(|_| step());
        }
        stop.store(true, Ordering::Relaxed);
        driving.join().expect("no panic")
    })
}

/// Has the first `senders` guests send as fast as they can.
pub fn flood(guests: &mut [Guest], senders: usize, length: Duration, step: impl FnMut()) -> Counts {
    flood_from(guests, |number| number < senders, length, step)
}

/// The same, from the port `sends`.
pub fn flood_from(
    guests: &mut [Guest],
    sends: impl Fn(usize) -> bool + Sync,
    length: Duration,
    step: impl FnMut(),
) -> Counts {
    beside(length, step, |stop| {
        let mut received = vec![(0, 0); guests.len()];
        let start = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            for (number, (guest, total)) in guests.iter_mut().zip(&mut received).enumerate() {
                if sends(number) {
                    guest.send(POSTS);
                }
                let (frames, bytes) = guest.receive();
                *total = (total.0 + frames, total.1 + bytes);
            }
        }
        Counts { received, time: start.elapsed() }
    })
}

/// All guests take what has come and post frames, then stand still until the engine has moved them, in turn:
/// what is measured is the engine's time alone, with guests' memory where another CPU has left it.
pub fn in_turns(guests: &mut [Guest], length: Duration, mut step: impl FnMut()) -> Counts {
    let cpus = Cpus::allowed();
    let (turn, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let driving = scope.spawn(|| {
            let _placed = cpus.pin(1);
            let mut received = vec![(0, 0); guests.len()];
            while !stop.load(Ordering::Relaxed) {
                for (guest, total) in guests.iter_mut().zip(&mut received) {
                    let (frames, bytes) = guest.receive();
                    *total = (total.0 + frames, total.1 + bytes);
                    guest.send(POSTS);
                }
                turn.store(true, Ordering::Release);
                while turn.load(Ordering::Acquire) && !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
            received
        });
        let _placed = cpus.pin(0);
        let (start, mut time) = (Instant::now(), Duration::ZERO);
        // A driver that has panicked has no other turn.
        while start.elapsed() < length && !driving.is_finished() {
            if !turn.load(Ordering::Acquire) {
                std::hint::spin_loop();
                continue;
            }
            let begun = Instant::now();
            (0..TURNS).for_each(|_| step());
            time += begun.elapsed();
            turn.store(false, Ordering::Release);
        }
        stop.store(true, Ordering::Relaxed);
        Counts { received: driving.join().expect("no panic"), time }
    })
}

/// The first guest sends bursts, each of which is forwarded before the next; all on this thread. What is
/// measured is the engine and the little that a guest does with a descriptor, not how two threads wait for
/// each other.
pub fn bursts(guests: &mut [Guest], length: Duration, mut step: impl FnMut()) -> Counts {
    let _placed = Cpus::allowed().pin(0);
    let mut received = vec![(0, 0); guests.len()];
    let start = Instant::now();
    while start.elapsed() < length {
        guests[0].send(POSTS);
        (0..TURNS).for_each(|_| step());
        for (guest, total) in guests.iter_mut().zip(&mut received) {
            let (frames, bytes) = guest.receive();
            *total = (total.0 + frames, total.1 + bytes);
        }
    }
    Counts { received, time: start.elapsed() }
}

/// One frame there, one frame back.
pub fn ping_pong(pair: &mut [Guest; 2], length: Duration, step: impl FnMut()) -> Sample {
    beside(length, step, |stop| {
        let mut count = 0;
        let start = Instant::now();
        'trips: while !stop.load(Ordering::Relaxed) {
            for (from, to) in [(0, 1), (1, 0)] {
                pair[from].send(1);
                while pair[to].receive().0 == 0 {
                    if stop.load(Ordering::Relaxed) {
                        break 'trips;
                    }
                    std::hint::spin_loop();
                }
            }
            count += 1;
        }
        Sample::rate(count, start.elapsed())
    })
}
