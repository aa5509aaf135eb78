//! Two hosts: a daemon and a helper each, connected over the loopback device.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::Value;
use vmlane_route::authority;
use vmlane_sock::{Host, Listener, Stream};
use vmlane_testkit::{Daemon, Process, wait_until};

use crate::common;

pub const LONG: Duration = Duration::from_secs(50);
/// Hosts' own CIDs.
pub const ALPHA: u32 = 1000;
pub const BETA: u32 = 2000;

/// One host.
pub struct Node {
    pub daemon: Daemon,
    pub helper: Option<Process>,
}

/// What is peculiar to a host.
#[derive(Clone, Copy)]
pub struct Plan {
    pub name: &'static str,
    pub cids: &'static str,
    pub cid: u32,
    pub port: u16,
    /// Its name, its CIDs and its port.
    pub peer: (&'static str, &'static str, u16),
    pub groups: &'static str,
    /// What else its configuration has, of the peer and behind it.
    pub more: &'static str,
}

impl Plan {
    fn text(self, pki: &Path) -> String {
        let Plan { name, cids, cid, port, peer: (peer, peers_cids, peers_port), groups, more } = self;
        let file = |file: String| pki.join(file).display().to_string();
        format!(
            "[route]\nname = {name:?}\ncids = [{cids:?}]\ncid = {cid}\nlisten = \"127.0.0.1:{port}\"\ndead_s = 5\n\
             certificate = {:?}\nkey = {:?}\nauthority = {:?}\n\
             [[peer]]\nname = {peer:?}\naddress = \"127.0.0.1:{peers_port}\"\ncids = [{peers_cids:?}]\ngroups = [{groups:?}]\n{more}",
            file(format!("{name}.pem")),
            file(format!("{name}.key")),
            file("authority.pem".into()),
        )
    }
}

impl Node {
    fn new(config: &str) -> Node {
        let mut node = Node { daemon: common::daemon(config), helper: None };
        node.start_helper();
        node
    }

    pub fn host(&self) -> Host {
        Host::at(&self.daemon.runtime())
    }

    pub fn start_helper(&mut self) {
        let mut command = self.daemon.configured(&["route", "run"]);
        self.helper = Some(Process(command.stderr(self.daemon.log_file()).spawn().unwrap()));
    }

    pub fn signal_helper(&self, signal: Signal) {
        self.helper.as_ref().expect("a helper").signal(signal);
    }

    /// Replaces `from` in its configuration by `to`, and has the daemon and the helper read it.
    pub fn reconfigure(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.daemon.config()).unwrap();
        assert!(text.contains(from), "{text}");
        self.daemon.configure(&text.replace(from, to));
        self.daemon.must(&["reload"]);
    }

    /// What `vmlane status` reports of a peer; the helper itself has no name.
    pub fn peer(&self, name: &str) -> Option<Value> {
        let status: Value = serde_json::from_str(&self.daemon.ask(&["status", "--json"]).out).ok()?;
        status["peers"].as_array()?.iter().find(|peer| peer["name"] == name).cloned()
    }

    pub fn counts(&self, peer: &str, counter: &str) -> u64 {
        self.peer(peer).and_then(|peer| peer["counters"][counter].as_u64()).unwrap_or(0)
    }

    pub fn is_up(&self, peer: &str) -> bool {
        self.peer(peer).is_some_and(|peer| peer["state"] == "up")
    }
}

/// Two hosts and the authority for both.
pub struct World {
    pub alpha: Node,
    pub beta: Node,
    pub pki: tempfile::TempDir,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn certificates(pki: &Path, names: &[&str], days: (i64, i64)) {
    let now = SystemTime::now();
    let at = |days: i64| {
        let span = Duration::from_secs(days.unsigned_abs() * 86_400);
        if days < 0 { now - span } else { now + span }
    };
    let key = fs::read_to_string(pki.join("authority.key")).unwrap_or_else(|_| {
        let made = authority::authority(authority::days(3650)).unwrap();
        fs::write(pki.join("authority.pem"), made.certificate).unwrap();
        fs::write(pki.join("authority.key"), &made.key).unwrap();
        made.key
    });
    for name in names {
        certificate(pki, &key, name, (at(days.0), at(days.1)));
    }
}

/// A certificate that ends at a moment.
pub fn certificate(pki: &Path, authority_key: &str, name: &str, valid: (SystemTime, SystemTime)) {
    let made = authority::certificate(authority_key, name, valid).unwrap();
    fs::write(pki.join(format!("{name}.pem")), made.certificate).unwrap();
    fs::write(pki.join(format!("{name}.key")), made.key).unwrap();
}

/// `change`: what is different from two hosts that know each other.
pub fn plans(change: impl FnOnce(&mut Plan, &mut Plan)) -> [Plan; 2] {
    let (a, b) = (free_port(), free_port());
    let mut alpha = Plan {
        name: "alpha",
        cids: "1000-1999",
        cid: ALPHA,
        port: a,
        peer: ("beta", "2000-2999", b),
        groups: "default",
        more: "",
    };
    let mut beta = Plan {
        name: "beta",
        cids: "2000-2999",
        cid: BETA,
        port: b,
        peer: ("alpha", "1000-1999", a),
        groups: "default",
        more: "",
    };
    change(&mut alpha, &mut beta);
    [alpha, beta]
}

impl World {
    pub fn new() -> World {
        let world = World::with(plans(|_, _| {}));
        world.connected();
        world
    }

    pub fn with([alpha, beta]: [Plan; 2]) -> World {
        let pki = tempfile::tempdir().unwrap();
        certificates(pki.path(), &["alpha", "beta"], (-1, 30));
        let [alpha, beta] = [alpha, beta].map(|plan| Node::new(&plan.text(pki.path())));
        World { alpha, beta, pki }
    }

    pub fn connected(&self) {
        wait_until("the hosts are connected", || self.alpha.is_up("beta") && self.beta.is_up("alpha"));
    }

    /// A stream between two programs, the client's end first.
    pub fn pair(&self, port: u32) -> (Stream, Stream) {
        let listener = Listener::bind_by(&self.beta.host(), port).unwrap();
        let client = Stream::connect_by(&self.alpha.host(), BETA, port, LONG).unwrap();
        let (server, _) = listener.accept().unwrap();
        for end in [&client, &server] {
            end.set_read_timeout(Some(LONG)).unwrap();
            end.set_write_timeout(Some(LONG)).unwrap();
        }
        (client, server)
    }

    /// No stream has a place any more.
    pub fn nothing_is_left(&self) {
        let left = |node: &Node, peer: &str| node.peer(peer).and_then(|peer| peer["streams"].as_u64());
        wait_until("no stream is left", || {
            left(&self.alpha, "beta") == Some(0) && left(&self.beta, "alpha") == Some(0)
        });
    }
}
