use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::json;
use vmlane_api::{Stats, Status};

use super::*;

/// A daemon with three VMs, an uplink and two workers, `bytes` after its start.
pub fn daemon(uptime_seconds: f64, bytes: u64) -> (Status, Stats) {
    let nic = |down| {
        json!({"name": "nic0", "mac": "", "profile": "vmxnet3", "switch": "san", "port_group": "", "socket": "", "attached": true,
               "active": true, "link_down": down})
    };
    let vm = |name: &str, cid, ready, nics| {
        json!({"name": name, "cid": cid, "group": "g", "attached": true, "ready": ready, "sockets": [], "queue_pairs": 0,
               "queue_pair_bytes": 0, "connections": cid, "doorbells": 0, "inbox_bytes": 0, "nics": nics,
               "quarantined": name == "mail"})
    };
    let status = json!({
        "daemon": "0.1.0", "pid": 1, "uptime_seconds": uptime_seconds, "config": "", "runtime_dir": "", "workers": 1,
        "placement": "auto: 1 cache of 2 cores, not pinned", "mode": "adaptive", "spin_us": 500, "fault_injection": false,
        "vms": [vm("web", 3, true, vec![nic(false)]), vm("db", 4, false, vec![nic(true)]), vm("mail", 5, false, vec![])],
        "watched": [{"name": "worker-0", "busy_seconds": uptime_seconds / 4.0, "spin_seconds": uptime_seconds / 10.0,
                     "nap_seconds": uptime_seconds / 5.0},
                    {"name": "switch", "busy_seconds": 1.0, "stuck_seconds": 3.0, "serving": "port 7"}],
        "uplinks": [{"name": "lan", "to": "tap", "switch": "default", "attached": true, "how": ""}]
    });
    let port = |share| {
        json!({"tx_frames": bytes / share, "tx_bytes": bytes, "rx_frames": 0, "rx_bytes": 0, "pending": 0,
               "drop_flood": bytes / 100, "drop_no_buffers": bytes / 10})
    };
    let vm = |name: &str, cid, sent, nics| json!({"name": name, "cid": cid, "vmci": {"stream_bytes_sent": sent, "datagrams_sent": 2}, "session": {}, "nics": nics});
    let queues =
        json!([{"tx_frames": bytes / 10, "tx_bytes": bytes}, {"rx_frames": bytes / 20, "rx_errors": 4}]);
    let nic =
        |queues| json!({"name": "nic0", "device": {}, "session": {}, "port": port(10), "queues": queues});
    let stats = json!({
        "uptime_seconds": uptime_seconds, "workers": {"bytes": bytes}, "vsock": {"bytes": bytes},
        "uplinks": [{"name": "lan", "port": port(5)}],
        "vms": [vm("web", 3, bytes, vec![nic(queues)]), vm("db", 4, bytes / 2, vec![nic(json!([]))]), vm("mail", 5, 0, vec![])]
    });
    (serde_json::from_value(status).unwrap(), serde_json::from_value(stats).unwrap())
}

/// `uptime_seconds` after the first one that was asked for.
pub fn sample(uptime_seconds: f64, bytes: u64) -> Sample {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let (status, stats) = daemon(uptime_seconds, bytes);
    Sample { at: *BEGUN + Duration::from_secs_f64(uptime_seconds), status, stats }
}

fn shown(view: View) -> Vec<String> {
    let table = table(view, &sample(10.0, 0), &sample(12.0, 1_000_000));
    assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{view:?}");
    let row = |row: &Vec<Cell>| row.iter().map(ToString::to_string).collect::<Vec<_>>().join("|");
    table.rows.iter().map(row).collect()
}

#[test]
fn each_view_shows_rates_and_states() {
    assert_eq!(
        shown(View::Vms),
        [
            "web|3|ready|3|4.00|0|50000|4.00|55000",
            "db|4|connected|4|2.00|0|50000|4.00|55000",
            "mail|5|quarantine|5|0|0|0|0|0",
        ]
    );
    assert_eq!(shown(View::Sockets), ["web|3|3|4.00|0|0|0|0", "db|4|4|2.00|0|0|0|0", "mail|5|5|0|0|0|0|0"]);
    assert_eq!(
        shown(View::Network),
        [
            "web/nic0|san|up|4.00|50000|0|0|55000|no_buffers",
            "db/nic0|san|down|4.00|50000|0|0|55000|no_buffers",
            "lan|default|up|4.00|100000|0|0|55000|no_buffers",
        ]
    );
    assert_eq!(
        shown(View::Workers),
        ["worker-0|25|10|0|20|45|well|-", "switch|0|0|0|0|100|stuck for 3 s|port 7"]
    );
}

#[test]
fn a_daemon_that_was_restarted_has_no_load_yet() {
    let (before, mut now) = (sample(100.0, 1 << 40), sample(2.0, 1000));
    now.at = before.at + Duration::from_secs(2);
    assert_eq!(load("worker-0", &before, &now), None);
    assert_eq!(load("nobody", &before, &now), None);
    let table = table(View::Vms, &before, &now);
    assert_eq!(table.rows[0][4], Cell::BytesPerSecond(500.0));
}

#[test]
fn the_device_of_a_vm_that_is_not_ready_has_the_state_that_status_shows() {
    let (before, mut now) = (sample(10.0, 0), sample(12.0, 0));
    for (state, shown) in
        [("ready", "ready"), ("booting", "booting"), ("lost", "lost"), ("none", "connected")]
    {
        (now.status.vms[0].state, now.status.vms[0].ready) = (state.into(), state == "ready");
        assert_eq!(table(View::Vms, &before, &now).rows[0][2].to_string(), shown);
    }
}

#[test]
fn every_view_has_a_key_of_its_own() {
    let mut keys: Vec<char> = View::ALL.iter().map(|view| view.key()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), View::ALL.len());
    for view in View::ALL {
        assert!(view.sorted_by() < view.columns().len());
        assert!(!"qhfr<>/? ".contains(view.key()), "{view:?} takes a command's key");
    }
}
