//! In captures: large segments that never arrive while small ones do.

use super::{captured, super_frames};
use crate::capture::Way;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "black-hole", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    captured::each(evidence, of)
}

pub fn is_in(way: &Way) -> bool {
    let seen = &way.seen;
    let is_one_segment = way.mss().is_none_or(|mss| seen.stuck_bytes <= mss);
    let stuck = seen.stuck_times >= 3 && is_one_segment && seen.stuck_bytes >= 256;
    // A path on which nothing arrives any more is no question of size.
    let is_stuck =
        stuck && seen.largest_acknowledged < seen.stuck_bytes && (seen.delivered > 0 || way.is_whole);
    (is_stuck || seen.ignored_mtu >= 2) && !super_frames::lost_in(way)
}

fn of(way: &Way) -> Option<Finding> {
    if !is_in(way) {
        return None;
    }
    let seen = &way.seen;
    let (from, to) = (way.from.ip(), way.to.ip());
    let headers = if from.is_ipv6() { 60 } else { 40 };
    let tunnel = "1400";
    if let Some(mtu) = seen.reported_mtu.filter(|_| seen.ignored_mtu >= 2) {
        let what = format!(
            "{from} was notified of an MTU of {mtu} on the way to {to} and sends larger packets all the same."
        );
        let cost = Cost::estimated(0.99, "what is larger never arrives");
        let remedy =
            Remedy::new(format!("let ICMP \"too big\" through to {from}, or set the MTU of its route"))
                .run(&["nft", "list", "ruleset"])
                .run(&["ip", "route", "change", &to.to_string(), "via", "GATEWAY", "mtu", &mtu.to_string()]);
        let shown = format!(
            "{} packets above {mtu} bytes were sent again after the router's message",
            seen.ignored_mtu
        );
        return Some(CHECK.broken(what, cost).evidence(shown).remedy(remedy));
    }
    let arrives =
        if seen.largest_acknowledged > 0 { "smaller ones do" } else { "its answer to the opening did come" };
    let what = format!("Segments of {} bytes from {from} never arrive at {to}; {arrives}.", seen.stuck_bytes);
    let cost = Cost::estimated(0.99, "the connection hangs as soon as it has much to send");
    let shown = format!(
        "{} bytes (a packet of {}) sent again {} times without an acknowledgement; the largest that was acknowledged: {}",
        seen.stuck_bytes,
        seen.stuck_bytes + headers,
        seen.stuck_times,
        seen.largest_acknowledged
    );
    let probing = Remedy::sysctl("net.ipv4.tcp_mtu_probing", "1");
    let remedy = Remedy::new(
        "find the link with the smaller MTU: ping with the don't-fragment bit, as large as the packet",
    )
    .run(&["ping", "-M", "do", "-c", "3", "-s", tunnel, &to.to_string()])
    .run(&["tracepath", "-n", &to.to_string()]);
    Some(CHECK.broken(what, cost).evidence(shown).remedy(remedy).remedy(probing))
}
