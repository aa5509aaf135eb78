//! A confined daemon and VMs whose VMMs have hybrid Unix sockets: every kind of peer, every view, reload, `vm
//! add`, a daemon that is killed, VMMs of other users. The VMMs are simulated.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use vmlane_testkit::hybrid_vmm::{Vmm, is_closed};
use vmlane_testkit::{Daemon, Process, Ran, Visitor, skipped, visit, wait_until};
use vmlane_wire::virtio_vsock::op;

use crate::common::vsock::Guest;
use crate::common::{daemon, place, vmlane};

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
const APP: &str =
    "[[vm]]\nname = \"app\"\ncid = 9\nvsock = \"hybrid\"\nforward = [{ port = 1, to = \"fn2:22\" }]\n";
/// Users that no account has.
const ALICE: u32 = 20_001;
const BOB: u32 = 20_003;

fn socket(daemon: &Daemon, vm: &str) -> PathBuf {
    daemon.socket(vm, "hybrid/v.sock")
}

fn vmm(daemon: &Daemon, vm: &str) -> Vmm {
    Vmm::start_for_daemon(&socket(daemon, vm))
}

fn counter(daemon: &Daemon, vm: &str, name: &str) -> u64 {
    daemon.stats(vm)["vsock"][name].as_u64().unwrap()
}

/// `vmlane connect` to a VM.
fn connect(daemon: &Daemon, cid: u32, port: u32) -> Process {
    let mut command = daemon.command(&["connect", &cid.to_string(), &port.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Process(command.spawn().unwrap())
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
fn reaches(daemon: &Daemon, cid: u32, vmm: &Vmm) {
    let mut program = connect(daemon, cid, 22);
    let mut far = vmm.accept(22);
    program.0.stdin.take().unwrap().write_all(b"hello").unwrap();
    let mut got = [0; 5];
    far.read_exact(&mut got).unwrap();
    far.write_all(&got).unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(program.finish().good(), "hello");
}

#[test]
fn every_kind_of_peer_and_every_view() {
    let daemon = daemon(CONFIG);
    let status = daemon.must(&["status"]);
    assert!(status.contains("no capabilities, seccomp"), "{status}");
    let idle = daemon.vm("fn1");
    assert_eq!(
        (&idle["vsock"], &idle["attached"], &idle["cid"]),
        (&"hybrid".into(), &false.into(), &5.into())
    );
    let (first, second) = (vmm(&daemon, "fn1"), vmm(&daemon, "fn2"));
    assert_eq!(daemon.vm("fn1")["attached"], true);
    assert_eq!(daemon.vm("fn1")["sockets"][0], socket(&daemon, "fn1").to_str().unwrap());
    reaches(&daemon, 5, &first);

    // A virtio-vsock guest connects to it.
    let mut db = Guest::attach(&daemon.socket("db", "vsock.sock"), 4);
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
    let ports = daemon.json(&["ports"]);
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
    let mut listen = daemon.command(&["listen", "5001"]);
    let mut listen = Process(listen.stdout(Stdio::piped()).spawn().unwrap());
    let mut output = listen.0.stdout.take().unwrap();
    let mut received = [0; 7];
    wait_until("the program listens", || {
        let mut near = first.connect(5001).unwrap();
        // While no program listens, the connection may be closed before this.
        let _ = near.write_all(b"to host");
        // `listen` ends with its first connection.
        !is_closed(&mut near) || listen.0.try_wait().unwrap().is_some()
    });
    output.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"to host");
    let opened = first.connect(5002).unwrap();
    let accepted = second.accept(22);
    talk(&opened, &accepted);

    let status = daemon.vm("fn1");
    assert_eq!(status["connections"], 2, "those that it opened");
    let stats = daemon.json(&["stats"]);
    let bounds = stats["vms"][0]["bounds"].as_array().unwrap();
    let bound = bounds.iter().find(|bound| bound["name"] == "connections").unwrap();
    assert_eq!((&bound["used"], &bound["limit"]), (&3.into(), &4096.into()));
    assert!(counter(&daemon, "fn1", "bytes_sent") >= 5 + 6 + 8 + 7 + 4);
    assert_eq!(counter(&daemon, "fn1", "asked"), 2);
    let text = daemon.must(&["status"]) + &daemon.must(&["stats", "fn1"]) + &daemon.must(&["ports"]);
    for word in ["hybrid", "fn1.vsock.asked", "6:22"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let top = daemon.json(&["top", "--interval", "1", "--count", "1"]);
    assert_eq!((&top["vms"][0]["name"], &top["vms"][0]["ready"]), (&"fn1".into(), &true.into()));
    let metrics = daemon.must(&["metrics"]);
    assert!(metrics.contains("vmlane_vm_vmm_asked_total{vm=\"fn1\"} 2"), "{metrics}");
    assert!(metrics.contains("vmlane_vm_stream_sent_bytes_total{vm=\"fn1\"}"), "{metrics}");
    daemon.kill();
    assert!(is_closed(&mut near), "a daemon that dies ends its connections");
}

#[test]
fn vms_are_added_changed_and_removed_while_their_vmms_run() {
    let daemon = daemon(CONFIG);
    let first = vmm(&daemon, "fn1");
    reaches(&daemon, 5, &first);
    let second = vmm(&daemon, "fn2");
    let opened = first.connect(5002).unwrap();
    let accepted = second.accept(22);
    // Another forward, and a connection that stays.
    daemon.configure(&CONFIG.replace("port = 5002", "port = 5003"));
    daemon.must(&["reload"]);
    assert!(first.connect(5002).is_err());
    talk(&opened, &accepted);
    talk(&first.connect(5003).unwrap(), &second.accept(22));
    // Another CID.
    daemon.configure(&CONFIG.replace("cid = 5", "cid = 7"));
    daemon.must(&["reload"]);
    assert!(is_closed(&mut { opened }));
    reaches(&daemon, 7, &first);
    // Gone: only the VMM's socket stays.
    daemon.configure(&CONFIG.replace("name = \"fn1\"", "name = \"fn3\""));
    daemon.must(&["reload"]);
    let left: Vec<_> = fs::read_dir(socket(&daemon, "fn1").parent().unwrap()).unwrap().flatten().collect();
    assert_eq!((left.len(), left[0].path()), (1, socket(&daemon, "fn1")));
    assert!(socket(&daemon, "fn3").parent().unwrap().join("v.sock_5000").exists());

    let description = daemon.write("app.toml", APP);
    daemon.must(&["vm", "add", description.to_str().unwrap()]);
    let app = vmm(&daemon, "app");
    reaches(&daemon, 9, &app);
    talk(&app.connect(1).unwrap(), &second.accept(22));
    assert!(daemon.must(&["vm", "list"]).contains("hybrid"));
    daemon.must(&["vm", "remove", "app"]);
    assert!(app.connect(1).is_err());
    // A mistake names the VM, the value and the way out.
    daemon.write("app.toml", "[[vm]]\nname = \"app\"\ncid = 9\nuds_path = \"/srv/v\"\n");
    let refused = daemon.ask(&["vm", "add", description.to_str().unwrap()]);
    refused.fails(1, &["\"app\": uds_path = \"/srv/v\": works with"]);
}

/// Each time, connections end, and the next daemon serves both directions again; VMMs go on.
#[test]
fn fifty_killed_daemons_leave_vms_that_the_next_one_serves() {
    let daemon = daemon(CONFIG);
    let vmms = ["fn1", "fn2"].map(|vm| vmm(&daemon, vm));
    let description = daemon.write("app.toml", APP);
    let mut app = None;
    for round in 0..50 {
        let [first, second] = &vmms;
        let opened = first.connect(5002).unwrap();
        let mut accepted = second.accept(22);
        talk(&opened, &accepted);
        match &app {
            None => {
                daemon.must(&["vm", "add", description.to_str().unwrap()]);
                let vmm = vmm(&daemon, "app");
                talk(&vmm.connect(1).unwrap(), &second.accept(22));
                app = Some(vmm);
            }
            Some(vmm) if round % 5 == 4 => {
                reaches(&daemon, 9, vmm);
                daemon.must(&["vm", "remove", "app"]);
                fs::remove_file(socket(&daemon, "app")).unwrap();
                app = None;
            }
            Some(vmm) => talk(&vmm.connect(1).unwrap(), &second.accept(22)),
        }
        daemon.kill();
        assert!(is_closed(&mut accepted) && is_closed(&mut { opened }), "round {round}");
        assert!(first.connect(5002).is_err(), "round {round}: no daemon, no connection");
        daemon.start();
        assert_eq!(daemon.vm("app").is_null(), app.is_none(), "round {round}");
    }
    reaches(&daemon, 5, &vmms[0]);
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

/// A VMM of another user.
fn visitor_as(uid: u32) -> Visitor {
    Visitor::new("hybrid::visitor", uid, &[])
}

#[test]
#[ignore = "run by the others, as another user"]
fn visitor() {
    let kind = |error: std::io::Error| format!("{:?}", error.kind());
    let mut vmm = None;
    visit(|order, path| match order {
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
        // Its guest connects, and sends something.
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
    });
}

#[test]
fn a_vmm_of_the_owner_is_let_in_and_others_are_not() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can be several users");
    }
    let daemon = daemon(&CONFIG.replace("name = \"fn1\"", &format!("name = \"fn1\"\nowner = \"{ALICE}\"")));
    let socket = socket(&daemon, "fn1");
    let forward = socket.with_file_name("v.sock_5002");
    let directory = fs::metadata(socket.parent().unwrap()).unwrap();
    assert_eq!(directory.permissions().mode() & 0o1007, 0o1000, "the sticky bit, and nothing for others");
    assert_ne!(directory.uid(), 0, "the daemon's user's");
    let mut alice = visitor_as(ALICE);
    let mut bob = visitor_as(BOB);
    // The usual umask keeps the daemon out, whose log names what to do.
    assert_eq!(alice.ask("start-022", &socket), "started");
    assert!(!connect(&daemon, 5, 22).wait().success());
    assert!(daemon.log().contains("start the VMM with umask 007"), "{}", daemon.log());
    assert_eq!(alice.ask("start-007", &socket), "started");
    alice.order("serve", &socket);
    let output = connect(&daemon, 5, 22).finish().out;
    assert_eq!((output.as_str(), alice.answer().as_str()), ("served", "served"));
    // The other way round: alice's VMM, and not bob's.
    let second = vmm(&daemon, "fn2");
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
    let absent = counter(&daemon, "fn1", "absent");
    assert_eq!(alice.ask("trap", &socket), "set");
    assert!(!connect(&daemon, 5, 22).wait().success());
    assert_eq!((counter(&daemon, "fn1", "not_owner"), counter(&daemon, "fn1", "absent")), (1, absent));
    // A new owner: the sockets of forwards let that one in, and no longer the first.
    daemon.configure(&CONFIG.replace("name = \"fn1\"", &format!("name = \"fn1\"\nowner = \"{BOB}\"")));
    daemon.must(&["reload"]);
    assert_eq!(alice.ask("connect", &forward), "PermissionDenied");
    bob.order("connect", &forward);
    second.accept(22).read_exact(&mut got).unwrap();
    assert_eq!(bob.answer(), "true true");
}

#[test]
fn vmms_get_the_words_that_attach_them() {
    let daemon = place(CONFIG);
    let config = daemon.config();
    let words = |words: &[&str]| {
        vmlane(&[words, &["--config", config.to_str().unwrap(), "--runtime-dir", "/run/v"]].concat())
    };
    let json = |ran: Ran| serde_json::from_str::<Value>(&ran.out).unwrap();
    let firecracker = json(words(&["firecracker-config", "fn1"]));
    let expected = serde_json::json!({ "guest_cid": 5, "uds_path": "/run/v/vm/fn1/hybrid/v.sock" });
    assert_eq!(firecracker["vsock"], expected);
    let report = json(words(&["firecracker-config", "fn1", "--json"]));
    assert_eq!((&report["vm"], &report["vsock"]), (&"fn1".into(), &expected));
    assert_eq!((&report["version"], &report["socket"]), (&1.into(), &"/run/v/vm/fn1/hybrid/v.sock".into()));
    let cloud = words(&["cloud-hypervisor-args", "fn1"]).out;
    assert!(cloud.contains("--vsock cid=5,socket=/run/v/vm/fn1/hybrid/v.sock"), "{cloud}");
    for command in ["qemu-args", "libvirt-xml", "proxmox-args"] {
        words(&[command, "fn1"]).fails(1, &["with QEMU use vsock = \"virtio\""]);
    }
    words(&["firecracker-config", "db"]).fails(1, &["use vsock = \"hybrid\""]);
}

/// The VMM's socket is where its manager wants it, in a directory of its own.
#[test]
fn a_socket_elsewhere_is_reached_by_a_confined_daemon() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let socket = folder.path().join("v.sock");
    let path = format!("name = \"fn1\"\nuds_path = \"{}\"", socket.display());
    let daemon = daemon(&CONFIG.replace("name = \"fn1\"", &path));
    let first = Vmm::start(&socket);
    // In a directory without a default list, the mode is what lets the daemon's user in.
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    let second = vmm(&daemon, "fn2");
    reaches(&daemon, 5, &first);
    talk(&first.connect(5002).unwrap(), &second.accept(22));
    assert!(!daemon.socket("fn1", "hybrid").exists());
    // A directory that the daemon has not known at its start.
    let other = tempfile::tempdir().unwrap();
    fs::set_permissions(other.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = format!("name = \"fn1\"\nuds_path = \"{}\"", other.path().join("v.sock").display());
    daemon.configure(&CONFIG.replace("name = \"fn1\"", &path));
    daemon.must(&["reload"]);
    assert!(daemon.log().contains("may not make it there"), "{}", daemon.log());
}
