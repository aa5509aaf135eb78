//! An unprivileged user instead of root, and no capabilities.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, chownat, fchown, fstat, openat};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use vmlane_access::{Accounts, OVERFLOW, User};

use crate::error::ConfineError;
use crate::own_user::{self, OwnUser};

/// The user to become when none is configured, if the host has it.
const DEFAULT: &str = "vmlane";

/// Whom to become.
#[derive(Debug)]
pub enum Become {
    /// It stays who it is.
    Same,
    Listed(User),
    /// One that no account has.
    Own(OwnUser),
}

impl Become {
    pub fn user(&self) -> Option<&User> {
        match self {
            Become::Same => None,
            Become::Listed(user) | Become::Own(OwnUser { user, .. }) => Some(user),
        }
    }
}

/// Whom to become, to serve in the directory `runtime` (open as `directory`).
pub fn choose(configured: Option<&str>, runtime: &Path, directory: &File) -> Result<Become, ConfineError> {
    if !geteuid().is_root() {
        let own = geteuid().as_raw();
        return match configured {
            Some(user) if Accounts::host().user(user).is_none_or(|user| user.uid != own) => {
                Err(ConfineError::NotRoot { user: user.into() })
            }
            _ => Ok(Become::Same),
        };
    }
    let accounts = Accounts::host();
    if let Some(name) = configured.filter(|name| *name != "root") {
        let user = accounts.user(name).ok_or_else(|| ConfineError::UnknownUser { user: name.into() })?;
        if user.uid == OVERFLOW {
            tracing::warn!(
                user = name,
                "other services run as this user, too, and can reach the daemon's files"
            );
        }
        return match blocked(runtime, &user) {
            Some(directory) => Err(ConfineError::Unreachable { user: user.name, directory }),
            None => Ok(Become::Listed(user)),
        };
    }
    if configured.is_some() {
        return Ok(Become::Same);
    }
    let listed = accounts.user(DEFAULT);
    // Any user without an account is as good as another one here.
    let anybody = User { name: "of its own".into(), uid: u32::MAX - 1, gid: u32::MAX - 1 };
    if let Some(directory) = blocked(runtime, listed.as_ref().unwrap_or(&anybody)) {
        tracing::warn!(
            user = listed.map_or(anybody.name, |user| user.name),
            directory,
            "stays root, without capabilities: the user could not get into this directory"
        );
        return Ok(Become::Same);
    }
    if let Some(user) = listed {
        return Ok(Become::Listed(user));
    }
    let owner = directory.metadata().map_or(0, |metadata| metadata.uid());
    own_user::take(runtime, owner, &accounts).map(Become::Own).map_err(ConfineError::NoUser)
}

/// Users whom daemons of the directory `runtime` become that are started as root: the one that the
/// configuration names, the host's usual one, and of numbers without an account the ones of daemons that own
/// `runtime` (of this very directory) or one of `state` (which daemons of several ones may have had in turn).
pub fn of_daemons(configured: Option<&str>, runtime: &Path, state: &[PathBuf]) -> Vec<u32> {
    let accounts = Accounts::host();
    let listed = configured.into_iter().chain([DEFAULT]).filter_map(|name| accounts.user(name));
    let mut users: Vec<u32> = listed.map(|user| user.uid).collect();
    let owner = |directory: &Path| Some(fs::symlink_metadata(directory).ok()?.uid());
    for directory in state.iter().map(PathBuf::as_path).chain([runtime]) {
        let of = directory.starts_with(runtime).then_some(runtime);
        users.extend(owner(directory).filter(|uid| own_user::is_previous(*uid, of, &accounts)));
    }
    users
}

/// The first directory above `path` that the user may not search.
fn blocked(path: &Path, user: &User) -> Option<String> {
    let ancestors: Vec<&Path> = path.ancestors().skip(1).collect();
    ancestors.into_iter().rev().find_map(|directory| {
        let metadata = fs::metadata(directory).ok()?;
        let bit = match () {
            () if metadata.uid() == user.uid => 0o100,
            () if metadata.gid() == user.gid => 0o010,
            () => 0o001,
        };
        (metadata.mode() & bit == 0).then(|| directory.display().to_string())
    })
}

/// Names of the sockets that a previous daemon may have left in the runtime directory, and of the VMs'
/// directory.
const SOCKETS: [&str; 3] = ["control.sock", "host.sock", "keeper.sock"];
const VMS: &str = "vm";

/// Gives the runtime directory, and the sockets that a previous daemon left in it, to the user. Another user
/// owned the directory until now, and may have put anything there: no link is followed, and nothing else
/// changes hands than directories, and sockets that have no second name.
pub fn hand_over(directory: &File, user: &User) -> io::Result<()> {
    let give =
        Give { device: fstat(directory)?.st_dev, uid: Uid::from_raw(user.uid), gid: Gid::from_raw(user.gid) };
    fchown(directory, Some(give.uid), Some(give.gid))?;
    SOCKETS.iter().try_for_each(|name| give.socket(directory.as_fd(), name.as_ref()))?;
    let Some(vms) = give.directory(directory.as_fd(), VMS.as_ref())? else { return Ok(()) };
    for vm in names(&vms)? {
        if let Some(vm) = give.directory(vms.as_fd(), vm.as_os_str())? {
            names(&vm)?.iter().try_for_each(|name| give.socket(vm.as_fd(), name))?;
        }
    }
    Ok(())
}

/// Gives an open directory of the daemon's own to the user. The files in it stay whose they are: who owns the
/// directory can read and replace them.
pub fn give(directory: Option<BorrowedFd<'_>>, user: &User) -> io::Result<()> {
    let Some(directory) = directory else { return Ok(()) };
    Ok(fchown(directory, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?)
}

/// Who takes an open directory back, in a daemon that stays root: a previous daemon may have become another
/// user. The group that an operator gave it stays.
pub fn root_of(directory: BorrowedFd<'_>) -> io::Result<Option<User>> {
    let gid = fstat(directory)?.st_gid;
    Ok(geteuid().is_root().then(|| User { name: "root".into(), uid: 0, gid }))
}

struct Give {
    /// Of the runtime directory: nothing that is mounted in it changes hands.
    device: u64,
    uid: Uid,
    gid: Gid,
}

impl Give {
    /// Opens a directory, and gives it.
    fn directory(&self, of: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Something else, or a link; or nothing any more.
        let Ok(opened) = openat(of, name, flags, Mode::empty()) else { return Ok(None) };
        if fstat(&opened)?.st_dev != self.device {
            return Ok(None);
        }
        fchown(&opened, Some(self.uid), Some(self.gid))?;
        Ok(Some(opened))
    }

    fn socket(&self, of: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(opened) = openat(of, name, flags, Mode::empty()) else { return Ok(()) };
        // From here on it is this very file, whatever becomes of its name.
        let stat = fstat(&opened)?;
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        if is_socket && stat.st_nlink == 1 && stat.st_dev == self.device {
            chownat(&opened, c"", Some(self.uid), Some(self.gid), AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }
}

fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

/// Becomes the user for good. Only before other threads exist: the calls concern the calling thread.
pub fn become_user(user: &User) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    // Who started it may want it to end with itself; the kernel forgets that with the old user.
    let signal = rustix::process::parent_process_death_signal()?;
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    rustix::process::set_parent_process_death_signal(signal)?;
    Ok(())
}

/// Takes all capabilities but `kept` out of what any program started later could get. Needs to be root.
pub fn bound_capabilities(kept: CapabilitySet) {
    for capability in CapabilitySet::all().difference(kept).iter() {
        // One that this kernel does not know, or that is gone already.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let _ = clear_ambient_capability_set();
}

/// Gives up every capability but `kept`, of which it keeps what it has.
pub fn drop_capabilities(kept: CapabilitySet) -> io::Result<()> {
    let permitted = if kept.is_empty() { kept } else { capabilities(None)?.permitted & kept };
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_planted_in_the_directory_stays_whose_it_is() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        use std::os::unix::net::UnixListener;
        if !geteuid().is_root() {
            return vmlane_testkit::skipped("only root can give files away");
        }
        let base = tempfile::tempdir().unwrap();
        let (run, host) = (base.path().join("run"), base.path().join("host"));
        fs::create_dir_all(run.join("vm/web")).unwrap();
        fs::create_dir(&host).unwrap();
        fs::set_permissions(&host, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(host.join("shadow"), "").unwrap();
        drop(UnixListener::bind(host.join("root.sock")).unwrap());
        drop(UnixListener::bind(run.join("control.sock")).unwrap());
        drop(UnixListener::bind(run.join("vm/web/vmci.sock")).unwrap());
        // Links to what is root's: by another name, and by their path, at every place that is checked.
        fs::hard_link(host.join("shadow"), run.join("host.sock")).unwrap();
        fs::hard_link(host.join("root.sock"), run.join("vm/web/nic0.sock")).unwrap();
        fs::hard_link(host.join("shadow"), run.join("vm/web/notes")).unwrap();
        symlink(host.join("root.sock"), run.join("keeper.sock")).unwrap();
        symlink(host.join("shadow"), run.join("vm/web/vsock.sock")).unwrap();
        symlink(&host, run.join("vm/host")).unwrap();
        let user = User { name: "u".into(), uid: 65_010, gid: 65_011 };
        hand_over(&File::open(&run).unwrap(), &user).unwrap();
        let owner = |path: &Path| {
            let metadata = fs::symlink_metadata(path).unwrap();
            (metadata.uid(), metadata.gid())
        };
        for own in ["", "control.sock", "vm", "vm/web", "vm/web/vmci.sock"] {
            assert_eq!(owner(&run.join(own)), (65_010, 65_011), "{own}");
        }
        for roots in ["", "shadow", "root.sock"] {
            assert_eq!(owner(&host.join(roots)), (0, 0), "{roots}");
        }
    }

    #[test]
    fn a_link_in_place_of_the_vms_directory_is_not_followed() {
        if !geteuid().is_root() {
            return vmlane_testkit::skipped("only root can give files away");
        }
        let base = tempfile::tempdir().unwrap();
        let (run, host) = (base.path().join("run"), base.path().join("host"));
        fs::create_dir(&run).unwrap();
        fs::create_dir_all(host.join("etc")).unwrap();
        std::os::unix::fs::symlink(&host, run.join("vm")).unwrap();
        let user = User { name: "u".into(), uid: 65_010, gid: 65_011 };
        hand_over(&File::open(&run).unwrap(), &user).unwrap();
        assert_eq!(fs::metadata(host.join("etc")).unwrap().uid(), 0);
        assert_eq!(fs::metadata(&host).unwrap().uid(), 0);
    }

    #[test]
    fn a_directory_above_that_is_closed_is_named() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().unwrap();
        let unprivileged = User { name: "nobody".into(), uid: 65534, gid: 65534 };
        let runtime = base.path().join("run");
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o711)).unwrap();
        assert_eq!(blocked(&runtime, &unprivileged), None);
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(blocked(&runtime, &unprivileged), Some(base.path().display().to_string()));
    }
}
