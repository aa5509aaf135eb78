//! The rows of VMXNET3: synthetic guests on one thread, the worker that moves their frames on the other.

mod guest;
mod wire;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vmlane_bench::native::report::{GBITS, Registry};
use vmlane_bench::native::{Cpus, Sample, copy_frames};

use self::guest::{Guest, Load};
use self::wire::Wire;

/// Million frames per second.
const MFRAMES: &str = "Mframes/s";
/// Frames that a guest posts in one turn.
const POSTS: usize = 64;

/// Adds all rows.
pub fn register(registry: &mut Registry) {
    let copy = "copy.frames.64k";
    registry.add(copy, GBITS, &[], plain_copy);
    registry.add("vmxnet3.ports.64", MFRAMES, &[], |length| Ok(ports(Load::Small, length).mframes()));
    registry.add("vmxnet3.ports.1500", GBITS, &[], |length| Ok(ports(Load::Full, length).gbits()));
    registry.add("vmxnet3.ports.64k", GBITS, &[copy], |length| Ok(ports(Load::Super, length).gbits()));
}

/// Copies super-frames between buffers like the guests', on a worker's CPU.
fn plain_copy(length: Duration) -> io::Result<Sample> {
    let _placed = Cpus::allowed().pin(0);
    copy_frames(Load::Super.scatter(), length)
}

/// What arrived.
struct Arrived {
    frames: u64,
    bytes: u64,
    time: Duration,
}

impl Arrived {
    fn mframes(&self) -> Sample {
        Sample { value: self.frames as f64 / self.time.as_secs_f64() / 1e6 }
    }

    fn gbits(&self) -> Sample {
        Sample::gbits(self.bytes, self.time)
    }
}

/// One guest sends to another through a bare wire.
fn ports(load: Load, length: Duration) -> Arrived {
    let (a, port_a) = Guest::new(1, 2, load, true);
    let (b, port_b) = Guest::new(2, 1, load, true);
    let mut wire = Wire([port_a, port_b]);
    let counts = measure(&mut [a, b], &[0], length, || {
        wire.step();
    });
    let (frames, bytes) = counts.received[1];
    Arrived { frames, bytes, time: counts.time }
}

/// What was received, by guest: frames and bytes.
struct Counts {
    received: Vec<(u64, u64)>,
    time: Duration,
}

/// Has `senders` send for as long as `length` while `step` moves frames on this thread. Guests run on
/// another one; both have a CPU of their own where there are two.
fn measure(guests: &mut [Guest], senders: &[usize], length: Duration, mut step: impl FnMut()) -> Counts {
    let cpus = Cpus::allowed();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let driving = scope.spawn(|| {
            let _placed = cpus.pin(1);
            let mut received = vec![(0, 0); guests.len()];
            let start = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                senders.iter().for_each(|&sender| guests[sender].send(POSTS));
                for (guest, total) in guests.iter_mut().zip(&mut received) {
                    let (frames, bytes) = guest.receive();
                    *total = (total.0 + frames, total.1 + bytes);
                }
            }
            Counts { received, time: start.elapsed() }
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
