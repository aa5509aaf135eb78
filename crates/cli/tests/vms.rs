//! The configuration in several files, and a running daemon that follows it.

mod common;
#[path = "common/nic.rs"]
mod nic;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::eventually;
use nic::Nic;
use serde_json::Value;
use vmlane_guestsim::vfio_user::Client as Vmm;

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
/// A register in BAR 1.
const CONTROL: u64 = 0x20004;
const WEB: &str = "[[vm]]\nname = \"web\"\ncid = 3\n";

/// What a command did.
#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory with a configuration, and what a daemon makes in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new(config: &str) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        // Any user that the daemon becomes gets through.
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o711)).unwrap();
        place.write("etc/vmlane.toml", config);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn daemon_command(&self) -> Command {
        let log = fs::File::options().append(true).create(true).open(self.path("log")).unwrap();
        let mut command = Command::new(VMLANE);
        command.args(["daemon", "--config"]).arg(self.path("etc/vmlane.toml"));
        command.arg("--runtime-dir").arg(self.path("run"));
        command.env_remove("VMLANE_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(log);
        command
    }

    /// Starts a daemon, confined, and waits until it answers.
    fn start(&self) -> Daemon {
        let daemon = Daemon(self.daemon_command().spawn().unwrap());
        let pid = u64::from(daemon.0.id());
        eventually("the daemon answers", || {
            let status = self.ask(&["status", "--json"]);
            (status.code == 0 && json(&status.out)["pid"] == pid).then_some(())
        });
        daemon
    }

    fn ask(&self, words: &[&str]) -> Ran {
        let mut command = Command::new(VMLANE);
        command.args(words).arg("--runtime-dir").arg(self.path("run"));
        run(command)
    }

    /// A command that has to succeed, and what it printed.
    fn must(&self, words: &[&str]) -> String {
        let ran = self.ask(words);
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
        ran.out
    }

    /// Names of the VMs that are served.
    fn served(&self) -> String {
        let status = json(&self.must(&["status", "--json"]));
        let names = status["vms"].as_array().unwrap().iter().map(|vm| vm["name"].as_str().unwrap());
        names.collect::<Vec<_>>().join(" ")
    }
}

fn run(mut command: Command) -> Ran {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[track_caller]
fn contains_all(text: &str, words: &[&str]) {
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text}"));
}

#[test]
fn a_confined_daemon_follows_the_files_of_conf_d() {
    let place = Place::new(WEB);
    let _daemon = place.start();
    assert_eq!(place.served(), "web");
    // The directory comes when the daemon sees nothing of the host any more.
    place.write(
        "etc/conf.d/10-db.toml",
        "[[vm]]\nname = \"db\"\ncid = 4\nnic = [{ model = \"vmxnet3\", port_group = \"p\" }]\n",
    );
    place.write("etc/conf.d/20-net.toml", "[[port_group]]\nname = \"p\"\nvlan = 7\n");
    place.write("etc/conf.d/20-net.toml~", "[[vm]]\nname = \"old\"\ncid = 9\n");
    assert_eq!(place.must(&["reload"]), "vm \"db\": added\n");
    assert_eq!(place.served(), "web db");
    place.write("etc/conf.d/30.toml", "\n[[vm]]\nname = \"app\"\ncid = 4\n");
    let refused = place.ask(&["reload"]);
    assert_eq!(refused.code, 1);
    contains_all(
        &refused.err,
        &["conf.d/30.toml:4: vm \"app\": cid = 4 is taken by VM \"db\"", "conf.d/10-db.toml:3"],
    );
    contains_all(&refused.err, &["stays in force"]);
    fs::remove_file(place.path("etc/conf.d/30.toml")).unwrap();
    fs::remove_file(place.path("etc/conf.d/10-db.toml")).unwrap();
    assert_eq!(place.must(&["reload"]), "vm \"db\": removed\n");
    let mut arguments = Command::new(VMLANE);
    place.write("etc/conf.d/40.toml", "[[vm]]\nname = \"late\"\ncid = 5\n");
    arguments.args(["qemu-args", "late", "--config"]).arg(place.path("etc/vmlane.toml"));
    let arguments = run(arguments);
    assert_eq!(arguments.code, 0, "{arguments:?}");
}

#[test]
fn a_daemon_does_not_start_with_a_mistake_in_conf_d() {
    let place = Place::new(WEB);
    place.write("etc/conf.d/10.toml", "[[vm]]\nname = \"db\"\nsid = 4\n");
    let mut command = place.daemon_command();
    let ran = run({
        command.stderr(Stdio::piped());
        command
    });
    assert_ne!(ran.code, 0);
    contains_all(&ran.err, &["conf.d/10.toml:3: unknown field `sid`", "sid = 4"]);
}

#[test]
fn a_vm_that_is_added_outlasts_reloads_kills_upgrades_and_stops() {
    let place = Place::new(WEB);
    let mut daemon = place.start();
    place.write(
        "app.toml",
        "# by hand\n[[vm]]\nname = \"app\"\ncid = 7\nforward = [{ port = 1, to = \"web:2\" }]\n",
    );
    let file = place.path("run/vms.d/app.toml");
    let added = place.must(&["vm", "add", &place.path("app.toml").display().to_string()]);
    assert_eq!(added, format!("vm \"app\": added, and kept in {}\n", file.display()));
    assert_eq!(fs::read_to_string(&file).unwrap(), fs::read_to_string(place.path("app.toml")).unwrap());
    let nic = "model = \"virtio-net\", mac = \"52:54:00:00:00:09\"";
    let added = json(&place.must(&["vm", "add", "--name", "net", "--vsock", "none", "--nic", nic, "--json"]));
    assert_eq!((&added["version"], &added["name"], &added["cid"]), (&1.into(), &"net".into(), &Value::Null));
    assert_eq!(place.served(), "web app net");
    assert!(place.path("run/vm/app/vmci.sock").exists() && place.path("run/vm/net/nic0.sock").exists());
    let list = json(&place.must(&["vm", "list", "--json"]));
    let row = |index: usize| {
        let vm = &list["vms"][index];
        (
            vm["name"].as_str().unwrap(),
            vm["added"].as_bool().unwrap(),
            vm["line"].as_u64().unwrap(),
            vm["nics"].as_u64().unwrap(),
        )
    };
    assert_eq!((row(0), row(1), row(2)), (("web", false, 1, 0), ("app", true, 2, 0), ("net", true, 1, 1)));
    contains_all(&place.must(&["vm", "list"]), &["DESCRIBED IN", "vms.d/app.toml:2", "etc/vmlane.toml:1"]);
    let config = place.path("etc/vmlane.toml").display().to_string();
    contains_all(&place.must(&["qemu-args", "app", "--config", &config]), &["vm/app/vmci.sock"]);

    // The configuration's own VM goes, and those stay.
    place.write("etc/vmlane.toml", "");
    let refused = place.ask(&["reload"]);
    contains_all(&refused.err, &["run/vms.d/app.toml:5: vm \"app\": forward", "there is no VM \"web\""]);
    place.write("etc/vmlane.toml", &WEB.replace("web", "db"));
    fs::write(&file, "[[vm]]\nname = \"app\"\ncid = 7\n").unwrap();
    place.must(&["reload"]);
    // After a reload, and after ends of every kind.
    let sorted = |place: &Place| {
        let served = place.served();
        let mut names: Vec<&str> = served.split(' ').collect();
        names.sort_unstable();
        names.join(" ")
    };
    assert_eq!(sorted(&place), "app db net");
    for end in ["kill", "replace", "stop"] {
        match end {
            "replace" => {
                let mut command = place.daemon_command();
                let next = Daemon(command.arg("--replace").spawn().unwrap());
                eventually("the next daemon answers", || {
                    let status = place.ask(&["status", "--json"]);
                    (status.code == 0 && json(&status.out)["pid"] == next.0.id()).then_some(())
                });
                daemon = next;
            }
            "stop" => {
                rustix::process::kill_process(
                    rustix::process::Pid::from_child(&daemon.0),
                    rustix::process::Signal::TERM,
                )
                .unwrap();
                assert!(daemon.0.wait().unwrap().success());
                daemon = place.start();
            }
            _ => {
                daemon.0.kill().unwrap();
                daemon.0.wait().unwrap();
                daemon = place.start();
            }
        }
        assert_eq!(sorted(&place), "app db net", "after {end}");
    }
    place.must(&["vm", "remove", "app"]);
    assert_eq!(json(&place.must(&["vm", "remove", "net", "--json"]))["name"], "net");
    assert!(!file.exists() && !place.path("run/vm/app").exists());
    drop(daemon);
    let _daemon = place.start();
    assert_eq!(place.served(), "db");
}

#[test]
fn what_is_in_use_is_refused_and_the_error_says_whose_it_is() {
    let nic = "nic = [{ model = \"vmxnet3\", mac = \"52:54:00:00:00:03\" }]\n";
    let place = Place::new(&[WEB, nic].concat());
    place.write("etc/conf.d/10.toml", "[[vm]]\nname = \"db\"\ncid = 4\n");
    let _daemon = place.start();
    place.must(&["vm", "add", "--name", "app", "--cid", "7"]);
    let refuse = |words: &[&str], told: &[&str]| {
        let ran = place.ask(&[&["vm", "add"], words].concat());
        assert_eq!(ran.code, 1, "{words:?}: {ran:?}");
        contains_all(&ran.err, told);
    };
    refuse(
        &["--name", "web", "--cid", "9"],
        &["description:2: vm: name = \"web\" is taken by the VM of", "etc/vmlane.toml:2"],
    );
    refuse(
        &["--name", "x", "--cid", "4"],
        &["description:3: vm \"x\": cid = 4 is taken by VM \"db\"", "conf.d/10.toml:3"],
    );
    refuse(&["--name", "x", "--cid", "7"], &["cid = 7 is taken by VM \"app\"", "run/vms.d/app.toml:3"]);
    refuse(
        &["--name", "app", "--cid", "8"],
        &["name = \"app\" is taken by the VM of", "run/vms.d/app.toml:2"],
    );
    refuse(
        &["--name", "x", "--cid", "9", "--nic", "model = \"virtio-net\", mac = \"52:54:00:00:00:03\""],
        &["mac = \"52:54:00:00:00:03\" is taken by VM \"web\"", "etc/vmlane.toml:4"],
    );
    refuse(&["--name", "x"], &["vm \"x\": cid is missing"]);
    refuse(
        &["--name", "x", "--cid", "9", "--nic", "model = \"virtio-net\", port_group = \"p\""],
        &["port_group = \"p\": there is none"],
    );
    refuse(&["--name", "../x", "--cid", "9"], &["vm: name = \"../x\": use up to 64 letters"]);
    place.write("two.toml", "[[vm]]\nname = \"x\"\ncid = 9\n[[vm]]\nname = \"y\"\ncid = 10\n");
    place.write("more.toml", "[[vm]]\nname = \"x\"\ncid = 9\n[[control]]\nuid = 1\nmay = \"admin\"\n");
    place.write("long.toml", &format!("[[vm]]\nname = \"x\"\ncid = 9\n#{}\n", "x".repeat(16 << 10)));
    let file = |name: &str| place.path(name).display().to_string();
    refuse(&[&file("two.toml")], &["description:4: a second VM"]);
    refuse(
        &[&file("more.toml")],
        &["description:4: control: a VM that is added at run time has one table [[vm]]"],
    );
    refuse(&[&file("long.toml")], &["long.toml: a description may have 16384 bytes"]);
    refuse(&[&file("none.toml")], &["none.toml: No such file"]);
    let long = fs::read_to_string(place.path("long.toml")).unwrap();
    let raw = vmlane_api::Client::connect(&place.path("run")).unwrap().add_vm(&long).unwrap_err().to_string();
    contains_all(&raw, &["has 16412 bytes, and may have 16384"]);
    assert_eq!(place.served(), "web db app");
    assert_eq!(fs::read_dir(place.path("run/vms.d")).unwrap().count(), 1);
    // A file of the configuration that is wrong by now is nothing to a VM that is added.
    place.write("etc/conf.d/20.toml", "[[nonsense");
    place.must(&["vm", "add", "--name", "late", "--cid", "11"]);
    assert_eq!(place.served(), "web db app late");
}

#[test]
fn what_is_configured_attached_or_needed_is_not_removed() {
    let place = Place::new(WEB);
    let _daemon = place.start();
    place.must(&["vm", "add", "--name", "app", "--cid", "7"]);
    let refuse = |name: &str, told: &[&str]| {
        let ran = place.ask(&["vm", "remove", name]);
        assert_eq!(ran.code, 1, "{name}: {ran:?}");
        contains_all(&ran.err, told);
    };
    refuse("web", &["\"web\" was not added at run time", "etc/vmlane.toml:1", "vmlane reload"]);
    refuse("wbe", &["there is no VM \"wbe\"; known are web, app"]);
    place.write("etc/vmlane.toml", &[WEB, "forward = [{ port = 5, to = \"app:6\" }]\n"].concat());
    place.must(&["reload"]);
    refuse(
        "app",
        &["vm \"app\" is not removed", "etc/vmlane.toml:4: vm \"web\": forward 5", "there is no VM \"app\""],
    );
    place.write("etc/vmlane.toml", WEB);
    place.must(&["reload"]);
    let mut vmm = Vmm::connect(place.path("run/vm/app/vmci.sock")).unwrap();
    vmm.read_u32(1, CONTROL).unwrap();
    refuse("app", &["\"app\" is not removed: a VMM is attached", "--force"]);
    vmm.read_u32(1, CONTROL).unwrap();
    place.must(&["vm", "remove", "app", "--force"]);
    assert!(vmm.read_u32(1, CONTROL).is_err(), "its session is over");
    assert_eq!(place.served(), "web");
    // Name and CID are free again.
    place.must(&["vm", "add", "--name", "app", "--cid", "7"]);
    Vmm::connect(place.path("run/vm/app/vmci.sock")).unwrap().read_u32(1, CONTROL).unwrap();
}

#[test]
fn a_daemon_killed_while_vms_come_and_go_serves_those_that_were_promised() {
    let place = Place::new(WEB);
    let mut daemon = place.start();
    let mut promised: Vec<String> = vec!["web".into()];
    for round in 0..50u32 {
        let name = format!("v{round}");
        let cid = (100 + round).to_string();
        let mut add = Command::new(VMLANE);
        add.args(["vm", "add", "--name", &name, "--cid", &cid, "--runtime-dir"]).arg(place.path("run"));
        let mut add = add.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Before, during and after the request.
        std::thread::sleep(std::time::Duration::from_micros(u64::from(round % 10) * 700));
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        let answered = add.wait().unwrap().success();
        daemon = place.start();
        let served = place.served();
        let is_served = served.split(' ').any(|vm| vm == name);
        assert!(is_served || !answered, "round {round}: {name} was promised");
        if is_served {
            promised.push(name);
        }
        let served: std::collections::BTreeSet<&str> = served.split(' ').collect();
        assert_eq!(served, promised.iter().map(String::as_str).collect(), "round {round}");
        if promised.len() > 4 {
            let gone = promised.pop().unwrap();
            place.must(&["vm", "remove", &gone]);
        }
    }
}

#[test]
fn vms_are_kept_where_it_is_said_and_by_one_daemon() {
    let place = Place::new(WEB);
    let state = place.path("state");
    let mut first = place.daemon_command();
    let first = Daemon(first.arg("--state-dir").arg(&state).spawn().unwrap());
    eventually("the daemon answers", || (place.ask(&["status"]).code == 0).then_some(()));
    place.must(&["vm", "add", "--name", "app", "--cid", "7"]);
    assert!(state.join("vms.d/app.toml").exists());
    let mut second = Command::new(VMLANE);
    second
        .args(["daemon", "--config"])
        .arg(place.path("etc/vmlane.toml"))
        .arg("--runtime-dir")
        .arg(place.path("run2"));
    let second = run({
        second.arg("--state-dir").arg(&state);
        second
    });
    assert_eq!(second.code, 1);
    contains_all(&second.err, &["vms.d: another daemon uses it", "--state-dir"]);
    let mut check = Command::new(VMLANE);
    check.arg("check").arg(place.path("etc/vmlane.toml")).arg("--state-dir").arg(&state);
    contains_all(&run(check).out, &["good: 2 VMs"]);
    drop(first);
    // Something else is in its place: what is configured is served, and nothing can be added.
    place.write("run/vms.d", "no directory");
    let _daemon = place.start();
    assert_eq!(place.served(), "web");
    let ran = place.ask(&["vm", "add", "--name", "app", "--cid", "7"]);
    assert_eq!(ran.code, 1);
    contains_all(&ran.err, &["no VM can be added", "run/vms.d: ", "--state-dir"]);
}

#[test]
fn a_configuration_is_judged_without_an_effect() {
    let place = Place::new(WEB);
    place.write("etc/conf.d/10.toml", "[[vm]]\nname = \"db\"\ncid = 4\nowner = 54321\n[[uplink]]\nname = \"lan\"\ninterface = \"vmlane-none\"\n");
    place.write("run/vms.d/app.toml", "[[vm]]\nname = \"app\"\ncid = 7\n");
    let judge = |more: &[&str]| {
        let file = place.path("etc/vmlane.toml").display().to_string();
        place.ask(&[&["check", &file], more].concat())
    };
    let good = judge(&[]);
    assert_eq!((good.code, good.out.as_str()), (0, "good: 3 VMs, 1 uplink, in 3 files\n"), "{good:?}");
    contains_all(
        &good.err,
        &["warning: ", "conf.d/10.toml:1: vm \"db\": owner: user 54321 is not in /etc/passwd"],
    );
    contains_all(&good.err, &["uplink \"lan\": interface = \"vmlane-none\": there is none of this name now"]);
    let report = json(&judge(&["--json"]).out);
    assert_eq!((&report["version"], &report["ok"], &report["vms"]), (&1.into(), &true.into(), &3.into()));
    assert_eq!(
        (report["files"].as_array().unwrap().len(), report["warnings"].as_array().unwrap().len()),
        (3, 2)
    );

    place.write("run/vms.d/app.toml", "[[vm]]\nname = \"app\"\ncid = 3\n");
    place.write("etc/conf.d/20.toml", "[daemon]\nworkers = 0\n");
    let bad = judge(&[]);
    assert_eq!((bad.code, bad.out.as_str()), (78, ""));
    contains_all(
        &bad.err,
        &[
            "conf.d/20.toml:2: daemon: workers = 0",
            "vms.d/app.toml:3: vm \"app\": cid = 3 is taken by VM \"web\"",
        ],
    );
    let report = judge(&["--json"]);
    assert_eq!((report.code, report.err.as_str()), (78, ""));
    let problem = &json(&report.out)["problems"][1];
    contains_all(problem["file"].as_str().unwrap(), &["vms.d/app.toml"]);
    assert_eq!((&problem["line"], &json(&report.out)["ok"]), (&3.into(), &false.into()));
    place.write("etc/conf.d/20.toml", "");
    fs::remove_file(place.path("run/vms.d/app.toml")).unwrap();
    let long = place.path(&"r".repeat(90)).display().to_string();
    let mut command = Command::new(VMLANE);
    command.arg("check").arg(place.path("etc/vmlane.toml")).args(["--runtime-dir", &long]);
    let long = run(command);
    assert_eq!(long.code, 78);
    contains_all(&long.err, &["etc/vmlane.toml:1: vm \"web\": ", "--runtime-dir or a shorter name"]);
    let mut missing = Command::new(VMLANE);
    missing
        .arg("check")
        .arg(place.path("gone.toml"))
        .args(["--json", "--runtime-dir"])
        .arg(place.path("run"));
    let missing = run(missing);
    let problem = &json(&missing.out)["problems"][0];
    assert_eq!((missing.code, &problem["line"]), (78, &Value::Null));
    contains_all(problem["text"].as_str().unwrap(), &["No such file"]);
    assert!(!place.path("run/control.sock").exists() && !place.path("run2").exists());
}

#[test]
fn a_vm_that_is_added_talks_to_one_of_the_configuration_also_after_a_kill() {
    let place = Place::new(
        "[[vm]]\nname = \"web\"\nvsock = \"none\"\nnic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:01\" }]\n",
    );
    let mut daemon = place.start();
    let keys = "model = \"virtio-net\", packed = true, mac = \"52:54:00:00:00:02\"";
    place.must(&["vm", "add", "--name", "app", "--vsock", "none", "--nic", keys]);
    let (mut web, mut app) = (Nic::new(false), Nic::new(true));
    let mut number = 0;
    for _ in 0..2 {
        app.attach(&place.path("run/vm/app/nic0.sock"));
        web.attach(&place.path("run/vm/web/nic0.sock"));
        let mut came = 0;
        eventually("frames of the VM of the configuration", || {
            while web.send(number) {
                number += 1;
            }
            web.settle();
            came += app.receive().len();
            (came > 500).then_some(())
        });
        assert!(web.sent.len() < 500);
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        daemon = place.start();
    }
    // Its card does not keep it from being removed once no VMM is there.
    drop((web, app));
    eventually("the VM to be removed", || (place.ask(&["vm", "remove", "app"]).code == 0).then_some(()));
}
