//! The log: lines on stderr, as text or as JSON, with priorities where the journal reads them, and a limit on
//! what guests can make the daemon write.
//!
//! Threads that serve guests (sessions, acceptors, workers) get a number of lines per window each, whatever
//! code runs on them; on a worker, each port, stream or guest that it serves gets as many. All other threads,
//! of the daemon and of its helpers, get many more, so that no process fills a disk, no matter who causes its
//! lines. The rest is counted and reported in one line. A guest that provokes warnings can so neither fill a
//! disk nor hide what happens to another.

mod journal;

use std::collections::{BTreeMap, HashMap};
use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use vmlane_config::LogFormat;

/// Names of threads on which guests, or programs of the host, cause the lines.
const GUEST_THREADS: [&str; 7] = ["vfu-", "vhu-", "acc-", "worker-", "switch", "vsock", "host"];
/// Lines that one source may write in a window.
const LINES: u32 = 20;
/// Lines that all other threads together may write in a window: of the daemon, which may start with thousands
/// of VMs, and of a helper.
const OWN_LINES: u32 = 20_000;
const HELPERS_LINES: u32 = 500;
/// What these threads are called.
const OTHERS: &str = "other";
/// Sources that are distinguished at once; what is beyond shares the thread's own.
const SOURCES: usize = 4096;
const WINDOW: Duration = Duration::from_secs(10);

use self::journal::Prioritized;
pub use self::journal::print_error;

/// An invalid filter, or a second log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("{key} = {filter:?}: {why}; write for example \"info\" or \"warn,vmlane_device=debug\"")]
    Filter { key: &'static str, filter: String, why: String },
    #[error("the log was set up already")]
    Twice,
    #[error("a thread for the log: {0}")]
    Thread(std::io::Error),
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
pub fn init(key: &'static str, filter: String, format: LogFormat) -> Result<Throttle, LogError> {
    init_with(key, filter, format, Throttle::new(OWN_LINES))
}

fn init_with(
    key: &'static str,
    filter: String,
    format: LogFormat,
    throttle: Throttle,
) -> Result<Throttle, LogError> {
    let parsed = EnvFilter::builder().parse(&filter);
    let parsed = parsed.map_err(|error| LogError::Filter { key, filter, why: error.to_string() })?;
    let _ = THROTTLE.set(throttle.clone());
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match (format, journal::is_stderr()) {
        (LogFormat::Text, false) => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        (LogFormat::Text, true) => lines
            .with_ansi(false)
            .event_format(Prioritized(fmt::format().without_time().with_ansi(false)))
            .boxed(),
        (LogFormat::Json, false) => lines.json().with_span_list(false).boxed(),
        (LogFormat::Json, true) => {
            let format = fmt::format().json().with_span_list(false);
            lines.json().event_format(Prioritized(format)).boxed()
        }
    };
    let log = tracing_subscriber::registry().with(parsed).with(lines).with(throttle.clone());
    log.try_init().map_err(|_| LogError::Twice)?;
    // Contained panics would otherwise write to stderr past the limit.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(throttle)
}

/// Starts the log of a helper: a thread of its own reports what was suppressed.
pub fn init_helper(key: &'static str, filter: String) -> Result<(), LogError> {
    let throttle = init_with(key, filter, LogFormat::Text, Throttle::new(HELPERS_LINES))?;
    let reports = move || {
        loop {
            std::thread::sleep(WINDOW);
            throttle.report();
        }
    };
    std::thread::Builder::new().name("log".into()).spawn(reports).map_err(LogError::Thread)?;
    Ok(())
}

/// Of this process.
static THROTTLE: OnceLock<Throttle> = OnceLock::new();

/// Lines that `thread` has written in its window, that it may write, and that it had held back ever.
pub fn lines(thread: &str) -> (u64, u64, u64) {
    let (used, held) = THROTTLE.get().map_or((0, 0), |throttle| throttle.lines(thread));
    (used, LINES.into(), held)
}

/// Whose lines are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Source {
    thread: String,
    /// On a worker, and where host sockets are served: the guest that the line names, or the port or stream
    /// whose turn it is.
    served: Option<u64>,
}

/// The limit, shared by the log and the thread that reports what was suppressed.
#[derive(Clone, Debug)]
pub struct Throttle {
    /// Lines in a window of threads that serve no guest.
    own: u32,
    windows: Arc<Mutex<HashMap<Source, Window>>>,
    /// By thread: lines held back in windows that are over.
    held_back: Arc<Mutex<HashMap<String, u64>>>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    begun: Instant,
    lines: u32,
    suppressed: u64,
}

impl Throttle {
    fn new(own: u32) -> Throttle {
        Throttle { own, windows: Arc::default(), held_back: Arc::default() }
    }

    /// May this thread write a line about `served` now?
    fn allow(&self, thread: &str, served: Option<u64>, now: Instant) -> bool {
        let serves_guests = GUEST_THREADS.iter().any(|prefix| thread.starts_with(prefix));
        let (mut source, most) = match serves_guests {
            true => (Source { thread: thread.to_owned(), served }, LINES),
            false => (Source { thread: OTHERS.into(), served: None }, self.own),
        };
        let mut windows = self.windows.lock();
        if windows.len() >= SOURCES && !windows.contains_key(&source) {
            source.served = None;
        }
        let fresh = Window { begun: now, lines: 0, suppressed: 0 };
        let window = windows.entry(source).or_insert(fresh);
        // An expired window that held lines back is ended by `suppressed`, so that it is reported.
        if window.suppressed == 0 && now.duration_since(window.begun) >= WINDOW {
            *window = fresh;
        }
        if window.lines < most {
            window.lines += 1;
            return true;
        }
        window.suppressed += 1;
        false
    }

    /// Lines written in the present window, and held back ever.
    fn lines(&self, thread: &str) -> (u64, u64) {
        let windows = self.windows.lock();
        let own = windows.iter().filter(|(source, _)| source.thread == thread);
        let (used, held) = own.fold((0, 0), |(used, held), (_, window)| {
            (u64::max(used, window.lines.into()), held + window.suppressed)
        });
        (used, held + self.held_back.lock().get(thread).copied().unwrap_or(0))
    }

    /// Ends windows that are over: threads with the number of lines each of them had held back.
    pub fn suppressed(&self, now: Instant) -> Vec<(String, u64)> {
        let mut ended: BTreeMap<String, u64> = BTreeMap::new();
        self.windows.lock().retain(|source, window| {
            let over = now.duration_since(window.begun) >= WINDOW;
            if over && window.suppressed > 0 {
                *ended.entry(source.thread.clone()).or_default() += window.suppressed;
            }
            !over
        });
        let mut held_back = self.held_back.lock();
        for (thread, lines) in &ended {
            *held_back.entry(thread.clone()).or_default() += lines;
        }
        ended.into_iter().collect()
    }

    /// Writes one line for each thread that had lines held back.
    pub fn report(&self) {
        for (thread, lines) in self.suppressed(Instant::now()) {
            let seconds = WINDOW.as_secs();
            tracing::warn!("suppressed {lines} log lines of thread {thread} within {seconds} s");
        }
    }
}

impl<S: Subscriber> Layer<S> for Throttle {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or_default();
        let turn = vmlane_worker::serving().map(u64::from);
        // The thread of host sockets is no worker, and serves VMs with hybrid sockets, too.
        let served = if turn.is_some() || thread == "host" {
            let mut guest = Guest(None);
            event.record(&mut guest);
            guest.0.or(turn)
        } else {
            None
        };
        self.allow(thread, served, Instant::now())
    }
}

/// The guest that a line names by its CID.
struct Guest(Option<u64>);

impl Visit for Guest {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "cid" {
            self.0 = Some(value);
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_gets_so_many_lines_and_the_rest_is_counted() {
        let throttle = Throttle::new(OWN_LINES);
        let begun = Instant::now();
        let written = (0..100).filter(|_| throttle.allow("vfu-web", None, begun)).count();
        assert_eq!(written, LINES as usize);
        assert!(throttle.allow("vfu-db", None, begun), "another VM is not affected");
        assert!(
            (0..100).all(|_| throttle.allow("main", None, begun)),
            "the daemon's own lines have a limit of their own"
        );

        assert_eq!(throttle.suppressed(begun), []);
        let later = begun + WINDOW;
        assert!(!throttle.allow("vfu-web", None, later), "still counted until reported");
        assert_eq!(throttle.suppressed(later), [("vfu-web".to_owned(), 81)]);
        assert!(throttle.allow("vfu-web", None, later));
    }

    #[test]
    fn no_thread_of_any_process_writes_without_end() {
        for own in [OWN_LINES, HELPERS_LINES] {
            let throttle = Throttle::new(own);
            let begun = Instant::now();
            let threads = ["main", "control", "", "signals"];
            let written = (0..100_000).filter(|line| throttle.allow(threads[line % 4], None, begun)).count();
            assert_eq!(written, own as usize);
            assert!(throttle.allow("vfu-web", None, begun), "guests' lines are counted apart");
            assert_eq!(throttle.suppressed(begun + WINDOW), [(OTHERS.into(), 100_000 - u64::from(own))]);
            assert!(throttle.allow("main", None, begun + WINDOW));
        }
    }

    #[test]
    fn a_quiet_guest_starts_afresh() {
        let throttle = Throttle::new(OWN_LINES);
        let begun = Instant::now();
        assert!((0..LINES).all(|_| throttle.allow("worker-0", None, begun)));
        assert!((0..LINES).all(|_| throttle.allow("worker-0", None, begun + WINDOW)));
        assert_eq!(throttle.suppressed(begun + WINDOW + WINDOW), []);
    }

    #[test]
    fn what_one_port_of_a_worker_causes_takes_no_line_from_another() {
        let throttle = Throttle::new(OWN_LINES);
        let begun = Instant::now();
        for thread in ["switch", "worker-0", "vsock"] {
            let written = (0..100).filter(|_| throttle.allow(thread, Some(3), begun)).count();
            assert_eq!(written, LINES as usize, "{thread}");
            assert!(throttle.allow(thread, Some(4), begun), "{thread}");
        }
        let written = (0..100).filter(|_| throttle.allow("host", None, begun)).count();
        assert_eq!(written, LINES as usize);
        assert!(throttle.suppressed(begun + WINDOW).contains(&("switch".into(), 80)));
    }

    #[test]
    fn sources_without_end_take_no_memory_without_end() {
        let throttle = Throttle::new(OWN_LINES);
        let begun = Instant::now();
        let ports = SOURCES as u64 + 10_000;
        let written = (0..ports).filter(|&port| throttle.allow("switch", Some(port), begun)).count();
        assert_eq!(written, SOURCES + LINES as usize, "the last ones share one");
        assert_eq!(throttle.windows.lock().len(), SOURCES + 1);
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
        let subscriber = tracing_subscriber::registry().with(seen.clone()).with(Throttle::new(OWN_LINES));
        let dispatch = tracing::Dispatch::new(subscriber);
        for (name, lines) in [("vfu-a", LINES), ("control", 50)] {
            *seen.0.lock() = 0;
            let dispatch = dispatch.clone();
            let talk = move || {
                vmlane_testkit::with_subscriber(dispatch, || (0..50).for_each(|_| tracing::error!("again")));
            };
            std::thread::Builder::new().name(name.into()).spawn(talk).unwrap().join().unwrap();
            assert_eq!(*seen.0.lock(), lines, "{name}");
        }
    }
}
