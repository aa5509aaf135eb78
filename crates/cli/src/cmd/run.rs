//! `vmlane run`: a program as it is, with AF_VSOCK.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use vmlane_preload::{HEADER, HEADER_NAME, LIBRARY, LIBRARY_NAME};

const EXAMPLES: &str = "Examples:
  vmlane run -- socat - VSOCK-CONNECT:3:5000
  vmlane run -- ncat --vsock -l 5000
  vmlane run -- python3 server.py
  vmlane run -- ssh -o ProxyCommand='socat - VSOCK-CONNECT:3:22' root@vm
  vmlane run --write-library /usr/local/lib    for C programs: cc x.c -lvmlane_vsock

Connects to a CID that is not a VM of the daemon go to the kernel's own AF_VSOCK, if it has one. Programs that
are statically linked, or that run with another user's rights, cannot be served; neither can
SOCK_SEQPACKET. Programs that read and write by io_uring or by direct system calls need --plain, and cannot use these to
connect or accept.";

/// Runs an unmodified program whose AF_VSOCK sockets reach the daemon's VMs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The daemon's directory
    #[arg(long, value_name = "DIR", env = vmlane_sock::RUNTIME_DIR_VARIABLE, default_value_os_t = vmlane_sock::runtime_dir())]
    runtime_dir: PathBuf,
    /// Use ordinary descriptors from the start: slower, but every operation works
    #[arg(long)]
    plain: bool,
    /// Write the shared library and its C header into a directory instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    write_library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "write_library")]
    command: Vec<std::ffi::OsString>,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(directory) = self.write_library {
            for (name, bytes) in [(LIBRARY_NAME, LIBRARY), (HEADER_NAME, HEADER)] {
                let path = directory.join(name);
                fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
            }
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

/// Says so if the library could not work in that program.
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

/// The library as a file of this user's own, made once.
fn library() -> anyhow::Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let user = rustix::process::getuid().as_raw();
    let folder = cache.or_else(home).map_or_else(
        || std::env::temp_dir().join(format!("vmlane-{user}")),
        |folder| folder.join("vmlane").join("lib"),
    );
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(LIBRARY_NAME);
    if fs::read(&path).is_ok_and(|bytes| bytes == LIBRARY) {
        return Ok(path);
    }
    // Whole or not at all: programs may be loading it.
    let fresh = folder.join(format!("{LIBRARY_NAME}.{}", std::process::id()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(&fresh)
        .with_context(|| format!("writing {}", fresh.display()))?;
    std::io::Write::write_all(&mut file, LIBRARY)?;
    fs::rename(&fresh, &path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_programs_are_told_from_others() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(is_static(&own[..64 << 10]), "this one is");
        let shell = fs::read("/bin/sh").unwrap();
        assert!(!is_static(&shell[..shell.len().min(64 << 10)]));
        assert!(!is_static(b"#!/bin/sh\n") && !is_static(b"\x7fELF\x02\x01"));
    }
}
