//! Two daemons whose switches are joined: an uplink of one is the driver of a virtio NIC of the other. Both
//! are confined, so the connection is made by the helper, and made again when either daemon was killed.
//! Either side may be the one that listens.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use vmlane_guestsim::virtio_nic::Nic;
use vmlane_testkit::{Daemon, contains_all, eventually, wait_until};

use crate::common::{daemon, place};

fn nic(daemon: &Daemon, vm: &str) -> PathBuf {
    daemon.socket(vm, "nic0.sock")
}

/// The switch that the other one has an uplink to. Its NIC "join" may be opened by root, as whom the helper
/// runs in a test of root's.
fn far(owner: &str) -> String {
    let vm = |name: &str, owner: &str, more: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nvsock = \"none\"\n{owner}nic = [ {{ model = \"virtio-net\"{more} }} ]\n"
        )
    };
    vm("a", "", ", mac = \"52:54:00:00:00:01\"") + &vm("join", owner, ", promiscuous = true")
}

const NEAR: &str = "[[vm]]\nname = \"b\"\nvsock = \"none\"\n\
    nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:02\" } ]\n";

/// The same with a NIC that connects to `RUNTIME_DIR/vm/join/nic0.sock`.
const CALLING: &str = "[[vm]]\nname = \"a\"\nvsock = \"none\"\n\
    nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:01\" } ]\n\
    [[vm]]\nname = \"join\"\nvsock = \"none\"\n\
    nic = [ { model = \"virtio-net\", promiscuous = true, role = \"client\" } ]\n";

/// Both daemons have one user, so each can reach the other's directory.
fn same_user() -> &'static str {
    if rustix::process::geteuid().is_root() { "[daemon]\nuser = \"root\"\n" } else { "" }
}

/// Sends until frames that were sent after the call arrive.
fn until_they_arrive(what: &str, from: &mut Nic, to: &mut Nic, next: &mut u64) {
    let first = *next;
    wait_until(what, || {
        from.settle();
        if from.send(*next) {
            *next += 1;
        }
        to.receive().into_iter().any(|number| number >= first)
    });
}

/// What a daemon prints that has another configuration by now.
fn reload(daemon: &Daemon, config: &str) -> String {
    daemon.configure(config);
    daemon.must(&["reload"])
}

#[test]
fn two_confined_daemons_are_joined_and_again_after_either_was_killed() {
    let owner = if rustix::process::geteuid().is_root() { "owner = \"root\"\n" } else { "" };
    let far = place(&far(owner));
    let uplink = format!("[[uplink]]\nname = \"lan\"\nvhost_user = {:?}\n", nic(&far, "join"));

    // The near one starts first: its uplink's port waits.
    let near = daemon(&format!("{NEAR}{uplink}"));
    let ports = near.must(&["ports"]);
    assert!(ports.contains("lan"), "{ports}");
    far.start();
    let (mut a, mut b, mut next) = (Nic::new(false), Nic::new(false), 0);
    a.attach(&nic(&far, "a"));
    b.attach(&nic(&near, "b"));
    until_they_arrive("the first frames", &mut a, &mut b, &mut next);

    far.kill();
    wait_until("it is logged", || near.log().contains("the peer closed the connection"));
    far.start();
    a.attach(&nic(&far, "a"));
    until_they_arrive("frames after the far one was killed", &mut a, &mut b, &mut next);

    near.kill();
    near.start();
    b.attach(&nic(&near, "b"));
    until_they_arrive("frames after the near one was killed", &mut a, &mut b, &mut next);

    // A reload removes it and adds it again, behind another one.
    let reload = |config: &str| reload(&near, config);
    let report = reload(NEAR);
    assert!(report.contains("uplink \"lan\": removed"), "{report}");
    let other = format!("[[uplink]]\nname = \"other\"\nvhost_user = {:?}\n", near.path("none.sock"));
    let report = reload(&format!("{NEAR}{other}{uplink}"));
    assert!(report.contains("uplink \"lan\": attached to"), "{report}");
    until_they_arrive("frames after a reload", &mut a, &mut b, &mut next);
    // Its number in the file changes.
    reload(&format!("{NEAR}{uplink}"));
    far.kill();
    far.start();
    a.attach(&nic(&far, "a"));
    until_they_arrive("frames after it has another number", &mut a, &mut b, &mut next);
    near.kill();
    assert!(!near.log().contains("ERROR"), "{}", near.log());
}

#[test]
fn a_confined_daemon_listens_for_the_other_switch_and_again_after_either_was_killed() {
    let far = place(&(same_user().to_owned() + CALLING));
    let socket = nic(&far, "join");
    let uplink = format!("[[uplink]]\nname = \"lan\"\nvhost_user = {socket:?}\nrole = \"server\"\n");
    let near_alone = same_user().to_owned() + NEAR;
    let near_config = near_alone.clone() + &uplink;

    // The directory of the socket is the far one's: until that is there, the port waits.
    let near = daemon(&near_config);
    let status = || near.must(&["status"]);
    assert!(status().contains("its directory does not exist"), "{}", status());
    far.start();
    wait_until("a socket", || socket.exists());
    assert!(status().contains("listens; memory shared"), "{}", status());
    let (mut a, mut b, mut next) = (Nic::new(false), Nic::new(false), 0);
    a.attach(&nic(&far, "a"));
    b.attach(&nic(&near, "b"));
    until_they_arrive("the first frames", &mut a, &mut b, &mut next);

    far.kill();
    far.start();
    a.attach(&nic(&far, "a"));
    until_they_arrive("frames after the far one was killed", &mut a, &mut b, &mut next);
    near.kill();
    near.start();
    b.attach(&nic(&near, "b"));
    until_they_arrive("frames after the near one was killed", &mut a, &mut b, &mut next);

    // A directory that is emptied, as when the other switch's service is started again.
    fs::remove_file(&socket).unwrap();
    wait_until("the socket, anew", || socket.exists());
    until_they_arrive("frames after the socket was removed", &mut a, &mut b, &mut next);

    let reload = |config: &str| reload(&near, config);
    let report = reload(&near_alone);
    assert!(report.contains("uplink \"lan\": removed") && !socket.exists(), "{report}");
    fs::write(&socket, "").unwrap();
    near.configure(&near_config);
    let refused = near.ask(&["reload"]);
    assert!(refused.err.contains("there is something else than a socket of this name"), "{refused:?}");
    fs::remove_file(&socket).unwrap();
    let report = reload(&near_config);
    assert!(report.contains("uplink \"lan\": attached to"), "{report}");
    until_they_arrive("frames after a reload", &mut a, &mut b, &mut next);
    // It changes where it is, with the same path.
    let report = reload(&(near_config.clone() + "mtu = 9000\n"));
    assert!(report.contains("uplink \"lan\": attached to"), "{report}");
    until_they_arrive("frames after it was changed", &mut a, &mut b, &mut next);
    // An orderly end leaves no socket behind.
    assert!(near.stop().success());
    assert!(!socket.exists());
    assert!(!near.log().contains("ERROR"), "{}", near.log());
}

#[test]
fn a_daemon_listens_in_its_own_directory_by_itself() {
    let near = place("");
    let socket = near.run("lan.sock");
    let uplink = format!("[[uplink]]\nname = \"lan\"\nvhost_user = {socket:?}\nrole = \"server\"\n");
    // The near one has a user of its own, where root starts it: the far one is let in by name.
    let owner = if same_user().is_empty() { "" } else { "owner = \"root\"\n" };
    near.configure(&(NEAR.to_owned() + &uplink + owner));
    near.start();
    assert!(socket.exists());
    let far = daemon(&(same_user().to_owned() + CALLING));
    std::os::unix::fs::symlink(&socket, nic(&far, "join")).unwrap();
    let (mut a, mut b, mut next) = (Nic::new(false), Nic::new(false), 0);
    a.attach(&nic(&far, "a"));
    b.attach(&nic(&near, "b"));
    until_they_arrive("frames", &mut a, &mut b, &mut next);
    reload(&near, NEAR);
    assert!(!socket.exists());
    assert!(!near.log().contains("ERROR"), "{}", near.log());
}

/// A daemon's helper that is stopped, as one that hangs is. It goes with this value.
struct Stopped(Pid);

impl Stopped {
    fn of(daemon: &Daemon) -> Stopped {
        let pid = eventually("the helper", || daemon.beside("uplink-helper"));
        kill_process(pid, Signal::STOP).unwrap();
        Stopped(pid)
    }

    /// It has ended, and has at most not been collected.
    fn has_ended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.as_raw_nonzero())).unwrap_or_default();
        stat.rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.trim_start().starts_with('Z'))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = kill_process(self.0, Signal::KILL);
        }
    }
}

#[test]
fn a_helper_that_hangs_is_reported_and_the_daemon_goes_on_without_it() {
    let daemon = place("");
    let config = "[[vm]]\nname = \"a\"\nvsock = \"none\"\n\
        nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:01\" } ]\n"
        .to_owned()
        + NEAR;
    let uplink = |name: &str| format!("[[uplink]]\nname = {name:?}\nvhost_user = {:?}\n", daemon.path(name));
    // Nothing listens there: the helper is asked every second.
    daemon.configure(&(config.clone() + &uplink("lan")));
    daemon.start();
    let (mut a, mut b, mut next) = (Nic::new(false), Nic::new(false), 0);
    a.attach(&nic(&daemon, "a"));
    b.attach(&nic(&daemon, "b"));
    until_they_arrive("the first frames", &mut a, &mut b, &mut next);
    wait_until("the helper's answer", || daemon.log().contains("No such file"));

    let helper = Stopped::of(&daemon);
    until_they_arrive("frames while it is waited for", &mut a, &mut b, &mut next);
    wait_until("it is logged", || {
        daemon.log().contains("the helper that attaches interfaces does not answer")
    });
    until_they_arrive("frames without it", &mut a, &mut b, &mut next);
    assert!(daemon.must(&["status"]).contains("lan"));
    // What needs it is refused with the way out, and the rest is done.
    let tap = "[[uplink]]\nname = \"more\"\ntap = \"vmlane-more\"\n";
    daemon.configure(&(config.clone() + tap));
    let refused = daemon.ask(&["reload"]);
    contains_all(&refused.out, &["uplink \"lan\": removed"]);
    contains_all(&refused.err, &["uplink \"more\"", "start the daemon again"]);
    until_they_arrive("frames after a reload", &mut a, &mut b, &mut next);

    // It does not hold up the end. A stopped process without a parent gets a SIGHUP from the kernel.
    assert!(daemon.stop().success());
    wait_until("its end", || helper.has_ended());
}
