//! On how many boots of its labs a claim rests: results differ between boots of the same lab.

use std::collections::{BTreeMap, BTreeSet};

use super::base::{Data, over, value};
use crate::plan::Claim;
use crate::rows::Row;

/// The factor whose numbers are labs of their own.
const BOOT: &str = "boot";

impl Data<'_> {
    /// `one boot`, `3 boots`, `1 to 3 boots`: of each combination that the claim is about; none when nothing
    /// was measured. Every start of an experiment boots its labs anew, and so does every value of `boot`; a
    /// lab that was booted again after a failure counts once.
    pub fn boots(&self, claim: &Claim) -> Option<String> {
        let mut rows = self.matching(&claim.of);
        if !claim.over.is_empty() {
            rows.extend(self.matching(&over(&claim.of, &claim.over)));
        }
        let mut labs: BTreeMap<Vec<String>, BTreeSet<(&str, String)>> = BTreeMap::new();
        for row in rows.into_iter().filter(|row| value(row, claim.value).is_some()) {
            labs.entry(self.combination(row)).or_default().insert((&row.setup.date, row.factor(BOOT)));
        }
        let counts = || labs.values().map(BTreeSet::len);
        Some(match (counts().min()?, counts().max()?) {
            (_, 1) => "one boot".into(),
            (least, most) if least == most => format!("{most} boots"),
            (least, most) => format!("{least} to {most} boots"),
        })
    }

    /// What a row is of, whatever lab it was measured in.
    fn combination(&self, row: &Row) -> Vec<String> {
        let apart_from_labs = self.named.iter().filter(|name| **name != BOOT);
        apart_from_labs.map(|name| row.factor(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    const PLAN: &str = r#"
name = "t"
title = "T"
runs = 1
seconds = 1
[matrix]
device = ["vmci", "vmxnet3"]
boot = [1, 2]
[[claim]]
text = "VMCI is faster."
of = { device = "vmci" }
over = { device = "vmxnet3" }
"#;

    #[test]
    fn boots_are_counted_by_starts_and_by_labs() {
        let plan = Plan::parse(PLAN, false).unwrap();
        let row = |device: &str, date: &str, boot: &str| {
            let mut row = Row { device: device.into(), throughput_bps: Some(1.0), ..Row::default() };
            row.setup.date = date.into();
            row.factors.insert("boot".into(), boot.into());
            row
        };
        let failed = Row { failed: Some("no answer".into()), ..row("vmci", "Tuesday", "default") };
        let (a, b) = (row("vmci", "Monday", "default"), row("vmxnet3", "Monday", "default"));
        for (rows, boots) in [
            (vec![], None),
            (vec![failed.clone()], None),
            (vec![a.clone(), a.clone(), b.clone(), failed], Some("one boot")),
            (vec![a.clone(), row("vmci", "Tuesday", "default"), b.clone()], Some("1 to 2 boots")),
            (vec![a, row("vmci", "Monday", "2"), b, row("vmxnet3", "Monday", "2")], Some("2 boots")),
        ] {
            assert_eq!(Data::new(&rows, Some(&plan)).boots(&plan.claims[0]).as_deref(), boots);
        }
    }
}
