//! How often a combination is measured: so often, and on, until its mean is known well enough.
//!
//! What takes turns is repeated as one: where one device's results spread, all get another round, so that
//! ratios are of runs that stood beside each other.

use std::collections::BTreeMap;

use vmlane_bench::confidence::is_known;

use crate::plan::Plan;
use crate::rows::Row;
use crate::steps::{Group, Step, round_of_all};

/// What the runs made so far amount to: by combination, the runs and their results.
#[derive(Default)]
pub struct Made(BTreeMap<String, BTreeMap<u32, Option<f64>>>);

impl Made {
    pub fn of(rows: &[Row]) -> Made {
        let mut made = Made::default();
        rows.iter().for_each(|row| made.add(row));
        made
    }

    pub fn add(&mut self, row: &Row) {
        self.0.entry(row.id.clone()).or_default().insert(row.run, row.value());
    }

    pub fn has(&self, step: &Step) -> bool {
        self.0.get(&step.factors.id()).is_some_and(|runs| runs.contains_key(&step.run))
    }

    /// The number of the last run that every one of a group has.
    fn rounds(&self, group: &Group) -> u32 {
        let last = |id: String| self.0.get(&id).and_then(|runs| runs.keys().last().copied()).unwrap_or(0);
        group.members.iter().map(|factors| last(factors.id())).min().unwrap_or(0)
    }

    /// Is each mean known well enough? One that only fails is known not to work.
    fn suffices(&self, group: &Group, within: f64) -> bool {
        group.members.iter().all(|factors| {
            let runs = self.0.get(&factors.id());
            let values: Vec<f64> =
                runs.into_iter().flat_map(|runs| runs.values().flatten().copied()).collect();
            values.is_empty() || is_known(&values, within)
        })
    }
}

impl Plan {
    /// The runs of a lab that are still to be made, as far as is known: a round of all after the other, then
    /// one more of those that have theirs and need it.
    pub fn next_rounds(&self, groups: &[Group], made: &Made) -> Vec<Step> {
        let all = (1..=self.runs).flat_map(|run| round_of_all(groups, run));
        let mut steps: Vec<Step> = all.filter(|step| !made.has(step)).collect();
        let complete = |group: &&Group| steps.iter().all(|step| step.combination != group.combination);
        let more: Vec<Step> =
            groups.iter().filter(complete).flat_map(|group| self.next_round(group, made)).collect();
        steps.extend(more);
        steps
    }

    /// The runs of a group that are still to be made: what is left of the plan's, or one more round. Empty if
    /// there is enough.
    pub fn next_round(&self, group: &Group, made: &Made) -> Vec<Step> {
        let left: Vec<Step> =
            (1..=self.runs).flat_map(|run| group.round(run)).filter(|step| !made.has(step)).collect();
        let Some(repeats) = self.repeats.filter(|_| left.is_empty()) else { return left };
        let rounds = made.rounds(group).max(self.runs);
        if rounds >= repeats.most || made.suffices(group, repeats.within) {
            return Vec::new();
        }
        group.round(rounds + 1).into_iter().filter(|step| !made.has(step)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(more: &str) -> Plan {
        let text = format!(
            "name = \"t\"\ntitle = \"T\"\nruns = 3\nseconds = 1\n{more}\n[matrix]\ndevice = [\"vmci\", \"vmxnet3\"]\n"
        );
        Plan::parse(&text, false).unwrap()
    }

    /// Makes runs until the plan has enough: how many rounds that are. `value`: by device and run.
    fn rounds(plan: &Plan, value: impl Fn(&str, u32) -> Option<f64>) -> u32 {
        let group = plan.boots().remove(0).groups.remove(0);
        let mut made = Made::default();
        let mut most = 0;
        loop {
            let steps = plan.next_round(&group, &made);
            if steps.is_empty() {
                return most;
            }
            for step in steps {
                assert!(!made.has(&step), "{step:?} is made twice");
                most = most.max(step.run);
                let result = value(&step.factors.text("device"), step.run);
                made.add(&Row {
                    id: step.factors.id(),
                    run: step.run,
                    throughput_bps: result,
                    failed: result.is_none().then(|| "no".into()),
                    ..Row::default()
                });
            }
        }
    }

    #[test]
    fn what_spreads_is_measured_more_often_and_with_it_what_it_is_compared_with() {
        let (fixed, more) = (plan(""), plan("within = 5\nmost_runs = 9"));
        let steady = |_: &str, run: u32| Some(100.0 + f64::from(run % 2));
        let wild = |device: &str, run: u32| Some(if device == "vmci" { 100.0 } else { f64::from(run) });
        assert_eq!((rounds(&fixed, wild), rounds(&more, steady), rounds(&more, wild)), (3, 3, 9));
        // Three far apart, then always their mean: the interval shrinks until it suffices.
        let calms = |_: &str, run: u32| Some(if run <= 3 { 90.0 + 5.0 * f64::from(run) } else { 100.0 });
        let some = rounds(&more, calms);
        assert!((4..9).contains(&some), "{some}");
    }

    #[test]
    fn a_lab_goes_on_where_it_was() {
        let text = |more: &str| {
            format!(
                "name = \"t\"\ntitle = \"T\"\nruns = 3\nseconds = 1\nwithin = 5\nmost_runs = 9\n[matrix]\n\
                 device = \"vmci\"\nmessage = [512, 1024]\n{more}"
            )
        };
        let plan = Plan::parse(&text(""), false).unwrap();
        let groups = plan.boots().remove(0).groups;
        let mut made = Made::default();
        let sizes_and_runs = |steps: &[Step]| {
            steps.iter().map(|step| (step.factors.message, step.run)).collect::<Vec<(u64, u32)>>()
        };
        let steps = plan.next_rounds(&groups, &made);
        assert_eq!(sizes_and_runs(&steps), [(512, 1), (1024, 1), (1024, 2), (512, 2), (512, 3), (1024, 3)]);
        let row = |step: &Step| Row {
            id: step.factors.id(),
            run: step.run,
            // The smaller messages spread.
            throughput_bps: Some(if step.factors.message == 512 { f64::from(step.run) } else { 1.0 }),
            ..Row::default()
        };
        steps[..5].iter().for_each(|step| made.add(&row(step)));
        assert_eq!(sizes_and_runs(&plan.next_rounds(&groups, &made)), [(1024, 3), (512, 4)]);
        made.add(&row(&steps[5]));
        assert_eq!(sizes_and_runs(&plan.next_rounds(&groups, &made)), [(512, 4)]);
    }

    #[test]
    fn one_that_only_fails_asks_for_no_more_and_a_start_goes_on_in_a_round() {
        let more = plan("within = 5\nmost_runs = 9");
        assert_eq!(rounds(&more, |device, _| (device == "vmci").then_some(1.0)), 3);
        let group = more.boots().remove(0).groups.remove(0);
        let mut made = Made::default();
        let row = |step: &Step, value: u32| Row {
            id: step.factors.id(),
            run: step.run,
            throughput_bps: Some(f64::from(value)),
            ..Row::default()
        };
        let first = more.next_round(&group, &made);
        first.iter().for_each(|step| made.add(&row(step, step.run)));
        let fourth = more.next_round(&group, &made);
        assert_eq!(fourth.iter().map(|step| step.run).collect::<Vec<_>>(), [4, 4]);
        made.add(&row(&fourth[0], 4));
        assert_eq!(more.next_round(&group, &made), fourth[1..], "what was interrupted is ended first");
    }
}
