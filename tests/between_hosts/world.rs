//! Two hosts: two network namespaces with a cable between them; in each a helper, and beside each a daemon with directories of its
//! own. All of it is removed when this is dropped.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vmlane_lab::{LabSpec, find_vmlane};
use vmlane_sock::Host;
use vmlane_tests::{Bed, wait_until};

/// The hosts; alpha connects to beta.
pub const NAMES: [&str; 2] = ["alpha", "beta"];
/// Their own CIDs; each owns a thousand from there on.
pub const CIDS: [u32; 2] = [1000, 2000];
/// After so long, a silent host is dead.
pub const DEAD_S: u64 = 3;
const ADDRESSES: [&str; 2] = ["10.251.0.1", "10.251.0.2"];
const PORT: u16 = 7447;

/// A process that does not outlive its test.
pub struct Process(Child);

impl Process {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

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
    directory: PathBuf,
    /// Of the daemon.
    run: PathBuf,
    /// The daemon is a lab's, which starts it.
    is_lab: bool,
    space: Space,
    pub daemon: Option<Process>,
    pub helper: Option<Process>,
}

pub struct World {
    pub sites: [Site; 2],
    _directory: tempfile::TempDir,
}

impl World {
    /// Two hosts that are connected; `vms`: what the configuration of each says of VMs.
    pub fn new(vms: [&str; 2]) -> World {
        World::with(vms, |_| None)
    }

    /// The same; their daemons are those of two labs, whose guests are up; `vms`: what is to be added to what the configuration of each
    /// says of its guests.
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

    /// `daemon` starts one with this configuration and says where it runs; None: the host's own is to be started.
    fn with(vms: [&str; 2], mut daemon: impl FnMut(&Path) -> Option<PathBuf>) -> World {
        let directory = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let spaces = NAMES.map(|name| Space(format!("vlr{pid}{name}")));
        for (name, space) in NAMES.iter().zip(&spaces) {
            assert!(ip(&["netns", "add", &space.0]), "network namespaces need root rights");
            let made = Command::new(find_vmlane().unwrap())
                .args(["route", "certificate", name, "--directory"])
                .arg(directory.path())
                .status();
            assert!(made.unwrap().success());
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
            let own = directory.path().join(NAMES[index]);
            fs::create_dir(&own).unwrap();
            let file = own.join("vmlane.toml");
            fs::write(&file, config(directory.path(), index) + vms[index]).unwrap();
            let lab = daemon(&file);
            let (is_lab, run) = (lab.is_some(), lab.unwrap_or_else(|| own.join("run")));
            let mut site = Site { index, directory: own, run, is_lab, space, daemon: None, helper: None };
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

    /// From now on, or not any more, what one host sends is lost on its way: it goes to a card that is not there.
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
        "[route]\nname = {:?}\ncids = [{:?}]\ncid = {}\ndead_s = {DEAD_S}\n{listen}certificate = {:?}\nkey = {:?}\nauthority = {:?}\n\
         [[peer]]\nname = {:?}\n{address}cids = [{:?}]\ngroups = [\"default\"]\n",
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
    pub fn run(&self) -> PathBuf {
        self.run.clone()
    }

    pub fn host(&self) -> Host {
        Host::at(&self.run())
    }

    /// Starts what does not run.
    pub fn start(&mut self) {
        if self.daemon.is_none() && !self.is_lab {
            let mut command = Command::new(find_vmlane().unwrap());
            command.arg("daemon").arg("--state-dir").arg(self.directory.join("state"));
            let daemon = self.spawn(command);
            wait_until("the daemon answers", || self.status()["pid"] == daemon.pid());
            self.daemon = Some(daemon);
        }
        if self.helper.is_none() {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.space.0]).arg(find_vmlane().unwrap()).args(["route", "run"]);
            self.helper = Some(self.spawn(command));
        }
    }

    fn spawn(&self, mut command: Command) -> Process {
        let log = File::options().create(true).append(true).open(self.directory.join("log")).unwrap();
        command.arg("--config").arg(self.directory.join("vmlane.toml")).arg("--runtime-dir").arg(self.run());
        command.env_remove("VMLANE_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(log);
        Process(command.spawn().unwrap())
    }

    fn status(&self) -> Value {
        let mut command = Command::new(find_vmlane().unwrap());
        command.args(["status", "--json", "--runtime-dir"]).arg(self.run());
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap_or_default()
    }

    /// What the daemon says of the other host.
    pub fn peer(&self, key: &str) -> Option<Value> {
        let name = NAMES[1 - self.index];
        let status = self.status();
        status["peers"].as_array()?.iter().find(|peer| peer["name"] == name).map(|peer| peer[key].clone())
    }

    pub fn processes(&self) -> [(String, u32); 2] {
        let name = NAMES[self.index];
        [("daemon", &self.daemon), ("helper", &self.helper)]
            .map(|(what, process)| (format!("{name}'s {what}"), process.as_ref().map_or(0, Process::pid)))
    }
}
