//! Asks the daemon: two calls on one connection, for all VMs together.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use vmlane_api::{ClientError, Stats, Status, call};

use super::families::Scrape;
use super::seen::Seen;
use crate::cmd::control::Where;

/// The text of a scrape is served again for so long: however often the exporter is asked, it does not ask the
/// daemon more often.
const FRESH: Duration = Duration::from_secs(1);
/// How long the daemon may take for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

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
        let mut client = self.place.connect()?.with_timeout(TIMEOUT);
        Ok((client.call(&call::Status {})?, client.call(&call::Stats {})?))
    }
}
