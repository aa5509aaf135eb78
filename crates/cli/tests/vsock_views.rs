//! VMs with virtio-vsock devices are in every view: two synthetic guests connect, and one sends.

mod common;
#[path = "common/vsock.rs"]
mod vsock;

use std::process::{Child, Command, Stdio};

use common::eventually;
use serde_json::Value;
use vmlane_wire::virtio_vsock::op;
use vsock::Guest;

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
const CONFIG: &str = "[[vm]]\nname = \"web\"\ncid = 3\nvsock = \"virtio\"\n[[vm]]\nname = \"db\"\ncid = 4\nvsock = \"virtio\"\n";

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn virtio_vsock_guests_are_in_status_stats_ports_and_top() {
    let folder = tempfile::tempdir().unwrap();
    let (config, run) = (folder.path().join("vmlane.toml"), folder.path().join("run"));
    std::fs::write(&config, CONFIG).unwrap();
    let mut command = Command::new(VMLANE);
    command.arg("daemon").arg("--config").arg(&config).arg("--runtime-dir").arg(&run);
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(Stdio::null());
    let _daemon = Daemon(command.spawn().unwrap());
    let ask = |words: &[&str]| {
        let output = Command::new(VMLANE).args(words).arg("--runtime-dir").arg(&run).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    };
    eventually("the daemon answers", || ask(&["status"]));
    let json = |words: &[&str]| -> Value {
        serde_json::from_str(&ask(&[words, &["--json"]].concat()).unwrap()).unwrap()
    };
    assert_eq!(json(&["status"])["vms"][0]["ready"], false);
    let socket = |vm: &str| run.join("vm").join(vm).join("vsock.sock");
    let (mut web, mut db) = (Guest::attach(&socket("web"), 3), Guest::attach(&socket("db"), 4));
    eventually("the daemon runs both devices", || {
        let status = json(&["status"]);
        let vms = status["vms"].as_array().unwrap();
        vms.iter()
            .all(|vm| vm["ready"] == true && vm["attached"] == true && vm["vsock"] == "virtio")
            .then_some(())
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
    let text = ask(&["stats", "web"]).unwrap();
    assert!(text.contains("web.vsock.bytes_sent"), "{text}");
    let text = ask(&["status"]).unwrap();
    assert!(text.contains("VSOCK") && text.contains("virtio"), "{text}");
    let text = ask(&["ports"]).unwrap();
    assert!(text.contains("3:1000") && text.contains("established"), "{text}");
    // Bytes that go while `top` looks.
    let mut top = Command::new(VMLANE);
    top.args(["top", "--json", "--interval", "2", "--count", "1", "--runtime-dir"]).arg(&run);
    let top = top.stdout(Stdio::piped()).spawn().unwrap();
    let mut top = Some(top);
    let mut sent = 0u32;
    let rates = eventually("an answer of top", || {
        if sent < 20 {
            web.send(1000, (4, 22), op::RW, &[7; 1000]);
            sent += 1;
        }
        std::thread::sleep(std::time::Duration::from_millis(80));
        top.as_mut().unwrap().try_wait().unwrap()?;
        let output = top.take().unwrap().wait_with_output().unwrap();
        Some(serde_json::from_slice::<Value>(&output.stdout).unwrap())
    });
    let rate = |vm: usize, key: &str| rates["vms"][vm][key].as_f64().unwrap();
    assert!(rate(0, "sent_per_second") > 0.0 && rate(1, "received_per_second") > 0.0, "{rates}");
    assert!(rates["bytes_per_second"].as_f64().unwrap() > 0.0 && rates["vms"][0]["ready"] == true, "{rates}");
}
