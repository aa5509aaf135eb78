//! CPU time that a hypervisor gives to others.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "steal", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let found = evidence.ends().filter_map(|(end, facts)| {
        let machines = evidence.runs(RunKind::Stream).filter_map(|run| match end {
            PathEnd::Near => run.report.machine.local,
            PathEnd::Far => run.report.machine.remote,
        });
        let share =
            machines.map(|machine| machine.steal).fold(0.0, f64::max) / facts.machine.cpus.max(1) as f64;
        (share > 0.1).then(|| {
            let what = format!(
                "The hypervisor takes {:.0} % of the CPU away from {}.",
                share * 100.0,
                evidence.name(end)
            );
            let cost = Cost::measured(share, format!("{:.0} % of the CPU", share * 100.0));
            CHECK.machine(what, cost).at(end).explains(&["slow-answers"]).evidence(
                "steal in /proc/stat during a transfer: fewer virtual CPUs than cores would cure it",
            )
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn steal_is_a_share_of_all_cpus() {
        let mut evidence = testing::healthy();
        let run = evidence.runs.iter_mut().find(|run| run.kind == RunKind::Stream).unwrap();
        run.report.machine.remote =
            Some(serde_json::from_str(r#"{"user":0.5,"system":0.5,"steal":0.5}"#).unwrap());
        let found = examine(&evidence);
        assert_eq!((found.len(), found[0].end), (1, Some(PathEnd::Far)));
    }
}
