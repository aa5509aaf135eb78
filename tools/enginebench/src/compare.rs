//! `make bench AGAINST=BINARY`: this build beside another one, in pairs of fresh processes.
//!
//! A process keeps the memory layout and the placement that it got at its start, and both change a figure by
//! tens of per cent; the machine changes its speed by phases. So each pair starts both builds anew, one right
//! after the other, and a row's result is the median of the pairs' ratios. The order within a pair
//! alternates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use vmlane_bench::{row, table::table};
use vmlane_experiment::summary::Spread;

/// Which builds, which rows, how often.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The other build's `vmlane-enginebench`.
    pub against: PathBuf,
    pub pairs: usize,
    /// Prefixes of row names; each is measured in a pair of processes of its own.
    pub only: Vec<String>,
    pub rounds: usize,
    pub millis: u64,
}

/// One row: this build's figure over the other's, pair by pair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    pub unit: String,
    /// Above 1: this build is faster.
    pub ratio: f64,
    /// An interval that holds the true median with a probability of at least 0.95.
    pub low: f64,
    pub high: f64,
    pub ratios: Vec<f64>,
}

/// `out/bench/against.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub version: u32,
    pub against: PathBuf,
    pub pairs: usize,
    pub rows: Vec<Row>,
}

/// What both builds' `latest.json` have in common, whatever their age.
#[derive(Deserialize)]
struct Latest {
    rows: Vec<LatestRow>,
}

#[derive(Deserialize)]
struct LatestRow {
    name: String,
    value: f64,
    unit: String,
}

impl Comparison {
    /// Runs all pairs; `progress` gets a line before each.
    pub fn run(&self, mut progress: impl FnMut(&str)) -> anyhow::Result<Outcome> {
        if self.pairs == 0 {
            bail!("--pairs 0: at least one pair is needed");
        }
        let this = std::env::current_exe().context("cannot find this program's own path")?;
        let mut ratios: BTreeMap<String, (String, Vec<f64>)> = BTreeMap::new();
        for pair in 0..self.pairs {
            for only in &self.only {
                progress(&format!("pair {} of {}: {only}", pair + 1, self.pairs));
                let (ours, theirs) = if pair % 2 == 0 {
                    let ours = self.measure(&this, only)?;
                    (ours, self.measure(&self.against, only)?)
                } else {
                    let theirs = self.measure(&self.against, only)?;
                    (self.measure(&this, only)?, theirs)
                };
                for (name, (value, unit)) in ours {
                    // A row that only one build has cannot be compared.
                    let Some((other, _)) = theirs.get(&name) else { continue };
                    if value > 0.0 && *other > 0.0 {
                        ratios.entry(name).or_insert((unit, Vec::new())).1.push(value / other);
                    }
                }
            }
        }
        let rows = ratios.into_iter().map(|(name, (unit, ratios))| Row::new(name, unit, ratios)).collect();
        Ok(Outcome { version: 1, against: self.against.clone(), pairs: self.pairs, rows })
    }

    /// One fresh process: each row's value and unit.
    fn measure(&self, program: &Path, only: &str) -> anyhow::Result<BTreeMap<String, (f64, String)>> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let status = Command::new(program)
            .args(["--only", only, "--rounds", &self.rounds.to_string()])
            .args(["--millis", &self.millis.to_string(), "--out"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let path = folder.path().join("latest.json");
        // One that could measure some rows only has written those.
        if !status.success() && !path.exists() {
            bail!("{} --only {only} ended with {status}", program.display());
        }
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let latest: Latest = serde_json::from_str(&text)
            .with_context(|| format!("{} wrote a latest.json that is none", program.display()))?;
        Ok(latest.rows.into_iter().map(|row| (row.name, (row.value, row.unit))).collect())
    }
}

impl Row {
    fn new(name: String, unit: String, ratios: Vec<f64>) -> Row {
        let mut sorted = ratios.clone();
        sorted.sort_by(f64::total_cmp);
        let ratio = Spread::of(ratios.iter().copied()).map_or(0.0, |spread| spread.median);
        let cut = outside(sorted.len());
        let (low, high) = (sorted[cut], sorted[sorted.len() - 1 - cut]);
        Row { name, unit, ratio, low, high, ratios }
    }
}

/// How many of `n` sorted values may be cut off at each end so that the rest still spans the median with a
/// probability of 0.95 (the sign test's interval; with fewer than six values none may be, and it is less).
fn outside(n: usize) -> usize {
    // The probability that at most `k` of `n` fall below the median, summed term by term.
    let mut term = 0.5_f64.powi(n as i32);
    let mut below = term;
    let mut cut = 0;
    while below <= 0.025 && cut < n / 2 {
        term *= (n - cut) as f64 / (cut + 1) as f64;
        below += term;
        cut += 1;
    }
    // `cut` values at each end would leave out too much; one less does not.
    cut.saturating_sub(1)
}

impl Outcome {
    pub fn table(&self) -> String {
        let mut lines = vec![row!["row", "ratio", "95 % interval", "pairs"]];
        for row in &self.rows {
            let interval = format!("{:.3} .. {:.3}", row.low, row.high);
            lines.push(row![row.name, format!("{:.3}", row.ratio), interval, row.ratios.len()]);
        }
        table(&lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_twenty_pairs_is_the_sixth_value_from_each_end() {
        assert_eq!(outside(20), 5);
        // Tables of the sign test: 9 of 30 (10th value), 1 of 10 (2nd), none of 6.
        assert_eq!([outside(30), outside(10), outside(6), outside(3)], [9, 1, 0, 0]);
    }

    #[test]
    fn a_row_has_its_median_and_its_interval() {
        let ratios: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        let row = Row::new("a".to_owned(), "b".to_owned(), ratios);
        assert_eq!((row.ratio, row.low, row.high), (10.5, 6.0, 15.0));
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let comparison = Comparison {
            against: "/does/not/exist".into(),
            pairs: 1,
            only: vec!["ring.rr.1".to_owned()],
            rounds: 1,
            millis: 1,
        };
        let error = comparison.measure(&comparison.against, "ring.rr.1").unwrap_err();
        assert!(format!("{error:#}").contains("/does/not/exist"), "{error:#}");
    }
}
