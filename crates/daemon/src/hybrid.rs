//! A VM whose VMM has a hybrid Unix socket, while it is served: its CID, and where its VMM makes its socket.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, fchmod, fstat, mkdirat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use vmlane_access::Trust;
use vmlane_access::acl::share_new_files;
use vmlane_host::sockets::HybridStats;
use vmlane_state::Found;

use crate::counters;
use crate::host::Host;
use crate::serve::VmError;
use vmlane_config::{HybridConfig, VmConfig};

/// Who may write to the directory is for `grants.rs`. Files in it are their makers', who alone may remove
/// them beside the daemon.
pub const MODE: u32 = 0o1700;

/// See the module's text.
pub struct ServedHybrid {
    pub cid: u32,
    /// The VMM's socket.
    pub path: PathBuf,
    stats: Arc<HybridStats>,
}

impl ServedHybrid {
    /// Answers for a VM that is in the table of VMs. Sockets of its forwards that cannot be made are tried
    /// again later: its VMM may be why, and must not keep the daemon from serving others.
    pub fn offer(
        host: &Host,
        vm: &VmConfig,
        hybrid: &HybridConfig,
        found: &mut Found,
    ) -> Result<ServedHybrid, VmError> {
        let name = || vm.name.clone();
        let path = vm.hybrid_socket(&host.paths).map_err(|cause| VmError::Path { name: name(), cause })?;
        if hybrid.path.is_none() {
            let directory = host.paths.hybrid_directory(&vm.name);
            make(&directory).map_err(|cause| VmError::Directory { name: name(), directory, cause })?;
        }
        let stats = Arc::new(counters::of_device(host, found, &scope(&vm.name), "device"));
        let served = ServedHybrid { cid: vm.cid, path, stats };
        served.update(host);
        Ok(served)
    }

    /// Forwards or the owner change.
    pub fn update(&self, host: &Host) {
        // The sockets report what is wrong.
        host.sockets.set_hybrid(self.cid, self.path.clone(), &self.stats);
    }

    /// Ends its connections, and removes what was made for it.
    pub fn withdraw(self, host: &Host, name: &str) {
        host.sockets.remove_hybrid(self.cid);
        host.store.remove_all(&format!("{}/", scope(name)));
        // Stays if anything is in it: the VMM's socket is the VMM's.
        let _ = std::fs::remove_dir(host.paths.hybrid_directory(name));
    }

    /// See [`crate::vm::ServedVm::since`].
    pub fn since(&self) -> u64 {
        self.stats.since()
    }

    /// Is there a socket? One of a VMM that was killed is there, too, until the next one takes its place.
    pub fn is_there(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.file_type().is_socket())
    }
}

/// How the names of all begin that is held of it.
fn scope(vm: &str) -> String {
    format!("{vm}.hybrid")
}

/// The VM's directory, and in it the one where its VMM makes sockets.
fn make(directory: &Path) -> io::Result<()> {
    let (Some(vm), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let vm = Trust::default().make(vm, 0o700).map_err(|error| error.about(vm))?;
    match mkdirat(&vm, name, Mode::from_raw_mode(MODE)) {
        // A previous daemon's: others cannot make one there.
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let hybrid = openat(&vm, name, flags, Mode::empty())?;
    // Without regard to the umask. Until `grants.rs` lets the owner in.
    if fstat(&hybrid)?.st_mode & 0o1000 == 0 {
        fchmod(&hybrid, Mode::from_raw_mode(MODE))?;
    }
    // The VMM's socket is the VMM's file. Without lists, the VMM must be the daemon's user's.
    if let Err(error) = share_new_files(directory, geteuid().as_raw()) {
        tracing::debug!(%error, "a VMM's socket may not let the daemon in");
    }
    Ok(())
}
