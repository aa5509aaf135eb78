//! A QEMU that has the vfio-user device: 10.1 or later, the host's own or one from the mirror.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::apt::{Fetch, Mirrors};
use super::{Cache, Progress, digest, packages, run};

const PACKAGES: [&str; 3] = ["qemu-system-x86", "seabios", "ipxe-qemu"];
const OLDEST: (u32, u32) = (10, 1);

/// How to start QEMU on this host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Qemu {
    /// The program and what must come before QEMU's own arguments.
    pub command: Vec<String>,
    /// Directories with firmware, for `-L`.
    pub firmware: Vec<PathBuf>,
    /// Environment that QEMU needs.
    pub env: Vec<(String, String)>,
    pub version: String,
}

impl Qemu {
    /// A command that starts this QEMU.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).envs(self.env.iter().cloned());
        command.args(self.leading_args());
        command
    }

    /// The `-L` arguments.
    pub fn leading_args(&self) -> Vec<String> {
        self.firmware.iter().flat_map(|d| ["-L".to_owned(), d.display().to_string()]).collect()
    }

    fn plain(path: &Path) -> Self {
        Self {
            command: vec![path.display().to_string()],
            firmware: Vec::new(),
            env: Vec::new(),
            version: String::new(),
        }
    }

    /// Unpacked Debian packages run beside whatever the host has, with their own loader.
    fn unpacked(dir: &Path) -> Self {
        let usr = dir.join("usr");
        let lib = usr.join("lib/x86_64-linux-gnu");
        let path = |p: PathBuf| p.display().to_string();
        Self {
            command: vec![
                path(usr.join("lib64/ld-linux-x86-64.so.2")),
                "--library-path".into(),
                path(lib.clone()),
                path(usr.join("bin/qemu-system-x86_64")),
            ],
            firmware: vec![usr.join("share/qemu"), usr.join("share/seabios")],
            env: vec![("QEMU_MODULE_DIR".into(), path(lib.join("qemu")))],
            version: String::new(),
        }
    }

    fn probe(mut self) -> Result<Self> {
        let output = self.command().arg("--version").output();
        let output = output.with_context(|| format!("cannot run {}", self.command[0]))?;
        let text = String::from_utf8_lossy(&output.stdout);
        self.version = parse_version(&text)
            .with_context(|| format!("{} --version says {text:?}", self.command.join(" ")))?
            .to_owned();
        Ok(self)
    }

    fn is_recent(&self) -> bool {
        let mut parts = self.version.split('.').map(|p| p.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= OLDEST
    }
}

pub fn ensure(cache: &Cache, progress: &Progress<'_>) -> Result<Qemu> {
    if let Some(path) = std::env::var_os("VMLANE_QEMU").filter(|v| !v.is_empty()) {
        return Qemu::plain(Path::new(&path)).probe().context("VMLANE_QEMU");
    }
    if let Some(path) = run::find("qemu-system-x86_64")
        && let Ok(qemu) = Qemu::plain(&path).probe()
        && qemu.is_recent()
    {
        return Ok(qemu);
    }
    let name = format!("qemu-{}", digest(&PACKAGES));
    let dir = cache.artifact(&name, |dir| {
        packages::ensure(progress)?;
        progress.say("fetching QEMU (this host has none that is 10.1 or later)");
        let fetch = Fetch { step: "fetch QEMU", suite: "trixie", backports: true, packages: &PACKAGES };
        Mirrors::of_host()?.fetch(&fetch, dir)?;
        let qemu = Qemu::unpacked(dir).probe()?;
        if !qemu.is_recent() {
            bail!(
                "the mirror's QEMU is {}, and 10.1 or later is needed: set VMLANE_QEMU to one",
                qemu.version
            );
        }
        Ok(())
    })?;
    Qemu::unpacked(&dir).probe()
}

fn parse_version(text: &str) -> Option<&str> {
    text.strip_prefix("QEMU emulator version ")?.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let text = "QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1~bpo13+1)\nCopyright";
        assert_eq!(parse_version(text), Some("11.1.3"));
        let of = |v: &str| Qemu { version: v.into(), ..Qemu::plain(Path::new("q")) };
        assert!(of("10.1.0").is_recent() && of("11.0").is_recent());
        assert!(!of("10.0.13").is_recent() && !of("7.2.9").is_recent());
    }
}
