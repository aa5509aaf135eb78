//! VMs that were added at run time: each is a file in a directory of the daemon's own, so that every next
//! daemon serves it, too.
//!
//! The directory is open before the daemon gives its rights up. A file appears, and goes, as a whole and for
//! good: it is written under another name, synchronized and renamed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, fchmod, flock, fsync, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use vmlane_access::Trust;

use crate::ConfigError;
use crate::sources::{Source, SourceKind, read_from};

/// VMs that are kept.
pub const MOST_VMS: usize = 1024;
/// Bytes of a VM's description.
pub const MOST_BYTES: u64 = 16 << 10;

/// How long another daemon may take to end.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Where the daemon of the usual runtime directory keeps what is to outlive it.
pub const STATE_DIR: &str = "/var/lib/vmlane";
/// The name of the directory of added VMs in there.
const NAME: &str = "vms.d";

/// The directory of the daemon's state: the one of `--state-dir`; else the usual one, for the daemon of the
/// usual runtime directory; else the runtime directory.
pub fn state_dir(runtime: &Path, given: Option<&Path>) -> PathBuf {
    let usual = Path::new(STATE_DIR);
    match given {
        Some(given) => given.to_owned(),
        None if runtime != Path::new(vmlane_api::RUNTIME_DIR) => runtime.to_owned(),
        None if rustix::process::geteuid().is_root() || usual.is_dir() => usual.to_owned(),
        None => runtime.to_owned(),
    }
}

/// The directory of added VMs in there.
pub fn directory(state: &Path) -> PathBuf {
    state.join(NAME)
}

/// The directory, or why there is none.
#[derive(Debug)]
pub struct AddedVms {
    path: PathBuf,
    directory: Result<File, String>,
}

impl AddedVms {
    /// The directory below `state`, as it is: for those who only read it. `owners`: users beside root and
    /// this process's own who may own it.
    pub fn find(state: &Path, owners: &[u32]) -> io::Result<Option<AddedVms>> {
        let path = directory(&std::path::absolute(state)?);
        match (Trust { owners, ..Trust::default() }).open(&path) {
            Ok(directory) => Ok(Some(AddedVms { path, directory: Ok(directory) })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.about(&path)),
        }
    }

    /// The directory below `state`, made if need be, for this daemon alone. Without it, a daemon serves what
    /// its configuration has; that it is another daemon's is an error.
    pub fn open(state: &Path, owners: &[u32]) -> io::Result<AddedVms> {
        let path = directory(&std::path::absolute(state)?);
        let directory = make(state, &path, owners);
        if let Ok(directory) = &directory {
            lock(directory, &path)?;
        }
        let directory = directory.map_err(|cause| format!("{}: {cause}", path.display()));
        Ok(AddedVms { path, directory })
    }

    /// Why no VM can be kept.
    pub fn why_not(&self) -> Option<&str> {
        self.directory.as_ref().err().map(String::as_str)
    }

    /// The file of a VM.
    pub fn file(&self, vm: &str) -> PathBuf {
        self.path.join(file_name(vm))
    }

    /// The open directory.
    pub fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_ref().ok().map(File::as_fd)
    }

    /// All VMs that are kept, by name.
    pub fn read(&self) -> Result<Vec<Source>, ConfigError> {
        let Ok(directory) = &self.directory else { return Ok(Vec::new()) };
        let unreadable = |cause| ConfigError::File { path: self.path.clone(), cause };
        let mut sources = Vec::new();
        for name in names(directory).map_err(unreadable)? {
            if sources.len() == MOST_VMS {
                return Err(unreadable(io::Error::other(format!(
                    "there are more than {MOST_VMS} VMs in it"
                ))));
            }
            let path = self.path.join(&name);
            match read(directory, &name) {
                Ok(text) => sources.push(Source { path, text, kind: SourceKind::Vm }),
                Err(cause) => return Err(ConfigError::File { path, cause }),
            }
        }
        Ok(sources)
    }

    /// Keeps a VM, in place of one of its name.
    pub fn keep(&self, vm: &str, text: &str) -> io::Result<()> {
        let directory = self.directory.as_ref().map_err(|why| io::Error::other(why.clone()))?;
        let temporary = format!(".{vm}.new");
        let written = write(directory, &temporary, text)
            .and_then(|()| Ok(renameat(directory, &temporary, directory, file_name(vm))?));
        if written.is_err() {
            let _ = unlinkat(directory, &temporary, AtFlags::empty());
        }
        written.and_then(|()| Ok(fsync(directory)?))
    }

    /// Keeps it no more.
    pub fn forget(&self, vm: &str) -> io::Result<()> {
        let Ok(directory) = &self.directory else { return Ok(()) };
        match unlinkat(directory, file_name(vm), AtFlags::empty()) {
            Ok(()) => Ok(fsync(directory)?),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Leaves no empty directory in the runtime directory.
    pub fn tidy(&self, runtime: &Path) {
        if self.path.parent() == Some(runtime) {
            // It stays if a VM is in it.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

fn file_name(vm: &str) -> String {
    format!("{vm}.toml")
}

/// Opens the directory, made if need be. The one that it is in may belong to another user, who may have put a
/// link there, or had something mounted: neither is used.
fn make(state: &Path, path: &Path, owners: &[u32]) -> io::Result<File> {
    let trust = Trust { owners, ..Trust::default() };
    let parent = trust.make(state, 0o755).map_err(|error| error.about(state))?;
    let directory = trust.make(path, 0o700).map_err(|error| error.about(path))?;
    if directory.metadata()?.dev() != parent.metadata()?.dev() {
        return Err(io::Error::other("something is mounted there"));
    }
    for name in all_names(&directory)?.iter().filter(|name| is_unfinished(name)) {
        tracing::info!(file = %path.join(name).display(), "left unfinished by a previous daemon");
        unlinkat(&directory, name, AtFlags::empty())?;
    }
    Ok(directory)
}

/// Until this process ends. One that another daemon holds may be about to be free: it ends, or is about to
/// start a program.
fn lock(directory: &File, path: &Path) -> io::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2))
            }
            Err(Errno::WOULDBLOCK) => {
                let text =
                    format!("{}: another daemon uses it; give this one another --state-dir", path.display());
                return Err(io::Error::other(text));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_unfinished(name: &OsString) -> bool {
    name.as_bytes().starts_with(b".") && name.as_bytes().ends_with(b".new")
}

fn all_names(directory: &File) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}

/// Of the files that count.
fn names(directory: &File) -> io::Result<Vec<OsString>> {
    let mut names = all_names(directory)?;
    names.retain(|name| name.as_bytes().ends_with(b".toml") && !name.as_bytes().starts_with(b"."));
    Ok(names)
}

fn read(directory: &File, name: &OsString) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    read_from(file, MOST_BYTES)
}

fn write(directory: &File, name: &str, text: &str) -> io::Result<()> {
    // One of a previous daemon may belong to another user.
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?);
    // Readable for the user of a later daemon, whatever the umask is; the directory lets in no other.
    fchmod(&file, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn texts(added: &AddedVms) -> Vec<String> {
        added.read().unwrap().into_iter().map(|source| source.text).collect()
    }

    #[test]
    fn vms_are_kept_until_they_are_forgotten() {
        let base = tempfile::tempdir().unwrap();
        let state = base.path().join("a/b");
        assert!(AddedVms::find(&state, &[]).unwrap().is_none());
        let added = AddedVms::open(&state, &[]).unwrap();
        assert_eq!(added.why_not(), None);
        let error = AddedVms::open(&state, &[]).unwrap_err().to_string();
        assert!(error.contains("vms.d: another daemon uses it") && error.contains("--state-dir"), "{error}");
        added.keep("web", "1").unwrap();
        added.keep("db.toml", "2").unwrap();
        added.keep("web", "3").unwrap();
        let next = AddedVms::find(&state, &[]).unwrap().unwrap();
        let read = next.read().unwrap();
        assert_eq!(texts(&next), ["2", "3"]);
        assert_eq!(read[0].path, state.join("vms.d/db.toml.toml"));
        assert_eq!((&read[1].path, read[1].kind), (&added.file("web"), SourceKind::Vm));
        added.forget("web").unwrap();
        added.forget("web").unwrap();
        assert_eq!(texts(&added), ["2"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&state.join("vms.d")), mode(&state)), (0o700, 0o755));
        assert_eq!(mode(&added.file("db.toml")), 0o644);
        added.tidy(&state);
        added.forget("db.toml").unwrap();
        added.tidy(base.path());
        assert!(state.join("vms.d").exists());
        added.tidy(&state);
        assert!(!state.join("vms.d").exists());
    }

    #[test]
    fn a_daemon_that_was_killed_while_writing_leaves_nothing_behind() {
        let base = tempfile::tempdir().unwrap();
        let vms = base.path().join("vms.d");
        fs::create_dir(&vms).unwrap();
        fs::write(vms.join(".web.new"), "half of i").unwrap();
        fs::write(vms.join("notes"), "mine").unwrap();
        let added = AddedVms::open(base.path(), &[]).unwrap();
        assert!(texts(&added).is_empty() && !vms.join(".web.new").exists() && vms.join("notes").exists());
        // One that another daemon is just writing is not in the way either.
        fs::write(vms.join(".web.new"), "half").unwrap();
        added.keep("web", "whole").unwrap();
        assert_eq!(texts(&added), ["whole"]);
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let elsewhere = base.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, base.path().join("vms.d")).unwrap();
        let added = AddedVms::open(base.path(), &[]).unwrap();
        let why = added.why_not().unwrap().to_owned();
        assert!(why.contains("vms.d: "), "{why}");
        assert_eq!(added.keep("web", "1").unwrap_err().to_string(), why);
        assert!(AddedVms::find(base.path(), &[]).is_err());
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        fs::remove_file(base.path().join("vms.d")).unwrap();
        let added = AddedVms::open(base.path(), &[]).unwrap();
        fs::write(elsewhere.join("secret"), "secret").unwrap();
        symlink(elsewhere.join("secret"), added.file("web")).unwrap();
        let error = added.read().unwrap_err().to_string();
        assert!(error.contains("vms.d/web.toml") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn descriptions_and_their_number_are_bounded() {
        let base = tempfile::tempdir().unwrap();
        let added = AddedVms::open(base.path(), &[]).unwrap();
        added.keep("web", &"#".repeat(MOST_BYTES as usize)).unwrap();
        assert_eq!(texts(&added).len(), 1);
        added.keep("web", &"#".repeat(MOST_BYTES as usize + 1)).unwrap();
        let error = added.read().unwrap_err().to_string();
        assert!(error.contains("web.toml: it has more than 16384 bytes"), "{error}");
        added.keep("web", "").unwrap();
        (1..MOST_VMS).for_each(|number| fs::write(added.file(&format!("v{number}")), "").unwrap());
        assert_eq!(texts(&added).len(), MOST_VMS);
        fs::write(added.file("more"), "").unwrap();
        let error = added.read().unwrap_err().to_string();
        assert!(error.contains("more than 1024 VMs"), "{error}");
    }

    #[test]
    fn the_state_is_where_it_is_configured_or_with_the_sockets() {
        let run = Path::new("/tmp/run");
        assert_eq!(state_dir(run, None), run);
        assert_eq!(state_dir(run, Some(Path::new("/x"))), Path::new("/x"));
        if rustix::process::geteuid().is_root() {
            assert_eq!(state_dir(Path::new(vmlane_api::RUNTIME_DIR), None), Path::new(STATE_DIR));
        }
    }
}
