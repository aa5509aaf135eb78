//! Repeats of one combination become one number: the median, with the least and the most beside it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use vmlane_bench::confidence::median;

use crate::rows::Row;

/// The device that the others are compared with.
pub const OURS: &str = "vmci";

/// The factors that a figure's bar stands for, the device left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Key {
    pub test: String,
    pub sessions: u32,
    pub send_buffer: Option<u64>,
    pub message_bytes: u64,
}

/// Repeats in one number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub runs: usize,
}

/// All results by combination and device.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// None where every run failed.
    results: BTreeMap<Key, BTreeMap<String, Option<Spread>>>,
    devices: BTreeSet<String>,
}

impl Key {
    pub fn of(row: &Row) -> Key {
        Key {
            test: row.test.clone(),
            sessions: row.sessions,
            send_buffer: row.send_buffer,
            message_bytes: row.message_bytes,
        }
    }
}

impl Spread {
    /// None of no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let values: Vec<f64> = values.into_iter().collect();
        let min = values.iter().copied().min_by(f64::total_cmp)?;
        let max = values.iter().copied().max_by(f64::total_cmp)?;
        Some(Spread { median: median(&values), min, max, runs: values.len() })
    }
}

impl Summary {
    pub fn of(rows: &[Row]) -> Summary {
        let mut values: BTreeMap<Key, BTreeMap<String, Vec<f64>>> = BTreeMap::new();
        let mut summary = Summary::default();
        for row in rows {
            summary.devices.insert(row.device.clone());
            let device = values.entry(Key::of(row)).or_default().entry(row.device.clone()).or_default();
            device.extend(row.value());
        }
        for (key, devices) in values {
            let spreads = devices.into_iter().map(|(device, values)| (device, Spread::of(values)));
            summary.results.insert(key, spreads.collect());
        }
        summary
    }

    /// Everything but ours, in a fixed order.
    pub fn others(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().map(String::as_str).filter(|device| *device != OURS)
    }

    /// Combinations of a test, also those where every run failed.
    pub fn keys(&self, test: &str) -> impl Iterator<Item = &Key> {
        self.results.keys().filter(move |key| key.test == test)
    }

    pub fn get(&self, key: &Key, device: &str) -> Option<Spread> {
        *self.results.get(key)?.get(device)?
    }

    /// Whether a device was measured in a combination, with whatever result.
    pub fn was_tried(&self, key: &Key, device: &str) -> bool {
        self.results.get(key).is_some_and(|devices| devices.contains_key(device))
    }

    /// How many times as much we moved as `device`, by medians.
    pub fn ratio(&self, key: &Key, device: &str) -> Option<f64> {
        let theirs = self.get(key, device)?.median;
        (theirs > 0.0).then_some(self.get(key, OURS)?.median / theirs)
    }

    /// The least and the greatest ratio over the combinations of a test.
    pub fn ratios(&self, test: &str, device: &str) -> Option<(f64, f64)> {
        let all = Spread::of(self.keys(test).filter_map(|key| self.ratio(key, device)))?;
        Some((all.min, all.max))
    }

    /// Whether every combination has a number for every device that was measured in it.
    pub fn is_complete(&self) -> bool {
        self.results.values().flat_map(BTreeMap::values).all(Option::is_some)
    }

    /// For programs: a list of combinations with every device's spread and our ratio to it.
    pub fn json(&self) -> serde_json::Value {
        let combination = |key: &Key| {
            let devices: BTreeMap<&str, Spread> = self
                .devices
                .iter()
                .filter_map(|device| Some((device.as_str(), self.get(key, device)?)))
                .collect();
            let ratios: BTreeMap<&str, f64> =
                self.others().filter_map(|device| Some((device, self.ratio(key, device)?))).collect();
            serde_json::json!({ "key": key, "devices": devices, "ratios": ratios })
        };
        let list: Vec<_> = self.results.keys().map(combination).collect();
        serde_json::json!({ "version": 1, "combinations": list })
    }
}

/// Whether the sweep may be relied on: no run of ours failed, and every combination has a number for
/// every device that was measured in it. A single lost run of another device is recorded and shown; its other runs still count.
pub fn is_sound(rows: &[Row]) -> bool {
    let lost = rows.iter().any(|row| row.device == OURS && row.failed.is_some());
    !lost && Summary::of(rows).is_complete()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(device: &str, run: u32, bps: Option<f64>) -> Row {
        Row {
            device: device.into(),
            test: "stream".into(),
            message_bytes: 512,
            sessions: 1,
            run,
            throughput_bps: bps,
            failed: bps.is_none().then(|| "why".into()),
            ..Row::default()
        }
    }

    #[test]
    fn a_lost_run_of_ours_counts_and_one_of_theirs_only_if_it_was_the_last() {
        let (good, lost) = (Some(1.0), None);
        let ours = row("vmci", 1, good);
        assert!(is_sound(&[ours.clone(), row("tcp", 1, lost), row("tcp", 2, good)]));
        assert!(!is_sound(&[ours.clone(), row("tcp", 1, lost), row("tcp", 2, lost)]));
        assert!(!is_sound(&[ours.clone(), row("vmci", 2, lost), row("tcp", 1, good)]));
        // A device need not be in every combination.
        let elsewhere = Row { message_bytes: 4096, ..row("udp", 1, good) };
        assert!(is_sound(&[ours, elsewhere]));
    }

    #[test]
    fn medians_of_odd_even_and_nothing() {
        let of =
            |values: &[f64]| Spread::of(values.iter().copied()).map(|s| (s.median, s.min, s.max, s.runs));
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0, 3)));
        assert_eq!(of(&[4.0, 2.0]), Some((3.0, 2.0, 4.0, 2)));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn ratios_are_of_medians_and_failed_runs_do_not_count() {
        let rows = [
            row("vmci", 1, Some(8.0)),
            row("tcp", 1, Some(2.0)),
            row("vmci", 2, None),
            row("tcp", 2, Some(4.0)),
            row("dead", 1, None),
        ];
        let summary = Summary::of(&rows);
        let key = Key::of(&rows[0]);
        assert_eq!(summary.others().collect::<Vec<_>>(), ["dead", "tcp"]);
        assert_eq!(summary.ratio(&key, "tcp"), Some(8.0 / 3.0));
        assert_eq!(summary.ratio(&key, "dead"), None);
        assert_eq!(summary.get(&key, "vmci").map(|s| s.runs), Some(1));
        assert_eq!(summary.ratios("stream", "tcp"), Some((8.0 / 3.0, 8.0 / 3.0)));
        assert_eq!(summary.ratios("rr", "tcp"), None);
        assert_eq!(summary.json()["combinations"][0]["devices"]["vmci"]["median"], 8.0);
    }
}
