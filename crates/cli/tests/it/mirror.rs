//! Mirrors of a confined daemon with three synthetic VMs: by a reload, and by `vmlane mirror`.

use serde_json::json;
use vmlane_guestsim::virtio_nic::{FRAME, Nic};
use vmlane_testkit::{Daemon, wait_until};

use crate::common;

const CONFIG: &str = "\
[[vm]]
name = \"a\"
vsock = \"none\"
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:01\", port_group = \"prod\" } ]
[[vm]]
name = \"b\"
vsock = \"none\"
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:02\" } ]
[[vm]]
name = \"ids\"
vsock = \"none\"
group = \"of-its-own\"
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:03\", port_group = \"prod\" } ]
[[port_group]]
name = \"prod\"
";

struct World {
    daemon: Daemon,
    nics: [Nic; 3],
    next: u64,
}

impl World {
    fn new(mirrors: &str) -> World {
        let daemon = common::daemon(&[CONFIG, mirrors].concat());
        let nics = ["a", "b", "ids"].map(|vm| {
            let mut nic = Nic::new(false);
            nic.attach(&daemon.socket(vm, "nic0.sock"));
            nic
        });
        World { daemon, nics, next: 0 }
    }

    /// Runs a command that asks the daemon: whether it succeeded, and what it printed.
    fn ask(&self, arguments: &str) -> (bool, String) {
        let ran = self.daemon.ask(&arguments.split(' ').collect::<Vec<_>>());
        (ran.succeeded(), ran.printed())
    }

    fn reload(&self, mirrors: &str) -> String {
        self.daemon.configure(&[CONFIG, mirrors].concat());
        self.ask("reload").1
    }

    /// Sends frames from a to b until `copies` of them have come to the analyzer, and all to b.
    fn send(&mut self, count: u64, copies: u64) {
        let [a, b, ids] = &mut self.nics;
        let (mut received, mut copied, last) = (0, 0, self.next + count);
        wait_until("all frames arrive", || {
            // Few at a time: the analyzer's ring has room for all.
            while self.next < last && a.sent.len() < 16 && a.send(self.next) {
                self.next += 1;
            }
            a.settle();
            received += b.receive().len() as u64;
            copied += ids.receive().len() as u64;
            received == count && copied >= copies
        });
        assert_eq!(copied, copies);
    }
}

const MIRROR: &str = "[[mirror]]\nname = \"m\"\nfrom = [\"prod\"]\nto = \"ids/nic0\"\n";

#[test]
fn a_mirror_of_the_configuration_comes_with_the_daemon_changes_and_goes_by_reloads() {
    let mut world = World::new(MIRROR);
    world.send(200, 200);
    let (_, listed) = world.ask("mirror list");
    let bytes = 200 * FRAME;
    for words in ["m       prod  ids/nic0  both", " 200 ", &format!("{:.1} KiB", bytes as f64 / 1024.0)] {
        assert!(listed.contains(words), "{words:?} is not in {listed}");
    }
    let mirror = world.daemon.json(&["ports"])["mirrors"][0].take();
    assert_eq!(mirror["ports"], json!(["a/nic0"]), "not its destination, which is in the group, too");
    assert_eq!((&mirror["frames"], &mirror["dropped"]), (&200.into(), &0.into()));

    // It goes on with other sources, and its counts with it.
    let printed = world.reload(&MIRROR.replace("prod", "b/nic0"));
    assert!(printed.contains("mirror \"m\": from b/nic0 to ids/nic0"), "{printed}");
    world.send(100, 100);
    assert!(world.ask("mirror list --json").1.contains("\"frames\":300"));

    let printed = world.reload(&format!("{}direction = \"out\"\n", MIRROR.replace("prod", "a/nic0")));
    assert!(printed.contains("mirror \"m\": from a/nic0"), "{printed}");
    world.send(100, 0);
    let printed = world.reload("");
    assert!(printed.contains("mirror \"m\": removed"), "{printed}");
    world.send(100, 0);
    assert!(world.ask("mirror list --json").1.contains("\"mirrors\":[]"));
    let printed = world.reload(&MIRROR.replace("prod", "prude"));
    assert!(printed.contains("vmlane.toml:18: mirror \"m\": from: \"prude\" is no NIC"), "{printed}");
}

#[test]
fn a_mirror_is_added_and_removed_at_run_time_and_outlives_reloads() {
    let mut world = World::new("");
    let (ok, printed) = world.ask("mirror add a/nic0 --to ids/nic0 --direction in");
    assert!(ok, "{printed}");
    world.send(100, 100);
    assert!(!world.reload("").contains("mirror"));
    world.send(100, 100);
    for (arguments, words) in [
        ("mirror add b/nic0 --to ids/nic0", "name = \"to-ids-nic0\" is taken by another mirror"),
        ("mirror add ids/nic0 --to b/nic0", "\"ids/nic0\" is the destination of mirror \"to-ids-nic0\""),
        ("mirror add b/nic0 --to a/nic0", "to = \"a/nic0\" is a source of mirror \"to-ids-nic0\""),
        (
            "mirror add b/nic7 --to ids/nic0 --name x",
            "\"b/nic7\" is no NIC, no uplink and no port group; there are a/nic0",
        ),
        ("mirror add b/nic0 --to ids/nic0 --name x/y", "name: \"x/y\"; use up to 64"),
        ("mirror remove x", "there is no mirror \"x\"; added were: to-ids-nic0"),
    ] {
        let (ok, printed) = world.ask(arguments);
        assert!(!ok && printed.contains(words), "{words:?} is not in {printed}");
    }
    // One of the configuration may not be at odds with it.
    let printed = world.reload("[[mirror]]\nname = \"m\"\nfrom = [\"ids/nic0\"]\nto = \"b/nic0\"\n");
    assert!(printed.contains("\"ids/nic0\" is the destination of mirror \"to-ids-nic0\""), "{printed}");
    world.send(100, 100);
    assert!(world.ask("mirror remove to-ids-nic0").0);
    world.send(100, 0);
    let (ok, printed) =
        world.reload(MIRROR).contains("m\": from").then(|| world.ask("mirror remove m")).unwrap();
    assert!(!ok && printed.contains("mirror \"m\" is of the configuration"), "{printed}");
}
