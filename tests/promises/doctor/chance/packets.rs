//! Faults of what packets pass in a guest: queues, filters, firewall rules, routes, neighbours, a forwarder.

use super::grammar::Layer::{Filter, Firewall, Queueing, Route};
use super::grammar::Who::{C, End};
use super::grammar::{Layer, Line, Mechanism, mechanism};

/// What names a queueing discipline or class of an end.
const QUEUEING: &[&str] = &["queueing@"];
const ROOT: &[&str] = &["root"];
const NO_ROOT: &[Line] = &[(End, "tc qdisc del dev {if} root")];

const fn root(
    name: &'static str,
    strengths: &'static [&'static str],
    put: &'static [Line],
    truth: &'static [&'static str],
) -> Mechanism {
    mechanism(Queueing, name, strengths, put, NO_ROOT, ROOT, truth)
}

/// A rate that is too low, wherever it is: losses and queues follow from it.
const OF_A_RATE: &[&str] = &["bufferbloat", "policing", "retransmits", "latency", "loss"];
const OF_LOSS: &[&str] = &["retransmits", "frame-order", "policing", "super-frames-lost"];

const INGRESS: &[&str] = &["clsact", "lro"];
const CLSACT: &[&str] = &["clsact"];
const NO_CLSACT: &[Line] = &[(End, "tc qdisc del dev {if} clsact")];
/// Leads what arrives through another queue. An ifb loses what LRO has merged.
const TO_IFB: Line = (
    End,
    "ethtool -K {if} lro off 2>/dev/null; modprobe ifb numifbs=0; ip link add ifb0 type ifb && ip link set ifb0 up && \
     tc qdisc add dev {if} clsact && tc filter add dev {if} ingress matchall action mirred egress redirect dev ifb0",
);
const NO_IFB: &[Line] =
    &[(End, "tc qdisc del dev {if} clsact; ip link del ifb0; ethtool -K {if} lro on 2>/dev/null; true")];

const fn ingress(
    name: &'static str,
    strengths: &'static [&'static str],
    put: &'static [Line],
    truth: &'static [&'static str],
) -> Mechanism {
    // LRO is off because of the fault, as the doctor reports.
    mechanism(Queueing, name, strengths, put, NO_IFB, INGRESS, truth).symptoms(&[
        "bufferbloat",
        "policing",
        "retransmits",
        "latency",
        "loss",
        "receive-merging",
    ])
}

const fn filter(
    name: &'static str,
    strengths: &'static [&'static str],
    put: &'static [Line],
    truth: &'static [&'static str],
) -> Mechanism {
    mechanism(Filter, name, strengths, put, NO_CLSACT, CLSACT, truth).symptoms(OF_A_RATE)
}

const NO_RULES: &[Line] = &[(End, "python3 /chance.py nft_forget")];

const fn rule(name: &'static str, strengths: &'static [&'static str], put: &'static [Line]) -> Mechanism {
    mechanism(Firewall, name, strengths, put, NO_RULES, &["nft"], &["firewall@", "loss"]).symptoms(&[
        "bufferbloat",
        "policing",
        "retransmits",
        "latency",
        "path-mtu",
    ])
}

const NO_ROUTE: &[Line] = &[(End, "ip route del {far}")];

const fn attribute(
    name: &'static str,
    strengths: &'static [&'static str],
    truth: &'static [&'static str],
) -> Mechanism {
    let put = &[(End, "ip route replace {far} dev {if} src {me} {s}")];
    mechanism(Layer::Route, name, strengths, put, NO_ROUTE, &["route"], truth)
}

/// Over c, which forwards and sends no redirects to the shorter way.
const FORWARD: Line = (
    C,
    "for n in all eth0; do write /proc/sys/net/ipv4/conf/$n/send_redirects 0; done; write /proc/sys/net/ipv4/ip_forward 1",
);
const NO_FORWARD: Line = (
    C,
    "for n in all eth0; do restore /proc/sys/net/ipv4/conf/$n/send_redirects; done; restore /proc/sys/net/ipv4/ip_forward; \
     ethtool -K eth0 lro on 2>/dev/null; true",
);
const VIA: Line = (End, "ip route replace {far} via {c} dev {if} src {me} onlink");
const NO_VIA: Line = (End, "ip route del {far}; ip route flush cache");
const DETOUR: &[&str] = &["route", "c"];

pub const TABLE: &[Mechanism] = &[
    root(
        "tbf",
        &["20mbit", "100mbit"],
        &[(End, "tc qdisc replace dev {if} root tbf rate {s} burst 64k latency 50ms")],
        QUEUEING,
    )
    .symptoms(OF_A_RATE),
    root(
        "tbf with a long queue",
        &["20mbit", "60mbit"],
        &[(End, "tc qdisc replace dev {if} root tbf rate {s} burst 64k limit 2m")],
        &["queueing@", "bufferbloat"],
    )
    .symptoms(OF_A_RATE),
    root(
        "htb class",
        &["10mbit", "50mbit"],
        &[(
            End,
            "tc qdisc replace dev {if} root handle 1: htb default 1 && tc class add dev {if} parent 1: classid 1:1 htb rate {s}",
        )],
        QUEUEING,
    )
    .symptoms(OF_A_RATE),
    root(
        "hfsc class",
        &["30mbit"],
        &[(
            End,
            "tc qdisc replace dev {if} root handle 1: hfsc default 1 && tc class add dev {if} parent 1: classid 1:1 hfsc sc rate {s} ul rate {s}",
        )],
        QUEUEING,
    )
    .symptoms(OF_A_RATE),
    root("cake", &["20mbit", "80mbit"], &[(End, "tc qdisc replace dev {if} root cake bandwidth {s}")], QUEUEING)
        .symptoms(OF_A_RATE),
    root("fq with a rate of each flow", &["20mbit", "80mbit"], &[(End, "tc qdisc replace dev {if} root fq maxrate {s}")], QUEUEING)
        .symptoms(OF_A_RATE),
    root("fq with short flows", &["1", "3"], &[(End, "tc qdisc replace dev {if} root fq flow_limit {s}")], QUEUEING)
        .symptoms(OF_LOSS),
    root(
        "netem delay",
        &["2ms", "20ms", "80ms"],
        &[(End, "tc qdisc replace dev {if} root netem delay {s} limit 10000")],
        &["queueing@", "latency"],
    )
    .symptoms(&["small-window", "sender-limit"]),
    root(
        "netem jitter",
        &["5ms 4ms", "20ms 15ms"],
        &[(End, "tc qdisc replace dev {if} root netem delay {s} limit 10000")],
        &["queueing@", "latency", "frame-order", "loss"],
    )
    .symptoms(OF_LOSS),
    root(
        "netem loss",
        &["1%", "3%", "10%", "gemodel 1% 20%"],
        &[(End, "tc qdisc replace dev {if} root netem loss {s} limit 10000")],
        &["queueing@", "loss"],
    )
    .symptoms(OF_LOSS),
    root(
        "netem duplicates",
        &["10%", "40%"],
        &[(End, "tc qdisc replace dev {if} root netem duplicate {s} limit 10000")],
        &["queueing@", "loss"],
    )
    .symptoms(OF_LOSS),
    root(
        "netem corruption",
        &["1%", "5%"],
        &[(End, "tc qdisc replace dev {if} root netem corrupt {s} limit 10000")],
        &["queueing@", "loss"],
    )
    .symptoms(OF_LOSS),
    root(
        "netem reorders",
        &["25%", "60%"],
        &[(End, "tc qdisc replace dev {if} root netem delay 2ms reorder {s} limit 10000")],
        &["queueing@", "frame-order", "latency", "loss"],
    )
    .symptoms(OF_LOSS),
    root(
        "netem with a short queue",
        &["4", "16"],
        &[(End, "tc qdisc replace dev {if} root netem delay 2ms limit {s}")],
        &["queueing@", "loss"],
    )
    .symptoms(OF_LOSS),
    root("netem rate", &["10mbit", "50mbit"], &[(End, "tc qdisc replace dev {if} root netem rate {s} limit 1000")], &["queueing@", "bufferbloat"])
        .symptoms(OF_A_RATE),
    root("netem slots", &["5ms 10ms", "20ms 30ms"], &[(End, "tc qdisc replace dev {if} root netem slot {s} limit 10000")], &["queueing@", "latency"])
        .symptoms(OF_LOSS),
    root("a queue of few packets", &["1", "2"], &[(End, "tc qdisc replace dev {if} root pfifo limit {s}")], QUEUEING)
        .symptoms(OF_LOSS),
    root("a queue of few bytes", &["4000", "20000"], &[(End, "tc qdisc replace dev {if} root bfifo limit {s}")], QUEUEING)
        .symptoms(&["super-frames-lost", "retransmits", "loss", "policing"]),
    root(
        "RED that drops early",
        &["probability 0.5", "probability 1.0"],
        &[(End, "tc qdisc replace dev {if} root red limit 400000 min 3000 max 9000 avpkt 1000 burst 3 bandwidth 100mbit {s}")],
        QUEUEING,
    )
    .symptoms(OF_LOSS),
    root(
        "netem below prio",
        &["delay 10ms", "loss 5%"],
        &[(
            End,
            "tc qdisc replace dev {if} root handle 1: prio && tc qdisc add dev {if} parent 1:2 handle 20: netem {s} limit 10000",
        )],
        &["queueing@", "latency", "loss"],
    )
    .symptoms(OF_LOSS),
    ingress("tbf of what arrives", &["20mbit", "80mbit"], &[TO_IFB, (End, "tc qdisc add dev ifb0 root tbf rate {s} burst 64k latency 100ms")], &["queueing@", "bufferbloat"]),
    ingress("delay of what arrives", &["5ms", "30ms"], &[TO_IFB, (End, "tc qdisc add dev ifb0 root netem delay {s} limit 10000")], &["queueing@", "latency"]),
    ingress("loss of what arrives", &["2%", "8%"], &[TO_IFB, (End, "tc qdisc add dev ifb0 root netem loss {s} limit 10000")], &["queueing@", "loss"]),
    filter(
        "police of what arrives",
        &["10mbit", "50mbit"],
        &[(End, "tc qdisc add dev {if} clsact && tc filter add dev {if} ingress matchall action police rate {s} burst 128k conform-exceed drop")],
        &["traffic-filter@", "policing"],
    ),
    filter(
        "police of what is sent",
        &["10mbit", "50mbit"],
        &[(End, "tc qdisc add dev {if} clsact && tc filter add dev {if} egress matchall action police rate {s} burst 128k conform-exceed drop")],
        &["traffic-filter@", "policing"],
    ),
    filter(
        "frames above a size dropped",
        &["1000", "1600"],
        &[(End, "tc qdisc add dev {if} clsact && tc filter add dev {if} ingress basic match 'meta(pkt_len gt {s})' action drop")],
        &["traffic-filter@", "super-frames-lost", "path-mtu"],
    ),
    filter(
        "some frames dropped",
        &["20", "50"],
        &[(End, "tc qdisc add dev {if} clsact && tc filter add dev {if} ingress matchall action ok random netrand drop {s}")],
        &["traffic-filter@", "loss"],
    )
    .symptoms(OF_LOSS),
    filter(
        "datagrams dropped",
        &["32768-60999", "5000-60999"],
        &[(End, "modprobe cls_flower; tc qdisc add dev {if} clsact && tc filter add dev {if} ingress protocol ip flower ip_proto udp dst_port {s} action drop")],
        &["traffic-filter@", "loss"],
    )
    .symptoms(&["path-mtu"]),
    filter(
        "acknowledgements policed",
        &["50kbit", "200kbit"],
        &[(
            End,
            "tc qdisc add dev {if} clsact && tc filter add dev {if} egress protocol ip u32 match ip protocol 6 0xff match u8 0x10 0xff at 33 \
             match u16 0x0000 0xffc0 at 2 action police rate {s} burst 3k conform-exceed drop",
        )],
        &["traffic-filter@"],
    ),
    rule("nft drops some", &["10", "50"], &[(End, "modprobe nf_tables; python3 /chance.py nft input random {s}")]),
    rule("nft limits a rate", &["500", "2000"], &[(End, "modprobe nf_tables; python3 /chance.py nft input over {s}")]),
    rule("nft drops by length", &["1000", "1499"], &[(End, "modprobe nf_tables; python3 /chance.py nft input longer {s}")]),
    rule("nft drops some of what is sent", &["10", "100"], &[(End, "modprobe nf_tables; python3 /chance.py nft output random {s}")]),
    rule("nft drops datagrams", &[], &[(End, "modprobe nf_tables; python3 /chance.py nft input udp")]),
    mechanism(
        Firewall,
        "a small connection table",
        &["16", "64"],
        &[(
            End,
            "modprobe nf_tables; python3 /chance.py nft input track; write /proc/sys/net/netfilter/nf_conntrack_max {s}",
        )],
        &[(End, "python3 /chance.py nft_forget; restore /proc/sys/net/netfilter/nf_conntrack_max")],
        &["nft"],
        &["conntrack@", "firewall@"],
    )
    .symptoms(OF_LOSS),
    attribute("a route's window", &["window 2920", "window 8192"], &["route@", "small-window"]),
    attribute("a route's MTU", &["mtu 576", "mtu lock 800"], &["route@", "small-segments", "path-mtu"]),
    attribute("a route's advmss", &["advmss 256", "advmss 500"], &["route@", "small-segments"]),
    attribute("a route's cwnd", &["cwnd lock 2", "cwnd lock 4"], &["route@"]).symptoms(&["small-window"]),
    attribute("a route's initcwnd", &["initcwnd 1"], &["route@"]),
    attribute("a route's rto_min", &["rto_min 1s"], &["route@"]),
    attribute("a route's congestion control", &["congctl lock vegas", "congctl lock lp"], &["route@", "kernel-setting@"]),
    mechanism(Route, "a detour", &[], &[FORWARD, VIA], &[NO_VIA, NO_FORWARD], DETOUR, &["route@"]).symptoms(&["latency"]),
    mechanism(
        Route,
        "a detour with a delay",
        &["5ms", "40ms"],
        &[FORWARD, VIA, (C, "tc qdisc replace dev {if} root netem delay {s} limit 10000")],
        &[(C, "tc qdisc del dev {if} root"), NO_VIA, NO_FORWARD],
        DETOUR,
        &["route@", "latency"],
    ),
    mechanism(
        Route,
        "a detour with loss",
        &["2%", "10%"],
        &[FORWARD, VIA, (C, "tc qdisc replace dev {if} root netem loss {s} limit 10000")],
        &[(C, "tc qdisc del dev {if} root"), NO_VIA, NO_FORWARD],
        DETOUR,
        &["route@", "loss"],
    )
    .symptoms(OF_LOSS),
    mechanism(
        Route,
        "a detour with a small MTU",
        &["600", "1400"],
        &[FORWARD, VIA, (C, "ip route replace {far} dev {if} mtu {s}")],
        &[(C, "ip route del {far}"), NO_VIA, NO_FORWARD],
        DETOUR,
        &["route@", "path-mtu", "small-segments"],
    ),
    mechanism(
        Route,
        "a detour that is a black hole",
        &["600", "1400"],
        &[
            FORWARD,
            VIA,
            (C, "ip route replace {far} dev {if} mtu {s}; modprobe cls_flower; tc qdisc add dev {if} clsact && \
                 tc filter add dev {if} egress protocol ip flower ip_proto icmp type 3 code 4 action drop"),
        ],
        &[(C, "tc qdisc del dev {if} clsact; ip route del {far}"), NO_VIA, NO_FORWARD],
        DETOUR,
        &["route@", "path-mtu", "black-hole", "super-frames-lost"],
    ),
    mechanism(
        Route,
        "\"too big\" is dropped",
        &["600", "1400"],
        &[
            FORWARD,
            VIA,
            (C, "ip route replace {far} dev {if} mtu {s}"),
            (End, "modprobe nf_tables; python3 /chance.py nft input too-big"),
        ],
        &[(End, "python3 /chance.py nft_forget"), (C, "ip route del {far}"), NO_VIA, NO_FORWARD],
        &["route", "c", "nft"],
        &["firewall@", "route@", "path-mtu", "black-hole", "super-frames-lost"],
    ),
    mechanism(
        Route,
        "a wrong netmask",
        &[],
        &[
            FORWARD,
            (End, "ip address del {me}/24 dev {if}; ip address add {me}/32 dev {if}; ip route add {c} dev {if} src {me}; \
                   ip route add default via {c} dev {if} src {me}"),
        ],
        &[
            (End, "ip route del default; ip route del {c}; ip address del {me}/32 dev {if}; ip address add {me}/24 dev {if}"),
            NO_FORWARD,
        ],
        DETOUR,
        &["netmask@", "route@"],
    )
    .symptoms(&["latency"]),
    mechanism(
        Route,
        "a wrong neighbour",
        &[],
        &[FORWARD, (End, "ip neighbour replace {far} lladdr {macc} dev {if} nud permanent")],
        &[(End, "ip neighbour del {far} dev {if}"), NO_FORWARD],
        DETOUR,
        &["neighbour@", "duplicate-address"],
    )
    .symptoms(&["latency"]),
    mechanism(
        Route,
        "a wrong neighbour as gateway",
        &[],
        &[
            FORWARD,
            (End, "ip neighbour replace 10.77.0.9 lladdr {macc} dev {if} nud permanent; ip route replace {far} via 10.77.0.9 dev {if} src {me} onlink"),
        ],
        &[(End, "ip route del {far}; ip neighbour del 10.77.0.9 dev {if}"), NO_FORWARD],
        DETOUR,
        &["neighbour@", "route@"],
    )
    .symptoms(&["latency"]),
];
