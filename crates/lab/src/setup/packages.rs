//! The host tools that the set-up itself needs.

use std::process::Command;

use anyhow::{Result, bail};

use super::{Progress, run};

/// A tool and the Debian package that has it.
const TOOLS: [(&str, &str); 5] = [
    ("mmdebstrap", "mmdebstrap"),
    ("mke2fs", "e2fsprogs"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("ip", "iproute2"),
];

/// Installs what is missing when root, else says how to.
pub fn ensure(progress: &Progress<'_>) -> Result<()> {
    let mut missing = lacking(&TOOLS);
    if !std::path::Path::new(super::apt::KEYRING).exists() {
        missing.push("debian-archive-keyring");
    }
    install(&missing, progress)
}

/// The same with other tools, each with its package.
pub fn ensure_tools(tools: &[(&str, &'static str)], progress: &Progress<'_>) -> Result<()> {
    install(&lacking(tools), progress)
}

fn lacking(tools: &[(&str, &'static str)]) -> Vec<&'static str> {
    tools.iter().filter(|(tool, _)| run::find(tool).is_none()).map(|(_, package)| *package).collect()
}

fn install(missing: &[&str], progress: &Progress<'_>) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!("host packages are missing; as root run: apt-get install --no-install-recommends {list}");
    }
    if run::find("apt-get").is_none() {
        bail!("host packages are missing and this host has no apt-get: install {list}");
    }
    progress.say(&format!("installing host packages: {list}"));
    let install = || {
        let mut command = Command::new("apt-get");
        command
            .args(["install", "-y", "--no-install-recommends"])
            .args(missing)
            .env("DEBIAN_FRONTEND", "noninteractive");
        run::tool("install host packages", &mut command, "")
    };
    if install().is_err() {
        // The usual reason is a package list that is empty or old.
        run::tool("refresh the package lists", Command::new("apt-get").arg("update"), "")?;
        install()?;
    }
    Ok(())
}
