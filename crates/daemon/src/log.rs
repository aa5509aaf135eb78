//! The log: lines on stderr, and a limit on what guests can make the daemon write.
//!
//! Threads that serve guests (sessions, acceptors, workers) get a number of lines per window each,
//! whatever code runs on them; the rest is counted and told in one line by the main thread. A guest
//! that provokes warnings can so neither fill a disk nor hide what happens to another.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Names of threads on which guests cause the lines.
const GUEST_THREADS: [&str; 5] = ["vfu-", "vhu-", "acc-", "worker-", "switch"];
/// Lines a thread may write in a window.
const LINES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// An invalid filter, or a second log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("{key} = {filter:?}: {why}; write for example \"info\" or \"warn,vmlane_device=debug\"")]
    Filter { key: &'static str, filter: String, why: String },
    #[error("the log was set up already")]
    Twice,
}

/// Which filter is in force: the command line's, else the environment's, else the configuration's.
pub fn choose(argument: Option<String>, configured: Option<String>) -> (&'static str, String) {
    if let Some(filter) = argument {
        return ("--log", filter);
    }
    if let Ok(filter) = std::env::var("VMLANE_LOG") {
        return ("VMLANE_LOG", filter);
    }
    ("daemon: log", configured.unwrap_or_else(|| "info".into()))
}

/// Starts the log of this process; panics are logged, too.
pub fn init(key: &'static str, filter: String) -> Result<Throttle, LogError> {
    let parsed = EnvFilter::builder().parse(&filter);
    let parsed = parsed.map_err(|error| LogError::Filter { key, filter, why: error.to_string() })?;
    let throttle = Throttle::default();
    let _ = THROTTLE.set(throttle.clone());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let log = tracing_subscriber::registry().with(parsed).with(lines).with(throttle.clone());
    log.try_init().map_err(|_| LogError::Twice)?;
    // Contained panics would otherwise write to stderr past the limit.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(throttle)
}

/// Of this process.
static THROTTLE: OnceLock<Throttle> = OnceLock::new();

/// Lines that `thread` has written in its window, that it may write, and that it had held back ever.
pub fn lines(thread: &str) -> (u64, u64, u64) {
    let (used, held) = THROTTLE.get().map_or((0, 0), |throttle| throttle.look(thread));
    (used, LINES.into(), held)
}

/// The limit, shared by the log and the thread that reports what was suppressed.
#[derive(Clone, Debug, Default)]
pub struct Throttle {
    windows: Arc<Mutex<HashMap<String, Window>>>,
    /// By thread: lines held back in windows that are over.
    held_back: Arc<Mutex<HashMap<String, u64>>>,
}

#[derive(Debug)]
struct Window {
    begun: Instant,
    lines: u32,
    suppressed: u64,
}

impl Throttle {
    /// May this thread write a line now?
    fn allow(&self, thread: &str, now: Instant) -> bool {
        if !GUEST_THREADS.iter().any(|prefix| thread.starts_with(prefix)) {
            return true;
        }
        let mut windows = self.windows.lock();
        if !windows.contains_key(thread) {
            windows.insert(thread.to_owned(), Window { begun: now, lines: 0, suppressed: 0 });
        }
        let Some(window) = windows.get_mut(thread) else { return true };
        // An expired window that held lines back is ended by `suppressed`, so that it gets told.
        if window.suppressed == 0 && now.duration_since(window.begun) >= WINDOW {
            *window = Window { begun: now, lines: 0, suppressed: 0 };
        }
        if window.lines < LINES {
            window.lines += 1;
            return true;
        }
        window.suppressed += 1;
        false
    }

    /// Lines written in the present window, and held back ever.
    fn look(&self, thread: &str) -> (u64, u64) {
        let (used, held) =
            self.windows.lock().get(thread).map_or((0, 0), |window| (window.lines.into(), window.suppressed));
        (used, held + self.held_back.lock().get(thread).copied().unwrap_or(0))
    }

    /// Ends windows that are over: threads with the number of lines each of them had held back.
    pub fn suppressed(&self, now: Instant) -> Vec<(String, u64)> {
        let mut told = Vec::new();
        self.windows.lock().retain(|thread, window| {
            let over = now.duration_since(window.begun) >= WINDOW;
            if over && window.suppressed > 0 {
                *self.held_back.lock().entry(thread.clone()).or_default() += window.suppressed;
                told.push((thread.clone(), window.suppressed));
            }
            !over
        });
        told
    }

    /// Writes one line for each thread that had lines held back.
    pub fn tell(&self) {
        for (thread, lines) in self.suppressed(Instant::now()) {
            let seconds = WINDOW.as_secs();
            tracing::warn!("suppressed {lines} log lines of thread {thread} within {seconds} s");
        }
    }
}

impl<S: Subscriber> Layer<S> for Throttle {
    fn event_enabled(&self, _event: &Event<'_>, _context: Context<'_, S>) -> bool {
        self.allow(std::thread::current().name().unwrap_or_default(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_gets_so_many_lines_and_the_rest_is_counted() {
        let throttle = Throttle::default();
        let begun = Instant::now();
        let written = (0..100).filter(|_| throttle.allow("vfu-web", begun)).count();
        assert_eq!(written, LINES as usize);
        assert!(throttle.allow("vfu-db", begun), "another VM is not affected");
        assert!((0..100).all(|_| throttle.allow("main", begun)), "the daemon's own lines are not limited");

        assert_eq!(throttle.suppressed(begun), []);
        let later = begun + WINDOW;
        assert!(!throttle.allow("vfu-web", later), "still counted until told");
        assert_eq!(throttle.suppressed(later), [("vfu-web".to_owned(), 81)]);
        assert!(throttle.allow("vfu-web", later));
    }

    #[test]
    fn a_quiet_guest_starts_afresh() {
        let throttle = Throttle::default();
        let begun = Instant::now();
        assert!((0..LINES).all(|_| throttle.allow("worker-0", begun)));
        assert!((0..LINES).all(|_| throttle.allow("worker-0", begun + WINDOW)));
        assert_eq!(throttle.suppressed(begun + WINDOW + WINDOW), []);
    }

    #[test]
    fn the_layer_holds_lines_back_on_guest_threads_only() {
        #[derive(Clone, Default)]
        struct Seen(Arc<Mutex<u32>>);
        impl<S: Subscriber> Layer<S> for Seen {
            fn on_event(&self, _event: &Event<'_>, _context: Context<'_, S>) {
                *self.0.lock() += 1;
            }
        }
        let seen = Seen::default();
        let subscriber = tracing_subscriber::registry().with(seen.clone()).with(Throttle::default());
        let dispatch = tracing::Dispatch::new(subscriber);
        for (name, lines) in [("vfu-a", LINES), ("control", 50)] {
            *seen.0.lock() = 0;
            let dispatch = dispatch.clone();
            let talk = move || {
                tracing::dispatcher::with_default(&dispatch, || {
                    (0..50).for_each(|_| tracing::error!("again"))
                });
            };
            std::thread::Builder::new().name(name.into()).spawn(talk).unwrap().join().unwrap();
            assert_eq!(*seen.0.lock(), lines, "{name}");
        }
    }
}
