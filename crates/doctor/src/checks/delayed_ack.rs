//! In captures: small writes that wait for a delayed acknowledgement.

use super::{Check, Threshold, captured};
use crate::capture::Way;
use crate::evidence::Evidence;
use crate::finding::{Cost, Finding, Severity};
use crate::remedy::Remedy;
use crate::text::time;

pub const CHECK: Check = Check {
    name: "delayed-ack",
    title: "Small writes wait for delayed acknowledgements",
    text: "A program that writes a message in two pieces meets two rules that do not fit: the sender holds back the second piece \
           until the first one is acknowledged (Nagle), and the receiver waits with the acknowledgement for an answer to send it \
           with (40 ms in Linux, 200 ms in Windows). Each message then takes that long, on any network. It is the program that must \
           change: write a message at once, or set TCP_NODELAY.",
    reads: "in captures: a small segment alone under way, an empty acknowledgement that comes 35 ms or more later than a round trip takes, and data \
            right behind it",
    thresholds: &[Threshold {
        limit: "at least five times, and more than 5 % of the connection's time",
        source: "RFC 896 (Nagle) and RFC 9293, section 3.8.6.3 (delayed acknowledgements)",
    }],
    examine,
};

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
        "Windows, the receiving machine",
        "TcpAckFrequency = 1 below HKLM\\SYSTEM\\CurrentControlSet\\Services\\Tcpip\\Parameters\\Interfaces",
    );
    Some(Finding::new(CHECK.name, Severity::Slow, what, cost).evidence(shown).remedy(remedy))
}
