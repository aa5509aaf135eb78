//! In captures: small writes that wait for a delayed acknowledgement.

use super::captured;
use crate::capture::Way;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "delayed-ack", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    captured::each(evidence, of)
}

fn of(way: &Way) -> Option<Finding> {
    let seen = &way.seen;
    let waited = seen.held_back_time as f64 / 1e9;
    let share = (waited / way.seconds().max(1e-3)).min(1.0);
    if seen.held_back < 5 || share < 0.05 {
        return None;
    }
    let what = format!(
        "The program at {} writes in small pieces, which wait for delayed acknowledgements.",
        way.from
    );
    let cost =
        Cost::measured(share, format!("{:.0} % of the connection's time is spent waiting", share * 100.0));
    let each = waited / seen.held_back as f64 * 1e6;
    let shown = format!("{} times data was held back, for {} each", seen.held_back, time(each));
    let remedy = Remedy::new(
        "in the sending program: one write for a message (writev, MSG_MORE, TCP_CORK), or TCP_NODELAY",
    )
    .lasting(
        "Windows",
        "at the receiver: TcpAckFrequency = 1 below HKLM\\SYSTEM\\CurrentControlSet\\Services\\Tcpip\\Parameters\\Interfaces",
    );
    Some(CHECK.slow(what, cost).evidence(shown).remedy(remedy))
}
