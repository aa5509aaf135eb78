//! Settings whose usual value is known, of the kernel and of an interface: they are read, and the check
//! kernel-setting judges them. One table, a row a setting.

use std::ops::RangeInclusive;

/// The name of a number, the range in which it costs nothing worth mentioning, the kernel's own, and what
/// else it does.
pub type Setting = (&'static str, RangeInclusive<i64>, &'static str, &'static str);

const ANY: i64 = i64::MAX;
/// Of Documentation/networking/ip-sysctl and admin-guide/sysctl/net of the kernel, behind "net.".
pub static SYSCTLS: [Setting; 24] = [
    ("core.bpf_jit_enable", 1..=ANY, "1", "filters are interpreted"),
    ("core.dev_weight", 16..=ANY, "64", "a card's poll ends after so few frames"),
    ("core.gro_normal_batch", 1..=64, "8", "merged frames wait for so many others"),
    ("core.netdev_budget", 64..=ANY, "300", "a CPU takes so few frames before it does something else"),
    ("core.netdev_budget_usecs", 1000..=ANY, "8000", "a CPU takes frames for so short a time"),
    ("core.netdev_max_backlog", 100..=ANY, "1000", "more frames at once are dropped"),
    (
        "core.rmem_default",
        65_536..=ANY,
        "212992",
        "datagrams that a program does not take at once are dropped",
    ),
    ("core.wmem_default", 65_536..=ANY, "212992", "a program may write so few bytes of datagrams in advance"),
    ("ipv4.tcp_autocorking", 0..=1, "1", "small writes wait"),
    ("ipv4.tcp_base_mss", 512..=ANY, "1024", "probing of the path's MTU begins with so small segments"),
    ("ipv4.tcp_comp_sack_delay_ns", 0..=5_000_000, "1000000", "selective acknowledgements wait"),
    ("ipv4.tcp_dsack", 1..=1, "1", "senders cannot see what they sent in vain"),
    ("ipv4.tcp_frto", 1..=2, "2", "time-outs in vain are taken for losses"),
    (
        "ipv4.tcp_limit_output_bytes",
        131_072..=ANY,
        "1048576",
        "a connection has so few bytes in the card's queue",
    ),
    ("ipv4.tcp_max_reordering", 16..=ANY, "300", "overtaken segments are taken for lost ones"),
    ("ipv4.tcp_min_tso_segs", 1..=44, "2", "super-frames have at least so many segments"),
    ("ipv4.tcp_notsent_lowat", 65_536..=ANY, "4294967295", "a program may write so little in advance"),
    ("ipv4.tcp_pacing_ca_ratio", 100..=ANY, "120", "connections are paced below what their window allows"),
    ("ipv4.tcp_pacing_ss_ratio", 120..=ANY, "200", "connections begin paced below what their window allows"),
    ("ipv4.tcp_recovery", 1..=ANY, "1", "losses are found late"),
    ("ipv4.tcp_reordering", 3..=64, "3", "losses are found after so many duplicate acknowledgements"),
    ("ipv4.tcp_rto_min_us", 1..=400_000, "200000", "what is lost is sent again only after so long"),
    (
        "ipv4.tcp_timestamps",
        1..=2,
        "1",
        "round trips are measured rarely, and sequence numbers wrap at high rates",
    ),
    ("ipv4.tcp_tso_win_divisor", 1..=32, "3", "super-frames are cut to a small part of the window"),
];
/// Of Documentation/ABI/testing/sysfs-class-net and of `ip link`.
pub static INTERFACE: [Setting; 11] = [
    ("gso_max_size", 32_768..=ANY, "65536", "super-frames are cut to so many bytes before the card"),
    ("gso_max_segs", 16..=ANY, "65535", "super-frames are cut to so many segments before the card"),
    ("gro_max_size", 32_768..=ANY, "65536", "received segments are merged to so many bytes only"),
    ("gso_ipv4_max_size", 32_768..=ANY, "65536", "super-frames are cut to so many bytes before the card"),
    ("gro_flush_timeout", 0..=100_000, "0", "received segments wait so many nanoseconds for others"),
    ("mtu", 1280..=ANY, "1500", "frames are that small"),
    ("threaded", 0..=0, "0", "received frames wait for a thread of the kernel"),
    ("limit_max", 65_536..=ANY, "1879048192", "a queue of the card holds so few bytes"),
    ("tx_maxrate", 0..=0, "0", "a queue of the card sends at most so many Mbit/s"),
    ("txqlen", 100..=ANY, "1000", "more frames at once are dropped, or wait in their programs"),
    ("rps_cpus", 0..=0, "0", "received frames are handed to so many CPUs (receive packet steering)"),
];
