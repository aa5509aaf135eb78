//! Repeats of one combination become one number: the median, with the least and the most beside it.

use std::collections::BTreeMap;

use vmlane_bench::confidence::median;
use vmlane_bench::table::table;

use crate::data::Data;
use crate::plan::Plan;
use crate::rows::Row;
use crate::units::{number, size, unit};
use crate::words::{MAKER, emulated, maker};

/// Repeats in one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub runs: usize,
}

impl Spread {
    /// None of no values.
    pub fn of<V: IntoIterator<Item = f64>>(values: V) -> Option<Spread> {
        let values: Vec<f64> = values.into_iter().collect();
        let min = values.iter().copied().min_by(f64::total_cmp)?;
        let max = values.iter().copied().max_by(f64::total_cmp)?;
        Some(Spread { median: median(&values), min, max, runs: values.len() })
    }
}

/// What is left of a sweep on a terminal: a table for each kind of machine and whose devices they are, and
/// last the answers.
pub fn result(rows: &[Row], plan: &Plan) -> String {
    let data = Data::new(rows, Some(plan));
    let mut text = String::new();
    for machine in Data::values(&data.rows, "machine") {
        let of: Vec<&Row> =
            data.rows.iter().copied().filter(|row| row.factor("machine") == machine).collect();
        let devices = Data::values(&of, "device");
        let Some(first) = devices.first() else { continue };
        for maker in Data::values(&of, MAKER) {
            let its = |row: &&Row| row.factor(MAKER) == maker || row.device == *first;
            let its: Vec<&Row> = of.iter().copied().filter(its).collect();
            text += &format!("{maker}'s devices ({machine})\n{}\n", medians(&its, first));
        }
    }
    let runs = rows.iter().map(|row| row.run).max().unwrap_or(0);
    let failed = rows.iter().filter(|row| row.failed.is_some()).count();
    let (streams, round_trips) = (unit("stream").0, unit("rr").0);
    text += &format!(
        "Medians of {runs} runs, {streams} (rr: {round_trips}) over N sessions; behind each, how many times as much \
         the first device moved. {failed} of {} runs failed.\n",
        rows.len()
    );
    let lines = emulated(rows).map(str::to_owned).into_iter().chain(data.answers(plan));
    lines.for_each(|line| text += &format!("\n{line}\n"));
    text
}

/// A line for each combination: the median of each device, and behind it how many times as much the first one
/// moved.
fn medians(rows: &[&Row], first: &str) -> String {
    let mut devices = vec![first];
    let mut results: BTreeMap<_, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for row in rows {
        if !devices.contains(&row.device.as_str()) {
            devices.push(&row.device);
        }
        let key = (&row.test, row.sessions, row.send_buffer, row.message_bytes);
        results.entry(key).or_default().entry(&row.device).or_default().extend(row.value());
    }
    let heading = ["TEST", "N", "BUFFER", "SIZE"].into_iter().chain(devices.iter().copied());
    let mut lines = vec![heading.map(str::to_owned).collect()];
    for ((test, sessions, buffer, message), of) in results {
        let scale = unit(test).1;
        let middle = |device: &str| Spread::of(of.get(device)?.iter().copied()).map(|spread| spread.median);
        let cell = |device: &&str| match (middle(device), middle(first)) {
            (None, _) => if of.contains_key(device) { "failed" } else { "-" }.to_owned(),
            (Some(value), Some(ours)) if *device != first => {
                format!("{} {}x", number(value / scale), number(ours / value))
            }
            (Some(value), _) => number(value / scale),
        };
        let mut line = vec![
            test.clone(),
            sessions.to_string(),
            buffer.map_or_else(|| "default".into(), size),
            size(message),
        ];
        line.extend(devices.iter().map(cell));
        lines.push(line);
    }
    table(&lines)
}

/// Whether the sweep may be relied on: no run of ours failed, and of what failed of another device a repeat
/// did not. A single lost run of another device is recorded and shown; its other runs still count.
pub fn is_sound(rows: &[Row]) -> bool {
    let worked = |id: &str| rows.iter().any(|row| row.id == id && row.failed.is_none());
    rows.iter().all(|row| row.failed.is_none() || maker(&row.device) != "vmlane" && worked(&row.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(device: &str, run: u32, bps: Option<f64>) -> Row {
        Row {
            id: device.into(),
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
        assert!(is_sound(&[ours.clone(), row("qemu-e1000", 1, lost), row("qemu-e1000", 2, good)]));
        assert!(!is_sound(&[ours.clone(), row("qemu-e1000", 1, lost), row("qemu-e1000", 2, lost)]));
        assert!(!is_sound(&[ours.clone(), row("vmci", 2, lost), row("qemu-e1000", 1, good)]));
        // A device need not be in every combination.
        let elsewhere = Row { message_bytes: 4096, ..row("uml-vector", 1, good) };
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
        let elsewhere = Row { message_bytes: 4096, send_buffer: Some(65536), ..row("tcp", 1, Some(1e8)) };
        let rows = [
            row("vmci", 1, Some(8e8)),
            row("tcp", 1, Some(2e8)),
            row("vmci", 2, None),
            row("tcp", 2, Some(4e8)),
            row("dead", 1, None),
            elsewhere,
        ];
        let text = medians(&rows.iter().collect::<Vec<_>>(), "vmci");
        let line = |number: usize| text.lines().nth(number).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(line(0), ["TEST", "N", "BUFFER", "SIZE", "vmci", "tcp", "dead"]);
        assert_eq!(line(1), ["stream", "1", "default", "512", "800", "300", "2.67x", "failed"]);
        assert_eq!(line(2), ["stream", "1", "64k", "4k", "-", "100", "-"]);
    }
}
