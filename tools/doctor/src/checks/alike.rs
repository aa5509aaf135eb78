//! Causes that have the same signs, and the experiment that tells them apart. Most are told apart by what was
//! measured anyway, or because one is the other's cause; where two of a pair remain, a report has both, each
//! with the experiment.

use crate::finding::Finding;

/// Two checks, and what decides between them.
const ALIKE: [(&str, &str, &str); 13] = [
    ("policing", "loss", "datagrams at a quarter of the rate: a limit drops none of them, a lossy path does"),
    (
        "rings",
        "loss",
        "the receiver's ethtool -S before and after: a full ring is counted there, other losses are not",
    ),
    ("backlog", "rings", "the second column of /proc/net/softnet_stat: it grows with the backlog only"),
    (
        "frame-order",
        "loss",
        "captures of both ends: what was overtaken is in the receiver's, what was lost is not",
    ),
    (
        "path-mtu",
        "super-frames-lost",
        "ping -M do with the MTU's size: a black hole loses that, broken offload does not",
    ),
    ("path-mtu", "loss", "ping with small packets, one a second: a black hole loses none of them"),
    ("latency", "interrupt-moderation", "ethtool -C with rx-usecs 0: a moderated card then answers at once"),
    ("latency", "bufferbloat", "round trips while nothing else is under way: a queue delays none of them"),
    (
        "busy-cpu",
        "steal",
        "top on the machine and on its host: stolen time is in none of the machine's programs",
    ),
    (
        "zero-window",
        "socket-buffers",
        "ss -tnm at the receiver: Recv-Q stays full where the program does not read",
    ),
    ("socket-buffers", "route", "ip route get at the receiver: an attribute window limits this route only"),
    (
        "zero-window",
        "busy-cpu",
        "the test server with chrt -f 1: its window then stays open if only CPU is missing",
    ),
    (
        "slow-answers",
        "neighbour",
        "arping of the address: another machine's MAC address answers where two have it",
    ),
];

/// Findings of a pair in one direction refer to each other.
pub fn refer(findings: &mut [Finding]) {
    for (one, other, experiment) in ALIKE {
        for (name, like) in [(one, other), (other, one)] {
            let froms: Vec<_> = of(findings, like).map(|finding| finding.from).collect();
            let same_way = |finding: &Finding| {
                froms.iter().any(|from| from.is_none() || finding.from.is_none() || *from == finding.from)
            };
            let found = findings.iter_mut().filter(|finding| finding.check == name && same_way(finding));
            found.for_each(|finding| {
                finding.evidence.push(format!("{like} has the same signs; what decides: {experiment}"));
            });
        }
    }
}

fn of<'a>(findings: &'a [Finding], check: &'a str) -> impl Iterator<Item = &'a Finding> {
    findings.iter().filter(move |finding| finding.check == check)
}

#[cfg(test)]
mod tests;
