//! Directories and files that are trusted: what is in them is served, loaded or run.
//!
//! A path is followed from `/`, one open directory after the other. Each must belong to root or to this
//! process's user, and no one else may write to it. One that others may write to is passed if it is sticky,
//! as `/tmp` is: what lies in it is judged next, and its owner alone can replace it. Links are followed where
//! root or this process's user made them, but not at the end of the path.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, mkdirat, open, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::acl;

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;
/// Write permission of the group, and of all others.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// Any permission of the group or others.
const NOT_PRIVATE: u32 = 0o077;

/// Whom a directory or file may belong to, and what else it has to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trust<'a> {
    /// Users beside root and this process's own.
    pub owners: &'a [u32],
    /// No one else may read it either.
    pub private: bool,
    /// It may be a link, as those above it may.
    pub link: bool,
}

/// Why a directory or file is not used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// It, or a directory above it, is another user's.
    #[error(
        "{why}{path} belongs to user {owner} (mode {mode:04o}), and has to belong to root or user {user}; remove it if it is \
         not yours, `chown {user} {path}` if it is, or name another one",
        why = refused(wanted, path)
    )]
    Owner {
        /// What was to be opened.
        wanted: PathBuf,
        /// What is wrong.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
        /// This process's user.
        user: u32,
    },
    /// Others may change it, or a directory above it.
    #[error(
        "{why}{path} (owner {owner}, mode {mode:04o}) can be {what} by others than its owner; `chmod {way} {path}`, after a \
         check what they have put there, or name another one",
        why = refused(wanted, path)
    )]
    Mode {
        /// What was to be opened.
        wanted: PathBuf,
        /// What is wrong.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
        /// What may happen to it.
        what: &'static str,
        /// What forbids them that.
        way: &'static str,
    },
    /// It is a link, or a directory above it is one that another user made.
    #[error(
        "{why}{path} is a link of user {owner} to {target}; name it without the link",
        why = refused(wanted, path)
    )]
    Link {
        /// What was to be opened.
        wanted: PathBuf,
        /// The link.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Where it leads.
        target: PathBuf,
    },
    /// Anything else.
    #[error("{path}: {cause}")]
    Host {
        /// What could not be opened or made.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
}

/// What is not used, where that is another one than what is wrong.
fn refused(wanted: &Path, path: &Path) -> String {
    if wanted == path { String::new() } else { format!("{} is not used: ", wanted.display()) }
}

impl TrustError {
    fn host(path: &Path, cause: impl Into<io::Error>) -> TrustError {
        TrustError::Host { path: path.to_owned(), cause: cause.into() }
    }

    /// The kernel's error, if there was one.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            TrustError::Host { cause, .. } => cause.kind(),
            _ => io::ErrorKind::Other,
        }
    }

    /// For callers that name `path` themselves.
    pub fn about(self, path: &Path) -> io::Error {
        match self {
            TrustError::Host { path: same, cause } if same == path => cause,
            other => io::Error::new(other.kind(), other),
        }
    }
}

/// The end of a path.
struct Found {
    opened: OwnedFd,
    stat: Stat,
    /// Its name without links.
    path: PathBuf,
    /// What it is in, and its name there.
    place: Option<(OwnedFd, OsString)>,
}

impl Found {
    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

impl Trust<'_> {
    /// Opens a directory, to be read.
    ///
    /// # Errors
    /// It, or one above it, is not to be trusted, or cannot be opened.
    pub fn open(&self, path: &Path) -> Result<File, TrustError> {
        self.directory(path, None)
    }

    /// The same. If it is missing, it is made with this mode, as far as the umask leaves that, and so are
    /// those above it.
    ///
    /// # Errors
    /// Likewise, or it cannot be made.
    pub fn make(&self, path: &Path, mode: u32) -> Result<File, TrustError> {
        self.directory(path, Some(mode))
    }

    /// Opens a regular file, to be read.
    ///
    /// # Errors
    /// It, or a directory above it, is not to be trusted, or it cannot be opened.
    pub fn open_file(&self, path: &Path) -> Result<File, TrustError> {
        let wanted = absolute(path)?;
        let found = self.walk(&wanted, None)?;
        let (true, Some((directory, name))) = (found.kind() == FileType::RegularFile, &found.place) else {
            return Err(TrustError::host(&wanted, io::Error::other("it is not a regular file")));
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(directory, name, flags, Mode::empty());
        let file = file.map_err(|error| TrustError::host(&wanted, error))?;
        let stat = fstat(&file).map_err(|error| TrustError::host(&wanted, error))?;
        if (stat.st_dev, stat.st_ino) != (found.stat.st_dev, found.stat.st_ino) {
            return Err(TrustError::host(&wanted, io::Error::other("it has just been replaced; try again")));
        }
        Ok(file.into())
    }

    fn directory(&self, path: &Path, make: Option<u32>) -> Result<File, TrustError> {
        let wanted = absolute(path)?;
        let found = self.walk(&wanted, make)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(&found.opened, c".", flags, Mode::empty());
        opened.map(File::from).map_err(|error| TrustError::host(&wanted, error))
    }

    /// Follows a path. Everything on the way has been judged, and so has its end.
    fn walk(&self, wanted: &Path, make: Option<u32>) -> Result<Found, TrustError> {
        let root = root().map_err(|error| TrustError::host(Path::new("/"), error))?;
        let top = fstat(&root).map_err(|error| TrustError::host(Path::new("/"), error))?;
        let mut rest = Vec::new();
        push(&mut rest, wanted);
        let judge = |found: &Found, is_last| self.judge(found, wanted, is_last, top.st_uid);
        let mut found = Found { opened: root, stat: top, path: "/".into(), place: None };
        judge(&found, false)?;
        let mut above: Vec<Found> = Vec::new();
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == ".." {
                found = above.pop().unwrap_or(found);
                continue;
            }
            let path = found.path.join(&name);
            let host = |error: Errno| TrustError::host(&path, error);
            if found.kind() != FileType::Directory {
                return Err(host(Errno::NOTDIR));
            }
            let opened = open_or_make(&found.opened, &name, make).map_err(host)?;
            let stat = fstat(&opened).map_err(host)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                let target = readlinkat(&opened, c"", Vec::new()).map_err(host)?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                // A second name of root's link may be another user's doing.
                let is_ours = is_own(stat.st_uid) && stat.st_nlink == 1;
                if rest.is_empty() && !self.link || !is_ours {
                    let (wanted, owner) = (wanted.to_owned(), stat.st_uid);
                    return Err(TrustError::Link { wanted, path, owner, target });
                }
                links += 1;
                if links > MOST_LINKS {
                    return Err(host(Errno::LOOP));
                }
                if target.is_absolute() && !above.is_empty() {
                    above.truncate(1);
                    found = above.pop().unwrap_or(found);
                }
                push(&mut rest, &target);
                continue;
            }
            let place = found.opened.try_clone().map_err(|error| TrustError::host(&path, error))?;
            let next = Found { opened, stat, path, place: Some((place, name)) };
            judge(&next, false)?;
            above.push(std::mem::replace(&mut found, next));
        }
        judge(&found, true)?;
        Ok(found)
    }

    /// `top`: the owner of `/`, who can replace everything. In a user namespace without root it has another
    /// number.
    fn judge(&self, found: &Found, wanted: &Path, is_last: bool, top: u32) -> Result<(), TrustError> {
        let (owner, mode, user) = (found.stat.st_uid, found.stat.st_mode & 0o7777, geteuid().as_raw());
        let (wanted, path) = (wanted.to_owned(), found.path.clone());
        let is_owners = is_own(owner) || self.owners.contains(&owner) || !is_last && owner == top;
        if !is_owners {
            return Err(TrustError::Owner { wanted, path, owner, mode, user });
        }
        let (what, way) = match () {
            () if is_last && self.private && mode & NOT_PRIVATE != 0 => ("used", "go-rwx"),
            () if !is_last && mode & STICKY != 0 => return Ok(()),
            () if others_write(found) => ("written to", "go-w"),
            () => return Ok(()),
        };
        Err(TrustError::Mode { wanted, path, owner, mode, what, way })
    }
}

/// Root's, or this process's user's.
fn is_own(owner: u32) -> bool {
    owner == 0 || owner == geteuid().as_raw()
}

/// A group of its owner's number is the owner's alone, as `useradd` makes them, unless a list names others.
/// Root's has processes of other users in it.
fn others_write(Found { opened, stat, .. }: &Found) -> bool {
    let has_own_group = || stat.st_uid != 0 && stat.st_gid == stat.st_uid && !acl::is_on(opened);
    stat.st_mode & OTHERS_WRITE != 0 || stat.st_mode & GROUP_WRITES != 0 && !has_own_group()
}

fn root() -> Result<OwnedFd, Errno> {
    open(c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn absolute(path: &Path) -> Result<PathBuf, TrustError> {
    std::path::absolute(path).map_err(|error| TrustError::host(path, error))
}

/// The names of a path, the first one on top.
fn push(rest: &mut Vec<OsString>, path: &Path) {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    rest.extend(names);
}

/// What has this name, whatever it is.
fn open_or_make(directory: &OwnedFd, name: &OsString, make: Option<u32>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(directory, name, flags, Mode::empty());
    let (Err(Errno::NOENT), Some(mode)) = (&opened, make) else { return opened };
    match mkdirat(directory, name, Mode::from_raw_mode(mode)) {
        // Another process has just made it: it is judged like any other.
        Ok(()) | Err(Errno::EXIST) => openat(directory, name, flags, Mode::empty()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    const FOREIGN: u32 = 65_534;
    const DAEMON: u32 = 65_007;

    /// `a/b/c`, and what is changed of it. Links are made last.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Tree {
            let tree = Tree(tempfile::tempdir().unwrap());
            for name in ["a", "a/b", "a/b/c"] {
                fs::create_dir(tree.path(name)).unwrap();
                tree.mode(name, 0o755);
            }
            fs::write(tree.path("a/b/file"), "text").unwrap();
            tree.mode("a/b/file", 0o644);
            tree
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn mode(&self, name: &str, mode: u32) {
            fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
        }

        fn own(&self, name: &str, uid: u32, gid: u32) {
            std::os::unix::fs::lchown(self.path(name), Some(uid), Some(gid)).unwrap();
        }
    }

    fn is_root() -> bool {
        let is_root = geteuid().is_root();
        if !is_root {
            vmlane_testkit::skipped("only root can give files away");
        }
        is_root
    }

    const ANY: Trust<'_> = Trust { owners: &[], private: false, link: false };
    const PRIVATE: Trust<'_> = Trust { private: true, ..ANY };
    const LINKS: Trust<'_> = Trust { link: true, ..ANY };
    const DAEMONS: Trust<'_> = Trust { owners: &[DAEMON], ..ANY };

    /// What is opened, changed of the tree, and named by the error. An empty name: it is opened.
    type Row = (&'static str, Trust<'static>, fn(&Tree), &'static str, &'static [&'static str]);

    #[track_caller]
    fn judged(rows: &[Row]) {
        for (number, (name, trust, change, wrong, words)) in rows.iter().enumerate() {
            let tree = Tree::new();
            change(&tree);
            let path = tree.path(name);
            let outcome = if name.ends_with("file") { trust.open_file(&path) } else { trust.open(&path) };
            match outcome {
                Ok(_) => assert_eq!(*wrong, "", "row {number}: it was opened"),
                Err(error) => {
                    let text = error.to_string();
                    assert_ne!(*wrong, "", "row {number}: {text}");
                    let wrong = tree.path(wrong).display().to_string();
                    for word in words.iter().copied().chain([&*wrong]) {
                        assert!(text.contains(word), "row {number}: {word:?} is not in: {text}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_only_its_owner_can_write_is_opened_and_nothing_else() {
        judged(&[
            ("a/b/c", ANY, |_| (), "", &[]),
            ("a/b/file", ANY, |_| (), "", &[]),
            ("a/../a/./b/c", ANY, |_| (), "", &[]),
            ("a/b/c", ANY, |tree| tree.mode("a", 0o711), "", &[]),
            ("a/b/c", ANY, |tree| tree.mode("a/b/c", 0o777), "a/b/c", &["mode 0777", "chmod go-w"]),
            ("a/b/c", ANY, |tree| tree.mode("a/b/c", 0o1777), "a/b/c", &["mode 1777"]),
            ("a/b/c", ANY, |tree| tree.mode("a/b", 0o757), "a/b", &["mode 0757", "name another one"]),
            ("a/b/c", ANY, |tree| tree.mode("a/b", 0o1777), "", &[]),
            ("a/b/file", ANY, |tree| tree.mode("a/b/file", 0o646), "a/b/file", &["mode 0646"]),
            ("a/b/c", PRIVATE, |_| (), "a/b/c", &["mode 0755", "chmod go-rwx"]),
            ("a/b/c", PRIVATE, |tree| tree.mode("a/b/c", 0o700), "", &[]),
            ("a/b/none", ANY, |_| (), "a/b/none", &["No such file"]),
            ("a/b/none/file", ANY, |_| (), "a/b/none", &["No such file"]),
            ("a/b/file/c", ANY, |_| (), "a/b/file", &["Not a directory"]),
            // Where a path ends is judged as its end, whatever it is called.
            ("a/b/c/..", ANY, |tree| tree.mode("a/b", 0o1777), "a/b", &["mode 1777"]),
        ]);
        assert!(ANY.open(Path::new("/")).is_ok());
    }

    #[test]
    fn what_is_another_users_is_not_opened_wherever_it_is() {
        if !is_root() {
            return;
        }
        judged(&[
            (
                "a/b/c",
                ANY,
                |tree| tree.own("a/b/c", FOREIGN, 0),
                "a/b/c",
                &["user 65534", "mode 0755", "chown 0"],
            ),
            ("a/b/c", ANY, |tree| tree.own("a", FOREIGN, 0), "a", &["user 65534"]),
            ("a/b/file", ANY, |tree| tree.own("a/b/file", FOREIGN, 0), "a/b/file", &["user 65534"]),
            ("a/b/file", ANY, |tree| tree.own("a/b", FOREIGN, 0), "a/b", &["user 65534"]),
            // In a directory that is sticky, it is what lies there that counts.
            (
                "a/b/c",
                ANY,
                |tree| {
                    tree.mode("a/b", 0o1777);
                    tree.own("a/b/c", FOREIGN, 0);
                },
                "a/b/c",
                &["user 65534"],
            ),
            ("a/b/c", ANY, |tree| tree.mode("a/b/c", 0o770), "a/b/c", &["mode 0770"]),
            ("a/b/c", DAEMONS, |tree| tree.own("a/b/c", DAEMON, DAEMON), "", &[]),
            ("a/b/c", DAEMONS, |tree| tree.own("a/b", DAEMON, DAEMON), "", &[]),
            ("a/b/c", DAEMONS, |tree| tree.own("a/b/c", FOREIGN, 0), "a/b/c", &["user 65534"]),
            (
                "a/b/c",
                DAEMONS,
                |tree| {
                    tree.own("a/b/c", DAEMON, DAEMON);
                    tree.mode("a/b/c", 0o707);
                },
                "a/b/c",
                &["owner 65007", "mode 0707"],
            ),
            // A group of the owner's number, and another one.
            (
                "a/b/c",
                DAEMONS,
                |tree| {
                    tree.own("a/b/c", DAEMON, DAEMON);
                    tree.mode("a/b/c", 0o770);
                },
                "",
                &[],
            ),
            (
                "a/b/c",
                DAEMONS,
                |tree| {
                    tree.own("a/b/c", DAEMON, FOREIGN);
                    tree.mode("a/b/c", 0o770);
                },
                "a/b/c",
                &["mode 0770"],
            ),
        ]);
    }

    #[test]
    fn links_are_followed_where_they_are_ours_and_not_at_the_end() {
        judged(&[
            ("link", ANY, |tree| symlink("a/b", tree.path("link")).unwrap(), "link", &["is a link", "a/b"]),
            ("link", LINKS, |tree| symlink("a/b", tree.path("link")).unwrap(), "", &[]),
            ("link/c", ANY, |tree| symlink("a/b", tree.path("link")).unwrap(), "", &[]),
            ("link/c", ANY, |tree| symlink(tree.path("a/b"), tree.path("link")).unwrap(), "", &[]),
            ("a/link/c", ANY, |tree| symlink("../a/b", tree.path("a/link")).unwrap(), "", &[]),
            ("a/b/link/../c", ANY, |tree| symlink("c", tree.path("a/b/link")).unwrap(), "", &[]),
            ("link/c", ANY, |tree| symlink("link", tree.path("link")).unwrap(), "link", &["symbolic links"]),
            ("link/c", ANY, |tree| symlink("none", tree.path("link")).unwrap(), "none", &["No such file"]),
            // What they lead to is judged, too.
            (
                "link/c",
                ANY,
                |tree| {
                    symlink("a/b", tree.path("link")).unwrap();
                    tree.mode("a", 0o777);
                },
                "a",
                &["mode 0777"],
            ),
        ]);
        if !is_root() {
            return;
        }
        let foreign: fn(&Tree) = |tree| {
            symlink("a/b", tree.path("link")).unwrap();
            tree.own("link", FOREIGN, 0);
        };
        let daemons: fn(&Tree) = |tree| {
            symlink("a/b", tree.path("link")).unwrap();
            tree.own("link", DAEMON, 0);
        };
        let twice: fn(&Tree) = |tree| {
            symlink("a/b", tree.path("first")).unwrap();
            rustix::fs::link(tree.path("first"), tree.path("link")).unwrap();
        };
        judged(&[
            ("link/c", ANY, foreign, "link", &["user 65534"]),
            ("link", LINKS, foreign, "link", &["user 65534"]),
            ("link/c", DAEMONS, daemons, "link", &["user 65007"]),
            ("link/c", ANY, twice, "link", &["is a link"]),
        ]);
    }

    #[test]
    fn what_is_missing_is_made_for_its_owner_alone() {
        let tree = Tree::new();
        let path = tree.path("a/x/y");
        ANY.make(&path, 0o700).unwrap();
        for made in ["a/x", "a/x/y"] {
            assert_eq!(fs::metadata(tree.path(made)).unwrap().mode() & 0o7777, 0o700, "{made}");
        }
        ANY.make(&path, 0o755).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700, "one that is there stays as it is");
        assert!(ANY.make(&tree.path("a/b/file"), 0o700).is_err());
        tree.mode("a", 0o777);
        assert!(ANY.make(&tree.path("a/z"), 0o700).is_err());
        assert!(!tree.path("a/z").exists(), "nothing is made where others could replace it");
        assert_eq!(ANY.make(Path::new("/proc/none/x"), 0o700).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_pipe_or_a_device_is_no_file_and_is_not_waited_for() {
        let tree = Tree::new();
        let pipe = tree.path("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [&*pipe, Path::new("/dev/null"), &tree.path("a")] {
            let error = ANY.open_file(path).unwrap_err().to_string();
            assert!(error.contains("not a regular file") || error.contains("/dev"), "{error}");
        }
    }

    #[test]
    fn a_list_that_lets_others_write_counts() {
        if !is_root() {
            return;
        }
        let tree = Tree::new();
        let path = tree.path("a/b/c");
        tree.own("a/b/c", DAEMON, DAEMON);
        let alice = crate::Owner { uid: Some(20_001), gid: None };
        match acl::set(&path, 0o700, acl::Right::Make, &[alice]) {
            Err(acl::AclError::Unsupported { .. }) => {
                return vmlane_testkit::skipped("no POSIX ACLs on this file system");
            }
            set => set.unwrap(),
        }
        let error = DAEMONS.open(&path).unwrap_err().to_string();
        assert!(error.contains("mode 0770"), "{error}");
        acl::set(&path, 0o700, acl::Right::Search, &[alice]).unwrap();
        DAEMONS.open(&path).unwrap();
    }
}
