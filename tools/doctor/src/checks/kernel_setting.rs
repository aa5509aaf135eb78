//! Settings of the kernel and of an interface that are far from what the kernel begins with. One table, a row
//! a setting.

use crate::facts::Facts;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "kernel-setting", examine };
pub const CLOCK: Check = Check { name: "clock", examine: clock };

/// A number, the range in which it costs nothing worth mentioning, the kernel's own, and what else it does.
struct Setting {
    name: &'static str,
    least: i64,
    most: i64,
    usual: &'static str,
    what: &'static str,
}

const fn setting(
    name: &'static str,
    least: i64,
    most: i64,
    usual: &'static str,
    what: &'static str,
) -> Setting {
    Setting { name, least, most, usual, what }
}

const ANY: i64 = i64::MAX;
/// Of Documentation/networking/ip-sysctl and admin-guide/sysctl/net of the kernel.
const SYSCTLS: [Setting; 24] = [
    setting("net.core.bpf_jit_enable", 1, ANY, "1", "filters are interpreted"),
    setting("net.core.dev_weight", 16, ANY, "64", "a card's poll ends after so few frames"),
    setting("net.core.gro_normal_batch", 1, 64, "8", "merged frames wait for so many others"),
    setting(
        "net.core.netdev_budget",
        64,
        ANY,
        "300",
        "a CPU takes so few frames before it does something else",
    ),
    setting("net.core.netdev_budget_usecs", 1000, ANY, "8000", "a CPU takes frames for so short a time"),
    setting("net.core.netdev_max_backlog", 100, ANY, "1000", "more frames at once are dropped"),
    setting(
        "net.core.rmem_default",
        65_536,
        ANY,
        "212992",
        "datagrams that a program does not take at once are dropped",
    ),
    setting(
        "net.core.wmem_default",
        65_536,
        ANY,
        "212992",
        "a program may write so few bytes of datagrams in advance",
    ),
    setting("net.ipv4.tcp_autocorking", 0, 1, "1", "small writes wait"),
    setting(
        "net.ipv4.tcp_base_mss",
        512,
        ANY,
        "1024",
        "probing of the path's MTU begins with so small segments",
    ),
    setting("net.ipv4.tcp_comp_sack_delay_ns", 0, 5_000_000, "1000000", "selective acknowledgements wait"),
    setting("net.ipv4.tcp_dsack", 1, 1, "1", "senders cannot see what they sent in vain"),
    setting("net.ipv4.tcp_frto", 1, 2, "2", "time-outs in vain are taken for losses"),
    setting(
        "net.ipv4.tcp_limit_output_bytes",
        131_072,
        ANY,
        "1048576",
        "a connection has so few bytes in the card's queue",
    ),
    setting("net.ipv4.tcp_max_reordering", 16, ANY, "300", "overtaken segments are taken for lost ones"),
    setting("net.ipv4.tcp_min_tso_segs", 1, 44, "2", "super-frames have at least so many segments"),
    setting(
        "net.ipv4.tcp_notsent_lowat",
        65_536,
        ANY,
        "4294967295",
        "a program may write so little in advance",
    ),
    setting(
        "net.ipv4.tcp_pacing_ca_ratio",
        100,
        ANY,
        "120",
        "connections are paced below what their window allows",
    ),
    setting(
        "net.ipv4.tcp_pacing_ss_ratio",
        120,
        ANY,
        "200",
        "connections begin paced below what their window allows",
    ),
    setting("net.ipv4.tcp_recovery", 1, ANY, "1", "losses are found late"),
    setting(
        "net.ipv4.tcp_reordering",
        3,
        64,
        "3",
        "losses are found after so many duplicate acknowledgements",
    ),
    setting("net.ipv4.tcp_rto_min_us", 1, 400_000, "200000", "what is lost is sent again only after so long"),
    setting(
        "net.ipv4.tcp_timestamps",
        1,
        2,
        "1",
        "round trips are measured rarely, and sequence numbers wrap at high rates",
    ),
    setting("net.ipv4.tcp_tso_win_divisor", 1, 32, "3", "super-frames are cut to a small part of the window"),
];
/// Of Documentation/ABI/testing/sysfs-class-net and of `ip link`.
const INTERFACE: [Setting; 11] = [
    setting("gso_max_size", 32_768, ANY, "65536", "super-frames are cut to so many bytes before the card"),
    setting("gso_max_segs", 16, ANY, "65535", "super-frames are cut to so many segments before the card"),
    setting("gro_max_size", 32_768, ANY, "65536", "received segments are merged to so many bytes only"),
    setting(
        "gso_ipv4_max_size",
        32_768,
        ANY,
        "65536",
        "super-frames are cut to so many bytes before the card",
    ),
    setting("gro_flush_timeout", 0, 100_000, "0", "received segments wait so many nanoseconds for others"),
    setting("mtu", 1280, ANY, "1500", "frames are that small"),
    setting("threaded", 0, 0, "0", "received frames wait for a thread of the kernel"),
    setting("limit_max", 65_536, ANY, "1879048192", "a queue of the card holds so few bytes"),
    setting("tx_maxrate", 0, 0, "0", "a queue of the card sends at most so many Mbit/s"),
    setting("txqlen", 100, ANY, "1000", "more frames at once are dropped, or wait in their programs"),
    setting("rps_cpus", 0, 0, "0", "received frames are handed to so many CPUs (receive packet steering)"),
];
/// Of TCP's ways to react to losses, those that are made for general use.
pub const CONGESTION: [&str; 6] = ["cubic", "reno", "bbr", "bbr2", "bbr3", "htcp"];
/// Memory of TCP and of datagrams,
const MEMORY: [&str; 2] = ["net.ipv4.tcp_mem", "net.ipv4.udp_mem"];
/// and the pages below which each may run out of it.
const PAGES: u64 = 4096;
/// Ports for connections that a machine opens.
const PORTS: i64 = 1000;
/// Clocks that a program reads without a call of the kernel.
const CLOCKS: [&str; 6] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen", "riscv_clocksource"];

fn examine(evidence: &Evidence) -> Vec<Finding> {
    evidence.ends().flat_map(|(end, facts)| of(evidence, end, facts)).collect()
}

fn of(evidence: &Evidence, end: PathEnd, facts: &Facts) -> Vec<Finding> {
    let sysctls = SYSCTLS.iter().filter_map(|setting| {
        let value = facts.sysctls.number(setting.name)?;
        let remedy = Remedy::sysctl(setting.name, setting.usual);
        is_odd(setting, value)
            .then(|| found(evidence, end, setting.name, &value.to_string(), setting.what, remedy))
    });
    let card = facts.path_interface().map_or("INTERFACE", |card| card.name.as_str());
    let interface = INTERFACE.iter().filter_map(|setting| {
        let value = *facts.limits.interface.get(setting.name)?;
        let name = format!("{} of {card}", setting.name);
        let is_odd = is_odd(setting, value) && is_used(setting.name, value, facts);
        is_odd.then(|| {
            found(evidence, end, &name, &value.to_string(), setting.what, of_interface(card, setting))
        })
    });
    let others =
        [congestion(evidence, end, facts), ports(evidence, end, facts), offline(evidence, end, facts)];
    let memory = MEMORY.iter().filter_map(|name| memory(evidence, end, facts, name));
    sysctls.chain(interface).chain(memory).chain(others.into_iter().flatten()).collect()
}

fn is_odd(setting: &Setting, value: i64) -> bool {
    !(setting.least..=setting.most).contains(&value)
}

/// Steering to several CPUs is what it is for; the length of a queue is used by plain disciplines only.
fn is_used(name: &str, value: i64, facts: &Facts) -> bool {
    match name {
        "rps_cpus" => value == 1 && facts.machine.cpus > 1,
        "txqlen" => facts.limits.queueing.iter().any(|limit| limit.kind().starts_with("pfifo")),
        _ => true,
    }
}

fn of_interface(card: &str, setting: &Setting) -> Remedy {
    let (name, usual) = (setting.name, setting.usual);
    let remedy = Remedy::new(format!("set {name} of {card} as the kernel does"));
    match name {
        "txqlen" => remedy.run(&["ip", "link", "set", "dev", card, "txqueuelen", usual]),
        "gro_flush_timeout" => {
            remedy.run(&["sh", "-c", &format!("echo {usual} >/sys/class/net/{card}/{name}")])
        }
        "limit_max" => {
            let all = format!(
                "for q in /sys/class/net/{card}/queues/tx-*; do echo {usual} >$q/byte_queue_limits/{name}; done"
            );
            remedy.run(&["sh", "-c", &all])
        }
        "tx_maxrate" | "rps_cpus" => {
            let all =
                format!("for file in /sys/class/net/{card}/queues/*/{name}; do echo {usual} >$file; done");
            remedy.run(&["sh", "-c", &all])
        }
        _ => remedy.run(&["ip", "link", "set", "dev", card, name, usual]),
    }
}

fn found(evidence: &Evidence, end: PathEnd, name: &str, value: &str, what: &str, remedy: Remedy) -> Finding {
    let what = format!("{name} is {value} on {}: {what}.", evidence.name(end));
    let cost = Cost::estimated(0.6, "far from what the kernel begins with");
    CHECK
        .slow(what, cost)
        .at(end)
        .explains(&["sender-limit"])
        .evidence(format!("{name} = {value}"))
        .remedy(remedy)
}

fn congestion(evidence: &Evidence, end: PathEnd, facts: &Facts) -> Option<Finding> {
    let name = "net.ipv4.tcp_congestion_control";
    let value = facts.sysctls.0.get(name).filter(|value| !CONGESTION.contains(&value.as_str()))?;
    let what = "a way to react to losses and delays that is made for special paths";
    Some(found(evidence, end, name, value, what, Remedy::sysctl(name, "cubic")))
}

fn ports(evidence: &Evidence, end: PathEnd, facts: &Facts) -> Option<Finding> {
    let name = "net.ipv4.ip_local_port_range";
    let value = facts.sysctls.0.get(name)?;
    let (first, last) = value.split_once(' ')?;
    let count = last.parse::<i64>().ok()? - first.parse::<i64>().ok()? + 1;
    let what = "the machine can open so few connections to one address";
    (count < PORTS).then(|| found(evidence, end, name, value, what, Remedy::sysctl(name, "32768 60999")))
}

/// The third number is what all sockets together may have, in pages.
fn memory(evidence: &Evidence, end: PathEnd, facts: &Facts, name: &'static str) -> Option<Finding> {
    let pages = facts.sysctls.largest(name).filter(|pages| *pages < PAGES)?;
    let what = "all sockets together may have so few pages of memory";
    let usual = format!("{} {} {}", PAGES, PAGES * 2, PAGES * 4);
    Some(found(evidence, end, name, &pages.to_string(), what, Remedy::sysctl(name, &usual)))
}

fn offline(evidence: &Evidence, end: PathEnd, facts: &Facts) -> Option<Finding> {
    let cpus = facts.machine.offline.as_ref()?;
    let remedy = Remedy::new("switch them on").run(&["chcpu", "-e", cpus]);
    Some(found(
        evidence,
        end,
        "the list of CPUs that are offline",
        cpus,
        "the machine does without them",
        remedy,
    ))
}

/// Where the machine has a better one.
fn clock(evidence: &Evidence) -> Vec<Finding> {
    let found = evidence.ends().filter_map(|(end, facts)| {
        let better = facts.machine.clocks.split(' ').find(|clock| CLOCKS.contains(clock))?;
        let clock = facts.machine.clock_source.as_deref().filter(|clock| !CLOCKS.contains(clock))?;
        let what = format!(
            "The clock of {} is {clock}: {better} can be read without leaving the VM.",
            evidence.name(end)
        );
        let path = "/sys/devices/system/clocksource/clocksource0";
        let remedy = Remedy::new("use the processor's, if the machine offers it")
            .run(&["cat", &format!("{path}/available_clocksource")])
            .run(&["sh", "-c", &format!("echo {better} >{path}/current_clocksource")]);
        let cost = Cost::estimated(
            0.2,
            "CPU time, for each frame that is stamped and each round trip that is measured",
        );
        let finding = CLOCK.advice(what, cost).at(end);
        Some(finding.evidence(format!("{path}/current_clocksource: {clock}")).remedy(remedy))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn only_what_is_far_from_the_kernels_own_is_found() {
        for setting in &SYSCTLS {
            let usual: i64 = setting.usual.parse().unwrap();
            for (value, odd) in [(usual, 0), (setting.least, 0), (setting.least - 1, 1)] {
                let mut evidence = testing::healthy();
                evidence.near.sysctls.0.insert(setting.name.to_owned(), value.to_string());
                assert_eq!(examine(&evidence).len(), odd, "{} {value}", setting.name);
            }
        }
        for setting in &INTERFACE {
            let usual: i64 = setting.usual.parse().unwrap();
            let mut evidence = testing::healthy();
            evidence.near.limits.interface.insert(setting.name.to_owned(), usual);
            assert!(examine(&evidence).is_empty(), "{}", setting.name);
        }
    }

    #[test]
    fn words_and_ranges_are_examined_too() {
        for (name, value, odd) in [
            ("net.ipv4.tcp_congestion_control", "vegas", 1),
            ("net.ipv4.tcp_congestion_control", "bbr", 0),
            ("net.ipv4.ip_local_port_range", "32768 60999", 0),
            ("net.ipv4.ip_local_port_range", "40000 40010", 1),
            ("net.ipv4.tcp_mem", "1 2 4", 1),
            ("net.ipv4.udp_mem", "90000 180000 360000", 0),
        ] {
            let mut evidence = testing::healthy();
            evidence.near.sysctls.0.insert(name.to_owned(), value.to_owned());
            assert_eq!(examine(&evidence).len(), odd, "{name} {value}");
        }
    }

    #[test]
    fn a_slow_clock_is_named_where_a_better_one_can_be() {
        let mut evidence = testing::healthy();
        for (clock, found) in [("tsc", 0), ("kvm-clock", 0), ("hpet", 1), ("acpi_pm", 1)] {
            evidence.near.machine.clock_source = Some(clock.to_owned());
            evidence.near.machine.clocks = "tsc hpet acpi_pm".to_owned();
            assert_eq!(super::clock(&evidence).len(), found, "{clock}");
        }
        evidence.near.machine.clocks = "hpet acpi_pm".to_owned();
        assert!(super::clock(&evidence).is_empty());
    }
}
