//! A link's speed that is a label, and no limit.

use crate::facts::Interface;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "link-speed", examine };

/// Drivers of cards that are nothing but an agreement with the host.
const PARAVIRTUAL: [&str; 5] = ["vmxnet3", "virtio_net", "hv_netvsc", "xen_netfront", "veth"];

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let most = evidence.runs(RunKind::Stream).map(Run::bps).fold(0.0, f64::max);
    let found = evidence.interfaces().filter_map(|(end, _, card)| {
        let stated = label(card)?;
        let exceeded = most > stated * 1.05;
        let is_paravirtual = PARAVIRTUAL.contains(&card.driver.as_str());
        if !(exceeded || is_paravirtual && most >= stated / 2.0) {
            return None;
        }
        let what = format!(
            "The speed that {} on {} reports, {}, is a label and no limit.",
            card.name,
            evidence.name(end),
            rate(stated)
        );
        let cost = Cost::measured(0.0, "nothing");
        let seen = format!("measured: {}; the driver is {}", rate(most), card.driver);
        Some(CHECK.machine(what, cost).at(end).evidence(seen))
    });
    found.collect()
}

/// Bits per second; none where the speed is not known.
fn label(card: &Interface) -> Option<f64> {
    card.speed_mbit.filter(|speed| *speed > 0).map(|speed| speed as f64 * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_speed_that_is_exceeded_or_made_up_is_recognized() {
        let mut evidence = testing::healthy();
        // A gigabit a second is measured.
        for (driver, speed, is_found) in [
            ("vmxnet3", 10_000, false),
            ("vmxnet3", 1_500, true),
            ("vmxnet3", -1, false),
            ("e1000", 1_000, false),
            ("e1000", 900, true),
            ("ixgbe", 1_500, false),
        ] {
            testing::card(&mut evidence).driver = driver.to_owned();
            testing::card(&mut evidence).speed_mbit = Some(speed);
            let found = examine(&evidence);
            assert_eq!(found.len(), usize::from(is_found), "{driver} {speed}: {found:?}");
            assert!(found.iter().all(|finding| finding.severity == Severity::Machine));
        }
    }
}
