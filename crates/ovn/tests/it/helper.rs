//! The helper with a database and a daemon that are not real, and do what real ones do on bad days.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;
use vmlane_api::{OvnEntry, OvnReport};
use vmlane_ovn::{Daemon, Entry, Helper, Interfaces, Settings, Signals};
use vmlane_testkit::wait_until;

use crate::server::Server;

const TAP: &str = "vmo1";
const OWNER: &str = "/run/vmlane";

#[derive(Default)]
struct State {
    /// None: no daemon answers.
    up: Option<bool>,
    report: Option<OvnReport>,
    links: HashMap<String, bool>,
    settings: Option<Settings>,
}

struct OneVm(Arc<Mutex<State>>);

impl Daemon for OneVm {
    fn ask(&mut self, reports: Vec<OvnReport>) -> Result<Vec<OvnEntry>, String> {
        let mut state = self.0.lock().unwrap();
        let up = state.up.ok_or("nothing listens")?;
        state.report = reports.into_iter().last().or(state.report.take());
        Ok(vec![OvnEntry { vm: "web".into(), nic: "nic0".into(), up }])
    }
}

struct Links(Arc<Mutex<State>>);

impl Interfaces for Links {
    fn is_up(&self, name: &str) -> Option<bool> {
        self.0.lock().unwrap().links.get(name).copied()
    }

    fn set_up(&self, name: &str, up: bool) -> io::Result<()> {
        self.0.lock().unwrap().links.insert(name.to_owned(), up);
        Ok(())
    }
}

struct World {
    state: Arc<Mutex<State>>,
    signals: Signals,
    helper: Option<JoinHandle<io::Result<()>>>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn entry() -> Entry {
    Entry {
        vm: "web".into(),
        nic: "nic0".into(),
        interface: TAP.into(),
        port: "lsp-web".into(),
        mac: "52:54:00:00:00:01".into(),
        vm_id: "web".into(),
        mtu: Some(1442),
    }
}

impl World {
    fn new(up: Option<bool>, hold: Duration) -> World {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db.sock");
        let links = HashMap::from([(TAP.to_owned(), false)]);
        let state = Arc::new(Mutex::new(State { up, links, ..State::default() }));
        let signals = Signals::default();
        let (shared, asked, stop) = (state.clone(), path.clone(), signals.clone());
        let helper = std::thread::spawn(move || {
            let settings = Settings { database: asked, bridge: "br-int".into(), entries: vec![entry()] };
            let loaded = shared.clone();
            let load = move |_| Ok(loaded.lock().unwrap().settings.take());
            let ends: (Box<dyn Daemon>, Box<dyn Interfaces>) =
                (Box::new(OneVm(shared.clone())), Box::new(Links(shared)));
            Helper::new(settings, Box::new(load), OWNER.into(), ends, stop).holding(hold).run()
        });
        World { state, signals, helper: Some(helper), path, _folder: folder }
    }

    fn with_database() -> (World, Server) {
        let world = World::new(Some(true), Duration::from_secs(3600));
        let server = Server::start(&world.path, "br-int", "system");
        (world, server)
    }

    fn set_up(&self, up: Option<bool>) {
        self.state.lock().unwrap().up = up;
    }

    fn link(&self) -> bool {
        self.state.lock().unwrap().links[TAP]
    }

    fn until_report(&self, state: &str, problem: &str) {
        wait_until(&format!("{state}: {problem}"), || {
            let report = self.state.lock().unwrap().report.clone();
            report.is_some_and(|report| report.state == state && report.problem.contains(problem))
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.signals.stop.store(true, Ordering::Relaxed);
        let ended = self.helper.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// Open vSwitch takes the interface, and OVN binds its port.
fn bind(server: &Server) {
    let (id, _) = server.find("Interface", TAP).unwrap();
    server.set("Interface", &id, json!({ "ofport": 7 }));
    server.add_id(TAP, "ovn-installed", "true");
}

fn has_id(server: &Server, key: &str, value: &str) -> bool {
    server.id_of(TAP, key).as_deref() == Some(value)
}

#[test]
fn a_port_is_made_for_a_vm_and_given_back_without_one() {
    let (world, server) = World::with_database();
    wait_until("the port is written for OVN", || has_id(&server, "iface-id", "lsp-web"));
    for (key, value) in [("attached-mac", "52:54:00:00:00:01"), ("vm-id", "web"), ("iface-status", "active")]
    {
        assert!(has_id(&server, key, value), "{key}");
    }
    assert_eq!(server.find("Interface", TAP).unwrap().1["mtu_request"], 1442);
    world.until_report("waiting", "ovs-vswitchd");
    assert!(!world.link(), "frames would reach the host's own stack");
    let (id, _) = server.find("Interface", TAP).unwrap();
    server.set("Interface", &id, json!({ "ofport": 7 }));
    wait_until("the interface is up", || world.link());
    world.until_report("waiting", "requested-chassis");
    server.add_id(TAP, "ovn-installed", "true");
    world.until_report("bound", "");
    assert!(world.state.lock().unwrap().report.as_ref().unwrap().whole);

    world.set_up(Some(false));
    world.until_report("down", "");
    wait_until("OVN gets its end", || has_id(&server, "iface-status", "inactive"));
    for key in ["iface-id", "attached-mac", "vm-id", "ovn-installed"] {
        assert_eq!(server.id_of(TAP, key), None, "{key}");
    }
    world.set_up(Some(true));
    wait_until("and here again", || {
        has_id(&server, "iface-id", "lsp-web") && has_id(&server, "iface-status", "active")
    });

    let mut settings =
        Settings { database: world.path.clone(), bridge: "br-int".into(), entries: vec![entry()] };
    settings.entries[0].port = "lsp-other".into();
    world.state.lock().unwrap().settings = Some(settings.clone());
    world.signals.reload.store(true, Ordering::Relaxed);
    wait_until("another logical port", || has_id(&server, "iface-id", "lsp-other"));
    settings.entries.clear();
    server.set(
        "Port",
        "foreign",
        json!({"name": "eth9", "interfaces": ["set", []], "external_ids": ["map", []]}),
    );
    world.state.lock().unwrap().settings = Some(settings);
    world.signals.reload.store(true, Ordering::Relaxed);
    wait_until("a port that is not configured any more goes", || server.ports() == 0);
}

#[test]
fn ports_stay_for_a_daemon_that_is_started_again_and_not_for_one_that_is_gone() {
    let world = World::new(Some(true), Duration::from_secs(2));
    let server = Server::start(&world.path, "br-int", "system");
    wait_until("a port", || has_id(&server, "iface-status", "active"));
    bind(&server);
    world.until_report("bound", "");
    world.set_up(None);
    wait_until("its status is cleared", || has_id(&server, "iface-status", "inactive"));
    wait_until("and then the port", || server.id_of(TAP, "iface-id").is_none());
    world.set_up(Some(true));
    wait_until("it is back", || {
        has_id(&server, "iface-id", "lsp-web") && has_id(&server, "iface-status", "active")
    });
}

#[test]
fn a_daemon_that_is_started_again_has_no_vms_at_first_and_keeps_its_ports() {
    let (world, server) = World::with_database();
    wait_until("a port", || has_id(&server, "iface-status", "active"));
    world.set_up(None);
    wait_until("its status is cleared", || has_id(&server, "iface-status", "inactive"));
    world.set_up(Some(false));
    // The helper has asked it, and reported everything anew.
    world.state.lock().unwrap().report = None;
    wait_until("a report", || world.state.lock().unwrap().report.is_some());
    assert!(has_id(&server, "iface-id", "lsp-web"));
    world.set_up(Some(true));
    wait_until("active again", || has_id(&server, "iface-status", "active"));
    assert!(has_id(&server, "iface-id", "lsp-web"));
}

#[test]
fn a_database_that_is_started_again_is_found_and_put_right() {
    let (world, mut server) = World::with_database();
    wait_until("a port", || has_id(&server, "iface-id", "lsp-web"));
    bind(&server);
    world.until_report("bound", "");
    server.pause();
    world.until_report("failed", "db.sock");
    // Meanwhile somebody has removed the port.
    for table in ["Port", "Interface"] {
        let (id, _) = server.find(table, TAP).unwrap();
        server.remove(table, &id);
    }
    server.set("Bridge", "bridge", json!({"ports": ["set", []], "datapath_type": "netdev"}));
    server.resume();
    wait_until("it is made again", || has_id(&server, "iface-id", "lsp-web"));
    wait_until("and its interface waits until it is at the bridge", || !world.link());
    bind(&server);
    world.until_report("bound", "");
    assert!(world.link() && !world.state.lock().unwrap().report.as_ref().unwrap().whole);
    let echoes = server.echo();
    wait_until("the helper answers the server's echo", || server.echo() > echoes);
}

#[test]
fn what_is_not_its_own_is_left_alone_and_refusals_are_reported() {
    let world = World::new(Some(true), Duration::from_secs(3600));
    let server = Server::start(&world.path, "br-other", "system");
    world.until_report("failed", "there is no bridge \"br-int\"");
    server.set(
        "Interface",
        "i",
        json!({"name": TAP, "ofport": 4, "error": ["set", []], "external_ids": ["map", []]}),
    );
    server.set("Port", "p", json!({"name": TAP, "interfaces": ["uuid", "i"], "external_ids": ["map", [["vmlane", "/run/other"]]]}));
    // The bridge last: with it alone, the helper would add its port.
    server.set(
        "Bridge",
        "int",
        json!({"name": "br-int", "ports": ["set", [["uuid", "p"]]], "datapath_type": ""}),
    );
    world.until_report("failed", "of the daemon in /run/other; remove it (`ovs-vsctl del-port vmo1`)");
    assert_eq!(server.id_of(TAP, "iface-id"), None);
    assert!(!world.link());
    server.refuse(true);
    server.set("Bridge", "int", json!({ "ports": ["set", []] }));
    server.remove("Port", "p");
    server.remove("Interface", "i");
    world.until_report("failed", "constraint violation: on request");
    server.refuse(false);
    wait_until("it is tried again", || has_id(&server, "iface-id", "lsp-web"));
    let (id, _) = server.find("Interface", TAP).unwrap();
    server.set("Interface", &id, json!({ "error": "could not open network device vmo1 (No such device)" }));
    world.until_report("failed", "Open vSwitch: could not open network device vmo1");
}

#[test]
fn a_hostile_server_is_left_and_an_honest_one_finds_the_helper_well() {
    let (_world, server) = World::with_database();
    let deep = "{\"a\":".repeat(5000);
    let long = format!("{{\"id\":1,\"error\":null,\"result\":{{\"x\":\"{}\"}}}}", "x".repeat(17 << 20));
    let number = |id: &str| format!("{{\"id\":{id},\"error\":null,\"result\":{{}}}}");
    let scripts: [&[u8]; 14] = [
        b"",
        b"\0\0\0\0",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"[1,2,3]",
        b"{\"id\":1,\"result\":",
        deep.as_bytes(),
        long.as_bytes(),
        &[number("77"), number("18446744073709551615"), number("-1"), number("\"x\"")].concat().into_bytes(),
        b"{\"id\":1,\"error\":{\"error\":\"unknown database\"},\"result\":null}",
        b"{\"id\":1,\"error\":null,\"result\":null}",
        b"{\"id\":1,\"error\":null,\"result\":{\"Port\":[],\"Bridge\":{\"b\":7},\"Interface\":{\"i\":{\"new\":[]}}}}",
        b"{\"method\":\"update\",\"params\":[],\"id\":null}",
        b"{\"method\":\"update\",\"params\":[\"vmlane\",{\"Port\":7}],\"id\":null}",
        b"{\"method\":\"steal\",\"params\":{},\"id\":null}{\"method\":7}{\"id\":null}{}",
    ];
    for script in scripts {
        let name = String::from_utf8_lossy(script).chars().take(60).collect::<String>();
        server.send_instead(script);
        wait_until(&format!("it is sent: {name}"), || server.has_sent());
        wait_until(&format!("the helper is back after {name}"), || server.echo() > 0);
        let (id, _) = match server.find("Interface", TAP) {
            Some(found) => found,
            None => {
                wait_until("a port", || has_id(&server, "iface-id", "lsp-web"));
                continue;
            }
        };
        // And it does its work.
        server.set("Interface", &id, json!({"external_ids": ["map", []]}));
        wait_until(&format!("it goes on after {name}"), || has_id(&server, "iface-id", "lsp-web"));
    }
}
