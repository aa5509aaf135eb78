//! The network stack: settings that matter for speed, and what it has counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{cpu::CpuTime, files, interface, pauses, usual};
use crate::cgroup;

/// Settings that are read beside those whose usual value is known; those of the interface that leads to the
/// other end are added.
const SETTINGS: [&str; 24] = [
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.optmem_max",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_max",
    "net.ipv4.ip_forward",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_no_pmtu_disc",
    "net.ipv4.tcp_adv_win_scale",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "net.ipv4.udp_mem",
    "net.ipv6.conf.all.forwarding",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
];

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sysctls(pub BTreeMap<String, String>);

impl Sysctls {
    pub fn number(&self, name: &str) -> Option<i64> {
        self.0.get(name)?.parse().ok()
    }

    /// The third number of tcp_rmem or tcp_wmem: how far the kernel may let a buffer grow.
    pub fn largest(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.split_whitespace().nth(2)?.parse().ok()
    }
}

pub fn sysctls(interface: Option<&str>) -> Sysctls {
    let usual = usual::SYSCTLS.iter().map(|(name, ..)| format!("net.{name}"));
    let names = SETTINGS.iter().map(|name| (*name).to_owned()).chain(usual);
    let of_interface = interface.into_iter().filter(|name| !name.contains(['.', '/']));
    let names = names.chain(of_interface.map(|name| format!("net.ipv4.conf.{name}.forwarding")));
    let read = |name: String| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        files::line(path).map(|value| (name, value.split_whitespace().collect::<Vec<_>>().join(" ")))
    };
    Sysctls(names.filter_map(read).collect())
}

/// Frames dropped because a CPU's backlog was full, among the counters of the stack.
pub const SOFTNET_DROPS: &str = "Softnet.Dropped";

/// What counts up, taken before and after a measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Of /proc/net/snmp and netstat, as "Tcp.RetransSegs"; this program's pauses and others, alike.
    pub stack: BTreeMap<String, u64>,
    /// Of the interface that leads to the other end: the kernel's, and the driver's as `ethtool -S` shows
    /// them.
    pub interface: BTreeMap<String, u64>,
    pub cpu: CpuTime,
}

impl Counters {
    pub fn read(interface: Option<&str>) -> Counters {
        let mut stack = BTreeMap::new();
        for path in ["/proc/net/snmp", "/proc/net/netstat"] {
            stack.append(&mut table(&files::text(path).unwrap_or_default()));
        }
        let throttled = cgroup::own().iter().map(|quota| quota.throttled_us).max();
        stack.extend(throttled.map(|us| ("Cgroup.ThrottledUsec".to_owned(), us)));
        let pressure = files::text("/proc/pressure/memory").and_then(|text| memory_pressure(&text));
        stack.extend(pressure.map(|waited| ("Pressure.MemoryUsec".to_owned(), waited)));
        stack.extend([pauses::counted()]);
        stack.append(&mut conntrack(&files::text("/proc/net/stat/nf_conntrack").unwrap_or_default()));
        stack.extend([softnet(&files::text("/proc/net/softnet_stat").unwrap_or_default())]);
        Counters {
            stack,
            interface: interface.map(interface::counters).unwrap_or_default(),
            cpu: CpuTime::read(),
        }
    }

    /// What was counted since `before`. A counter that went back was set to zero meanwhile.
    pub fn since(&self, before: &Counters) -> Counters {
        let changed = |now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>| {
            let change = |(name, value): (&String, &u64)| {
                (name.clone(), value.saturating_sub(then.get(name).copied().unwrap_or(0)))
            };
            now.iter().map(change).filter(|(_, value)| *value > 0).collect()
        };
        Counters {
            stack: changed(&self.stack, &before.stack),
            interface: changed(&self.interface, &before.interface),
            cpu: CpuTime {
                busy: self.cpu.busy.saturating_sub(before.cpu.busy),
                steal: self.cpu.steal.saturating_sub(before.cpu.steal),
            },
        }
    }

    pub fn stack(&self, name: &str) -> u64 {
        self.stack.get(name).copied().unwrap_or(0)
    }
}

/// Two lines a table, of names and of values, both with the table's name in front.
fn table(text: &str) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((table, names)), Some((_, values))) = (names.split_once(':'), values.split_once(':'))
        else {
            continue;
        };
        if !matches!(table, "Ip" | "Tcp" | "Udp" | "TcpExt" | "IpExt") {
            continue;
        }
        let pairs = names.split_whitespace().zip(values.split_whitespace());
        // Some are limits or negative; they count nothing.
        counters
            .extend(pairs.filter_map(|(name, value)| Some((format!("{table}.{name}"), value.parse().ok()?))));
    }
    counters
}

/// Pages that all TCP connections have, of /proc/net/sockstat.
pub fn pages(text: &str) -> Option<u64> {
    let tcp = text.lines().find(|line| line.starts_with("TCP:"))?;
    tcp.split_whitespace().skip_while(|word| *word != "mem").nth(1)?.parse().ok()
}

/// Microseconds in which some task had to wait for memory (/proc/pressure).
fn memory_pressure(text: &str) -> Option<u64> {
    text.lines().find(|line| line.starts_with("some "))?.rsplit_once("total=")?.1.trim().parse().ok()
}

/// A line of names, and one of hexadecimal numbers a CPU.
fn conntrack(text: &str) -> BTreeMap<String, u64> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let mut counters = BTreeMap::new();
    for line in lines {
        for (name, value) in names.iter().zip(line.split_whitespace()) {
            let value = u64::from_str_radix(value, 16).unwrap_or(0);
            // The first one is the size of the table, in each line; insertions also fail where two packets
            // of a new connection meet.
            if ["drop", "early_drop"].contains(name) {
                *counters.entry(format!("Conntrack.{name}")).or_default() += value;
            }
        }
    }
    counters
}

/// A line a CPU, in hexadecimal: processed, dropped, squeezed ...
fn softnet(text: &str) -> (String, u64) {
    let dropped = text.lines().filter_map(|line| line.split_whitespace().nth(1));
    let dropped = dropped.filter_map(|field| u64::from_str_radix(field, 16).ok()).sum();
    (SOFTNET_DROPS.to_owned(), dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let text = "Tcp: RtoAlgorithm MaxConn RetransSegs\nTcp: 1 -1 17\nIcmp: InMsgs\nIcmp: 3\n";
        let table = table(text);
        assert_eq!(table.get("Tcp.RetransSegs"), Some(&17));
        assert!(!table.contains_key("Tcp.MaxConn") && !table.contains_key("Icmp.InMsgs"));
        assert_eq!(memory_pressure("some avg10=0.00 avg60=0.00 total=42\nfull total=1\n"), Some(42));
        let text = "entries  insert_failed drop early_drop\n000000ff 1 0000000a 1\n000000ff 1 00000001 0\n";
        assert_eq!(
            conntrack(text),
            [("Conntrack.drop".to_owned(), 11), ("Conntrack.early_drop".to_owned(), 1)].into()
        );
        let text = "sockets: used 42\nTCP: inuse 5 orphan 0 tw 0 alloc 7 mem 96\nUDP: inuse 2 mem 1\n";
        assert_eq!(pages(text), Some(96));
        assert_eq!(softnet("00000010 00000002 0000000a 0\n00000010 00000001 00000001 0\n").1, 3);
    }

    #[test]
    fn changes_are_what_was_counted_meanwhile() {
        let count =
            |value| Counters { stack: [("Tcp.RetransSegs".to_owned(), value)].into(), ..Counters::default() };
        assert_eq!(count(9).since(&count(4)).stack("Tcp.RetransSegs"), 5);
        assert_eq!(count(1).since(&count(4)).stack("Tcp.RetransSegs"), 0);
    }

    #[test]
    fn the_largest_buffer_is_the_third_number() {
        let sysctls = Sysctls([("net.ipv4.tcp_rmem".to_owned(), "4096\t131072\t6291456".to_owned())].into());
        assert_eq!(sysctls.largest("net.ipv4.tcp_rmem"), Some(6_291_456));
        assert_eq!(sysctls.largest("net.ipv4.tcp_wmem"), None);
    }
}
