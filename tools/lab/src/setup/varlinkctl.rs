//! systemd's `varlinkctl`, from the mirror: the client that the control socket is tried with.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use super::apt::{Fetch, Mirrors};
use super::{Cache, Progress, digest, packages};

const SUITE: &str = "trixie";
const PACKAGES: [&str; 1] = ["systemd"];

/// The unpacked program; it runs with the loader and libraries it comes with.
#[derive(Clone, Debug)]
pub struct Varlinkctl {
    dir: PathBuf,
}

/// Fetches the program unless it is in the cache.
pub fn ensure(progress: &Progress<'_>) -> Result<Varlinkctl> {
    let name = format!("varlinkctl-{}", digest(&[&[SUITE][..], &PACKAGES].concat()));
    let dir = Cache::open()?.artifact(&name, |dir| {
        packages::ensure(progress)?;
        progress.report("fetching varlinkctl");
        let fetch = Fetch { step: "fetch varlinkctl", suite: SUITE, backports: false, packages: &PACKAGES };
        Mirrors::of_host()?.fetch(&fetch, dir)?;
        let program = Varlinkctl { dir: dir.to_owned() }.program();
        ensure!(program.exists(), "the package systemd of {SUITE} has no {}", program.display());
        Ok(())
    })?;
    Ok(Varlinkctl { dir })
}

impl Varlinkctl {
    /// A command that starts it.
    pub fn command(&self) -> Command {
        let libraries = self.dir.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(self.dir.join("usr/lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path");
        command.arg(format!("{}:{}", libraries.display(), libraries.join("systemd").display()));
        command.arg(self.program());
        command
    }

    fn program(&self) -> PathBuf {
        self.dir.join("usr/bin/varlinkctl")
    }
}
