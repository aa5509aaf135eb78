//! The daemon as users run it: without rights it does not need; and what happens when a thread tries more.

mod common;
#[path = "common/nic.rs"]
mod nic;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::eventually;
use vmlane_guestsim::vfio_user::Client as Vmm;

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
const CONFIG: &str = "[daemon]\nfault_injection = true\n\
    [[vm]]\nname = \"web\"\ncid = 3\nnic = [{ model = \"vmxnet3\", mac = \"52:54:00:00:00:03\" }]\n";
const CONTROL: u64 = 0x20004;
/// Exit code after a violation.
const VIOLATED: i32 = 71;

struct Place(tempfile::TempDir);

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Place {
    fn new(config: &str) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        // Any user that the daemon becomes gets through.
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o711)).unwrap();
        fs::write(place.0.path().join("vmlane.toml"), config).unwrap();
        place
    }

    fn runtime(&self) -> PathBuf {
        self.0.path().join("run")
    }

    fn command(&self, more: &[&str]) -> Command {
        let log = fs::File::create(self.0.path().join("log")).unwrap();
        let mut command = Command::new(VMLANE);
        command.args(["daemon", "--config"]).arg(self.0.path().join("vmlane.toml"));
        command.arg("--runtime-dir").arg(self.runtime()).args(more);
        command.env_remove("VMLANE_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(log);
        command
    }

    fn start(&self, more: &[&str]) -> Daemon {
        let daemon = Daemon(self.command(more).spawn().unwrap());
        eventually("the daemon answers", || self.ask(&["status"]).status.success().then_some(()));
        daemon
    }

    fn ask(&self, words: &[&str]) -> Output {
        Command::new(VMLANE).args(words).arg("--runtime-dir").arg(self.runtime()).output().unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.path().join("log")).unwrap()
    }

    fn web(&self, socket: &str) -> PathBuf {
        self.runtime().join("vm/web").join(socket)
    }
}

/// A line of a thread's status, by thread name.
fn threads(daemon: &Daemon, key: &str) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.0.id())).unwrap().flatten();
    let one = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let field = |key: &str| {
            let line = status.lines().find(|line| line.split(':').next() == Some(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        Some((field("Name")?, field(key)?))
    };
    tasks.filter_map(one).collect()
}

#[test]
fn every_thread_is_confined() {
    let place = Place::new(CONFIG);
    let daemon = place.start(&[]);
    let mut vmm = Vmm::connect(place.web("vmci.sock")).unwrap();
    vmm.read_u32(1, CONTROL).unwrap();
    for (key, wanted) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
        for (thread, value) in threads(&daemon, key) {
            assert_eq!(value, wanted, "{key} of thread {thread}");
        }
    }
    for key in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        for (thread, value) in threads(&daemon, key) {
            assert_eq!(value.trim_start_matches('0'), "", "{key} of thread {thread}");
        }
    }
    // Threads that serve guests have two filters more than the others.
    // One that has just begun has its parent's name and filters for a moment.
    eventually("the filters of every thread", || {
        let filters = threads(&daemon, "Seccomp_filters");
        let of = |name: &str| {
            let filter = filters.iter().find(|(thread, _)| thread.starts_with(name))?;
            filter.1.parse::<u32>().ok()
        };
        let wanted = of("control")? + 2;
        ["vfu-web", "acc-web", "worker-0", "switch", "vsock", "host"]
            .iter()
            .all(|name| of(name) == Some(wanted))
            .then_some(())
    });
    if rustix::process::geteuid().is_root() {
        let uids = threads(&daemon, "Uid");
        assert!(uids.iter().all(|(_, uid)| !uid.split_whitespace().any(|uid| uid == "0")), "{uids:?}");
    }
    let status = String::from_utf8(place.ask(&["status"]).stdout).unwrap();
    assert!(status.contains("no capabilities, seccomp"), "{status}");
}

/// Linux since 6.1 does, if it has transparent huge pages at all, and unless its administrator denies them to shared memory.
fn makes_huge_pages() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let shared = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    (numbers.next(), numbers.next()) >= (Some(6), Some(1))
        && shared.is_ok_and(|mode| !mode.contains("[deny]"))
}

/// Frames flow meanwhile: none is lost, none is changed.
#[test]
fn a_confined_daemon_puts_memory_of_vms_into_huge_pages() {
    if !makes_huge_pages() {
        return eprintln!("not tested: this kernel makes no huge pages of memory files");
    }
    let nic = |vm: u8| {
        format!(
            "[[vm]]\nname = \"vm{vm}\"\nvsock = \"none\"\n\
         nic = [{{ model = \"virtio-net\", mac = \"52:54:00:00:00:0{vm}\" }}]\n"
        )
    };
    let place = Place::new(&format!("[daemon]\nhuge_pages = \"64M\"\n{}{}", nic(1), nic(2)));
    let _daemon = place.start(&[]);
    let [mut from, mut to] = [1, 2].map(|vm| {
        let mut nic = nic::Nic::new(false);
        nic.populate();
        nic.attach(&place.runtime().join(format!("vm/vm{vm}/nic0.sock")));
        nic
    });
    let (mut sent, mut came) = (0, 0);
    let mut flow = || {
        // For longer than the time between two of the daemon's looks. No more is on its way than the receiver has room for.
        let enough = Instant::now() + Duration::from_millis(1200);
        while Instant::now() < enough {
            while sent - came < u64::from(nic::SIZE) && from.send(sent) {
                sent += 1;
            }
            from.settle();
            for number in to.receive() {
                assert_eq!(number, came, "frames come once, in order");
                came += 1;
            }
        }
        came
    };
    let made = || {
        let stats: serde_json::Value =
            serde_json::from_slice(&place.ask(&["stats", "--json"]).stdout).unwrap();
        stats["daemon"]["huge_pages"].as_u64()
    };
    eventually("huge pages of both VMs", || {
        flow();
        (made() >= Some(2)).then_some(())
    });
    let before = flow();
    eventually("frames afterwards", || (flow() > before).then_some(()));
}

/// The daemon has bytes of every guest in it, and its keeper holds the files of all guests' memory.
#[test]
fn neither_the_daemon_nor_its_keeper_leaves_a_core_dump() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Core).maximum;
    setrlimit(Resource::Core, Rlimit { current: most, maximum: most }).unwrap();
    let place = Place::new(CONFIG);
    let daemon = place.start(&[]);
    let no_core = |pid: u32| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let limit = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        limit.split_whitespace().skip(4).take(2).all(|value| value == "0")
    };
    assert!(no_core(daemon.0.id()));
    let runtime = place.runtime().display().to_string();
    let keeper = eventually("its keeper", || {
        fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
            let command = fs::read_to_string(process.path().join("cmdline")).ok()?;
            let pid = process.file_name().to_str()?.parse::<u32>().ok()?;
            (command.contains("keeper") && command.contains(&runtime)).then_some(pid)
        })
    });
    eventually("the keeper's limit", || no_core(keeper).then_some(()));
    // What may be dumped belongs to its user.
    let owner =
        || std::os::unix::fs::MetadataExt::uid(&fs::metadata(format!("/proc/{keeper}/environ")).unwrap());
    eventually("the keeper to be unreadable for its user", || (owner() == 0).then_some(()));
}

#[test]
fn a_confined_daemon_does_all_its_work() {
    let place = Place::new(CONFIG);
    let mut daemon = place.start(&[]);
    // Sessions come and go, VMs too, clients as well.
    for _ in 0..3 {
        // The one before may be about to go.
        let mut vmm = eventually("a place", || Vmm::connect(place.web("nic0.sock")).ok());
        let memory = vmlane_mem::memfd("guest", 1 << 20).unwrap();
        vmm.map(0, 1 << 20, Some((std::os::fd::AsFd::as_fd(&memory), 0)), true).unwrap();
        assert!(Vmm::connect(place.web("nic0.sock")).is_err(), "a second one is turned away");
        let fd = vmlane_guestsim::eventfd().unwrap();
        vmm.enable_msix(&[std::os::fd::AsFd::as_fd(&fd)]).unwrap();
        vmm.reset().unwrap();
        vmm.unmap_all().unwrap();
    }
    let more = format!("{CONFIG}[[vm]]\nname = \"db\"\ncid = 4\n");
    for config in [more.as_str(), CONFIG, more.as_str()] {
        fs::write(place.0.path().join("vmlane.toml"), config).unwrap();
        let reload = place.ask(&["reload"]);
        assert!(reload.status.success(), "{reload:?}\n{}", place.log());
    }
    Vmm::connect(place.runtime().join("vm/db/vmci.sock")).unwrap().read_u32(1, CONTROL).unwrap();
    assert!(place.ask(&["debug", "panic", "web"]).status.success());
    let mut vmm = Vmm::connect(place.web("vmci.sock")).unwrap();
    assert!(vmm.read_u32(1, CONTROL).is_err(), "a panic, backtrace and all, needs no more");
    vmm.read_u32(1, CONTROL).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon.0), rustix::process::Signal::TERM)
        .unwrap();
    let status = eventually("its end", || daemon.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(0), "{}", place.log());
}

#[test]
fn a_thread_that_tries_more_ends_the_daemon_and_is_named() {
    for (at, socket, thread) in [("vmci", "vmci.sock", "vfu-web"), ("nic0", "nic0.sock", "vfu-web-n0")] {
        let place = Place::new(CONFIG);
        let mut daemon = place.start(&[]);
        let mut vmm = Vmm::connect(place.web(socket)).unwrap();
        assert!(place.ask(&["debug", "trespass", "web", "--at", at]).status.success());
        // Who keeps the daemon's files holds this socket, too.
        vmm.stream().set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        assert!(vmm.read_u32(1, 0).is_err(), "the daemon no longer answers");
        let status = eventually("its end", || daemon.0.try_wait().unwrap());
        assert_eq!(status.code(), Some(VIOLATED), "{}", place.log());
        let log = place.log();
        assert!(
            log.contains(&format!("confinement violated: thread {thread} attempted system call")),
            "{log}"
        );
    }
}

#[test]
fn without_confinement_the_same_is_harmless_and_it_is_said_loudly() {
    let place = Place::new(CONFIG);
    let daemon = place.start(&["--no-confine"]);
    let mut vmm = Vmm::connect(place.web("vmci.sock")).unwrap();
    assert!(place.ask(&["debug", "trespass", "web"]).status.success());
    vmm.read_u32(1, CONTROL).unwrap();
    assert!(place.log().contains("NOT CONFINED"));
    let status = String::from_utf8(place.ask(&["status"]).stdout).unwrap();
    assert!(status.contains("confined: no"), "{status}");
    assert!(threads(&daemon, "Seccomp").iter().all(|(_, mode)| mode != "2"));
}

/// A name of an interface that no other test has.
fn interface() -> String {
    format!("vmlt{}", std::process::id())
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

/// Its interface gets another MTU, goes, and comes again.
fn follows_its_interface(place: &Place, tap: &str) {
    let is_active = || {
        let ports: Vec<u8> = place.ask(&["ports", "--json"]).stdout;
        let ports: serde_json::Value = serde_json::from_slice(&ports).unwrap();
        let ports = ports["switch"].as_array().expect("the ports of the switch");
        ports.iter().find(|port| port["name"] == "lan").expect("the uplink")["active"] == true
    };
    assert!(is_active());
    ip(&format!("link set {tap} mtu 4000"));
    eventually("the new MTU", || place.log().contains("mtu=4000").then_some(()));
    ip(&format!("link del {tap}"));
    eventually("the loss of the interface", || (!is_active()).then_some(()));
    assert!(place.log().contains("the interface is gone"), "{}", place.log());
    // It is not for the daemon to make it again: an operator who makes it anew finds its name free.
    ip(&format!("tuntap add dev {tap} mode tap"));
    eventually("the interface again", || is_active().then_some(()));
}

#[test]
fn uplinks_come_move_and_go_while_the_daemon_is_confined() {
    let tap = interface();
    let there = || fs::exists(format!("/sys/class/net/{tap}")).unwrap();
    let place = Place::new(CONFIG);
    let file = place.0.path().join("vmlane.toml");
    let (owner, mode) = (|uid| std::os::unix::fs::chown(&file, Some(uid), None).unwrap(), 0o644);
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    if !rustix::process::geteuid().is_root() || fs::metadata("/dev/net/tun").is_err() {
        println!("skipped: only root can make interfaces");
        return;
    }
    let _daemon = place.start(&[]);
    let reload = |config: &str| {
        fs::write(&file, config).unwrap();
        let reload = place.ask(&["reload"]);
        String::from_utf8_lossy(&[reload.stdout, reload.stderr].concat()).into_owned()
    };
    let uplink = |more: &str| format!("{CONFIG}[[uplink]]\nname = \"lan\"\ntap = \"{tap}\"\n{more}");
    let ports = || String::from_utf8(place.ask(&["ports"]).stdout).unwrap();
    assert!(!ports().contains("lan"));
    let report = reload(&uplink(""));
    assert!(report.contains(&format!("uplink \"lan\": attached to {tap}")), "{report}");
    assert!(there() && ports().contains("lan"), "{}", ports());
    // Another VLAN: the same interface, in use until a moment ago.
    let report = reload(&uplink("vlan = 7\n"));
    assert!(report.contains("attached to"), "{report}");
    assert!(ports().lines().any(|line| line.contains("lan") && line.contains('7')), "{}", ports());
    follows_its_interface(&place, &tap);
    assert!(reload(CONFIG).contains("uplink \"lan\": removed"));
    ip(&format!("link del {tap}"));
    eventually("the interface to go", || (!there()).then_some(()));
    // A file that the daemon's user, or another one, may have written names no interface for a running daemon.
    owner(20_001);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o646)).unwrap();
    let report = reload(&uplink(""));
    assert!(report.contains("can be written by others than root"), "{report}");
    assert!(!there() && !ports().contains("lan"));
    owner(0);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(reload(&uplink("queues = 17\n")).contains("queues = 17"), "it is a mistake of the file's");
    assert!(reload(&uplink("")).contains("attached to"), "the helper goes on");
}

#[test]
fn an_interface_keeps_its_address_when_its_daemon_is_killed() {
    if !rustix::process::geteuid().is_root() || fs::metadata("/dev/net/tun").is_err() {
        println!("skipped: only root can make interfaces");
        return;
    }
    let tap = interface().replace("vmlt", "vmlk");
    let place = Place::new(&format!("{CONFIG}[[uplink]]\nname = \"lan\"\ntap = \"{tap}\"\n"));
    let daemon = place.start(&[]);
    ip(&format!("addr add 192.0.2.77/32 dev {tap}"));
    // Killed.
    drop(daemon);
    let mut daemon = place.start(&[]);
    let shown = Command::new("ip").args(["-o", "addr", "show", "dev", &tap]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("192.0.2.77"), "{shown}\n{}", place.log());
    let pid = rustix::process::Pid::from_child(&daemon.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    eventually("its end", || daemon.0.try_wait().unwrap());
    // One that is stopped leaves nothing behind.
    eventually("the interface to go", || {
        (!fs::exists(format!("/sys/class/net/{tap}")).unwrap()).then_some(())
    });
}

/// One end of a veth pair, which goes with the value.
struct Veth(String);

impl Veth {
    fn new() -> Veth {
        let veth = Veth(interface().replace("vmlt", "vmlv"));
        veth.add();
        veth
    }

    fn add(&self) {
        let Veth(name) = self;
        ip(&format!("link add {name} type veth peer name {}p", &name[3..]));
        ip(&format!("link set {}p up", &name[3..]));
        ip(&format!("link set {name} up"));
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).output();
    }
}

#[test]
fn an_interface_is_taken_followed_and_let_go_by_a_confined_daemon() {
    let is_root = rustix::process::geteuid().is_root();
    let protocols = fs::read_to_string("/proc/net/protocols").unwrap_or_default();
    if !is_root || !protocols.lines().any(|line| line.starts_with("XDP ")) {
        println!("skipped: needs root and a kernel with AF_XDP");
        return;
    }
    let place = Place::new(CONFIG);
    let file = place.0.path().join("vmlane.toml");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let veth = Veth::new();
    let name = &veth.0;
    let status = || String::from_utf8(place.ask(&["status"]).stdout).unwrap();
    let shows = |words: &str| status().lines().any(|line| line.contains("lan ") && line.contains(words));
    let uplink = |more: &str| format!("{CONFIG}[[uplink]]\nname = \"lan\"\ninterface = \"{name}\"\n{more}");
    let reload = |config: &str| {
        fs::write(&file, config).unwrap();
        let reload = place.ask(&["reload"]);
        String::from_utf8_lossy(&[reload.stdout, reload.stderr].concat()).into_owned()
    };
    let daemon = place.start(&[]);
    let report = reload(&uplink(""));
    if report.contains("before Linux 6.4") {
        println!("skipped: needs Linux 6.4");
        return;
    }
    assert!(report.contains(&format!("uplink \"lan\": attached to {name}")), "{report}\n{}", place.log());
    assert!(shows("XDP ") && shows("1 queue"), "{}", status());
    // What the kernel at the other end sends by itself gets to the switch, and the worker may do what it needs.
    eventually("frames", || {
        let ports: serde_json::Value =
            serde_json::from_slice(&place.ask(&["ports", "--json"]).stdout).unwrap();
        let ports = ports["switch"].as_array().expect("the ports of the switch");
        let lan = ports.iter().find(|port| port["name"] == "lan").expect("the uplink");
        (lan["tx_frames"].as_u64() > Some(0)).then_some(())
    });
    let report = reload(&uplink("vlan = 7\n"));
    assert!(report.contains("attached to"), "{report}\n{}", place.log());
    let report = reload(&uplink("queues = 2\n"));
    assert!(report.contains("`queues` is 2"), "{report}");
    assert!(reload(&uplink("")).contains("attached to"));
    ip(&format!("link set {name} mtu 1400"));
    eventually("the new MTU", || place.log().contains("mtu=1400").then_some(()));
    // More than a frame of the uplink holds: it is opened again, or says why it cannot be.
    let longer = Command::new("ip").args(["link", "set", name, "mtu", "3000"]).output().unwrap();
    if longer.status.success() {
        eventually("larger frames", || (place.log().contains("mtu=3000") && shows("yes")).then_some(()));
    }
    ip(&format!("link del {name}"));
    eventually("the loss of the interface", || shows("no ").then_some(()));
    assert!(place.log().contains("the interface is gone"), "{}", place.log());
    veth.add();
    eventually("the interface again", || shows("yes").then_some(()));
    // Killed: the next one opens it anew.
    drop(daemon);
    let daemon = place.start(&[]);
    assert!(shows("yes"), "{}\n{}", status(), place.log());
    drop(daemon);
    drop(Command::new("ip").args(["link", "del", name]).status());
    let _daemon = place.start(&[]);
    assert!(shows("there is none of this name"), "{}", status());
    veth.add();
    eventually("an interface that was not there at the start", || shows("yes").then_some(()));
    assert!(reload(CONFIG).contains("uplink \"lan\": removed"));
    eventually("the program to go", || {
        let shown = Command::new("ip").args(["link", "show", name]).output().unwrap();
        (!String::from_utf8_lossy(&shown.stdout).contains("xdp")).then_some(())
    });
}

/// What a daemon that was taken over would find there.
#[test]
fn the_uplink_helper_has_no_rights_but_those_over_interfaces_and_ends_with_its_daemon() {
    let place = Place::new(CONFIG);
    let daemon = place.start(&[]);
    let file = place.0.path().display().to_string();
    let helpers = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let one = processes.filter_map(|process| {
            let command = fs::read_to_string(process.path().join("cmdline")).ok()?;
            let status = fs::read_to_string(process.path().join("status")).ok()?;
            (command.contains("uplink-helper") && command.contains(&file)).then_some(status)
        });
        one.collect::<Vec<String>>()
    };
    let line = |status: &str, key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a line");
        line.trim_start_matches(':').trim().to_owned()
    };
    let kept = 1 << 12 | 1 << 13 | 1 << 14 | 1 << 39; // CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK, CAP_BPF
    eventually("its rights", || {
        let [status] = &helpers()[..] else { return None };
        let rights = ["CapPrm", "CapEff", "CapInh", "CapAmb"].map(|key| line(status, key));
        let rights = rights.map(|rights| u64::from_str_radix(&rights, 16).unwrap());
        let only = rights.iter().all(|rights| rights & !kept == 0);
        (only && line(status, "NoNewPrivs") == "1").then_some(())
    });
    drop(daemon);
    eventually("its end", || helpers().is_empty().then_some(()));
}

#[test]
fn a_user_that_cannot_be_is_an_error() {
    let place = Place::new(&CONFIG.replacen("[daemon]\n", "[daemon]\nuser = \"no-such-user\"\n", 1));
    let status = place.command(&[]).status().unwrap();
    assert_eq!(status.code(), Some(78));
    let log = place.log();
    assert!(log.contains("no-such-user"), "{log}");
}

/// The state of each uplink of the only team.
fn members(place: &Place) -> Vec<String> {
    let ports: serde_json::Value = serde_json::from_slice(&place.ask(&["ports", "--json"]).stdout).unwrap();
    let members = ports["teams"][0]["members"].as_array().cloned().unwrap_or_default();
    members.iter().map(|member| member["why"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_team_of_a_confined_daemon_uses_another_uplink_when_one_is_lost_and_the_next_daemon_does_too() {
    if !rustix::process::geteuid().is_root() || fs::metadata("/dev/net/tun").is_err() {
        println!("skipped: only root can make interfaces");
        return;
    }
    let taps = ["vmla", "vmlb"].map(|name| interface().replace("vmlt", name));
    let uplink = |at: usize| format!("[[uplink]]\nname = \"up{at}\"\ntap = \"{}\"\n", taps[at]);
    let config = |team: &str| [CONFIG, &uplink(0), &uplink(1), team].concat();
    let team = "[[team]]\nname = \"lan\"\nuplinks = [\"up0\", \"up1\"]\npolicy = \"failover\"\n";
    let place = Place::new(&config(""));
    let file = place.0.path().join("vmlane.toml");
    let (daemon, set) =
        (place.start(&[]), |tap: usize, state: &str| ip(&format!("link set {} {state}", taps[tap])));
    let reload = |team: &str| {
        fs::write(&file, config(team)).unwrap();
        let reload = place.ask(&["reload"]);
        String::from_utf8_lossy(&[reload.stdout, reload.stderr].concat()).into_owned()
    };
    let become_so = |states: [&str; 2]| eventually(states[0], || (members(&place) == states).then_some(()));
    assert!(members(&place).is_empty());
    assert!(reload(team).contains("team \"lan\": added"));
    become_so(["link down", "link down"]);
    set(0, "up");
    set(1, "up");
    become_so(["active", "standby"]);
    set(0, "down");
    become_so(["link down", "active"]);
    set(0, "up");
    become_so(["active", "standby"]);
    assert!(place.ask(&["link", "up0", "down"]).status.success());
    become_so(["set down by the operator", "active"]);
    for command in ["ports", "status"] {
        let text = String::from_utf8(place.ask(&[command]).stdout).unwrap();
        let line = text.lines().find(|line| line.starts_with("lan")).unwrap_or_default().to_owned();
        assert!(line.contains("failover") && line.contains("set down by the operator"), "{text}");
    }
    let stats = String::from_utf8(place.ask(&["stats"]).stdout).unwrap();
    assert!(stats.contains("team.lan.failovers"), "{stats}");
    let refused = place.ask(&["link", "up7", "down"]);
    let refused = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.contains("no uplink \"up7\"; known are up0, up1"), "{refused}");
    // Killed. The next one has the same team, and does what the operator said.
    drop(daemon);
    let _daemon = place.start(&[]);
    become_so(["set down by the operator", "active"]);
    assert!(place.ask(&["link", "up0", "up"]).status.success());
    become_so(["active", "standby"]);
    ip(&format!("link del {}", taps[0]));
    become_so(["interface gone", "active"]);
    assert!(reload(&team.replace("failover", "port")).contains("team \"lan\": changed"));
    assert!(reload(&team.replace("\"up1\"]", "\"up1\", \"up2\"]")).contains("there is no uplink \"up2\""));
    assert!(reload("").contains("team \"lan\": removed"));
    assert!(members(&place).is_empty());
}
