//! A daemon of a user who is not root, without a word about where it is.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use vmlane_testkit::{Process, Ran, run, wait_until};

use crate::common::VMLANE;

/// The user "nobody", if the tests run as root.
const OTHER: u32 = 65_534;

struct User {
    /// Its XDG_RUNTIME_DIR, beside a program that it may execute.
    place: tempfile::TempDir,
}

impl User {
    fn new() -> User {
        let user = User { place: tempfile::tempdir().unwrap() };
        fs::set_permissions(user.place.path(), fs::Permissions::from_mode(0o711)).unwrap();
        // By another process: what a test beside this one starts at that moment would have the file open for
        // writing, too, and a file that is written to cannot be started.
        let copy = Command::new("cp").arg(VMLANE).arg(user.program()).status();
        assert!(copy.unwrap().success());
        fs::create_dir(user.base()).unwrap();
        fs::write(user.config(), "[[vm]]\nname = \"web\"\ncid = 3\n").unwrap();
        if rustix::process::geteuid().is_root() {
            chown(user.base(), Some(OTHER), Some(OTHER)).unwrap();
        }
        user
    }

    fn program(&self) -> PathBuf {
        self.place.path().join("vmlane")
    }

    fn base(&self) -> PathBuf {
        self.place.path().join("user")
    }

    fn config(&self) -> PathBuf {
        self.place.path().join("vmlane.toml")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.args(words).env_remove("VMLANE_RUNTIME_DIR").env("XDG_RUNTIME_DIR", self.base());
        if rustix::process::geteuid().is_root() {
            command.uid(OTHER).gid(OTHER);
        }
        command
    }

    fn ask(&self, words: &[&str]) -> Ran {
        run(self.command(words))
    }
}

#[test]
fn commands_find_the_daemon_of_their_own_user() {
    let user = User::new();
    let config = user.config();
    let config = config.to_str().unwrap();
    let mut daemon = user.command(&["daemon", "--config", config]);
    let mut daemon = Process(daemon.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let own = user.base().join("vmlane");
    wait_until("the daemon answers", || user.ask(&["status"]).succeeded());
    assert!(own.join("control.sock").exists());
    let arguments = user.ask(&["qemu-args", "web", "--config", config, "--qemu", "10.1"]).good();
    assert!(arguments.contains(own.join("vm/web/vmci.sock").to_str().unwrap()), "{arguments}");
    let connect = user.ask(&["connect", "2:77"]);
    assert!(!connect.succeeded() && !connect.err.contains("/run/vmlane"), "{connect:?}");
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
}

#[test]
fn without_a_runtime_directory_the_error_names_the_option() {
    let user = User::new();
    let config = user.config();
    let refused = |more: &[&str]| {
        let mut command = user.command(&["daemon", "--config", config.to_str().unwrap()]);
        command.args(more).env_remove("XDG_RUNTIME_DIR");
        run(command)
    };
    let ran = refused(&["--runtime-dir", "/proc/vmlane"]);
    assert!(ran.err.contains("/proc/vmlane") && !ran.succeeded(), "{ran:?}");
    if rustix::process::geteuid().is_root() {
        let status = {
            let mut command = user.command(&["status"]);
            command.env_remove("XDG_RUNTIME_DIR");
            run(command)
        };
        assert!(!status.succeeded() && status.err.contains("XDG_RUNTIME_DIR is not set"), "{status:?}");
        let error = refused(&[]).err;
        assert!(error.contains("--runtime-dir") && error.contains("XDG_RUNTIME_DIR"), "{error}");
    }
}
