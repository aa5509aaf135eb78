//! Faults of what a guest's kernel is set to: TCP, memory of sockets, the card and its interface, receiving.

use super::grammar::Layer::{Card, Kernel, Tcp};
use super::grammar::Who::{End, Other};
use super::grammar::{Line, Mechanism, Needs, mechanism};

const fn card(
    name: &'static str,
    strengths: &'static [&'static str],
    put: &'static [Line],
    undo: &'static [Line],
    takes: &'static [&'static str],
    truth: &'static [&'static str],
) -> Mechanism {
    mechanism(Card, name, strengths, put, undo, takes, truth).symptoms(&["machine-limit", "sender-limit"])
}

const OFFLOADS: &[&str] = &["offloads", "lro"];
const ALL_OFFLOADS: &[Line] = &[(
    End,
    "ethtool -K {if} rx on tx on sg on tso on gso on gro on; ethtool -K {if} lro on 2>/dev/null; true",
)];
const SETTING: &[&str] = &["kernel-setting@"];

pub const TABLE: &[Mechanism] = &[
    mechanism(
        Tcp,
        "small receive buffers",
        &["4096 8192 16384", "4096 16384 65536"],
        &[(End, "write /proc/sys/net/ipv4/tcp_rmem '{s}'")],
        &[(End, "restore /proc/sys/net/ipv4/tcp_rmem")],
        &["rmem"],
        &["socket-buffers@", "small-window"],
    )
    .symptoms(&["zero-window"]),
    mechanism(
        Tcp,
        "small send buffers",
        &["4096 4096 8192", "4096 16384 32768"],
        &[(End, "write /proc/sys/net/ipv4/tcp_wmem '{s}'")],
        &[(End, "restore /proc/sys/net/ipv4/tcp_wmem")],
        &["wmem"],
        &["socket-buffers@"],
    )
    .symptoms(&["sender-limit"]),
    mechanism(
        Tcp,
        "small buffers of datagrams",
        &["2304", "8192"],
        &[(End, "write /proc/sys/net/core/rmem_default {s}; write /proc/sys/net/core/rmem_max {s}")],
        &[(End, "restore /proc/sys/net/core/rmem_max; restore /proc/sys/net/core/rmem_default")],
        &["rmem_default"],
        &["kernel-setting@", "socket-buffers@"],
    )
    .symptoms(&["loss"]),
    mechanism(
        Tcp,
        "no window scaling",
        &[],
        &[(End, "write /proc/sys/net/ipv4/tcp_window_scaling 0")],
        &[(End, "restore /proc/sys/net/ipv4/tcp_window_scaling")],
        &["scaling"],
        &["tcp-options", "small-window"],
    ),
    mechanism(
        Tcp,
        "no selective acknowledgement, and loss",
        &["1%", "3%"],
        &[(End, "write /proc/sys/net/ipv4/tcp_sack 0; tc qdisc replace dev {if} root netem loss {s} limit 10000")],
        &[(End, "tc qdisc del dev {if} root; restore /proc/sys/net/ipv4/tcp_sack")],
        &["root", "sack"],
        &["tcp-options", "queueing@", "loss"],
    )
    .symptoms(&["retransmits"]),
    mechanism(
        Tcp,
        "autotuning off",
        &[],
        &[(End, "write /proc/sys/net/ipv4/tcp_moderate_rcvbuf 0; write /proc/sys/net/ipv4/tcp_rmem '4096 32768 6291456'")],
        &[(End, "restore /proc/sys/net/ipv4/tcp_rmem; restore /proc/sys/net/ipv4/tcp_moderate_rcvbuf")],
        &["rmem"],
        &["tcp-options", "socket-buffers@", "small-window"],
    ),
    mechanism(
        Tcp,
        "little output at once",
        &["1000", "4096"],
        &[(End, "write /proc/sys/net/ipv4/tcp_limit_output_bytes {s}")],
        &[(End, "restore /proc/sys/net/ipv4/tcp_limit_output_bytes")],
        &["output"],
        SETTING,
    )
    .symptoms(&["sender-limit"]),
    mechanism(
        Tcp,
        "congestion control",
        &["vegas", "lp", "nv"],
        &[(End, "modprobe tcp_{s}; write /proc/sys/net/ipv4/tcp_congestion_control {s}")],
        &[(End, "restore /proc/sys/net/ipv4/tcp_congestion_control")],
        &["congestion"],
        SETTING,
    )
    .symptoms(&["sender-limit", "small-window"]),
    mechanism(
        Tcp,
        "slow pacing",
        &["5", "20"],
        &[(
            End,
            "write /proc/sys/net/ipv4/tcp_pacing_ss_ratio {s}; write /proc/sys/net/ipv4/tcp_pacing_ca_ratio {s}; tc qdisc replace dev {if} root fq",
        )],
        &[(
            End,
            "tc qdisc del dev {if} root; restore /proc/sys/net/ipv4/tcp_pacing_ca_ratio; restore /proc/sys/net/ipv4/tcp_pacing_ss_ratio",
        )],
        &["root", "pacing"],
        SETTING,
    )
    .symptoms(&["sender-limit"]),
    mechanism(
        Tcp,
        "little memory for TCP",
        &["1 2 4", "4 8 16"],
        &[(End, "write /proc/sys/net/ipv4/tcp_mem '{s}'")],
        &[(End, "restore /proc/sys/net/ipv4/tcp_mem")],
        &["tcp_mem"],
        &["tcp-memory@"],
    )
    .symptoms(&["small-window", "zero-window", "socket-buffers"]),
    mechanism(
        Tcp,
        "little memory for datagrams",
        &["0 0 1", "1 2 4"],
        &[(End, "write /proc/sys/net/ipv4/udp_mem '{s}'")],
        &[(End, "restore /proc/sys/net/ipv4/udp_mem")],
        &["udp_mem"],
        SETTING,
    )
    .symptoms(&["loss"]),
    mechanism(
        Tcp,
        "MTU probing from a small segment",
        &["100", "300"],
        &[(
            End,
            "write /proc/sys/net/ipv4/tcp_base_mss {s}; write /proc/sys/net/ipv4/tcp_mtu_probing 2; write /proc/sys/net/ipv4/tcp_mtu_probe_floor 48",
        )],
        &[(
            End,
            "restore /proc/sys/net/ipv4/tcp_mtu_probe_floor; restore /proc/sys/net/ipv4/tcp_mtu_probing; restore /proc/sys/net/ipv4/tcp_base_mss",
        )],
        &["probing"],
        &["kernel-setting@", "small-segments"],
    ),
    mechanism(
        Tcp,
        "little unsent data",
        &["1", "2048"],
        &[(End, "write /proc/sys/net/ipv4/tcp_notsent_lowat {s}")],
        &[(End, "restore /proc/sys/net/ipv4/tcp_notsent_lowat")],
        &["lowat"],
        SETTING,
    )
    .symptoms(&["sender-limit"]),
    mechanism(
        Tcp,
        "few local ports",
        &["40000 40001"],
        &[(End, "write /proc/sys/net/ipv4/ip_local_port_range '{s}'")],
        &[(End, "restore /proc/sys/net/ipv4/ip_local_port_range")],
        &["ports"],
        SETTING,
    ),
    mechanism(
        Tcp,
        "no timestamps",
        &[],
        &[(End, "write /proc/sys/net/ipv4/tcp_timestamps 0")],
        &[(End, "restore /proc/sys/net/ipv4/tcp_timestamps")],
        &["timestamps"],
        &["tcp-options", "kernel-setting@"],
    ),
    mechanism(
        Kernel,
        "a small budget of receiving",
        &["1", "4"],
        &[(End, "write /proc/sys/net/core/netdev_budget {s}")],
        &[(End, "restore /proc/sys/net/core/netdev_budget")],
        &["budget"],
        &["backlog@", "kernel-setting@"],
    ),
    mechanism(
        Kernel,
        "a small weight of a device",
        &["1"],
        &[(End, "write /proc/sys/net/core/dev_weight {s}")],
        &[(End, "restore /proc/sys/net/core/dev_weight")],
        &["weight"],
        &["backlog@", "kernel-setting@"],
    ),
    mechanism(
        Kernel,
        "RPS to one CPU with a short backlog",
        &["1", "8"],
        &[(
            End,
            "for q in /sys/class/net/{if}/queues/rx-*; do write $q/rps_cpus 2; done; write /proc/sys/net/core/netdev_max_backlog {s}",
        )],
        &[(
            End,
            "restore /proc/sys/net/core/netdev_max_backlog; for q in /sys/class/net/{if}/queues/rx-*; do restore $q/rps_cpus; done",
        )],
        &["rps"],
        &["backlog@", "kernel-setting@"],
    )
    .symptoms(&["loss", "retransmits"]),
    mechanism(
        Kernel,
        "RPS to one CPU",
        &["1", "2"],
        &[(End, "for q in /sys/class/net/{if}/queues/rx-*; do write $q/rps_cpus {s}; done")],
        &[(End, "for q in /sys/class/net/{if}/queues/rx-*; do restore $q/rps_cpus; done")],
        &["rps"],
        SETTING,
    ),
    mechanism(
        Kernel,
        "late flushes of merged segments",
        &["2000000", "20000000"],
        &[(
            End,
            "write /sys/class/net/{if}/napi_defer_hard_irqs 1000; write /sys/class/net/{if}/gro_flush_timeout {s}",
        )],
        &[(
            End,
            "restore /sys/class/net/{if}/gro_flush_timeout; restore /sys/class/net/{if}/napi_defer_hard_irqs",
        )],
        &["flush"],
        &["kernel-setting@", "interrupt-moderation@"],
    )
    .symptoms(&["latency"]),
    mechanism(
        Kernel,
        "small super-frames by a limit",
        &["gso_max_segs 1", "gso_max_size 3000"],
        &[(End, "ip link set {if} {s}")],
        &[(End, "ip link set {if} gso_max_segs 65535 gso_max_size 65536")],
        &["gso_max"],
        &["kernel-setting@", "segmentation-offload@"],
    ),
    mechanism(
        Kernel,
        "merged frames limited",
        &["2000", "6000"],
        &[(End, "ip link set {if} gro_max_size {s}; ip link set {if} gro_ipv4_max_size {s}")],
        &[(End, "ip link set {if} gro_max_size 65536; ip link set {if} gro_ipv4_max_size 65536")],
        &["gro_max"],
        SETTING,
    ),
    mechanism(
        Kernel,
        "a short queue of the interface",
        &["1", "2"],
        &[(End, "ip link set {if} txqueuelen {s}; tc qdisc replace dev {if} root pfifo")],
        &[(End, "tc qdisc del dev {if} root; ip link set {if} txqueuelen 1000")],
        &["root", "txqueuelen"],
        &["kernel-setting@", "queueing@"],
    )
    .symptoms(&["loss", "retransmits"]),
    mechanism(
        Kernel,
        "NAPI in threads, at low priority",
        &[],
        &[(
            End,
            "write /sys/class/net/{if}/threaded 1; for p in $(pgrep napi/{if}); do renice -n 19 -p $p; done; \
             python3 /chance.py spin 2 >/dev/null 2>&1 </dev/null & echo $! >/run/napi-spin",
        )],
        &[(End, "kill $(cat /run/napi-spin); restore /sys/class/net/{if}/threaded")],
        &["threaded", "spin"],
        &["kernel-setting@", "busy-cpu@"],
    )
    .symptoms(&["latency"]),
    card("TSO off", &[], &[(End, "ethtool -K {if} tso off")], ALL_OFFLOADS, OFFLOADS, &["segmentation-offload@"]),
    card("TSO and GSO off", &[], &[(End, "ethtool -K {if} tso off gso off")], ALL_OFFLOADS, OFFLOADS, &["segmentation-offload@"]),
    card(
        "scatter-gather off",
        &[],
        &[(End, "ethtool -K {if} sg off")],
        ALL_OFFLOADS,
        OFFLOADS,
        &["segmentation-offload@"],
    ),
    card(
        "checksums of what is sent off",
        &[],
        &[(End, "ethtool -K {if} tx off")],
        ALL_OFFLOADS,
        OFFLOADS,
        &["checksum-offload@", "segmentation-offload@"],
    ),
    card("GRO and LRO off", &[], &[(End, "ethtool -K {if} gro off; ethtool -K {if} lro off 2>/dev/null; ethtool -K {if} rx-gro-hw off 2>/dev/null; true")], &[(End, "ethtool -K {if} gro on; ethtool -K {if} lro on 2>/dev/null; ethtool -K {if} rx-gro-hw on 2>/dev/null; true")], OFFLOADS, &["receive-merging@"]),
    card("LRO off", &[], &[(End, "ethtool -K {if} lro off")], ALL_OFFLOADS, OFFLOADS, &["receive-merging@"]).needs(Needs::Vmxnet3),
    card("checksums of what arrives off", &[], &[(End, "ethtool -K {if} rx off")], ALL_OFFLOADS, OFFLOADS, &["checksum-offload@"])
        .needs(Needs::Vmxnet3),
    card("GRO in hardware off", &[], &[(End, "ethtool -K {if} rx-gro-hw off")], &[(End, "ethtool -K {if} rx-gro-hw on")], OFFLOADS, &["receive-merging@"])
        .needs(Needs::VirtioNet),
    card(
        "another MTU",
        &["600", "1300", "9000"],
        &[(End, "ip link set {if} mtu {s}")],
        &[(End, "ip link set {if} mtu 1500")],
        &["mtu"],
        &["mtu-mismatch", "small-segments"],
    ),
    card(
        "a small MTU of both",
        &["300", "576"],
        &[(End, "ip link set {if} mtu {s}"), (Other, "ip link set {if} mtu {s}")],
        &[(End, "ip link set {if} mtu 1500"), (Other, "ip link set {if} mtu 1500")],
        &["mtu"],
        &["kernel-setting", "small-segments", "mtu-mismatch"],
    ),
    card(
        "a small receive ring",
        &["32", "64"],
        &[(End, "ethtool -G {if} rx {s}")],
        &[(End, "ethtool -G {if} rx 1024")],
        &["rings"],
        &["rings@"],
    )
    .needs(Needs::Vmxnet3),
    card(
        "a small send ring",
        &["32", "64"],
        &[(End, "ethtool -G {if} tx {s}")],
        &[(End, "ethtool -G {if} tx 512")],
        &["rings"],
        &["rings@"],
    )
    .needs(Needs::Vmxnet3),
    card(
        "interrupts that wait",
        &["1000", "5000"],
        &[(End, "ethtool -C {if} adaptive-rx off rx-usecs {s}")],
        &[(End, "ethtool -C {if} adaptive-rx on rx-usecs 0")],
        &["coalescing"],
        &["interrupt-moderation@"],
    )
    .needs(Needs::Vmxnet3),
    card(
        "all interrupts on one CPU",
        &["0", "1"],
        &[(End, "for i in $(ls /sys/class/net/{if}/device/msi_irqs); do echo {s} >/proc/irq/$i/smp_affinity_list; done")],
        &[(End, "for i in $(ls /sys/class/net/{if}/device/msi_irqs); do echo 0-1 >/proc/irq/$i/smp_affinity_list; done")],
        &["irq"],
        &["interrupts@"],
    )
    .needs(Needs::Vmxnet3),
    card(
        "an RSS table with one queue",
        &[],
        &[(End, "ethtool -X {if} equal 1")],
        &[(End, "ethtool -X {if} default")],
        &["rss"],
        &["rss-table@"],
    )
    .needs(Needs::Vmxnet3),
    card(
        "one queue of two",
        &[],
        &[(End, "ethtool -L {if} combined 1")],
        &[(End, "ethtool -L {if} combined 2")],
        &["queues"],
        &["queues@"],
    )
    .needs(Needs::VirtioNet),
    mechanism(
        Kernel,
        "XDP drops some",
        &["10", "100"],
        &[(
            End,
            "grep -q /sys/fs/bpf /proc/mounts || mount -t bpf bpf /sys/fs/bpf; python3 /chance.py xdp {s} && \
             ip link set dev {if} xdpgeneric pinned /sys/fs/bpf/chance",
        )],
        &[(End, "ip link set dev {if} xdpgeneric off; rm /sys/fs/bpf/chance; ethtool -K {if} lro on 2>/dev/null; true")],
        &["xdp", "lro"],
        &["xdp@", "loss"],
    )
    .symptoms(&["retransmits", "receive-merging"]),
];
