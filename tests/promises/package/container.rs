//! A container with Debian and its systemd, by debootstrap and systemd-nspawn.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use vmlane_tests::alone::{output, printed};
use vmlane_tests::{tree, wait_until};

/// Prints the mirror of Debian that this host's apt uses.
const MIRROR: &str = "apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Origin: Debian' 'Component: main' | \
     grep -v security | sort -u | head -n 1";

/// A release of Debian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Debian 12, with systemd 252.
    Bookworm,
    /// Debian 13, with systemd 257.
    Trixie,
}

impl Release {
    fn suite(self) -> &'static str {
        match self {
            Release::Bookworm => "bookworm",
            Release::Trixie => "trixie",
        }
    }

    pub fn number(self) -> u32 {
        match self {
            Release::Bookworm => 12,
            Release::Trixie => 13,
        }
    }
}

/// A root file system, made once and kept with what the lab keeps; with packages of Debian's, it has a name
/// of its own.
pub fn debian(release: Release, with: Option<(&str, &[&str])>) -> PathBuf {
    let cache = cache();
    with.map_or_else(
        || base(&cache, release),
        |(name, packages)| derived(&cache, release, &format!("debian-{}-{name}", release.number()), packages),
    )
}

fn base(cache: &Path, release: Release) -> PathBuf {
    let name = format!("debian-{}-systemd", release.number());
    let root = cache.join(&name);
    if root.is_dir() {
        return root;
    }
    let mirror = output(Command::new("sh").args(["-c", MIRROR]));
    assert!(!mirror.trim().is_empty(), "apt knows no mirror of Debian");
    let fresh = cache.join(format!("{name}.new"));
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(cache).expect("the cache");
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", "--include=dbus,systemd,systemd-sysv", release.suite()]);
    output(debootstrap.arg(&fresh).arg(mirror.trim()));
    fs::rename(&fresh, &root).expect("the root file system in its place");
    root
}

fn derived(cache: &Path, release: Release, name: &str, packages: &[&str]) -> PathBuf {
    let root = cache.join(name);
    if root.is_dir() {
        return root;
    }
    let base = base(cache, release);
    let fresh = cache.join(format!("{name}.new"));
    let _ = fs::remove_dir_all(&fresh);
    output(Command::new("cp").arg("-a").arg(base).arg(&fresh));
    // As this host reaches the mirror.
    fs::copy("/etc/resolv.conf", fresh.join("etc/resolv.conf")).expect("resolv.conf");
    for words in
        [&["update"][..], &[&["install", "--yes", "--no-install-recommends"], packages].concat(), &["clean"]]
    {
        let mut apt = Command::new("chroot");
        apt.arg(&fresh).args(["apt-get", "--quiet"]).args(words).env("DEBIAN_FRONTEND", "noninteractive");
        output(&mut apt);
    }
    fs::rename(&fresh, &root).expect("the root file system in its place");
    root
}

/// Where the lab keeps what it has fetched, and these file systems with it.
fn cache() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache =
        cache.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".cache"));
    cache.join("vmlane")
}

/// Builds a package of the program that is tested.
pub fn package(version: &str) -> PathBuf {
    package_of(tree::root(), None, version)
}

/// Builds a package of other sources and of a program that was made of them.
pub fn package_of(sources: &Path, program: Option<&Path>, version: &str) -> PathBuf {
    let mut script = Command::new(sources.join("scripts/package.sh"));
    script.env("PACKAGE_VERSION", version);
    program.map(|program| script.env("VMLANE_BIN", program));
    let printed = output(&mut script);
    let file = printed.split_whitespace().find(|word| word.ends_with(".deb")).expect("the file's name");
    sources.join(file)
}

/// A copy of a root file system, which goes with the folder: to be dropped after a container in it, and so
/// bound before it.
pub fn copy(base: &Path) -> (tempfile::TempDir, PathBuf) {
    assert!(rustix::process::geteuid().is_root(), "run it as root: it makes a container");
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("debian");
    output(Command::new("cp").args(["--archive", "--sparse=always"]).arg(base).arg(&root));
    (folder, root)
}

/// A container with these packages in its root directory.
pub fn boot_with(release: Release, packages: &[(&PathBuf, &str)]) -> (tempfile::TempDir, Container) {
    let (folder, root) = copy(&debian(release, None));
    for (package, name) in packages {
        fs::copy(package, root.join(name)).expect("a package in the container");
    }
    let container = Container::boot(&root);
    (folder, container)
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
            ["running", "degraded"].contains(&printed(&state).trim())
        });
        container
    }

    /// A shell in the container with `script`.
    pub fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--all", "--target", &self.init.to_string(), "--", "sh", "-c", script]);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        command
    }

    /// What that does.
    pub fn output(&self, script: &str) -> Output {
        self.command(script).output().expect("nsenter")
    }

    /// Runs a script that must succeed; what it printed, without white space around it.
    pub fn run(&self, script: &str) -> String {
        let output = self.output(script);
        if !output.status.success() {
            let log = printed(&self.output("journalctl --no-pager -n 60 -u vmlane -u vmlane-keeper"));
            panic!("{script}: {}\n{log}", printed(&output));
        }
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub fn fails(&self, script: &str) -> bool {
        !self.output(script).status.success()
    }

    /// The process of a unit.
    pub fn main_pid(&self, unit: &str) -> u32 {
        self.run(&format!("systemctl show -P MainPID {unit}")).parse().expect("a number")
    }

    /// Version of the package that is installed.
    pub fn version(&self) -> String {
        self.run("dpkg-query -W -f '${Version}' vmlane")
    }

    /// Does something to the daemon, and waits for the next one.
    pub fn replaces_daemon(&self, what: &str) {
        let before = self.main_pid("vmlane");
        self.run(what);
        wait_until("the next daemon", || {
            ![0, before].contains(&self.main_pid("vmlane")) && !self.fails("vmlane status")
        });
    }

    /// Kills the keeper, and waits for another one that has everything.
    pub fn replaces_keeper(&self) {
        let before = self.main_pid("vmlane-keeper");
        self.run("systemctl kill -s KILL vmlane-keeper || true");
        let descriptors = |pid: u32| self.run(&format!("ls /proc/{pid}/fd | wc -l")).parse().unwrap_or(0);
        wait_until("a keeper that has everything", || {
            let now = self.main_pid("vmlane-keeper");
            ![0, before].contains(&now) && descriptors(now) > 20
        });
    }

    /// What udev makes on a host. There is none in a container.
    pub fn make_tun(&self) {
        self.run("mkdir -p /dev/net && rm -f /dev/net/tun && mknod -m 666 /dev/net/tun c 10 200");
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
