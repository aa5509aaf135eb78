//! What this machine can do without VMs and without vmlane: the numbers ours are put beside.
//!
//! Each function runs one such benchmark for about `length` and returns its rate, so that `report` can
//! interleave them: on a shared machine only neighbours in time compare. Every rate is "more is better".

mod copy;
mod memory;
mod place;
pub mod report;
mod ring;
mod socket;

use std::io;
use std::time::{Duration, Instant};

pub use copy::{Scatter, copy_frames, copy_ring};
pub use place::{Cpus, Placed};
pub use ring::{ring_round_trips, ring_stream};
pub use socket::{tcp_round_trips, tcp_stream, unix_round_trips, unix_stream};

/// The size of every ring here, as a VMCI stream has it by default.
pub const RING: usize = 256 << 10;

/// A rate in the unit of the benchmark it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub value: f64,
}

impl Sample {
    pub fn gbits(bytes: u64, time: Duration) -> Sample {
        Sample { value: bytes as f64 * 8.0 / time.as_secs_f64() / 1e9 }
    }

    /// Round trips per second.
    pub fn rate(count: u64, time: Duration) -> Sample {
        Sample { value: count as f64 / time.as_secs_f64() }
    }
}

/// Sends until the time is up while another thread receives everything; the clock stops when the last
/// byte has arrived. `send` is asked for a batch at a time, so that short messages are not measured
/// together with the clock; it drops what the receiver waits for when it is itself dropped.
fn one_way(
    length: Duration,
    mut send: impl FnMut() -> io::Result<()>,
    receive: impl FnOnce() -> io::Result<u64> + Send,
) -> io::Result<Sample> {
    std::thread::scope(|scope| {
        let receiver = scope.spawn(receive);
        let start = Instant::now();
        while start.elapsed() < length && !receiver.is_finished() {
            send()?;
        }
        drop(send);
        let bytes = receiver.join().unwrap_or_else(|_| Err(io::Error::other("the receiver panicked")))?;
        Ok(Sample::gbits(bytes, start.elapsed()))
    })
}
