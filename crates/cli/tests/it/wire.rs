//! Wires between synthetic VMs of a confined daemon, and `vmlane wire`.

use serde_json::{Value, json};
use vmlane_guestsim::virtio_nic::Nic;
use vmlane_testkit::{Daemon, wait_until};

use crate::common;

/// Three VMs with a card each.
const CONFIG: &str = "\
[[vm]]
name = \"a\"
vsock = \"none\"
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:01\" } ]
[[vm]]
name = \"b\"
vsock = \"none\"
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:02\" } ]
[[vm]]
name = \"c\"
vsock = \"none\"
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:03\" } ]
";

struct World {
    daemon: Daemon,
    nics: [Nic; 3],
    next: u64,
}

fn attached(daemon: &Daemon, vm: &str) -> Nic {
    let mut nic = Nic::new(false);
    nic.attach(&daemon.socket(vm, "nic0.sock"));
    nic
}

fn wire(name: &str, one: &str, other: &str) -> String {
    format!("[[wire]]\nname = \"{name}\"\nends = [\"{one}\", \"{other}\"]\n")
}

impl World {
    fn new(wires: &str) -> World {
        let daemon = common::daemon(&[CONFIG, wires].concat());
        let nics = ["a", "b", "c"].map(|vm| attached(&daemon, vm));
        World { daemon, nics, next: 0 }
    }

    fn ask(&self, arguments: &str) -> String {
        self.daemon.ask(&arguments.split(' ').collect::<Vec<_>>()).printed()
    }

    fn reload(&self, wires: &str) -> String {
        self.daemon.configure(&[CONFIG, wires].concat());
        self.ask("reload")
    }

    /// Sends frames from a until so many have come to b and to c.
    fn send(&mut self, count: u64, expected: [u64; 2]) {
        let [a, b, c] = &mut self.nics;
        let (mut received, last) = ([0, 0], self.next + count);
        wait_until("all frames arrive", || {
            while self.next < last && a.sent.len() < 16 && a.send(self.next) {
                self.next += 1;
            }
            a.settle();
            received[0] += b.receive().len() as u64;
            received[1] += c.receive().len() as u64;
            self.next == last && a.sent.is_empty() && received[0] >= expected[0] && received[1] >= expected[1]
        });
        assert_eq!(received, expected);
    }

    fn listed(&self, words: &str) {
        wait_until("the wire is in that state", || self.ask("wire list").contains(words));
    }
}

#[test]
fn wires_come_change_and_go_by_reloads_and_are_listed_with_their_state() {
    let mut world = World::new(&wire("l1", "a/nic0", "b/nic0"));
    world.listed("l1    a/nic0  b/nic0  yes");
    world.send(100, [100, 0]);
    world.listed("yes      100    0");
    let ports = world.ask("ports");
    assert_eq!(ports.matches("wire:l1").count(), 2, "{ports}");

    let printed = world.reload(&wire("l1", "c/nic0", "a/nic0"));
    for words in ["vm \"b\": changed", "vm \"c\": changed", "wire \"l1\": changed"] {
        assert!(printed.contains(words), "{words:?} is not in {printed}");
    }
    // Whatever the frames' addresses are.
    world.send(100, [0, 100]);
    world.listed("l1    c/nic0  a/nic0  yes");

    world.ask("link c/nic0 down");
    world.listed("no: c/nic0 down");
    world.ask("link c/nic0 up");
    world.listed("yes");

    let printed = world.reload(&wire("l1", "c/nic0", "d/nic0"));
    assert!(printed.contains("wire \"l1\": ends: \"d/nic0\" is no NIC and no uplink"), "{printed}");
    let printed = world.reload("");
    assert!(printed.contains("wire \"l1\": removed"), "{printed}");
    world.send(100, [100, 0]);
    assert!(world.ask("wire list --json").contains("\"wires\":[]"));
}

#[test]
fn a_wire_is_impaired_cut_and_joined_while_frames_flow_and_a_reload_ends_what_was_set() {
    let ends = wire("l1", "a/nic0", "b/nic0");
    let both = ends.clone() + "impair = { duplicate = 100 }\nimpair_back = {}\n";
    let mut world = World::new(&ends);
    world.listed("yes");
    world.send(10, [10, 0]);
    // By a reload, in one direction.
    assert!(world.reload(&both).contains("wire \"l1\": changed"));
    world.listed("l1 to b/nic0: duplicate=100: 0 on their way, 0 lost, ");
    world.send(10, [20, 0]);
    // At run time: what is not named stays.
    world.ask("wire set l1 --to b/nic0 loss=100");
    world.ask("wire set l1 --to a/nic0 delay_us=1000 rate=1G");
    world.listed("l1 to b/nic0: loss=100 duplicate=100: ");
    world.listed("l1 to a/nic0: delay_us=1000 rate=1000000000: ");
    world.send(10, [0, 0]);
    world.listed(" 10 lost, 0 reordered, 10 duplicated, ");
    let json: Value = serde_json::from_str(&world.ask("wire list --json")).unwrap();
    let [to_a, to_b] = [0, 1].map(|end| &json["wires"][0]["ends"][end]);
    assert_eq!((&to_a["impair"]["rate"], &to_b["impair"]["loss"]), (&json!(1_000_000_000), &json!(100.0)));
    for (arguments, words) in [
        ("wire set l2 loss=1", "there is no wire \"l2\"; known are l1"),
        ("wire cut l2", "there is no wire \"l2\"; known are l1"),
        (
            "wire set l1 --to c/nic0 loss=1",
            "wire \"l1\" has no end \"c/nic0\"; its ends are a/nic0 and b/nic0",
        ),
        ("wire set l1 loss=101", "wire \"l1\": impair: loss = 101; use a percentage from 0 to 100"),
        ("wire set l1 lose=1", "lose = 1: there is no such key; did you mean loss?"),
        ("wire set l1 loss", "write KEY=VALUE"),
    ] {
        let ran = world.daemon.ask(&arguments.split(' ').collect::<Vec<_>>());
        assert!(!ran.succeeded() && ran.err.contains(words), "{arguments}: {ran:?}");
    }
    world.ask("reload");
    world.send(10, [20, 0]);

    world.ask("wire cut l1");
    world.listed("no: cut");
    world.send(10, [0, 0]);
    world.ask("reload");
    world.listed("no: cut");
    world.ask("wire join l1");
    world.listed("yes");
    world.send(10, [20, 0]);
    // A wire that comes back is not cut.
    world.ask("wire cut l1");
    world.reload("");
    world.reload(&ends);
    world.listed("yes");
    world.send(10, [10, 0]);
}
