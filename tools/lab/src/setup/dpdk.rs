//! DPDK's testpmd and Open vSwitch with DPDK, from the mirror: what `make bench` puts virtio NICs beside.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::apt::{Fetch, Mirrors};
use super::{Cache, Progress, digest, packages};

const SUITE: &str = "trixie";
const PACKAGES: [&str; 6] = [
    "dpdk-dev",
    "librte-net-virtio25",
    "librte-mempool-ring25",
    "openvswitch-switch",
    "openvswitch-switch-dpdk",
    // stdbuf's library.
    "coreutils",
];

/// Unpacked packages; their programs run with the loader and libraries they come with.
#[derive(Clone, Debug)]
pub struct Dpdk {
    dir: PathBuf,
}

/// Fetches the programs unless they are in the cache.
pub fn ensure(progress: &Progress<'_>) -> Result<Dpdk> {
    let name = format!("dpdk-{}", digest(&[&[SUITE][..], &PACKAGES].concat()));
    let dir = Cache::open()?.artifact(&name, |dir| {
        packages::ensure(progress)?;
        progress.report("fetching DPDK and Open vSwitch");
        let fetch = Fetch {
            step: "fetch DPDK and Open vSwitch",
            suite: SUITE,
            backports: false,
            packages: &PACKAGES,
        };
        Mirrors::of_host()?.fetch(&fetch, dir)?;
        let found = Dpdk { dir: dir.to_owned() };
        found.drivers().map(drop)
    })?;
    Ok(Dpdk { dir })
}

impl Dpdk {
    /// A command that starts the program at `path`, such as `usr/bin/dpdk-testpmd`.
    pub fn command(&self, path: &str) -> Command {
        let mut command = Command::new(self.dir.join("usr/lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(self.libraries()).arg(self.file(path));
        command
    }

    pub fn file(&self, path: &str) -> PathBuf {
        self.dir.join(path)
    }

    fn libraries(&self) -> PathBuf {
        self.dir.join("usr/lib/x86_64-linux-gnu")
    }

    /// The folder of DPDK's drivers, for `-d`.
    pub fn drivers(&self) -> Result<PathBuf> {
        let dpdk = self.libraries().join("dpdk");
        let unreadable = || format!("{}: no drivers of DPDK", dpdk.display());
        let folders = std::fs::read_dir(&dpdk).with_context(unreadable)?;
        let is_drivers = |path: &Path| path.to_string_lossy().contains("/pmds-");
        folders.flatten().map(|entry| entry.path()).find(|path| is_drivers(path)).with_context(unreadable)
    }
}
