//! A container with Debian 12 and its systemd, by debootstrap and systemd-nspawn.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use vmlane_tests::wait_until;

/// Prints the mirror of Debian that this host's apt uses.
const MIRROR: &str = "apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Origin: Debian' 'Component: main' | \
     grep -v security | sort -u | head -n 1";

/// A root file system, made once and kept with what the lab keeps.
pub fn debian(cache: &Path) -> PathBuf {
    let root = cache.join("debian-12-systemd");
    if root.is_dir() {
        return root;
    }
    let mirror = run(Command::new("sh").args(["-c", MIRROR]));
    assert!(!mirror.trim().is_empty(), "apt knows no mirror of Debian");
    let fresh = cache.join("debian-12-systemd.new");
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(cache).expect("the cache");
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", "--include=dbus,systemd,systemd-sysv", "bookworm"]);
    run(debootstrap.arg(&fresh).arg(mirror.trim()));
    fs::rename(&fresh, &root).expect("the root file system in its place");
    root
}

/// Runs a command that must succeed; what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", told(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A booted container; it ends with this value.
pub struct Container {
    nspawn: Child,
    /// Its first process, as this host numbers it.
    init: u32,
}

impl Container {
    pub fn boot(root: &Path) -> Container {
        let mut nspawn = Command::new("systemd-nspawn");
        nspawn.args(["--quiet", "--boot", "--register=no", "--capability=all", "--private-network"]);
        if !Path::new("/run/systemd/system").is_dir() {
            // Nothing here could make a unit for it.
            nspawn.arg("--keep-unit");
        }
        nspawn.arg("--console=pipe").arg("--directory").arg(root);
        let nspawn = nspawn.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let nspawn = nspawn.expect("systemd-nspawn; `apt-get install systemd-container` has it");
        let mut container = Container { nspawn, init: 0 };
        wait_until("the container's first process", || {
            let children = format!("/proc/{0}/task/{0}/children", container.nspawn.id());
            let children = fs::read_to_string(children).expect("systemd-nspawn runs");
            container.init = children.split_whitespace().next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
            let name = fs::read_to_string(format!("/proc/{}/comm", container.init)).unwrap_or_default();
            name.trim() == "systemd"
        });
        wait_until("the container is up", || {
            let state = container.output("systemctl is-system-running");
            ["running", "degraded"].contains(&told(&state).trim())
        });
        container
    }

    /// What a shell in the container does with `script`.
    pub fn output(&self, script: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--all", "--target", &self.init.to_string(), "--", "sh", "-c", script]);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        command.output().expect("nsenter")
    }

    /// Runs a script that must succeed; what it printed, without white space around it.
    pub fn run(&self, script: &str) -> String {
        let output = self.output(script);
        if !output.status.success() {
            let log = told(&self.output("journalctl --no-pager -n 60 -u vmlane -u vmlane-keeper"));
            panic!("{script}: {}\n{log}", told(&output));
        }
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub fn fails(&self, script: &str) -> bool {
        !self.output(script).status.success()
    }

    /// A path of the container as this host sees it.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Its first process ends all others with it.
        if let Some(init) = rustix::process::Pid::from_raw(self.init as i32) {
            let _ = rustix::process::kill_process(init, rustix::process::Signal::KILL);
        }
        let _ = self.nspawn.wait();
    }
}
