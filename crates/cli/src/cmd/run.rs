//! `vmlane run`: a program as it is, with AF_VSOCK.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use vmlane_access::Trust;
use vmlane_preload::{ARCHIVE, ARCHIVE_NAME, HEADER, HEADER_NAME, LIBRARY, LIBRARY_NAME, LINK_NAME};

const EXAMPLES: &str = "Examples:
  vmlane run -- socat - VSOCK-CONNECT:3:5000
  vmlane run -- ncat --vsock -l 5000
  vmlane run -- python3 server.py
  vmlane run -- ssh -o ProxyCommand='socat - VSOCK-CONNECT:3:22' root@vm
  vmlane run --write-library /usr/local/lib    for C programs: cc x.c -lvmlane_vsock

A connection to a CID that is no VM of the daemon goes to the kernel's own AF_VSOCK, if it has one. Programs that are statically linked or setuid do not work; neither does SOCK_SEQPACKET. Programs that read and write by io_uring or by direct system calls need --plain, and cannot use these to
connect or accept. The exit code is the program's; 1 if it cannot be started.";

/// Runs an unmodified program whose AF_VSOCK sockets reach the daemon's VMs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The daemon's directory
    #[arg(long, value_name = "DIR", env = vmlane_sock::RUNTIME_DIR_VARIABLE, default_value_os_t = vmlane_sock::runtime_dir())]
    runtime_dir: PathBuf,
    /// Use ordinary file descriptors from the start: slower, but every operation works
    #[arg(long)]
    plain: bool,
    /// Write the library, shared and as an archive, and its C header into a directory instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    write_library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "write_library")]
    command: Vec<OsString>,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(directory) = self.write_library {
            write_for_linkers(&directory).with_context(|| format!("writing to {}", directory.display()))?;
            return Ok(ExitCode::SUCCESS);
        }
        let Some((program, arguments)) = self.command.split_first() else { bail!("no program given") };
        let path = find(Path::new(program)).with_context(|| format!("{}: not found", program.display()))?;
        servable(&path)?;
        let mut preload = library()?.into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let runtime_dir = std::path::absolute(&self.runtime_dir)?;
        let mut command = Command::new(&path);
        command.arg0(program).args(arguments);
        command.env("LD_PRELOAD", preload).env("VMLANE_RUNTIME_DIR", runtime_dir);
        if self.plain {
            command.env("VMLANE_VSOCK_PLAIN", "1");
        }
        let error = command.exec();
        Err(error).with_context(|| format!("running {}", path.display()))
    }
}

fn write_for_linkers(directory: &Path) -> io::Result<()> {
    for (name, bytes) in [(LIBRARY_NAME, LIBRARY), (ARCHIVE_NAME, ARCHIVE), (HEADER_NAME, HEADER)] {
        fs::write(directory.join(name), bytes)?;
    }
    let link = directory.join(LINK_NAME);
    if fs::symlink_metadata(&link).is_ok() {
        fs::remove_file(&link)?;
    }
    symlink(LIBRARY_NAME, link)
}

/// As a shell finds it.
fn find(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return Some(program.to_owned());
    }
    let runs = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(program)).find(runs)
}

/// Warns if the library could not work in that program.
fn servable(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let mode = fs::metadata(path).with_context(|| format!("{shown}"))?.permissions().mode();
    if mode & 0o6000 != 0 {
        bail!(
            "{shown} runs with another user's rights (setuid or setgid), so the loader ignores LD_PRELOAD; \
             use `vmlane connect` or `vmlane listen` beside it"
        );
    }
    let mut head = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(64 << 10).read_to_end(&mut head))
        .with_context(|| format!("{shown}"))?;
    if is_static(&head) {
        bail!(
            "{shown} is statically linked, so nothing can be loaded into it; \
             use `vmlane connect` or `vmlane listen` beside it"
        );
    }
    Ok(())
}

/// An ELF program that asks for no loader. Scripts and the unknown are given a try.
fn is_static(head: &[u8]) -> bool {
    const PROGRAM_INTERPRETER: u32 = 3;
    let number = |at: usize, len: usize| -> Option<u64> {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(head.get(at..at.checked_add(len)?)?);
        Some(u64::from_le_bytes(bytes))
    };
    // 64-bit, little-endian.
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return false;
    }
    let (Some(table), Some(size), Some(count)) = (number(32, 8), number(54, 2), number(56, 2)) else {
        return false;
    };
    let kinds = (0..count).map(|index| number((table + index * size) as usize, 4));
    !kinds.into_iter().any(|kind| kind.is_none_or(|kind| kind == u64::from(PROGRAM_INTERPRETER)))
}

/// The library that is installed with this program, or else one in the user's cache. A program runs what is
/// in it: only root or this user can have written it.
fn library() -> anyhow::Result<PathBuf> {
    let trust = Trust::default();
    let program = std::env::current_exe().context("this program's path")?;
    let installed = installed(&program).with_context(|| program.display().to_string())?;
    let Err(missing) = trust.open_file(&installed) else { return Ok(installed) };
    let Some(folder) = cache(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) else {
        bail!(
            "the library for programs under `vmlane run` is not installed ({}: {}), and neither XDG_CACHE_HOME nor HOME names \
             a directory for it: set one of them to a directory of this user, or install the package",
            installed.display(),
            missing.about(&installed)
        );
    };
    let directory = trust.make(&folder, 0o700).context(
        "the library for programs under `vmlane run` needs a directory of this user: set XDG_CACHE_HOME to one",
    )?;
    let path = folder.join(LIBRARY_NAME);
    if is_current(&trust, &path) {
        return Ok(path);
    }
    write(&directory).with_context(|| format!("writing {}", path.display()))?;
    trust.open_file(&path)?;
    Ok(path)
}

/// Where it is beside an installed program: `bin/vmlane` and `lib/vmlane`.
fn installed(program: &Path) -> Option<PathBuf> {
    let prefix = program.parent()?.parent()?;
    Some(prefix.join("lib/vmlane").join(LIBRARY_NAME))
}

fn cache(cache: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let base = cache.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".cache")))?;
    Some(base.join("vmlane/lib"))
}

fn is_current(trust: &Trust<'_>, path: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = |file: fs::File| file.take(LIBRARY.len() as u64 + 1).read_to_end(&mut bytes).is_ok();
    trust.open_file(path).is_ok_and(read) && bytes == LIBRARY
}

/// Whole or not at all: programs may be loading the one that is there.
fn write(directory: &fs::File) -> io::Result<()> {
    let fresh = format!("{LIBRARY_NAME}.{}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, &fresh, flags, Mode::from_raw_mode(0o755))?;
    let written = fs::File::from(file)
        .write_all(LIBRARY)
        .and_then(|()| Ok(renameat(directory, &fresh, directory, LIBRARY_NAME)?));
    if written.is_err() {
        let _ = unlinkat(directory, &fresh, AtFlags::empty());
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_programs_are_distinguished_from_others() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(is_static(&own[..64 << 10]), "this one is");
        let shell = fs::read("/bin/sh").unwrap();
        assert!(!is_static(&shell[..shell.len().min(64 << 10)]));
        assert!(!is_static(b"#!/bin/sh\n") && !is_static(b"\x7fELF\x02\x01"));
    }

    #[test]
    fn the_library_is_beside_the_program_or_in_a_cache_and_in_no_temporary_directory() {
        assert_eq!(
            installed(Path::new("/usr/bin/vmlane")).unwrap(),
            Path::new("/usr/lib/vmlane/libvmlane_vsock.so.0")
        );
        let cache = |xdg: Option<&str>, home: Option<&str>| cache(xdg.map(Into::into), home.map(Into::into));
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(cache(Some("/c"), Some("/h")), path("/c/vmlane/lib"));
        for other in [None, Some(""), Some("relative")] {
            assert_eq!(cache(other, Some("/h")), path("/h/.cache/vmlane/lib"));
            assert_eq!(cache(None, other), None);
        }
    }
}
