//! Whether this program itself gets to run: a thread sleeps for moments, and counts how late it wakes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const SLEEP: Duration = Duration::from_millis(10);
/// So late that other programs' turns do not explain it.
const PAUSE: Duration = Duration::from_millis(40);
/// An examination that lasts asks more often than that.
const WATCHED: Duration = Duration::from_secs(30);

static ASKED: Mutex<Option<Instant>> = Mutex::new(None);
static MICROSECONDS: AtomicU64 = AtomicU64::new(0);

/// For how many microseconds this program was stopped since this was first asked. It is watched until some
/// time after the last question.
pub fn counted() -> (String, u64) {
    if ASKED.lock().replace(Instant::now()).is_none() {
        // Without it there are no pauses to be seen.
        let _ = thread::Builder::new().name("pauses".to_owned()).spawn(watch);
    }
    ("Program.PausedUsec".to_owned(), MICROSECONDS.load(Ordering::Relaxed))
}

fn watch() {
    loop {
        let began = Instant::now();
        thread::sleep(SLEEP);
        let late = began.elapsed().saturating_sub(SLEEP);
        if late >= PAUSE {
            MICROSECONDS.fetch_add(late.as_micros() as u64, Ordering::Relaxed);
        }
        let mut asked = ASKED.lock();
        if asked.is_none_or(|asked| asked.elapsed() > WATCHED) {
            *asked = None;
            return;
        }
    }
}
