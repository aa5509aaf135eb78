//! A team of TAP interfaces in a bridge, against the host's real network stack, in network namespaces of
//! their own. Needs root.

mod streams;

use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use vmlane_config::Config;
use vmlane_host::uplink::{Tap, TapFiles, TapOptions};
use vmlane_switch::{MemberState, PortSpec, Settings, Traffic, VlanMode};
use vmlane_testkit::{Process, again, eventually, role, skipped, wait_until};
use vmlane_wire::ethernet::Mac;

use self::streams::{Report, now};
use super::*;
use crate::nic::port_spec;

const HOST: &str = "10.9.0.1";
const VM: &str = "10.9.0.2";
const VM_MAC: &str = "52:54:00:00:00:02";
/// What gives a process a network namespace of its own.
const UNSHARED: [&str; 2] = ["unshare", "-n"];

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status().unwrap().success()
}

fn must(words: &str) {
    assert!(ip(words), "ip {words}");
}

/// A VM's port, and behind it the interface `vm0`.
fn add_vm(switch: &Switch) {
    let options = TapOptions { name: "vm0".into(), queues: None };
    let tap = Tap::new(&options, TapFiles::open(&options).unwrap(), Default::default()).unwrap();
    let port = switch
        .add_port(PortSpec {
            name: "vm/nic0".into(),
            group: "default".into(),
            switch: "default".into(),
            mac: VM_MAC.parse::<Mac>().unwrap(),
            vlan: VlanMode::Untagged,
            policy: Default::default(),
            traffic: Traffic::default(),
            uplink: false,
            direct: false,
            notify: false,
        })
        .unwrap();
    switch.attach(port, Box::new(tap));
}

/// The switch of a daemon, its team `lan` of `up0` and `up1` in the bridge `br0`, and a VM behind `vm0` in
/// another namespace.
struct World {
    uplinks: Uplinks,
    switch: Arc<Switch>,
    vm: Process,
    orders: Option<ChildStdin>,
}

impl World {
    fn new(team: &str) -> World {
        let uplink = |name: &str| format!("[[uplink]]\nname = \"{name}\"\ntap = \"{name}\"\n");
        let team = format!("[[team]]\nname = \"lan\"\nuplinks = [\"up0\", \"up1\"]\n{team}\n");
        let text = [uplink("up0"), uplink("up1"), team].concat();
        let config = Config::parse(Path::new("t.toml"), &text).unwrap();
        let mut uplinks = Uplinks::prepare(&config.uplinks).unwrap();
        let switch = Arc::new(Switch::start(Settings::default()).unwrap());
        assert!(uplinks.change(&switch, &config.uplinks).1.is_empty());
        uplinks.follow_links(&switch);
        assert_eq!(uplinks.set_teams(&switch, &config.teams), ["team \"lan\": added"]);
        must("link add br0 type bridge");
        must(&format!("addr add {HOST}/24 dev br0"));
        ["up0", "up1"].iter().for_each(|up| must(&format!("link set {up} master br0 up")));
        must("link set br0 up");
        add_vm(&switch);
        let vm = again(&UNSHARED, "vm").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut vm = Process(vm.unwrap());
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let pid = vm.id().to_string();
        eventually("the VM's namespace", || {
            namespace(&pid).filter(|other| Some(other) != namespace("self").as_ref())
        });
        must(&format!("link set vm0 netns {pid}"));
        let orders = vm.0.stdin.take();
        World { uplinks, switch, vm, orders }
    }

    fn members(&self) -> Vec<MemberState> {
        self.switch.teams().remove(0).members
    }

    /// Frames that left through an uplink.
    fn left(&self, uplink: usize) -> u64 {
        self.switch.stats(self.uplinks.known[uplink].port).rx_frames.get()
    }

    /// Sets an interface up or down. Returns how long it took until frames left through `to`, from the
    /// command's begin.
    fn set(&self, interface: &str, state: &str, to: usize) -> Duration {
        let (before, start) = (self.left(to), Instant::now());
        must(&format!("link set {interface} {state}"));
        wait_until("frames through the other uplink", || self.left(to) > before);
        start.elapsed()
    }

    /// Until every stream has moved on.
    fn wait(&self, report: &Report) {
        let before = report.received();
        wait_until("bytes of every stream", || {
            report.received().iter().zip(&before).all(|(now, before)| *now > before + streams::SOME)
        });
    }
}

/// The VM: takes its interface, and has the streams.
fn be_the_vm() {
    wait_until("vm0", || ip(&format!("link set vm0 address {VM_MAC}")));
    must("link set vm0 up");
    must(&format!("addr add {VM}/24 dev vm0"));
    streams::connect(&format!("{HOST}:7000"));
}

/// Runs this test as each of `roles`, in a network namespace each, if it may.
fn in_namespaces(roles: &[&str]) {
    match Command::new("unshare").args(["-n", "test", "-c", "/dev/net/tun"]).status() {
        Ok(status) if status.success() => {
            for role in roles {
                assert!(again(&UNSHARED, role).status().unwrap().success(), "{role}");
            }
        }
        _ => skipped("needs root and /dev/net/tun"),
    }
}

#[test]
fn a_bridge_learns_of_a_silent_vm_when_the_uplink_in_it_comes_up() {
    if role().is_none() {
        return in_namespaces(&["host"]);
    }
    let uplink = |name: &str, more: &str| format!("[[uplink]]\nname = {name:?}\ntap = {name:?}\n{more}");
    let text = [uplink("up0", ""), uplink("up1", "notify = false\n")].concat();
    let config = Config::parse(Path::new("t.toml"), &text).unwrap();
    let mut uplinks = Uplinks::prepare(&config.uplinks).unwrap();
    let switch = Arc::new(Switch::start(Settings::default()).unwrap());
    assert!(uplinks.change(&switch, &config.uplinks).1.is_empty());
    uplinks.follow_links(&switch);
    assert!(uplinks.set_teams(&switch, &config.teams).is_empty());
    // The VM comes while the uplinks are down: what is announced of it then is lost.
    add_vm(&switch);
    let knows = |bridge: &str| {
        let output = Command::new("bridge").args(["fdb", "show", "br", bridge]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains(VM_MAC)
    };
    for (up, bridge) in [("up1", "br1"), ("up0", "br0")] {
        must(&format!("link add {bridge} type bridge"));
        must(&format!("link set {bridge} up"));
        must(&format!("link set {up} master {bridge} up"));
    }
    wait_until("the VM's address", || knows("br0"));
    assert!(!knows("br1"), "nothing is announced there");
    // And each time, however often the daemon checks its uplinks.
    must("link set up0 down");
    assert!(!knows("br0"));
    uplinks.check(&switch, &config.uplinks);
    must("link set up0 up");
    wait_until("the VM's address again", || knows("br0"));
    must("link add br2 type bridge");
    must("link set br2 up");
    must("link set up0 master br2");
    wait_until("the VM's address in another bridge", || knows("br2"));
}

#[test]
fn an_uplink_goes_to_a_wire_and_back_as_it_is_and_a_nic_has_its_carrier() {
    if role().is_none() {
        return in_namespaces(&["host"]);
    }
    let config = |wire: &str| {
        let vm = "[[vm]]\nname = \"vm\"\nvsock = \"none\"\nnic = [{ model = \"vmxnet3\" }]\n";
        let text = format!("[[uplink]]\nname = \"lan\"\ntap = \"up0\"\nnotify = false\n{vm}{wire}");
        Config::parse(Path::new("t.toml"), &text).unwrap()
    };
    let (switched, wired) = (config(""), config("[[wire]]\nname = \"l\"\nends = [\"vm/nic0\", \"lan\"]\n"));
    let mut uplinks = Uplinks::prepare(&switched.uplinks).unwrap();
    let switch = Arc::new(Switch::start(Settings::default()).unwrap());
    assert!(uplinks.change(&switch, &switched.uplinks).1.is_empty());
    uplinks.follow_links(&switch);
    uplinks.set_teams(&switch, &switched.teams);
    let lan = uplinks.known[0].port;
    let vm = &wired.vms[0];
    let nic = switch.add_port(port_spec(&wired, vm, (0, &vm.nics[0]))).unwrap();
    let view = |id| switch.ports().into_iter().find(|port| port.id == id).unwrap();
    assert!(!view(nic).carrier, "the uplink is on a switch");

    let (done, refused) = uplinks.change(&switch, &wired.uplinks);
    assert!(done.is_empty() && refused.is_empty(), "{done:?}");
    uplinks.set_teams(&switch, &wired.teams);
    assert!(uplinks.known[0].port == lan && view(lan).attached && view(lan).spec.direct);
    for (state, carrier) in [("up", true), ("down", false), ("up", true)] {
        must(&format!("link set up0 {state}"));
        wait_until("the link's state", || view(nic).carrier == carrier);
    }
    assert!(uplinks.change(&switch, &switched.uplinks).0.is_empty());
    assert!(view(lan).attached && !view(lan).spec.direct && !view(nic).carrier);
}

#[test]
fn streams_go_on_when_an_uplink_is_lost_and_when_it_comes_back() {
    let policy = match role() {
        Some(role) if role == "vm" => return be_the_vm(),
        Some(policy) => policy,
        None => return in_namespaces(&["failover", "port", "ip-hash"]),
    };
    let mut world = World::new(&format!("policy = \"{policy}\""));
    let both =
        [MemberState::Active, if policy == "failover" { MemberState::Standby } else { MemberState::Active }];
    wait_until("both links", || world.members() == both);
    let report = streams::accept(&format!("{HOST}:7000"));
    world.wait(&report);
    let lost = now();
    let moved = world.set("up0", "down", 1);
    // By the hash, some streams left through the other uplink all the time.
    wait_until("a link that is down", || world.members() == [MemberState::LinkDown, MemberState::Active]);
    world.wait(&report);
    let found = now();
    let back = world.set("up0", "up", 0);
    wait_until("both links again", || world.members() == both);
    world.wait(&report);
    // The interface is removed.
    let gone = now();
    let before = world.left(1);
    must("link del up0");
    wait_until("frames through the other uplink", || world.left(1) > before);
    world.wait(&report);
    let end = now();
    drop(world.orders.take());
    let gaps = report.finish(&mut world.vm.0);
    let stats = world.switch.teams().remove(0).stats;
    println!("{policy}: moved {moved:?} after the link went down, {back:?} after it came up");
    for (what, from, to) in [("down", lost, found), ("up", found, gone), ("gone", gone, end)] {
        let mut longest = gaps.longest(from, to);
        longest.sort_unstable();
        println!("{policy}: {what}: longest gaps of the streams {longest:?}");
    }
    println!(
        "{policy}: {} failovers, {} failbacks, {} notices",
        stats.failovers.get(),
        stats.failbacks.get(),
        stats.notified.get()
    );
    assert_eq!((stats.failovers.get(), stats.failbacks.get()), (2, 1));
}
