//! Two daemons whose switches are joined: an uplink of one is the driver of a virtio NIC of the other. Both are confined, so the
//! connection is made by the helper, and made again when either daemon was killed.

mod common;
#[path = "common/nic.rs"]
mod nic;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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

    fn ask(&self, words: &[&str]) -> Option<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmlane"));
        let output = command.args(words).arg("--runtime-dir").arg(self.runtime()).output().unwrap();
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
