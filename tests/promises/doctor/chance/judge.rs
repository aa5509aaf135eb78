//! What the doctor reports of a fault, and whether that names it.

use serde::Serialize;
use serde_json::Value;
use vmlane_tests::Bed;

use super::effect::placed;
use super::grammar::{Fault, Layer};
use crate::doctor::from_host;

/// What stands for "something is wrong, and not what I know": neither right nor wrong.
const UNEXPLAINED: &str = vmlane_doctor::checks::unexplained::NAME;

pub fn is_check(name: &str) -> bool {
    name == UNEXPLAINED || vmlane_doctor::checks::ALL.iter().any(|check| check.name == name)
}

/// A report, judged.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    pub code: i32,
    /// The first findings: check, end, severity, sentence.
    pub findings: Vec<String>,
    /// Of the first finding that names a fault, from 1.
    pub rank: Option<usize>,
    /// Of two faults, whether each is named among the first three.
    pub is_whole: bool,
    /// Whether the first finding names a cause that is none.
    ///
    /// Not wrong are symptoms of the fault (the grammar lists them), `unexplained`, and an advice: it stands
    /// first only if nothing is broken or slow, and is no explanation of what is.
    pub is_wrong: bool,
    /// Whether the doctor says that all is well.
    pub is_nothing: bool,
    pub seconds: f64,
}

/// How many findings a reader sees first.
const FIRST: usize = 3;

/// Runs the doctor in guest a; where it finds nothing and a VMM has the fault, also on the host, which alone
/// can see that.
pub fn examine(bed: &Bed, to: &str, faults: &[Fault], quick: bool) -> Verdict {
    let quick = if quick { " --quick" } else { "" };
    let line = placed(&format!("timeout -s KILL 90 vmlane doctor --to {to} --json{quick}"));
    let output = bed.guest("a").exec(["sh", "-c", &line]);
    let output = output.unwrap_or_else(|error| panic!("the guest that examines: {error:#}"));
    let mut report: Value = serde_json::from_str(&output.stdout()).unwrap_or_default();
    let mut code = output.exit.code.unwrap_or(-1);
    if code == 0 && faults.iter().any(|fault| fault.mechanism.layer == Layer::Vmm) {
        (report, code) = from_host::doctor(bed, &["a", "b"]);
    }
    let mut verdict = judge(&report, faults);
    verdict.code = code;
    verdict.is_nothing = verdict.code == 0;
    verdict
}

fn judge(report: &Value, faults: &[Fault]) -> Verdict {
    let none = Vec::new();
    let findings = report["findings"].as_array().unwrap_or(&none);
    let names = |fault: &Fault, finding: &Value| fault.is_named(check(finding), finding["end"].as_str());
    let rank = findings.iter().position(|finding| faults.iter().any(|fault| names(fault, finding)));
    let among_first = |fault: &Fault| findings.iter().take(FIRST).any(|finding| names(fault, finding));
    Verdict {
        findings: findings.iter().take(FIRST).map(shown).collect(),
        rank: rank.map(|at| at + 1),
        is_whole: faults.iter().all(among_first),
        is_wrong: rank != Some(0) && findings.first().is_some_and(|finding| is_wrong(finding, faults)),
        seconds: report["seconds"].as_f64().unwrap_or(0.0),
        ..Verdict::default()
    }
}

fn check(finding: &Value) -> &str {
    finding["check"].as_str().unwrap_or_default()
}

fn is_wrong(finding: &Value, faults: &[Fault]) -> bool {
    let name = check(finding);
    finding["severity"] != "advice"
        && name != UNEXPLAINED
        && !faults.iter().any(|fault| fault.is_symptom(name))
}

fn shown(finding: &Value) -> String {
    let text = |key: &str| finding[key].as_str().unwrap_or("-").to_owned();
    format!("{} [{}, {}]: {}", text("check"), text("end"), text("severity"), text("what"))
}
