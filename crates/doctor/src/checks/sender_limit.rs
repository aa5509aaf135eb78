//! A sender that is itself the limit: no network cause.

use super::{Check, Threshold, captured};
use crate::capture::Way;
use crate::evidence::Evidence;
use crate::finding::{Cost, Finding, Severity};
use crate::remedy::Remedy;
use crate::text::{rate, time};

pub const CHECK: Check = Check {
    name: "sender-limit",
    title: "The sender is the limit, not the network",
    text: "If nothing is lost, the receiver's window is open and acknowledgements come at once, but segments leave at even, long \
           intervals, then the network waits for the sender: its CPU, its driver, its program. No setting of the network makes it \
           faster. A healthy sender of today leaves 1 to 2 us between full segments.",
    reads: "in captures of the sender's end: the time between full segments while at most half of the window is in use",
    thresholds: &[Threshold {
        limit: "4 to 100 us in the median, the quickest tenth above half of that, of at least 500 segments; less than one segment in 1000 \
                lost; round trips below twice the shortest; not within 7 % of the rate of a network card",
        source: "comment 17 of the article of 2013: 4.47 Gbit/s that no setting moved, segments of 8948 bytes every 7 to 10 us",
    }],
    examine,
};

/// Rates of cards, in bits a second: evenly spaced segments at such a rate are the card's pace.
const CARDS: [f64; 10] = [1e7, 1e8, 1e9, 2.5e9, 5e9, 1e10, 2.5e10, 4e10, 5e10, 1e11];

fn examine(evidence: &Evidence) -> Vec<Finding> {
    captured::each(evidence, of)
}

fn of(way: &Way) -> Option<Finding> {
    let seen = &way.seen;
    let (usual, shortest) = way.round_trip()?;
    let gaps = &seen.gaps;
    let (median, quick) = (gaps.at(0.5)?, gaps.at(0.1)?);
    let is_even = (4_000..100_000).contains(&median) && quick * 2 >= median;
    let enough = gaps.total() >= 500 && gaps.total() * 10 >= seen.frames * 8;
    let is_clean =
        way.lost_share() < 0.001 && seen.zero_windows == 0 && seen.window_full * 100 <= seen.frames;
    // At the receiver's end all data is acknowledged at once, and segments come as the narrowest link lets them.
    let is_senders = way.handshake.is_none_or(|handshake| shortest * 3 >= handshake);
    if !is_even || !enough || !is_clean || !is_senders || usual > 2 * shortest + 100_000 {
        return None;
    }
    let mss = way.mss()?;
    let wire = f64::from(mss + 90) / f64::from(mss) * way.bps();
    if CARDS.iter().any(|card| (0.93..=1.01).contains(&(wire / card))) {
        return None;
    }
    let (from, to) = (way.from.ip(), way.to.ip());
    let what = format!("No network cause: {from} itself sends no faster to {to}.");
    let cost = Cost::estimated(0.3, format!("{} were reached", rate(way.bps())));
    let shown = format!(
        "segments of {mss} bytes leave every {} in the median, where a healthy sender needs 1 to 2 us; {} of {} lost, a window of at \
         least {} bytes, of which at most {} were used, round trips of {}",
        spaced(median),
        seen.again.lost(),
        seen.segments,
        seen.window_least,
        seen.most_in_flight,
        time(usual as f64 / 1e3)
    );
    let remedy = Remedy::new("look at the sender: one CPU that is busy, segmentation offload, small writes, what the program waits for")
        .run(&["top", "-b", "-H", "-n", "1"])
        .run(&["ethtool", "-k", "INTERFACE"])
        .run(&["ss", "-tinm", "dst", &to.to_string()]);
    Some(Finding::new(CHECK.name, Severity::Slow, what, cost).evidence(shown).remedy(remedy))
}

fn spaced(nanoseconds: u64) -> String {
    format!("{:.1} us", nanoseconds as f64 / 1e3)
}
