//! Wires between synthetic VMs of a confined daemon, and `vmlane wire`.

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
