//! vhost-device-vsock, from the crate registry: what `make bench` puts virtio-vsock beside.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Cache, Progress, run};

const CRATE: &str = "vhost-device-vsock";
/// Its latest.
pub const VERSION: &str = "0.3.0";

/// The program; built unless it is in the cache.
pub fn ensure(progress: &Progress<'_>) -> Result<PathBuf> {
    let dir = Cache::open()?.artifact(&format!("{CRATE}-{VERSION}"), |dir| {
        progress.report(&format!("building {CRATE} {VERSION}"));
        let cargo = run::find("cargo").context("cargo is not installed")?;
        let mut command = Command::new(cargo);
        command.args(["install", "--quiet", "--locked", "--version", VERSION, CRATE, "--root"]).arg(dir);
        run::tool(&format!("build {CRATE}"), &mut command, "").map(drop)
    })?;
    Ok(dir.join("bin").join(CRATE))
}
