//! A proof: applies the remedy of each finding for as long as it measures, and reports what that does.
//!
//! Only run-time settings of the machine that the doctor runs on are changed ([`setting`]): never a file that
//! lasts, the VMM or the other machine. A [`guardian`] makes the changes and takes them back, and keeps a
//! [`record`] of them on disk. The remedies are tried one at a time, and in the end all that helped together,
//! because one fault may hide another.
//!
//! Each remedy is measured in rounds: without it and with it, every second round the other way round, so that
//! what drifts on its own meets both alike. A remedy helps if nearly all measurements with it are better than
//! those without it.

mod gauge;
pub mod guardian;
mod reading;
pub mod record;
mod rounds;
pub mod setting;
mod show;
pub mod undo;

use serde::Serialize;
use vmlane_bench::{Address, Options};

pub use gauge::Gauge;
pub use reading::{Reading, Verdict};
pub use show::{json, text};

use crate::change::Change;
use crate::evidence::PathEnd;
use crate::report::Diagnosis;
use guardian::Guardian;
use rounds::Measuring;
use undo::{Changes, Undone};

/// A finding whose remedy can be tried here.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its place in the report, from 1.
    pub number: usize,
    pub check: &'static str,
    pub what: String,
    /// Tried one after another, until one helps.
    pub remedies: Vec<Remedy>,
}

/// What is tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    pub what: String,
    pub changes: Vec<Change>,
}

/// A remedy that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The finding's place in the report; none for all that helped together.
    pub number: Option<usize>,
    pub check: Option<&'static str>,
    pub what: String,
    pub remedy: Remedy,
    pub readings: Vec<Reading>,
    pub verdict: Verdict,
    /// Why it was not tried.
    pub error: Option<String>,
}

/// Everything that was tried, and whether all is as before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proven {
    pub trials: Vec<Trial>,
    /// Findings with no remedy that could be tried here.
    pub untried: Vec<usize>,
    /// Settings that somebody else has changed meanwhile.
    pub left: Vec<String>,
    /// Settings that could not be put back.
    pub failed: Vec<String>,
    /// Why nothing could be tried.
    pub error: Option<String>,
}

/// The findings whose remedies are settings of this machine.
pub fn candidates(diagnosis: &Diagnosis) -> Vec<Candidate> {
    let mut list: Vec<Candidate> = Vec::new();
    for (number, finding) in (1..).zip(&diagnosis.findings) {
        let here = |remedy: &&crate::remedy::Remedy| {
            !remedy.changes.is_empty() && remedy.end.or(finding.end) == Some(PathEnd::Near)
        };
        let remedies: Vec<Remedy> = finding
            .remedies
            .iter()
            .filter(here)
            .map(|remedy| Remedy { what: remedy.what.clone(), changes: remedy.changes.clone() })
            // One setting may hold down both directions, and then has two findings.
            .filter(|remedy| !list.iter().any(|other| other.remedies.contains(remedy)))
            .collect();
        if !remedies.is_empty() {
            list.push(Candidate { number, check: finding.check, what: finding.what.clone(), remedies });
        }
    }
    list
}

/// Tries the remedies of the candidates, one after another.
pub fn prove(
    to: &Address,
    options: &Options,
    diagnosis: &Diagnosis,
    candidates: &[Candidate],
    is_quick: bool,
    progress: &dyn Fn(&str),
) -> Proven {
    let guardian = match Guardian::start() {
        Ok(guardian) => guardian,
        Err(error) => return Proven { error: Some(error), ..Proven::default() },
    };
    progress(&format!("process {} takes the changes back, whatever happens to this one", guardian.pid()));
    let measuring = Measuring { to, options, evidence: &diagnosis.evidence, is_quick };
    let mut proof = Proof { guardian: Some(guardian), measuring, proven: Proven::default(), progress };
    let listed = |number: usize| candidates.iter().any(|candidate| candidate.number == number);
    proof.proven.untried = (1..=diagnosis.findings.len()).filter(|number| !listed(*number)).collect();
    proof.each(candidates);
    proof.together();
    proof.end();
    proof.proven
}

struct Proof<'a> {
    /// None once it is gone.
    guardian: Option<Guardian>,
    measuring: Measuring<'a>,
    proven: Proven,
    progress: &'a dyn Fn(&str),
}

impl Proof<'_> {
    fn each(&mut self, candidates: &[Candidate]) {
        for candidate in candidates {
            for remedy in &candidate.remedies {
                if self.guardian.is_none() {
                    return;
                }
                (self.progress)(&format!("trying: {}", remedy.what));
                let gauges = gauge::all_of(&remedy.changes);
                let trial = self.attempt(remedy.clone(), &gauges);
                let trial = Trial {
                    number: Some(candidate.number),
                    check: Some(candidate.check),
                    what: candidate.what.clone(),
                    ..trial
                };
                let helps = trial.verdict == Verdict::Helps;
                self.proven.trials.push(trial);
                if helps {
                    break;
                }
            }
        }
    }

    /// All that did not make it worse at once, where there are several: one fault may have hidden another.
    fn together(&mut self) {
        let fitting = |trial: &&Trial| matches!(trial.verdict, Verdict::Helps | Verdict::NoDifference);
        let mut changes: Vec<Change> = Vec::new();
        for change in self.proven.trials.iter().filter(fitting).flat_map(|trial| &trial.remedy.changes) {
            // Of two remedies for one setting, the first counts.
            let known = |other: &Change| {
                setting::Setting::of(other) == setting::Setting::of(change) && !other.joins(change)
            };
            if !changes.iter().any(known) {
                changes.push(change.clone());
            }
        }
        if changes.len() < 2 || self.guardian.is_none() {
            return;
        }
        (self.progress)("trying: all of them together");
        let gauges = gauge::all_of(&changes);
        let what = format!("All {} changes together.", changes.len());
        let remedy = Remedy { what: "all of them together".to_owned(), changes };
        let trial = self.attempt(remedy, &gauges);
        self.proven.trials.push(Trial { what, ..trial });
    }

    fn attempt(&mut self, remedy: Remedy, gauges: &[Gauge]) -> Trial {
        let mut trial = Trial {
            number: None,
            check: None,
            what: String::new(),
            remedy,
            readings: Vec::new(),
            verdict: Verdict::NotTried,
            error: None,
        };
        match self.rounds(&trial.remedy.changes, gauges) {
            Ok(readings) => {
                trial.verdict = reading::overall(&readings);
                trial.readings = readings;
            }
            Err(error) => trial.error = Some(error),
        }
        trial
    }

    fn rounds(&mut self, changes: &[Change], gauges: &[Gauge]) -> Result<Vec<Reading>, String> {
        let mut readings: Vec<Reading> = gauges.iter().map(|gauge| Reading::new(*gauge)).collect();
        let few = self.measuring.rounds();
        for round in 0..2 * few {
            if round == few {
                readings.iter_mut().for_each(Reading::judge);
                // As many again where the first ones show nothing.
                if reading::overall(&readings) != Verdict::NoDifference {
                    break;
                }
            }
            // Every second round begins with what the one before has ended with.
            let first = round % 2 != 0;
            for with in [first, !first] {
                if with != first {
                    if with {
                        self.order(|guardian| guardian.apply(changes))?
                    } else {
                        self.undo()?
                    }
                    self.measuring.wait_for_answer();
                }
                for reading in &mut readings {
                    let value = self.measuring.measure(reading.gauge);
                    if with { reading.after.push(value) } else { reading.before.push(value) }
                }
            }
        }
        self.undo()?;
        self.measuring.wait_for_answer();
        readings.iter_mut().for_each(Reading::judge);
        Ok(readings)
    }

    fn undo(&mut self) -> Result<(), String> {
        let undone = self.order(Guardian::undo)?;
        self.note(undone)
    }

    fn note(&mut self, undone: Undone) -> Result<(), String> {
        let failed = undone.failed.first().cloned();
        self.proven.left.extend(undone.left);
        self.proven.failed.extend(undone.failed);
        failed.map_or(Ok(()), Err)
    }

    /// Asks the guardian; takes everything back itself where that is gone.
    fn order<T>(&mut self, ask: impl FnOnce(&mut Guardian) -> Result<T, String>) -> Result<T, String> {
        let guardian = self.guardian.as_mut().ok_or(guardian::GONE)?;
        let result = ask(guardian);
        if guardian.is_gone() {
            self.guardian = None;
            self.take_back();
        }
        result
    }

    /// What the guardian leaves behind when it was killed.
    fn take_back(&mut self) {
        match Changes::left_behind(&record::directory()) {
            Ok(Some(mut changes)) => {
                let undone = changes.undo();
                let _ = self.note(undone); // kept in what was proven
            }
            Ok(None) => {}
            Err(error) => self.proven.failed.push(error),
        }
    }

    fn end(&mut self) {
        let Some(guardian) = self.guardian.take() else { return };
        match guardian.end() {
            Ok(true) => {}
            Ok(false) | Err(_) => self.take_back(),
        }
    }
}

impl Proven {
    /// Whether everything that was changed is as before, or as somebody else wants it.
    pub fn is_restored(&self) -> bool {
        self.failed.is_empty()
    }
}

/// `vmlane doctor --undo`: takes back what an earlier proof has left. A sentence, and whether all is well.
pub fn undo_earlier() -> Result<(String, bool), String> {
    let Some(mut changes) = Changes::left_behind(&record::directory())? else {
        return Ok(("Nothing to undo: no proof has left a change.".to_owned(), true));
    };
    if changes.is_of_another_boot() {
        changes.forget()?;
        let why = "Nothing to undo: this machine has been started again since, and settings made at run time are gone.";
        return Ok((why.to_owned(), true));
    }
    if changes.is_of_another_namespace() {
        return Err(
            "the proof ran in another network namespace: run this command there (ip netns exec, nsenter)"
                .to_owned(),
        );
    }
    let undone = changes.undo();
    let mut lines = vec![format!("{} settings are as they were before the proof.", undone.restored)];
    lines.extend(undone.left);
    lines.extend(undone.failed.iter().cloned());
    Ok((lines.join("\n"), undone.failed.is_empty()))
}
