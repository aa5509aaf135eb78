//! An unprivileged user instead of root, and no capabilities.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::ConfineError;

/// Users to become when none is configured, the first one that exists.
const DEFAULTS: [&str; 2] = ["vmlane", "nobody"];

/// A user of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

/// The user of a name or number in the text of `/etc/passwd`.
fn find(passwd: &str, wanted: &str) -> Option<User> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let user = User { name: name.into(), uid: uid.parse().ok()?, gid: gid.parse().ok()? };
        (name == wanted || uid == wanted).then_some(user)
    })
}

/// Whom to become: None stays who it is. `private`: directories that the user must get through to.
pub fn choose(configured: Option<&str>, private: &[&Path]) -> Result<Option<User>, ConfineError> {
    if !geteuid().is_root() {
        return match configured {
            Some(user) => Err(ConfineError::NotRoot { user: user.into() }),
            None => Ok(None),
        };
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if let Some(name) = configured.filter(|name| *name != "root") {
        let user = find(&passwd, name).ok_or_else(|| ConfineError::UnknownUser { user: name.into() })?;
        return match private.iter().find_map(|path| blocked(path, &user)) {
            Some(directory) => Err(ConfineError::Unreachable { user: user.name, directory }),
            None => Ok(Some(user)),
        };
    }
    if configured.is_some() {
        return Ok(None);
    }
    let Some(user) = DEFAULTS.iter().find_map(|name| find(&passwd, name)) else { return Ok(None) };
    if let Some(directory) = private.iter().find_map(|path| blocked(path, &user)) {
        tracing::warn!(
            user = user.name,
            directory,
            "stays root, without capabilities: the user could not get into this directory"
        );
        return Ok(None);
    }
    Ok(Some(user))
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

/// Gives the runtime directory, and what a previous daemon left in it, to the user.
pub fn hand_over(directory: &Path, user: &User) -> io::Result<()> {
    chown(directory, Some(user.uid), Some(user.gid))?;
    for entry in fs::read_dir(directory)?.flatten() {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            hand_over(&entry.path(), user)?;
        } else if !kind.is_symlink() {
            chown(entry.path(), Some(user.uid), Some(user.gid))?;
        }
    }
    Ok(())
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

/// Takes capabilities out of what any program started later could get. Needs to be root.
pub fn bound_capabilities() {
    for capability in CapabilitySet::all().iter() {
        // One that this kernel does not know, or that is gone already.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let _ = clear_ambient_capability_set();
}

/// Gives up every capability.
pub fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nvmlane:x:990:991::/:/bin/false\n";
        let user = User { name: "vmlane".into(), uid: 990, gid: 991 };
        assert_eq!(find(passwd, "vmlane"), Some(user.clone()));
        assert_eq!(find(passwd, "990"), Some(user));
        assert_eq!((find(passwd, "nobody"), find(passwd, "")), (None, None));
    }

    #[test]
    fn a_directory_above_that_is_closed_is_named() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().unwrap();
        let nobody = User { name: "nobody".into(), uid: 65534, gid: 65534 };
        let runtime = base.path().join("run");
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o711)).unwrap();
        assert_eq!(blocked(&runtime, &nobody), None);
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(blocked(&runtime, &nobody), Some(base.path().display().to_string()));
    }
}
