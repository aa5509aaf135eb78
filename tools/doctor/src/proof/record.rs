//! The record of what a proof has changed: a file that outlives the processes that made the changes, so that
//! they can be taken back.
//!
//! `/run/vmlane-doctor/record` (below /var/lib on a machine without /run), one object of JSON:
//!
//! | key | holds |
//! | --- | --- |
//! | `version` | 1 |
//! | `boot` | /proc/sys/kernel/random/boot_id: after the next start of the machine, run-time settings are
//! gone by themselves |
//! | `namespace` | the cookie of the network namespace (`SO_NETNS_COOKIE`), 0 where the kernel has none |
//! | `entries` | the changes, in their order |
//!
//! An entry has the `setting`, the `index` of its interface (one that came again under the same name has
//! another), the setting's parts `before`, what was `wanted` of them, and all of them `after`; `after` is
//! null while a change is under way. Each state of the file is complete: it is written beside, synced to
//! disk, and renamed over the one before; a change is made after that. The directory is root's alone, and no
//! link is followed. What is read is bounded and checked.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use vmlane_access::Trust;

use super::setting::{MOST_PARTS, Parts, Setting, check_parts};
use crate::sys::Ethtool;

/// Raised when a key changes its meaning or goes away.
pub const VERSION: u32 = 1;
/// Bytes of the file, its entries, and the parts of each.
const LARGEST: u64 = 256 << 10;
const MOST: usize = 64;

const FILE: &str = "record";
const NEW: &str = "record.new";
const LOCK: &str = "lock";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub version: u32,
    pub boot: String,
    pub namespace: u64,
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub setting: Setting,
    pub index: Option<u32>,
    pub before: Parts,
    pub wanted: Parts,
    pub after: Option<Parts>,
}

impl Record {
    /// An empty one, of this machine as it runs now.
    pub fn begin() -> Record {
        Record { version: VERSION, boot: boot(), namespace: namespace(), entries: Vec::new() }
    }

    pub fn parse(text: &str) -> Result<Record, String> {
        let record: Record = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if record.version != VERSION {
            return Err(format!("version {}, where this program knows {VERSION}", record.version));
        }
        if record.entries.len() > MOST {
            return Err(format!("{} entries, and {MOST} are the most", record.entries.len()));
        }
        for entry in &record.entries {
            entry.setting.check()?;
            for parts in [&entry.before, &entry.wanted].into_iter().chain(&entry.after) {
                if parts.len() > MOST_PARTS {
                    return Err(format!(
                        "{} has {} parts, and {MOST_PARTS} are the most",
                        entry.setting.name(),
                        parts.len()
                    ));
                }
                check_parts(parts)?;
            }
        }
        Ok(record)
    }

    pub fn has_room(&self) -> bool {
        self.entries.len() < MOST
    }
}

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn namespace() -> u64 {
    Ethtool::open().ok().and_then(|ethtool| ethtool.namespace()).unwrap_or(0)
}

/// The directory of the record, locked: one proof at a time.
pub struct Store {
    directory: OwnedFd,
    path: PathBuf,
    _lock: OwnedFd,
}

/// Where the record is kept.
pub fn directory() -> PathBuf {
    let parent = if Path::new("/run").is_dir() { "/run" } else { "/var/lib" };
    Path::new(parent).join("vmlane-doctor")
}

impl Store {
    /// # Errors
    /// The directory cannot be used, or another proof runs.
    pub fn open(path: &Path) -> Result<Store, String> {
        let wrong = |what: &str, error: Errno| format!("{}: {what}: {error}", path.display());
        let trust = Trust { private: true, ..Trust::default() };
        let directory: OwnedFd = trust.make(path, 0o700).map_err(|error| error.to_string())?.into();
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = fs::openat(&directory, LOCK, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| wrong("its lock cannot be opened", error))?;
        match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Store { directory, path: path.to_owned(), _lock: lock }),
            Err(Errno::WOULDBLOCK) => Err("another proof runs on this machine: wait for its end".to_owned()),
            Err(error) => Err(wrong("cannot be locked", error)),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.path.join(FILE)
    }

    /// The record that is there; none if nothing is changed.
    pub fn read(&self) -> Result<Option<Record>, String> {
        let wrong = |why: String| format!("{}: {why}", self.path().display());
        // NONBLOCK: a pipe in its place would never be opened.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match fs::openat(&self.directory, FILE, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let about = fs::fstat(&file).map_err(|error| wrong(error.to_string()))?;
        let is_file = fs::FileType::from_raw_mode(about.st_mode) == fs::FileType::RegularFile;
        if !is_file || about.st_uid != rustix::process::geteuid().as_raw() || about.st_mode & 0o022 != 0 {
            return Err(wrong("is no file that only this user can write".to_owned()));
        }
        let mut text = String::new();
        let read = File::from(file).take(LARGEST + 1).read_to_string(&mut text);
        read.map_err(|error| wrong(error.to_string()))?;
        if text.len() as u64 > LARGEST {
            return Err(wrong(format!("is larger than {LARGEST} bytes")));
        }
        Record::parse(&text).map(Some).map_err(wrong)
    }

    /// Keeps the record; it is on disk when this returns. An empty one is no file.
    pub fn write(&self, record: &Record) -> Result<(), String> {
        let wrong = |error: std::io::Error| format!("{}: cannot be written: {error}", self.path().display());
        if record.entries.is_empty() {
            return match fs::unlinkat(&self.directory, FILE, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => fs::fsync(&self.directory).map_err(|error| wrong(error.into())),
                Err(error) => Err(wrong(error.into())),
            };
        }
        let text = serde_json::to_string(record).map_err(|error| wrong(error.into()))?;
        if text.len() as u64 > LARGEST {
            return Err(wrong(std::io::ErrorKind::FileTooLarge.into()));
        }
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let put = || -> std::io::Result<()> {
            let mut file = File::from(fs::openat(&self.directory, NEW, flags, Mode::RUSR | Mode::WUSR)?);
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::renameat(&self.directory, NEW, &self.directory, FILE)?;
            Ok(fs::fsync(&self.directory)?)
        };
        put().map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn parts(value: &str) -> Parts {
        [("value".to_owned(), value.to_owned())].into()
    }

    fn record() -> Record {
        let entry = Entry {
            setting: Setting::Sysctl("net.ipv4.tcp_sack".to_owned()),
            index: None,
            before: parts("0"),
            wanted: parts("1"),
            after: None,
        };
        Record { entries: vec![entry], ..Record::begin() }
    }

    #[test]
    fn a_record_comes_back_and_an_empty_one_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("doctor");
        let store = Store::open(&path).unwrap();
        assert_eq!(store.read().unwrap(), None);
        store.write(&record()).unwrap();
        assert_eq!(store.read().unwrap(), Some(record()));
        assert_eq!(std::fs::metadata(store.path()).unwrap().permissions().mode() & 0o777, 0o600);
        store.write(&Record::begin()).unwrap();
        assert!(!store.path().exists());
        store.write(&Record::begin()).unwrap();
    }

    #[test]
    fn the_format_is_the_documented_one() {
        let text = r#"{"version":1,"boot":"b","namespace":1,"entries":[{"setting":{"mtu":"eth0"},"index":2,"before":{"mtu":"1500"},"wanted":{"mtu":"9000"},"after":null},{"setting":{"sysctl":"net.ipv4.tcp_sack"},"index":null,"before":{"value":"0"},"wanted":{"value":"1"},"after":{"value":"1"}}]}"#;
        let record = Record::parse(text).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let good = serde_json::to_value(record()).unwrap();
        let with = |pointer: &str, value: serde_json::Value| {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).unwrap() = value;
            bad.to_string()
        };
        let many: Vec<_> = (0..=MOST).map(|_| good["entries"][0].clone()).collect();
        let wide: Parts = (0..=MOST_PARTS).map(|at| (at.to_string(), String::new())).collect();
        for bad in [
            String::new(),
            "[]".to_owned(),
            with("/version", 2.into()),
            with("/entries", many.into()),
            with("/entries/0/setting", serde_json::json!({ "sysctl": "kernel.core_pattern" })),
            with("/entries/0/setting", serde_json::json!({ "sysctl": "net.core.../../../../etc/passwd" })),
            with("/entries/0/setting", serde_json::json!({ "file": "/etc/passwd" })),
            with("/entries/0/before", serde_json::json!({ "value": "1\n2" })),
            with("/entries/0/after", serde_json::to_value(wide).unwrap()),
            good.to_string().replacen("\"boot\"", "\"more\":1,\"boot\"", 1),
        ] {
            assert!(Record::parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn links_files_of_others_and_a_second_proof_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("doctor");
        symlink(folder.path(), &path).unwrap();
        assert!(Store::open(&path).is_err(), "a link");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(Store::open(&path).is_err(), "a directory that all can write");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        let store = Store::open(&path).unwrap();
        assert!(Store::open(&path).err().unwrap().contains("another proof"));
        let elsewhere = folder.path().join("elsewhere");
        std::fs::write(&elsewhere, serde_json::to_string(&record()).unwrap()).unwrap();
        symlink(&elsewhere, store.path()).unwrap();
        assert!(store.read().is_err(), "a link instead of the record");
        std::fs::remove_file(store.path()).unwrap();
        std::fs::write(store.path(), vec![b' '; LARGEST as usize + 1]).unwrap();
        assert!(store.read().unwrap_err().contains("larger"));
        // What is in the way of the new file is not written through.
        std::fs::remove_file(store.path()).unwrap();
        symlink(&elsewhere, path.join(NEW)).unwrap();
        assert!(store.write(&record()).is_err());
        drop(store);
        assert!(Store::open(&path).is_ok(), "the lock goes with its owner");
    }
}
