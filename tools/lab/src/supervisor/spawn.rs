//! Starts the processes of a lab, each watched by a thread, and calls `ip`.

use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};

use crate::child::Handle;

/// Starts a child with its output in `log`; `ended` runs when it has ended.
pub fn spawn(
    mut command: Command,
    log: &Path,
    ended: impl FnOnce(u32, ExitStatus) + Send + 'static,
) -> Result<Handle> {
    let file = File::options().create(true).append(true).open(log)?;
    command.stdout(file.try_clone()?).stderr(file);
    let mut child = command.spawn().context("cannot start a process")?;
    let handle = Handle::of(&child)?;
    std::thread::spawn(move || {
        let pid = child.id();
        if let Ok(status) = child.wait() {
            ended(pid, status);
        }
    });
    Ok(handle)
}

/// Runs `ip` with these arguments.
pub fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output().context("cannot run ip (iproute2)")?;
    if !output.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
