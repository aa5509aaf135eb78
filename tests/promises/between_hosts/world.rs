//! Two hosts: two network namespaces with a cable between them; in each a helper, and beside each a daemon
//! with directories of its own. All of it is removed when this is dropped.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vmlane_lab::LabSpec;
use vmlane_sock::Host;
use vmlane_testkit::Daemon;
use vmlane_tests::alone::{self, output, vmlane};
use vmlane_tests::netns::inside;
use vmlane_tests::{Bed, Process, wait_until};

/// The hosts; alpha connects to beta.
pub const NAMES: [&str; 2] = ["alpha", "beta"];
/// Their own CIDs; each owns a thousand from there on.
pub const CIDS: [u32; 2] = [1000, 2000];
/// After so long, a silent host is dead.
pub const DEAD_S: u64 = 3;
const ADDRESSES: [&str; 2] = ["10.251.0.1", "10.251.0.2"];
const PORT: u16 = 7447;

/// A network namespace.
struct Space(String);

impl Drop for Space {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.0]);
    }
}

fn ip(words: &[&str]) -> bool {
    let output = Command::new("ip").args(words).output().expect("ip, of iproute2");
    if !output.status.success() {
        eprintln!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    output.status.success()
}

/// One host.
pub struct Site {
    index: usize,
    place: Daemon,
    /// Of the daemon.
    run: PathBuf,
    /// The daemon is a lab's, which starts it.
    is_lab: bool,
    space: Space,
    /// Whether its own daemon runs.
    runs: bool,
    pub helper: Option<Process>,
}

pub struct World {
    pub sites: [Site; 2],
    _directory: tempfile::TempDir,
}

impl World {
    /// Two hosts that are connected; `vms`: the VMs in the configuration of each.
    pub fn new(vms: [&str; 2]) -> World {
        World::with(vms, |_| None)
    }

    /// The same; their daemons are those of two labs, whose guests are up; `vms`: what is to be added to what
    /// the configuration of each has of its guests.
    pub fn of_labs(specs: [LabSpec; 2], vms: [&str; 2]) -> (World, Vec<Bed>) {
        let mut beds = Vec::new();
        let mut specs = specs.into_iter();
        let world = World::with(vms, |config| {
            let mut spec = specs.next()?;
            spec.daemon_config = Some(config.to_owned());
            let bed = Bed::up(&spec);
            let run = bed.lab().daemon_runtime_dir();
            beds.push(bed);
            Some(run)
        });
        (world, beds)
    }

    /// `daemon` starts one with this configuration and returns where it runs; None: the host's own is to be
    /// started.
    fn with(vms: [&str; 2], mut daemon: impl FnMut(&Path) -> Option<PathBuf>) -> World {
        let directory = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let spaces = NAMES.map(|name| Space(format!("vlr{pid}{name}")));
        for (name, space) in NAMES.iter().zip(&spaces) {
            assert!(ip(&["netns", "add", &space.0]), "network namespaces need root rights");
            output(vmlane().args(["route", "certificate", name, "--directory"]).arg(directory.path()));
        }
        let [a, b] = &spaces;
        assert!(ip(&[
            "-n", &a.0, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", &b.0
        ]));
        for (space, address) in spaces.iter().zip(ADDRESSES) {
            assert!(ip(&["-n", &space.0, "address", "add", &format!("{address}/24"), "dev", "cable"]));
            assert!(ip(&["-n", &space.0, "link", "set", "cable", "up"]));
        }
        let mut index = 0..;
        let sites = spaces.map(|space| {
            let index = index.next().unwrap_or(0);
            let place = alone::daemon(&(config(directory.path(), index) + vms[index]));
            let state = place.path("state").display().to_string();
            let place = place.with(&["--state-dir", &state]);
            let lab = daemon(&place.config());
            let (is_lab, run) = (lab.is_some(), lab.unwrap_or_else(|| place.runtime()));
            let mut site = Site { index, place, run, is_lab, space, runs: false, helper: None };
            site.start();
            site
        });
        let world = World { sites, _directory: directory };
        world.connected();
        world
    }

    pub fn connected(&self) {
        wait_until("the hosts are connected", || {
            self.sites.iter().all(|site| site.peer("state") == Some("up".into()))
        });
    }

    /// From now on, or not any more, what one host sends is lost on its way: it goes to a card that is not
    /// there.
    pub fn set_silent(&self, silent: bool) {
        for (site, address) in self.sites.iter().zip([ADDRESSES[1], ADDRESSES[0]]) {
            let space = site.space.0.as_str();
            if silent {
                let words =
                    ["-n", space, "neigh", "replace", address, "lladdr", "02:00:00:00:00:99", "dev", "cable"];
                assert!(ip(&words));
            } else {
                assert!(ip(&["-n", space, "neigh", "del", address, "dev", "cable"]));
            }
        }
    }
}

fn config(directory: &Path, own: usize) -> String {
    let peer = 1 - own;
    let file = |name: String| directory.join(name).display().to_string();
    let range = |host: usize| format!("{}-{}", CIDS[host], CIDS[host] + 999);
    let (listen, address) = match own {
        0 => (String::new(), format!("address = \"{}:{PORT}\"\n", ADDRESSES[peer])),
        _ => (format!("listen = \"{}:{PORT}\"\n", ADDRESSES[own]), String::new()),
    };
    format!(
        "[route]\nname = {:?}\ncids = [{:?}]\ncid = {}\ndead_s = {DEAD_S}\n{listen}certificate = {:?}\nkey = {:?}\n\
         authority = {:?}\n[[peer]]\nname = {:?}\n{address}cids = [{:?}]\ngroups = [\"default\"]\n",
        NAMES[own],
        range(own),
        CIDS[own],
        file(format!("{}.pem", NAMES[own])),
        file(format!("{}.key", NAMES[own])),
        file("authority.pem".into()),
        NAMES[peer],
        range(peer),
    )
}

impl Site {
    pub fn host(&self) -> Host {
        Host::at(&self.run)
    }

    /// Starts what does not run.
    pub fn start(&mut self) {
        if !self.runs && !self.is_lab {
            self.place.start();
            self.runs = true;
        }
        if self.helper.is_none() {
            let mut helper = inside(&self.space.0);
            helper.args(["route", "run", "--config"]).arg(self.place.config());
            helper.arg("--runtime-dir").arg(&self.run).stderr(self.place.log_file());
            self.helper = Some(Process(helper.spawn().unwrap()));
        }
    }

    pub fn kill_daemon(&mut self) {
        self.place.kill();
        self.runs = false;
    }

    /// What the daemon reports of the other host.
    pub fn peer(&self, key: &str) -> Option<Value> {
        let name = NAMES[1 - self.index];
        let status = alone::status(&self.run);
        status["peers"].as_array()?.iter().find(|peer| peer["name"] == name).map(|peer| peer[key].clone())
    }

    pub fn processes(&self) -> [(String, u32); 2] {
        let daemon = if self.runs { self.place.pid() } else { 0 };
        let helper = self.helper.as_ref().map_or(0, Process::id);
        [("daemon", daemon), ("helper", helper)]
            .map(|(what, process)| (format!("{}'s {what}", NAMES[self.index]), process))
    }
}
