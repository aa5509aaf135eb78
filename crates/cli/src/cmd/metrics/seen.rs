//! What the exporter itself counts.

use std::io::Write as _;

use vmlane_api::{ClientError, Stats, Status};

/// What the exporter itself has counted since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Of the daemon that answered last.
    pid: Option<u32>,
    /// The last scrape failed, and that was written to stderr.
    reported: bool,
    pub scrapes: u64,
    pub failures: u64,
    pub restarts: u64,
}

/// To stderr, if it is still open.
fn report(what: &str) {
    let _ = writeln!(std::io::stderr(), "vmlane: {what}");
}

impl Seen {
    /// Counts a scrape. Writes to stderr when the daemon stops answering and when it answers again, not each
    /// time.
    pub fn note(&mut self, answers: &Result<(Status, Stats), ClientError>) {
        self.scrapes += 1;
        match answers {
            Ok((status, _)) => {
                if self.pid.is_some_and(|pid| pid != status.pid) {
                    self.restarts += 1;
                }
                self.pid = Some(status.pid);
                if std::mem::take(&mut self.reported) {
                    report(&format!("the daemon answers (pid {})", status.pid));
                }
            }
            Err(error) => {
                self.failures += 1;
                if !std::mem::replace(&mut self.reported, true) {
                    report(&error.to_string());
                }
            }
        }
    }
}
