//! On the host: frames that the switch drops, by reason.

use crate::host::{Nic, Vm};
use crate::prelude::Severity::{Broken, Slow};
use crate::prelude::*;

pub const CHECK: Check = Check { name: "switch-drops", examine };

/// A reason of the switch, the counter of the frames that pass, and what it means for the VM.
type Reason = (&'static str, &'static str, Severity, f64, &'static str);

/// Of frames on their way to the guest, and from it.
const TO: &str = "rx_frames";
const FROM: &str = "tx_frames";
const REASONS: [Reason; 13] = [
    ("drop_no_buffers", TO, Slow, 0.6, "has no free receive buffers when frames arrive"),
    ("drop_slow_receiver", TO, Slow, 0.6, "takes frames more slowly than they arrive"),
    (
        "drop_forged_source",
        FROM,
        Broken,
        0.9,
        "sends frames with another source address than its own, which its port group forbids",
    ),
    (
        "drop_mac_changed",
        FROM,
        Broken,
        0.9,
        "uses a MAC address that is not the configured one, which its port group forbids",
    ),
    ("drop_bad_vlan", FROM, Broken, 0.9, "sends frames with a VLAN tag that its port group does not take"),
    ("drop_too_long", TO, Broken, 0.8, "is sent frames that are longer than its MTU"),
    ("drop_no_room", TO, Broken, 0.8, "is sent frames for which its buffers are too small"),
    ("drop_flood", FROM, Slow, 0.5, "sends more broadcast and multicast frames than its flood_limit"),
    ("drop_shaped", TO, Slow, 0.4, "is sent more than its traffic shaping lets through"),
    (
        "drop_impaired",
        TO,
        Broken,
        0.7,
        "loses frames on request: its wire is impaired, or a fault was injected",
    ),
    ("drop_wire_full", TO, Slow, 0.4, "is sent more than its impaired wire carries"),
    ("drop_bad_offload", FROM, Broken, 0.8, "asks for offloads that do not match its frames"),
    ("drop_bad_descriptor", FROM, Broken, 0.8, "hands down descriptors that cannot be"),
];

/// How frames are no longer dropped for a reason.
fn remedy(nic: &Nic, reason: &str) -> Remedy {
    match reason {
        "drop_no_buffers" | "drop_slow_receiver" => {
            Remedy::new("in the guest: a larger receive ring, more CPU for it, or more queues")
                .command("ethtool -G INTERFACE rx 4096")
        }
        "drop_forged_source" => {
            let what = "allow it where the VM is a bridge, a router or a host of VMs";
            group(nic, what, "forged_transmits = true")
        }
        "drop_mac_changed" => {
            group(nic, "give the guest the configured address, or allow it", "mac_changes = true")
        }
        "drop_bad_vlan" => {
            group(nic, "remove the tag in the guest, or make the group a trunk", "vlan = \"trunk\"")
        }
        "drop_too_long" | "drop_no_room" => Remedy::new("give all machines of the network one MTU")
            .command("ip link set dev INTERFACE mtu 1500"),
        "drop_flood" => {
            let what = "search for a loop in the guest; for streams of multicast raise it";
            group(nic, what, "flood_limit = ...")
        }
        "drop_shaped" => wider(nic, "out"),
        "drop_impaired" => {
            let setting = "no impair in its [[wire]], or fault_injection = false in [daemon]";
            Remedy::new("end the fault").lasting("vmlane", setting)
        }
        "drop_wire_full" => Remedy::new("raise the rate, or shorten the delay, if that limit is not meant")
            .lasting("vmlane", "a larger rate in impair of its [[wire]]; then vmlane reload"),
        _ => Remedy::new("update the guest's driver, and report it").run(&["vmlane", "stats"]),
    }
}

/// A setting of the port group, which most of them can have of their own.
fn group(nic: &Nic, what: &str, setting: &str) -> Remedy {
    let place = format!("[[port_group]] \"{}\"", nic.port_group);
    Remedy::new(what).lasting("vmlane", format!("in vmlane.toml, {place}: {setting}; then vmlane reload"))
}

fn wider(nic: &Nic, direction: &str) -> Remedy {
    let setting = format!("shape = {{ {direction} = {{ average = ..., burst = ... }} }}, or that of the NIC");
    group(
        nic,
        "raise the rate or the burst, if that limit is not meant; shares divide it among senders",
        &setting,
    )
}

/// Directions of traffic shaping, as the configuration and the counters name them. Frames to the guest for
/// which there is no room are dropped, too: see above.
const SHAPED: [(&str, &str, &str); 2] = [
    ("in", "tx_shaped_us", "sends more than its traffic shaping lets through"),
    ("out", "rx_shaped_us", "is sent more than its traffic shaping lets through"),
];
/// Of the time that it was watched, how long frames may wait for tokens; and how long since counting began.
const WAITS: f64 = 0.1;
const WAITED: f64 = 1.0;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let Some(host) = &evidence.host else { return Vec::new() };
    let cards = host.vms.iter().flat_map(|vm| vm.nics.iter().map(move |nic| (vm, nic)));
    cards
        .flat_map(|(vm, nic)| {
            let dropped = REASONS.iter().filter_map(move |reason| of(vm, nic, reason));
            let delayed = SHAPED.iter().filter_map(move |way| shaped(host.watched, vm, nic, way));
            dropped.chain(delayed)
        })
        .collect()
}

/// Nothing is lost: frames wait.
fn shaped(watched: f64, vm: &Vm, nic: &Nic, way: &(&str, &str, &str)) -> Option<Finding> {
    let (direction, counter, what) = *way;
    let seconds = |us: u64| us as f64 / 1e6;
    let (total, lately) = (seconds(nic.count(counter)), seconds(nic.lately(counter)));
    let share = if watched > 0.0 { (lately / watched).min(1.0) } else { 0.0 };
    let (severity, cost) = if share >= WAITS {
        let cost = format!("frames waited {:.0} % of the time while it was watched", share * 100.0);
        (Severity::Slow, Cost::measured(share, cost))
    } else if total >= WAITED {
        (Severity::Advice, Cost::measured(0.1, format!("frames have waited {total:.0} s in all")))
    } else {
        return None;
    };
    let seen = format!("{counter}: {total:.1} s since counting began, {lately:.2} s while it was watched");
    let what = format!("{} of VM {} {what}: its frames wait.", nic.name, vm.name);
    Some(CHECK.found(severity, what, cost).evidence(seen).remedy(wider(nic, direction)))
}

fn of(vm: &Vm, nic: &Nic, reason: &Reason) -> Option<Finding> {
    let (counter, passed, severity, cost, what) = *reason;
    let (total, lately) = (nic.count(counter), nic.lately(counter));
    let share = total as f64 / (total + nic.count(passed)).max(1) as f64;
    if lately < 3 && (total < 10 || share < 0.001) {
        return None;
    }
    let what = format!("{} of VM {} {what}.", nic.name, vm.name);
    // What was long ago may be over.
    let severity = if lately > 0 { severity } else { severity.max(Slow) };
    let cost = Cost::measured(cost, format!("{total} frames dropped, {:.1} %", share * 100.0));
    let seen = format!("{counter}: {total} since counting began, {lately} while it was watched");
    Some(CHECK.found(severity, what, cost).evidence(seen).remedy(remedy(nic, counter)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;

    #[test]
    fn each_reason_is_reported_with_its_remedy() {
        for (counter, passed, severity, ..) in REASONS {
            let mut nic = Nic { name: "nic0".to_owned(), port_group: "lan".to_owned(), ..Nic::default() };
            nic.total.insert(counter.to_owned(), 20);
            let evidence = |nic: &Nic| {
                let vm = Vm { name: "web".to_owned(), nics: vec![nic.clone()], ..Vm::default() };
                Evidence { host: Some(Host { vms: vec![vm], ..Host::default() }), ..Evidence::default() }
            };
            let found = examine(&evidence(&nic));
            assert_eq!(found.len(), 1, "{counter}");
            assert!(
                found[0].what.starts_with("nic0 of VM web ") && found[0].evidence[0].starts_with(counter)
            );
            nic.total.insert(passed.to_owned(), 100_000);
            assert!(examine(&evidence(&nic)).is_empty(), "{counter}: few of many");
            nic.lately.insert(counter.to_owned(), 5);
            assert_eq!(examine(&evidence(&nic))[0].severity, severity);
        }
    }

    #[test]
    fn frames_that_wait_for_a_shape_are_reported() {
        let found = |counter: &str, total: u64, lately: u64| {
            let mut nic = Nic { name: "nic0".to_owned(), port_group: "lan".to_owned(), ..Nic::default() };
            nic.total.insert(counter.to_owned(), total);
            nic.lately.insert(counter.to_owned(), lately);
            let vm = Vm { name: "web".to_owned(), nics: vec![nic], ..Vm::default() };
            let host = Host { vms: vec![vm], watched: 2.0, ..Host::default() };
            examine(&Evidence { host: Some(host), ..Evidence::default() })
        };
        for (counter, total, lately, severity) in [
            ("tx_shaped_us", 900_000, 0, None),
            ("tx_shaped_us", 900_000, 190_000, None),
            ("tx_shaped_us", 900_000, 900_000, Some(Severity::Slow)),
            ("rx_shaped_us", 1_500_000, 0, Some(Severity::Advice)),
            ("tx_shaped_bytes", 9_000_000, 9_000_000, None),
        ] {
            let found = found(counter, total, lately);
            assert_eq!(found.first().map(|finding| finding.severity), severity, "{counter} {total} {lately}");
            for finding in found {
                let setting = &finding.remedies[0].persistent[0].text;
                let direction = if counter.starts_with("tx") { "in" } else { "out" };
                assert!(setting.contains(&format!("shape = {{ {direction} =")), "{setting}");
            }
        }
    }
}
