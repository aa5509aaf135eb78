//! Users of the host who are not the daemon's: who is let in where. Needs root, to be several users.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};

use serde_json::Value;
use vmlane_guestsim::vfio_user::Client as Vmm;
use vmlane_testkit::{Daemon, Visitor, skipped, visit};

use crate::common::{self, CONTROL, vmm};

/// Numbers of users and groups that no account has.
const ALICE: u32 = 20_001;
const GROUP: u32 = 20_002;
const BOB: u32 = 20_003;
const CAROL: u32 = 20_004;

const CONFIG: &str = "[[vm]]\nname = \"web\"\ncid = 3\nowner = \"20001\"\nnic = [{ model = \"vmxnet3\" }]\n\
    [[vm]]\nname = \"db\"\ncid = 4\nowner = \":20002\"\nvsock = \"virtio\"\n[[vm]]\nname = \"own\"\ncid = 5\n";
const PLAIN: &str = "[[vm]]\nname = \"web\"\ncid = 3\n";

fn visitor_as(uid: u32, groups: &[u32]) -> Visitor {
    Visitor::new("owners::visitor", uid, groups)
}

#[test]
#[ignore = "run by the others, as another user"]
fn visitor() {
    let mut held: Option<Vmm> = None;
    let kind = |error: std::io::Error| format!("{:?}", error.kind());
    visit(|order, path| match order {
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
                write!(stream, "{{\"method\":\"io.vmlane.Control.{request}\"}}\0")?;
                let mut answer = Vec::new();
                BufReader::new(stream).read_until(0, &mut answer)?;
                Ok(String::from_utf8_lossy(&answer).trim_end_matches('\0').to_owned())
            });
            asked.unwrap_or_else(kind)
        }
    });
}

/// A daemon. None: this process cannot be several users.
fn daemon(config: &str) -> Option<Daemon> {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can be several users");
        return None;
    }
    Some(common::daemon(config))
}

#[test]
fn an_owner_is_served_at_its_own_vm_and_nowhere_else() {
    let Some(daemon) = daemon(CONFIG) else { return };
    let mut alice = visitor_as(ALICE, &[]);
    assert_eq!(alice.ask("attach", &daemon.run("vm/web/vmci.sock")), "served");
    assert_eq!(alice.ask("again", &daemon.run("")), "true");
    assert_eq!(alice.ask("attach", &daemon.run("vm/web/nic0.sock")), "served");
    assert_eq!(alice.ask("connect", &daemon.run("vm/web/vsock.uds")), "connected");
    let others = [
        "vm/db/vsock.sock",
        "vm/db/vsock.uds",
        "vm/own/vmci.sock",
        "control.sock",
        "host.sock",
        "keeper.sock",
    ];
    for other in others {
        assert_eq!(alice.ask("connect", &daemon.run(other)), "PermissionDenied", "{other}");
    }
    // It cannot put anything in the place of the daemon's, nor list what is there.
    for (order, path) in [
        ("bind", "vm/web/nic1.sock"),
        ("bind", "vm/web/vsock.uds_5000"),
        ("bind", "x.sock"),
        ("remove", "vm/web/vmci.sock"),
        ("list", "vm/web"),
        ("list", "vm"),
        ("list", ""),
    ] {
        assert_eq!(alice.ask(order, &daemon.run(path)), "PermissionDenied", "{order} {path}");
    }
    // A group, be it the first one of a process or another.
    let mut bob = visitor_as(BOB, &[7, GROUP]);
    assert_eq!(bob.ask("connect", &daemon.run("vm/db/vsock.sock")), "connected");
    assert_eq!(bob.ask("connect", &daemon.run("vm/web/vmci.sock")), "PermissionDenied");
    let mut member = visitor_as(GROUP, &[]);
    assert_eq!(member.ask("connect", &daemon.run("vm/db/vsock.uds")), "connected");
    // Root may everything.
    vmm(&daemon, "own");
}

#[test]
fn a_process_that_gets_past_the_list_is_closed_and_counted_and_nothing_else_happens() {
    let Some(daemon) = daemon(PLAIN) else { return };
    let socket = daemon.run("vm/web/vmci.sock");
    for (path, mode) in [("", 0o711), ("vm", 0o711), ("vm/web", 0o711), ("vm/web/vmci.sock", 0o666)] {
        fs::set_permissions(daemon.run(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut attached = vmm(&daemon, "web");
    let mut bob = visitor_as(BOB, &[GROUP]);
    for _ in 0..3 {
        assert_eq!(bob.ask("attach", &socket), "closed");
    }
    attached.read_u32(1, CONTROL).unwrap();
    let session = &daemon.stats("web")["session"];
    assert_eq!((&session["refused_peers"], &session["sessions"]), (&3.into(), &1.into()));
    assert_eq!(session["refused"], 0, "it did not wait for a daemon");
}

#[test]
fn reload_changes_the_owner_of_the_next_connections_and_sessions_stay() {
    let Some(daemon) = daemon(CONFIG) else { return };
    let nic = daemon.run("vm/web/nic0.sock");
    let (mut alice, mut carol) = (visitor_as(ALICE, &[]), visitor_as(CAROL, &[]));
    assert_eq!(alice.ask("attach", &daemon.run("vm/web/vmci.sock")), "served");
    assert_eq!(carol.ask("connect", &nic), "PermissionDenied");
    daemon.configure(&CONFIG.replace("20001", "20004"));
    let reloaded = daemon.json(&["reload"]);
    assert_eq!(reloaded["refused"], Value::Array(vec![]), "{reloaded}");
    assert_eq!(carol.ask("attach", &nic), "served");
    assert_eq!(alice.ask("connect", &nic), "PermissionDenied");
    assert_eq!(alice.ask("again", &nic), "true", "its session stays");
}

#[test]
fn the_control_socket_grants_what_the_configuration_allows() {
    let rules = "[[control]]\nuid = 20003\nmay = \"observe\"\n[[control]]\nuid = 20001\nmay = \"own\"\n\
        [[control]]\ngid = 20004\nmay = \"admin\"\n";
    let Some(daemon) = daemon(&[CONFIG, rules].concat()) else { return };
    let control = daemon.run("control.sock");
    let seen = |answer: &str| -> Vec<String> {
        let answer: Value = serde_json::from_str(answer).unwrap();
        let vms = answer["parameters"]["vms"].as_array().unwrap_or_else(|| panic!("{answer}"));
        vms.iter().map(|vm| vm["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut bob = visitor_as(BOB, &[]);
    assert_eq!(seen(&bob.ask("Status", &control)), ["web", "db", "own"]);
    for (method, name) in [("Reload", "reload"), ("Shutdown", "shutdown")] {
        let refused = bob.ask(method, &control);
        assert!(refused.contains("Forbidden") && refused.contains(&format!("{name} needs")), "{refused}");
    }
    let mut alice = visitor_as(ALICE, &[]);
    assert_eq!(seen(&alice.ask("Status", &control)), ["web"]);
    assert_eq!(seen(&alice.ask("Stats", &control)), ["web"]);
    assert!(alice.ask("Reload", &control).contains("Forbidden"));
    let mut carol = visitor_as(7, &[CAROL]);
    assert!(carol.ask("Reload", &control).contains("\"parameters\":{\"applied\""));
    let mut stranger = visitor_as(20_099, &[]);
    assert_eq!(stranger.ask("Ping", &control), "PermissionDenied");
    // What is taken from the configuration is taken from the sockets.
    daemon.configure(CONFIG);
    daemon.must(&["reload"]);
    assert_eq!(bob.ask("Ping", &control), "PermissionDenied");
}

#[test]
fn without_a_user_vmlane_the_daemon_has_one_of_its_own_and_keeps_it() {
    if fs::read_to_string("/etc/passwd").unwrap().lines().any(|line| line.starts_with("vmlane:")) {
        return skipped("this host has a user vmlane");
    }
    let Some(daemon) = daemon(PLAIN) else { return };
    let uid = fs::metadata(daemon.runtime()).unwrap().uid();
    assert!((65_000..65_520).contains(&uid), "{uid}");
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    assert!(status.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")), "{status}");
    // Its keeper goes on as that user.
    daemon.kill();
    daemon.start();
    assert_eq!(fs::metadata(daemon.runtime()).unwrap().uid(), uid);
    vmm(&daemon, "web");
    // Beside it, another one takes another number.
    let other = common::daemon(PLAIN);
    assert_ne!(fs::metadata(other.runtime()).unwrap().uid(), uid);
}
