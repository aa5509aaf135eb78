//! Interrupts that wait for too long.

use crate::change::Change;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "interrupt-moderation", examine };

const LONG: u32 = 200;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let trip = evidence.runs(RunKind::RoundTrips).find_map(|run| run.median_us());
    let found = evidence.interfaces().filter_map(|(end, _, card)| {
        let set = card.coalescing.filter(|set| set.rx_us >= LONG && !set.adaptive_rx)?;
        let what = format!(
            "Interrupts of {} on {} wait up to {} us for more frames.",
            card.name,
            evidence.name(end),
            set.rx_us
        );
        let share = trip.map_or(0.4, |trip| f64::from(set.rx_us) / trip.max(f64::from(set.rx_us)));
        let cost = Cost::estimated(share.min(0.7), format!("up to {} us of each round trip", set.rx_us));
        let change = Change::Moderation { interface: card.name.clone(), rx_us: 50 };
        let finding = CHECK.slow(what, cost)
            .at(end)
            .evidence(format!("ethtool -c {}: rx-usecs {}", card.name, set.rx_us))
            .remedy(
                Remedy::ethtool("shorter waits", change)
                    .lasting("VMware", "in the .vmx file: ethernet0.coalescingScheme = \"disabled\"")
                    .lasting(
                        "Windows",
                        format!("PowerShell: Set-NetAdapterAdvancedProperty -Name \"{}\" -RegistryKeyword *InterruptModeration -RegistryValue 0", card.name),
                    ),
            );
        Some(match trip {
            Some(trip) => finding.evidence(format!("round trips: {} in the median", time(trip))),
            None => finding,
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Coalescing;
    use crate::testing;

    #[test]
    fn long_waits_are_found() {
        let mut evidence = testing::healthy();
        let set = Coalescing { rx_us: 1000, ..Coalescing::default() };
        testing::card(&mut evidence).coalescing = Some(set);
        assert_eq!(examine(&evidence).len(), 1);
        testing::card(&mut evidence).coalescing = Some(Coalescing { adaptive_rx: true, ..set });
        assert!(examine(&evidence).is_empty());
    }
}
