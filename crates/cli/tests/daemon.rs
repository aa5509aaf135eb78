//! The built program: a daemon, what the other commands say of it, and a VMM that attaches.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vmlane_guestsim::vfio_user::Client as Vmm;

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
const TWO: &str = "[daemon]\nfault_injection = true\n\
    [[vm]]\nname = \"web\"\ncid = 3\nforward = [{ port = 5000, to = \"db:5000\" }]\n\
    [[vm]]\nname = \"db\"\ncid = 4\n";
/// Registers in BAR 1.
const CONTROL: u64 = 0x20004;
const INT_ENABLE: u32 = 2;
/// `EX_CONFIG`: what the unit does not restart.
const BAD_CONFIGURATION: i32 = 78;

/// What a command did.
#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// A directory with a configuration, and daemons in it.
struct Place {
    directory: tempfile::TempDir,
}

struct Running {
    child: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn exit_code(&mut self) -> Option<i32> {
        eventually(|| self.child.try_wait().unwrap()).code()
    }
}

impl Place {
    fn new(config: &str) -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        place.configure(config);
        place
    }

    fn configure(&self, text: &str) {
        std::fs::write(self.config(), text).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.directory.path().join("vmlane.toml")
    }

    fn runtime(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    fn socket(&self, vm: &str) -> PathBuf {
        self.runtime().join("vm").join(vm).join("vmci.sock")
    }

    fn daemon_command(&self) -> Command {
        let mut command = Command::new(VMLANE);
        command.arg("daemon").arg("--config").arg(self.config()).arg("--runtime-dir").arg(self.runtime());
        command.env_remove("VMLANE_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        command
    }

    /// Starts a daemon, with its log in a file, and waits until it answers.
    fn start(&self) -> Running {
        let log = std::fs::File::create(self.directory.path().join("log")).unwrap();
        let running = Running { child: self.daemon_command().stderr(log).spawn().unwrap() };
        eventually(|| (self.ask(&["status"]).code == 0).then_some(()));
        running
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Runs a command that asks the daemon.
    fn ask(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new(VMLANE);
        command.args(arguments).arg("--runtime-dir").arg(self.runtime());
        run(command)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.ask(&[arguments, &["--json"]].concat());
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
        let value: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(value["version"], 1);
        value
    }

    fn status(&self, vm: &str) -> Value {
        let status = self.json(&["status"]);
        let vms = status["vms"].as_array().unwrap();
        vms.iter().find(|view| view["name"] == vm).cloned().unwrap_or_default()
    }

    fn stats(&self, vm: &str) -> Value {
        let stats = self.json(&["stats", vm]);
        assert_eq!(stats["vms"].as_array().unwrap().len(), 1);
        stats["vms"][0].clone()
    }
}

fn run(mut command: Command) -> Ran {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "it never happened");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn contains_all(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in\n{text}");
    }
}

#[test]
fn status_shows_vms_and_whether_they_are_attached_and_ready() {
    let place = Place::new(TWO);
    let _daemon = place.start();
    let ran = place.ask(&["status"]);
    contains_all(&ran.out, &["vmlane 0.1.0", "1 worker (adaptive)", "web", "db", "vmci.sock"]);
    let socket = place.status("web")["sockets"][0].as_str().unwrap().to_owned();
    assert_eq!(Path::new(&socket), place.socket("web"));

    let mut vmm = Vmm::connect(place.socket("web")).unwrap();
    eventually(|| (place.status("web")["attached"] == true).then_some(()));
    assert_eq!(place.status("web")["ready"], false);
    vmm.write_u32(1, CONTROL, INT_ENABLE).unwrap();
    assert_eq!(place.status("web")["ready"], true);
    assert_eq!(
        (&place.status("db")["attached"], &place.status("db")["ready"]),
        (&false.into(), &false.into())
    );

    drop(vmm);
    eventually(|| (place.status("web")["attached"] == false).then_some(()));
    assert_eq!(place.status("web")["ready"], false);
}

#[test]
fn stats_name_the_counters_of_devices_sessions_and_workers() {
    let place = Place::new(TWO);
    let _daemon = place.start();
    let mut vmm = Vmm::connect(place.socket("web")).unwrap();
    for _ in 0..5 {
        vmm.read_u32(1, CONTROL).unwrap();
    }
    let web = place.stats("web");
    assert_eq!((&web["session"]["reads"], &web["session"]["sessions"]), (&5.into(), &1.into()));
    assert!(web["vmci"]["hypercalls"].is_u64() && place.json(&["stats"])["workers"]["bytes"].is_u64());
    assert_eq!(place.stats("db")["session"]["reads"], 0);

    contains_all(&place.ask(&["stats", "web"]).out, &["web.session.reads", "COUNTER"]);
    contains_all(&place.ask(&["stats", "web", "--all"]).out, &["web.vmci.refused_full"]);
    let ran = place.ask(&["stats", "wbe"]);
    assert_eq!(ran.code, 1);
    contains_all(&ran.err, &["\"wbe\"", "known are web, db"]);
}

#[test]
fn top_and_ports_have_both_forms() {
    let place = Place::new(TWO);
    let _daemon = place.start();
    let ran = place.ask(&["top", "--interval", "0.1", "--count", "2"]);
    assert_eq!((ran.code, ran.out.matches("INTERRUPTS").count()), (0, 2), "{ran:?}");
    let rates = place.json(&["top", "--interval", "0.1", "--count", "1"]);
    assert_eq!((&rates["vms"][0]["name"], &rates["bytes_per_second"]), (&"web".into(), &0.0.into()));
    assert_eq!(place.json(&["ports"])["connections"], Value::Array(vec![]));
    contains_all(&place.ask(&["ports"]).out, &["CLIENT", "STATE"]);
}

#[test]
fn a_second_daemon_is_refused_by_name_of_the_first() {
    let place = Place::new(TWO);
    let daemon = place.start();
    let ran = run(place.daemon_command());
    assert_eq!(ran.code, 1);
    contains_all(&ran.err, &["another daemon (pid ", &daemon.child.id().to_string(), "--runtime-dir"]);
    assert_eq!(place.ask(&["status"]).code, 0, "the first is unharmed");
}

#[test]
fn sigterm_sigint_and_shutdown_end_it_cleanly() {
    let place = Place::new(TWO);
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = place.start();
        let _vmm = Vmm::connect(place.socket("web")).unwrap();
        daemon.signal(signal);
        assert_eq!(daemon.exit_code(), Some(0));
        // Nothing is left behind; what keeps its files for the next daemon goes a moment later.
        eventually(|| (place.runtime().read_dir().unwrap().count() == 0).then_some(()));
    }
    let mut daemon = place.start();
    vmlane_api::Client::connect(&place.runtime()).unwrap().shutdown().unwrap();
    assert_eq!(daemon.exit_code(), Some(0));
    let ran = place.ask(&["status"]);
    assert_eq!(ran.code, 1);
    contains_all(&ran.err, &["no daemon answers at", "vmlane daemon --runtime-dir"]);
    assert_eq!(ran.err.matches("No such file").count(), 1, "causes are reported once: {}", ran.err);
}

#[test]
fn what_a_killed_daemon_left_is_no_obstacle() {
    let place = Place::new(TWO);
    drop(place.start());
    assert!(place.socket("db").exists());
    place.configure("[[vm]]\nname = \"web\"\ncid = 3\n");
    let _daemon = place.start();
    assert!(place.socket("web").exists() && !place.socket("db").exists());
}

#[test]
fn reload_applies_the_difference_and_refuses_what_would_hurt() {
    let place = Place::new(TWO);
    let daemon = place.start();
    let _vmm = Vmm::connect(place.socket("db")).unwrap();
    eventually(|| (place.status("db")["attached"] == true).then_some(()));

    // "db" has a VMM, so it stays; "new" comes, and "web" loses its forward.
    place.configure("[daemon]\nfault_injection = true\n[[vm]]\nname = \"web\"\ncid = 3\n[[vm]]\nname = \"new\"\ncid = 9\n");
    let ran = place.ask(&["reload"]);
    assert_eq!(ran.code, 1);
    contains_all(&ran.out, &["vm \"new\": added", "vm \"web\": changed"]);
    contains_all(&ran.err, &["not applied", "\"db\" is not removed: a VMM is attached"]);
    assert!(place.socket("new").exists());
    assert_eq!(place.status("db")["attached"], true);

    // A mistake changes nothing.
    place.configure("[[vm]]\nname = \"web\"\ncid = 1\n");
    let ran = place.ask(&["reload"]);
    assert_eq!(ran.code, 1);
    contains_all(&ran.err, &["vmlane.toml:3", "cid = 1", "stays in force"]);
    assert!(place.socket("new").exists());

    drop(_vmm);
    eventually(|| (place.status("db")["attached"] == false).then_some(()));
    place.configure("[daemon]\nfault_injection = true\n[[vm]]\nname = \"web\"\ncid = 3\n");
    daemon.signal(Signal::HUP);
    eventually(|| (!place.socket("new").exists() && !place.socket("db").exists()).then_some(()));
    assert_eq!(place.json(&["reload"])["applied"], Value::Array(vec![]));
}

#[test]
fn an_injected_panic_stays_inside_its_vm() {
    let place = Place::new(&TWO.replacen("[daemon]\n", "[daemon]\nfault_limit = 0\n", 1));
    let _daemon = place.start();
    let mut web = Vmm::connect(place.socket("web")).unwrap();
    let mut db = Vmm::connect(place.socket("db")).unwrap();
    db.write_u32(1, CONTROL, INT_ENABLE).unwrap();
    let begun = Instant::now();
    assert_eq!(place.ask(&["debug", "panic", "web"]).code, 0);
    assert!(web.read_u32(1, CONTROL).is_err());
    assert!(web.read_u32(1, CONTROL).is_ok(), "the same session continues");
    assert!(db.read_u32(1, CONTROL).is_ok());
    assert_eq!(place.status("db")["ready"], true);
    assert_eq!(place.stats("web")["session"]["panics"], 1);

    let mut client = vmlane_api::Client::connect(&place.runtime()).unwrap();
    for _ in 0..50 {
        client.debug_panic("web", None).unwrap();
        assert!(web.read_u32(1, CONTROL).is_err());
    }
    assert_eq!(place.stats("web")["session"]["panics"], 51);
    let lines = place.log().matches("on request").count();
    // As many again every 10 s.
    let most = 25 * (1 + begun.elapsed().as_secs() as usize / 10);
    assert!((1..=most).contains(&lines), "a guest cannot flood the log: {lines}");

    let ran = place.ask(&["debug", "panic", "wbe"]);
    assert_eq!(ran.code, 1);
    contains_all(&ran.err, &["\"wbe\" is not served", "known are web, db"]);
}

#[test]
fn faults_are_not_injected_unless_configured() {
    let place = Place::new("[[vm]]\nname = \"web\"\ncid = 3\n");
    let _daemon = place.start();
    let ran = place.ask(&["debug", "panic", "web"]);
    assert_eq!(ran.code, 1);
    contains_all(&ran.err, &["fault_injection = true"]);
    assert!(Vmm::connect(place.socket("web")).unwrap().read_u32(1, CONTROL).is_ok());
}

#[test]
fn the_line_to_a_nic_is_made_bad_on_request_and_what_cannot_be_is_named() {
    let config = "[daemon]\nfault_injection = true\n[[vm]]\nname = \"web\"\ncid = 3\nnic = [{ model = \"vmxnet3\" }]\n";
    let place = Place::new(config);
    let _daemon = place.start();
    let impair = |words: &[&str]| place.ask(&[&["debug", "impair"], words].concat());
    assert_eq!(
        impair(&["web", "--loss", "10", "--reorder", "5", "--delay-us", "300", "--seed", "7"]).code,
        0
    );
    assert_eq!(impair(&["web"]).code, 0);
    for (words, why) in [
        (vec!["web", "--loss", "1001"], "numbers of frames in 1000"),
        (vec!["web", "--delay-us", "1000001"], "delayed by 1 s"),
        (vec!["web", "--at", "nic1-port"], "has no \"nic1-port\""),
        (vec!["web", "--at", "nic0"], "known are nicN-port"),
        (vec!["wbe"], "known are web"),
    ] {
        let ran = impair(&words);
        assert_eq!(ran.code, 1, "{words:?}");
        contains_all(&ran.err, &[why]);
    }
    assert_eq!(place.stats("web")["nics"][0]["port"]["drop_impaired"], 0);
}

#[test]
fn systemd_is_told_when_it_is_ready() {
    let place = Place::new(TWO);
    let notices = place.directory.path().join("notify");
    let socket = UnixDatagram::bind(&notices).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut command = place.daemon_command();
    let mut daemon =
        Running { child: command.env("NOTIFY_SOCKET", &notices).stderr(Stdio::null()).spawn().unwrap() };
    let receive = || {
        let mut text = [0; 32];
        let length = socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    assert_eq!(receive(), "READY=1");
    assert_eq!(place.ask(&["status"]).code, 0);
    daemon.signal(Signal::TERM);
    assert_eq!(receive(), "STOPPING=1");
    assert_eq!(daemon.exit_code(), Some(0));
}

#[test]
fn mistakes_before_the_start_are_told_and_a_bad_configuration_has_an_exit_code_of_its_own() {
    let place = Place::new("[[vm]]\nname = \"web\"\n");
    let ran = run(place.daemon_command());
    assert_eq!((ran.code, ran.out.as_str()), (BAD_CONFIGURATION, ""));
    contains_all(&ran.err, &["vmlane.toml:1", "vm \"web\": cid is missing"]);
    assert!(!place.runtime().exists());

    place.configure("[daemon]\nlog = \"vmlane=loud\"\n");
    let ran = run(place.daemon_command());
    assert_eq!(ran.code, BAD_CONFIGURATION);
    contains_all(&ran.err, &["daemon: log = \"vmlane=loud\"", "write for example"]);

    std::fs::remove_file(place.config()).unwrap();
    let ran = run(place.daemon_command());
    assert_eq!(ran.code, BAD_CONFIGURATION);
    contains_all(&ran.err, &["vmlane.toml", "--config"]);

    // This may be another the next time.
    let mut file = std::fs::File::create(place.runtime()).unwrap();
    file.write_all(b"not a directory").unwrap();
    place.configure(TWO);
    let ran = run(place.daemon_command());
    assert_eq!(ran.code, 1);
    contains_all(&ran.err, &["creating the runtime directory", "run"]);
}

#[test]
fn the_log_says_what_happened() {
    let place = Place::new(TWO);
    let mut daemon = place.start();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.exit_code(), Some(0));
    contains_all(&place.log(), &["serving", "ready", "stopping"]);
}

#[test]
fn each_line_of_a_json_log_is_an_object() {
    let json = TWO.replace("[daemon]\n", "[daemon]\nlog_format = \"json\"\n");
    let place = Place::new(&json);
    let mut daemon = place.start();
    // A panic and a configuration with mistakes are told in several lines.
    assert_eq!(place.ask(&["debug", "panic", "web", "--at", "control"]).code, 1);
    place.configure(&json.replace("\"json\"", "\"xml\\n\""));
    daemon.signal(Signal::HUP);
    eventually(|| place.log().contains("xml").then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.exit_code(), Some(0));
    let mut said = String::new();
    for line in place.log().lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for key in ["timestamp", "level", "target"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
        said += &format!("{} {}\n", line["level"], line["fields"]["message"].as_str().unwrap());
    }
    contains_all(
        &said,
        &["\"INFO\" ready", "\"ERROR\"", "panicked at", "use \"text\" or \"json\"", "stopping"],
    );

    let mut command = place.daemon_command();
    command.args(["--log-format", "xml"]);
    let ran = run(command);
    assert!(ran.code == 2 && ran.err.contains("use text or json"), "{ran:?}");
}

/// A driver's register access, panicking `faults` times inside the device's session.
fn provoke(place: &Place, vmm: &mut Vmm, faults: u32) {
    for _ in 0..faults {
        assert_eq!(place.ask(&["debug", "panic", "web"]).code, 0);
        assert!(vmm.read_u32(1, CONTROL).is_err());
    }
}

#[test]
fn a_vm_whose_devices_keep_failing_is_quarantined_and_released() {
    let place = Place::new(&format!("{TWO}\n[[vm]]\nname = \"third\"\ncid = 5\n").replacen(
        "[daemon]\n",
        "[daemon]\nfault_limit = 3\nfault_window_s = 3600\n",
        1,
    ));
    let _daemon = place.start();
    let (mut web, mut db) =
        (Vmm::connect(place.socket("web")).unwrap(), Vmm::connect(place.socket("db")).unwrap());
    db.write_u32(1, CONTROL, INT_ENABLE).unwrap();
    const CAPS: u64 = 0x20018;
    let offer = web.read_u32(1, CAPS).unwrap();
    assert_ne!(offer, 0);
    provoke(&place, &mut web, 2);
    assert_eq!(web.read_u32(1, CAPS).unwrap(), offer, "a reset device, no more");
    assert_eq!(place.status("web")["quarantined"], false);
    provoke(&place, &mut web, 1);
    eventually(|| (place.status("web")["quarantined"] == true).then_some(()));
    assert_eq!(place.status("web")["faults"], 3);
    assert_eq!(web.read_u32(1, CAPS).unwrap(), 0, "answered, on the same socket");
    assert_eq!(
        (&place.status("web")["attached"], &place.status("db")["ready"]),
        (&true.into(), &true.into())
    );
    contains_all(&place.ask(&["status"]).out, &["web: in quarantine after 3 faults; `vmlane release web`"]);
    contains_all(&place.log(), &["its devices are out of service"]);
    assert_eq!(place.json(&["stats"])["daemon"]["quarantines"], 1);

    let ran = place.ask(&["release", "wbe"]);
    assert_eq!(ran.code, 1);
    contains_all(&ran.err, &["\"wbe\"", "known are web, db, third"]);
    assert_eq!(place.ask(&["release", "web"]).code, 0);
    assert_eq!(web.read_u32(1, CAPS).unwrap(), offer);
    assert_eq!(place.status("web")["quarantined"], false);
    provoke(&place, &mut web, 2);
    assert_eq!(place.status("web")["quarantined"], false, "the fault history is cleared");
}

#[test]
fn a_fault_in_the_control_plane_ends_a_request_and_nothing_else() {
    let place = Place::new(TWO);
    let _daemon = place.start();
    let ran = place.ask(&["debug", "panic", "web", "--at", "control"]);
    assert_eq!(ran.code, 1);
    contains_all(&ran.err, &["failed while answering"]);
    let ran = place.ask(&["debug", "panic", "web", "--at", "nic7"]);
    contains_all(&ran.err, &["has no \"nic7\"", "nicN-port"]);
    assert_eq!(place.ask(&["status"]).code, 0);
}
