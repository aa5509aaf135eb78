//! A confined daemon and VMs whose VMMs have hybrid Unix sockets: every kind of peer, every view, reload, `vm add`, a daemon that is
//! killed, VMMs of other users. The VMMs are simulated.

mod common;
#[path = "../../host/tests/hybrid_vmm/mod.rs"]
mod hybrid_vmm;
#[path = "common/vsock.rs"]
mod vsock;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use common::eventually;
use hybrid_vmm::{Vmm, is_closed};
use serde_json::Value;
use vmlane_wire::virtio_vsock::op;
use vsock::Guest;

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
const CONFIG: &str = r#"
[[vm]]
name = "fn1"
cid = 5
vsock = "hybrid"
forward = [
  { port = 5000, to = "db:80" },
  { port = 5001, to = "host" },
  { port = 5002, to = "fn2:22" },
]
[[vm]]
name = "fn2"
cid = 6
vsock = "hybrid"
[[vm]]
name = "db"
cid = 4
vsock = "virtio"
"#;
/// Users that no account has.
const ALICE: u32 = 20_001;
const BOB: u32 = 20_003;

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Place(tempfile::TempDir);

impl Place {
    fn new(config: &str) -> Place {
        // As VMMs are to be started.
        rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o007));
        let place = Place(tempfile::tempdir().unwrap());
        // Any user that the daemon becomes gets through.
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o711)).unwrap();
        place.configure(config);
        place
    }

    fn configure(&self, config: &str) {
        let path = self.0.path().join("vmlane.toml");
        fs::write(&path, config).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    fn run(&self) -> PathBuf {
        self.0.path().join("run")
    }

    fn start(&self) -> Daemon {
        let log = fs::File::options().create(true).append(true).open(self.0.path().join("log")).unwrap();
        let mut command = Command::new(VMLANE);
        command.args(["daemon", "--config"]).arg(self.0.path().join("vmlane.toml"));
        command.arg("--runtime-dir").arg(self.run()).arg("--state-dir").arg(self.0.path().join("state"));
        command.env_remove("VMLANE_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(log);
        let daemon = Daemon(command.spawn().unwrap());
        eventually("the daemon answers", || {
            let pong = self.ask(&["status", "--json"]);
            let status: Value = serde_json::from_slice(&pong.stdout).ok()?;
            (status["pid"] == daemon.0.id()).then_some(())
        });
        daemon
    }

    fn ask(&self, words: &[&str]) -> Output {
        Command::new(VMLANE).args(words).arg("--runtime-dir").arg(self.run()).output().unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_slice(&self.ask(&[words, &["--json"]].concat()).stdout).unwrap()
    }

    /// The answer to a command, which must succeed.
    fn text(&self, words: &[&str]) -> String {
        let output = self.ask(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn vm(&self, name: &str) -> Value {
        let status = self.json(&["status"]);
        status["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == name).cloned().unwrap_or_default()
    }

    fn counter(&self, vm: &str, name: &str) -> u64 {
        let stats = self.json(&["stats"]);
        let vm = stats["vms"].as_array().unwrap().iter().find(|one| one["name"] == vm).unwrap();
        vm["vsock"][name].as_u64().unwrap()
    }

    fn socket(&self, vm: &str) -> PathBuf {
        self.run().join("vm").join(vm).join("hybrid/v.sock")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.path().join("log")).unwrap()
    }

    /// `vmlane connect` to a VM.
    fn connect(&self, cid: u32, port: u32) -> Child {
        let mut command = Command::new(VMLANE);
        command.args(["connect", &cid.to_string(), &port.to_string(), "--runtime-dir"]).arg(self.run());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    }
}

/// What one end writes arrives at the other, both ways.
fn talk(a: &UnixStream, b: &UnixStream) {
    let mut bytes = [0; 4];
    for (mut from, mut to) in [(a, b), (b, a)] {
        from.write_all(b"ping").unwrap();
        to.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"ping");
    }
}

/// A program connects to port 22 of a VM by `vmlane connect`, sends something and gets it back.
fn reaches(place: &Place, cid: u32, vmm: &Vmm) {
    let mut program = place.connect(cid, 22);
    let mut far = vmm.accept(22);
    program.stdin.take().unwrap().write_all(b"hello").unwrap();
    let mut got = [0; 5];
    far.read_exact(&mut got).unwrap();
    far.write_all(&got).unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    let mut back = String::new();
    program.stdout.take().unwrap().read_to_string(&mut back).unwrap();
    assert_eq!(back, "hello");
    assert!(program.wait().unwrap().success());
}

#[test]
fn every_kind_of_peer_and_every_view() {
    let place = Place::new(CONFIG);
    let daemon = place.start();
    let status = place.text(&["status"]);
    assert!(status.contains("no capabilities, seccomp"), "{status}");
    let idle = place.vm("fn1");
    assert_eq!(
        (&idle["vsock"], &idle["attached"], &idle["cid"]),
        (&"hybrid".into(), &false.into(), &5.into())
    );
    let (first, second) = (Vmm::start(&place.socket("fn1")), Vmm::start(&place.socket("fn2")));
    assert_eq!(place.vm("fn1")["attached"], true);
    assert_eq!(place.vm("fn1")["sockets"][0], place.socket("fn1").to_str().unwrap());
    reaches(&place, 5, &first);

    // A virtio-vsock guest connects to it.
    let mut db = Guest::attach(&place.run().join("vm/db/vsock.sock"), 4);
    db.send(1000, (5, 22), op::REQUEST, &[]);
    let mut far = first.accept(22);
    db.expect(op::RESPONSE);
    db.send(1000, (5, 22), op::RW, &[7; 1000]);
    let mut got = [0; 1000];
    far.read_exact(&mut got).unwrap();
    assert_eq!(got, [7; 1000]);
    far.write_all(b"answer").unwrap();
    let (header, payload) = db.receive(op::RW);
    assert_eq!((header.src_cid.get(), &payload[..]), (5, &b"answer"[..]));
    let ports = place.json(&["ports"]);
    let connection = &ports["connections"][0];
    assert_eq!((&connection["client_vm"], &connection["server_vm"]), (&"db".into(), &"fn1".into()));
    assert_eq!((&connection["server_port"], &connection["state"]), (&22.into(), &"established".into()));
    assert_eq!(ports["connections"].as_array().unwrap().len(), 1);

    // It connects to that guest by a forward.
    let mut near = first.connect(5000).unwrap();
    let (request, _) = db.receive(op::REQUEST);
    assert_eq!((request.src_cid.get(), request.dst_port.get()), (5, 80));
    let from = (5, request.src_port.get());
    db.send(80, from, op::RESPONSE, &[]);
    near.write_all(b"question").unwrap();
    assert_eq!(db.receive(op::RW).1, b"question");
    db.send(80, from, op::RW, b"reply");
    let mut reply = [0; 5];
    near.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"reply");

    // To a program of the host, and to another VM of its kind.
    let mut listen = Command::new(VMLANE);
    listen.args(["listen", "5001", "--runtime-dir"]).arg(place.run());
    let mut listen = listen.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut heard = listen.stdout.take().unwrap();
    let mut told = [0; 7];
    eventually("the program listens", || {
        let mut near = first.connect(5001).unwrap();
        // While no program listens, the connection may be closed before this.
        let _ = near.write_all(b"to host");
        (!is_closed(&mut near)).then_some(()).or_else(|| {
            // `listen` ends with its first connection.
            listen.try_wait().unwrap().map(|_| ())
        })
    });
    heard.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"to host");
    let opened = first.connect(5002).unwrap();
    let accepted = second.accept(22);
    talk(&opened, &accepted);

    let status = place.vm("fn1");
    assert_eq!(status["connections"], 2, "those that it opened");
    let stats = place.json(&["stats"]);
    let bounds = stats["vms"][0]["bounds"].as_array().unwrap();
    let bound = bounds.iter().find(|bound| bound["name"] == "connections").unwrap();
    assert_eq!((&bound["used"], &bound["limit"]), (&3.into(), &4096.into()));
    assert!(place.counter("fn1", "bytes_sent") >= 5 + 6 + 8 + 7 + 4);
    assert_eq!(place.counter("fn1", "asked"), 2);
    let text = place.text(&["status"]) + &place.text(&["stats", "fn1"]) + &place.text(&["ports"]);
    for word in ["hybrid", "fn1.vsock.asked", "6:22"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let top = place.json(&["top", "--interval", "1", "--count", "1"]);
    assert_eq!((&top["vms"][0]["name"], &top["vms"][0]["ready"]), (&"fn1".into(), &true.into()));
    let metrics = place.text(&["metrics"]);
    assert!(metrics.contains("vmlane_vm_vmm_asked_total{vm=\"fn1\"} 2"), "{metrics}");
    assert!(metrics.contains("vmlane_vm_stream_sent_bytes_total{vm=\"fn1\"}"), "{metrics}");
    drop(daemon);
    assert!(is_closed(&mut near), "a daemon that dies ends its connections");
}

#[test]
fn vms_are_added_changed_and_removed_while_their_vmms_run() {
    let place = Place::new(CONFIG);
    let _daemon = place.start();
    let vmm = Vmm::start(&place.socket("fn1"));
    reaches(&place, 5, &vmm);
    let second = Vmm::start(&place.socket("fn2"));
    let opened = vmm.connect(5002).unwrap();
    let accepted = second.accept(22);
    // Another forward, and a connection that stays.
    place.configure(&CONFIG.replace("port = 5002", "port = 5003"));
    place.text(&["reload"]);
    assert!(vmm.connect(5002).is_err());
    talk(&opened, &accepted);
    talk(&vmm.connect(5003).unwrap(), &second.accept(22));
    // Another CID.
    place.configure(&CONFIG.replace("cid = 5", "cid = 7"));
    place.text(&["reload"]);
    assert!(is_closed(&mut { opened }));
    reaches(&place, 7, &vmm);
    // Gone: only the VMM's socket stays.
    place.configure(&CONFIG.replace("name = \"fn1\"", "name = \"fn3\""));
    place.text(&["reload"]);
    let left: Vec<_> = fs::read_dir(place.socket("fn1").parent().unwrap()).unwrap().flatten().collect();
    assert_eq!((left.len(), left[0].path()), (1, place.socket("fn1")));
    assert!(place.socket("fn3").parent().unwrap().join("v.sock_5000").exists());

    let description = place.0.path().join("app.toml");
    fs::write(
        &description,
        "[[vm]]\nname = \"app\"\ncid = 9\nvsock = \"hybrid\"\nforward = [{ port = 1, to = \"fn2:22\" }]\n",
    )
    .unwrap();
    place.text(&["vm", "add", description.to_str().unwrap()]);
    let app = Vmm::start(&place.socket("app"));
    reaches(&place, 9, &app);
    talk(&app.connect(1).unwrap(), &second.accept(22));
    assert!(place.text(&["vm", "list"]).contains("hybrid"));
    place.text(&["vm", "remove", "app"]);
    assert!(app.connect(1).is_err());
    // A mistake names the VM, the value and the way out.
    fs::write(&description, "[[vm]]\nname = \"app\"\ncid = 9\nuds_path = \"/srv/v\"\n").unwrap();
    let refused = place.ask(&["vm", "add", description.to_str().unwrap()]);
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && why.contains("\"app\": uds_path = \"/srv/v\": works with"), "{why}");
}

/// Each time, connections end, and the next daemon serves both directions again; VMMs go on.
#[test]
fn fifty_killed_daemons_leave_vms_that_the_next_one_serves() {
    let place = Place::new(CONFIG);
    let mut daemon = place.start();
    let vmms = ["fn1", "fn2"].map(|vm| Vmm::start(&place.socket(vm)));
    let description = place.0.path().join("app.toml");
    let mut app = None;
    for round in 0..50 {
        let [first, second] = &vmms;
        let opened = first.connect(5002).unwrap();
        let mut accepted = second.accept(22);
        talk(&opened, &accepted);
        match &app {
            None => {
                let text = "[[vm]]\nname = \"app\"\ncid = 9\nvsock = \"hybrid\"\nforward = [{ port = 1, to = \"fn2:22\" }]\n";
                fs::write(&description, text).unwrap();
                place.text(&["vm", "add", description.to_str().unwrap()]);
                let vmm = Vmm::start(&place.socket("app"));
                talk(&vmm.connect(1).unwrap(), &second.accept(22));
                app = Some(vmm);
            }
            Some(vmm) if round % 5 == 4 => {
                reaches(&place, 9, vmm);
                place.text(&["vm", "remove", "app"]);
                fs::remove_file(place.socket("app")).unwrap();
                app = None;
            }
            Some(vmm) => talk(&vmm.connect(1).unwrap(), &second.accept(22)),
        }
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        assert!(is_closed(&mut accepted) && is_closed(&mut { opened }), "round {round}");
        assert!(first.connect(5002).is_err(), "round {round}: no daemon, no connection");
        daemon = place.start();
        assert_eq!(place.vm("app").is_null(), app.is_none(), "round {round}");
    }
    reaches(&place, 5, &vmms[0]);
    assert!(!place.log().contains("panicked"), "{}", place.log());
}

/// A VMM of another user, as another process: this test program again. It does what it is told, a line each, and answers with a
/// line.
struct Visitor {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Visitor {
    fn new(uid: u32) -> Visitor {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "visitor", "--ignored", "--nocapture", "--quiet"]);
        command.env("VISITOR", uid.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Visitor { child, orders, answers }
    }

    fn order(&mut self, order: &str, path: &Path) {
        writeln!(self.orders, "{order} {}", path.display()).unwrap();
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the visitor has ended");
            if let Some(answer) = line.trim_end().split_once("ANSWER ").map(|(_, answer)| answer) {
                return answer.to_owned();
            }
        }
    }

    fn ask(&mut self, order: &str, path: &Path) -> String {
        self.order(order, path);
        self.answer()
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "run by the others, as another user"]
fn visitor() {
    let uid: u32 = std::env::var("VISITOR").unwrap().parse().unwrap();
    let (user, group) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(uid));
    rustix::thread::set_thread_groups(&[]).unwrap();
    rustix::thread::set_thread_res_gid(group, group, group).unwrap();
    rustix::thread::set_thread_res_uid(user, user, user).unwrap();
    let kind = |error: std::io::Error| format!("{:?}", error.kind());
    let mut vmm = None;
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let (order, path) = order.split_once(' ').unwrap();
        let path = Path::new(path);
        let answer = match order {
            // With the usual umask, and with the one that is asked for.
            "start-022" | "start-007" => {
                let mode = if order == "start-022" { 0o022 } else { 0o007 };
                rustix::process::umask(rustix::fs::Mode::from_bits_truncate(mode));
                let _ = fs::remove_file(path);
                vmm = Some(Vmm::start(path));
                "started".to_owned()
            }
            // Its guest answers on port 22, and closes.
            "serve" => {
                vmm.as_ref().unwrap().accept(22).write_all(b"served").unwrap();
                "served".to_owned()
            }
            // Its guest connects, and says something.
            "connect" => match UnixStream::connect(path) {
                Ok(mut stream) => {
                    let written = stream.write_all(b"hello").is_ok();
                    let _ = stream.shutdown(Shutdown::Write);
                    let mut all = Vec::new();
                    let ended = stream.read_to_end(&mut all).is_ok();
                    format!("{written} {ended} {}", String::from_utf8_lossy(&all))
                }
                Err(error) => kind(error),
            },
            "remove" => fs::remove_file(path).map_or_else(kind, |()| "removed".into()),
            "write" => fs::write(path, "mine").map_or_else(kind, |()| "written".into()),
            // A name that leads to the daemon's own control socket.
            "trap" => {
                let _ = fs::remove_file(path);
                let control = path.ancestors().nth(4).unwrap().join("control.sock");
                std::os::unix::fs::symlink(control, path).map_or_else(kind, |()| "set".into())
            }
            other => panic!("{other:?}"),
        };
        println!("ANSWER {answer}");
    }
}

#[test]
fn a_vmm_of_the_owner_is_let_in_and_others_are_not() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root, to be several users");
    }
    let place =
        Place::new(&CONFIG.replace("name = \"fn1\"", &format!("name = \"fn1\"\nowner = \"{ALICE}\"")));
    let _daemon = place.start();
    let socket = place.socket("fn1");
    let forward = socket.with_file_name("v.sock_5002");
    let directory = fs::metadata(socket.parent().unwrap()).unwrap();
    assert_eq!(directory.permissions().mode() & 0o1007, 0o1000, "the sticky bit, and nothing for others");
    assert_ne!(directory.uid(), 0, "the daemon's user's");
    let mut alice = Visitor::new(ALICE);
    let mut bob = Visitor::new(BOB);
    // The usual umask keeps the daemon out, which says what to do.
    assert_eq!(alice.ask("start-022", &socket), "started");
    assert!(!place.connect(5, 22).wait().unwrap().success());
    assert!(place.log().contains("start the VMM with umask 007"), "{}", place.log());
    assert_eq!(alice.ask("start-007", &socket), "started");
    alice.order("serve", &socket);
    let mut said = String::new();
    place.connect(5, 22).stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((said.as_str(), alice.answer().as_str()), ("served", "served"));
    // The other way round: alice's VMM, and not bob's.
    let second = Vmm::start(&place.socket("fn2"));
    alice.order("connect", &forward);
    let mut far = second.accept(22);
    let mut got = [0; 5];
    far.read_exact(&mut got).unwrap();
    far.write_all(b"back").unwrap();
    drop(far);
    assert_eq!(alice.answer(), "true true back");
    assert_eq!(bob.ask("connect", &forward), "PermissionDenied");
    // What is the daemon's stays; what is alice's, alice may remove.
    assert_eq!(alice.ask("remove", &forward), "PermissionDenied");
    assert_eq!(alice.ask("write", &socket.with_file_name("notes")), "written");
    assert_eq!(bob.ask("write", &socket.with_file_name("more")), "PermissionDenied");
    // Another user's process behind the name gets nothing, not even if the daemon could.
    let absent = place.counter("fn1", "absent");
    assert_eq!(alice.ask("trap", &socket), "set");
    assert!(!place.connect(5, 22).wait().unwrap().success());
    assert_eq!((place.counter("fn1", "not_owner"), place.counter("fn1", "absent")), (1, absent));
    // A new owner: the sockets of forwards let that one in, and no longer the first.
    place.configure(&CONFIG.replace("name = \"fn1\"", &format!("name = \"fn1\"\nowner = \"{BOB}\"")));
    place.text(&["reload"]);
    assert_eq!(alice.ask("connect", &forward), "PermissionDenied");
    bob.order("connect", &forward);
    second.accept(22).read_exact(&mut got).unwrap();
    assert_eq!(bob.answer(), "true true");
}

#[test]
fn vmms_get_the_words_that_attach_them() {
    let place = Place::new(CONFIG);
    let config = place.0.path().join("vmlane.toml");
    let words = |words: &[&str]| {
        let mut command = Command::new(VMLANE);
        command.args(words).arg("--config").arg(&config).args(["--runtime-dir", "/run/v"]).output().unwrap()
    };
    let firecracker: Value = serde_json::from_slice(&words(&["firecracker-config", "fn1"]).stdout).unwrap();
    let expected = serde_json::json!({ "guest_cid": 5, "uds_path": "/run/v/vm/fn1/hybrid/v.sock" });
    assert_eq!(firecracker["vsock"], expected);
    let report: Value =
        serde_json::from_slice(&words(&["firecracker-config", "fn1", "--json"]).stdout).unwrap();
    assert_eq!((&report["vm"], &report["vsock"]), (&"fn1".into(), &expected));
    assert_eq!((&report["version"], &report["socket"]), (&1.into(), &"/run/v/vm/fn1/hybrid/v.sock".into()));
    let cloud = String::from_utf8(words(&["cloud-hypervisor-args", "fn1"]).stdout).unwrap();
    assert!(cloud.contains("--vsock cid=5,socket=/run/v/vm/fn1/hybrid/v.sock"), "{cloud}");
    for command in ["qemu-args", "libvirt-xml", "proxmox-args"] {
        let refused = words(&[command, "fn1"]);
        let why = String::from_utf8(refused.stderr).unwrap();
        assert!(
            !refused.status.success() && why.contains("with QEMU use vsock = \"virtio\""),
            "{command}: {why}"
        );
    }
    let refused = words(&["firecracker-config", "db"]);
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && why.contains("use vsock = \"hybrid\""), "{why}");
}

/// The VMM's socket is where its manager wants it, in a directory of its own.
#[test]
fn a_socket_elsewhere_is_reached_by_a_confined_daemon() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let socket = folder.path().join("v.sock");
    let path = format!("name = \"fn1\"\nuds_path = \"{}\"", socket.display());
    let place = Place::new(&CONFIG.replace("name = \"fn1\"", &path));
    let _daemon = place.start();
    let vmm = Vmm::start(&socket);
    // In a directory without a default list, the mode is what lets the daemon's user in.
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    let second = Vmm::start(&place.socket("fn2"));
    reaches(&place, 5, &vmm);
    talk(&vmm.connect(5002).unwrap(), &second.accept(22));
    assert!(!place.socket("fn1").parent().unwrap().exists());
    // A directory that the daemon has not known at its start.
    let other = tempfile::tempdir().unwrap();
    fs::set_permissions(other.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = format!("name = \"fn1\"\nuds_path = \"{}\"", other.path().join("v.sock").display());
    place.configure(&CONFIG.replace("name = \"fn1\"", &path));
    place.text(&["reload"]);
    assert!(place.log().contains("may not make it there"), "{}", place.log());
}
