//! The daemon as users run it: without rights it does not need; and what happens when a thread tries more.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use vmlane_guestsim::vfio_user::Client as Vmm;
use vmlane_guestsim::virtio_nic::{Nic, SIZE};
use vmlane_testkit::{Daemon, contains_all, eventually, run, skipped, wait_until};

use crate::common::{CONTROL, daemon, place, vmm};

const CONFIG: &str = "[daemon]\n\
    [[vm]]\nname = \"web\"\ncid = 3\nnic = [{ model = \"vmxnet3\", mac = \"52:54:00:00:00:03\" }]\n";

/// A line of a thread's status, by thread name.
fn threads(daemon: &Daemon, key: &str) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten();
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
    let daemon = daemon(CONFIG);
    let mut vmm = vmm(&daemon, "web");
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
        let mut serving = ["vfu-web", "acc-web", "worker-0", "switch", "vsock", "host"].iter();
        serving.all(|name| of(name) == Some(wanted)).then_some(())
    });
    if rustix::process::geteuid().is_root() {
        let uids = threads(&daemon, "Uid");
        assert!(uids.iter().all(|(_, uid)| !uid.split_whitespace().any(|uid| uid == "0")), "{uids:?}");
    }
    contains_all(&daemon.must(&["status"]), &["no capabilities, seccomp"]);
}

/// Linux since 6.1 does, if it has transparent huge pages at all, and unless its administrator denies them to
/// shared memory.
fn makes_huge_pages() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let shared = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    (numbers.next(), numbers.next()) >= (Some(6), Some(1))
        && shared.is_ok_and(|mode| !mode.contains("[deny]"))
}

/// All of a card's memory is there, as that of a VM that has run for a while.
fn populate(nic: &Nic) {
    for (guest, bytes, _) in nic.rx.ram.regions() {
        (guest..guest + bytes).step_by(4096).for_each(|page| nic.rx.ram.read(page, &mut [0]));
    }
}

#[test]
fn a_confined_daemon_puts_memory_of_vms_into_huge_pages() {
    if !makes_huge_pages() {
        return skipped("this kernel makes no huge pages of memory files");
    }
    wait_until("huge pages of both VMs", puts_memory_into_huge_pages);
}

/// Frames flow meanwhile: none is lost, none is changed. False: the kernel was busy with some of the pages,
/// and the daemon leaves these alone for long.
fn puts_memory_into_huge_pages() -> bool {
    let nic = |vm: u8| {
        format!(
            "[[vm]]\nname = \"vm{vm}\"\nvsock = \"none\"\n\
         nic = [{{ model = \"virtio-net\", mac = \"52:54:00:00:00:0{vm}\" }}]\n"
        )
    };
    let daemon = daemon(&format!("[daemon]\nhuge_pages = \"64M\"\n{}{}", nic(1), nic(2)));
    let [mut from, mut to] = [1, 2].map(|vm| {
        let mut nic = Nic::new(false);
        populate(&nic);
        nic.attach(&daemon.socket(&format!("vm{vm}"), "nic0.sock"));
        nic
    });
    let (mut sent, mut came) = (0, 0);
    let mut flow = || {
        // For longer than the time between two of the daemon's checks. No more is on its way than the
        // receiver has room for.
        let enough = Instant::now() + Duration::from_millis(1200);
        while Instant::now() < enough {
            while sent - came < u64::from(SIZE) && from.send(sent) {
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
    let are_put = (0..10).any(|_| {
        flow();
        daemon.json(&["stats"])["daemon"]["huge_pages"].as_u64() >= Some(2)
    });
    let before = flow();
    wait_until("frames afterwards", || flow() > before);
    are_put
}

/// The daemon has bytes of every guest in it, and its keeper holds the files of all guests' memory.
#[test]
fn neither_the_daemon_nor_its_keeper_leaves_a_core_dump() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Core).maximum;
    // For what this process starts from now on, which is daemons that deny themselves core dumps.
    setrlimit(Resource::Core, Rlimit { current: most, maximum: most }).unwrap();
    let daemon = daemon(CONFIG);
    let no_core = |pid: i32| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let limit = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        limit.split_whitespace().skip(4).take(2).all(|value| value == "0")
    };
    assert!(no_core(daemon.pid() as i32));
    let keeper = eventually("its keeper", || daemon.beside("keeper")).as_raw_nonzero().get();
    wait_until("the keeper's limit", || no_core(keeper));
    // What may be dumped belongs to its user.
    wait_until("the keeper to be unreadable for its user", || {
        fs::metadata(format!("/proc/{keeper}/environ")).unwrap().uid() == 0
    });
}

#[test]
fn a_confined_daemon_does_all_its_work() {
    let daemon = daemon(CONFIG);
    let nic = daemon.socket("web", "nic0.sock");
    // Sessions come and go, VMs too, clients as well.
    for _ in 0..3 {
        // The one before may be about to go.
        let mut vmm = eventually("a place", || Vmm::connect(&nic).ok());
        let memory = vmlane_mem::memfd("guest", 1 << 20).unwrap();
        vmm.map(0, 1 << 20, Some((std::os::fd::AsFd::as_fd(&memory), 0)), true).unwrap();
        assert!(Vmm::connect(&nic).is_err(), "a second one is turned away");
        let fd = vmlane_guestsim::eventfd().unwrap();
        vmm.enable_msix(&[std::os::fd::AsFd::as_fd(&fd)]).unwrap();
        vmm.reset().unwrap();
        vmm.unmap_all().unwrap();
    }
    let more = format!("{CONFIG}[[vm]]\nname = \"db\"\ncid = 4\n");
    for config in [more.as_str(), CONFIG, more.as_str()] {
        daemon.configure(config);
        let reload = daemon.ask(&["reload"]);
        assert!(reload.succeeded(), "{reload:?}\n{}", daemon.log());
    }
    vmm(&daemon, "db").read_u32(1, CONTROL).unwrap();
    assert_eq!(daemon.stop().code(), Some(0), "{}", daemon.log());
}

/// A name of an interface that no other test has.
fn interface() -> String {
    format!("vmlt{}", std::process::id())
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

/// What `ip` prints of an interface; nothing where there is none.
fn show(interface: &str) -> String {
    let mut show = Command::new("ip");
    show.args(["addr", "show", "dev", interface]);
    run(show).out
}

/// The port of the uplink "lan".
fn lan(daemon: &Daemon) -> Value {
    let ports = daemon.json(&["ports"]);
    let ports = ports["switch"].as_array().expect("the ports of the switch");
    ports.iter().find(|port| port["name"] == "lan").expect("the uplink").clone()
}

/// What a daemon prints that has another configuration by now.
fn reload(daemon: &Daemon, config: &str) -> String {
    daemon.configure(config);
    daemon.ask(&["reload"]).printed()
}

fn is_there(interface: &str) -> bool {
    fs::exists(format!("/sys/class/net/{interface}")).unwrap()
}

/// Else the test is skipped.
fn can_make_interfaces() -> bool {
    let can = rustix::process::geteuid().is_root() && fs::metadata("/dev/net/tun").is_ok();
    if !can {
        skipped("only root can make interfaces");
    }
    can
}

/// Its interface gets another MTU, goes, and comes again.
fn follows_its_interface(daemon: &Daemon, tap: &str) {
    let is_active = || lan(daemon)["active"] == true;
    assert!(is_active());
    ip(&format!("link set {tap} mtu 4000"));
    wait_until("the new MTU", || daemon.log().contains("mtu=4000"));
    ip(&format!("link del {tap}"));
    wait_until("the loss of the interface", || !is_active());
    assert!(daemon.log().contains("the interface is gone"), "{}", daemon.log());
    // It is not for the daemon to make it again: an operator who makes it anew finds its name free.
    ip(&format!("tuntap add dev {tap} mode tap"));
    wait_until("the interface again", is_active);
}

#[test]
fn uplinks_come_move_and_go_while_the_daemon_is_confined() {
    if !can_make_interfaces() {
        return;
    }
    let tap = interface();
    let daemon = daemon(CONFIG);
    let reload = |config: &str| reload(&daemon, config);
    let uplink = |more: &str| format!("{CONFIG}[[uplink]]\nname = \"lan\"\ntap = \"{tap}\"\n{more}");
    let ports = || daemon.must(&["ports"]);
    assert!(!ports().contains("lan"));
    let report = reload(&uplink(""));
    assert!(report.contains(&format!("uplink \"lan\": attached to {tap}")), "{report}");
    assert!(is_there(&tap) && ports().contains("lan"), "{}", ports());
    // Another VLAN: the same interface, in use until a moment ago.
    let report = reload(&uplink("vlan = 7\n"));
    assert!(report.contains("attached to"), "{report}");
    assert!(ports().lines().any(|line| line.contains("lan") && line.contains('7')), "{}", ports());
    follows_its_interface(&daemon, &tap);
    assert!(reload(CONFIG).contains("uplink \"lan\": removed"));
    ip(&format!("link del {tap}"));
    wait_until("the interface to go", || !is_there(&tap));
    // A file that the daemon's user, or another one, may have written names no interface for a running
    // daemon.
    daemon.configure(&uplink(""));
    chown(daemon.config(), Some(20_001), None).unwrap();
    fs::set_permissions(daemon.config(), fs::Permissions::from_mode(0o646)).unwrap();
    let report = daemon.ask(&["reload"]).printed();
    assert!(report.contains("belongs to user 20001 (mode 0646)"), "{report}");
    assert!(!is_there(&tap) && !ports().contains("lan"));
    chown(daemon.config(), Some(0), None).unwrap();
    assert!(reload(&uplink("queues = 17\n")).contains("queues = 17"), "it is a mistake of the file's");
    assert!(reload(&uplink("")).contains("attached to"), "the helper goes on");
}

#[test]
fn an_interface_keeps_its_address_when_its_daemon_is_killed() {
    if !can_make_interfaces() {
        return;
    }
    let tap = interface().replace("vmlt", "vmlk");
    let daemon = daemon(&format!("{CONFIG}[[uplink]]\nname = \"lan\"\ntap = \"{tap}\"\n"));
    ip(&format!("addr add 192.0.2.77/32 dev {tap}"));
    daemon.kill();
    daemon.start();
    let shown = show(&tap);
    assert!(shown.contains("192.0.2.77"), "{shown}\n{}", daemon.log());
    daemon.stop();
    // One that is stopped leaves nothing behind.
    wait_until("the interface to go", || !is_there(&tap));
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
        return skipped("needs root and a kernel with AF_XDP");
    }
    let daemon = daemon(CONFIG);
    let veth = Veth::new();
    let name = &veth.0;
    let status = || daemon.must(&["status"]);
    let shows = |words: &str| status().lines().any(|line| line.contains("lan ") && line.contains(words));
    let uplink = |more: &str| format!("{CONFIG}[[uplink]]\nname = \"lan\"\ninterface = \"{name}\"\n{more}");
    let reload = |config: &str| reload(&daemon, config);
    let report = reload(&uplink(""));
    if report.contains("before Linux 6.4") {
        return skipped("needs Linux 6.4");
    }
    assert!(report.contains(&format!("uplink \"lan\": attached to {name}")), "{report}\n{}", daemon.log());
    assert!(shows("XDP ") && shows("1 queue"), "{}", status());
    // What the kernel at the other end sends by itself gets to the switch, and the worker may do what it
    // needs.
    wait_until("frames", || lan(&daemon)["tx_frames"].as_u64() > Some(0));
    let report = reload(&uplink("vlan = 7\n"));
    assert!(report.contains("attached to"), "{report}\n{}", daemon.log());
    let report = reload(&uplink("queues = 2\n"));
    assert!(report.contains("`queues` is 2"), "{report}");
    assert!(reload(&uplink("")).contains("attached to"));
    ip(&format!("link set {name} mtu 1400"));
    wait_until("the new MTU", || daemon.log().contains("mtu=1400"));
    // More than a frame of the uplink holds: it is opened again, or reports why it cannot be.
    let longer = Command::new("ip").args(["link", "set", name, "mtu", "3000"]).output().unwrap();
    if longer.status.success() {
        wait_until("larger frames", || daemon.log().contains("mtu=3000") && shows("yes"));
    }
    ip(&format!("link del {name}"));
    wait_until("the loss of the interface", || shows("no "));
    assert!(daemon.log().contains("the interface is gone"), "{}", daemon.log());
    veth.add();
    wait_until("the interface again", || shows("yes"));
    // The next one opens it anew.
    daemon.kill();
    daemon.start();
    assert!(shows("yes"), "{}\n{}", status(), daemon.log());
    daemon.kill();
    drop(Command::new("ip").args(["link", "del", name]).status());
    daemon.start();
    assert!(shows("there is none of this name"), "{}", status());
    veth.add();
    wait_until("an interface that was not there at the start", || shows("yes"));
    assert!(reload(CONFIG).contains("uplink \"lan\": removed"));
    wait_until("the program to go", || !show(name).contains("xdp"));
}

/// What a daemon that was taken over would find there.
#[test]
fn the_uplink_helper_has_no_rights_but_those_over_interfaces_and_ends_with_its_daemon() {
    let daemon = daemon(CONFIG);
    let line = |status: &str, key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a line");
        line.trim_start_matches(':').trim().to_owned()
    };
    let kept = 1 << 12 | 1 << 13 | 1 << 14 | 1 << 39; // CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK, CAP_BPF
    eventually("its rights", || {
        let helper = daemon.beside("uplink-helper")?.as_raw_nonzero();
        let status = &fs::read_to_string(format!("/proc/{helper}/status")).ok()?;
        let rights = ["CapPrm", "CapEff", "CapInh", "CapAmb"].map(|key| line(status, key));
        let rights = rights.map(|rights| u64::from_str_radix(&rights, 16).unwrap());
        let only = rights.iter().all(|rights| rights & !kept == 0);
        (only && line(status, "NoNewPrivs") == "1").then_some(())
    });
    daemon.kill();
    wait_until("its end", || daemon.beside("uplink-helper").is_none());
}

#[test]
fn a_user_that_cannot_be_is_an_error() {
    let daemon = place(&CONFIG.replacen("[daemon]\n", "[daemon]\nuser = \"no-such-user\"\n", 1));
    run(daemon.daemon_command()).fails(78, &["no-such-user"]);
}

/// The state of each uplink of the only team.
fn members(daemon: &Daemon) -> Vec<String> {
    let ports = daemon.json(&["ports"]);
    let members = ports["teams"][0]["members"].as_array().cloned().unwrap_or_default();
    members.iter().map(|member| member["why"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_team_of_a_confined_daemon_uses_another_uplink_when_one_is_lost_and_the_next_daemon_does_too() {
    if !can_make_interfaces() {
        return;
    }
    let taps = ["vmla", "vmlb"].map(|name| interface().replace("vmlt", name));
    let uplink = |at: usize| format!("[[uplink]]\nname = \"up{at}\"\ntap = \"{}\"\n", taps[at]);
    let config = |team: &str| [CONFIG, &uplink(0), &uplink(1), team].concat();
    let team = "[[team]]\nname = \"lan\"\nuplinks = [\"up0\", \"up1\"]\npolicy = \"failover\"\n";
    let daemon = daemon(&config(""));
    let set = |tap: usize, state: &str| ip(&format!("link set {} {state}", taps[tap]));
    let reload = |team: &str| reload(&daemon, &config(team));
    let become_so = |states: [&str; 2]| wait_until(states[0], || members(&daemon) == states);
    assert!(members(&daemon).is_empty());
    assert!(reload(team).contains("team \"lan\": added"));
    become_so(["link down", "link down"]);
    set(0, "up");
    set(1, "up");
    become_so(["active", "standby"]);
    set(0, "down");
    become_so(["link down", "active"]);
    set(0, "up");
    become_so(["active", "standby"]);
    daemon.must(&["link", "up0", "down"]);
    become_so(["set down by the operator", "active"]);
    for command in ["ports", "status"] {
        let text = daemon.must(&[command]);
        let line = text.lines().find(|line| line.starts_with("lan")).unwrap_or_default().to_owned();
        assert!(line.contains("failover") && line.contains("set down by the operator"), "{text}");
    }
    contains_all(&daemon.must(&["stats"]), &["team.lan.failovers"]);
    let refused = daemon.ask(&["link", "up7", "down"]);
    contains_all(&refused.err, &["no uplink \"up7\"; known are up0, up1"]);
    // Killed. The next one has the same team, and keeps what the operator set.
    daemon.kill();
    daemon.start();
    become_so(["set down by the operator", "active"]);
    daemon.must(&["link", "up0", "up"]);
    become_so(["active", "standby"]);
    ip(&format!("link del {}", taps[0]));
    become_so(["interface gone", "active"]);
    assert!(reload(&team.replace("failover", "port")).contains("team \"lan\": changed"));
    assert!(reload(&team.replace("\"up1\"]", "\"up1\", \"up2\"]")).contains("there is no uplink \"up2\""));
    assert!(reload("").contains("team \"lan\": removed"));
    assert!(members(&daemon).is_empty());
}
