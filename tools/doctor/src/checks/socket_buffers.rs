//! TCP's buffers against what is in flight.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "socket-buffers", examine };

const LEAST: u64 = 1 << 20;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for run in evidence.runs(RunKind::Stream) {
        for (setting, end, usual, windows) in [
            ("net.ipv4.tcp_rmem", run.from.other(), "4096 131072 6291456", "receive window"),
            ("net.ipv4.tcp_wmem", run.from, "4096 16384 4194304", "send buffer"),
        ] {
            let Some(facts) = evidence.facts(end) else { continue };
            let Some(largest) = facts.sysctls.largest(setting).filter(|largest| *largest < LEAST) else {
                continue;
            };
            let tcp = run.tcp().unwrap_or_default();
            let waited = if end == run.from { tcp.sndbuf_limited_us } else { tcp.rwnd_limited_us };
            let share = waited as f64 / tcp.busy_us.max(1) as f64;
            let trip = tcp.rtt_us.max(1.0);
            let most = largest as f64 / 2.0 * 8.0 / trip * 1e6;
            let way = evidence.way(run.from);
            let (name, size) = (evidence.name(end), size(largest));
            let what = format!(
                "{setting} of {name} lets a {windows} grow to {size} only, which limits throughput {way}."
            );
            let (most, measured) = (rate(most), rate(run.bps()));
            let text = format!("at most {most} in round trips of {}; measured {measured}", time(trip));
            // Below 64 KiB not even two super-frames fit.
            let weight = (1.0 - largest as f64 / LEAST as f64) * 0.5 + share.min(1.0) * 0.45;
            let value = facts.sysctls.0.get(setting).cloned().unwrap_or_default();
            let waited = format!(
                "of its time, the transfer waited {:.0} % for the {windows} (TCP_INFO)",
                share.min(1.0) * 100.0
            );
            let finding = CHECK.slow(what, Cost::estimated(weight, text)).at(end);
            let finding = finding.evidence(format!("{setting}: {value}")).evidence(waited);
            found.push(finding.remedy(Remedy::sysctl(setting, usual)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn each_direction_has_its_own_buffers() {
        let mut evidence = testing::healthy();
        evidence.near.sysctls.0.insert("net.ipv4.tcp_rmem".to_owned(), "4096 8192 16384".to_owned());
        let found = examine(&evidence);
        assert_eq!((found.len(), found[0].end), (1, Some(PathEnd::Near)));
        assert!(found[0].what.contains("from b to a"), "{}", found[0].what);
    }
}
