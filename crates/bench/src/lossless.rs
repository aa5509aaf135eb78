//! The highest rate that nothing is lost at (the throughput of RFC 2544, section 26.1), by binary search.
//!
//! A first trial without a pace finds what the sender can send; the search goes on between nothing and that. Each
//! trial sends at one rate and passes if no more is lost than allowed.

use serde::Serialize;

use crate::address::Target;
use crate::client::{Hooks, Options, run};
use crate::error::Error;
use crate::report::Report;
use crate::spec::Spec;

/// Raised when a key changes its meaning or goes away.
pub const VERSION: u32 = 1;
/// More trials than this find nothing better.
const MOST_TRIALS: usize = 40;
/// A rate below this is not searched for.
const LEAST_BPS: f64 = 1e4;

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Percent of the datagrams that may be lost.
    pub loss_percent: f64,
    /// The search ends when the rate is known so well, in percent of it.
    pub resolution_percent: f64,
    /// The highest rate to try, of all sessions; none: what a first trial without a pace shows.
    pub highest_bps: Option<u64>,
}

/// One trial, all sessions together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// None: without a pace.
    pub asked_bps: Option<f64>,
    pub sent_bps: f64,
    pub received_bps: f64,
    pub packets_per_second: f64,
    pub lost_percent: f64,
    /// The sender kept nine tenths of what was asked for: else the trial proves nothing, and does not pass.
    pub pace_kept: bool,
    pub passed: bool,
}

/// What was found. Its keys are a contract.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    pub version: u32,
    pub to: String,
    pub message_bytes: u64,
    pub sessions: u32,
    pub seconds: f64,
    pub allowed_loss_percent: f64,
    pub resolution_percent: f64,
    /// The fastest trial that passed; none: even the slowest lost more than allowed.
    pub best: Option<Trial>,
    pub trials: Vec<Trial>,
    pub notes: Vec<String>,
}

impl Wanted {
    fn check(&self, to: &Target) -> Result<(), Error> {
        let usage = |text: String| Err(Error::Usage(text));
        if !to.datagrams {
            return usage(format!("--to {to}: only datagrams are lost: use udp:HOST or vsock-dgram:CID"));
        }
        if !(0.0..100.0).contains(&self.loss_percent) {
            return usage(format!("--loss {}: use 0 to 99 percent", self.loss_percent));
        }
        if !(0.1..=50.0).contains(&self.resolution_percent) {
            return usage(format!("--resolution {}: use 0.1 to 50 percent", self.resolution_percent));
        }
        Ok(())
    }
}

fn judged(report: &Report, asked_bps: Option<f64>, wanted: &Wanted) -> Trial {
    let lost_percent = report.datagrams.map_or(0.0, |loss| loss.lost_percent);
    let sent = report.sender_throughput_bps.unwrap_or(0.0);
    let pace_kept = asked_bps.is_none_or(|asked| sent >= 0.9 * asked);
    Trial {
        asked_bps,
        sent_bps: sent,
        received_bps: report.throughput_bps.unwrap_or(0.0),
        packets_per_second: report.packets_per_second.unwrap_or(0.0),
        lost_percent,
        pace_kept,
        passed: lost_percent <= wanted.loss_percent && pace_kept,
    }
}

/// Bisects between what passes and what does not; `trial` makes one, at a rate.
///
/// # Errors
/// Those of the trials.
pub fn bisect(
    wanted: &Wanted,
    mut trial: impl FnMut(Option<f64>) -> Result<Trial, Error>,
) -> Result<Vec<Trial>, Error> {
    let mut trials = Vec::new();
    let first = trial(wanted.highest_bps.map(|bps| bps as f64))?;
    trials.push(first);
    if first.passed {
        return Ok(trials);
    }
    let highest = wanted.highest_bps.map_or(first.sent_bps, |bps| bps as f64);
    let (mut low, mut high) = (0.0, highest.max(LEAST_BPS));
    while trials.len() < MOST_TRIALS
        && high - low > wanted.resolution_percent / 100.0 * high
        && high > LEAST_BPS
    {
        let middle = f64::midpoint(low, high);
        let next = trial(Some(middle))?;
        trials.push(next);
        if next.passed {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(trials)
}

/// Searches; `told` hears of every trial as it ends.
///
/// # Errors
/// What is wanted cannot be, or a trial failed.
pub fn search(
    to: &Target,
    spec: &Spec,
    wanted: &Wanted,
    options: &Options,
    told: &mut dyn FnMut(&Trial),
) -> Result<Found, Error> {
    wanted.check(to)?;
    let sessions = f64::from(spec.sessions.max(1));
    let mut notes = Vec::new();
    let trials = bisect(wanted, |asked| {
        let rate_bps = asked.map(|bps| ((bps / sessions) as u64).max(1));
        let report = run(to, &Spec { rate_bps, ..spec.clone() }, options, &mut Hooks::default())?;
        for note in &report.notes {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        let trial = judged(&report, asked, wanted);
        told(&trial);
        Ok(trial)
    })?;
    let passed = trials.iter().filter(|trial| trial.passed);
    let best = passed.max_by(|a, b| a.received_bps.total_cmp(&b.received_bps)).copied();
    if spec.seconds < 60.0 {
        notes.push(format!("trials of {} s; RFC 2544 asks for 60 (-l 60)", spec.seconds));
    }
    Ok(Found {
        version: VERSION,
        to: to.to_string(),
        message_bytes: spec.message_bytes,
        sessions: spec.sessions,
        seconds: spec.seconds,
        allowed_loss_percent: wanted.loss_percent,
        resolution_percent: wanted.resolution_percent,
        best,
        trials,
        notes,
    })
}

impl Trial {
    /// One line for people.
    pub fn text(&self) -> String {
        let asked = self.asked_bps.map_or("no pace".to_owned(), |bps| format!("{:.1} Mbit/s", bps / 1e6));
        format!(
            "  {asked:>16}: {:.1} Mbit/s and {:.0} packets/s arrived, {:.3} % lost: {}",
            self.received_bps / 1e6,
            self.packets_per_second,
            self.lost_percent,
            match (self.passed, self.pace_kept) {
                (true, _) => "passed",
                (_, true) => "too much",
                _ => "failed, this end sends no faster",
            }
        )
    }
}

impl Found {
    /// For people, behind the trials' lines.
    pub fn text(&self) -> String {
        let found = match &self.best {
            Some(best) => format!(
                "at most {} % lost: {:.1} Mbit/s, {:.0} packets/s of {} bytes\n",
                self.allowed_loss_percent,
                best.received_bps / 1e6,
                best.packets_per_second,
                self.message_bytes
            ),
            None => format!("no rate with at most {} % lost\n", self.allowed_loss_percent),
        };
        self.notes.iter().fold(found, |text, note| text + "  note            " + note + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path that carries so much and loses the rest.
    fn path(carries: f64) -> impl FnMut(Option<f64>) -> Result<Trial, Error> {
        move |asked| {
            let sent = asked.unwrap_or(10e9);
            let received = sent.min(carries);
            let lost_percent = 100.0 * (1.0 - received / sent);
            Ok(Trial {
                asked_bps: asked,
                sent_bps: sent,
                received_bps: received,
                packets_per_second: received / 8e3,
                lost_percent,
                pace_kept: true,
                passed: lost_percent <= 0.0,
            })
        }
    }

    #[test]
    fn the_search_finds_what_a_path_carries() {
        let wanted = Wanted { loss_percent: 0.0, resolution_percent: 1.0, highest_bps: None };
        for carries in [1e5, 3.3e6, 1e8, 8.7654e9] {
            let trials = bisect(&wanted, path(carries)).unwrap();
            let best = trials.iter().filter(|t| t.passed).map(|t| t.received_bps).fold(0.0, f64::max);
            assert!(best <= carries && best >= 0.985 * carries, "{best} of {carries}: {trials:?}");
            assert!(trials.len() < 30, "{trials:?}");
        }
    }

    #[test]
    fn a_path_that_loses_nothing_needs_one_trial_and_one_that_loses_all_ends() {
        let wanted = Wanted { loss_percent: 0.0, resolution_percent: 1.0, highest_bps: Some(1_000_000) };
        assert_eq!(bisect(&wanted, path(1e9)).unwrap().len(), 1);
        let trials = bisect(&wanted, path(0.0)).unwrap();
        assert!(trials.len() <= MOST_TRIALS && trials.iter().all(|trial| !trial.passed));
    }
}
