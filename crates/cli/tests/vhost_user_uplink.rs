//! Two daemons whose switches are joined: an uplink of one is the driver of a virtio NIC of the other. Both are confined, so the
//! connection is made by the helper, and made again when either daemon was killed. Either side may be the one that listens.

mod common;
#[path = "common/nic.rs"]
mod nic;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use common::eventually;
use nic::Nic;

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGKILL; fails only if it is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A configuration and where its daemon runs.
struct Place<'f> {
    folder: &'f Path,
    name: &'static str,
}

impl Place<'_> {
    fn configure(&self, config: &str) {
        let file = self.folder.join(self.name).with_extension("toml");
        fs::write(&file, config).unwrap();
        // The helper believes only a file that others cannot write.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    }

    fn start(&self) -> Daemon {
        let log = fs::File::options()
            .append(true)
            .create(true)
            .open(self.folder.join(self.name).with_extension("log"));
        let child = Command::new(env!("CARGO_BIN_EXE_vmlane"))
            .args(["daemon", "--config"])
            .arg(self.folder.join(self.name).with_extension("toml"))
            .arg("--runtime-dir")
            .arg(self.runtime())
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stderr(log.unwrap())
            .spawn();
        let daemon = Daemon(child.unwrap());
        eventually("the daemon answers", || self.ask(&["status"]).map(drop));
        daemon
    }

    fn runtime(&self) -> PathBuf {
        self.folder.join(self.name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmlane"));
        command.args(words).arg("--runtime-dir").arg(self.runtime());
        command
    }

    fn ask(&self, words: &[&str]) -> Option<String> {
        let output = self.command(words).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn socket(&self, vm: &str) -> PathBuf {
        self.runtime().join("vm").join(vm).join("nic0.sock")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join(self.name).with_extension("log")).unwrap()
    }
}

/// The switch that the other one has an uplink to. Its NIC "join" may be opened by root, as whom the helper runs in a test of root's.
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
    eventually(what, || {
        from.settle();
        if from.send(*next) {
            *next += 1;
        }
        to.receive().into_iter().any(|number| number >= first).then_some(())
    });
}

#[test]
fn two_confined_daemons_are_joined_and_again_after_either_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let far_place = Place { folder: folder.path(), name: "far" };
    let near_place = Place { folder: folder.path(), name: "near" };
    let owner = if rustix::process::geteuid().is_root() { "owner = \"root\"\n" } else { "" };
    let far_config = far(owner);
    let uplink = format!("[[uplink]]\nname = \"lan\"\nvhost_user = {:?}\n", far_place.socket("join"));
    far_place.configure(&far_config);
    near_place.configure(&format!("{NEAR}{uplink}"));

    // The near one starts first: its uplink's port waits.
    let mut near = near_place.start();
    let attached = || near_place.ask(&["ports"]).unwrap();
    assert!(attached().contains("lan"), "{}", attached());
    let mut far = far_place.start();
    let (mut a, mut b, mut next) = (Nic::new(false), Nic::new(false), 0);
    a.attach(&far_place.socket("a"));
    b.attach(&near_place.socket("b"));
    until_they_arrive("the first frames", &mut a, &mut b, &mut next);

    drop(far);
    eventually("the log tells of it", || {
        near_place.log().contains("the peer closed the connection").then_some(())
    });
    far = far_place.start();
    a.attach(&far_place.socket("a"));
    until_they_arrive("frames after the far one was killed", &mut a, &mut b, &mut next);

    drop(near);
    near = near_place.start();
    b.attach(&near_place.socket("b"));
    until_they_arrive("frames after the near one was killed", &mut a, &mut b, &mut next);

    // A reload removes it and adds it again, behind another one.
    let reload = |config: &str| {
        near_place.configure(config);
        near_place.ask(&["reload"]).unwrap()
    };
    let report = reload(NEAR);
    assert!(report.contains("uplink \"lan\": removed"), "{report}");
    let other = format!("[[uplink]]\nname = \"other\"\nvhost_user = {:?}\n", folder.path().join("none.sock"));
    let report = reload(&format!("{NEAR}{other}{uplink}"));
    assert!(report.contains("uplink \"lan\": attached to"), "{report}");
    until_they_arrive("frames after a reload", &mut a, &mut b, &mut next);
    // Its number in the file changes.
    reload(&format!("{NEAR}{uplink}"));
    drop(far);
    far = far_place.start();
    a.attach(&far_place.socket("a"));
    until_they_arrive("frames after it has another number", &mut a, &mut b, &mut next);
    drop((near, far));
    assert!(!near_place.log().contains("ERROR"), "{}", near_place.log());
}

#[test]
fn a_confined_daemon_listens_for_the_other_switch_and_again_after_either_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let far_place = Place { folder: folder.path(), name: "far" };
    let near_place = Place { folder: folder.path(), name: "near" };
    let socket = far_place.socket("join");
    let uplink = format!("[[uplink]]\nname = \"lan\"\nvhost_user = {socket:?}\nrole = \"server\"\n");
    let near_alone = same_user().to_owned() + NEAR;
    let near_config = near_alone.clone() + &uplink;
    far_place.configure(&(same_user().to_owned() + CALLING));
    near_place.configure(&near_config);

    // The directory of the socket is the far one's: until that is there, the port waits.
    let mut near = near_place.start();
    let status = || near_place.ask(&["status"]).unwrap();
    assert!(status().contains("its directory does not exist"), "{}", status());
    let mut far = far_place.start();
    eventually("a socket", || socket.exists().then_some(()));
    assert!(status().contains("listens; memory shared"), "{}", status());
    let (mut a, mut b, mut next) = (Nic::new(false), Nic::new(false), 0);
    a.attach(&far_place.socket("a"));
    b.attach(&near_place.socket("b"));
    until_they_arrive("the first frames", &mut a, &mut b, &mut next);

    drop(far);
    far = far_place.start();
    a.attach(&far_place.socket("a"));
    until_they_arrive("frames after the far one was killed", &mut a, &mut b, &mut next);
    drop(near);
    near = near_place.start();
    b.attach(&near_place.socket("b"));
    until_they_arrive("frames after the near one was killed", &mut a, &mut b, &mut next);

    // A directory that is emptied, as when the other switch's service is started again.
    fs::remove_file(&socket).unwrap();
    eventually("the socket, anew", || socket.exists().then_some(()));
    until_they_arrive("frames after the socket was removed", &mut a, &mut b, &mut next);

    let reload = |config: &str| {
        near_place.configure(config);
        near_place.ask(&["reload"]).unwrap()
    };
    let report = reload(&near_alone);
    assert!(report.contains("uplink \"lan\": removed") && !socket.exists(), "{report}");
    fs::write(&socket, "").unwrap();
    near_place.configure(&near_config);
    let refused = near_place.command(&["reload"]).output().unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.contains("there is something else than a socket of this name"), "{why}");
    fs::remove_file(&socket).unwrap();
    let report = reload(&near_config);
    assert!(report.contains("uplink \"lan\": attached to"), "{report}");
    until_they_arrive("frames after a reload", &mut a, &mut b, &mut next);
    // It changes where it is, with the same path.
    let report = reload(&(near_config.clone() + "mtu = 9000\n"));
    assert!(report.contains("uplink \"lan\": attached to"), "{report}");
    until_they_arrive("frames after it was changed", &mut a, &mut b, &mut next);
    // An orderly end leaves no socket behind.
    rustix::process::kill_process(rustix::process::Pid::from_child(&near.0), rustix::process::Signal::TERM)
        .unwrap();
    assert!(near.0.wait().unwrap().success());
    assert!(!socket.exists());
    drop(far);
    assert!(!near_place.log().contains("ERROR"), "{}", near_place.log());
}

#[test]
fn a_daemon_listens_in_its_own_directory_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let far_place = Place { folder: folder.path(), name: "far" };
    let near_place = Place { folder: folder.path(), name: "near" };
    let socket = near_place.runtime().join("lan.sock");
    let uplink = format!("[[uplink]]\nname = \"lan\"\nvhost_user = {socket:?}\nrole = \"server\"\n");
    // The near one has a user of its own, where root starts it: the far one is let in by name.
    let owner = if same_user().is_empty() { "" } else { "owner = \"root\"\n" };
    far_place.configure(&(same_user().to_owned() + CALLING));
    near_place.configure(&(NEAR.to_owned() + &uplink + owner));
    let _near = near_place.start();
    assert!(socket.exists());
    let far = far_place.start();
    std::os::unix::fs::symlink(&socket, far_place.socket("join")).unwrap();
    let (mut a, mut b, mut next) = (Nic::new(false), Nic::new(false), 0);
    a.attach(&far_place.socket("a"));
    b.attach(&near_place.socket("b"));
    until_they_arrive("frames", &mut a, &mut b, &mut next);
    near_place.configure(NEAR);
    near_place.ask(&["reload"]).unwrap();
    assert!(!socket.exists());
    drop(far);
    assert!(!near_place.log().contains("ERROR"), "{}", near_place.log());
}

/// A daemon's helper that is stopped, as one that hangs is. It goes with this value.
struct Stopped(Pid);

impl Stopped {
    fn of(place: &Place<'_>) -> Stopped {
        let config = place.folder.join(place.name).with_extension("toml").display().to_string();
        let pid = eventually("the helper", || {
            let mut processes = fs::read_dir("/proc").unwrap().flatten();
            processes.find_map(|process| {
                let command = fs::read_to_string(process.path().join("cmdline")).ok()?;
                let is_it = command.contains("uplink-helper") && command.contains(&config);
                is_it.then(|| process.file_name().to_str()?.parse().ok()).flatten()
            })
        });
        let pid = Pid::from_raw(pid).unwrap();
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
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let place = Place { folder: folder.path(), name: "near" };
    let config = "[[vm]]\nname = \"a\"\nvsock = \"none\"\n\
        nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:01\" } ]\n"
        .to_owned()
        + NEAR;
    let uplink =
        |name: &str| format!("[[uplink]]\nname = {name:?}\nvhost_user = {:?}\n", folder.path().join(name));
    // Nothing listens there: the helper is asked every second.
    place.configure(&(config.clone() + &uplink("lan")));
    let mut daemon = place.start();
    let (mut a, mut b, mut next) = (Nic::new(false), Nic::new(false), 0);
    a.attach(&place.socket("a"));
    b.attach(&place.socket("b"));
    until_they_arrive("the first frames", &mut a, &mut b, &mut next);
    eventually("the helper's answer", || place.log().contains("No such file").then_some(()));

    let helper = Stopped::of(&place);
    until_they_arrive("frames while it is waited for", &mut a, &mut b, &mut next);
    eventually("the log tells of it", || {
        place.log().contains("the helper that attaches interfaces does not answer").then_some(())
    });
    until_they_arrive("frames without it", &mut a, &mut b, &mut next);
    assert!(place.ask(&["status"]).unwrap().contains("lan"));
    // What needs it is refused with the way out, and the rest is done.
    let tap = "[[uplink]]\nname = \"more\"\ntap = \"vmlane-more\"\n";
    place.configure(&(config.clone() + tap));
    let refused = place.command(&["reload"]).output().unwrap();
    let (report, why) = (String::from_utf8_lossy(&refused.stdout), String::from_utf8_lossy(&refused.stderr));
    assert!(report.contains("uplink \"lan\": removed"), "{report}{why}");
    assert!(why.contains("uplink \"more\"") && why.contains("start the daemon again"), "{report}{why}");
    until_they_arrive("frames after a reload", &mut a, &mut b, &mut next);

    // It does not hold up the end. A stopped process without a parent gets a SIGHUP from the kernel.
    kill_process(Pid::from_child(&daemon.0), Signal::TERM).unwrap();
    assert!(daemon.0.wait().unwrap().success());
    eventually("its end", || helper.has_ended().then_some(()));
}
