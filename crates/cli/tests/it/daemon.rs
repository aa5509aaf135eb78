//! The built program: a daemon, what the other commands report of it, and a VMM that attaches.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;
use vmlane_testkit::{Daemon, LONGEST, Process, contains_all, run, wait_until};

use crate::common::{CONTROL, daemon, place, vmm};

const TWO: &str = "[daemon]\n\
    [[vm]]\nname = \"web\"\ncid = 3\nforward = [{ port = 5000, to = \"db:5000\" }]\n\
    [[vm]]\nname = \"db\"\ncid = 4\n";
const INT_ENABLE: u32 = 2;
/// `EX_CONFIG`: what the unit does not restart.
const BAD_CONFIGURATION: i32 = 78;

/// The counters of one VM alone.
fn stats(daemon: &Daemon, vm: &str) -> Value {
    let stats = daemon.json(&["stats", vm]);
    assert_eq!(stats["vms"].as_array().unwrap().len(), 1);
    stats["vms"][0].clone()
}

#[test]
fn status_shows_vms_and_whether_they_are_attached_and_ready() {
    let daemon = daemon(TWO);
    contains_all(
        &daemon.must(&["status"]),
        &["vmlane 0.1.0", "worker", "(adaptive; auto: ", "web", "db", "vmci"],
    );
    let socket = daemon.vm("web")["sockets"][0].as_str().unwrap().to_owned();
    assert_eq!(Path::new(&socket), daemon.socket("web", "vmci.sock"));

    let mut vmm = vmm(&daemon, "web");
    wait_until("a VMM", || daemon.vm("web")["attached"] == true);
    assert_eq!(daemon.vm("web")["ready"], false);
    vmm.write_u32(1, CONTROL, INT_ENABLE).unwrap();
    assert_eq!(daemon.vm("web")["ready"], true);
    assert_eq!((&daemon.vm("db")["attached"], &daemon.vm("db")["ready"]), (&false.into(), &false.into()));

    drop(vmm);
    wait_until("its end", || daemon.vm("web")["attached"] == false);
    assert_eq!(daemon.vm("web")["ready"], false);
}

#[test]
fn connect_takes_a_name_and_reports_what_prevents_it() {
    let daemon = daemon(TWO);
    let connect = |vm: &str| daemon.ask(&["connect", vm, "80", "-w", "0.3"]);
    connect("wbe").fails(1, &["there is no VM \"wbe\"; there are web (CID 3), db (CID 4)"]);
    connect("7").fails(1, &["there is no VM with CID 7; there are web (CID 3)"]);
    for vm in ["db", "4"] {
        connect(vm).fails(1, &["port 80", "VM \"db\" is not running: no VMM is attached"]);
    }
    let mut vmm = vmm(&daemon, "web");
    connect("web").fails(1, &["the driver of VM \"web\" is not up", "vmw_vsock_vmci_transport"]);
    vmm.write_u32(1, CONTROL, INT_ENABLE).unwrap();
    connect("web").fails(1, &["VM \"web\" did not answer in time", "-w"]);
    connect("2").fails(1, &["CID 2 is this host"]);
    daemon.ask(&["listen", "--from", "wbe", "80"]).fails(1, &["there is no VM \"wbe\""]);
}

#[test]
fn the_number_of_workers_is_reported_with_its_reason() {
    for (config, number, reason) in [
        (TWO, None, "auto: "),
        ("[daemon]\nworkers = 2\n", Some(2), "configured"),
        ("[daemon]\nworkers = \"auto\"\n", None, "auto: "),
    ] {
        let daemon = daemon(config);
        let status = daemon.json(&["status"]);
        let placement = status["placement"].as_str().unwrap();
        assert!(placement.starts_with(reason), "{status}");
        assert!(number.is_none_or(|number| status["workers"] == number), "{status}");
        assert!(daemon.must(&["status"]).contains(&format!("; {placement}), configuration")));
        let line = format!("workers: {} ({placement})", status["workers"]);
        assert!(daemon.log().contains(&line), "{line}: {}", daemon.log());
    }
}

#[test]
fn stats_name_the_counters_of_devices_sessions_and_workers() {
    let daemon = daemon(TWO);
    let mut vmm = vmm(&daemon, "web");
    for _ in 0..5 {
        vmm.read_u32(1, CONTROL).unwrap();
    }
    let web = stats(&daemon, "web");
    assert_eq!((&web["session"]["reads"], &web["session"]["sessions"]), (&5.into(), &1.into()));
    assert!(web["vmci"]["hypercalls"].is_u64() && daemon.json(&["stats"])["workers"]["bytes"].is_u64());
    assert_eq!(stats(&daemon, "db")["session"]["reads"], 0);

    contains_all(&daemon.must(&["stats", "web"]), &["web.session.reads", "COUNTER"]);
    contains_all(&daemon.must(&["stats", "web", "--all"]), &["web.vmci.refused_full"]);
    daemon.ask(&["stats", "wbe"]).fails(1, &["\"wbe\"", "known are web, db"]);
}

#[test]
fn top_and_ports_have_both_forms() {
    let daemon = daemon(TWO);
    let ran = daemon.ask(&["top", "--interval", "0.1", "--count", "2"]);
    assert_eq!((ran.code, ran.out.matches("RECEIVED").count()), (0, 2), "{ran:?}");
    let rates = daemon.json(&["top", "--interval", "0.1", "--count", "1"]);
    assert_eq!((&rates["vms"][0]["name"], &rates["bytes_per_second"]), (&"web".into(), &0.0.into()));
    assert_eq!(daemon.json(&["ports"])["connections"], Value::Array(vec![]));
    contains_all(&daemon.must(&["ports"]), &["CLIENT", "STATE"]);
}

#[test]
fn a_second_daemon_is_refused_by_name_of_the_first() {
    let daemon = daemon(TWO);
    run(daemon.daemon_command())
        .fails(1, &["another daemon (pid ", &daemon.pid().to_string(), "--runtime-dir"]);
    assert_eq!(daemon.ask(&["status"]).code, 0, "the first is unharmed");
}

#[test]
fn sigterm_sigint_and_shutdown_end_it_cleanly() {
    let daemon = place(TWO);
    for signal in [Signal::TERM, Signal::INT] {
        daemon.start();
        let _vmm = vmm(&daemon, "web");
        daemon.signal(signal);
        assert_eq!(daemon.wait().code(), Some(0));
        // Nothing is left behind; what keeps its files for the next daemon goes a moment later.
        wait_until("an empty directory", || daemon.runtime().read_dir().unwrap().count() == 0);
    }
    daemon.start();
    vmlane_api::Client::connect(&daemon.runtime()).unwrap().call(&vmlane_api::call::Shutdown {}).unwrap();
    assert_eq!(daemon.wait().code(), Some(0));
    let ran = daemon.ask(&["status"]);
    ran.fails(1, &["no daemon answers at", "vmlane daemon --runtime-dir"]);
    assert_eq!(ran.err.matches("No such file").count(), 1, "causes are reported once: {}", ran.err);
}

#[test]
fn what_a_killed_daemon_left_is_no_obstacle() {
    let daemon = daemon(TWO);
    daemon.kill();
    assert!(daemon.socket("db", "vmci.sock").exists());
    daemon.configure("[[vm]]\nname = \"web\"\ncid = 3\n");
    daemon.start();
    assert!(daemon.socket("web", "vmci.sock").exists() && !daemon.socket("db", "vmci.sock").exists());
}

#[test]
fn reload_applies_the_difference_and_refuses_what_would_hurt() {
    let daemon = daemon(TWO);
    let _vmm = vmm(&daemon, "db");
    wait_until("a VMM", || daemon.vm("db")["attached"] == true);

    // "db" has a VMM, so it stays; "new" comes, and "web" loses its forward.
    daemon.configure("[[vm]]\nname = \"web\"\ncid = 3\n[[vm]]\nname = \"new\"\ncid = 9\n");
    let ran = daemon.ask(&["reload"]);
    assert_eq!(ran.code, 1);
    contains_all(&ran.out, &["vm \"new\": added", "vm \"web\": changed"]);
    contains_all(&ran.err, &["not applied", "\"db\" is not removed: a VMM is attached"]);
    assert!(daemon.socket("new", "vmci.sock").exists());
    assert_eq!(daemon.vm("db")["attached"], true);

    // A mistake changes nothing.
    daemon.configure("[[vm]]\nname = \"web\"\ncid = 1\n");
    daemon.ask(&["reload"]).fails(1, &["vmlane.toml:3", "cid = 1", "stays in force"]);
    assert!(daemon.socket("new", "vmci.sock").exists());

    drop(_vmm);
    wait_until("its end", || daemon.vm("db")["attached"] == false);
    daemon.configure("[[vm]]\nname = \"web\"\ncid = 3\n");
    daemon.signal(Signal::HUP);
    wait_until("the end of both VMs", || {
        !daemon.socket("new", "vmci.sock").exists() && !daemon.socket("db", "vmci.sock").exists()
    });
    assert_eq!(daemon.json(&["reload"])["applied"], Value::Array(vec![]));
}

#[test]
fn what_only_laboratories_need_is_not_there_and_the_program_that_has_it_is_named() {
    let daemon = daemon("[[vm]]\nname = \"web\"\ncid = 3\n");
    let mut client = vmlane_api::Client::connect(&daemon.runtime()).unwrap();
    let panic = vmlane_api::call::DebugPanic { vm: "web".into(), at: None };
    let refused = client.call(&panic).unwrap_err().to_string();
    contains_all(&refused, &["fault_injection = true", "vmlane-labdaemon"]);
    assert!(vmm(&daemon, "web").read_u32(1, CONTROL).is_ok());
    let bus = "[[vm]]\nname = \"uml\"\ncid = 4\numl_pci = true\n";
    daemon
        .ask(&["vm", "add", daemon.write("uml.toml", bus).to_str().unwrap()])
        .fails(1, &["vmlane-labdaemon"]);
    for config in ["[daemon]\nfault_injection = true\n", bus] {
        let place = place(config);
        run(place.daemon_command())
            .fails(BAD_CONFIGURATION, &[" = true: ", "vmlane-labdaemon", "remove the key"]);
    }
}

#[test]
fn systemd_is_notified_when_it_is_ready() {
    let daemon = place(TWO);
    let notices = daemon.path("notify");
    let socket = UnixDatagram::bind(&notices).unwrap();
    socket.set_read_timeout(Some(LONGEST)).unwrap();
    let mut command = daemon.daemon_command();
    command.env("NOTIFY_SOCKET", &notices).stderr(Stdio::null());
    let mut process = Process(command.spawn().unwrap());
    let receive = || {
        let mut text = [0; 32];
        let length = socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    assert_eq!(receive(), "READY=1");
    daemon.must(&["status"]);
    process.signal(Signal::TERM);
    assert_eq!(receive(), "STOPPING=1");
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn mistakes_before_the_start_are_reported_and_a_bad_configuration_has_an_exit_code_of_its_own() {
    let daemon = place("[[vm]]\nname = \"web\"\n");
    let ran = run(daemon.daemon_command());
    assert_eq!((ran.code, ran.out.as_str()), (BAD_CONFIGURATION, ""));
    contains_all(&ran.err, &["vmlane.toml:1", "vm \"web\": cid is missing"]);
    assert!(!daemon.runtime().exists());

    daemon.configure("[daemon]\nlog = \"vmlane=loud\"\n");
    run(daemon.daemon_command())
        .fails(BAD_CONFIGURATION, &["daemon: log = \"vmlane=loud\"", "write for example"]);

    std::fs::remove_file(daemon.config()).unwrap();
    run(daemon.daemon_command()).fails(BAD_CONFIGURATION, &["vmlane.toml", "--config"]);

    // This may be another the next time.
    let mut file = std::fs::File::create(daemon.runtime()).unwrap();
    file.write_all(b"not a directory").unwrap();
    daemon.configure(TWO);
    run(daemon.daemon_command()).fails(1, &["creating the runtime directory", "run"]);
}

#[test]
fn the_log_reports_what_happened() {
    let daemon = daemon(TWO);
    assert_eq!(daemon.stop().code(), Some(0));
    contains_all(&daemon.log(), &["serving", "ready", "stopping"]);
}

/// The names by which systemd lets a service recognize its standard error as the journal.
fn journal_stream(of: &std::fs::File) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = of.metadata().unwrap();
    format!("{}:{}", metadata.dev(), metadata.ino())
}

#[test]
fn lines_for_the_journal_have_priorities_and_no_time() {
    let place = place(TWO);
    let log = place.log_file();
    let mut command = place.daemon_command();
    command.env("JOURNAL_STREAM", journal_stream(&log)).stderr(log).stdin(std::process::Stdio::null());
    let mut daemon = vmlane_testkit::Process(command.spawn().unwrap());
    wait_until("the daemon answers", || place.ask(&["status"]).succeeded());
    let vmm = vmm(&place, "web");
    wait_until("the VMM is logged", || place.log().contains("a VMM is attached vm=\"web\""));
    drop(vmm);
    wait_until("its end is logged", || place.log().contains("gone: no VMM is attached any more vm=\"web\""));
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    let log = place.log();
    let year = |line: &str| line.get(3..7).is_some_and(|year| year.bytes().all(|byte| byte.is_ascii_digit()));
    assert!(log.lines().all(|line| line.starts_with('<') && !year(line)), "{log}");
    contains_all(&log, &["<6> INFO", "serving{device=\"web/vmci\"}", "VMM connected", "VMM disconnected"]);

    place.configure("[daemon]\nworkers = 0\n");
    let log = std::fs::File::create(place.path("second.log")).unwrap();
    let mut command = place.daemon_command();
    command.env("JOURNAL_STREAM", journal_stream(&log)).stderr(log);
    assert_eq!(run(command).code, 78);
    let second = std::fs::read_to_string(place.path("second.log")).unwrap();
    assert!(second.starts_with("<3>vmlane: ") && second.contains("workers = 0"), "{second}");
}
