//! A QEMU that has the vfio-user device: 10.1 or later, the host's own or one from the mirror. Or Debian 12's
//! 7.2, for vhost-user.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::apt::{Fetch, Mirrors};
use super::{Cache, Progress, digest, packages, run};

const PACKAGES: [&str; 3] = ["qemu-system-x86", "seabios", "ipxe-qemu"];
const OLDEST: (u32, u32) = (10, 1);

/// Older releases: version, and the Debian release that has it.
pub const RELEASES: [(&str, &str); 1] = [("7.2", "bookworm")];

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
        // Up to Debian 12, packages have files in /lib, too.
        let libraries = [lib.clone(), dir.join("lib/x86_64-linux-gnu")].map(|p| p.display().to_string());
        let loaders = ["usr/lib64", "lib64"].map(|p| dir.join(p).join("ld-linux-x86-64.so.2"));
        let loader = loaders.iter().find(|p| p.exists()).unwrap_or(&loaders[0]).clone();
        let path = |p: PathBuf| p.display().to_string();
        Self {
            command: vec![
                path(loader),
                "--library-path".into(),
                libraries.join(":"),
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
            .with_context(|| format!("{} --version printed {text:?}", self.command.join(" ")))?
            .to_owned();
        Ok(self)
    }

    /// Whether it has vfio-user devices.
    pub fn is_recent(&self) -> bool {
        let mut parts = self.version.split('.').map(|p| p.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= OLDEST
    }

    fn is_of(&self, release: &str) -> bool {
        self.version.strip_prefix(release).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// QEMU 10.1 or later, or an older `release`.
pub fn ensure(cache: &Cache, release: Option<&str>, progress: &Progress<'_>) -> Result<Qemu> {
    if let Some(release) = release {
        return ensure_release(cache, release, progress);
    }
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
        progress.report("fetching QEMU (this host has none that is 10.1 or later)");
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

/// The host's own when it is that release, else Debian's.
fn ensure_release(cache: &Cache, release: &str, progress: &Progress<'_>) -> Result<Qemu> {
    let Some((_, suite)) = RELEASES.into_iter().find(|(known, _)| *known == release) else {
        bail!("QEMU {release:?}: choose from {}", RELEASES.map(|(known, _)| known).join(", "));
    };
    let named = std::env::var_os("VMLANE_QEMU").filter(|v| !v.is_empty()).map(PathBuf::from);
    let of_host = named.or_else(|| run::find("qemu-system-x86_64"));
    if let Some(path) = of_host
        && let Ok(qemu) = Qemu::plain(&path).probe()
        && qemu.is_of(release)
    {
        return Ok(qemu);
    }
    let name = format!("qemu-{release}-{}", digest(&[&[suite][..], &PACKAGES].concat()));
    let dir = cache.artifact(&name, |dir| {
        packages::ensure(progress)?;
        progress.report(&format!("fetching QEMU {release} (Debian {suite})"));
        let fetch = Fetch { step: "fetch QEMU", suite, backports: false, packages: &PACKAGES };
        Mirrors::of_host()?.fetch(&fetch, dir)?;
        let qemu = Qemu::unpacked(dir).probe()?;
        if !qemu.is_of(release) {
            bail!("the mirror's {suite} has QEMU {} and not {release}: set VMLANE_QEMU to one", qemu.version);
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
        assert!(of("7.2.19").is_of("7.2") && of("7.2").is_of("7.2") && !of("7.20.1").is_of("7.2"));
    }
}
