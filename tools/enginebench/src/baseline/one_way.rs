//! The loop of every one-way benchmark here.

use std::io;
use std::time::{Duration, Instant};

use crate::report::Sample;

/// The size of every ring here, as a VMCI stream has it by default.
pub const RING: usize = 256 << 10;

/// Sends until the time is up while another thread receives everything; the clock stops when the last
/// byte has arrived. `send` is asked for a batch at a time, so that short messages are not measured
/// together with the clock; it drops what the receiver waits for when it is itself dropped.
pub fn one_way(
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
