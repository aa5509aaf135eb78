//! The guests' root file system: one read-only image; each VM's writes are thrown away.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::apt::{Fetch, Mirrors};
use super::{Cache, Progress, digest, packages, remove_tree, run};
use crate::dirs;

// dash, because the shell of busybox prefers its own applets to the tools below.
const PACKAGES: [&str; 19] = [
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "ethtool",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "kexec-tools",
    "kmod",
    "ncat",
    "netperf",
    "nftables",
    "openssh-server",
    "procps",
    "python3",
    "socat",
    "strace",
    "tcpdump",
];

/// Changes when the files below or the way of making the image do.
const RECIPE: &str = "4";

/// What no guest reads, and what only makes the image larger.
const DROPPED: [&str; 8] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/perl5",
    "usr/lib/x86_64-linux-gnu/gconv",
    "var/lib/apt",
    "var/cache",
];

/// Packages are unpacked but not configured, so the few files that scripts would write are here.
const FILES: [(&str, &str); 6] = [
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/bin/false\n\
         tcpdump:x:100:100::/:/bin/false\nsshd:x:101:65534::/run/sshd:/bin/false\nnobody:x:65534:65534::/:/bin/false\n",
    ),
    ("etc/group", "root:x:0:\ndaemon:x:1:\ntty:x:5:\ntcpdump:x:100:\nnogroup:x:65534:\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ("etc/resolv.conf", ""),
    ("etc/protocols", "icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\n"),
    ("etc/shells", "/bin/sh\n/bin/bash\n"),
];

/// The root image in the cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Root {
    pub dir: PathBuf,
}

impl Root {
    pub fn image(&self) -> PathBuf {
        self.dir.join("root.img")
    }

    /// The static shell of the first root.
    pub fn busybox(&self) -> PathBuf {
        self.dir.join("busybox")
    }
}

pub fn ensure(cache: &Cache, progress: &Progress<'_>) -> Result<Root> {
    let files = FILES.map(|(_, text)| text);
    let name = format!("root-{}", digest(&[&[RECIPE][..], &PACKAGES, &files].concat()));
    let dir = cache.artifact(&name, |dir| {
        packages::ensure(progress)?;
        progress.report("building the guests' root image");
        let tree = dir.join("tree");
        let fetch = Fetch {
            step: "fetch the guests' packages",
            suite: "trixie",
            backports: false,
            packages: &PACKAGES,
        };
        Mirrors::of_host()?.fetch(&fetch, &tree)?;
        fs::copy(tree.join("usr/bin/busybox"), dir.join("busybox"))
            .context("the package busybox-static has no usr/bin/busybox")?;
        complete(&tree, &dir.join("busybox")).context("complete the guests' root")?;
        make_image(&tree, &dir.join("root.img"), Some("2G"))?;
        remove_tree(&tree)
    })?;
    Ok(Root { dir })
}

/// Adds what maintainer scripts would have: accounts, mount points, the busybox applets.
fn complete(tree: &Path, busybox: &Path) -> Result<()> {
    for dropped in DROPPED {
        remove_tree(&tree.join(dropped))?;
    }
    for dir in ["proc", "sys", "dev", "run", "tmp", "root", "mnt", "etc", "usr/lib/modules", "var/log"] {
        dirs::make(&tree.join(dir))?;
    }
    fs::set_permissions(tree.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    for (name, text) in FILES {
        fs::write(tree.join(name), text).with_context(|| name.to_owned())?;
    }
    // The running vmlane is mounted over this file: it changes far more often than the image.
    fs::write(tree.join("usr/bin/vmlane"), "")?;
    fs::set_permissions(tree.join("usr/bin/vmlane"), fs::Permissions::from_mode(0o755))?;
    let applets = run::tool("list the busybox applets", Command::new(busybox).arg("--list"), "")?;
    for applet in applets.lines() {
        let taken = ["usr/bin", "usr/sbin"]
            .iter()
            .any(|dir| fs::symlink_metadata(tree.join(dir).join(applet)).is_ok());
        if !taken {
            symlink("busybox", tree.join("usr/bin").join(applet))?;
        }
    }
    Ok(())
}

/// Makes an ext4 image of a directory, of `size` or as large as its contents need.
pub fn make_image(tree: &Path, image: &Path, size: Option<&str>) -> Result<()> {
    let mke2fs = run::find("mke2fs").context("mke2fs is not installed (package e2fsprogs)")?;
    let fitting = || -> Result<String> { Ok(format!("{}k", disk_usage(tree)? * 5 / 4 / 1024 + 8192)) };
    let size = size.map_or_else(fitting, |s| Ok(s.to_owned()))?;
    // No journal: nothing written here outlives the VM.
    let mut command = Command::new(mke2fs);
    command
        .args(["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal"])
        .args(["-E", "root_owner=0:0,lazy_itable_init=1,nodiscard", "-d"])
        .args([tree, image])
        .arg(size);
    run::tool("make the file system image", &mut command, "").map(drop)
}

/// The bytes that the files below `dir` take in blocks of 4 KiB.
fn disk_usage(dir: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        total +=
            if meta.is_dir() { 4096 + disk_usage(&entry.path())? } else { meta.len().next_multiple_of(4096) };
    }
    Ok(total)
}
