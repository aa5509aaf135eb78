//! In captures: a receive window that is smaller than the path.

use std::net::IpAddr;

use super::captured;
use crate::capture::Way;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "small-window", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    captured::each(evidence, of)
}

fn of(way: &Way) -> Option<Finding> {
    let seen = &way.seen;
    let (usual, shortest) = way.round_trip()?;
    let waited = seen.window_wait as f64 / 1e9 / way.seconds().max(1e-3);
    if seen.frames < 50 || waited < 0.5 || usual > 2 * shortest + 50_000 {
        return None;
    }
    let (from, to) = (way.from.ip(), way.to.ip());
    let window = seen.window_most;
    let unscaled = without_scale(way);
    let most = window as f64 * 8.0 / (usual as f64 / 1e9);
    let seen_line = format!(
        "a window of {}, round trips of {}: at most {}; {} of {} frames filled it, and the sender waited for {:.0} % of the time",
        size(window),
        time(usual as f64 / 1e3),
        rate(most),
        seen.window_full,
        seen.frames,
        waited * 100.0
    );
    let (what, remedy) = match unscaled {
        Some((end, how)) => (
            format!("{end} {how} connections without window scaling, so at most 64 KiB are under way."),
            Remedy::sysctl("net.ipv4.tcp_window_scaling", "1"),
        ),
        None => (
            format!("The receive window of {to} is too small for the path from {from}."),
            Remedy::sysctl("net.ipv4.tcp_rmem", "4096 131072 16777216"),
        ),
    };
    let cost = Cost::estimated(0.6, format!("{} were reached, and no more can be", rate(way.bps())));
    let finding = CHECK.slow(what, cost).evidence(seen_line).remedy(remedy);
    Some(match unscaled {
        Some((end, _)) => finding.evidence(format!(
            "the first segment of {end} has no window scale in this capture; if it has one where it is sent, something between takes it out"
        )),
        None => finding,
    })
}

/// The end to which it is due that windows are not scaled. The one that answers has no choice if the other
/// one asks for nothing.
fn without_scale(way: &Way) -> Option<(IpAddr, &'static str)> {
    let mut ends = [(way.from.ip(), way.sender?), (way.to.ip(), way.receiver?)];
    ends.sort_by_key(|(_, opening)| opening.answers);
    let (end, opening) = ends.into_iter().find(|(_, opening)| opening.window_scale.is_none())?;
    Some((end, if opening.answers { "answers" } else { "opens" }))
}
