//! A proof as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};
use vmlane_bench::confidence::median;

use super::reading::{Reading, Verdict};
use super::{Proven, Trial};
use crate::evidence::Evidence;
use crate::remedy;
use crate::report::insert;
use crate::text::printable;

/// What follows the report.
pub fn text(proven: &Proven, evidence: &Evidence) -> String {
    let mut text =
        String::from("\nProof: settings of this machine, changed for the measurement and put back\n");
    if let Some(error) = &proven.error {
        let _ = writeln!(text, "Nothing could be tried: {}", printable(error));
        return text;
    }
    if proven.trials.is_empty() {
        text.push_str("Nothing to try: no finding has a remedy that is a setting of this machine.\n");
    }
    for trial in &proven.trials {
        shown(&mut text, trial, evidence);
    }
    if !proven.untried.is_empty() && !proven.trials.is_empty() {
        let numbers: Vec<String> = proven.untried.iter().map(usize::to_string).collect();
        let _ = writeln!(
            text,
            "\nNot tried: {}. Their remedies are for the other machine, the VMM or the network, or are more than settings.",
            numbers.join(", ")
        );
    }
    text.push('\n');
    for line in &proven.left {
        let _ = writeln!(text, "{}", printable(line));
    }
    for line in &proven.failed {
        let _ = writeln!(text, "NOT PUT BACK: {}", printable(line));
    }
    text.push_str(match (proven.is_restored(), proven.left.is_empty()) {
        (true, true) => "All settings are as they were before.\n",
        (true, false) => "All other settings are as they were before.\n",
        (false, _) => "Run `vmlane doctor --undo` to try again.\n",
    });
    text
}

fn shown(text: &mut String, trial: &Trial, evidence: &Evidence) {
    let number = trial.number.map_or("-".to_owned(), |number| format!("{number}."));
    let _ = writeln!(text, "\n{number} {}", printable(&trial.what));
    for change in &trial.remedy.changes {
        let _ = writeln!(text, "   tried: {}", printable(&remedy::line(&change.command())));
    }
    if let Some(error) = &trial.error {
        let _ = writeln!(text, "   not tried to the end: {}", printable(error));
    }
    for reading in &trial.readings {
        let _ = writeln!(text, "   {}", line(reading, evidence));
    }
    let verdict = match trial.verdict {
        Verdict::Helps => "it helps",
        Verdict::NoDifference => "it does not help: no difference beyond the spread",
        Verdict::Worse => "it makes things worse",
        Verdict::NotTried => return,
    };
    let _ = writeln!(text, "   so: {verdict}");
}

fn line(reading: &Reading, evidence: &Evidence) -> String {
    let gauge = reading.gauge;
    let spread = |values: &[f64]| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        format!("{} ({} to {})", gauge.shown(median(values)), gauge.shown(least), gauge.shown(most))
    };
    let ratio = median(&reading.after) / median(&reading.before);
    let times = if ratio.is_finite() { format!(", {ratio:.2} times") } else { String::new() };
    format!(
        "{}: before {}, after {}{times}; {} rounds",
        gauge.name(evidence),
        spread(&reading.before),
        spread(&reading.after),
        reading.before.len()
    )
}

/// For the key `proof` of the report.
pub fn json(proven: &Proven, evidence: &Evidence) -> Value {
    let trials: Vec<Value> = proven.trials.iter().map(|trial| trial_json(trial, evidence)).collect();
    json!({
        "trials": trials,
        "error": proven.error.as_deref().map(printable),
        "untried": proven.untried,
        "restored": proven.is_restored(),
        "changed_by_others": proven.left.iter().map(|line| printable(line)).collect::<Vec<String>>(),
        "not_restored": proven.failed.iter().map(|line| printable(line)).collect::<Vec<String>>(),
    })
}

fn trial_json(trial: &Trial, evidence: &Evidence) -> Value {
    let mut value = serde_json::to_value(trial).unwrap_or_default();
    let commands: Vec<_> = trial.remedy.changes.iter().map(crate::change::Change::command).collect();
    insert(&mut value, "commands", json!(commands));
    let shown = value.get_mut("readings").and_then(Value::as_array_mut).into_iter().flatten();
    for (shown, reading) in shown.zip(&trial.readings) {
        insert(shown, "name", reading.gauge.name(evidence).into());
        insert(shown, "before_median", median(&reading.before).into());
        insert(shown, "after_median", median(&reading.after).into());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::super::{Gauge, Remedy};
    use super::*;
    use crate::change::Change;
    use crate::evidence::PathEnd;
    use crate::testing;

    fn proven() -> Proven {
        let mut reading = Reading::new(Gauge::Throughput { from: PathEnd::Near, connections: 1 });
        (reading.before, reading.after) = (vec![1e9, 1.1e9, 0.9e9], vec![4e9, 4.4e9, 3.6e9]);
        reading.judge();
        let trial = Trial {
            number: Some(1),
            check: Some("segmentation-offload"),
            what: "tx-tcp-segmentation is off.".to_owned(),
            remedy: Remedy { what: "tso on".to_owned(), changes: vec![Change::feature("eth0", "tso", true)] },
            readings: vec![reading],
            verdict: Verdict::Helps,
            error: None,
        };
        Proven { trials: vec![trial], untried: vec![2], ..Proven::default() }
    }

    #[test]
    fn before_after_and_spread_are_shown() {
        let (mut proven, evidence) = (proven(), testing::healthy());
        let shown = text(&proven, &evidence);
        for part in [
            "1. tx-tcp-segmentation is off.",
            "tried: ethtool -K eth0 tso on",
            "throughput from a to b: before 1.00 Gbit/s (900.0 Mbit/s to 1.10 Gbit/s), after 4.00 Gbit/s (3.60 Gbit/s to 4.40 Gbit/s), 4.00 times; 3 rounds",
            "so: it helps",
            "Not tried: 2.",
            "All settings are as they were before.",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        proven.left.push("MTU of eth0: mtu was set".to_owned());
        assert!(text(&proven, &evidence).contains("All other settings"));
        proven.failed.push("MTU of eth0: cannot be put back".to_owned());
        let shown = text(&proven, &evidence);
        assert!(shown.contains("NOT PUT BACK") && shown.contains("--undo"), "{shown}");
    }

    #[test]
    fn programs_read_the_same() {
        let value = json(&proven(), &testing::healthy());
        let reading = &value["trials"][0]["readings"][0];
        assert_eq!(
            (reading["after_median"].as_f64(), reading["verdict"].as_str()),
            (Some(4e9), Some("helps"))
        );
        assert_eq!(value["trials"][0]["commands"][0][0], "ethtool");
        assert_eq!(value["restored"], true);
    }
}
