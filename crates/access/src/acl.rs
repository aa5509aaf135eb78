//! POSIX access control lists: who beside a file's owner may use it.
//!
//! The kernel has them as the extended attribute `system.posix_acl_access`: a version
//! (`linux/posix_acl_xattr.h`), then entries of a tag, permissions and a number, in the order of the tags.
//! They are written whole, so that nothing of an older list remains.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::Owner;

const ATTRIBUTE: &str = "system.posix_acl_access";
/// What files get that are made in a directory.
const DEFAULT: &str = "system.posix_acl_default";
const VERSION: u32 = 2;
/// Tags of entries.
mod tag {
    pub const USER_OBJ: u16 = 0x01;
    pub const USER: u16 = 0x02;
    pub const GROUP_OBJ: u16 = 0x04;
    pub const GROUP: u16 = 0x08;
    pub const MASK: u16 = 0x10;
    pub const OTHER: u16 = 0x20;
}
/// The number of entries that name no user or group.
const NO_ID: u32 = u32::MAX;
/// Bytes of an entry.
const ENTRY: usize = 8;

/// What an entry lets others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Use names in a directory, without listing or changing them.
    Search,
    /// Connect to a socket.
    Connect,
    /// List a directory, and make and remove files in it.
    Make,
}

impl Right {
    fn bits(self) -> u16 {
        match self {
            Right::Search => 0o1,
            Right::Connect => 0o6,
            Right::Make => 0o7,
        }
    }
}

/// Why a list could not be written.
#[derive(Debug, thiserror::Error)]
pub enum AclError {
    /// The file system has none.
    #[error(
        "{path}: this file system has no POSIX ACLs, by which other users are let in; mount it with the option \
         acl, use a --runtime-dir on one that has them (tmpfs, as /run is), or run every VMM as the daemon's user \
         and leave out owner and [[control]]"
    )]
    Unsupported {
        /// The file or directory.
        path: PathBuf,
    },
    /// The list is longer than the file system can store.
    #[error(
        "{path}: {count} users and groups are more than this file system's access control lists hold; name a group \
         that all of them are in"
    )]
    TooMany {
        /// The file or directory.
        path: PathBuf,
        /// Entries that were to be written.
        count: usize,
    },
    /// Anything else.
    #[error("{path}: setting who may use it: {cause}")]
    Host {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
}

/// Sets the mode of a file or directory of the daemon, and lets `to` use it by `right`, and no others any
/// more.
pub fn set(path: &Path, mode: u32, right: Right, to: &[Owner]) -> Result<(), AclError> {
    let host = |cause: io::Error| AclError::Host { path: path.to_owned(), cause };
    let (users, groups) = ids(to);
    let count = users.len() + groups.len();
    if count == 0 {
        // The mode first: it takes effect on what entries there may be.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(host)?;
        return match rustix::fs::lremovexattr(path, ATTRIBUTE) {
            Ok(()) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(host),
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
            Err(error) => Err(host(error.into())),
        };
    }
    let list = encode(mode, right, &users, &groups);
    let outcome = rustix::fs::lsetxattr(path, ATTRIBUTE, &list, XattrFlags::empty());
    outcome.map_err(|error| refused(error, path, count))
}

/// Lets `to` use an open file of this process's user by `right`, beside `mode`; with O_PATH is open
/// enough. `shown`: its name in errors, which is not followed.
pub fn grant_open(
    file: impl AsFd,
    shown: &Path,
    mode: u32,
    right: Right,
    to: &[Owner],
) -> Result<(), AclError> {
    let (users, groups) = ids(to);
    let name = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let list = encode(mode, right, &users, &groups);
    let outcome = rustix::fs::setxattr(name, ATTRIBUTE, &list, XattrFlags::empty());
    outcome.map_err(|error| refused(error, shown, users.len() + groups.len()))
}

/// Files that others make in a directory of this process's user let `user` in, too, as far as their makers'
/// umask leaves rights to groups.
pub fn share_new_files(directory: &Path, user: u32) -> Result<(), AclError> {
    let list = encode(0o700, Right::Make, &[user], &[]);
    let outcome = rustix::fs::lsetxattr(directory, DEFAULT, &list, XattrFlags::empty());
    outcome.map_err(|error| refused(error, directory, 1))
}

fn ids(to: &[Owner]) -> (Vec<u32>, Vec<u32>) {
    let mut users: Vec<u32> = to.iter().filter_map(|owner| owner.uid).collect();
    // A user is listed beside a group: then it need not be a member.
    let mut groups: Vec<u32> = to.iter().filter_map(|owner| owner.gid).collect();
    for ids in [&mut users, &mut groups] {
        ids.sort_unstable();
        ids.dedup();
    }
    (users, groups)
}

/// Why the kernel did not take a list of `count` users and groups.
fn refused(error: Errno, path: &Path, count: usize) -> AclError {
    let path = path.to_owned();
    match error {
        Errno::NOTSUP => AclError::Unsupported { path },
        Errno::NOSPC | Errno::TOOBIG | Errno::RANGE => AclError::TooMany { path, count },
        error => AclError::Host { path, cause: error.into() },
    }
}

/// Has an open file a list? With O_PATH is open enough. If that cannot be known, it may have one.
pub(crate) fn is_on(file: impl AsFd) -> bool {
    let name = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let mut list = [0; 64];
    let outcome = rustix::fs::getxattr(name, ATTRIBUTE, &mut list[..]);
    !matches!(outcome, Err(Errno::NODATA | Errno::NOTSUP))
}

/// The permissions of a file's own group: with a list, those of its mode are the list's limit instead.
pub fn group_bits(path: &Path) -> io::Result<u32> {
    let mode = std::fs::metadata(path)?.permissions().mode();
    let mut list = vec![0; 64 << 10];
    let len = rustix::fs::lgetxattr(path, ATTRIBUTE, &mut list[..]).unwrap_or(0);
    let entries = list.get(4..len).unwrap_or_default();
    let own = entries.as_chunks::<ENTRY>().0.iter().find_map(|&[a, b, c, d, ..]| {
        (u16::from_le_bytes([a, b]) == tag::GROUP_OBJ).then(|| u16::from_le_bytes([c, d]).into())
    });
    Ok(own.unwrap_or(mode >> 3 & 0o7))
}

/// `users` and `groups` are sorted, and not both empty.
fn encode(mode: u32, right: Right, users: &[u32], groups: &[u32]) -> Vec<u8> {
    let own = |shift: u32| (mode >> shift & 0o7) as u16;
    let given = right.bits();
    let mut list = VERSION.to_le_bytes().to_vec();
    let mut entry = |tag: u16, bits: u16, id: u32| {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&bits.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    };
    entry(tag::USER_OBJ, own(6), NO_ID);
    users.iter().for_each(|&id| entry(tag::USER, given, id));
    entry(tag::GROUP_OBJ, own(3), NO_ID);
    groups.iter().for_each(|&id| entry(tag::GROUP, given, id));
    // The limit of all entries but the owner's and the others'.
    entry(tag::MASK, given | own(3), NO_ID);
    entry(tag::OTHER, own(0), NO_ID);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// None if this file system has no lists.
    fn given(path: &Path, own: u32, right: Right, to: &[Owner]) -> Option<()> {
        match set(path, own, right, to) {
            Ok(()) => Some(()),
            Err(AclError::Unsupported { .. }) => {
                vmlane_testkit::skipped(&format!("no POSIX ACLs on {}", path.display()));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn user(uid: u32) -> Owner {
        Owner { uid: Some(uid), gid: None }
    }

    #[test]
    fn a_list_is_written_as_the_kernel_wants_it() {
        let list = encode(0o600, Right::Connect, &[7, 8], &[9]);
        let entries: Vec<(u16, u16, u32)> = list[4..]
            .as_chunks::<ENTRY>()
            .0
            .iter()
            .map(|e| {
                let id = u32::from_le_bytes([e[4], e[5], e[6], e[7]]);
                (u16::from_le_bytes([e[0], e[1]]), u16::from_le_bytes([e[2], e[3]]), id)
            })
            .collect();
        let none = u32::MAX;
        assert_eq!(list[..4], [2, 0, 0, 0]);
        assert_eq!(
            entries,
            [(1, 6, none), (2, 6, 7), (2, 6, 8), (4, 0, none), (8, 6, 9), (0x10, 6, none), (0x20, 0, none)]
        );
    }

    #[test]
    fn what_is_given_is_taken_back_whole() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("d");
        std::fs::create_dir(&path).unwrap();
        let group = Owner { uid: None, gid: Some(1236) };
        let Some(()) = given(&path, 0o700, Right::Search, &[user(1234), user(1234), group]) else { return };
        // The mode's group bits are the list's limit.
        assert_eq!((mode(&path), group_bits(&path).unwrap()), (0o710, 0));
        set(&path, 0o700, Right::Search, &[user(1235)]).unwrap();
        let mut list = [0; 256];
        let len = rustix::fs::lgetxattr(&path, ATTRIBUTE, &mut list[..]).unwrap();
        assert_eq!(list[..len], encode(0o700, Right::Search, &[1235], &[]));
        set(&path, 0o700, Right::Search, &[]).unwrap();
        assert_eq!(mode(&path), 0o700);
        assert_eq!(rustix::fs::lgetxattr(&path, ATTRIBUTE, &mut list[..]), Err(Errno::NODATA));
        set(&path, 0o750, Right::Search, &[]).unwrap();
        assert_eq!(group_bits(&path).unwrap(), 5);
    }

    #[test]
    fn what_others_make_in_a_directory_lets_its_owner_in_unless_their_umask_forbids_it() {
        let base = tempfile::tempdir().unwrap();
        std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o1700)).unwrap();
        let Some(()) = given(base.path(), 0o1700, Right::Make, &[user(1234)]) else { return };
        assert_eq!(mode(base.path()), 0o1770, "the sticky bit stays");
        share_new_files(base.path(), 1235).unwrap();
        let path = base.path().join("v.sock");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut list = [0; 256];
        let len = rustix::fs::lgetxattr(&path, ATTRIBUTE, &mut list[..]).unwrap();
        let entries: Vec<(u16, u16)> = list[4..len]
            .as_chunks::<ENTRY>()
            .0
            .iter()
            .map(|e| (u16::from_le_bytes([e[0], e[1]]), u16::from_le_bytes([e[2], e[3]])))
            .collect();
        // The maker's umask is a limit for all but the owner.
        let umask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(umask);
        let limit = 0o7 & !(umask.bits() as u16 >> 3 & 0o7);
        assert_eq!(
            entries[..4],
            [(tag::USER_OBJ, 7), (tag::USER, 7), (tag::GROUP_OBJ, 0), (tag::MASK, limit)]
        );
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let (target, link) = (base.path().join("target"), base.path().join("link"));
        std::fs::write(&target, "").unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(set(&link, 0o600, Right::Connect, &[user(1234)]).is_err());
        assert_eq!(mode(&target), 0o600);
    }

    #[test]
    fn a_file_system_without_lists_is_named_with_the_way_out() {
        // Attributes of files in /proc cannot be set.
        let error = set(Path::new("/proc/self/comm"), 0o600, Right::Connect, &[user(1234)]).unwrap_err();
        for word in ["/proc/self/comm", "--runtime-dir", "tmpfs"] {
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
