//! What nearly every check needs: the evidence, the parts of a finding, and how numbers are spelled.

pub use crate::checks::Check;
pub use crate::evidence::{Evidence, PathEnd, Run, RunKind};
pub use crate::finding::{Confidence, Cost, Finding, Severity};
pub use crate::remedy::Remedy;
pub use crate::text::{rate, size, time};

/// How a finding of a check begins, by its severity.
impl Check {
    pub fn broken(&self, what: impl Into<String>, cost: Cost) -> Finding {
        self.found(Severity::Broken, what, cost)
    }

    pub fn slow(&self, what: impl Into<String>, cost: Cost) -> Finding {
        self.found(Severity::Slow, what, cost)
    }

    pub fn advice(&self, what: impl Into<String>, cost: Cost) -> Finding {
        self.found(Severity::Advice, what, cost)
    }

    pub fn machine(&self, what: impl Into<String>, cost: Cost) -> Finding {
        self.found(Severity::Machine, what, cost)
    }

    pub fn found(&self, severity: Severity, what: impl Into<String>, cost: Cost) -> Finding {
        Finding::new(self.name, severity, what, cost)
    }
}
