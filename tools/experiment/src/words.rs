//! What factors, their values and what is measured are called in figures, tables and claims: one name a
//! thing, and in plain words where plans write short ones.

use vmlane_lab::setup::{UML_KERNELS, UML_PCI_KERNEL};

use crate::plan::Measure;
use crate::rows::Row;
use crate::units::bytes;

/// What follows from a device's name: whose it is. Figures can show it, plans cannot vary it.
pub const MAKER: &str = "maker";

/// Whose device this is.
pub fn maker(device: &str) -> &'static str {
    match device.split_once('-') {
        Some(("qemu", _)) => "QEMU",
        Some(("uml", _)) => "User Mode Linux",
        _ => "vmlane",
    }
}

/// How a factor is called along an axis, in a table's head or in a legend.
pub fn title(factor: &str) -> &str {
    match factor {
        "message" => "message size",
        "buffer" => "socket buffers",
        "nics" => "cards",
        "boot" => "lab, in the order of their boots",
        "guests" => "VMs",
        "mtu" => "MTU in bytes",
        "ring" => "ring size in descriptors",
        "ip" => "IP version",
        "rate" => "an uplink's limit",
        "moderation" => "interrupts a second at most",
        "coalesce" => "software LRO",
        "host_offloads" => "offloads of the test host",
        "cpus" => "CPUs of a VM",
        "memory" => "MiB of a VM",
        "workers" => "workers of the daemon",
        "nodelay" => "small sends",
        other => other,
    }
}

/// How a factor is called along the axis of these rows: all that streams differ in by their test is the
/// direction.
pub fn axis_title<'f>(factor: &'f str, rows: &[&Row]) -> &'f str {
    if factor == "test" && !rows.iter().any(|row| is_transactional(row)) {
        "direction"
    } else {
        title(factor)
    }
}

/// A value along an axis, or in a column of a table, that its factor names.
pub fn tick(factor: &str, value: &str) -> String {
    match (factor, value) {
        ("test", _) => test_name(value).to_owned(),
        ("message" | "buffer", _) => bytes(value),
        ("nodelay", "true") => "TCP_NODELAY".into(),
        ("nodelay", _) => "gathered (Nagle)".into(),
        // Ethernet's, with which every driver begins.
        ("mtu", "default") => "1500".into(),
        ("ring", "default") => "the driver's own".into(),
        // The Linux driver rounds up to a multiple of 32.
        ("ring", _) => value
            .parse::<u32>()
            .map_or_else(|_| value.to_owned(), |count| count.next_multiple_of(32).to_string()),
        ("moderation", "default") => "the device decides".into(),
        ("moderation", "off") => "never held back".into(),
        ("moderation", _) => value.to_owned(),
        ("offloads" | "host_offloads", _) => offloads(value),
        ("coalesce", "true") => "on".into(),
        ("coalesce", "false") => "off".into(),
        ("rate", "default") => "none".into(),
        ("rate", _) => rate(value),
        ("to", "host") => "host".into(),
        ("to", _) => "VM".into(),
        _ => value.to_owned(),
    }
}

/// What a test does, seen from guest a.
fn test_name(test: &str) -> &str {
    match test {
        "stream" => "sending",
        "maerts" => "receiving",
        "bidir" => "both ways at once, summed",
        "rr" => "round trips",
        "crr" => "connections",
        other => other,
    }
}

/// `1 Gbit/s`, of `1G`.
fn rate(value: &str) -> String {
    let (number, prefix) = value.split_at(value.trim_end_matches(char::is_alphabetic).len());
    format!("{number} {prefix}bit/s")
}

/// `TSO and GSO off`, of `tso=off,gso=off`.
fn offloads(value: &str) -> String {
    let of = |wanted: &str| {
        let pairs = value.split(',').filter_map(|pair| pair.split_once('='));
        let name = |name: &str| match name {
            "tx" => "TX checksums".to_owned(),
            "rx" => "RX checksums".into(),
            other => other.to_uppercase(),
        };
        let names: Vec<String> =
            pairs.filter(|(_, state)| *state == wanted).map(|(of, _)| name(of)).collect();
        (!names.is_empty()).then(|| format!("{} {wanted}", names.join(" and ")))
    };
    let all: Vec<String> = ["on", "off"].into_iter().filter_map(of).collect();
    if all.is_empty() { "offloads on".into() } else { all.join(", ") }
}

/// What a factor distinguishes: "VMs were booted anew for each ring size".
pub fn one_of(factor: &str) -> &str {
    match factor {
        "guests" => "number of VMs",
        "nics" => "number of cards",
        "uplinks" => "number of uplinks",
        "cpus" => "number of CPUs",
        "workers" => "number of workers",
        "memory" => "size of memory",
        "mtu" => "MTU",
        "ring" => "ring size",
        "rate" => "limit of the uplink",
        "coalesce" => "setting of software LRO",
        "offloads" => "set of offloads",
        "host_offloads" => "set of the test host's offloads",
        "to" => "kind of peer",
        other => title(other),
    }
}

/// A count of things, one or many.
fn count(value: &str, one: &str, many: &str) -> String {
    format!("{value} {}", if value == "1" { one } else { many })
}

/// A value as a label that explains itself.
pub fn label(factor: &str, value: &str) -> String {
    match factor {
        "device" | "tool" | "profile" => value.to_owned(),
        "test" | "nodelay" | "offloads" => tick(factor, value),
        "buffer" if value == "default" => "default buffers".into(),
        "buffer" => format!("{} buffers", bytes(value)),
        "message" => format!("{} messages", bytes(value)),
        "moderation" if value == "default" => "the device decides on interrupts".into(),
        "moderation" if value == "off" => "interrupts never held back".into(),
        "moderation" => format!("{value} interrupts/s at most"),
        "rate" if value == "default" => "uplink without a limit".into(),
        "rate" => format!("uplink of {}", rate(value)),
        "sessions" => count(value, "session", "sessions"),
        "nics" => count(value, "card", "cards"),
        "guests" => count(value, "VM", "VMs"),
        "workers" => count(value, "worker", "workers"),
        "uplinks" => count(value, "uplink", "uplinks"),
        "queues" => count(value, "queue", "queues"),
        "cpus" => format!("{} a VM", count(value, "CPU", "CPUs")),
        "memory" => format!("{value} MiB a VM"),
        "mtu" => format!("MTU {}", tick(factor, value)),
        "ring" if value == "default" => "the driver's own rings".into(),
        "ring" => format!("rings of {}", tick(factor, value)),
        "coalesce" => format!("software LRO {}", tick(factor, value)),
        "host_offloads" => format!("test host: {}", tick(factor, value)),
        "to" if value == "host" => "VM and host".into(),
        "to" => "VM to VM".into(),
        // User Mode Linux is built twice: the one with a bus for PCI cards, and the one as it is.
        "kernel" if value == UML_PCI_KERNEL => format!("kernel {value}, devices on a PCI bus"),
        "kernel" if UML_KERNELS.contains(&value) => format!("kernel {value}, no PCI bus"),
        "boot" => format!("lab {value}"),
        MAKER => format!("{value}'s devices"),
        "host" => format!("machine {value}"),
        "ip" => format!("IPv{value}"),
        _ => format!("{factor} {value}"),
    }
}

/// How an accelerator is called.
pub fn accelerator(name: &str) -> &str {
    match name {
        "tcg" => "TCG: instructions emulated",
        "kvm" => "KVM",
        // User Mode Linux is a program of the host.
        "native" => "none: User Mode Linux runs instructions as they are",
        other => other,
    }
}

/// What is to be known before any number of these rows is read; none where no guest was emulated.
pub fn emulated(rows: &[Row]) -> Option<&'static str> {
    rows.iter().any(|row| row.accelerator == "tcg").then_some(
        "QEMU emulated its guests (accelerator tcg, no KVM): work inside a guest costs many times what it costs on hardware \
         virtualization, so neither the numbers nor the ratios predict what KVM would show.",
    )
}

pub fn is_transactional(row: &Row) -> bool {
    row.transactions_per_second.is_some() || ["rr", "crr"].contains(&row.test.as_str())
}

/// What rows are measured by; a unit's name fits behind it.
pub fn quantity(rows: &[&Row], measure: Measure) -> String {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        let name = match (measure, is_transactional(row)) {
            (Measure::Result, false) => "throughput",
            (Measure::Result, true) if row.test == "crr" => "connections a second",
            (Measure::Result, true) => "round trips a second",
            (Measure::RttP50, _) => "time of a round trip (median)",
            (Measure::RttP99, _) => "time of a round trip (99 % are shorter)",
            (Measure::Packets, _) => "packets a second",
            (Measure::Cpu, false) => "host CPU time for a gigabyte",
            (Measure::Cpu, true) => "host CPU time for 1000 transactions",
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// The factors whose one value a chart names under its title.
const ALWAYS: [&str; 5] = ["to", "test", "message", "buffer", "sessions"];

/// Between which ends the rows' bytes go, and which way.
fn direction(rows: &[&Row]) -> &'static str {
    let all = |test: &str| rows.iter().all(|row| row.test == test);
    match rows.first().map(|row| row.factor("to") == "host") {
        Some(true) if all("stream") => "VM to host",
        Some(true) if all("maerts") => "host to VM",
        Some(true) => "VM and host",
        _ => "VM to VM",
    }
}

/// What sessions are counted by, and what a result is the sum of, where that is not one pair with a card
/// each.
fn shares(rows: &[&Row]) -> Option<(&'static str, &'static str)> {
    let to_host = rows.iter().any(|row| row.factor("to") == "host");
    match () {
        () if rows.iter().any(|row| row.factor("nics").parse().is_ok_and(|count: u32| count > 1)) => {
            Some(("a card", "of all cards"))
        }
        () if to_host && rows.iter().any(|row| row.guests > 1) => Some(("a VM", "of all VMs")),
        () if rows.iter().any(|row| row.guests > 2) => Some(("a pair of VMs", "of all VMs")),
        () => None,
    }
}

/// What the result of rows is the sum of: ` of all VMs`.
pub fn sum(rows: &[&Row], measure: Measure) -> String {
    let of = shares(rows).filter(|_| measure == Measure::Result);
    of.map_or_else(String::new, |(_, all)| format!(" {all}"))
}

/// What all rows of a chart have in common, in words: the devices first. `shown` are the factors that the
/// chart shows itself, `named` those that the plan names.
pub fn in_common(rows: &[&Row], named: &[&str], shown: &[&str]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let mut words: Vec<String> = Vec::new();
    if !shown.contains(&"device") {
        let mut devices: Vec<&str> = Vec::new();
        for row in rows {
            // The name carries the profile, which is a factor of its own, and the card's own is
            // left out.
            let whole = row.device.as_str();
            let device = match shown.contains(&"profile") {
                true => whole.split(':').next().unwrap_or(whole),
                false => whole.strip_suffix(":profile=vmxnet3").unwrap_or(whole),
            };
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        let profiles = shown.contains(&"profile") && rows.iter().any(|row| row.device != first.device);
        words.push(format!("{}{}", if profiles { "profiles of " } else { "" }, devices.join(" and ")));
    }
    let others = named.iter().filter(|name| !["device", "profile", "machine"].contains(*name));
    let mut factors: Vec<&str> = ALWAYS.to_vec();
    factors.extend(others.filter(|name| !ALWAYS.contains(*name)));
    for factor in factors.into_iter().filter(|factor| !shown.contains(factor)) {
        let value = first.factor(factor);
        let same = rows.iter().all(|row| row.factor(factor) == value);
        let is_shown = ALWAYS.contains(&factor) || !["default", "false"].contains(&value.as_str());
        // The lab's own choices stand at the picture's foot.
        if same && is_shown && !["kernel", "accelerator", "qemu", "tool"].contains(&factor) {
            words.push(match factor {
                "to" => direction(rows).to_owned(),
                "message" if is_transactional(first) => format!("{} each way", bytes(&value)),
                "sessions" => shares(rows).map_or_else(
                    || label(factor, &value),
                    |(each, _)| format!("{} {each}", label(factor, &value)),
                ),
                _ => label(factor, &value),
            });
        }
    }
    words.join(", ")
}

/// `A / B`: what a ratio divides by what, by the factors in which both sides differ.
pub fn sides<'a>(apart: impl Iterator<Item = (&'a String, Vec<String>, Vec<String>)>) -> String {
    let side = |name: &str, values: &[String]| match values {
        [value] => label(name, value),
        _ => format!("each {}", title(name)),
    };
    let both: Vec<(String, String)> =
        apart.map(|(name, upper, lower)| (side(name, &upper), side(name, &lower))).collect();
    let join = |of: fn(&(String, String)) -> &str| both.iter().map(of).collect::<Vec<_>>().join(", ");
    format!("{} / {}", join(|both| &both.0), join(|both| &both.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_plain_words() {
        for (factor, value, along, alone) in [
            ("test", "maerts", "receiving", "receiving"),
            ("message", "64k", "64 KiB", "64 KiB messages"),
            ("mtu", "default", "1500", "MTU 1500"),
            ("ring", "150", "160", "rings of 160"),
            ("ring", "default", "the driver's own", "the driver's own rings"),
            ("moderation", "4000", "4000", "4000 interrupts/s at most"),
            ("moderation", "off", "never held back", "interrupts never held back"),
            ("offloads", "tso=off,gso=off", "TSO and GSO off", "TSO and GSO off"),
            ("offloads", "default", "offloads on", "offloads on"),
            ("rate", "1G", "1 Gbit/s", "uplink of 1 Gbit/s"),
            ("host_offloads", "tx=off", "TX checksums off", "test host: TX checksums off"),
            ("rate", "default", "none", "uplink without a limit"),
            ("sessions", "1", "1", "1 session"),
            ("nics", "4", "4", "4 cards"),
            ("kernel", "7.2pci", "7.2pci", "kernel 7.2pci, devices on a PCI bus"),
            ("to", "host", "host", "VM and host"),
        ] {
            assert_eq!((tick(factor, value), label(factor, value)), (along.into(), alone.into()));
        }
    }

    #[test]
    fn what_rows_have_in_common_is_named_and_what_the_chart_shows_is_not() {
        let row = |device: &str, message: u64| Row {
            device: device.into(),
            test: "stream".into(),
            message_bytes: message,
            sessions: 5,
            ..Row::default()
        };
        let (a, b) = (row("vmci", 512), row("vmxnet3", 4096));
        assert_eq!(
            in_common(&[&a, &b], &["device", "ring"], &["message"]),
            "vmci and vmxnet3, VM to VM, sending, default buffers, 5 sessions"
        );
        assert_eq!(
            in_common(&[&a], &["device"], &["device"]),
            "VM to VM, sending, 512 B messages, default buffers, 5 sessions"
        );
        assert_eq!(in_common(&[], &[], &[]), "");
    }

    #[test]
    fn where_several_send_the_text_names_whose_sessions_and_whose_sum_it_is() {
        let row = |guests: u32, to: &str, nics: &str| {
            let factors = [("to", to), ("nics", nics)].map(|(name, value)| (name.into(), value.into()));
            Row { device: "vmxnet3".into(), guests, sessions: 5, factors: factors.into(), ..Row::default() }
        };
        for (guests, to, nics, sessions, of) in [
            (2, "guest", "1", "5 sessions", ""),
            (1, "host", "1", "5 sessions", ""),
            (4, "guest", "1", "5 sessions a pair of VMs", " of all VMs"),
            (2, "host", "1", "5 sessions a VM", " of all VMs"),
            (1, "host", "4", "5 sessions a card", " of all cards"),
        ] {
            let rows = [&row(1, to, "1"), &row(guests, to, nics)];
            let given = in_common(&rows, &[], &["test", "message", "buffer", "to"]);
            assert_eq!(given, format!("vmxnet3, {sessions}"));
            assert_eq!(sum(&rows, Measure::Result), of);
            assert_eq!(sum(&rows, Measure::Cpu), "");
        }
    }

    #[test]
    fn the_way_of_the_bytes_goes_with_the_test() {
        let row = |test: &str| {
            let factors = [("to".to_owned(), "host".into())].into();
            Row { device: "vmxnet3".into(), test: test.into(), factors, ..Row::default() }
        };
        let (sends, receives) = (row("stream"), row("maerts"));
        let way = |rows: &[&Row]| in_common(rows, &[], &["test", "message", "buffer", "sessions"]);
        assert_eq!(
            [way(&[&sends]), way(&[&receives]), way(&[&sends, &receives]), way(&[&row("rr")])],
            ["vmxnet3, VM to host", "vmxnet3, host to VM", "vmxnet3, VM and host", "vmxnet3, VM and host"]
        );
    }
}
