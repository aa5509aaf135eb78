//! Waiting for a condition, with one generous limit for all tests.

use std::time::{Duration, Instant};

/// How long a condition may take to hold, on a machine that is busy with other tests.
pub const LONGEST: Duration = Duration::from_secs(120);

/// The pauses between polls: the first one and the longest. Each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Polls until there is a value, which must happen within [`LONGEST`]; `what` names it where it does not.
#[track_caller]
pub fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let (deadline, mut pause) = (Instant::now() + LONGEST, FIRST_PAUSE);
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {LONGEST:?}: {what}");
        std::thread::sleep(pause);
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

/// Polls until `is_so`, which must happen within [`LONGEST`].
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || is_so().then_some(()));
}
