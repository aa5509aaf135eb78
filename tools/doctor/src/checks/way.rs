//! How each end reaches the other: its route, its network's size, and who answers for the address.

use super::kernel_setting::CONGESTION;
use super::limits::share;
use crate::facts::{Facts, Neighbour};
use crate::prelude::*;

pub const ROUTE: Check = Check { name: "route", examine: route };
pub const NETMASK: Check = Check { name: "netmask", examine: netmask };
pub const NEIGHBOUR: Check = Check { name: "neighbour", examine: neighbour };

/// An attribute of a route: whether a value limits (with the interface's MTU), whether it limits what the end
/// with the route sends, and not what it receives, and how.
type Attribute = (&'static str, fn(f64, f64) -> bool, bool, &'static str);

const ATTRIBUTES: [Attribute; 8] = [
    ("mtu", |value, mtu| value < mtu, true, "frames may not be larger"),
    ("advmss", |value, mtu| value + 60.0 < mtu, false, "the other end may send no larger segments"),
    ("window", |_, _| true, false, "the receive window cannot become larger"),
    ("cwnd", |_, _| true, true, "no more segments may be under way"),
    ("initcwnd", |value, _| value < 10.0, true, "connections begin with fewer segments"),
    ("initrwnd", |value, _| value < 10.0, false, "connections begin with a smaller window"),
    // Milliseconds; 200 is the kernel's own.
    ("rto_min", |value, _| value > 200.0, true, "what is lost is sent again only after so long"),
    ("ssthresh", |_, _| true, true, "connections stop growing early"),
];
const EXPLAINED: &[&str] =
    &["path-mtu", "small-segments", "sender-limit", "retransmits", "socket-buffers", "latency"];

fn route(evidence: &Evidence) -> Vec<Finding> {
    evidence.ends().flat_map(|(end, facts)| of_route(evidence, end, facts)).collect()
}

fn of_route(evidence: &Evidence, end: PathEnd, facts: &Facts) -> Vec<Finding> {
    let Some(route) = &facts.limits.route else { return Vec::new() };
    let name = evidence.name(end);
    let peer = facts.path.as_ref().map_or("ADDRESS".to_owned(), |path| path.peer.to_string());
    let finding = |from, severity, what: String, seen: String| {
        let cost = Cost::estimated(share(evidence, from), "what is sent or received this way");
        let remedy = Remedy::new("set the route up without it")
            .run(&["ip", "route", "get", &peer])
            .run(&["ip", "route", "show", "match", &peer]);
        let finding = ROUTE.found(severity, what, cost).of_way(from).at(end).explains(EXPLAINED);
        finding.evidence(format!("ip route get {peer}: {seen}")).remedy(remedy)
    };
    let mtu = facts.path_interface().map_or(1500.0, |card| f64::from(card.mtu));
    let attributes = ATTRIBUTES.iter().filter_map(|(attribute, limits, is_senders, how)| {
        let value = route.metrics.get(*attribute)?;
        let from = if *is_senders { end } else { end.other() };
        let what = format!("The route of {name} to the other end has {attribute} {value}: {how}.");
        let seen = format!("{attribute} {value}");
        limits(value.parse().ok()?, mtu).then(|| finding(from, Severity::Slow, what, seen))
    });
    let mut found: Vec<Finding> = attributes.collect();
    let congestion = ["congctl", "cc_algo"].iter().find_map(|name| route.metrics.get(*name));
    if let Some(algorithm) = congestion.filter(|name| !CONGESTION.contains(&name.as_str())) {
        let what = format!(
            "The route of {name} to the other end has TCP react to losses and delays by {algorithm}."
        );
        found.push(finding(end, Severity::Slow, what, format!("congctl {algorithm}")));
    }
    let is_neighbour = facts.path.as_ref().is_some_and(|path| path.on_link);
    if let Some(via) = route.via.as_ref().filter(|_| is_neighbour) {
        let what = format!("{name} sends to its neighbour through the router {via}.");
        found.push(finding(end, Severity::Slow, what, format!("via {via} dev {}", route.interface)));
    }
    let kind = &route.kind;
    if !kind.is_empty() && kind != "unicast" {
        let what =
            format!("The route of {name} to the other end is \"{kind}\": what is sent there is dropped.");
        found.push(finding(end, Severity::Broken, what, kind.clone()));
    }
    found
}

fn netmask(evidence: &Evidence) -> Vec<Finding> {
    let ends: Vec<_> = evidence
        .ends()
        .filter_map(|(end, facts)| Some((end, facts.limits.prefix?, facts.path.as_ref()?)))
        .collect();
    let [(_, near, here), (_, far, there)] = ends.as_slice() else { return Vec::new() };
    if near == far || !(here.on_link || there.on_link) {
        return Vec::new();
    }
    let what = format!(
        "The ends have networks of different sizes: {}/{near} here, {}/{far} there.",
        here.local, there.local
    );
    let severity = if here.on_link == there.on_link { Severity::Advice } else { Severity::Slow };
    let cost = Cost::estimated(
        0.5,
        "for one of them the other is no neighbour: it sends through a router, or not at all",
    );
    let remedy = Remedy::new("give both the same length of the prefix").run(&["ip", "-brief", "address"]);
    let seen = [(here, "here"), (there, "there")].map(|(path, name)| {
        format!("{name}: {} is {} neighbour", path.peer, if path.on_link { "a" } else { "no" })
    });
    vec![NETMASK.found(severity, what, cost).explains(&["route"]).evidence(seen.join("; ")).remedy(remedy)]
}

fn neighbour(evidence: &Evidence) -> Vec<Finding> {
    let found = evidence.ends().filter_map(|(end, facts)| {
        let neighbour = facts.limits.neighbour.as_ref()?;
        let what = wrong(evidence, end, facts, neighbour)?;
        let card = facts.limits.route.as_ref().map_or("INTERFACE", |route| route.interface.as_str());
        let remedy = Remedy::new("take the entry out, and see which address answers")
            .run(&["ip", "neigh", "show", &neighbour.address])
            .run(&["ip", "neigh", "del", &neighbour.address, "dev", card])
            .run(&["arping", "-c", "3", "-I", card, &neighbour.address]);
        let is_unreachable = evidence.unreachable.is_some();
        let severity = if is_unreachable { Severity::Broken } else { Severity::Slow };
        let cost = Cost::estimated(0.9, "frames go to another machine, or to none");
        let mac = neighbour.mac.as_deref().unwrap_or("none");
        let seen = format!("ip neigh show {}: lladdr {mac}, {}", neighbour.address, neighbour.state);
        Some(NEIGHBOUR.found(severity, what, cost).at(end).of_way(end).evidence(seen).remedy(remedy))
    });
    found.collect()
}

/// What is wrong with who answers for the far end, or for the router to it.
fn wrong(evidence: &Evidence, end: PathEnd, facts: &Facts, neighbour: &Neighbour) -> Option<String> {
    let (name, address) = (evidence.name(end), &neighbour.address);
    if evidence.unreachable.is_some() {
        return match neighbour.state.as_str() {
            "PERMANENT" => {
                Some(format!("{name} has a static entry for {address}, and nothing comes back from there."))
            }
            "FAILED" | "INCOMPLETE" => Some(format!(
                "No machine answers for {address}: {name} asks (ARP, neighbour discovery) in vain."
            )),
            _ => None,
        };
    }
    let is_next =
        facts.path.as_ref()?.on_link && facts.limits.route.as_ref().is_none_or(|route| route.via.is_none());
    let other = evidence.facts(end.other())?.path_interface()?;
    let mac = neighbour.mac.as_ref().filter(|mac| is_next && !mac.eq_ignore_ascii_case(&other.mac))?;
    Some(match neighbour.state.as_str() {
        "PERMANENT" => format!(
            "{name} has a static entry for {address} with the MAC address {mac}, which is not that of {}.",
            other.name
        ),
        _ => format!("For {address} another machine answers {name}, with the MAC address {mac}."),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Route;
    use crate::testing;

    fn with_route(metrics: &[(&str, &str)], via: Option<&str>, kind: &str) -> Evidence {
        let metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let route = Route { kind: kind.to_owned(), via: via.map(str::to_owned), metrics, ..Route::default() };
        let mut evidence = testing::healthy();
        evidence.near.limits.route = Some(route);
        evidence
    }

    #[test]
    fn attributes_that_limit_are_named_with_the_direction() {
        for (metrics, from) in [
            (&[("window", "8000")][..], Some(PathEnd::Far)),
            (&[("mtu", "1300")], Some(PathEnd::Near)),
            (&[("mtu", "1500")], None),
            (&[("advmss", "500")], Some(PathEnd::Far)),
            (&[("advmss", "1460")], None),
            (&[("rto_min", "2000")], Some(PathEnd::Near)),
            (&[("rto_min", "200"), ("initcwnd", "32"), ("congestion", "cubic")], None),
        ] {
            let found = route(&with_route(metrics, None, "unicast"));
            assert_eq!(
                found.iter().map(|finding| finding.from).next(),
                from.map(Some),
                "{metrics:?}: {found:?}"
            );
        }
        assert!(route(&with_route(&[], Some("10.77.0.9"), "unicast"))[0].what.contains("10.77.0.9"));
        assert_eq!(route(&with_route(&[], None, "blackhole"))[0].severity, Severity::Broken);
    }

    #[test]
    fn networks_of_different_sizes_are_found() {
        let mut evidence = testing::healthy();
        evidence.near.limits.prefix = Some(24);
        testing::far(&mut evidence).limits.prefix = Some(24);
        assert!(netmask(&evidence).is_empty());
        evidence.near.limits.prefix = Some(30);
        assert_eq!(netmask(&evidence)[0].severity, Severity::Advice);
        evidence.near.path.as_mut().unwrap().on_link = false;
        assert_eq!(netmask(&evidence)[0].severity, Severity::Slow);
    }

    #[test]
    fn an_entry_with_another_mac_address_is_found() {
        for (mac, state, unreachable, part) in [
            (Some("52:54:00:00:00:02"), "REACHABLE", false, ""),
            (Some("52:54:00:00:00:02"), "PERMANENT", false, ""),
            (Some("02:00:00:00:00:99"), "PERMANENT", false, "static entry"),
            (Some("02:00:00:00:00:99"), "STALE", false, "another machine"),
            (Some("02:00:00:00:00:99"), "PERMANENT", true, "nothing comes back"),
            (None, "FAILED", true, "No machine answers"),
            (Some("02:00:00:00:00:99"), "REACHABLE", true, ""),
        ] {
            let mut evidence = testing::healthy();
            let neighbour = Neighbour {
                address: "10.77.0.2".to_owned(),
                mac: mac.map(str::to_owned),
                state: state.to_owned(),
            };
            evidence.near.limits.neighbour = Some(neighbour);
            evidence.unreachable = unreachable.then(|| "timed out".to_owned());
            let found = neighbour_of(&evidence);
            assert_eq!(found.is_empty(), part.is_empty(), "{state}: {found:?}");
            assert!(found.iter().all(|what| what.contains(part)), "{found:?}");
        }
    }

    fn neighbour_of(evidence: &Evidence) -> Vec<String> {
        neighbour(evidence).into_iter().map(|finding| finding.what).collect()
    }
}
