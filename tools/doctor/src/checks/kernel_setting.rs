//! Settings of the kernel and of an interface that are far from what the kernel begins with.

use crate::facts::Facts;
use crate::facts::usual::{INTERFACE, SYSCTLS, Setting};
use crate::prelude::*;

pub const CHECK: Check = Check { name: "kernel-setting", examine };
pub const CLOCK: Check = Check { name: "clock", examine: clock };

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

/// What makes received frames wait, and findings of that.
const LATE: [&str; 3] = ["gro_flush_timeout", "net.core.gro_normal_batch", "threaded"];
const OF_LATE: &[&str] = &["sender-limit", "latency", "bufferbloat", "loss", "retransmits"];

/// A setting, its value, what that does, and how it is mended.
type Odd = (String, String, &'static str, Remedy);

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let each = evidence.ends().flat_map(|(end, facts)| all_odd(facts).map(move |odd| (end, odd)));
    each.map(|(end, odd)| finding(evidence, end, odd)).collect()
}

fn finding(evidence: &Evidence, end: PathEnd, (name, value, what, remedy): Odd) -> Finding {
    let what = format!("{name} is {value} on {}: {what}.", evidence.name(end));
    let cost = Cost::estimated(0.6, "far from what the kernel begins with");
    let is_late = LATE.iter().any(|late| name.starts_with(late));
    let finding = CHECK.slow(what, cost).at(end).explains(if is_late { OF_LATE } else { &["sender-limit"] });
    finding.evidence(format!("{name} = {value}")).remedy(remedy)
}

fn all_odd(facts: &Facts) -> impl Iterator<Item = Odd> {
    let sysctls = SYSCTLS.iter().filter_map(|setting| sysctl(facts, setting));
    let interface = INTERFACE.iter().filter_map(|setting| of_interface(facts, setting));
    let memory = MEMORY.iter().filter_map(|name| memory(facts, name));
    let others = [congestion(facts), ports(facts), offline(facts)];
    sysctls.chain(interface).chain(memory).chain(others.into_iter().flatten())
}

fn sysctl(facts: &Facts, (name, range, usual, what): &Setting) -> Option<Odd> {
    let name = format!("net.{name}");
    let value = facts.sysctls.number(&name).filter(|value| !range.contains(value))?;
    let remedy = Remedy::sysctl(&name, usual);
    Some((name, value.to_string(), *what, remedy))
}

fn of_interface(facts: &Facts, (name, range, usual, what): &Setting) -> Option<Odd> {
    let value = *facts.limits.interface.get(*name).filter(|value| !range.contains(value))?;
    let card = facts.path_interface().map_or("INTERFACE", |card| card.name.as_str());
    let odd = (format!("{name} of {card}"), value.to_string(), *what, as_usual(card, name, usual));
    is_used(name, value, facts).then_some(odd)
}

/// Steering to several CPUs is what it is for; the length of a queue is used by plain disciplines only.
fn is_used(name: &str, value: i64, facts: &Facts) -> bool {
    match name {
        "rps_cpus" => value == 1 && facts.machine.cpus > 1,
        "txqlen" => facts.limits.queueing.iter().any(|limit| limit.kind().starts_with("pfifo")),
        _ => true,
    }
}

fn as_usual(card: &str, name: &str, usual: &str) -> Remedy {
    let remedy = Remedy::new(format!("set {name} of {card} as the kernel does"));
    let folder = format!("/sys/class/net/{card}");
    let script = match name {
        "txqlen" => return remedy.run(&["ip", "link", "set", "dev", card, "txqueuelen", usual]),
        "gro_flush_timeout" => format!("echo {usual} >{folder}/{name}"),
        "limit_max" => {
            format!("for q in {folder}/queues/tx-*; do echo {usual} >$q/byte_queue_limits/{name}; done")
        }
        "tx_maxrate" | "rps_cpus" => {
            format!("for file in {folder}/queues/*/{name}; do echo {usual} >$file; done")
        }
        _ => return remedy.run(&["ip", "link", "set", "dev", card, name, usual]),
    };
    remedy.run(&["sh", "-c", &script])
}

fn congestion(facts: &Facts) -> Option<Odd> {
    let name = "net.ipv4.tcp_congestion_control";
    let value = facts.sysctls.0.get(name).filter(|value| !CONGESTION.contains(&value.as_str()))?;
    let what = "a way to react to losses and delays that is made for special paths";
    Some((name.to_owned(), value.clone(), what, Remedy::sysctl(name, "cubic")))
}

fn ports(facts: &Facts) -> Option<Odd> {
    let name = "net.ipv4.ip_local_port_range";
    let value = facts.sysctls.0.get(name)?;
    let (first, last) = value.split_once(' ')?;
    let count = last.parse::<i64>().ok()? - first.parse::<i64>().ok()? + 1;
    let what = "the machine can open so few connections to one address";
    let odd = (name.to_owned(), value.clone(), what, Remedy::sysctl(name, "32768 60999"));
    (count < PORTS).then_some(odd)
}

/// The third number is what all sockets together may have, in pages.
fn memory(facts: &Facts, name: &str) -> Option<Odd> {
    let pages = facts.sysctls.largest(name).filter(|pages| *pages < PAGES)?;
    let what = "all sockets together may have so few pages of memory";
    let usual = format!("{} {} {}", PAGES, PAGES * 2, PAGES * 4);
    Some((name.to_owned(), pages.to_string(), what, Remedy::sysctl(name, &usual)))
}

fn offline(facts: &Facts) -> Option<Odd> {
    let cpus = facts.machine.offline.as_ref()?;
    let remedy = Remedy::new("switch them on").run(&["chcpu", "-e", cpus]);
    let name = "the list of CPUs that are offline".to_owned();
    Some((name, cpus.clone(), "the machine does without them", remedy))
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
        for (name, range, usual, _) in &SYSCTLS {
            let usual: i64 = usual.parse().unwrap();
            for (value, odd) in [(usual, 0), (*range.start(), 0), (range.start() - 1, 1)] {
                let mut evidence = testing::healthy();
                evidence.near.sysctls.0.insert(format!("net.{name}"), value.to_string());
                assert_eq!(examine(&evidence).len(), odd, "{name} {value}");
            }
        }
        for (name, _, usual, _) in &INTERFACE {
            let usual: i64 = usual.parse().unwrap();
            let mut evidence = testing::healthy();
            evidence.near.limits.interface.insert((*name).to_owned(), usual);
            assert!(examine(&evidence).is_empty(), "{name}");
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
