//! What was set up to limit, delay or drop, and did so while it was measured.

use crate::facts::{Limit, Limits};
use crate::prelude::*;

pub const QUEUEING: Check = Check { name: "queueing", examine: queueing };
pub const TRAFFIC_FILTER: Check = Check { name: "traffic-filter", examine: traffic_filter };
pub const FIREWALL: Check = Check { name: "firewall", examine: firewall };
pub const XDP: Check = Check { name: "xdp", examine: xdp };

/// Findings of frames that are lost, late or few.
const SYMPTOMS: &[&str] = &[
    "bufferbloat",
    "latency",
    "loss",
    "frame-order",
    "path-mtu",
    "policing",
    "retransmits",
    "sender-limit",
    "super-frames-lost",
    "zero-window",
];
/// The kernel takes LRO off a card with such a program.
const OF_XDP: &[&str] = &[
    "latency",
    "loss",
    "policing",
    "receive-merging",
    "retransmits",
    "sender-limit",
    "super-frames-lost",
    "zero-window",
];
/// A measured rate so much above a limit does not pass through it.
const ABOVE: f64 = 1.15;
/// What a netem discipline may do to a frame, and what that is.
const EFFECTS: [(&str, &str); 6] = [
    ("delay", "delays frames by"),
    ("loss", "loses"),
    ("duplicate", "duplicates"),
    ("corrupt", "corrupts"),
    ("reorder", "reorders"),
    ("slot", "sends only every"),
];
/// Disciplines that drop to keep a queue short do so with few packets: the part of them from which it is
/// more.
const MUCH: f64 = 0.02;
/// Packets of one flow that fq queues, by default.
const FLOW_LIMIT: u32 = 100;
const ACTIVE: [&str; 7] = ["fq", "fq_codel", "codel", "cake", "pie", "fq_pie", "sfb"];

/// The end whose data passes a limit at `end`: what is on its card is for what it sends; the other places
/// are for what it receives.
fn sender(evidence: &Evidence, end: PathEnd, limit: &Limit) -> PathEnd {
    let card = evidence.facts(end).and_then(|facts| facts.path_interface()).map(|card| card.name.as_str());
    let sends = limit.place.split(' ').next() == card && !limit.place.ends_with(" ingress");
    if sends { end } else { end.other() }
}

/// The limits of one kind of both ends, with what they have counted.
fn counted(evidence: &Evidence, kind: fn(&Limits) -> &Vec<Limit>) -> impl Iterator<Item = (PathEnd, Limit)> {
    let both = PathEnd::BOTH.into_iter();
    both.flat_map(move |end| evidence.counted(end, kind).map(move |limit| (end, limit)))
}

fn queueing(evidence: &Evidence) -> Vec<Finding> {
    let found = counted(evidence, |limits| &limits.queueing).filter_map(|(end, limit)| {
        let from = sender(evidence, end, &limit);
        let effects = effects(evidence, from, &limit);
        let (name, place) = (evidence.name(end), limit.place.as_str());
        let what = format!("{} on {place} of {name} {}.", limit.kind(), effects.join(", "));
        let remedy = Remedy::new("remove the queueing discipline, or give it a higher limit")
            .run(&["tc", "-s", "qdisc", "show", "dev", place])
            .run(&["tc", "qdisc", "del", "dev", place, "root"]);
        let cost = Cost::measured(share(evidence, from), evidence.throughput(from));
        let finding = acted(&QUEUEING, what, cost).at(end).of_way(from);
        let seen = format!("{}; dropped meanwhile: {}", limit.text, limit.dropped);
        (!effects.is_empty()).then(|| finding.evidence(seen).remedy(remedy))
    });
    found.collect()
}

/// What was seen to act.
fn acted(check: &Check, what: String, cost: Cost) -> Finding {
    check.slow(what, cost).confidence(Confidence::Certain).explains(SYMPTOMS)
}

fn effects(evidence: &Evidence, from: PathEnd, limit: &Limit) -> Vec<String> {
    let runs = [RunKind::Stream, RunKind::Streams].into_iter().filter_map(|kind| evidence.run(kind, from));
    let reached = runs.map(|run| run.bps()).fold(0.0, f64::max);
    let acts = limit.rate().filter(|most| reached > 0.0 && reached <= most * ABOVE && reached > most / 4.0);
    let mut effects: Vec<String> =
        acts.map(|most| format!("lets {} through", rate(most))).into_iter().collect();
    effects.extend(EFFECTS.iter().filter(|_| limit.kind() == "netem").filter_map(|(word, text)| {
        let value = limit.word(word)?;
        Some(format!("{text} {value}"))
    }));
    if effects.is_empty() && is_full(limit) {
        let size = limit.word("limit").unwrap_or("few packets");
        effects.push(format!("drops what does not fit into its queue of {size}"));
    }
    effects
}

fn is_full(limit: &Limit) -> bool {
    // What filters drop of received frames is counted there, too.
    let enough = limit.dropped >= 10 && !["clsact", "ingress"].contains(&limit.kind());
    let flows =
        limit.word("flow_limit").and_then(|packets| packets.trim_end_matches('p').parse::<u32>().ok());
    let few_a_flow = flows.is_some_and(|packets| packets < FLOW_LIMIT);
    let is_active = ACTIVE.contains(&limit.kind()) && !few_a_flow;
    enough && (!is_active || limit.dropped as f64 > MUCH * limit.passed as f64)
}

/// Which part of the throughput is missing, compared with the other direction and the loopbacks.
pub fn share(evidence: &Evidence, from: PathEnd) -> f64 {
    let bps = |from| evidence.bps(from);
    let other = bps(from.other()).max(evidence.slower_loopback().unwrap_or(0.0) / 4.0);
    if other > 0.0 { (1.0 - bps(from) / other).max(0.3) } else { 0.5 }
}

fn traffic_filter(evidence: &Evidence) -> Vec<Finding> {
    let found = counted(evidence, |limits| &limits.filters).filter_map(|(end, limit)| {
        let (from, dropped, place) = (sender(evidence, end, &limit), limit.dropped, &limit.place);
        let name = evidence.name(end);
        let what = format!("A filter of tc ({place}) of {name} drops frames: {}.", limit.text);
        let cost = Cost::measured(share(evidence, from), format!("{dropped} packets"));
        let interface = place.split(' ').next().unwrap_or_default();
        let remedy = Remedy::new("remove the filter, or let it drop less")
            .run(&["tc", "-s", "filter", "show", "dev", interface, "ingress"])
            .run(&["tc", "qdisc", "del", "dev", interface, "clsact"]);
        let seen = format!("dropped while it was measured: {dropped} (tc -s filter show)");
        let finding = acted(&TRAFFIC_FILTER, what, cost).of_way(from).at(end);
        (dropped > 0).then(|| finding.evidence(seen).remedy(remedy))
    });
    found.collect()
}

fn firewall(evidence: &Evidence) -> Vec<Finding> {
    let found = counted(evidence, |limits| &limits.firewall).filter_map(|(end, limit)| {
        let Limit { place, text, dropped, matched, counts, .. } = limit;
        let (name, is_policy) = (evidence.name(end), text.contains("policy drop"));
        let acts = dropped > 0 || text.contains("limit") && matched > 0;
        // A rule without a counter shows nothing; where frames are lost, it may be what loses them.
        let may_be = !counts && loses(evidence) && (!is_policy || evidence.unreachable.is_some());
        let confidence = if acts { Confidence::Certain } else { Confidence::Possible };
        let what = format!("A rule of the firewall of {name} drops or limits packets: {text}.");
        let met = format!("{} packets met it while it was measured", dropped + matched);
        let remedy = Remedy::new("check the rule; a counter in it shows whether it is met")
            .run(&["nft", "-a", "list", "ruleset"])
            .run(&["iptables-save", "-c"]);
        let finding = acted(&FIREWALL, what, Cost::measured(0.6, met)).confidence(confidence).at(end);
        (acts || may_be).then(|| finding.evidence(format!("{place}: {text}")).remedy(remedy))
    });
    found.collect()
}

/// Is anything lost on the way, whatever the reason?
fn loses(evidence: &Evidence) -> bool {
    let stream = evidence.runs(RunKind::Stream).any(|run| run.timeouts() > 0 || run.retransmitted() > 0.01);
    let probes = evidence.probes().any(|(_, run)| run.lost() > 0.01);
    stream || probes || !evidence.failed.is_empty() || evidence.unreachable.is_some()
}

fn xdp(evidence: &Evidence) -> Vec<Finding> {
    let found = evidence.ends().filter_map(|(end, facts)| {
        let program = facts.limits.xdp.as_deref()?;
        let card = &facts.path_interface()?.name;
        let drops = evidence.runs.iter().flat_map(|run| &run.counters(end).interface);
        let drops = drops.filter(|(name, _)| name.contains("xdp") && name.contains("drop"));
        let dropped: u64 = drops.map(|(_, count)| count).sum();
        let name = evidence.name(end);
        let what = match dropped {
            0 => format!("A program of XDP on {card} of {name} handles each frame before the network stack."),
            _ => format!("A program of XDP on {card} of {name} drops frames."),
        };
        let (severity, confidence) = match dropped {
            0 if program.starts_with("native") => (Severity::Advice, Confidence::Possible),
            // It gets frames of one page only, and so takes merged ones apart.
            0 => (Severity::Slow, Confidence::Likely),
            _ => (Severity::Broken, Confidence::Certain),
        };
        let remedy = Remedy::new("find out which program it is, and take it off")
            .run(&["bpftool", "net", "show", "dev", card])
            .run(&["ip", "link", "set", "dev", card, "xdp", "off"]);
        let cost = Cost::estimated(0.4, "frames that it drops, and merging that it prevents");
        let seen = format!("{program} (ip link show {card}); dropped meanwhile: {dropped}");
        let finding = XDP.found(severity, what, cost).confidence(confidence).at(end).of_way(end.other());
        Some(finding.explains(OF_XDP).evidence(seen).remedy(remedy))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// Where it dropped more than one, 10,000 passed.
    fn limit(place: &str, text: &str, dropped: u64) -> Limit {
        let passed = 10_000 * u64::from(dropped > 1);
        Limit {
            place: place.to_owned(),
            text: text.to_owned(),
            dropped,
            passed,
            counts: true,
            ..Limit::default()
        }
    }

    fn with(before: Limits, after: Limits) -> Evidence {
        let mut evidence = testing::healthy();
        evidence.near.limits = before;
        evidence.limits_near = Some(after);
        evidence
    }

    /// A stream of 1 Gbit/s each way passes, or does not.
    #[test]
    fn a_discipline_that_acted_is_named_with_its_effect() {
        for (text, dropped, part) in [
            ("qdisc tbf 8001: dev eth0 root rate 1Gbit burst 32Kb", 9, "lets 1.00 Gbit/s through"),
            ("qdisc tbf 8001: dev eth0 root rate 500Mbit burst 32Kb", 0, ""),
            ("qdisc tbf 8001: dev eth0 root rate 10Gbit burst 32Kb", 0, ""),
            (
                "qdisc netem 1: dev eth0 root limit 1000 delay 80ms 10ms loss 5%",
                0,
                "delays frames by 80ms, loses 5%",
            ),
            ("qdisc pfifo 1: dev eth0 root limit 1p", 99, "its queue of 1p"),
            ("qdisc fq_codel 0: dev eth0 root limit 10240p flows 1024", 99, ""),
            ("qdisc pfifo_fast 0: dev eth0 root bands 3 priomap 1 2", 9, ""),
            ("qdisc clsact ffff: dev eth0 parent ffff:fff1", 99, ""),
            ("qdisc fq 1: dev eth0 root limit 10000p flow_limit 1p", 60, "drops"),
            ("qdisc fq 1: dev eth0 root limit 10000p flow_limit 100p", 60, ""),
            ("qdisc fq 1: dev eth0 root limit 10000p flow_limit 100p", 9_000, "drops"),
        ] {
            let before = Limits { queueing: vec![limit("eth0", text, 1)], ..Limits::default() };
            let after = Limits { queueing: vec![limit("eth0", text, 1 + dropped)], ..Limits::default() };
            let found = queueing(&with(before, after));
            assert_eq!(found.len(), usize::from(!part.is_empty()), "{text}: {found:?}");
            assert!(
                found
                    .iter()
                    .all(|finding| finding.what.contains(part) && finding.from == Some(PathEnd::Near)),
                "{found:?}"
            );
        }
    }

    #[test]
    fn filters_and_rules_are_named_when_they_drop() {
        let filter = |dropped| limit("eth0 ingress", "action police 0x1 rate 20Mbit action drop", dropped);
        let rule = |dropped| limit("nftables: inet f, chain input", "meta length > 1000 drop", dropped);
        let limits = |dropped| Limits {
            filters: vec![filter(dropped)],
            firewall: vec![rule(dropped)],
            ..Limits::default()
        };
        let quiet = with(limits(3), limits(3));
        assert!(traffic_filter(&quiet).is_empty() && firewall(&quiet).is_empty());
        let acting = with(limits(3), limits(9));
        let found = [traffic_filter(&acting), firewall(&acting)].concat();
        assert_eq!(found.iter().map(|finding| finding.from).collect::<Vec<_>>(), [Some(PathEnd::Far), None]);
        assert!(found.iter().all(|finding| finding.confidence == Confidence::Certain), "{found:?}");
    }

    #[test]
    fn a_rule_without_a_counter_is_possible_where_something_is_lost() {
        let rule =
            Limit { counts: false, ..limit("nftables: inet f, chain input", "meta length > 1000 drop", 0) };
        let limits = Limits { firewall: vec![rule], ..Limits::default() };
        let mut evidence = with(limits.clone(), limits);
        assert!(firewall(&evidence).is_empty());
        evidence.runs.push(testing::probe(PathEnd::Near, 1400, 100, 9));
        assert_eq!(firewall(&evidence)[0].confidence, Confidence::Possible);
    }
}
