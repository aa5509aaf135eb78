//! Tables fit a terminal of 80 columns where names are of usual length, and beyond that if names can be
//! shortened.

use serde_json::{Value, json};
use vmlane_api::{Mirror, Ports, Stats, Status, VmList, Wire};

use super::control::{fitted, ovn, peers, table, teams};
use super::{mirror, ports, stats, status, top, vm, wire};
use crate::row;

const COLUMNS: usize = 80;
/// Counts and bytes of a day under load.
const MANY: u64 = 1_234_567_890;

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an answer")
}

fn nic(number: usize, ovn: bool) -> Value {
    json!({"name": format!("nic{number}"), "mac": "52:54:00:00:00:03", "profile": "virtio-net", "switch": "default",
           "port_group": "prod", "socket": "/run/vmlane/vm/web/nic0.sock", "attached": true, "active": true,
           "state": "no driver", "ovn": ovn.then(|| json!({"port": "web-nic1",
           "state": "bound", "whole": true, "problem": ""}))})
}

fn vm_status(name: &str) -> Value {
    json!({"name": name, "cid": 1003, "group": "tenant-1", "vsock": "virtio", "attached": true, "ready": true,
           "state": "no driver", "sockets": [format!("/run/vmlane/vm/{name}/vsock.sock")], "queue_pairs": 12,
           "queue_pair_bytes": MANY, "connections": 1200, "doorbells": 0, "inbox_bytes": 0,
           "nics": [nic(0, false), nic(1, true)]})
}

fn whole_status() -> Status {
    of(json!({
        "daemon": "0.1.0", "pid": 1, "uptime_seconds": 1.0, "config": "", "runtime_dir": "", "workers": 1, "mode": "adaptive",
        "spin_us": 500, "fault_injection": false, "vms": [vm_status("web"), vm_status("db")],
        "uplinks": [{"name": "lan", "to": "interface = \"eth1\"", "switch": "default", "attached": true,
                     "how": "XDP generic, copy, 1 queue"}],
        "teams": [team()],
        "peers": [{"name": "beta", "state": "connecting", "problem": "", "streams": 1200,
                   "counters": {"bytes_sent": MANY, "bytes_received": MANY, "opens_refused": 7}}]
    }))
}

fn team() -> Value {
    json!({"name": "lan", "policy": "failover", "failback": true, "notify": true, "counters": {"failovers": 3},
           "members": [{"uplink": "up0", "standby": true, "active": true, "why": "active"}]})
}

fn mirror_of() -> Value {
    json!({"name": "ids", "from": ["prod", "lan"], "ports": [], "to": "ids/nic0", "direction": "both", "vlan": 900,
           "snap": 128, "configured": true, "frames": MANY, "bytes": MANY, "dropped": 7, "drops": {}})
}

fn port(name: &str, worker: usize) -> Value {
    let learned = json!({"mac": "02:00:00:00:00:99", "vlan": 10, "seconds": 3600});
    json!({"name": name, "kind": "nic", "group": "tenant-1", "switch": if worker > 0 { "san" } else { "default" },
           "vlan": "untagged", "mac": "52:54:00:00:00:03", "mac_in_use": "52:54:00:00:00:04", "active": true,
           "worker": worker, "tx_frames": MANY, "rx_frames": MANY, "dropped": MANY, "tx_bytes": MANY, "rx_bytes": MANY,
           "drops": {}, "learned": [learned]})
}

fn wires() -> Vec<Wire> {
    let end = |port: &str, up| json!({"port": port, "up": up, "frames": MANY});
    of(json!([{"name": "l1", "carrier": false, "ends": [end("web/nic0", true), end("db/nic1", false)]}]))
}

fn whole_ports() -> Ports {
    of(json!({
        "connections": [{"client_vm": "web", "client_cid": 1003, "client_port": 4_000_000_000u32, "server_vm": "db",
                         "server_cid": 1004, "server_port": 5000, "state": "established"}],
        "switch": [port("web/nic0", 0), port("db/nic10", 1), port("lan", 0)], "mirrors": [mirror_of()], "teams": [team()]
    }))
}

#[test]
fn tables_of_usual_names_fit_80_columns() {
    let (status, ports) = (whole_status(), whole_ports());
    let stats: Stats = of(json!({"uptime_seconds": 1.0, "workers": {"bytes": MANY}, "vms": [{
        "name": "web", "cid": 3, "vmci": {"stream_bytes_received": MANY, "refused_destination": 3}, "session": {"refused": 1},
        "nics": [{"name": "nic0", "device": {}, "session": {}, "port": {"rx_coalesced_segments": MANY, "drop_no_buffers": 7}}],
        "bounds": [{"name": "queue_pair_bytes", "used": MANY, "limit": MANY, "refused": 3}]}]}));
    let list: VmList = of(
        json!({"vms": [{"name": "web", "cid": 1003, "group": "tenant-1", "vsock": "virtio", "nics": 2,
        "owner": "1000:1000", "attached": true, "added": true, "file": "/var/lib/vmlane/vms.d/web.toml", "line": 12,
        "forwards": [{"port": 5000, "to": "db:5000"}]}]}),
    );
    let mirrors: Vec<Mirror> = ports.mirrors.clone();
    let shown = json!({"listed": list.vms[0], "status": status.vms[0], "stats": stats.vms[0],
                       "connections": ports.connections, "ports": ports.switch});
    // The first lines are a sentence.
    let status_tables = status::plain(&status).lines().skip(2).collect::<Vec<_>>().join("\n");
    let samples = [top::views::tests::sample(10.0, 0), top::views::tests::sample(12.0, MANY)];
    for (name, text) in [
        ("status", status_tables),
        ("ports", ports::plain(&ports)),
        ("ports --macs", ports::addresses(&ports)),
        ("top", top::plain(&samples[0], &samples[1], &top::rates::rates(&samples[0], &samples[1]))),
        ("stats", stats::plain(&stats, Some(&stats), true, true)),
        ("vm list", vm::plain(&list)),
        ("vm show", super::vm_show::plain(&of(shown))),
        ("wire list", wire::wires(&wires())),
        ("mirror list", mirror::mirrors(&mirrors)),
        ("route list", peers(&status.peers)),
        ("ovn list", ovn(&status)),
        ("teams", teams(&status.teams)),
    ] {
        assert!(text.lines().count() > 1, "{name}: {text}");
        for line in text.lines() {
            assert!(
                line.chars().count() <= COLUMNS,
                "{name}: {} columns: {line}\n{text}",
                line.chars().count()
            );
        }
    }
}

#[test]
fn long_names_are_shortened_in_their_middle_and_nothing_else_is() {
    let rows = [
        row!["VM", "CID", "NIC", "MAC", "PORT GROUP", "WHY"],
        row![
            "web-frontend-15",
            1003,
            "web-frontend-15/nic0",
            "aa:54:00:00:00:03",
            "production-west",
            "a text of words"
        ],
        row!["db", 4, "db/nic0", "aa:54:00:00:00:04", "p", "-"],
    ];
    let widest = |rows: &[Vec<String>]| table(rows).lines().map(|line| line.chars().count()).max();
    assert_eq!(widest(&rows), Some(96));
    let short = fitted(&rows, COLUMNS);
    assert_eq!(widest(&short), Some(COLUMNS));
    let [vm, _, nic, mac, _, why] = &short[1][..] else { panic!("{short:?}") };
    assert!(vm.starts_with("web-") && vm.contains('…') && nic.ends_with("/nic0"), "{short:?}");
    assert_eq!((mac.as_str(), why.as_str(), &short[2]), ("aa:54:00:00:00:03", "a text of words", &rows[2]));
    assert_eq!(fitted(&rows, 200), rows);
    assert_eq!(
        widest(&fitted(&rows, 10)),
        Some(8 + 4 + 8 + 17 + 10 + 15 + 10),
        "no name has fewer than 8 letters"
    );
}
