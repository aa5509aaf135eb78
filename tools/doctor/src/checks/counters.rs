//! What the kernel counted while it was measured: room that was used up, and time that was spent waiting for
//! it. One table, a row a cause.

use super::slow_answers;
use crate::facts::{Facts, SOFTNET_DROPS};
use crate::prelude::*;

/// A cause, and the counters that show it.
struct Cause {
    name: &'static str,
    counters: &'static [&'static str],
    /// From so much on, in all.
    least: f64,
    /// The counters are microseconds, and `least` a part of the time that was measured.
    is_time: bool,
    /// Behind the machine's name.
    what: &'static str,
    costs: &'static str,
    share: f64,
    explains: &'static [&'static str],
    remedy: fn(&Facts) -> Remedy,
    /// What else belongs to it.
    context: fn(&Facts) -> Option<String>,
    /// What has to hold beside it, where the counters alone prove nothing.
    holds: fn(&Evidence, PathEnd) -> bool,
}

const CONNTRACK_CAUSE: Cause = Cause {
    name: "conntrack",
    counters: &["Conntrack.drop", "Conntrack.early_drop"],
    least: 1.0,
    is_time: false,
    what: "has no room for more connections in its table (conntrack), and drops packets of new ones.",
    costs: "connections that do not open, or only after a second",
    share: 0.7,
    explains: &["loss", "retransmits", "path-mtu"],
    remedy: |_| Remedy::sysctl("net.netfilter.nf_conntrack_max", "262144"),
    context: |facts| {
        let number = |name: &str| facts.sysctls.number(&format!("net.netfilter.nf_conntrack_{name}"));
        Some(format!("{} entries of at most {}", number("count")?, number("max")?))
    },
    holds: |_, _| true,
};
const TCP_MEMORY_CAUSE: Cause = Cause {
    name: "tcp-memory",
    counters: &["TcpExt.TCPMemoryPressures", "TcpExt.TCPAbortOnMemory"],
    least: 1.0,
    is_time: false,
    what: "has used up the memory that all of its TCP connections may have (tcp_mem): it drops what arrives and closes windows.",
    costs: "what is dropped is sent again after time-outs",
    share: 0.8,
    explains: &[
        "loss",
        "retransmits",
        "zero-window",
        "super-frames-lost",
        "sender-limit",
        "socket-buffers",
        "policing",
    ],
    remedy: |facts| {
        let pages = (facts.machine.memory / 4096 / 8).max(4096);
        Remedy::sysctl("net.ipv4.tcp_mem", &format!("{} {pages} {}", pages * 3 / 4, pages * 3 / 2))
    },
    context: |facts| Some(format!("net.ipv4.tcp_mem is {} pages", facts.sysctls.0.get("net.ipv4.tcp_mem")?)),
    // Several connections at once use up the memory of a small machine; that costs nothing.
    holds: |evidence, end| {
        let mut few = evidence.runs.iter().filter(|run| run.kind != RunKind::Streams);
        few.any(|run| TCP_MEMORY_CAUSE.counters.iter().any(|name| run.counters(end).stack(name) > 0))
    },
};
/// Pressure that lasts since before is not counted again: what sockets had to give back and to drop is. A
/// socket that is full counts there, too: one duplicate of a large segment is enough.
const TCP_MEMORY_HELD_CAUSE: Cause = Cause {
    counters: &["TcpExt.PruneCalled", "TcpExt.TCPRcvQDrop"],
    holds: |evidence, end| {
        let Some(facts) = evidence.facts(end) else { return false };
        let bounds = facts.sysctls.0.get("net.ipv4.tcp_mem");
        // Below the first bound there is no pressure.
        let least = bounds.and_then(|bounds| bounds.split_whitespace().next()?.parse::<u64>().ok());
        facts.load.tcp_pages.zip(least).is_some_and(|(pages, least)| pages >= least)
    },
    ..TCP_MEMORY_CAUSE
};
const CPU_QUOTA_CAUSE: Cause = Cause {
    name: "cpu-quota",
    counters: &["Cgroup.ThrottledUsec"],
    least: 0.05,
    is_time: true,
    what: "has a control group whose quota of CPU time stops programs such as this one.",
    costs: "a program that is stopped neither sends nor reads",
    share: 0.85,
    explains: &[
        "sender-limit",
        "zero-window",
        "slow-answers",
        "latency",
        "machine-limit",
        "bufferbloat",
        "steal",
        "retransmits",
    ],
    remedy: |facts| {
        let group = facts.limits.quota.as_ref().map_or("GROUP", |quota| quota.group.as_str());
        Remedy::new("raise the quota (cpu.max), of the service or container that the program runs in")
            .run(&["cat", &format!("/sys/fs/cgroup/{group}/cpu.stat")])
            .lasting("systemd", "systemctl set-property UNIT CPUQuota=")
    },
    context: |facts| {
        let quota = facts.limits.quota.as_ref()?;
        Some(format!("/sys/fs/cgroup/{}/cpu.max allows {:.2} CPUs", quota.group, quota.cpus))
    },
    holds: |_, _| true,
};
const PRESSURE_CAUSE: Cause = Cause {
    name: "memory-pressure",
    counters: &["Pressure.MemoryUsec"],
    least: 0.1,
    is_time: true,
    what: "is short of memory: its programs wait for it.",
    costs: "every program waits, and so does what it sends and reads",
    share: 0.6,
    explains: &["sender-limit", "zero-window", "slow-answers", "latency", "busy-cpu"],
    remedy: |_| {
        Remedy::new("find out what uses the memory")
            .run(&["cat", "/proc/pressure/memory"])
            .run(&["free", "-m"])
    },
    context: |facts| Some(format!("{} MiB of memory in all", facts.machine.memory >> 20)),
    holds: |_, _| true,
};
const ACCEPT_QUEUE_CAUSE: Cause = Cause {
    name: "accept-queue",
    counters: &[
        "TcpExt.ListenOverflows",
        "TcpExt.ListenDrops",
        "TcpExt.TCPReqQFullDrop",
        "TcpExt.SyncookiesSent",
    ],
    least: 1.0,
    is_time: false,
    what: "refuses or delays new connections: the queue of a listening program is full.",
    costs: "connections that open only after a second, or not at all",
    share: 0.5,
    explains: &["slow-answers"],
    remedy: |_| {
        let remedy = Remedy::new("let the program accept faster, or give it a longer queue");
        let limits = ["sysctl", "net.core.somaxconn", "net.ipv4.tcp_max_syn_backlog"];
        remedy.run(&["ss", "-ltn"]).run(&limits)
    },
    context: |facts| Some(format!("net.core.somaxconn is {}", facts.sysctls.number("net.core.somaxconn")?)),
    holds: |_, _| true,
};

const PAUSES_CAUSE: Cause = Cause {
    name: "slow-answers",
    counters: &["Program.PausedUsec"],
    least: 0.05,
    is_time: true,
    what: "does not let programs such as this one run all the time: it answers late.",
    costs: "a program that is stopped neither sends nor reads",
    share: 0.8,
    explains: &["latency", "sender-limit", "zero-window", "loss", "retransmits", "policing", "bufferbloat"],
    remedy: |_| slow_answers::remedy(),
    context: |_| Some("pauses of 40 ms and more of a thread that sleeps for 10 ms".to_owned()),
    holds: |_, _| true,
};

pub const CONNTRACK: Check = Check { name: "conntrack", examine: |seen| of(seen, &CONNTRACK_CAUSE) };
pub const TCP_MEMORY: Check = Check {
    name: "tcp-memory",
    examine: |seen| {
        let found = of(seen, &TCP_MEMORY_CAUSE);
        if found.is_empty() { of(seen, &TCP_MEMORY_HELD_CAUSE) } else { found }
    },
};
pub const CPU_QUOTA: Check = Check { name: "cpu-quota", examine: |seen| of(seen, &CPU_QUOTA_CAUSE) };
pub const MEMORY_PRESSURE: Check =
    Check { name: "memory-pressure", examine: |seen| of(seen, &PRESSURE_CAUSE) };
pub const ACCEPT_QUEUE: Check = Check { name: "accept-queue", examine: |seen| of(seen, &ACCEPT_QUEUE_CAUSE) };
/// Programs that were stopped for moments.
pub const PAUSES: fn(&Evidence) -> Vec<Finding> = |evidence| of(evidence, &PAUSES_CAUSE);
pub const BACKLOG: Check = Check { name: "backlog", examine: backlog };
pub const OTHER_TRAFFIC: Check = Check { name: "other-traffic", examine: other_traffic };

fn of(evidence: &Evidence, cause: &Cause) -> Vec<Finding> {
    let seconds: f64 = evidence.runs.iter().map(|run| run.report.seconds).sum();
    let found = evidence.ends().filter_map(|(end, facts)| {
        let counts = cause.counters.iter().map(|name| (*name, evidence.sum(end, name)));
        let counts: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
        let all = counts.iter().map(|(_, count)| *count as f64).fold(0.0, f64::max);
        let least = if cause.is_time { cause.least * seconds.max(1.0) * 1e6 } else { cause.least };
        if all < least || !(cause.holds)(evidence, end) {
            return None;
        }
        let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name}: {count}")).collect();
        let what = format!("{} {}", evidence.name(end), cause.what);
        let cost = Cost::measured(cause.share, cause.costs);
        let seen = format!("counted while it was measured: {}", counts.join(", "));
        let finding = certain(Finding::new(cause.name, Severity::Slow, what, cost), end, cause.explains);
        let finding = finding.evidence(seen).remedy((cause.remedy)(facts));
        Some((cause.context)(facts).into_iter().fold(finding, Finding::evidence))
    });
    found.collect()
}

/// Frames that were dropped between the card and the stack.
fn backlog(evidence: &Evidence) -> Vec<Finding> {
    let found = PathEnd::BOTH.into_iter().filter_map(|end| {
        let (name, dropped) = (evidence.name(end), evidence.sum(end, SOFTNET_DROPS));
        let what =
            format!("{name} drops received frames before its stack sees them: a CPU's backlog is full.");
        let found = BACKLOG.slow(what, Cost::measured(0.5, format!("{dropped} frames"))).of_way(end.other());
        let seen = format!("{dropped} in the second column of /proc/net/softnet_stat");
        let finding = certain(found, end, &["loss", "retransmits", "policing"]).evidence(seen);
        let remedy = Remedy::sysctl("net.core.netdev_max_backlog", "1000");
        (dropped >= 10).then(|| finding.remedy(remedy))
    });
    found.collect()
}

fn certain(finding: Finding, end: PathEnd, explains: &'static [&'static str]) -> Finding {
    finding.confidence(Confidence::Certain).at(end).explains(explains)
}

/// Frames of others, counted while only small requests were under way: as many as those, and more than so
/// many a second.
const FEW: f64 = 500.0;

fn other_traffic(evidence: &Evidence) -> Vec<Finding> {
    let Some(run) = evidence.runs(RunKind::RoundTrips).next() else { return Vec::new() };
    let ours = run.per_second();
    // On a loopback, both ends' frames are counted as one's.
    let cards = evidence.interfaces().filter(|(.., interface)| interface.is_card());
    let found = cards.filter_map(|(end, ..)| {
        let count = |name| run.counters(end).interface.get(name).copied().unwrap_or(0) as f64;
        // A request is a frame and at most one acknowledgement each way.
        let others = |name| count(name) / run.report.seconds.max(0.1) - 2.2 * ours;
        let (received, sent) = (others("rx_packets"), others("tx_packets"));
        let (many, how) = if received >= sent { (received, "receives") } else { (sent, "sends") };
        let what =
            format!("{} {how} {many:.0} frames a second that are not the doctor's.", evidence.name(end));
        let cost = Cost::estimated(0.3, "the CPU and the room in its card that they need");
        let remedy = Remedy::new("find out whose they are").run(&["tcpdump", "-nc", "100"]);
        let seen = format!("while {ours:.0} small requests a second were measured (rx_packets, tx_packets)");
        (many >= ours.max(FEW)).then(|| OTHER_TRAFFIC.slow(what, cost).at(end).evidence(seen).remedy(remedy))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_cause_is_found_where_its_own_counter_has_moved() {
        for (cause, count, is_found) in [
            (&CONNTRACK_CAUSE, 1, true),
            (&CONNTRACK_CAUSE, 0, false),
            (&TCP_MEMORY_CAUSE, 1, true),
            (&CPU_QUOTA_CAUSE, 3_000_000, true),
            (&CPU_QUOTA_CAUSE, 20_000, false),
            (&PRESSURE_CAUSE, 3_000_000, true),
            (&PAUSES_CAUSE, 3_000_000, true),
            (&PAUSES_CAUSE, 50_000, false),
            (&ACCEPT_QUEUE_CAUSE, 2, true),
        ] {
            let mut evidence = testing::healthy();
            evidence.runs[0].far.stack.insert(cause.counters[0].to_owned(), count);
            let found = of(&evidence, cause);
            assert_eq!(found.len(), usize::from(is_found), "{} {count}", cause.name);
            assert!(found.iter().all(|finding| finding.end == Some(PathEnd::Far)));
        }
    }

    #[test]
    fn a_full_socket_is_no_lack_of_memory_for_tcp() {
        let mut evidence = testing::healthy();
        evidence.runs[0].far.stack.insert("TcpExt.TCPRcvQDrop".to_owned(), 9);
        for (pages, is_found) in [(None, false), (Some(4095), false), (Some(4096), true)] {
            let far = testing::far(&mut evidence);
            far.sysctls.0.insert("net.ipv4.tcp_mem".to_owned(), "4096 8192 16384".to_owned());
            far.load.tcp_pages = pages;
            assert_eq!((TCP_MEMORY.examine)(&evidence).len(), usize::from(is_found), "{pages:?}");
        }
    }

    #[test]
    fn pressure_of_several_connections_at_once_is_no_fault() {
        for (kind, is_found) in [(RunKind::Streams, false), (RunKind::Stream, true)] {
            let mut evidence = testing::healthy();
            let stream = evidence.runs.iter_mut().find(|run| run.kind == RunKind::Stream).unwrap();
            stream.kind = kind;
            stream.far.stack.insert("TcpExt.TCPMemoryPressures".to_owned(), 4);
            assert_eq!((TCP_MEMORY.examine)(&evidence).len(), usize::from(is_found), "{kind:?}");
        }
    }

    #[test]
    fn many_frames_beside_few_requests_are_of_others() {
        for (frames, is_found) in [(0, false), (2_100, false), (3_300, true)] {
            let mut evidence = testing::healthy();
            evidence.runs[0].far.interface.insert("rx_packets".to_owned(), frames);
            assert_eq!(other_traffic(&evidence).len(), usize::from(is_found), "{frames} in a second");
            testing::far(&mut evidence).interfaces[0].bus.clear();
            assert!(other_traffic(&evidence).is_empty(), "no card");
        }
    }

    #[test]
    fn dropped_backlogs_are_the_receivers() {
        let mut evidence = testing::healthy();
        evidence.runs[0].near.stack.insert(SOFTNET_DROPS.to_owned(), 99);
        assert_eq!(backlog(&evidence)[0].from, Some(PathEnd::Far));
    }
}
