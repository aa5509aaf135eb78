//! A host with a thousand others: what they cost, and what happens when some of them vanish, or the host itself comes back.
//!
//! The others are helpers of the library, each with a thread and a certificate of its own, in two processes; they have no daemons.
//! One process is stopped for a while: its hosts are silent, as hosts that have lost their power are.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde_json::Value;
use vmlane_lab::find_vmlane;
use vmlane_route::{Bounds, Files, Helper, PeerSettings, Settings, authority};
use vmlane_sock::{Host, Stream};
use vmlane_tests::kept;

const HOSTS: usize = 1000;
/// Ranges of each.
const RANGES: usize = 10;
/// CIDs of a range; as many are no one's behind it.
const RANGE: usize = 50;
/// The last hosts, which vanish.
const VANISH: usize = 100;
const DEAD_S: u64 = 10;
const PORT: u16 = 17447;
/// The host itself. Names of hosts from `a0` on sort before it and connect to it; it connects to those from `z0` on.
const NAME: &str = "middle";
/// Emulating a thousand hosts beside the one takes time.
const PATIENCE: Duration = Duration::from_secs(300);
/// Says to this program what it is: the directory, the first host, and the one behind the last.
const ROLE: &str = "VMLANE_FLEET";

fn name(host: usize) -> String {
    format!("{}{host}", if host.is_multiple_of(2) { 'a' } else { 'z' })
}

/// Every address of 127.0.0.0/8 is this machine's.
fn address(host: usize) -> SocketAddr {
    (Ipv4Addr::new(127, 44, (host / 250) as u8, (host % 250) as u8 + 1), PORT).into()
}

fn own_address() -> SocketAddr {
    address(HOSTS)
}

fn first_cid(host: usize, range: usize) -> usize {
    100_000 + (host * RANGES + range) * 2 * RANGE
}

struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Seconds of processor time so far.
    fn cpu(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        ticks as f64 / 100.0
    }

    /// KiB of memory of its own.
    fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let value = |key: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        value("RssAnon:") + value("RssShmem:")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Some of the other hosts. Runs until its standard input ends.
#[test]
#[ignore = "run by the other test, as a process of its own"]
fn simulated_hosts() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let role = role.into_string().unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    let [directory, first, last] = words[..] else { panic!("{role}") };
    let directory = PathBuf::from(directory);
    let hosts = first.parse::<usize>().unwrap()..last.parse().unwrap();
    let mut controls = Vec::new();
    for host in hosts {
        let settings = host_settings(&directory, host);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let helper =
            Helper::start(settings, Box::new(|| Err("not here".into())), OwnedFd::from(theirs)).unwrap();
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        thread.spawn(move || helper.run().unwrap()).unwrap();
        controls.push(ours);
    }
    println!("simulating");
    let _ = std::io::stdin().lines().next();
}

fn host_settings(directory: &Path, host: usize) -> Settings {
    let name = name(host);
    let connects = name.as_str() < NAME;
    Settings {
        socket: directory.join("nothing.sock"),
        listen: (!connects).then(|| address(host)),
        files: Files {
            certificate: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}.key")),
            authority: directory.join("authority.pem"),
        },
        dead: Duration::from_secs(DEAD_S),
        bounds: Bounds::default(),
        peers: vec![PeerSettings { name: NAME.into(), address: connects.then(own_address) }],
        name,
    }
}

/// The host under test, and its directory.
struct World {
    directory: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let signer = authority::authority(authority::days(2)).unwrap();
        fs::write(at("authority.pem"), &signer.certificate).unwrap();
        for name in (0..HOSTS).map(name).chain([NAME.to_owned()]) {
            let made = authority::certificate(&signer.key, &name, authority::days(2)).unwrap();
            fs::write(at(&format!("{name}.pem")), made.certificate).unwrap();
            fs::write(at(&format!("{name}.key")), made.key).unwrap();
        }
        let world = World { directory };
        world.configure(HOSTS);
        world
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A configuration with so many other hosts, a file for each.
    fn configure(&self, hosts: usize) {
        let file = |name: &str| self.at(name).display().to_string();
        let text = format!(
            "[route]\nname = {NAME:?}\ncids = [\"1000-1999\"]\ncid = 1000\nlisten = \"{}\"\ndead_s = {DEAD_S}\n\
             certificate = {:?}\nkey = {:?}\nauthority = {:?}\n",
            own_address(),
            file("middle.pem"),
            file("middle.key"),
            file("authority.pem")
        );
        fs::write(self.at("vmlane.toml"), text).unwrap();
        let _ = fs::remove_dir_all(self.at("conf.d"));
        fs::create_dir(self.at("conf.d")).unwrap();
        (0..hosts).for_each(|host| self.configure_host(host, "default"));
    }

    fn configure_host(&self, host: usize, group: &str) {
        let name = name(host);
        let cids: Vec<String> = (0..RANGES)
            .map(|range| first_cid(host, range))
            .map(|first| format!("\"{first}-{}\"", first + RANGE - 1))
            .collect();
        let address =
            if name.as_str() > NAME { format!("address = \"{}\"\n", address(host)) } else { String::new() };
        let text = format!(
            "[[peer]]\nname = {name:?}\n{address}cids = [{}]\ngroups = [{group:?}]\n",
            cids.join(", ")
        );
        fs::write(self.at("conf.d").join(format!("{name}.toml")), text).unwrap();
    }

    fn run(&self) -> PathBuf {
        self.at("run")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(find_vmlane().unwrap());
        command.args(words).env_remove("VMLANE_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        command
    }

    fn start(&self, words: &[&str]) -> Process {
        let log = File::options().create(true).append(true).open(self.at("log")).unwrap();
        let mut command = self.command(words);
        command.arg("--config").arg(self.at("vmlane.toml")).arg("--runtime-dir").arg(self.run());
        Process(command.stderr(log).spawn().unwrap())
    }

    fn daemon(&self) -> Process {
        let state = self.at("state").display().to_string();
        let daemon = self.start(&["daemon", "--state-dir", &state]);
        until("the daemon answers", || self.status()["pid"] == daemon.0.id());
        daemon
    }

    fn simulate(&self, first: usize, last: usize) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "simulated_hosts", "--ignored", "--nocapture"]);
        command.env(ROLE, format!("{} {first} {last}", self.directory.path().display()));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("simulating")), "the simulated hosts do not start");
        // It is not to fill the pipe; what it says at its end is of no interest.
        std::thread::spawn(move || lines.for_each(drop));
        Process(child)
    }

    /// Runs a command to its end, which it must reach in order. How long that took.
    fn timed(&self, mut command: Command) -> f64 {
        let start = Instant::now();
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        start.elapsed().as_secs_f64()
    }

    fn check(&self) -> f64 {
        let mut command = self.command(&["check"]);
        command.arg(self.at("vmlane.toml"));
        self.timed(command)
    }

    fn reload(&self) -> f64 {
        let mut command = self.command(&["reload", "--runtime-dir"]);
        command.arg(self.run());
        self.timed(command)
    }

    fn status(&self) -> Value {
        let mut command = self.command(&["status", "--json", "--runtime-dir"]);
        serde_json::from_slice(&command.arg(self.run()).output().unwrap().stdout).unwrap_or_default()
    }

    /// The hosts that are connected, and how often connections of these hosts were lost.
    fn up(&self, hosts: std::ops::Range<usize>) -> (usize, u64) {
        let status = self.status();
        let Some(peers) = status["peers"].as_array() else { return (0, 0) };
        let names: std::collections::HashSet<String> = hosts.map(name).collect();
        let ours = || peers.iter().filter(|peer| names.contains(peer["name"].as_str().unwrap_or_default()));
        let lost = |peer: &Value| peer["counters"]["links_lost"].as_u64().unwrap_or(0);
        (ours().filter(|peer| peer["state"] == "up").count(), ours().map(lost).sum())
    }

    fn until_up(&self, hosts: std::ops::Range<usize>, count: usize) -> f64 {
        let start = Instant::now();
        until(&format!("{count} of the hosts {hosts:?} are connected"), || self.up(hosts.clone()).0 == count);
        start.elapsed().as_secs_f64()
    }

    /// Programs connect to ports of other hosts, whose daemons are not there: what is asked and refused costs what a connect
    /// costs. Microseconds of the daemon's and the helper's processor time for one.
    fn connects(&self, hosts: usize, daemon: &Process, helper: &Process) -> [f64; 2] {
        const COUNT: usize = 4000;
        let host = Host::at(&self.run());
        let before = [daemon.cpu(), helper.cpu()];
        for number in 0..COUNT {
            let cid = first_cid(number * 7 % hosts, number % RANGES) + number % RANGE;
            let stream = Stream::connect_by(&host, cid as u32, 80, PATIENCE);
            assert!(stream.is_err(), "a host without a daemon has accepted");
        }
        let spent = [daemon.cpu() - before[0], helper.cpu() - before[1]];
        spent.map(|seconds| seconds * 1e6 / COUNT as f64)
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_thousand_hosts_come_vanish_and_come_back() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let world = World::new();
    let stay = HOSTS - VANISH;
    let ranges = HOSTS * RANGES;

    // What one other host costs, to compare with.
    world.configure(1);
    let (daemon, helper) = (world.daemon(), world.start(&["route", "run"]));
    let simulated = world.simulate(0, 1);
    world.until_up(0..1, 1);
    let memory_of_one = [daemon.memory(), helper.memory()];
    let connects_to_one = world.connects(1, &daemon, &helper);
    drop((helper, simulated));
    world.configure(HOSTS);
    let check = world.check();
    let reload = world.reload();

    // All of them.
    let (lasting, vanishing) = (world.simulate(0, stay), world.simulate(stay, HOSTS));
    let helper = world.start(&["route", "run"]);
    let came = world.until_up(0..HOSTS, HOSTS);
    let memory = [daemon.memory(), helper.memory()];
    let (before, start) = ([daemon.cpu(), helper.cpu()], Instant::now());
    std::thread::sleep(Duration::from_secs(20));
    let idle = [daemon.cpu() - before[0], helper.cpu() - before[1]]
        .map(|seconds| seconds * 100.0 / start.elapsed().as_secs_f64());
    let connects = world.connects(HOSTS, &daemon, &helper);
    kept(
        19,
        &format!(
            "{HOSTS} hosts with {ranges} ranges: checked in {check:.2} s, reloaded in {reload:.2} s, connected {came:.1} s after the \
             helper's start; daemon and helper have {} and {} MiB (with one host {} and {}), idle they take {:.1} and {:.1} % of a \
             core; a connect costs them {:.0} and {:.0} us (with one host {:.0} and {:.0})",
            memory[0] >> 10,
            memory[1] >> 10,
            memory_of_one[0] >> 10,
            memory_of_one[1] >> 10,
            idle[0],
            idle[1],
            connects[0],
            connects[1],
            connects_to_one[0],
            connects_to_one[1],
        ),
    );

    // One more group for one host: nothing else changes.
    let lost_before = world.up(0..HOSTS).1;
    world.configure_host(0, "other");
    let reload = world.reload();
    helper.signal(Signal::HUP);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(world.up(0..HOSTS), (HOSTS, lost_before), "a reload has ended connections");

    // Hosts vanish: they are found dead, and no other is.
    vanishing.signal(Signal::STOP);
    let start = Instant::now();
    until("the hosts that vanished are found dead", || world.up(stay..HOSTS).0 == 0);
    let vanished = start.elapsed().as_secs_f64();
    let lost_by_others = world.up(0..stay);
    assert_eq!((lost_by_others.0, world.up(0..HOSTS).1), (stay, lost_before + VANISH as u64));
    vanishing.signal(Signal::CONT);
    let came_back = world.until_up(0..HOSTS, HOSTS);

    // The host itself comes back, and all others to it.
    drop(helper);
    until("the daemon notices", || world.up(0..HOSTS).0 == 0);
    let helper = world.start(&["route", "run"]);
    let storm = world.until_up(0..HOSTS, HOSTS);
    kept(
        19,
        &format!(
            "one host's group changed in {reload:.2} s, no connection ended; {VANISH} hosts fell silent: all found dead after \
             {vanished:.1} s (dead_s = {DEAD_S}), none of the others, and back {came_back:.1} s after they spoke again; the helper was \
             killed: all {HOSTS} hosts were back {storm:.1} s after the next one's start"
        ),
    );
    drop((lasting, vanishing, helper, daemon));
}
