//! Who beside the daemon's user may use its directories and sockets: access control lists that follow from
//! the configuration. They are set when all sockets exist, and again by every reload.
//!
//! The daemon keeps the ownership of all of them. Owners of VMs may search the way to their VM's directory
//! and connect to the sockets in it, and do nothing else there. Where their VMMs make a hybrid socket, they
//! have a directory for it, in which the sockets of the daemon have their own lists. Owners of uplinks'
//! sockets may search the runtime directory; the sockets have their own lists
//! (`host/src/uplink/vhost_user/listening.rs`).

use std::io;
use std::path::{Path, PathBuf};

use vmlane_access::Owner;
use vmlane_access::acl::{self, AclError, Right};
use vmlane_config::Config;
use vmlane_config::paths::Paths;

use crate::hybrid;

/// A file or directory of the daemon, its mode, and who else may use it.
struct Grant {
    path: PathBuf,
    mode: u32,
    right: Right,
    to: Vec<Owner>,
}

/// Gives access to the owners that `config` names, and takes it from all others. Goes on where something
/// fails; returns what did.
pub fn apply(config: &Config, paths: &Paths) -> Vec<AclError> {
    let set = |grant: Grant| acl::set(&grant.path, grant.mode, grant.right, &grant.to);
    all(config, paths)
        .into_iter()
        .filter_map(|grant| set(grant).err())
        .filter(|error| !is_gone(error))
        .collect()
}

/// A socket that is not there (any more) lets no one in.
fn is_gone(error: &AclError) -> bool {
    matches!(error, AclError::Host { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
}

/// From the inside out: what is to be reached is private before the way to it opens.
fn all(config: &Config, paths: &Paths) -> Vec<Grant> {
    let owners: Vec<Owner> = config.vms.iter().filter_map(|vm| vm.owner).collect();
    // A rule for a user of a group is the user's here; the daemon asks for the group.
    let askers = config
        .control
        .iter()
        .map(|rule| Owner { uid: rule.uid, gid: rule.gid.filter(|_| rule.uid.is_none()) });
    let askers: Vec<Owner> = askers.collect();
    let mut grants = Vec::new();
    for vm in &config.vms {
        let to: Vec<Owner> = vm.owner.into_iter().collect();
        let directory = paths.vm(&vm.name);
        for path in sockets_in(&directory) {
            grants.push(Grant { path, mode: 0o600, right: Right::Connect, to: to.clone() });
        }
        if vm.vsock.hybrid().is_some_and(|hybrid| hybrid.path.is_none()) {
            let path = paths.hybrid_directory(&vm.name);
            grants.push(Grant { path, mode: hybrid::MODE, right: Right::Make, to: to.clone() });
        }
        grants.push(Grant { path: directory, mode: 0o700, right: Right::Search, to });
    }
    grants.push(Grant { path: paths.vms(), mode: 0o700, right: Right::Search, to: owners.clone() });
    grants.push(Grant { path: paths.control(), mode: 0o600, right: Right::Connect, to: askers.clone() });
    let host = if config.hosts.is_empty() { 0o600 } else { 0o666 };
    grants.push(Grant { path: paths.host(), mode: host, right: Right::Connect, to: Vec::new() });
    let helper: Vec<Owner> = config.route.as_ref().and_then(|route| route.owner).into_iter().collect();
    if config.route.is_some() {
        grants.push(Grant { path: paths.route(), mode: 0o600, right: Right::Connect, to: helper.clone() });
    }
    let through = if config.hosts.is_empty() { 0 } else { 0o011 };
    let mode = own_mode(paths.runtime()) | through;
    let other_switches = config.uplinks.iter().filter(|uplink| uplink.kind.listens_in(paths.runtime()));
    let other_switches = other_switches.filter_map(|uplink| uplink.kind.owner());
    let to = owners.into_iter().chain(askers).chain(other_switches).chain(helper).collect();
    grants.push(Grant { path: paths.runtime().to_owned(), mode, right: Right::Search, to });
    grants
}

/// The operator may have made the runtime directory, with a mode of theirs. None lets others write.
fn own_mode(runtime: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(runtime).map_or(0o700, |metadata| metadata.permissions().mode());
    mode & 0o705 | acl::group_bits(runtime).unwrap_or(0) << 3
}

/// The sockets of a VM's devices, and of its programs' way in. What host programs listen at for the guest
/// (`vsock.uds_PORT`) is theirs.
fn sockets_in(directory: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::FileTypeExt as _;
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    let ours = |name: &str| name.ends_with(".sock") || name == "vsock.uds";
    sockets.filter(|entry| ours(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect()
}
