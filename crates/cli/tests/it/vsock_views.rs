//! VMs with virtio-vsock devices are in every view: two synthetic guests connect, and one sends.

use std::process::Stdio;

use serde_json::Value;
use vmlane_testkit::{Process, wait_until};
use vmlane_wire::virtio_vsock::op;

use crate::common::daemon;
use crate::common::vsock::Guest;

const CONFIG: &str = "[[vm]]\nname = \"web\"\ncid = 3\nvsock = \"virtio\"\n[[vm]]\nname = \"db\"\ncid = 4\nvsock = \"virtio\"\n";

#[test]
fn virtio_vsock_guests_are_in_status_stats_ports_and_top() {
    let daemon = daemon(CONFIG);
    let json = |words: &[&str]| daemon.json(words);
    assert_eq!(json(&["status"])["vms"][0]["ready"], false);
    let socket = |vm: &str| daemon.socket(vm, "vsock.sock");
    let (mut web, mut db) = (Guest::attach(&socket("web"), 3), Guest::attach(&socket("db"), 4));
    wait_until("the daemon runs both devices", || {
        let status = json(&["status"]);
        let mut vms = status["vms"].as_array().unwrap().iter();
        vms.all(|vm| vm["ready"] == true && vm["attached"] == true && vm["vsock"] == "virtio")
    });
    web.send(1000, (4, 22), op::REQUEST, &[]);
    db.expect(op::REQUEST);
    let connection = || json(&["ports"])["connections"][0].clone();
    assert_eq!((&connection()["client_vm"], &connection()["state"]), (&"web".into(), &"requested".into()));
    db.send(22, (3, 1000), op::RESPONSE, &[]);
    web.expect(op::RESPONSE);
    web.send(1000, (4, 22), op::RW, &[7; 1000]);
    db.expect(op::RW);
    let seen = connection();
    assert_eq!((&seen["server_vm"], &seen["server_port"]), (&"db".into(), &22.into()));
    assert_eq!(seen["state"], "established");
    let status = json(&["status"]);
    assert_eq!((&status["vms"][0]["connections"], &status["vms"][1]["connections"]), (&1.into(), &0.into()));
    let stats = json(&["stats"]);
    let of = |vm: usize, counter: &str| stats["vms"][vm]["vsock"][counter].as_u64();
    assert_eq!((of(0, "bytes_sent"), of(1, "bytes_received")), (Some(1000), Some(1000)));
    for (vm, opened) in [(0, 1), (1, 0)] {
        let bounds = stats["vms"][vm]["bounds"].as_array().unwrap();
        let bound = bounds.iter().find(|bound| bound["name"] == "connections").unwrap();
        assert_eq!((&bound["used"], &bound["limit"]), (&opened.into(), &4096.into()));
    }
    let text = daemon.must(&["stats", "web"]);
    assert!(text.contains("web.vsock.bytes_sent"), "{text}");
    let text = daemon.must(&["status"]);
    assert!(text.contains("VSOCK") && text.contains("virtio"), "{text}");
    let text = daemon.must(&["ports"]);
    assert!(text.contains("3:1000") && text.contains("established"), "{text}");
    // Bytes that go while `top` runs.
    let mut top = daemon.command(&["top", "--json", "--interval", "2", "--count", "1"]);
    let mut top = Process(top.stdout(Stdio::piped()).spawn().unwrap());
    let mut sent = 0u32;
    wait_until("an answer of top", || {
        if sent < 20 {
            web.send(1000, (4, 22), op::RW, &[7; 1000]);
            sent += 1;
        }
        std::thread::sleep(std::time::Duration::from_millis(80));
        top.0.try_wait().unwrap().is_some()
    });
    let rates: Value = serde_json::from_str(&top.finish().out).unwrap();
    let rate = |vm: usize, key: &str| rates["vms"][vm][key].as_f64().unwrap();
    assert!(rate(0, "sent_per_second") > 0.0 && rate(1, "received_per_second") > 0.0, "{rates}");
    assert!(rates["bytes_per_second"].as_f64().unwrap() > 0.0 && rates["vms"][0]["ready"] == true, "{rates}");
}
