use super::*;

/// As iproute2 6.1 and 6.15 print it.
const TC: &str = "\
qdisc tbf 8001: dev eth0 root refcnt 2 rate 30Mbit burst 32Kb lat 50ms 
 Sent 12 bytes 1 pkt (dropped 7, overlimits 9 requeues 0) 
 backlog 0b 0p requeues 0
qdisc netem 8002: dev ifb0 root refcnt 2 limit 1000 delay 80ms  10ms loss 5%
 Sent 0 bytes 0 pkt (dropped 3, overlimits 0 requeues 0) 
class htb 1:1 root prio 0 rate 20Mbit ceil 25Mbit burst 1600b cburst 1600b 
 Sent 0 bytes 0 pkt (dropped 1, overlimits 2 requeues 0) 
class hfsc 1:1 parent 1: sc m1 0bit d 0us m2 30Mbit ul m1 0bit d 0us m2 40Mbit 
 Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0) 
";
const FILTER: &str = "\
filter protocol all pref 49152 matchall chain 0 
filter protocol all pref 49152 matchall chain 0 handle 0x1 
  not_in_hw
\taction order 1:  police 0x1 rate 20Mbit burst 128Kb mtu 2Kb action drop overhead 0b 
\tref 1 bind 1  installed 3 sec used 0 sec
\tAction statistics:
\tSent 9 bytes 9 pkt (dropped 4, overlimits 4 requeues 0) 
filter protocol all pref 49151 basic chain 0 handle 0x1 
  meta(pkt_len gt 1600)
\taction order 1: mirred (Egress Redirect to device ifb0) stolen
filter protocol all pref 49150 bpf chain 0 handle 0x1 prog.o:[cls] direct-action
";
const NFT: &str = "\
table inet filter {
\tchain input {
\t\ttype filter hook input priority filter; policy accept;
\t\tip protocol tcp meta length > 1000 counter packets 5 bytes 300 drop
\t\tlimit rate 100/second accept
\t\tcounter packets 1 bytes 2 accept
\t}
}
";

#[test]
fn disciplines_classes_and_actions_are_read_with_their_counters() {
    let limits = parse("", TC);
    let seen: Vec<_> =
        limits.iter().map(|limit| (limit.kind(), limit.dropped, limit.matched, limit.passed)).collect();
    assert_eq!(seen, [("tbf", 7, 9, 1), ("netem", 3, 0, 0), ("htb", 1, 2, 0), ("hfsc", 0, 0, 0)]);
    assert_eq!(limits.iter().map(Limit::rate).collect::<Vec<_>>(), [Some(3e7), None, Some(2.5e7), Some(4e7)]);
    assert_eq!(
        (limits[1].word("delay"), limits[1].word("loss"), limits[1].word("dev")),
        (Some("80ms"), Some("5%"), Some("ifb0"))
    );
    assert!(!limits[0].text.contains("refcnt"), "{limits:?}");
    let filters = parse("eth0 ingress", FILTER);
    assert_eq!(filters.iter().map(|filter| filter.dropped).collect::<Vec<_>>(), [4, 0, 0]);
    assert_eq!(filters[0].rate(), Some(2e7));
    assert!(is_target(&filters, "ifb0") && !is_target(&filters, "ifb"), "{filters:?}");
}

#[test]
fn rules_of_firewalls_are_those_that_drop_or_limit() {
    let rules = nftables(NFT);
    assert_eq!(
        rules,
        [
            Limit {
                place: "nftables: inet filter, chain input".to_owned(),
                text: "ip protocol tcp meta length > 1000 drop".to_owned(),
                dropped: 5,
                matched: 0,
                counts: true,
                ..Limit::default()
            },
            Limit {
                place: "nftables: inet filter, chain input".to_owned(),
                text: "limit rate 100/second accept".to_owned(),
                dropped: 0,
                matched: 0,
                counts: false,
                ..Limit::default()
            }
        ]
    );
    let rule =
        iptables("[12:960] -A INPUT -p tcp -m statistic --mode random --probability 0.05 -j DROP").unwrap();
    assert_eq!((rule.dropped, rule.matched), (12, 0));
    assert_eq!(iptables("[1:2] -A INPUT -j ACCEPT"), None);
    assert_eq!(iptables(":INPUT ACCEPT [0:0]"), None);
}

#[test]
fn what_has_counted_meanwhile_is_seen() {
    let before = parse("", TC);
    let mut after = before.clone();
    after[0].dropped += 5;
    after.remove(1);
    let counted: Vec<Limit> = counted(&before, &after).collect();
    let dropped: Vec<_> = counted.iter().map(|limit| (limit.kind(), limit.dropped)).collect();
    assert_eq!(dropped, [("tbf", 5), ("netem", 0), ("htb", 0), ("hfsc", 0)]);
}

#[test]
fn routes_neighbours_and_prefixes_are_read() {
    let text = r#"[{"type":"unicast","dst":"10.1.1.2","gateway":"10.1.1.9","dev":"v0","metrics":[{"window":8000,"rto_min":2000}]}]
[{"dst":"10.1.1.2","lladdr":"02:00:00:00:00:99","state":["PERMANENT"]}]
[{},{"ifname":"v0","txqlen":1000,"addr_info":[{"family":"inet","local":"10.1.1.1","prefixlen":25,"scope":"global"}]}]"#;
    let objects = objects(text);
    let route = route(&objects[0]);
    assert_eq!((route.via.as_deref(), route.metrics["window"].as_str()), (Some("10.1.1.9"), "8000"));
    assert_eq!(neighbour(&objects[1]).state, "PERMANENT");
    assert_eq!(prefix(&objects[2], Some(&route), "10.1.1.2".parse().unwrap()), Some(25));
    assert_eq!(numbers("no-such-card", &objects[2])["txqlen"], 1000);
}

#[test]
fn rates_are_those_that_tc_prints() {
    for (word, rate) in [
        ("30Mbit", Some(3e7)),
        ("1500Kbit", Some(1.5e6)),
        ("8bit", Some(8.0)),
        ("2.5Gbit", Some(2.5e9)),
        ("x", None),
        ("12", None),
    ] {
        assert_eq!(bits(word), rate, "{word}");
    }
}
