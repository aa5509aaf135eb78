//! Two faults at once, chosen at random.

use std::collections::BTreeSet;

use vmlane_tests::Bed;

use super::faults::Fault;
use super::namespaces::{numbers, seed};

/// Of so many pairs, at least so many must be found as a whole.
const PAIRS: (usize, usize) = (20, 17);

/// What a fault takes for itself: two that take the same cannot be put in at once.
fn takes(fault: &Fault) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (guest, line) in fault.put {
        for word in ["clsact", "netem", " mtu ", "tcp_rmem", "tcp_wmem", "ethtool -K", "address", "lro"] {
            // netem on an ifb is behind the filter that leads there, not at the root of the card.
            if line.contains(word) {
                all.insert(format!("{guest} {word}"));
            }
        }
    }
    // One may hide the other: what is lost on the way shows nothing of a queue, and the other way round.
    let is_on_the_way = ["queueing", "traffic-filter"];
    all.extend(is_on_the_way.contains(&fault.check).then(|| "the way".to_owned()));
    all.insert(fault.check.to_owned());
    all
}

/// Puts both in, examines with `examine`, and takes both out. Those that were not found.
fn missed(bed: &Bed, pair: [&Fault; 2], examine: &impl Fn(bool) -> Vec<String>) -> Vec<&'static str> {
    pair.iter().for_each(|fault| fault.put_into(bed));
    let report = examine(!pair.iter().any(|fault| fault.is_long));
    pair.iter().rev().for_each(|fault| fault.take_out_of(bed));
    let is_found = |fault: &Fault| report.iter().any(|sentence| fault.is_in(sentence));
    let missed: Vec<&str> = pair.iter().filter(|fault| !is_found(fault)).map(|fault| fault.name).collect();
    println!(
        "  {} and {}: {}",
        pair[0].name,
        pair[1].name,
        if missed.is_empty() { "both" } else { "not both" }
    );
    if !missed.is_empty() {
        println!("    missed {missed:?}: {report:#?}");
    }
    missed
}

/// How many of how many pairs were found as a whole.
pub fn find_pairs(bed: &Bed, faults: &[&Fault], examine: impl Fn(bool) -> Vec<String>) -> (usize, usize) {
    let seed = seed();
    println!("  VMLANE_SEED={seed}");
    let mut random = numbers(seed);
    let mut whole = 0;
    for _ in 0..PAIRS.0 {
        let pair = loop {
            let pick = [0, 1].map(|_| faults[random(faults.len() as u64) as usize]);
            if takes(pick[0]).is_disjoint(&takes(pick[1])) {
                break pick;
            }
        };
        whole += usize::from(missed(bed, pair, &examine).is_empty());
    }
    assert!(whole >= PAIRS.1, "both faults were found in {whole} of {} pairs (VMLANE_SEED={seed})", PAIRS.0);
    (whole, PAIRS.0)
}
