//! The Debian package, installed in fresh systems with their systemd: its units serve VMs, which continue
//! when the daemon is killed, restarted, stopped for a while and upgraded; a daemon whose state the new
//! version does not know is left alone; and purging leaves nothing.

pub(crate) mod container;
pub(crate) mod guests;
mod layouts;

use std::process::Command;

use container::{Container, Release, boot_with, package};
use guests::{SOCKETS, Traffic};
use vmlane_tests::alone::output;
use vmlane_tests::tree::root;
use vmlane_tests::{kept, wait_until};

vmlane_tests::tests! {
    plain { a_package_is_made_of_the_optimized_program }
    long { a_package_is_installed_upgraded_under_a_stream_and_purged, the_same_in_debian_13 }
}

/// Whatever program other targets of the Makefile use.
fn a_package_is_made_of_the_optimized_program() {
    let mut make = Command::new("make");
    make.args(["--dry-run", "package"]).current_dir(root()).env_remove("MAKEFLAGS");
    let printed = output(make.env("VMLANE_BIN", "/some/other/program"));
    let packaging = printed.lines().find(|line| line.ends_with("scripts/package.sh")).expect("a package is made");
    assert!(packaging.contains("/dist/vmlane\" "), "{packaging}");
    let built = printed.find("cargo build --profile dist").expect("the program is built");
    assert!(built < printed.find(packaging).expect("it is there"), "{printed}");
}

/// Tenths, as `systemd-analyze security --threshold` has them: below 3.
const EXPOSURE: &str = "29";
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
/// Its main process goes first, and ends the others: systemctl may fail because one of them has ended before
/// it could be killed.
const KILL: &str = "systemctl kill -s KILL vmlane || true";
const UPLINK: &str = "[[uplink]]\nname = \"lan\"\ntap = \"vmlane0\"\n";

/// Does something to the daemon, and waits for the next one and for bytes that it lets through.
fn replaced(container: &Container, traffic: &Traffic, what: &str) {
    container.replaces_daemon(what);
    traffic.goes_on();
}

/// Files that a package could have left.
pub(crate) fn files(container: &Container) -> String {
    container.run(
        "find / -xdev -iname '*vmlane*' ! -name '*.deb' -print; find /run -iname '*vmlane*' -print
         getent passwd | grep vmlane; true",
    )
}

/// Debian 12, with systemd 252.
fn a_package_is_installed_upgraded_under_a_stream_and_purged() {
    lives(Release::Bookworm, 20);
}

/// systemd 257.
fn the_same_in_debian_13() {
    lives(Release::Trixie, 5);
}

fn lives(release: Release, kills: u32) {
    let [first, second] = ["0.1.0-1", "0.1.0-2"].map(package);
    let (_folder, container) = boot_with(release, &[(&first, "first.deb"), (&second, "second.deb")]);
    assert_eq!(files(&container), "");
    container.make_tun();
    container.run("useradd alice && useradd bob");

    container.run("dpkg -i /first.deb");
    container.run(
        "systemctl is-active vmlane vmlane-keeper; systemctl is-enabled vmlane vmlane-keeper; vmlane status",
    );
    let judged = judges_units(&container);
    serves(&container);
    let traffic =
        Traffic::start(|vm, name| container.path(&format!("/run/vmlane/vm/{vm}/{name}.sock")));
    traffic.goes_on();
    container.run("vmlane vm add --name late --cid 5 && test -S /run/vmlane/vm/late/vmci.sock");
    for _ in 0..kills {
        replaced(&container, &traffic, KILL);
    }
    owners_are_let_in(&container);
    replaced(&container, &traffic, "systemctl restart vmlane");
    keeper_is_replaced(&container, &traffic);
    waits_for_a_configuration(&container, &traffic);
    layouts::of_a_daemon(&container, &traffic);
    layouts::of_a_keeper(&container, &traffic);

    let keeper = container.main_pid("vmlane-keeper");
    replaced(&container, &traffic, "dpkg -i /second.deb");
    container.run("vmlane vm list | grep -w late && test -S /run/vmlane/vm/late/vmci.sock");
    assert_eq!(container.version(), "0.1.0-2");
    assert_eq!(container.main_pid("vmlane-keeper"), keeper, "an upgrade leaves the keeper alone");
    assert_eq!(std::fs::read_to_string(container.path("/etc/vmlane/vmlane.toml")).expect("it"), config());
    let [vmci, virtio] = traffic.finish();

    container.run("dpkg --purge vmlane");
    assert_eq!(files(&container), "");
    assert_eq!(container.run("cat /proc/[0-9]*/comm | grep vmlane || true"), "", "processes");
    kept(
        "packages",
        &format!(
            "Debian {} ({judged}): {kills} kills of the unit, restarts, and an upgrade by dpkg under a VMCI stream of {vmci} \
             bytes and 8 of virtio-vsock of {virtio}: none was lost",
            release.number()
        ),
    );
}

/// This systemd's own opinion of the units: it finds nothing wrong, and they expose little. Its version, and
/// its output.
fn judges_units(container: &Container) -> String {
    let units =
        "vmlane.service vmlane-keeper.service vmlane-metrics.service vmlane-route.service vmlane-ovn.service";
    let printed = container.run(&format!("systemd-analyze verify --man=no {units} vmlane-metrics.socket 2>&1"));
    assert_eq!(printed, "");
    let figures: Vec<String> = units
        .split(' ')
        .map(|unit| {
            let command = format!("systemd-analyze security --no-pager --threshold={EXPOSURE} {unit}");
            let printed = container.run(&command);
            let (_, rest) = printed.rsplit_once(": ").expect("a result");
            format!("{unit} {}", rest.split(' ').next().expect("a figure"))
        })
        .collect();
    let version = container.run("systemctl --version | head -n 1 | cut -d ' ' -f 2");
    format!("systemd {version}, exposure of {}", figures.join(", "))
}

fn config() -> String {
    [SOCKETS, CONFIG, UPLINK].concat()
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
    container.replaces_keeper();
    replaced(container, traffic, KILL);
}

/// A bad configuration ends the daemon for good, and VMs wait until it is corrected.
fn waits_for_a_configuration(container: &Container, traffic: &Traffic) {
    let path = container.path("/etc/vmlane/vmlane.toml");
    std::fs::write(&path, "[[vm]]\nname = \"a\"\n").expect("the configuration");
    assert!(container.fails("systemctl reload vmlane"), "a reload reports what is wrong");
    traffic.goes_on();
    assert!(container.fails("systemctl restart vmlane"));
    // systemd reports it a little later.
    wait_until("the unit has failed", || container.run("systemctl show -P ActiveState vmlane") == "failed");
    assert_eq!(container.run("systemctl show -P ExecMainStatus vmlane"), "78");
    std::fs::write(&path, config()).expect("the configuration");
    container.run("systemctl start vmlane");
    traffic.goes_on();
}
