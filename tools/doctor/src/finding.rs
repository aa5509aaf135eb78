//! What a check finds: one sentence, its evidence, its cost, and how to mend it.

use serde::Serialize;

use crate::change::Change;
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

/// How sure it is that this is the cause, and not something that has the same signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// It was seen to act while it was measured.
    Certain,
    Likely,
    /// It can be, and nothing shows that it is.
    Possible,
}

impl Confidence {
    pub fn name(self) -> &'static str {
        match self {
            Confidence::Certain => "certain",
            Confidence::Likely => "likely",
            Confidence::Possible => "possible",
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
    pub confidence: Confidence,
    /// The end whose data is affected, if it is one direction only.
    pub from: Option<PathEnd>,
    /// The machine that has it; none where it is between the two.
    pub end: Option<PathEnd>,
    /// One sentence.
    pub what: String,
    /// Numbers, and where they were read.
    pub evidence: Vec<String>,
    pub cost: Cost,
    pub remedies: Vec<Remedy>,
    /// Names of checks that find what this one causes.
    #[serde(skip)]
    pub explains: &'static [&'static str],
}

impl Finding {
    pub fn new(check: &'static str, severity: Severity, what: impl Into<String>, cost: Cost) -> Finding {
        Finding {
            check,
            severity,
            confidence: Confidence::Likely,
            from: None,
            end: None,
            what: sentence(what.into()),
            evidence: Vec::new(),
            cost,
            remedies: Vec::new(),
            explains: &[],
        }
    }

    /// Only what this end sends is affected.
    pub fn of_way(mut self, from: PathEnd) -> Finding {
        self.from = Some(from);
        self
    }

    pub fn confidence(mut self, confidence: Confidence) -> Finding {
        self.confidence = confidence;
        self
    }

    /// It is the cause of what these checks find in the same direction.
    pub fn explains(mut self, checks: &'static [&'static str]) -> Finding {
        self.explains = checks;
        self
    }

    fn is_cause_of(&self, other: &Finding) -> bool {
        let same_way = self.from.is_none() || other.from.is_none() || self.from == other.from;
        self.confidence < Confidence::Possible && same_way && self.explains.contains(&other.check)
    }

    /// What another check has found of the same cause becomes evidence of this one.
    fn absorb(&mut self, symptom: Finding) {
        self.evidence.push(format!("seen by {}: {}", symptom.check, symptom.what));
        self.evidence.extend(symptom.evidence);
        // Other remedies of a symptom hide it, and cost speed.
        let is_mtu =
            |remedy: &Remedy| remedy.changes.iter().any(|change| matches!(change, Change::Mtu { .. }));
        let end = symptom.end.filter(|end| self.end != Some(*end));
        let own = symptom.remedies.into_iter().filter(is_mtu);
        self.remedies.extend(own.map(|remedy| Remedy { end: remedy.end.or(end), ..remedy }));
        self.severity = self.severity.min(symptom.severity);
        if symptom.cost.share > self.cost.share {
            self.cost = symptom.cost;
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

/// The most important first. Findings alike stay in the order of the checks.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by(|one, other| {
        let by_severity = one.severity.cmp(&other.severity);
        let by_confidence = one.confidence.cmp(&other.confidence);
        // What is only possible comes behind all that is more.
        let is_possible = |finding: &Finding| finding.confidence == Confidence::Possible;
        let by_evidence = is_possible(one).cmp(&is_possible(other));
        by_evidence.then(by_severity).then(by_confidence).then(other.cost.share.total_cmp(&one.cost.share))
    });
}

/// Causes with their effects as evidence, the most important first.
pub fn settle(mut found: Vec<Finding>) -> Vec<Finding> {
    sort(&mut found);
    while let Some(at) = effect(&found) {
        let effect = found.remove(at);
        if let Some(cause) = found.iter_mut().find(|finding| finding.is_cause_of(&effect)) {
            cause.absorb(effect);
        }
    }
    sort(&mut found);
    found
}

/// An effect of another finding: one that has no effects itself, as long as there is one.
fn effect(found: &[Finding]) -> Option<usize> {
    let is_effect = |one: &Finding| found.iter().any(|other| other.is_cause_of(one));
    let is_cause = |one: &Finding| found.iter().any(|other| one.is_cause_of(other));
    let last = found.iter().position(|one| is_effect(one) && !is_cause(one));
    last.or_else(|| found.iter().rposition(is_effect))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(check: &'static str, severity: Severity) -> Finding {
        Finding::new(check, severity, format!("{check} it is."), Cost::estimated(0.5, "much"))
    }

    #[test]
    fn a_cause_takes_what_it_causes_in_the_same_direction() {
        let cause = finding("queueing", Severity::Slow).of_way(PathEnd::Near).explains(&["loss", "latency"]);
        let all = || {
            vec![
                finding("loss", Severity::Broken).of_way(PathEnd::Near),
                finding("loss", Severity::Broken).of_way(PathEnd::Far),
                finding("latency", Severity::Slow),
                finding("rings", Severity::Slow),
            ]
        };
        let names = |cause: Finding| {
            let found = settle([all(), vec![cause]].concat());
            found.iter().map(|finding| (finding.check, finding.severity)).collect::<Vec<_>>()
        };
        let (broken, slow) = (Severity::Broken, Severity::Slow);
        assert_eq!(
            names(cause.clone().confidence(Confidence::Certain)),
            [("queueing", broken), ("loss", broken), ("rings", slow)]
        );
        let possible = names(cause.confidence(Confidence::Possible));
        assert_eq!(
            possible.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["loss", "loss", "latency", "rings", "queueing"]
        );
    }

    #[test]
    fn a_remedy_that_a_cause_takes_stays_with_its_machine() {
        let mtu = Remedy::new("a smaller MTU").change(Change::Mtu { interface: "eth0".into(), mtu: 1500 });
        let of_remedy = |end: PathEnd, remedy: Remedy| {
            let mut cause = finding("traffic-filter", Severity::Slow).at(PathEnd::Far);
            cause.absorb(finding("path-mtu", Severity::Slow).at(end).remedy(remedy));
            cause.remedies[0].end
        };
        assert_eq!(of_remedy(PathEnd::Near, mtu.clone()), Some(PathEnd::Near));
        assert_eq!(of_remedy(PathEnd::Near, mtu.clone().on(PathEnd::Far)), Some(PathEnd::Far));
        assert_eq!(of_remedy(PathEnd::Far, mtu), None);
    }
}
