//! A guest's first root (initramfs): the kernel's part from the cache, then ours.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::cpio::Archive;
use crate::elf;
use crate::setup::{Kernel, Root};

/// The first program of every guest.
const INIT: &str = include_str!("../../../guest/init");

/// Our part: the first program, a shell, and the `vmlane` whose agent serves the guest's port.
///
/// # Errors
/// A file cannot be read.
pub fn archive(root: &Root, vmlane: &Path) -> Result<Vec<u8>> {
    let program = fs::read(vmlane).with_context(|| format!("cannot read {}", vmlane.display()))?;
    let mut archive = Archive::new(Vec::new());
    for dir in ["bin", "dev", "proc", "sys", "root"] {
        archive.directory(dir)?;
    }
    archive.character_device("dev/console", 5, 1)?;
    archive.file("bin/busybox", 0o755, &fs::read(root.busybox())?)?;
    archive.file("init", 0o755, INIT.as_bytes())?;
    archive.file("vmlane", 0o755, &elf::loadable(program))?;
    Ok(archive.finish()?)
}

/// Writes the first root of guests with this kernel, with `ours` behind the kernel's part.
///
/// # Errors
/// A file cannot be read or written.
pub fn write(kernel: &Kernel, ours: &[u8], to: &Path) -> Result<()> {
    let mut file =
        BufWriter::new(File::create(to).with_context(|| format!("cannot write {}", to.display()))?);
    file.write_all(&fs::read(kernel.first_modules())?)?;
    file.write_all(ours)?;
    Ok(file.flush()?)
}
