//! The configuration in several files, and a running daemon that follows it.

use std::fs;
use std::process::Stdio;

use serde_json::Value;
use vmlane_guestsim::virtio_nic::Nic;
use vmlane_testkit::{Daemon, Ran, contains_all, run, wait_until};

use crate::common::{CONTROL, daemon, place, vmlane, vmm};

const WEB: &str = "[[vm]]\nname = \"web\"\ncid = 3\n";

/// Names of the VMs that are served.
fn served(daemon: &Daemon) -> String {
    let status = daemon.json(&["status"]);
    let names = status["vms"].as_array().unwrap().iter().map(|vm| vm["name"].as_str().unwrap());
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_confined_daemon_follows_the_files_of_conf_d() {
    let daemon = daemon(WEB);
    assert_eq!(served(&daemon), "web");
    // The directory comes when the daemon sees nothing of the host any more.
    daemon.write(
        "etc/conf.d/10-db.toml",
        "[[vm]]\nname = \"db\"\ncid = 4\nnic = [{ model = \"vmxnet3\", port_group = \"p\" }]\n",
    );
    daemon.write("etc/conf.d/20-net.toml", "[[port_group]]\nname = \"p\"\nvlan = 7\n");
    daemon.write("etc/conf.d/20-net.toml~", "[[vm]]\nname = \"old\"\ncid = 9\n");
    assert_eq!(daemon.must(&["reload"]), "vm \"db\": added\n");
    assert_eq!(served(&daemon), "web db");
    daemon.write("etc/conf.d/30.toml", "\n[[vm]]\nname = \"app\"\ncid = 4\n");
    let taken = "conf.d/30.toml:4: vm \"app\": cid = 4 is taken by VM \"db\"";
    daemon.ask(&["reload"]).fails(1, &[taken, "conf.d/10-db.toml:3", "stays in force"]);
    fs::remove_file(daemon.path("etc/conf.d/30.toml")).unwrap();
    fs::remove_file(daemon.path("etc/conf.d/10-db.toml")).unwrap();
    assert_eq!(daemon.must(&["reload"]), "vm \"db\": removed\n");
    daemon.write("etc/conf.d/40.toml", "[[vm]]\nname = \"late\"\ncid = 5\n");
    run(daemon.configured(&["qemu-args", "late", "--qemu", "10.1"])).good();
}

#[test]
fn a_reload_changes_how_long_sessions_are_held() {
    let virtio = format!("{WEB}vsock = \"virtio\"\n");
    let daemon = daemon(&virtio);
    daemon.write("etc/conf.d/10.toml", "[daemon]\nhold = 5\n");
    assert_eq!(daemon.must(&["reload"]), "daemon: hold = 5\n");
    assert_eq!(daemon.must(&["reload"]), "nothing differs\n");
}

#[test]
fn a_daemon_does_not_start_with_a_mistake_in_conf_d() {
    let daemon = place(WEB);
    daemon.write("etc/conf.d/10.toml", "[[vm]]\nname = \"db\"\nsid = 4\n");
    let ran = run(daemon.daemon_command());
    assert_ne!(ran.code, 0);
    contains_all(&ran.err, &["conf.d/10.toml:3: vm", "sid = 4: there is no such key; did you mean cid?"]);
}

#[test]
fn a_vm_that_is_added_outlasts_reloads_kills_upgrades_and_stops() {
    let daemon = daemon(WEB);
    let app = daemon.write(
        "app.toml",
        "# by hand\n[[vm]]\nname = \"app\"\ncid = 7\nforward = [{ port = 1, to = \"web:2\" }]\n",
    );
    let file = daemon.run("vms.d/app.toml");
    let added = daemon.must(&["vm", "add", app.to_str().unwrap()]);
    assert_eq!(added, format!("vm \"app\": added, and kept in {}\n", file.display()));
    assert_eq!(fs::read_to_string(&file).unwrap(), fs::read_to_string(app).unwrap());
    let nic = "model = \"virtio-net\", mac = \"52:54:00:00:00:09\"";
    let added = daemon.json(&["vm", "add", "--name", "net", "--vsock", "none", "--nic", nic]);
    assert_eq!((&added["name"], &added["cid"]), (&"net".into(), &Value::Null));
    assert_eq!(served(&daemon), "web app net");
    assert!(daemon.socket("app", "vmci.sock").exists() && daemon.socket("net", "nic0.sock").exists());
    let list = daemon.json(&["vm", "list"]);
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
    contains_all(&daemon.must(&["vm", "list"]), &["DESCRIBED IN", "vms.d/app.toml:2", "etc/vmlane.toml:1"]);
    contains_all(
        &run(daemon.configured(&["qemu-args", "app", "--qemu", "10.1"])).good(),
        &["vm/app/vmci.sock"],
    );

    // The configuration's own VM goes, and those stay.
    daemon.configure("");
    let refused = daemon.ask(&["reload"]);
    contains_all(&refused.err, &["run/vms.d/app.toml:5: vm \"app\": forward", "there is no VM \"web\""]);
    daemon.configure(&WEB.replace("web", "db"));
    fs::write(&file, "[[vm]]\nname = \"app\"\ncid = 7\n").unwrap();
    daemon.must(&["reload"]);
    // After a reload, and after ends of every kind.
    let sorted = || {
        let served = served(&daemon);
        let mut names: Vec<&str> = served.split(' ').collect();
        names.sort_unstable();
        names.join(" ")
    };
    assert_eq!(sorted(), "app db net");
    for end in ["kill", "replace", "stop"] {
        match end {
            "replace" => daemon.start_with(&["--replace"]),
            "stop" => {
                assert!(daemon.stop().success());
                daemon.start();
            }
            _ => {
                daemon.kill();
                daemon.start();
            }
        }
        assert_eq!(sorted(), "app db net", "after {end}");
    }
    daemon.must(&["vm", "remove", "app"]);
    assert_eq!(daemon.json(&["vm", "remove", "net"])["name"], "net");
    assert!(!file.exists() && !daemon.run("vm/app").exists());
    daemon.kill();
    daemon.start();
    assert_eq!(served(&daemon), "db");
}

#[test]
fn what_is_in_use_is_refused_and_the_error_names_its_user() {
    let nic = "nic = [{ model = \"vmxnet3\", mac = \"52:54:00:00:00:03\" }]\n";
    let daemon = place(&[WEB, nic].concat());
    daemon.write("etc/conf.d/10.toml", "[[vm]]\nname = \"db\"\ncid = 4\n");
    daemon.start();
    daemon.must(&["vm", "add", "--name", "app", "--cid", "7"]);
    let refuse =
        |words: &[&str], phrases: &[&str]| daemon.ask(&[&["vm", "add"], words].concat()).fails(1, phrases);
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
    daemon.write("two.toml", "[[vm]]\nname = \"x\"\ncid = 9\n[[vm]]\nname = \"y\"\ncid = 10\n");
    daemon.write("more.toml", "[[vm]]\nname = \"x\"\ncid = 9\n[[control]]\nuid = 1\nmay = \"admin\"\n");
    daemon.write("long.toml", &format!("[[vm]]\nname = \"x\"\ncid = 9\n#{}\n", "x".repeat(16 << 10)));
    let file = |name: &str| daemon.path(name).display().to_string();
    refuse(&[&file("two.toml")], &["description:4: a second VM"]);
    refuse(
        &[&file("more.toml")],
        &["description:4: control: a VM that is added at run time has one table [[vm]]"],
    );
    refuse(&[&file("long.toml")], &["long.toml: a description may have 16384 bytes"]);
    refuse(&[&file("none.toml")], &["none.toml: No such file"]);
    let long = fs::read_to_string(file("long.toml")).unwrap();
    let mut client = vmlane_api::Client::connect(&daemon.runtime()).unwrap();
    let raw = client.call(&vmlane_api::call::VmAdd { description: long }).unwrap_err().to_string();
    contains_all(&raw, &["has 16412 bytes, and may have 16384"]);
    assert_eq!(served(&daemon), "web db app");
    assert_eq!(fs::read_dir(daemon.run("vms.d")).unwrap().count(), 1);
    // A file of the configuration that is wrong by now is nothing to a VM that is added.
    daemon.write("etc/conf.d/20.toml", "[[nonsense");
    daemon.must(&["vm", "add", "--name", "late", "--cid", "11"]);
    assert_eq!(served(&daemon), "web db app late");
}

#[test]
fn what_is_configured_attached_or_needed_is_not_removed() {
    let daemon = daemon(WEB);
    daemon.must(&["vm", "add", "--name", "app", "--cid", "7"]);
    let refuse = |name: &str, phrases: &[&str]| daemon.ask(&["vm", "remove", name]).fails(1, phrases);
    refuse("web", &["\"web\" was not added at run time", "etc/vmlane.toml:1", "vmlane reload"]);
    refuse("wbe", &["there is no VM \"wbe\"; known are web, app"]);
    daemon.configure(&[WEB, "forward = [{ port = 5, to = \"app:6\" }]\n"].concat());
    daemon.must(&["reload"]);
    refuse(
        "app",
        &["vm \"app\" is not removed", "etc/vmlane.toml:4: vm \"web\": forward 5", "there is no VM \"app\""],
    );
    daemon.configure(WEB);
    daemon.must(&["reload"]);
    let mut attached = vmm(&daemon, "app");
    attached.read_u32(1, CONTROL).unwrap();
    refuse("app", &["\"app\" is not removed: a VMM is attached", "--force"]);
    attached.read_u32(1, CONTROL).unwrap();
    daemon.must(&["vm", "remove", "app", "--force"]);
    assert!(attached.read_u32(1, CONTROL).is_err(), "its session is over");
    assert_eq!(served(&daemon), "web");
    // Name and CID are free again.
    daemon.must(&["vm", "add", "--name", "app", "--cid", "7"]);
    vmm(&daemon, "app").read_u32(1, CONTROL).unwrap();
}

#[test]
fn a_daemon_killed_while_vms_come_and_go_serves_those_that_were_promised() {
    let daemon = daemon(WEB);
    let mut promised: Vec<String> = vec!["web".into()];
    for round in 0..50u32 {
        let name = format!("v{round}");
        let cid = (100 + round).to_string();
        let mut add = daemon.command(&["vm", "add", "--name", &name, "--cid", &cid]);
        let mut add = add.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Before, during and after the request.
        std::thread::sleep(std::time::Duration::from_micros(u64::from(round % 10) * 700));
        daemon.kill();
        let answered = add.wait().unwrap().success();
        daemon.start();
        let served = served(&daemon);
        let is_served = served.split(' ').any(|vm| vm == name);
        assert!(is_served || !answered, "round {round}: {name} was promised");
        if is_served {
            promised.push(name);
        }
        let served: std::collections::BTreeSet<&str> = served.split(' ').collect();
        assert_eq!(served, promised.iter().map(String::as_str).collect(), "round {round}");
        if promised.len() > 4 {
            let gone = promised.pop().unwrap();
            daemon.must(&["vm", "remove", &gone]);
        }
    }
}

#[test]
fn vms_are_kept_in_the_configured_directory_and_by_one_daemon() {
    let daemon = place(WEB);
    let state = daemon.path("state");
    let elsewhere = ["--state-dir", state.to_str().unwrap()];
    daemon.start_with(&elsewhere);
    daemon.must(&["vm", "add", "--name", "app", "--cid", "7"]);
    assert!(state.join("vms.d/app.toml").exists());
    let second = place(WEB).with(&elsewhere);
    run(second.daemon_command()).fails(1, &["vms.d: another daemon uses it", "--state-dir"]);
    let config = daemon.config();
    let check = vmlane(&[&["check", config.to_str().unwrap()], &elsewhere[..]].concat());
    contains_all(&check.out, &["good: 2 VMs"]);
    daemon.kill();
    // Something else is in its place: what is configured is served, and nothing can be added.
    daemon.write("run/vms.d", "no directory");
    daemon.start();
    assert_eq!(served(&daemon), "web");
    let refused = daemon.ask(&["vm", "add", "--name", "app", "--cid", "7"]);
    refused.fails(1, &["no VM can be added", "run/vms.d: ", "--state-dir"]);
}

#[test]
fn all_about_one_vm_is_on_one_screen() {
    let config = "\
[[vm]]
name = \"web\"
cid = 3
group = \"tenant-1\"
forward = [{ port = 5000, to = \"db:6000\" }]
nic = [{ model = \"vmxnet3\", port_group = \"prod\", mac = \"52:54:00:00:00:03\" }]
[[vm]]
name = \"db\"
cid = 4
group = \"tenant-1\"
[[port_group]]
name = \"prod\"
vlan = 10
";
    let daemon = daemon(config);
    let mut attached = vmm(&daemon, "web");
    attached.read_u32(1, CONTROL).unwrap();
    let socket = daemon.socket("web", "vmci.sock").display().to_string();
    let screen = daemon.must(&["vm", "show", "web"]);
    let process = format!("yes, process {}", std::process::id());
    contains_all(
        &screen,
        &["web: CID 3, group tenant-1", "etc/vmlane.toml:1", &process, &socket, "nic0.sock"],
    );
    let nic = "nic0  vmxnet3 full  52:54:00:00:00:03  prod       10  up    absent";
    contains_all(&screen, &["CID 2, port 5000 to db:6000", "vmlane attach web --for qemu", nic]);
    let shown = daemon.json(&["vm", "show", "web"]);
    assert_eq!((&shown["version"], &shown["status"]["attached"]), (&1.into(), &true.into()));
    assert_eq!(
        (&shown["listed"]["forwards"][0]["to"], &shown["ports"][0]["vlan"]),
        (&"db:6000".into(), &"10".into())
    );
    daemon.must(&["link", "set", "web/nic0", "down"]);
    assert!(daemon.must(&["vm", "show", "web"]).contains("down"));
    assert_eq!(daemon.json(&["link", "list"])["links"][0]["link"], "down");
    let refused = ["there is no VM \"wbe\"; did you mean web?", "`vmlane vm list`"];
    daemon.ask(&["vm", "show", "wbe", "--json"]).fails(1, &refused);
    assert_eq!(daemon.json(&["route", "list"])["peers"], Value::Array(vec![]));
    for words in
        [["wire", "list"], ["mirror", "list"], ["ovn", "list"], ["ovn", "status"], ["route", "status"]]
    {
        assert_eq!(daemon.json(&words)["version"], 1, "{words:?}");
    }
    for noun in ["wire", "mirror"] {
        daemon.ask(&[noun, "show", "x"]).fails(1, &["there is no", &format!("`vmlane {noun} list`")]);
    }
}

#[test]
fn a_configuration_is_judged_without_an_effect() {
    let daemon = place(WEB);
    daemon.write("etc/conf.d/10.toml", "[[vm]]\nname = \"db\"\ncid = 4\nowner = 54321\nlimits = { memory = \"1G\" }\n[[uplink]]\nname = \"lan\"\ninterface = \"vmlane-none\"\n");
    daemon.write("run/vms.d/app.toml", "[[vm]]\nname = \"app\"\ncid = 7\n");
    let file = daemon.config();
    let file = file.to_str().unwrap();
    let judge = |more: &[&str]| daemon.ask(&[&["check", file], more].concat());
    let json = |ran: &Ran| serde_json::from_str::<Value>(&ran.out).unwrap();
    let good = judge(&[]);
    assert_eq!((good.code, good.out.as_str()), (0, "good: 3 VMs, 1 uplink, in 3 files\n"), "{good:?}");
    let phrases = [
        "warning: ",
        "conf.d/10.toml:1: vm \"db\": owner: user 54321 is not in /etc/passwd",
        "uplink \"lan\": interface = \"vmlane-none\": there is none of this name now",
    ];
    contains_all(&good.err, &phrases);
    let report = json(&judge(&["--json"]));
    assert_eq!((&report["version"], &report["ok"], &report["vms"]), (&1.into(), &true.into(), &3.into()));
    assert_eq!(
        (report["files"].as_array().unwrap().len(), report["warnings"].as_array().unwrap().len()),
        (3, 2)
    );

    daemon.write("run/vms.d/app.toml", "[[vm]]\nname = \"app\"\ncid = 3\n");
    daemon.write("etc/conf.d/20.toml", "[daemon]\nworkers = 0\n");
    let bad = judge(&[]);
    assert_eq!((bad.code, bad.out.as_str()), (78, ""));
    let taken = "vms.d/app.toml:3: vm \"app\": cid = 3 is taken by VM \"web\"";
    contains_all(&bad.err, &["conf.d/20.toml:2: daemon: workers = 0", taken]);
    let report = judge(&["--json"]);
    assert_eq!((report.code, report.err.as_str()), (78, ""));
    let problem = &json(&report)["problems"][1];
    contains_all(problem["file"].as_str().unwrap(), &["vms.d/app.toml"]);
    assert_eq!((&problem["line"], &json(&report)["ok"]), (&3.into(), &false.into()));
    daemon.write("etc/conf.d/20.toml", "");
    fs::remove_file(daemon.run("vms.d/app.toml")).unwrap();
    let check_in = |runtime_length: usize| {
        let base = daemon.path("");
        let long = base.join("r".repeat(runtime_length - base.as_os_str().len()));
        vmlane(&["check", file, "--runtime-dir", long.to_str().unwrap()])
    };
    check_in(92).fails(78, &["etc/vmlane.toml:1: vm \"web\": ", "--runtime-dir or a shorter name"]);
    check_in(100).fails(78, &["control.sock", "107 bytes", "use a shorter --runtime-dir"]);
    let missing = daemon.ask(&["check", daemon.path("gone.toml").to_str().unwrap(), "--json"]);
    let problem = &json(&missing)["problems"][0];
    assert_eq!((missing.code, &problem["line"]), (78, &Value::Null));
    contains_all(problem["text"].as_str().unwrap(), &["No such file"]);
    assert!(!daemon.run("control.sock").exists());
}

#[test]
fn a_vm_that_is_added_talks_to_one_of_the_configuration_also_after_a_kill() {
    let daemon = daemon(
        "[[vm]]\nname = \"web\"\nvsock = \"none\"\nnic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:01\" }]\n",
    );
    let keys = "model = \"virtio-net\", packed = true, mac = \"52:54:00:00:00:02\"";
    daemon.must(&["vm", "add", "--name", "app", "--vsock", "none", "--nic", keys]);
    let (mut web, mut app) = (Nic::new(false), Nic::new(true));
    let mut number = 0;
    for _ in 0..2 {
        app.attach(&daemon.socket("app", "nic0.sock"));
        web.attach(&daemon.socket("web", "nic0.sock"));
        let mut came = 0;
        wait_until("frames of the VM of the configuration", || {
            while web.send(number) {
                number += 1;
            }
            web.settle();
            came += app.receive().len();
            came > 500
        });
        assert!(web.sent.len() < 500);
        daemon.kill();
        daemon.start();
    }
    // Its card does not keep it from being removed once no VMM is there.
    drop((web, app));
    wait_until("the VM to be removed", || daemon.ask(&["vm", "remove", "app"]).succeeded());
}
