//! What a check finds: one sentence, its evidence, its cost, and how to mend it.

use serde::Serialize;

use crate::evidence::PathEnd;
use crate::remedy::Remedy;

/// In the order of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something does not get through at all, or only after time-outs.
    Broken,
    /// Something costs throughput or time.
    Slow,
    /// Works, but is not how it should be.
    Advice,
    /// The machine's own: no setting of its network changes it. Kept apart in the report.
    Machine,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Broken => "broken",
            Severity::Slow => "slow",
            Severity::Advice => "advice",
            Severity::Machine => "machine",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    Measured,
    Estimated,
}

/// What the finding costs.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    pub basis: Basis,
    pub text: String,
    /// Which part of the throughput or of the time is lost, from 0 to 1: findings of one severity are sorted
    /// by it.
    pub share: f64,
}

impl Cost {
    pub fn measured(share: f64, text: impl Into<String>) -> Cost {
        Cost { basis: Basis::Measured, text: text.into(), share: share.clamp(0.0, 1.0) }
    }

    pub fn estimated(share: f64, text: impl Into<String>) -> Cost {
        Cost { basis: Basis::Estimated, text: text.into(), share: share.clamp(0.0, 1.0) }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    pub severity: Severity,
    /// The machine that has it; none where it is between the two.
    pub end: Option<PathEnd>,
    /// One sentence.
    pub what: String,
    /// Numbers, and where they were read.
    pub evidence: Vec<String>,
    pub cost: Cost,
    pub remedies: Vec<Remedy>,
}

impl Finding {
    pub fn new(check: &'static str, severity: Severity, what: impl Into<String>, cost: Cost) -> Finding {
        Finding {
            check,
            severity,
            end: None,
            what: sentence(what.into()),
            evidence: Vec::new(),
            cost,
            remedies: Vec::new(),
        }
    }

    pub fn at(mut self, end: PathEnd) -> Finding {
        self.end = Some(end);
        self
    }

    pub fn evidence(mut self, line: impl Into<String>) -> Finding {
        self.evidence.push(line.into());
        self
    }

    pub fn remedy(mut self, remedy: Remedy) -> Finding {
        self.remedies.push(remedy);
        self
    }

    /// Where the guide explains it.
    pub fn guide(&self) -> String {
        format!("docs/guide/slow-network.md#{}", self.check)
    }
}

/// With a capital where it begins with a machine; names of settings stay as they are written.
fn sentence(text: String) -> String {
    match text.strip_prefix("this machine") {
        Some(rest) => format!("This machine{rest}"),
        None => match text.strip_prefix("the other machine") {
            Some(rest) => format!("The other machine{rest}"),
            None => text,
        },
    }
}

/// The most important first. Stable: findings alike stay in the order of the checks.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by(|one, other| {
        one.severity.cmp(&other.severity).then(other.cost.share.total_cmp(&one.cost.share))
    });
}
