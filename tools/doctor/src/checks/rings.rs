//! Rings of descriptors that are too small, or full.

use crate::change::{Change, RingSide};
use crate::facts::{Interface, Rings};
use crate::prelude::*;

pub const CHECK: Check = Check { name: "rings", examine };

const RX: u32 = 256;
const TX: u32 = 128;
/// Counters of frames that were dropped because no buffer was free: the kernel's, and drivers' own.
const DROPS: [&str; 6] = [
    "rx_missed_errors",
    "rx_fifo_errors",
    "rx_over_errors",
    "driver.pkts rx OOB",
    "driver.rx_no_buffer_count",
    "driver.rx_out_of_buffer",
];

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (end, _, card) in evidence.interfaces() {
        let Some(rings) = card.rings else { continue };
        let (dropped, received) = drops(evidence, end);
        let is_full = dropped > 10 && dropped as f64 > received as f64 / 1000.0;
        if rings.rx < RX && rings.rx_max > rings.rx || is_full {
            found.push(receiving(evidence, end, card, rings, (dropped, received)));
        }
        if rings.tx < TX && rings.tx_max > rings.tx {
            let what = format!(
                "The send ring of {} on {} is small: {} descriptors.",
                card.name,
                evidence.name(end),
                rings.tx
            );
            let cost = Cost::estimated(0.3, "the sender waits for the card more often than it needs to");
            let descriptors = rings.tx_max.min(512);
            let change = Change::Ring { interface: card.name.clone(), ring: RingSide::Tx, descriptors };
            let seen = format!("ethtool -g {}: tx {} of at most {}", card.name, rings.tx, rings.tx_max);
            let remedy = Remedy::ethtool("a larger send ring", change);
            found.push(CHECK.slow(what, cost).at(end).evidence(seen).remedy(remedy));
        }
    }
    found
}

fn receiving(
    evidence: &Evidence,
    end: PathEnd,
    card: &Interface,
    rings: Rings,
    (dropped, received): (u64, u64),
) -> Finding {
    let state = if dropped > 0 { "runs full" } else { "is small" };
    let what = format!(
        "The receive ring of {} on {} {state}: {} descriptors.",
        card.name,
        evidence.name(end),
        rings.rx
    );
    let cost = if dropped > 0 {
        Cost::measured(0.6, format!("{dropped} frames dropped, {received} received"))
    } else {
        Cost::estimated(0.4, "frames are dropped whenever this machine is kept waiting for a moment")
    };
    let seen = format!("ethtool -g {}: rx {} of at most {}", card.name, rings.rx, rings.rx_max);
    // Where most of what was lost was dropped here, nothing else has to be searched for.
    let lost = evidence.run(RunKind::Stream, end.other()).map_or(0, Run::lost_segments);
    let is_cause = dropped > 0 && dropped * 2 >= lost;
    let effects: &[&str] = if is_cause { &["policing", "loss", "retransmits"] } else { &[] };
    let finding = CHECK.slow(what, cost).at(end).of_way(end.other()).explains(effects).evidence(seen);
    if rings.rx >= rings.rx_max {
        let what = "the ring is as large as it can be: more queues, or more CPU for this machine";
        return finding.remedy(Remedy::new(what));
    }
    let descriptors = (rings.rx * 2).max(1024).min(rings.rx_max);
    let change = Change::Ring { interface: card.name.clone(), ring: RingSide::Rx, descriptors };
    finding.remedy(Remedy::ethtool("a larger receive ring", change).lasting(
        "Windows",
        format!("PowerShell: Set-NetAdapterAdvancedProperty -Name \"{}\" -DisplayName \"Rx Ring #1 Size\" -DisplayValue 4096", card.name),
    ))
}

/// Frames dropped for want of buffers and frames received, while this end received data.
fn drops(evidence: &Evidence, end: PathEnd) -> (u64, u64) {
    let Some(run) = evidence.run(RunKind::Stream, end.other()) else { return (0, 0) };
    let counters = &run.counters(end).interface;
    let count = |name: &str| counters.get(name).copied().unwrap_or(0);
    (DROPS.iter().map(|name| count(name)).max().unwrap_or(0), count("rx_packets"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn small_ones_and_full_ones_are_found() {
        let mut evidence = testing::healthy();
        testing::card(&mut evidence).rings = Some(Rings { rx: 32, rx_max: 4096, tx: 32, tx_max: 4096 });
        let found = examine(&evidence);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].remedies[0].temporary[0].join(" "), "ethtool -G eth0 rx 1024");
        testing::card(&mut evidence).rings = Some(Rings { rx: 32, rx_max: 32, tx: 32, tx_max: 32 });
        assert!(examine(&evidence).is_empty(), "the card has no larger ones");
        let run = evidence
            .runs
            .iter_mut()
            .find(|run| run.kind == RunKind::Stream && run.from == PathEnd::Far)
            .unwrap();
        run.near.interface.extend([("driver.pkts rx OOB".to_owned(), 50), ("rx_packets".to_owned(), 1000)]);
        assert!(examine(&evidence)[0].what.contains("runs full"));
    }
}
