//! TCG or KVM: KVM only where a guest was seen to boot under it.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::{Cache, Kernel, Progress, Qemu, Root, digest};
use crate::cpio::Archive;

/// The accelerator that guests of this host run under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    Kvm,
    Tcg,
    /// None: User Mode Linux is a program of this host.
    Native,
}

const MARK: &str = "vmlane-probe-booted";

/// A real machine prints the mark in about a second; one that cannot hangs, or is killed.
const PROBE_TIME: Duration = Duration::from_secs(10);

impl Accel {
    pub fn name(self) -> &'static str {
        match self {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
            Accel::Native => "native",
        }
    }

    pub fn args(self) -> &'static [&'static str] {
        match self {
            Accel::Kvm => &["-accel", "kvm"],
            Accel::Tcg => &["-accel", "tcg,thread=multi"],
            Accel::Native => &[],
        }
    }

    /// The processor of guests that were asked for without one. None is QEMU's default: under TCG, copies are
    /// several times slower with `max`.
    pub fn cpu(self) -> Option<&'static str> {
        (self == Accel::Kvm).then_some("host")
    }
}

/// `VMLANE_ACCEL`, else the cached verdict of this boot, else a probe.
pub fn choose(
    cache: &Cache,
    qemu: &Qemu,
    kernel: &Kernel,
    root: &Root,
    progress: &Progress<'_>,
) -> Result<Accel> {
    match std::env::var("VMLANE_ACCEL").as_deref() {
        Ok("kvm") => return Ok(Accel::Kvm),
        Ok("tcg") => return Ok(Accel::Tcg),
        Err(_) | Ok("") => {}
        Ok(other) => bail!("VMLANE_ACCEL={other:?}: use kvm or tcg, or unset it for a probe"),
    }
    let device = File::options().read(true).write(true).open("/dev/kvm");
    if device.is_err() {
        return Ok(Accel::Tcg);
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = format!("accel-{}", digest(&[boot.trim(), &qemu.version]));
    let dir = cache.artifact(&name, |dir| {
        progress.report("probing whether guests boot under KVM");
        let initrd = dir.join("probe.cpio");
        write_initrd(&initrd, root).context("write the probe's first root")?;
        let verdict = if boots(qemu, kernel, &initrd) { Accel::Kvm } else { Accel::Tcg };
        progress.report(&format!("guests run under {}", verdict.name()));
        fs::remove_file(initrd)?;
        Ok(fs::write(dir.join("verdict"), verdict.name())?)
    })?;
    let verdict = fs::read_to_string(dir.join("verdict")).unwrap_or_default();
    Ok(if verdict == "kvm" { Accel::Kvm } else { Accel::Tcg })
}

fn write_initrd(path: &std::path::Path, root: &Root) -> Result<()> {
    let mut archive = Archive::new(File::create(path)?);
    for dir in ["bin", "dev"] {
        archive.directory(dir)?;
    }
    archive.character_device("dev/console", 5, 1)?;
    archive.file("bin/busybox", 0o755, &fs::read(root.busybox())?)?;
    let init = format!("#!/bin/busybox sh\necho {MARK}\nexec /bin/busybox poweroff -f\n");
    archive.file("init", 0o755, init.as_bytes())?;
    archive.finish()?;
    Ok(())
}

fn boots(qemu: &Qemu, kernel: &Kernel, initrd: &std::path::Path) -> bool {
    let console = initrd.with_extension("log");
    let mut command: Command = qemu.command();
    command
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-machine", "q35", "-m", "256"])
        .args(Accel::Kvm.args())
        .args(Accel::Kvm.cpu().iter().flat_map(|cpu| ["-cpu", cpu]))
        .arg("-kernel")
        .arg(kernel.image())
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", "console=ttyS0 quiet panic=-1"])
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    let deadline = Instant::now() + PROBE_TIME;
    let mut booted = false;
    while !booted && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
        let ended = !matches!(child.try_wait(), Ok(None));
        booted = fs::read(&console).is_ok_and(|log| String::from_utf8_lossy(&log).contains(MARK));
        if ended {
            break;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    let _ = fs::remove_file(console);
    booted
}
