//! What is put into guests, how it is taken out again, and which check must find it.

use vmlane_tests::Bed;

/// A fault: lines for a shell, each with the guest that it is for.
pub struct Fault {
    pub name: &'static str,
    /// The check that must be first or second in the report.
    pub check: &'static str,
    /// Part of the sentence that must be in the report.
    pub phrase: &'static str,
    pub put: &'static [(&'static str, &'static str)],
    pub undo: &'static [(&'static str, &'static str)],
    /// Needs more than a quick examination.
    pub is_long: bool,
    /// The check that finds its effect, without seeing its cause: part of the finding's evidence.
    pub symptom: Option<&'static str>,
}

impl Fault {
    pub fn put_into(&self, bed: &Bed) {
        self.run(bed, self.put);
    }

    pub fn take_out_of(&self, bed: &Bed) {
        self.run(bed, self.undo);
    }

    fn run(&self, bed: &Bed, lines: &[(&str, &str)]) {
        for (guest, line) in lines {
            bed.guest(guest).sh(line).unwrap_or_else(|error| panic!("{}: {error:#}", self.name));
        }
    }

    /// Whether it is this one that the doctor speaks of.
    pub fn is_in(&self, sentence: &str) -> bool {
        let by = self.symptom.map(|check| format!("seen by {check}: "));
        sentence.starts_with(&format!("{}: ", self.check))
            && sentence.contains(self.phrase)
            && by.is_none_or(|by| sentence.contains(&by))
    }

    const fn with(self, symptom: &'static str) -> Fault {
        Fault { symptom: Some(symptom), ..self }
    }

    const fn long(self) -> Fault {
        Fault { is_long: true, ..self }
    }
}

const fn fault(
    name: &'static str,
    check: &'static str,
    phrase: &'static str,
    put: &'static [(&'static str, &'static str)],
    undo: &'static [(&'static str, &'static str)],
) -> Fault {
    Fault { name, check, phrase, put, undo, is_long: false, symptom: None }
}

const NO_QDISC: &str = "tc qdisc del dev eth0 root";
const NO_FILTER: &str = "tc qdisc del dev eth0 clsact";

/// Faults of settings that every card has.
pub const COMMON: &[Fault] = &[
    fault(
        "MTU 9000 on one end",
        "mtu-mismatch",
        "9000",
        &[("a", "ip link set eth0 mtu 9000")],
        &[("a", "ip link set eth0 mtu 1500")],
    ),
    fault(
        "receive buffers of the other end",
        "socket-buffers",
        "tcp_rmem",
        &[("b", "sysctl -qw net.ipv4.tcp_rmem='4096 16384 32768'")],
        &[("b", "sysctl -qw net.ipv4.tcp_rmem='4096 131072 4194304'")],
    ),
    fault(
        "TSO off",
        "segmentation-offload",
        "tx-tcp-segmentation is off",
        &[("a", "ethtool -K eth0 tso off")],
        &[("a", "ethtool -K eth0 tso on")],
    ),
    fault(
        "MTU below the other end's",
        "mtu-mismatch",
        "1300",
        &[("b", "ip link set eth0 mtu 1300")],
        &[("b", "ip link set eth0 mtu 1500")],
    ),
    fault(
        "send buffers",
        "socket-buffers",
        "tcp_wmem",
        &[("a", "sysctl -qw net.ipv4.tcp_wmem='4096 16384 32768'")],
        &[("a", "sysctl -qw net.ipv4.tcp_wmem='4096 16384 4194304'")],
    ),
    fault(
        "window scaling off",
        "tcp-options",
        "Window scaling",
        &[("b", "sysctl -qw net.ipv4.tcp_window_scaling=0")],
        &[("b", "sysctl -qw net.ipv4.tcp_window_scaling=1")],
    ),
    fault(
        "SACK off",
        "tcp-options",
        "Selective",
        &[("a", "sysctl -qw net.ipv4.tcp_sack=0")],
        &[("a", "sysctl -qw net.ipv4.tcp_sack=1")],
    ),
    fault(
        "autotuning off",
        "tcp-options",
        "Autotuning",
        &[("a", "sysctl -qw net.ipv4.tcp_moderate_rcvbuf=0")],
        &[("a", "sysctl -qw net.ipv4.tcp_moderate_rcvbuf=1")],
    ),
    fault(
        "GSO off",
        "segmentation-offload",
        "tx-generic-segmentation is off",
        &[("b", "ethtool -K eth0 gso off")],
        &[("b", "ethtool -K eth0 gso on")],
    ),
    fault(
        "scatter-gather off",
        "segmentation-offload",
        "tx-scatter-gather is off",
        &[("b", "ethtool -K eth0 sg off")],
        &[("b", "ethtool -K eth0 sg on tso on gso on")],
    ),
    fault(
        "transmit checksum off",
        "checksum-offload",
        "tx checksum",
        &[("a", "ethtool -K eth0 tx off")],
        &[("a", "ethtool -K eth0 tx on sg on tso on gso on")],
    ),
    fault(
        "GRO off",
        "receive-merging",
        "rx-gro is off",
        &[("b", "ethtool -K eth0 gro off")],
        &[("b", "ethtool -K eth0 gro on")],
    ),
    fault(
        "segments of 500 bytes",
        "route",
        "advmss 500",
        &[("b", "ip route replace 10.77.0.0/24 dev eth0 src 10.77.0.2 advmss 500")],
        &[("b", "ip route replace 10.77.0.0/24 dev eth0 src 10.77.0.2")],
    )
    .with("small-segments"),
    fault(
        "jumbo frames that do not arrive",
        "traffic-filter",
        "drops frames",
        &[
            ("a", "ip link set eth0 mtu 9000"),
            (
                "b",
                "ip link set eth0 mtu 9000; tc qdisc add dev eth0 clsact && tc filter add dev eth0 ingress basic match 'meta(pkt_len gt 1600)' action drop",
            ),
        ],
        &[("a", "ip link set eth0 mtu 1500"), ("b", NO_FILTER), ("b", "ip link set eth0 mtu 1500")],
    )
    .with("path-mtu"),
    fault(
        "super-frames that are lost",
        "traffic-filter",
        "drops frames",
        // Behind the sender's card, which is why it cannot know. With LRO they arrive whole.
        &[(
            "b",
            "tc qdisc add dev eth0 clsact && tc filter add dev eth0 ingress basic match 'meta(pkt_len gt 1600)' action drop",
        )],
        &[("b", NO_FILTER)],
    )
    .with("super-frames-lost"),
    // Of the few datagrams of a quick examination, too few may be lost to prove anything.
    fault(
        "loss of 5 %",
        "queueing",
        "loses 5%",
        &[("a", "tc qdisc add dev eth0 root netem loss 5% limit 10000")],
        &[("a", NO_QDISC)],
    )
    .with("loss")
    .long(),
    fault(
        "duplicates",
        "queueing",
        "duplicates 10%",
        &[("b", "tc qdisc add dev eth0 root netem duplicate 10% limit 10000")],
        &[("b", NO_QDISC)],
    )
    .with("loss")
    .long(),
    fault(
        "a delay of 80 ms",
        "queueing",
        "delays frames by 80ms",
        &[("a", "tc qdisc add dev eth0 root netem delay 80ms limit 10000")],
        &[("a", NO_QDISC)],
    )
    .with("latency"),
    fault(
        "a policer",
        "traffic-filter",
        "police",
        &[(
            "b",
            "tc qdisc add dev eth0 clsact && tc filter add dev eth0 ingress matchall action police rate 20mbit burst 128k conform-exceed drop",
        )],
        &[("b", NO_FILTER)],
    )
    .long(),
    fault(
        "a long queue",
        "queueing",
        "through",
        // Behind the sender, whose own queues Linux keeps short. An ifb loses what LRO has merged.
        &[(
            "b",
            "ethtool -K eth0 lro off 2>/dev/null; modprobe ifb numifbs=0; ip link add ifb0 type ifb && ip link set ifb0 up && tc qdisc add dev eth0 clsact && \
             tc filter add dev eth0 ingress matchall action mirred egress redirect dev ifb0 && \
             tc qdisc add dev ifb0 root netem rate 20mbit limit 1000",
        )],
        &[("b", NO_FILTER), ("b", "ip link del ifb0; ethtool -K eth0 lro on 2>/dev/null; true")],
    )
    .with("bufferbloat")
    .long(),
    fault(
        "a program that spins",
        "busy-cpu",
        "The program",
        &[("b", "sh -c 'while :; do :; done' >/dev/null 2>&1 </dev/null & echo $! >/run/spinner")],
        &[("b", "kill $(cat /run/spinner)")],
    ),
    fault(
        "an address twice",
        "duplicate-address",
        "10.99.0.1",
        &[("a", "ip address add 10.99.0.1/24 dev eth0"), ("b", "ip address add 10.99.0.1/24 dev eth0")],
        &[("a", "ip address del 10.99.0.1/24 dev eth0"), ("b", "ip address del 10.99.0.1/24 dev eth0")],
    ),
];

/// What only vmxnet3 has.
pub const VMXNET3: &[Fault] = &[
    fault(
        "LRO off",
        "receive-merging",
        "rx-lro is off",
        &[("b", "ethtool -K eth0 lro off")],
        &[("b", "ethtool -K eth0 lro on")],
    ),
    fault(
        "LRO on while forwarding",
        "lro-forwarding",
        "forwards",
        &[("b", "sysctl -qw net.ipv4.ip_forward=1; ethtool -K eth0 lro on")],
        &[("b", "sysctl -qw net.ipv4.ip_forward=0; ethtool -K eth0 lro on; ethtool -K eth1 lro on")],
    ),
    fault(
        "receive checksum off",
        "checksum-offload",
        "rx checksum",
        &[("b", "ethtool -K eth0 rx off")],
        &[("b", "ethtool -K eth0 rx on lro on")],
    ),
    fault(
        "a small receive ring",
        "rings",
        "receive ring",
        &[("b", "ethtool -G eth0 rx 64")],
        &[("b", "ethtool -G eth0 rx 1024")],
    ),
    fault(
        "a small send ring",
        "rings",
        "send ring",
        &[("a", "ethtool -G eth0 tx 64")],
        &[("a", "ethtool -G eth0 tx 512")],
    ),
    fault(
        "interrupts that wait",
        "interrupt-moderation",
        "wait up to 2000 us",
        &[("b", "ethtool -C eth0 adaptive-rx off rx-usecs 2000")],
        &[("b", "ethtool -C eth0 adaptive-rx on rx-usecs 0")],
    ),
    fault(
        "all interrupts on one CPU",
        "interrupts",
        "go to CPU 0",
        &[(
            "b",
            "for irq in $(ls /sys/class/net/eth0/device/msi_irqs); do echo 0 >/proc/irq/$irq/smp_affinity_list; done",
        )],
        &[(
            "b",
            "for irq in $(ls /sys/class/net/eth0/device/msi_irqs); do echo 0-1 >/proc/irq/$irq/smp_affinity_list; done",
        )],
    ),
    fault(
        "an RSS table with one queue",
        "rss-table",
        "names no other",
        &[("b", "ethtool -X eth0 equal 1")],
        &[("b", "ethtool -X eth0 default")],
    ),
    fault(
        "a MAC address twice",
        "duplicate-address",
        "MAC address",
        &[
            ("a", "ip link set eth1 down; ip link set eth1 address 02:00:00:00:00:77"),
            ("b", "ip link set eth1 down; ip link set eth1 address 02:00:00:00:00:77"),
        ],
        &[
            ("a", "ip link set eth1 address 02:00:00:00:00:a1"),
            ("b", "ip link set eth1 address 02:00:00:00:00:b1"),
        ],
    ),
];

/// What only virtio-net has.
pub const VIRTIO: &[Fault] = &[
    fault(
        "one queue of two",
        "queues",
        "uses 1 of 2",
        &[("b", "ethtool -L eth0 combined 1")],
        &[("b", "ethtool -L eth0 combined 2")],
    ),
    fault(
        "GRO in hardware off",
        "receive-merging",
        "rx-gro-hw is off",
        &[("b", "ethtool -K eth0 rx-gro-hw off")],
        &[("b", "ethtool -K eth0 rx-gro-hw on")],
    ),
];
