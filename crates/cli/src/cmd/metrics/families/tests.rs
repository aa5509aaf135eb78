use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::json;

use super::*;

#[path = "../../../../tests/it/common/openmetrics.rs"]
mod openmetrics;

use openmetrics::{Families, parse, value};

fn text(scrape: Scrape) -> String {
    let mut registry = Registry::with_prefix("vmlane");
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

fn read(answers: Option<(Status, Stats)>, max_vms: usize) -> Families {
    let text = text(Scrape::new(answers, max_vms, Seen::default(), Instant::now()));
    parse(&text).unwrap_or_else(|error| panic!("{error}\nin {text}"))
}

/// A daemon with a bit of everything, and `names` as its VMs.
fn answers(names: &[&str]) -> (Status, Stats) {
    let vm = |name: &&str| {
        json!({
            "name": name, "cid": 3, "group": "default", "attached": true, "ready": false, "state": "booting", "since": 8, "sockets": [],
            "queue_pairs": 1, "queue_pair_bytes": 2, "connections": 3, "doorbells": 4, "inbox_bytes": 5,
            "nics": [{"name": "nic0", "mac": "", "profile": "", "port_group": "", "socket": "", "attached": true,
                      "active": true, "link_down": true}]
        })
    };
    let status = json!({
        "daemon": "0.1.0", "pid": 1, "uptime_seconds": 1.5, "config": "", "runtime_dir": "", "workers": 1,
        "mode": "adaptive", "spin_us": 500, "fault_injection": false, "confined": "user",
        "vms": names.iter().map(vm).collect::<Vec<_>>(),
        "watched": [{"name": "worker-0", "busy_seconds": 0.25, "nap_seconds": 0.5}, {"name": "switch", "stuck_seconds": 2.0}],
        "uplinks": [{"name": "up0", "to": "tap", "attached": true, "how": "", "since": 9}],
        "peers": [{"name": "beta", "state": "up", "problem": "", "streams": 3, "counters": {"forged": 2, "bytes_sent": 9}},
                  {"name": "", "state": "helper", "problem": "", "streams": 0, "counters": {"unknown_names": 1}}],
        "teams": [{"name": "lan", "policy": "mac", "failback": true, "notify": true, "counters": {"failovers": 7},
                   "members": [{"uplink": "up0", "standby": false, "active": true, "why": "active"},
                               {"uplink": "up1", "standby": false, "active": false, "why": "link down"}]}]
    });
    let vm = |name: &&str| {
        json!({
            "name": name, "cid": 3, "vmci": {"stream_bytes_sent": 11, "datagrams_sent": 12},
            "session": {"sessions": 2, "reads": 9},
            "bounds": [{"name": "memory_bytes", "used": 1, "limit": u64::MAX, "refused": 4}],
            "nics": [{"name": "nic0", "device": {"activations": 1}, "session": {"sessions": 1},
                      "port": {"tx_frames": 21, "tx_bytes": 22, "rx_shaped_us": 1500, "drop_no_buffers": 5, "drop_shaped": 0}}]
        })
    };
    let stats = json!({
        "uptime_seconds": 1.5, "workers": {"bytes": 100}, "switch": {"rounds": 5}, "vsock": {"packets": 6},
        "uplinks": [{"name": "up0", "port": {"rx_bytes": 31, "drop_uplink": 2, "xdp_rx_dropped": 3}}],
        "mirrors": [{"name": "ids", "from": [], "ports": [], "to": "x", "direction": "both", "configured": true,
                     "frames": 41, "bytes": 42, "dropped": 1, "drops": {"drop_no_room": 1}}],
        "captures": {"running": 1, "begun": 2, "recorded": 3, "lost": 4}, "daemon": {"panics": 8, "huge_pages": 9},
        "vms": names.iter().map(vm).collect::<Vec<_>>()
    });
    (serde_json::from_value(status).unwrap(), serde_json::from_value(stats).unwrap())
}

#[test]
fn every_figure_of_the_daemon_has_its_name_its_unit_and_its_labels() {
    let families = read(Some(answers(&["web"])), 10);
    for (name, labels, expected) in [
        ("vmlane_up", &[][..], 1.0),
        ("vmlane_build_info", &[("version", "0.1.0")], 1.0),
        ("vmlane_uptime_seconds", &[], 1.5),
        ("vmlane_confined", &[], 1.0),
        ("vmlane_contained_faults_total", &[], 8.0),
        ("vmlane_huge_pages_total", &[], 9.0),
        ("vmlane_worker_busy_seconds_total", &[("worker", "worker-0")], 0.25),
        ("vmlane_worker_spin_seconds_total", &[("worker", "worker-0")], 0.0),
        ("vmlane_worker_nap_seconds_total", &[("worker", "worker-0")], 0.5),
        ("vmlane_worker_stuck", &[("worker", "switch")], 1.0),
        ("vmlane_stream_moved_bytes_total", &[], 100.0),
        ("vmlane_virtio_vsock_packets_total", &[], 6.0),
        ("vmlane_switch_rounds_total", &[], 5.0),
        ("vmlane_capture_lost_records_total", &[], 4.0),
        ("vmlane_captures_running", &[], 1.0),
        ("vmlane_vms", &[], 1.0),
        ("vmlane_vm_info", &[("vm", "web"), ("group", "default"), ("cid", "3")], 1.0),
        ("vmlane_vm_ready", &[("vm", "web")], 0.0),
        ("vmlane_vm_state", &[("vm", "web"), ("state", "booting")], 1.0),
        ("vmlane_vm_counted_since_seconds", &[("vm", "web")], 8.0),
        ("vmlane_uplink_counted_since_seconds", &[("uplink", "up0")], 9.0),
        ("vmlane_vm_connections", &[("vm", "web")], 3.0),
        ("vmlane_vm_queue_pair_bytes", &[("vm", "web")], 2.0),
        ("vmlane_vm_stream_sent_bytes_total", &[("vm", "web")], 11.0),
        ("vmlane_vm_datagrams_sent_total", &[("vm", "web")], 12.0),
        ("vmlane_device_sessions_total", &[("vm", "web"), ("device", "vsock")], 2.0),
        ("vmlane_device_sessions_total", &[("vm", "web"), ("device", "nic0")], 1.0),
        ("vmlane_vm_bound_refused_total", &[("vm", "web"), ("bound", "memory_bytes")], 4.0),
        ("vmlane_nic_link_up", &[("vm", "web"), ("nic", "nic0")], 0.0),
        ("vmlane_nic_sent_frames_total", &[("vm", "web"), ("nic", "nic0")], 21.0),
        ("vmlane_nic_sent_bytes_total", &[("vm", "web"), ("nic", "nic0")], 22.0),
        ("vmlane_nic_drops_total", &[("vm", "web"), ("nic", "nic0"), ("reason", "no_buffers")], 5.0),
        ("vmlane_nic_drops_total", &[("vm", "web"), ("nic", "nic0"), ("reason", "shaped")], 0.0),
        ("vmlane_nic_shaping_wait_seconds_total", &[("vm", "web"), ("direction", "out")], 0.0015),
        ("vmlane_nic_device_events_total", &[("vm", "web"), ("event", "activations")], 1.0),
        ("vmlane_uplink_out_bytes_total", &[("uplink", "up0")], 31.0),
        ("vmlane_uplink_drops_total", &[("uplink", "up0"), ("reason", "uplink")], 2.0),
        ("vmlane_uplink_interface_lost_frames_total", &[("uplink", "up0"), ("reason", "dropped")], 3.0),
        ("vmlane_team_member_active", &[("team", "lan"), ("uplink", "up1")], 0.0),
        ("vmlane_team_active_members", &[("team", "lan")], 1.0),
        ("vmlane_team_failovers_total", &[("team", "lan")], 7.0),
        ("vmlane_mirror_copied_bytes_total", &[("mirror", "ids")], 42.0),
        ("vmlane_mirror_drops_total", &[("mirror", "ids"), ("reason", "no_room")], 1.0),
    ] {
        assert_eq!(value(&families, name, labels), Some(expected), "{name} {labels:?}");
    }
    // A counter that a device does not have has no sample.
    assert_eq!(value(&families, "vmlane_vm_connects_total", &[("vm", "web")]), None);
    let units = families.iter().filter(|(name, _)| name.ends_with("_bytes") || name.ends_with("_seconds"));
    for (name, family) in units {
        assert!(family.unit.is_some(), "{name}");
    }
}

#[test]
fn without_a_daemon_every_family_is_there_and_up_is_0() {
    let (with, without) = (read(Some(answers(&["web"])), 10), read(None, 10));
    assert_eq!(with.keys().collect::<Vec<_>>(), without.keys().collect::<Vec<_>>());
    assert_eq!(value(&without, "vmlane_up", &[]), Some(0.0));
    assert_eq!(value(&without, "vmlane_vms", &[]), None);
    assert!(without["vmlane_nic_drops"].samples.is_empty());
}

#[test]
fn vms_beyond_the_limit_are_counted_and_not_shown() {
    let families = read(Some(answers(&["a", "b", "c"])), 2);
    let number = |name: &str| value(&families, name, &[]);
    assert_eq!((number("vmlane_vms"), number("vmlane_vms_left_out")), (Some(3.0), Some(1.0)));
    let samples = families.values().flat_map(|family| &family.samples);
    let named: std::collections::BTreeSet<_> = samples.filter_map(|sample| sample.labels.get("vm")).collect();
    assert_eq!(named.into_iter().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn names_are_escaped_and_cut() {
    let long = "é".repeat(LONGEST_LABEL);
    let families = read(Some(answers(&["a\"}\n# EOF\\", &long])), 10);
    assert_eq!(value(&families, "vmlane_vm_attached", &[("vm", "a\"}\n# EOF\\")]), Some(1.0));
    let cut = "é".repeat(LONGEST_LABEL / 2);
    assert_eq!(value(&families, "vmlane_vm_attached", &[("vm", &cut)]), Some(1.0));
}

#[test]
fn the_reader_of_these_tests_finds_what_is_wrong() {
    let family = "# HELP a A\n# TYPE a counter\n";
    for (text, why) in [
        ("", "EOF"),
        ("a 1\n# EOF\n", "without a family"),
        ("# HELP a A\na 1\n# EOF\n", "without a type"),
        (&format!("{family}a 1\n# EOF\n"), "of another family"),
        (&format!("{family}a_total -1\n# EOF\n"), "cannot have"),
        (&format!("{family}a_total 1\na_total 2\n# EOF\n"), "twice"),
        (&format!("{family}a_total 1\n{family}# EOF\n"), "after samples"),
        (&format!("{family}# HELP b B\n# TYPE b gauge\n{family}# EOF\n"), "twice"),
        (&format!("{family}# UNIT a bytes\n# EOF\n"), "a unit"),
        (&format!("{family}a_total{{x=\"\\q\"}} 1\n# EOF\n"), "escape"),
        (&format!("{family}a_total{{x=\"1\",x=\"2\"}} 1\n# EOF\n"), "twice"),
        (&format!("{family}a_total{{x=\"1\"}} x\n# EOF\n"), "no number"),
        ("# TYPE a counter\n# EOF\n", "no help"),
    ] {
        assert!(parse(text).is_err_and(|error| error.contains(why)), "{text:?}: {:?}", parse(text));
    }
}
