//! A host with a thousand others: what they cost, and what happens when some of them vanish, or the host
//! itself comes back.
//!
//! The others are helpers of the library, each with a thread and a certificate of its own, in two processes;
//! they have no daemons. One process is stopped for a while: its hosts are silent, as hosts without power
//! are.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use vmlane_route::{Bounds, Files, Helper, PeerSettings, Settings, authority};
use vmlane_sock::{Host, Stream};
use vmlane_testkit::Daemon;
use vmlane_tests::alone::{self, output, own_memory, processor_seconds, vmlane};
use vmlane_tests::{TIMEOUT, Process, kept, open_many_files, wait_until};

vmlane_tests::tests! {
    long { a_thousand_hosts_come_vanish_and_come_back }
}

const HOSTS: usize = 1000;
/// Ranges of each.
const RANGES: usize = 10;
/// CIDs of a range; as many are no one's behind it.
const RANGE: usize = 50;
/// The last hosts, which vanish.
const VANISH: usize = 100;
const DEAD_S: u64 = 10;
const PORT: u16 = 17447;
/// The host itself. Names of hosts from `a0` on sort before it and connect to it; it connects to those from
/// `z0` on.
const NAME: &str = "middle";
/// Selects which hosts this program simulates: the directory, the first one, and the one behind the last.
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

/// Whether this process is some of the other hosts. It has been them until its standard input ended.
pub fn was_other_hosts() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
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
    true
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
            crl: None,
        },
        dead: Duration::from_secs(DEAD_S),
        bounds: Bounds::default(),
        peers: vec![PeerSettings {
            name: NAME.into(),
            address: connects.then(own_address),
            fingerprints: Vec::new(),
        }],
        name,
    }
}

/// The host under test.
struct World {
    daemon: Daemon,
}

impl World {
    fn new() -> World {
        let daemon = alone::daemon("");
        let state = daemon.path("state").display().to_string();
        let daemon = daemon.with(&["--state-dir", &state]);
        let signer = authority::authority(authority::days(2)).unwrap();
        daemon.write("authority.pem", &signer.certificate);
        for name in (0..HOSTS).map(name).chain([NAME.to_owned()]) {
            let made = authority::certificate(&signer.key, &name, authority::days(2)).unwrap();
            daemon.write(&format!("{name}.pem"), &made.certificate);
            daemon.write(&format!("{name}.key"), &made.key);
        }
        World { daemon }
    }

    /// A configuration with so many other hosts, a file for each.
    fn configure(&self, hosts: usize) {
        let file = |name: &str| self.daemon.path(name).display().to_string();
        let text = format!(
            "[route]\nname = {NAME:?}\ncids = [\"1000-1999\"]\ncid = 1000\nlisten = \"{}\"\ndead_s = {DEAD_S}\n\
             certificate = {:?}\nkey = {:?}\nauthority = {:?}\n",
            own_address(),
            file("middle.pem"),
            file("middle.key"),
            file("authority.pem")
        );
        self.daemon.configure(&text);
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
        self.daemon.write(&format!("etc/conf.d/{name}.toml"), &text);
    }

    fn helper(&self) -> Process {
        let mut helper = self.daemon.configured(&["route", "run"]);
        Process(helper.stderr(self.daemon.log_file()).spawn().unwrap())
    }

    fn simulate(&self, first: usize, last: usize) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(ROLE, format!("{} {first} {last}", self.daemon.path("").display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut hosts = Process(command.spawn().unwrap());
        let mut printed = String::new();
        BufReader::new(hosts.0.stdout.take().unwrap()).read_line(&mut printed).unwrap();
        assert_eq!(printed, "simulating\n");
        hosts
    }

    fn check(&self) -> f64 {
        timed(vmlane().arg("check").arg(self.daemon.config()))
    }

    fn reload(&self) -> f64 {
        timed(&mut self.daemon.command(&["reload"]))
    }

    /// The hosts that are connected, and how often connections of these hosts were lost.
    fn up(&self, hosts: std::ops::Range<usize>) -> (usize, u64) {
        let status = self.daemon.json(&["status"]);
        let Some(peers) = status["peers"].as_array() else { return (0, 0) };
        let names: std::collections::HashSet<String> = hosts.map(name).collect();
        let ours = || peers.iter().filter(|peer| names.contains(peer["name"].as_str().unwrap_or_default()));
        let lost = |peer: &Value| peer["counters"]["links_lost"].as_u64().unwrap_or(0);
        (ours().filter(|peer| peer["state"] == "up").count(), ours().map(lost).sum())
    }

    fn until_up(&self, hosts: std::ops::Range<usize>) -> f64 {
        let start = Instant::now();
        wait_until("all hosts are connected", || self.up(hosts.clone()).0 == hosts.len());
        start.elapsed().as_secs_f64()
    }

    /// Programs connect to ports of other hosts, whose daemons are not there: what is asked and refused costs
    /// what a connect costs. Microseconds of the daemon's and the helper's processor time for one.
    fn connects(&self, hosts: usize, helper: &Process) -> [f64; 2] {
        const COUNT: usize = 4000;
        let host = Host::at(&self.daemon.runtime());
        let before = self.spent(helper);
        for number in 0..COUNT {
            let cid = first_cid(number * 7 % hosts, number % RANGES) + number % RANGE;
            let stream = Stream::connect_by(&host, cid as u32, 80, TIMEOUT);
            assert!(stream.is_err(), "a host without a daemon has accepted");
        }
        let after = self.spent(helper);
        [0, 1].map(|which| (after[which] - before[which]) * 1e6 / COUNT as f64)
    }

    /// Seconds of processor time of the daemon and the helper.
    fn spent(&self, helper: &Process) -> [f64; 2] {
        [self.daemon.pid(), helper.id()].map(processor_seconds)
    }

    /// Their memory, in MiB.
    fn memory(&self, helper: &Process) -> [u64; 2] {
        [self.daemon.pid(), helper.id()].map(|process| own_memory(process) >> 10)
    }
}

/// Runs a command that must succeed. How long that took.
fn timed(command: &mut Command) -> f64 {
    let start = Instant::now();
    output(command);
    start.elapsed().as_secs_f64()
}

fn a_thousand_hosts_come_vanish_and_come_back() {
    open_many_files();
    let world = World::new();
    let stay = HOSTS - VANISH;
    let ranges = HOSTS * RANGES;

    // What one other host costs, to compare with.
    world.configure(1);
    world.daemon.start();
    let helper = world.helper();
    let simulated = world.simulate(0, 1);
    world.until_up(0..1);
    let memory_of_one = world.memory(&helper);
    let connects_to_one = world.connects(1, &helper);
    drop((helper, simulated));
    world.configure(HOSTS);
    let check = world.check();
    let reload = world.reload();

    // All of them.
    let (lasting, vanishing) = (world.simulate(0, stay), world.simulate(stay, HOSTS));
    let helper = world.helper();
    let came = world.until_up(0..HOSTS);
    let memory = world.memory(&helper);
    let (before, start) = (world.spent(&helper), Instant::now());
    std::thread::sleep(Duration::from_secs(20));
    let (after, seconds) = (world.spent(&helper), start.elapsed().as_secs_f64());
    let idle = [0, 1].map(|which| (after[which] - before[which]) * 100.0 / seconds);
    let connects = world.connects(HOSTS, &helper);
    kept(
        "hosts",
        &format!(
            "{HOSTS} hosts with {ranges} ranges: checked in {check:.2} s, reloaded in {reload:.2} s, connected \
             {came:.1} s after the helper's start; daemon and helper have {} and {} MiB (with one host {} and {}), \
             idle they take {:.1} and {:.1} % of a core; a connect costs them {:.0} and {:.0} us (with one host \
             {:.0} and {:.0})",
            memory[0],
            memory[1],
            memory_of_one[0],
            memory_of_one[1],
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
    wait_until("the hosts that vanished are found dead", || world.up(stay..HOSTS).0 == 0);
    let vanished = start.elapsed().as_secs_f64();
    let lost_by_others = world.up(0..stay);
    assert_eq!((lost_by_others.0, world.up(0..HOSTS).1), (stay, lost_before + VANISH as u64));
    vanishing.signal(Signal::CONT);
    let came_back = world.until_up(0..HOSTS);

    // The host itself comes back, and all others to it.
    drop(helper);
    wait_until("the daemon notices", || world.up(0..HOSTS).0 == 0);
    let helper = world.helper();
    let storm = world.until_up(0..HOSTS);
    kept(
        "hosts",
        &format!(
            "one host's group changed in {reload:.2} s, no connection ended; {VANISH} hosts fell silent: all found \
             dead after {vanished:.1} s (dead_s = {DEAD_S}), none of the others, and back {came_back:.1} s after they \
             spoke again; the helper was killed: all {HOSTS} hosts were back {storm:.1} s after the next one's start"
        ),
    );
    drop((lasting, vanishing, helper));
}
