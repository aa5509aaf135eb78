//! A user of the daemon's own where the host has none for it: a number that no account, service or process
//! has.
//!
//! The number is from systemd's range for dynamic users, as far as Debian's policy leaves that free of
//! accounts, too. It is not given to others while it is in use: its file in systemd's directory of such
//! numbers (or, where there is no systemd, in one of vmlane's) is locked as systemd locks it. The lock is
//! held by the daemon and, for the next one, by its keeper. The record of the number is the runtime directory
//! itself, which the user owns: the next daemon takes the same one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use vmlane_access::{Accounts, Trust, User};

/// systemd has 61184 to 65519; Debian gives accounts up to 64999.
const NUMBERS: RangeInclusive<u32> = 65_000..=65_519;
/// Where systemd locks the numbers of dynamic users.
const SYSTEMD: &str = "/run/systemd/dynamic-uid";
/// Where they are locked on other hosts.
const OTHERWISE: &str = "/run/vmlane-uids";
/// Bytes of a lock's file that are read.
const LONGEST: u64 = 4096;

/// A user without an entry in `/etc/passwd`, and what keeps its number from being given to others.
#[derive(Debug)]
pub struct OwnUser {
    pub user: User,
    /// None: a previous daemon's keeper holds it.
    pub lock: Option<File>,
}

/// The user `owner` that `runtime` belongs to already, if that is one of these, or an unused one.
pub fn take(runtime: &Path, owner: u32, accounts: &Accounts) -> io::Result<OwnUser> {
    let mut directory = Path::new(SYSTEMD);
    if !directory.is_dir() {
        directory = Path::new(OTHERWISE);
        Trust::default().make(directory, 0o700).map_err(|error| error.about(directory))?;
    }
    take_in(directory, runtime, owner, accounts, has_process)
}

/// Is it the number of a previous daemon's user? No account has it, and no lock marks it as a service's,
/// or that it is the daemon's of another directory than `runtime`. None: of any.
pub fn is_previous(uid: u32, runtime: Option<&Path>, accounts: &Accounts) -> bool {
    is_previous_in(&[SYSTEMD, OTHERWISE].map(Path::new), uid, runtime, accounts)
}

fn is_previous_in(directories: &[&Path], uid: u32, runtime: Option<&Path>, accounts: &Accounts) -> bool {
    let number = uid.to_string();
    let is_listed = accounts.user(&number).is_some() || accounts.group(&number).is_some();
    let is_free = |directory: &&Path| match fs::read(directory.join(&number)) {
        // Services have names.
        Ok(user) => runtime.map_or(user.starts_with(b"/"), |runtime| user == runtime.as_os_str().as_bytes()),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    NUMBERS.contains(&uid) && !is_listed && directories.iter().all(is_free)
}

fn take_in(
    directory: &Path,
    runtime: &Path,
    owner: u32,
    accounts: &Accounts,
    has_process: impl Fn(u32) -> bool,
) -> io::Result<OwnUser> {
    let recorded = Some(owner).filter(|uid| NUMBERS.contains(uid));
    // The same directory has the same user on every day, as far as possible.
    let bytes = runtime.as_os_str().as_bytes().iter();
    let hash = bytes.fold(5381u32, |sum, byte| sum.wrapping_mul(33) ^ u32::from(*byte));
    let count = NUMBERS.end() - NUMBERS.start() + 1;
    let fresh = (0..count).map(|step| NUMBERS.start() + (hash % count + step) % count);
    for uid in recorded.into_iter().chain(fresh) {
        let number = uid.to_string();
        if accounts.user(&number).is_some() || accounts.group(&number).is_some() {
            continue;
        }
        let lock = match (lock(&directory.join(&number), runtime)?, recorded == Some(uid)) {
            (Locked::Ours(_), false) if has_process(uid) => continue,
            (Locked::Ours(file), _) => Some(file),
            (Locked::BySameDirectory, true) => None,
            _ => continue,
        };
        return Ok(OwnUser { user: User { name: number, uid, gid: uid }, lock });
    }
    Err(io::Error::other("all of them are in use"))
}

enum Locked {
    Ours(File),
    /// By a daemon, or its keeper, of the same runtime directory.
    BySameDirectory,
    Elsewhere,
}

fn lock(path: &Path, runtime: &Path) -> io::Result<Locked> {
    let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let mut file = options.open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut user = Vec::new();
            file.take(LONGEST).read_to_end(&mut user)?;
            let same = user == runtime.as_os_str().as_bytes();
            return Ok(if same { Locked::BySameDirectory } else { Locked::Elsewhere });
        }
        Err(error) => return Err(error.into()),
    }
    // Its last user may have removed it meanwhile: then another may make, and lock, a new one.
    if file.metadata()?.nlink() == 0 {
        return Ok(Locked::Elsewhere);
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(runtime.as_os_str().as_bytes())?;
    Ok(Locked::Ours(file))
}

/// Does any process run as this user, in whatever role?
fn has_process(uid: u32) -> bool {
    let uid = uid.to_string();
    let runs_as = |status: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        line.is_some_and(|uids| uids.split_whitespace().any(|one| one == uid))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok())
        .any(|status| runs_as(&status))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Host(tempfile::TempDir);

    impl Host {
        fn take(&self, runtime: &str, owner: u32) -> OwnUser {
            self.take_beside(runtime, owner, "", |_| false)
        }

        fn take_beside(
            &self,
            runtime: &str,
            owner: u32,
            passwd: &str,
            busy: impl Fn(u32) -> bool,
        ) -> OwnUser {
            take_in(self.0.path(), Path::new(runtime), owner, &Accounts::of(passwd, ""), busy).unwrap()
        }
    }

    #[test]
    fn a_number_in_use_is_not_taken() {
        let host = Host(tempfile::tempdir().unwrap());
        let first = host.take("/run/a", 0);
        let uid = first.user.uid;
        assert!(NUMBERS.contains(&uid) && first.lock.is_some());
        // Locked, an account's, a process's.
        assert_ne!(host.take("/run/a", 0).user.uid, uid);
        let passwd = format!("x:x:{uid}:1::/:\n");
        assert_ne!(host.take_beside("/run/a", uid, &passwd, |_| false).user.uid, uid);
        let free = Host(tempfile::tempdir().unwrap());
        assert_ne!(free.take_beside("/run/a", 0, "", |other| other == uid).user.uid, uid);
        assert_eq!(free.take("/run/a", 0).user.uid, uid, "the same wherever it is free");
    }

    #[test]
    fn the_next_daemon_takes_the_user_that_owns_the_directory() {
        let host = Host(tempfile::tempdir().unwrap());
        let first = host.take("/run/a", 0);
        let uid = first.user.uid;
        // Its keeper holds the lock, and runs.
        let next = host.take_beside("/run/a", uid, "", |_| true);
        assert_eq!((next.user.uid, next.lock.is_none()), (uid, true));
        assert_ne!(host.take("/run/b", uid).user.uid, uid, "another directory's lock");
        assert_ne!(host.take("/run/c", 1000).user.uid, 1000, "a user of another kind is no record");
    }

    #[test]
    fn a_record_counts_although_processes_run_as_that_user() {
        let host = Host(tempfile::tempdir().unwrap());
        let next = host.take_beside("/run/a", 65_007, "", |_| true);
        assert_eq!((next.user.uid, next.lock.is_some()), (65_007, true));
    }

    #[test]
    fn a_number_of_another_daemon_or_of_a_service_is_no_previous_daemons() {
        let host = Host(tempfile::tempdir().unwrap());
        let none = Host(tempfile::tempdir().unwrap());
        let previous = |uid: u32, runtime: &str, passwd: &str| {
            let directories = [none.0.path(), host.0.path()];
            is_previous_in(&directories, uid, Some(Path::new(runtime)), &Accounts::of(passwd, ""))
        };
        let any =
            |uid: u32| is_previous_in(&[none.0.path(), host.0.path()], uid, None, &Accounts::of("", ""));
        let first = host.take("/run/a", 0);
        let uid = first.user.uid;
        assert!(previous(uid, "/run/a", "") && !previous(uid, "/run/b", ""));
        drop(first);
        assert!(previous(uid, "/run/a", "") && !previous(uid, "/run/b", "") && any(uid));
        assert!(!previous(uid, "/run/a", &format!("x:x:{uid}:1::/:\n")));
        fs::remove_file(host.0.path().join(uid.to_string())).unwrap();
        assert!(previous(uid, "/run/b", ""), "the host has started again");
        fs::write(none.0.path().join(uid.to_string()), "some.service").unwrap();
        assert!(!previous(uid, "/run/b", "") && !any(uid));
        assert!(!previous(1000, "/run/a", "") && !previous(65_534, "/run/a", ""));
    }

    #[test]
    fn processes_are_seen_by_their_user() {
        assert!(has_process(rustix::process::getuid().as_raw()));
    }
}
