//! What the sessions do. Each loop runs on a thread of its own and returns what it counted; the same
//! code serves the client's end and the server's.

mod crr;
mod datagram;
mod pace;
mod rr;
mod stream;

use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

pub use crr::{accept_and_answer, connect_and_ask};
pub use datagram::{answer_datagrams, ask_datagrams, both_datagrams, receive_datagrams, send_datagrams};
pub use rr::{answer, ask};
pub use stream::{both, receive, send};

use crate::session_group::Cue;

/// A data connection on which nothing moves for this long is dead.
pub const IDLE: Duration = Duration::from_secs(15);

fn overdue() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer does not come to an end")
}

fn check_overdue(cue: &Cue, now: Instant) -> io::Result<()> {
    if cue.is_overdue(now) { Err(overdue()) } else { Ok(()) }
}

/// Round trips from 1 ns to a minute, three significant digits.
fn round_trips() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(io::Error::other)
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// Message bytes: not all zero, so that nothing on the way can be clever about them.
fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(31) >> 3) as u8).collect()
}

/// A failure in words: the kernel's "try again" means here that nothing moved.
pub fn explain(cause: io::Error) -> io::Error {
    let of_socket = cause.raw_os_error().is_some() || cause.kind() == io::ErrorKind::WouldBlock;
    if crate::transport::is_timeout(&cause) && of_socket {
        return io::Error::new(
            io::ErrorKind::TimedOut,
            format!("nothing moved for {} s; is the peer alive?", IDLE.as_secs()),
        );
    }
    cause
}
