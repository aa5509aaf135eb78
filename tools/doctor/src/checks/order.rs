//! In captures: frames that overtake each other, and frames that come twice.

use super::captured;
use crate::capture::{self, Way};
use crate::prelude::*;

pub const CHECK: Check = Check { name: "frame-order", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = captured::each(evidence, |way| of(way, way.seen.overtaken, "overtaken by later ones"));
    found.extend(captured::each(evidence, |way| {
        (!capture::is_twice(way)).then(|| of(way, way.seen.duplicates, "doubled"))?
    }));
    found
}

fn of(way: &Way, count: u64, how: &str) -> Option<Finding> {
    let share = count as f64 / way.seen.frames.max(1) as f64;
    if count < 10 || share <= 0.005 {
        return None;
    }
    let (from, to) = (way.from.ip(), way.to.ip());
    let what = format!("{:.1} % of the frames from {from} to {to} are {how}.", share * 100.0);
    let cost = Cost::estimated(0.2 + share, "TCP takes them for losses and slows down");
    let remedy = Remedy::new("search for several paths for one connection (bonds, teams, RPS, per-packet balancing), loops and mirrors")
        .run(&["cat", "/proc/net/bonding/INTERFACE"])
        .run(&["bridge", "-s", "link"]);
    let shown = format!("{count} of {} frames", way.seen.frames);
    Some(CHECK.slow(what, cost).evidence(shown).remedy(remedy))
}
