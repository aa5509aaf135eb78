//! Users of the host who are not the daemon's: who is let in where. Needs root, to be several users.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::eventually;
use rustix::process::{Gid, Pid, Signal, Uid, kill_process};
use serde_json::Value;
use vmlane_guestsim::vfio_user::Client as Vmm;

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
/// Numbers of users and groups that no account has.
const ALICE: u32 = 20_001;
const GROUP: u32 = 20_002;
const BOB: u32 = 20_003;
const CAROL: u32 = 20_004;
const CONTROL: u64 = 0x20004;

const CONFIG: &str = "[[vm]]\nname = \"web\"\ncid = 3\nowner = \"20001\"\nnic = [{ model = \"vmxnet3\" }]\n\
    [[vm]]\nname = \"db\"\ncid = 4\nowner = \":20002\"\nvsock = \"virtio\"\n[[vm]]\nname = \"own\"\ncid = 5\n";

/// Another user, as another process: this test program again. It does what it is told, a line each, and answers with a line.
struct Visitor {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Visitor {
    fn new(uid: u32, groups: &[u32]) -> Visitor {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "visitor", "--ignored", "--nocapture", "--quiet"]);
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        command.env("VISITOR", uid.to_string()).env("GROUPS_OF", groups.join(","));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Visitor { child, orders, answers }
    }

    fn ask(&mut self, order: &str, path: &Path) -> String {
        writeln!(self.orders, "{order} {}", path.display()).unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the visitor has ended");
            // The test program says other things, too.
            if let Some(answer) = line.trim_end().split_once("ANSWER ").map(|(_, answer)| answer) {
                return answer.to_owned();
            }
        }
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
    let number = |text: &str| text.parse::<u32>().unwrap();
    let uid = number(&std::env::var("VISITOR").unwrap());
    let groups = std::env::var("GROUPS_OF").unwrap();
    let groups: Vec<Gid> =
        groups.split(',').filter(|text| !text.is_empty()).map(|text| Gid::from_raw(number(text))).collect();
    rustix::thread::set_thread_groups(&groups).unwrap();
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    rustix::thread::set_thread_res_gid(group, group, group).unwrap();
    rustix::thread::set_thread_res_uid(user, user, user).unwrap();
    let mut held: Option<Vmm> = None;
    let kind = |error: std::io::Error| format!("{:?}", error.kind());
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let (order, path) = order.split_once(' ').unwrap();
        let answer = match order {
            // A VMM: is it served?
            "attach" => match UnixStream::connect(path) {
                Ok(stream) => {
                    let mut vmm = Vmm::new(stream);
                    let served = vmm.version().is_ok();
                    held = Some(vmm).filter(|_| served);
                    if served { "served".to_owned() } else { "closed".to_owned() }
                }
                Err(error) => kind(error),
            },
            "again" => {
                held.as_mut().map_or("nothing".into(), |vmm| format!("{}", vmm.read_u32(1, CONTROL).is_ok()))
            }
            "connect" => UnixStream::connect(path).map_or_else(kind, |_| "connected".into()),
            "bind" => UnixListener::bind(path).map_or_else(kind, |_| "bound".into()),
            "remove" => fs::remove_file(path).map_or_else(kind, |()| "removed".into()),
            "list" => fs::read_dir(path).map_or_else(kind, |_| "listed".into()),
            request => {
                let asked = UnixStream::connect(path).and_then(|mut stream| {
                    writeln!(stream, "{{\"version\":1,\"method\":\"{request}\"}}")?;
                    let mut line = String::new();
                    BufReader::new(stream).read_line(&mut line)?;
                    Ok(line.trim_end().to_owned())
                });
                asked.unwrap_or_else(kind)
            }
        };
        println!("ANSWER {answer}");
    }
}

struct Place(tempfile::TempDir);

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails only if it is gone. It ends its keeper.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Without a word to its keeper.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        // Its number may be another process's by now.
        std::mem::forget(self);
    }
}

impl Place {
    /// None: this process cannot be several users.
    fn new(config: &str) -> Option<Place> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can be several users");
            return None;
        }
        let place = Place(tempfile::tempdir().unwrap());
        // Any user gets through to what the daemon lets it use.
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o711)).unwrap();
        place.configure(config);
        Some(place)
    }

    fn configure(&self, config: &str) {
        fs::write(self.0.path().join("vmlane.toml"), config).unwrap();
    }

    fn run(&self, name: &str) -> PathBuf {
        self.0.path().join("run").join(name)
    }

    fn start(&self) -> Daemon {
        let log = fs::File::options().create(true).append(true).open(self.0.path().join("log")).unwrap();
        let mut command = Command::new(VMLANE);
        command.args(["daemon", "--config"]).arg(self.0.path().join("vmlane.toml"));
        command.arg("--runtime-dir").arg(self.run("")).env_remove("VMLANE_LOG").env_remove("NOTIFY_SOCKET");
        let daemon = Daemon(command.stdin(Stdio::null()).stderr(log).spawn().unwrap());
        eventually("the daemon answers", || self.json("status"));
        daemon
    }

    fn json(&self, what: &str) -> Option<Value> {
        let mut command = Command::new(VMLANE);
        command.args([what, "--json", "--runtime-dir"]).arg(self.run(""));
        let output = command.output().unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    fn session(&self, vm: &str, counter: &str) -> u64 {
        let stats = self.json("stats").unwrap();
        let vms = stats["vms"].as_array().unwrap();
        let vm = vms.iter().find(|one| one["name"] == vm).unwrap();
        vm["session"][counter].as_u64().unwrap()
    }
}

#[test]
fn an_owner_is_served_at_its_own_vm_and_nowhere_else() {
    let Some(place) = Place::new(CONFIG) else { return };
    let _daemon = place.start();
    let mut alice = Visitor::new(ALICE, &[]);
    assert_eq!(alice.ask("attach", &place.run("vm/web/vmci.sock")), "served");
    assert_eq!(alice.ask("again", &place.run("")), "true");
    assert_eq!(alice.ask("attach", &place.run("vm/web/nic0.sock")), "served");
    assert_eq!(alice.ask("connect", &place.run("vm/web/vsock.uds")), "connected");
    let others = [
        "vm/db/vsock.sock",
        "vm/db/vsock.uds",
        "vm/own/vmci.sock",
        "control.sock",
        "host.sock",
        "keeper.sock",
    ];
    for other in others {
        assert_eq!(alice.ask("connect", &place.run(other)), "PermissionDenied", "{other}");
    }
    // It cannot put anything in the place of the daemon's, nor look around.
    for (order, path) in [
        ("bind", "vm/web/nic1.sock"),
        ("bind", "vm/web/vsock.uds_5000"),
        ("bind", "x.sock"),
        ("remove", "vm/web/vmci.sock"),
        ("list", "vm/web"),
        ("list", "vm"),
        ("list", ""),
    ] {
        assert_eq!(alice.ask(order, &place.run(path)), "PermissionDenied", "{order} {path}");
    }
    // A group, be it the first one of a process or another.
    let mut bob = Visitor::new(BOB, &[7, GROUP]);
    assert_eq!(bob.ask("connect", &place.run("vm/db/vsock.sock")), "connected");
    assert_eq!(bob.ask("connect", &place.run("vm/web/vmci.sock")), "PermissionDenied");
    let mut member = Visitor::new(GROUP, &[]);
    assert_eq!(member.ask("connect", &place.run("vm/db/vsock.uds")), "connected");
    // Root may everything.
    Vmm::connect(place.run("vm/own/vmci.sock")).unwrap();
}

#[test]
fn a_process_that_gets_past_the_list_is_closed_and_counted_and_nothing_else_happens() {
    let Some(place) = Place::new("[[vm]]\nname = \"web\"\ncid = 3\n") else { return };
    let _daemon = place.start();
    let socket = place.run("vm/web/vmci.sock");
    for (path, mode) in [("", 0o711), ("vm", 0o711), ("vm/web", 0o711), ("vm/web/vmci.sock", 0o666)] {
        fs::set_permissions(place.run(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut vmm = Vmm::connect(&socket).unwrap();
    let mut bob = Visitor::new(BOB, &[GROUP]);
    for _ in 0..3 {
        assert_eq!(bob.ask("attach", &socket), "closed");
    }
    vmm.read_u32(1, CONTROL).unwrap();
    assert_eq!((place.session("web", "refused_peers"), place.session("web", "sessions")), (3, 1));
    assert_eq!(place.session("web", "refused"), 0, "it did not wait for a place");
}

#[test]
fn reload_changes_the_owner_of_the_next_connections_and_sessions_stay() {
    let Some(place) = Place::new(CONFIG) else { return };
    let _daemon = place.start();
    let nic = place.run("vm/web/nic0.sock");
    let (mut alice, mut carol) = (Visitor::new(ALICE, &[]), Visitor::new(CAROL, &[]));
    assert_eq!(alice.ask("attach", &place.run("vm/web/vmci.sock")), "served");
    assert_eq!(carol.ask("connect", &nic), "PermissionDenied");
    place.configure(&CONFIG.replace("20001", "20004"));
    let reloaded = place.json("reload").expect("reloaded");
    assert_eq!(reloaded["refused"], Value::Array(vec![]), "{reloaded}");
    assert_eq!(carol.ask("attach", &nic), "served");
    assert_eq!(alice.ask("connect", &nic), "PermissionDenied");
    assert_eq!(alice.ask("again", &nic), "true", "its session stays");
}

#[test]
fn the_control_socket_grants_what_the_configuration_says() {
    let rules = "[[control]]\nuid = 20003\nmay = \"observe\"\n[[control]]\nuid = 20001\nmay = \"own\"\n\
        [[control]]\ngid = 20004\nmay = \"admin\"\n";
    let Some(place) = Place::new(&[CONFIG, rules].concat()) else { return };
    let _daemon = place.start();
    let control = place.run("control.sock");
    let seen = |answer: &str| -> Vec<String> {
        let answer: Value = serde_json::from_str(answer).unwrap();
        let vms = answer["ok"]["vms"].as_array().unwrap_or_else(|| panic!("{answer}"));
        vms.iter().map(|vm| vm["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut bob = Visitor::new(BOB, &[]);
    assert_eq!(seen(&bob.ask("status", &control)), ["web", "db", "own"]);
    for method in ["reload", "shutdown"] {
        let refused = bob.ask(method, &control);
        assert!(refused.contains("forbidden") && refused.contains(&format!("{method} needs")), "{refused}");
    }
    let mut alice = Visitor::new(ALICE, &[]);
    assert_eq!(seen(&alice.ask("status", &control)), ["web"]);
    assert_eq!(seen(&alice.ask("stats", &control)), ["web"]);
    assert!(alice.ask("reload", &control).contains("forbidden"));
    let mut carol = Visitor::new(7, &[CAROL]);
    assert!(carol.ask("reload", &control).contains("\"ok\""));
    let mut stranger = Visitor::new(20_099, &[]);
    assert_eq!(stranger.ask("ping", &control), "PermissionDenied");
    // What is taken from the configuration is taken from the sockets.
    place.configure(CONFIG);
    place.json("reload").expect("reloaded");
    assert_eq!(bob.ask("ping", &control), "PermissionDenied");
}

#[test]
fn without_a_user_vmlane_the_daemon_has_one_of_its_own_and_keeps_it() {
    let Some(place) = Place::new("[[vm]]\nname = \"web\"\ncid = 3\n") else { return };
    if fs::read_to_string("/etc/passwd").unwrap().lines().any(|line| line.starts_with("vmlane:")) {
        println!("skipped: this host has a user vmlane");
        return;
    }
    let daemon = place.start();
    let uid = fs::metadata(place.run("")).unwrap().uid();
    assert!((65_000..65_520).contains(&uid), "{uid}");
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.0.id())).unwrap();
    assert!(status.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")), "{status}");
    // Its keeper goes on as that user.
    daemon.kill();
    let _next = place.start();
    assert_eq!(fs::metadata(place.run("")).unwrap().uid(), uid);
    Vmm::connect(place.run("vm/web/vmci.sock")).unwrap();
    // Beside it, another one takes another number.
    let other = Place::new("[[vm]]\nname = \"web\"\ncid = 3\n").unwrap();
    let _other = other.start();
    assert_ne!(fs::metadata(other.run("")).unwrap().uid(), uid);
}
