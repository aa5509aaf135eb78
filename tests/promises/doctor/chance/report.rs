//! What of the drawn faults was named: a table by layer, and a line of JSON for each draw.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;

use serde::Serialize;
use vmlane_tests::tree;

use super::effect::Gauges;
use super::judge::Verdict;

/// One draw, as it went.
#[derive(Serialize)]
pub struct Record {
    pub seed: u64,
    pub number: usize,
    pub device: String,
    /// Of the first fault; `two` if there are two.
    pub layer: &'static str,
    pub faults: Vec<String>,
    pub healthy: Gauges,
    pub with: Option<Gauges>,
    /// Empty: without effect, or not put in.
    pub effects: Vec<String>,
    /// By the form of the examination: quick, full.
    pub verdicts: BTreeMap<&'static str, Verdict>,
    /// Why it could not be put in.
    pub problem: Option<String>,
}

impl Record {
    pub fn has_effect(&self) -> bool {
        !self.effects.is_empty()
    }

    /// Shown while the test runs.
    pub fn text(&self) -> String {
        let mut text = format!("  {:3} {}: ", self.number, self.faults.join(" and "));
        match &self.problem {
            Some(why) => text += &format!("NOT PUT IN: {why}"),
            None if !self.has_effect() => text += "without effect",
            None => text += &self.effects.join(", "),
        }
        for (form, verdict) in &self.verdicts {
            let _ = write!(text, "\n      {form}: {}", outcome(verdict));
            let lines = verdict.findings.iter().map(|finding| format!("\n        {finding}"));
            text.extend(lines);
        }
        text
    }
}

fn outcome(verdict: &Verdict) -> String {
    match verdict.rank {
        Some(rank) => format!("named {rank}."),
        None if verdict.is_nothing => "NOTHING FOUND".to_owned(),
        None if verdict.is_wrong => "A WRONG CAUSE FIRST".to_owned(),
        None => format!("not named, code {}", verdict.code),
    }
}

/// Draws with an effect, and what was found of them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Tally {
    pub drawn: usize,
    pub effective: usize,
    pub first: usize,
    pub first_three: usize,
    pub wrong_first: usize,
    pub nothing: usize,
}

impl Tally {
    fn add(&mut self, record: &Record, form: &str) {
        self.drawn += 1;
        let Some(verdict) = record.verdicts.get(form) else { return };
        self.effective += 1;
        self.first += usize::from(verdict.rank == Some(1));
        self.first_three += usize::from(verdict.rank.is_some_and(|rank| rank <= 3));
        self.wrong_first += usize::from(verdict.is_wrong);
        self.nothing += usize::from(verdict.is_nothing);
    }

    fn share(&self, part: usize) -> f64 {
        part as f64 / self.effective.max(1) as f64
    }

    /// What of the bars is not reached, if there are enough draws to judge.
    pub fn failures(&self) -> Vec<String> {
        if self.effective < ENOUGH {
            return Vec::new();
        }
        let bars = [
            (self.share(self.first) >= FIRST, "the cause is first"),
            (self.share(self.first_three) >= FIRST_THREE, "the cause is among the first three"),
            (self.share(self.wrong_first) <= WRONG, "a wrong cause is first"),
            (self.nothing == 0, "nothing is found"),
        ];
        bars.into_iter().filter(|(is_met, _)| !is_met).map(|(_, what)| format!("{what}: {self:?}")).collect()
    }
}

/// Fewer draws with an effect prove nothing.
const ENOUGH: usize = 20;
const FIRST: f64 = 0.6;
const FIRST_THREE: f64 = 0.75;
const WRONG: f64 = 0.05;

/// All draws of one device.
pub struct Records {
    all: Vec<Record>,
    lines: File,
}

impl Records {
    /// Lines of JSON are added to `out/doctor/chance.jsonl`.
    pub fn new() -> Records {
        let folder = tree::root().join("out/doctor");
        fs::create_dir_all(&folder).expect("a folder for results");
        let lines = File::options().create(true).append(true).open(folder.join("chance.jsonl"));
        Records { all: Vec::new(), lines: lines.expect("a file for results") }
    }

    pub fn add(&mut self, record: Record) {
        println!("{}", record.text());
        let line = serde_json::to_string(&record).expect("JSON");
        writeln!(self.lines, "{line}").expect("a line");
        self.all.push(record);
    }

    pub fn total(&self, form: &str) -> Tally {
        self.tally(form, |_| true)
    }

    fn tally(&self, form: &str, belongs: impl Fn(&Record) -> bool) -> Tally {
        let mut tally = Tally::default();
        self.all.iter().filter(|record| belongs(record)).for_each(|record| tally.add(record, form));
        tally
    }

    /// A line a layer.
    pub fn table(&self, form: &str) -> String {
        let mut layers: Vec<&str> = self.all.iter().map(|record| record.layer).collect();
        layers.sort_unstable();
        layers.dedup();
        let mut text = format!("{form:10} drawn effective first first-three wrong-first nothing\n");
        let lines = layers.into_iter().map(|layer| (layer, self.tally(form, |record| record.layer == layer)));
        for (name, tally) in lines.chain([("all", self.total(form))]) {
            let Tally { drawn, effective, first, first_three, wrong_first, nothing } = tally;
            let _ = writeln!(
                text,
                "{name:10} {drawn:5} {effective:9} {first:5} {first_three:11} {wrong_first:11} {nothing:7}"
            );
        }
        text
    }

    /// Those of two faults of which both were named among the first three.
    pub fn whole_pairs(&self, form: &str) -> (usize, usize) {
        let pairs = self.all.iter().filter(|record| record.faults.len() > 1);
        let pairs: Vec<&Verdict> = pairs.filter_map(|record| record.verdicts.get(form)).collect();
        (pairs.iter().filter(|verdict| verdict.is_whole).count(), pairs.len())
    }
}
