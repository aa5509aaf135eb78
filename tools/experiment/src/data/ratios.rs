//! Ratios of combinations, run by run where they took turns, and which of them shared a lab.

use super::base::{Data, value};
use super::turns::pairs;
use crate::figure::Point;
use crate::foot::Labs;
use crate::plan::Measure;
use crate::rows::Row;
use crate::steps::IN_ONE_LAB;
use crate::summary::Spread;

/// The factors that a device's name carries.
const DEVICES: [&str; 3] = ["device", "profile", "queues"];

/// Quotients of runs of the same number; none where a number has not exactly one run on both sides.
fn by_run(upper: &[&Row], lower: &[&Row], measure: Measure) -> Vec<f64> {
    let alone = |rows: &[&Row], run: u32| {
        let mut of = rows.iter().filter(|row| row.run == run);
        let first = of.next().and_then(|row| value(row, measure));
        first.filter(|_| of.next().is_none())
    };
    let quotient =
        |row: &&Row| Some(alone(upper, row.run)? / alone(lower, row.run).filter(|base| *base > 0.0)?);
    upper.iter().filter_map(quotient).collect()
}

impl Data<'_> {
    /// How many times as much as the lower rows the upper ones are: the middle of the ratios run by run where
    /// both took turns. Else that of the middles, without single runs, and as far as any two runs may be
    /// apart.
    pub(super) fn ratio(&self, upper: &[&Row], lower: &[&Row], measure: Measure) -> Option<Point> {
        let above = self.spread(upper.iter().copied(), measure)?;
        let below = self.spread(lower.iter().copied(), measure).filter(|below| below.min > 0.0)?;
        let took_turns = upper.iter().all(|a| lower.iter().all(|b| self.turns.took(a, b)));
        let runs = if took_turns { by_run(upper, lower, measure) } else { Vec::new() };
        if runs.len() > 1 {
            return Some(Point { spread: self.middle(&runs)?, runs });
        }
        let spread = Spread {
            median: above.median / below.median,
            min: above.min / below.max,
            max: above.max / below.min,
            runs: above.runs.min(below.runs),
        };
        Some(Point { spread, runs: Vec::new() })
    }

    /// Pairs of rows, one of each combination, that differ in nothing but their device.
    fn comparable<'a>(&self, rows: &[&'a Row]) -> Vec<(&'a Row, &'a Row)> {
        let others: Vec<&str> = self.named.iter().copied().filter(|name| !DEVICES.contains(name)).collect();
        let alike = |a: &Row, b: &Row| {
            a.device != b.device && others.iter().all(|name| a.factor(name) == b.factor(name))
        };
        pairs(rows).into_iter().filter(|(a, b)| alike(a, b)).collect()
    }

    /// Whether any devices took turns.
    pub fn has_turns(&self) -> bool {
        self.comparable(&self.rows).into_iter().any(|(a, b)| self.turns.took(a, b))
    }

    /// Whether combinations that differ in more than their device came in rounds of all.
    pub fn has_rounds(&self) -> bool {
        let of_one_device = |(a, b): &(&Row, &Row)| a.device == b.device;
        pairs(&self.rows).into_iter().filter(of_one_device).any(|(a, b)| self.turns.were_in_rounds(a, b))
    }

    /// Which labs some rows are of; `shown` are the factors that their picture shows.
    pub fn labs(&self, rows: &[&Row], shown: &[&str]) -> Labs {
        // Labs themselves are distinguished by their numbers.
        let apart = |name: &&&'static str| {
            !IN_ONE_LAB.contains(*name) && **name != "boot" && Data::values(rows, name).len() > 1
        };
        let factors = self.named.iter().filter(apart).filter(|name| shown.contains(*name)).copied().collect();
        Labs { devices: self.labs_of_devices(rows), factors }
    }

    /// The devices of some rows, by the labs that they shared; empty where all that compare shared one.
    fn labs_of_devices(&self, rows: &[&Row]) -> Vec<Vec<String>> {
        let pairs = self.comparable(rows);
        let mut labs: Vec<Vec<String>> = Vec::new();
        for row in pairs.iter().flat_map(|(a, b)| [a, b]) {
            if labs.iter().flatten().any(|device| *device == row.device) {
                continue;
            }
            let shares = |device: &String| {
                let is_theirs = |a: &Row, b: &Row| a.device == *device && b.device == row.device;
                let mut both = pairs.iter().filter(|(a, b)| is_theirs(a, b) || is_theirs(b, a));
                both.any(|(a, b)| self.turns.took(a, b))
            };
            match labs.iter_mut().find(|lab| lab.iter().any(shares)) {
                Some(lab) => lab.push(row.device.clone()),
                None => labs.push(vec![row.device.clone()]),
            }
        }
        let of = |row: &Row| labs.iter().position(|lab| lab.contains(&row.device));
        if pairs.iter().any(|(a, b)| of(a) != of(b)) { labs } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(device: &str, run: u32, bps: f64) -> Row {
        let (device, id) = (device.to_owned(), format!("device={device}"));
        Row { device, id, run, throughput_bps: Some(bps), ..Row::default() }
    }

    fn ratio(rows: &[Row]) -> Point {
        let of = |device: &str| rows.iter().filter(|row| row.device == device).collect::<Vec<_>>();
        Data::new(rows, None).ratio(&of("a"), &of("b"), Measure::Result).unwrap()
    }

    #[test]
    fn what_took_turns_is_divided_run_by_run_and_all_else_by_medians() {
        // The machine is slower from run to run, in every second round backwards.
        let (a, b) = ([80.0, 40.0, 30.0], [40.0, 40.0, 10.0]);
        let runs = |device: &str, values: [f64; 3]| {
            (1..).zip(values).map(|(run, bps)| row(device, run, bps)).collect::<Vec<_>>()
        };
        let (a, b) = (runs("a", a), runs("b", b));
        let turns: Vec<Row> = [&a[0], &b[0], &b[1], &a[1], &a[2], &b[2]].into_iter().cloned().collect();
        let paired = ratio(&turns);
        assert_eq!(paired.runs, [2.0, 1.0, 3.0]);
        assert_eq!((paired.spread.median, paired.spread.min, paired.spread.max), (2.0, 1.0, 3.0));
        let apart = ratio(&[a, b].concat());
        assert!(apart.runs.is_empty(), "runs of two labs have nothing in common but their number");
        assert_eq!((apart.spread.median, apart.spread.min, apart.spread.max), (1.0, 0.75, 8.0));
    }

    #[test]
    fn rounds_of_all_are_distinguished_from_one_combination_after_the_other() {
        let one = |message: u64, run: u32| Row {
            id: format!("message={message}"),
            message_bytes: message,
            ..row("vmci", run, f64::from(run))
        };
        let rounds = |rows: &[Row]| Data::new(rows, None).has_rounds();
        assert!(rounds(&[one(1, 1), one(2, 1), one(2, 2), one(1, 2)]));
        assert!(!rounds(&[one(1, 1), one(1, 2), one(2, 1), one(2, 2)]));
        assert!(!rounds(&[one(1, 1), one(2, 1)]), "a run each shows nothing");
        // In rounds that take minutes, runs of one number did not stand beside each other.
        let long: Vec<Row> = (1..=2)
            .flat_map(|run| (1..=20).map(move |message| (message, run)))
            .map(|(message, run)| one(message, run))
            .collect();
        let data = Data::new(&long, None);
        assert!(data.has_rounds());
        assert!(data.turns.took(&long[0], &long[1]) && !data.turns.took(&long[0], &long[19]));
    }

    #[test]
    fn devices_are_listed_by_their_labs() {
        let one = |device: &str, run: u32| row(device, run, 1.0);
        let rows = [one("a", 1), one("b", 1), one("b", 2), one("a", 2), one("c", 1), one("c", 2)];
        let all: Vec<&Row> = rows.iter().collect();
        let data = Data::new(&rows, None);
        let labs = data.labs(&all, &["device"]);
        assert_eq!(labs.devices, [vec!["a".to_owned(), "b".into()], vec!["c".into()]]);
        assert_eq!(labs.words("Labs"), ["Labs: a, b; c."]);
        assert!(data.labs(&all[..4], &["device"]) == Labs::default() && data.has_turns());
    }

    #[test]
    fn values_that_need_labs_of_their_own_are_listed() {
        let one = |ring: &str, sessions: u32| {
            let factors = [("ring".to_owned(), ring.into())].into();
            Row { id: format!("ring={ring}"), sessions, factors, ..row("vmxnet3", 1, 1.0) }
        };
        let rows = [one("160", 1), one("256", 1), one("256", 5)];
        let all: Vec<&Row> = rows.iter().collect();
        let data = Data::new(&rows, None);
        let labs = data.labs(&all, &["ring", "sessions"]);
        assert_eq!(labs.words(""), ["VMs were booted anew for each ring size."]);
        assert_eq!(data.labs(&all[1..], &["ring", "sessions"]), Labs::default(), "one lab serves both");
    }
}
