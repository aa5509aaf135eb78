//! Asks the daemon: two calls on one connection, for all VMs together.

use std::io::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use vmlane_api::{ClientError, Stats, Status};

use super::families::Scrape;
use crate::cmd::control::Where;

/// The text of a scrape is served again for so long: however often the exporter is asked, it does not ask the daemon more often.
const FRESH: Duration = Duration::from_secs(1);
/// How long the daemon may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known from one scrape to the next.
pub struct Exporter {
    place: Where,
    max_vms: usize,
    /// Held during a scrape: there is one at a time.
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    text: Option<(Instant, String)>,
    seen: Seen,
}

/// What the exporter itself has counted since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Of the daemon that answered last.
    pid: Option<u32>,
    /// The last scrape failed, and that was written to stderr.
    told: bool,
    pub scrapes: u64,
    pub failures: u64,
    pub restarts: u64,
}

impl Exporter {
    /// Shows at most `max_vms` VMs.
    pub fn new(place: Where, max_vms: usize) -> Exporter {
        Exporter { place, max_vms, last: Mutex::default() }
    }

    /// OpenMetrics, not older than a second.
    pub fn text(&self) -> String {
        // A scrape that panicked left the text before it, or none.
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((made, text)) = &last.text
            && made.elapsed() < FRESH
        {
            return text.clone();
        }
        let (text, _) = self.scrape_with(&mut last.seen);
        last.text = Some((Instant::now(), text.clone()));
        text
    }

    /// OpenMetrics, and whether a daemon answered.
    pub fn scrape(&self) -> (String, bool) {
        self.scrape_with(&mut Seen::default())
    }

    fn scrape_with(&self, seen: &mut Seen) -> (String, bool) {
        let began = Instant::now();
        let answers = self.ask();
        seen.note(&answers);
        let up = answers.is_ok();
        let scrape = Scrape::new(answers.ok(), self.max_vms, *seen, began);
        let mut registry = Registry::with_prefix("vmlane");
        registry.register_collector(Box::new(scrape));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a String takes everything");
        (text, up)
    }

    fn ask(&self) -> Result<(Status, Stats), ClientError> {
        let mut client = self.place.connect()?.with_timeout(PATIENCE);
        Ok((client.status()?, client.stats()?))
    }
}

/// To stderr, if it is still open.
fn tell(what: &str) {
    let _ = writeln!(std::io::stderr(), "vmlane: {what}");
}

impl Seen {
    /// Counts a scrape. Writes to stderr when the daemon stops answering and when it answers again, not each time.
    fn note(&mut self, answers: &Result<(Status, Stats), ClientError>) {
        self.scrapes += 1;
        match answers {
            Ok((status, _)) => {
                if self.pid.is_some_and(|pid| pid != status.pid) {
                    self.restarts += 1;
                }
                self.pid = Some(status.pid);
                if std::mem::take(&mut self.told) {
                    tell(&format!("the daemon answers (pid {})", status.pid));
                }
            }
            Err(error) => {
                self.failures += 1;
                if !std::mem::replace(&mut self.told, true) {
                    tell(&error.to_string());
                }
            }
        }
    }
}
