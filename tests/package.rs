//! The Debian package, installed in a fresh Debian 12 with its systemd: its units serve VMs, which continue when the daemon
//! is killed, restarted, stopped for a while and upgraded; and purging leaves nothing.

#[path = "package/container.rs"]
mod container;
#[path = "package/guests.rs"]
mod guests;

use std::process::Command;

use container::Container;
use guests::Traffic;
use vmlane_tests::{kept, wait_until};

const KILLS: u32 = 20;
/// Bytes that show that a stream goes on.
const SOME: u64 = 1 << 20;
const CONFIG: &str = "\
[[vm]]
name = \"a\"
cid = 3
owner = \"alice\"
nic = [ { model = \"vmxnet3\" } ]
[[vm]]
name = \"b\"
cid = 4
";
const UPLINK: &str = "[[uplink]]\nname = \"lan\"\ntap = \"vmlane0\"\n";

/// The process of a unit.
fn main_pid(container: &Container, unit: &str) -> u32 {
    container.run(&format!("systemctl show -P MainPID {unit}")).parse().expect("a number")
}

/// Does something to the daemon, and waits for the next one and for bytes that it lets through.
fn replaced(container: &Container, traffic: &Traffic, what: &str) {
    let before = main_pid(container, "vmlane");
    container.run(what);
    wait_until("the next daemon", || {
        ![0, before].contains(&main_pid(container, "vmlane")) && !container.fails("vmlane status")
    });
    goes_on(traffic);
}

fn goes_on(traffic: &Traffic) {
    let before = traffic.received();
    wait_until("bytes of the stream", || traffic.received() > before + SOME);
}

/// Files that a package could have left.
fn files(container: &Container) -> String {
    container.run("find / -xdev -iname '*vmlane*' ! -name '*.deb' -print; find /run -iname '*vmlane*' -print; getent passwd | grep vmlane; true")
}

#[test]
fn a_package_is_installed_upgraded_under_a_stream_and_purged() {
    assert!(rustix::process::geteuid().is_root(), "run it as root: it makes a container");
    let packages = ["0.1.0-1", "0.1.0-2"].map(container::package);
    let base = container::debian(None);
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("debian");
    let copied = Command::new("cp").arg("-a").arg(&base).arg(&root).status().expect("cp");
    assert!(copied.success(), "copying {}", base.display());
    for (package, name) in packages.iter().zip(["first.deb", "second.deb"]) {
        std::fs::copy(package, root.join(name)).expect("a package in the container");
    }
    let container = Container::boot(&root);
    assert_eq!(files(&container), "");
    // As udev makes it on a host. There is none in a container.
    container.run("mkdir -p /dev/net && rm -f /dev/net/tun && mknod -m 666 /dev/net/tun c 10 200");
    container.run("useradd alice && useradd bob");

    container.run("dpkg -i /first.deb");
    container.run(
        "systemctl is-active vmlane vmlane-keeper; systemctl is-enabled vmlane vmlane-keeper; vmlane status",
    );
    serves(&container);
    let (a, b) = (container.path("/run/vmlane/vm/a/vmci.sock"), container.path("/run/vmlane/vm/b/vmci.sock"));
    let traffic = Traffic::start(&a, &b, 4);
    goes_on(&traffic);
    container.run("vmlane vm add --name late --cid 5 && test -S /run/vmlane/vm/late/vmci.sock");
    for _ in 0..KILLS {
        replaced(&container, &traffic, "systemctl kill -s KILL vmlane");
    }
    owners_are_let_in(&container);
    replaced(&container, &traffic, "systemctl restart vmlane");
    keeper_is_replaced(&container, &traffic);
    waits_for_a_configuration(&container, &traffic);

    let keeper = main_pid(&container, "vmlane-keeper");
    replaced(&container, &traffic, "dpkg -i /second.deb");
    container.run("vmlane vm list | grep -w late && test -S /run/vmlane/vm/late/vmci.sock");
    assert_eq!(container.run("dpkg-query -W -f '${Version}' vmlane"), "0.1.0-2");
    assert_eq!(main_pid(&container, "vmlane-keeper"), keeper, "an upgrade leaves the keeper alone");
    assert_eq!(std::fs::read_to_string(container.path("/etc/vmlane/vmlane.toml")).expect("it"), config());
    let (sent, received) = traffic.finish();
    assert_eq!(sent, received);

    container.run("dpkg --purge vmlane");
    assert_eq!(files(&container), "");
    assert_eq!(container.run("cat /proc/[0-9]*/comm | grep vmlane || true"), "", "processes");
    kept(
        17,
        &format!(
            "{KILLS} kills of the unit, restarts, and an upgrade by dpkg under a stream of {received} bytes: none was lost"
        ),
    );
}

fn config() -> String {
    CONFIG.to_owned() + UPLINK
}

/// A configuration is applied, with an interface that the confined daemon's helper makes.
fn serves(container: &Container) {
    std::fs::write(container.path("/etc/vmlane/vmlane.toml"), config()).expect("the configuration");
    container.run("systemctl reload vmlane");
    container.run("test -S /run/vmlane/vm/a/vmci.sock && test -S /run/vmlane/vm/b/vmci.sock");
    container.run("test -e /sys/class/net/vmlane0");
    owners_are_let_in(container);
}

fn owners_are_let_in(container: &Container) {
    let may = |user: &str, vm: &str| {
        !container.fails(&format!("runuser -u {user} -- test -w /run/vmlane/vm/{vm}/vmci.sock"))
    };
    let allowed = [may("alice", "a"), may("alice", "b"), may("bob", "a")];
    assert_eq!(allowed, [true, false, false], "alice owns a, bob nothing");
}

/// A keeper that is killed is started again, and the next daemon finds everything in it.
fn keeper_is_replaced(container: &Container, traffic: &Traffic) {
    let before = main_pid(container, "vmlane-keeper");
    container.run("systemctl kill -s KILL vmlane-keeper");
    let descriptors = |pid: u32| container.run(&format!("ls /proc/{pid}/fd | wc -l")).parse().unwrap_or(0);
    wait_until("a keeper that has everything", || {
        let now = main_pid(container, "vmlane-keeper");
        ![0, before].contains(&now) && descriptors(now) > 20
    });
    replaced(container, traffic, "systemctl kill -s KILL vmlane");
}

/// A bad configuration ends the daemon for good, and VMs wait until it is corrected.
fn waits_for_a_configuration(container: &Container, traffic: &Traffic) {
    let path = container.path("/etc/vmlane/vmlane.toml");
    std::fs::write(&path, "[[vm]]\nname = \"a\"\n").expect("the configuration");
    assert!(container.fails("systemctl reload vmlane"), "a reload says what is wrong");
    goes_on(traffic);
    assert!(container.fails("systemctl restart vmlane"));
    assert_eq!(container.run("systemctl show -P ExecMainStatus vmlane"), "78");
    assert_eq!(container.run("systemctl show -P ActiveState vmlane"), "failed");
    std::fs::write(&path, config()).expect("the configuration");
    container.run("systemctl start vmlane");
    goes_on(traffic);
}
