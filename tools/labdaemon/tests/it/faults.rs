//! Faults on request stay where they are provoked, and are counted against their VM.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use vmlane_api::call::DebugImpair;
use vmlane_guestsim::vfio_user::Client as Vmm;
use vmlane_testkit::{Daemon, contains_all, run, wait_until};
use vmlane_wire::virtio_vsock::op;

use crate::vsock::Guest;
use crate::{CONTROL, call, daemon, panic, vmm};

const TWO: &str = "[daemon]\nfault_injection = true\n\
    [[vm]]\nname = \"web\"\ncid = 3\nforward = [{ port = 5000, to = \"db:5000\" }]\n\
    [[vm]]\nname = \"db\"\ncid = 4\n";
const VIRTIO: &str = "[[vm]]\nname = \"web\"\ncid = 3\nvsock = \"virtio\"\n[[vm]]\nname = \"db\"\ncid = 4\nvsock = \"virtio\"\n";
const INT_ENABLE: u32 = 2;

/// The counters of one VM alone.
fn stats(daemon: &Daemon, vm: &str) -> Value {
    daemon.json(&["stats", vm])["vms"][0].clone()
}

#[test]
fn an_injected_panic_stays_inside_its_vm() {
    let daemon = daemon(&TWO.replacen("[daemon]\n", "[daemon]\nfault_limit = 0\n", 1));
    let mut web = vmm(&daemon, "web");
    let mut db = vmm(&daemon, "db");
    db.write_u32(1, CONTROL, INT_ENABLE).unwrap();
    let begun = Instant::now();
    panic(&daemon, "web", None).unwrap();
    assert!(web.read_u32(1, CONTROL).is_err());
    assert!(web.read_u32(1, CONTROL).is_ok(), "the same session continues");
    assert!(db.read_u32(1, CONTROL).is_ok());
    assert_eq!(daemon.vm("db")["ready"], true);
    assert_eq!(stats(&daemon, "web")["session"]["panics"], 1);

    for _ in 0..50 {
        panic(&daemon, "web", None).unwrap();
        assert!(web.read_u32(1, CONTROL).is_err());
    }
    assert_eq!(stats(&daemon, "web")["session"]["panics"], 51);
    let lines = daemon.log().matches("on request").count();
    // As many again every 10 s.
    let most = 25 * (1 + begun.elapsed().as_secs() as usize / 10);
    assert!((1..=most).contains(&lines), "a guest cannot flood the log: {lines}");

    let refused = panic(&daemon, "wbe", None).unwrap_err();
    contains_all(&refused, &["\"wbe\" is not served", "known are web, db"]);
}

#[test]
fn the_line_to_a_nic_is_made_bad_on_request_and_what_cannot_be_is_named() {
    let config = "[daemon]\nfault_injection = true\n[[vm]]\nname = \"web\"\ncid = 3\nnic = [{ model = \"vmxnet3\" }]\n";
    let daemon = daemon(config);
    let good = DebugImpair {
        vm: "web".into(),
        at: "nic0-port".into(),
        loss: 10,
        reorder: 5,
        delay_us: 300,
        longest: None,
        seed: 7,
    };
    call(&daemon, &good).unwrap();
    call(&daemon, &DebugImpair { loss: 0, reorder: 0, delay_us: 0, ..good.clone() }).unwrap();
    for (bad, why) in [
        (DebugImpair { loss: 1001, ..good.clone() }, "numbers of frames in 1000"),
        (DebugImpair { delay_us: 1_000_001, ..good.clone() }, "delayed by 1 s"),
        (DebugImpair { at: "nic1-port".into(), ..good.clone() }, "has no \"nic1-port\""),
        (DebugImpair { at: "nic0".into(), ..good.clone() }, "known are nicN-port"),
        (DebugImpair { vm: "wbe".into(), ..good.clone() }, "known are web"),
    ] {
        contains_all(&call(&daemon, &bad).unwrap_err(), &[why]);
    }
    assert_eq!(stats(&daemon, "web")["nics"][0]["port"]["drop_impaired"], 0);
}

#[test]
fn each_line_of_a_json_log_is_an_object() {
    let json = TWO.replace("[daemon]\n", "[daemon]\nlog_format = \"json\"\n");
    let daemon = daemon(&json);
    // A panic and a configuration with mistakes are reported in several lines.
    panic(&daemon, "web", Some("control")).unwrap_err();
    daemon.configure(&json.replace("\"json\"", "\"xml\\n\""));
    daemon.signal(Signal::HUP);
    wait_until("the mistake is reported", || daemon.log().contains("xml"));
    assert_eq!(daemon.stop().code(), Some(0));
    let mut messages = String::new();
    for line in daemon.log().lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for key in ["timestamp", "level", "target"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
        messages += &format!("{} {}\n", line["level"], line["fields"]["message"].as_str().unwrap());
    }
    contains_all(
        &messages,
        &["\"INFO\" ready", "\"ERROR\"", "panicked at", "use \"text\" or \"json\"", "stopping"],
    );

    let mut command = daemon.daemon_command();
    command.args(["--log-format", "xml"]);
    run(command).fails(2, &["use text or json"]);
}

/// A driver's register access, panicking `faults` times inside the device's session.
fn provoke(daemon: &Daemon, vmm: &mut Vmm, faults: u32) {
    for _ in 0..faults {
        panic(daemon, "web", None).unwrap();
        assert!(vmm.read_u32(1, CONTROL).is_err());
    }
}

#[test]
fn a_vm_whose_devices_keep_failing_is_quarantined_and_released() {
    let daemon = daemon(&format!("{TWO}\n[[vm]]\nname = \"third\"\ncid = 5\n").replacen(
        "[daemon]\n",
        "[daemon]\nfault_limit = 3\nfault_window_s = 3600\n",
        1,
    ));
    let (mut web, mut db) = (vmm(&daemon, "web"), vmm(&daemon, "db"));
    db.write_u32(1, CONTROL, INT_ENABLE).unwrap();
    const CAPS: u64 = 0x20018;
    let offer = web.read_u32(1, CAPS).unwrap();
    assert_ne!(offer, 0);
    provoke(&daemon, &mut web, 2);
    assert_eq!(web.read_u32(1, CAPS).unwrap(), offer, "a reset device, no more");
    assert_eq!(daemon.vm("web")["quarantined"], false);
    provoke(&daemon, &mut web, 1);
    wait_until("a quarantine", || daemon.vm("web")["quarantined"] == true);
    assert_eq!(daemon.vm("web")["faults"], 3);
    assert_eq!(web.read_u32(1, CAPS).unwrap(), 0, "answered, on the same socket");
    assert_eq!((&daemon.vm("web")["attached"], &daemon.vm("db")["ready"]), (&true.into(), &true.into()));
    contains_all(&daemon.must(&["status"]), &["web: in quarantine after 3 faults; `vmlane release web`"]);
    contains_all(&daemon.log(), &["its devices are out of service"]);
    assert_eq!(daemon.json(&["stats"])["daemon"]["quarantines"], 1);

    daemon.ask(&["release", "wbe"]).fails(1, &["\"wbe\"", "known are web, db, third"]);
    daemon.must(&["release", "web"]);
    assert_eq!(web.read_u32(1, CAPS).unwrap(), offer);
    assert_eq!(daemon.vm("web")["quarantined"], false);
    provoke(&daemon, &mut web, 2);
    assert_eq!(daemon.vm("web")["quarantined"], false, "the fault history is cleared");
}

#[test]
fn a_fault_in_the_control_plane_ends_a_request_and_nothing_else() {
    let daemon = daemon(TWO);
    contains_all(&panic(&daemon, "web", Some("control")).unwrap_err(), &["failed while answering"]);
    contains_all(&panic(&daemon, "web", Some("nic7")).unwrap_err(), &["has no \"nic7\"", "nicN-port"]);
    daemon.must(&["status"]);
}

#[test]
fn a_vm_whose_virtio_vsock_device_keeps_failing_is_quarantined_alone_and_released() {
    let third = "[[vm]]\nname = \"third\"\ncid = 5\nvsock = \"virtio\"\n";
    let daemon = daemon(&format!(
        "[daemon]\nfault_injection = true\nfault_limit = 2\nfault_window_s = 3600\n{VIRTIO}{third}"
    ));
    let socket = |vm: &str| daemon.socket(vm, "vsock.sock");
    let ready = |vm: &str| wait_until("its rings run", || daemon.vm(vm)["ready"] == true);
    let stop = |vm: &str| {
        panic(&daemon, vm, Some("virtio")).unwrap();
        wait_until("its rings end", || daemon.vm(vm)["ready"] == false);
    };
    contains_all(&panic(&daemon, "web", Some("virtio")).unwrap_err(), &["has no \"virtio\" now"]);
    let [mut web, mut db] = [("web", 3), ("db", 4)].map(|(vm, cid)| {
        let guest = Guest::attach(&socket(vm), cid);
        ready(vm);
        guest
    });
    let failing = Guest::attach(&socket("third"), 5);
    ready("third");
    contains_all(&panic(&daemon, "web", Some("vmci")).unwrap_err(), &["has no \"vmci\" now"]);
    stop("third");
    wait_until("the fault counts for its VM", || daemon.vm("third")["faults"] == 1);
    let line = "serving a virtio-vsock device panicked; the device is stopped device=\"third/vsock\"";
    assert!(daemon.log().contains(line), "{}", daemon.log());
    assert_eq!(daemon.vm("third")["quarantined"], false);
    drop(failing);
    wait_until("its VMM is gone", || daemon.vm("third")["attached"] == false);
    let failing = Guest::attach(&socket("third"), 5);
    ready("third");
    stop("third");
    wait_until("a quarantine", || daemon.vm("third")["quarantined"] == true);
    assert_eq!((&daemon.vm("third")["faults"], &daemon.vm("web")["faults"]), (&2.into(), &0.into()));
    assert_eq!(daemon.json(&["stats"])["vms"][2]["vsock"]["panics"], 2);

    // Out of service: a driver that comes anew has no rings, and is refused to others. Those go on.
    drop(failing);
    wait_until("its VMM is gone", || daemon.vm("third")["attached"] == false);
    let failing = Guest::attach(&socket("third"), 5);
    wait_until("a VMM", || daemon.vm("third")["attached"] == true);
    web.send(1000, (5, 22), op::REQUEST, &[]);
    web.expect(op::RST);
    web.send(1000, (4, 22), op::REQUEST, &[]);
    db.expect(op::REQUEST);
    assert_eq!(daemon.vm("third")["ready"], false);

    daemon.must(&["release", "third"]);
    drop(failing);
    wait_until("its VMM is gone", || daemon.vm("third")["attached"] == false);
    let mut third = Guest::attach(&socket("third"), 5);
    ready("third");
    web.send(1001, (5, 22), op::REQUEST, &[]);
    third.expect(op::REQUEST);
    assert_eq!(daemon.vm("third")["quarantined"], false);
}
