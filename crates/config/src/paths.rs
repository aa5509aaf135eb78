//! Where the daemon's sockets are. The names are a contract: VMMs are started with them.

use std::io;
use std::path::{Path, PathBuf};

/// Bytes of the longest path a unix socket can have.
const LONGEST: usize = 107;
/// The same of a hybrid socket: those of its VM's forwards have `_` and a port more.
pub const LONGEST_HYBRID: usize = LONGEST - "_4294967295".len();

/// The runtime directory and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    runtime: PathBuf,
}

/// A socket path that the kernel would not take.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path}: a unix socket path may have {LONGEST} bytes and this one has {length}; use a shorter --runtime-dir{}",
    or_name(*is_of_vm)
)]
pub struct TooLong {
    path: PathBuf,
    length: usize,
    is_of_vm: bool,
}

fn or_name(is_of_vm: bool) -> &'static str {
    if is_of_vm { " or a shorter name for the VM" } else { "" }
}

impl Paths {
    /// Relative directories are made absolute, because VMMs are started elsewhere.
    pub fn new(runtime: &Path) -> io::Result<Paths> {
        let paths = Paths { runtime: std::path::absolute(runtime)? };
        for path in [paths.control(), paths.host(), paths.route()] {
            checked(path, false).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        }
        Ok(paths)
    }

    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    pub fn control(&self) -> PathBuf {
        vmlane_api::control_socket(&self.runtime)
    }

    /// Where programs of the host ask for streams to VMs.
    pub fn host(&self) -> PathBuf {
        self.runtime.join("host.sock")
    }

    /// Where the helper for streams between hosts asks.
    pub fn route(&self) -> PathBuf {
        self.runtime.join("route.sock")
    }

    /// A VM's Unix socket for programs that speak `CONNECT <port>`.
    pub fn uds(&self, name: &str) -> Result<PathBuf, TooLong> {
        self.socket(name, "vsock.uds")
    }

    /// The directory of all VMs.
    pub fn vms(&self) -> PathBuf {
        self.runtime.join("vm")
    }

    pub fn vm(&self, name: &str) -> PathBuf {
        self.vms().join(name)
    }

    /// The socket of a VM's VMCI device.
    pub fn vmci(&self, name: &str) -> Result<PathBuf, TooLong> {
        self.socket(name, "vmci.sock")
    }

    /// The socket of a VM's virtio-vsock device.
    pub fn vsock(&self, name: &str) -> Result<PathBuf, TooLong> {
        self.socket(name, "vsock.sock")
    }

    /// Where the VMM of a VM makes its hybrid socket.
    pub fn hybrid_directory(&self, name: &str) -> PathBuf {
        self.vm(name).join("hybrid")
    }

    /// That socket, unless the configuration has another one.
    pub fn hybrid(&self, name: &str) -> Result<PathBuf, TooLong> {
        let path = self.hybrid_directory(name).join("v.sock");
        // Those of forwards are longer.
        match path.as_os_str().len() + LONGEST - LONGEST_HYBRID {
            length if length > LONGEST => Err(TooLong { path, length, is_of_vm: true }),
            _ => Ok(path),
        }
    }

    /// The socket of a VM's NIC, counted from 0.
    pub fn nic(&self, name: &str, number: usize) -> Result<PathBuf, TooLong> {
        self.socket(name, &format!("nic{number}.sock"))
    }

    fn socket(&self, name: &str, file: &str) -> Result<PathBuf, TooLong> {
        checked(self.vm(name).join(file), true)
    }
}

fn checked(path: PathBuf, is_of_vm: bool) -> Result<PathBuf, TooLong> {
    match path.as_os_str().len() {
        length if length > LONGEST => Err(TooLong { path, length, is_of_vm }),
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_contract() {
        let paths = Paths::new(Path::new("/run/vmlane")).unwrap();
        assert_eq!(paths.control(), Path::new("/run/vmlane/control.sock"));
        assert_eq!(paths.vmci("web").unwrap(), Path::new("/run/vmlane/vm/web/vmci.sock"));
        assert_eq!(paths.nic("web", 1).unwrap(), Path::new("/run/vmlane/vm/web/nic1.sock"));
    }

    #[test]
    fn a_directory_that_is_too_long_for_any_socket_is_refused_at_once() {
        let error = Paths::new(Path::new(&format!("/{}", "d".repeat(100)))).unwrap_err().to_string();
        for word in ["control.sock", "107", "114", "--runtime-dir"] {
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn paths_that_no_socket_can_have_are_refused_with_the_way_out() {
        let name = "n".repeat(64);
        let fits = "/".to_owned() + &"d".repeat(LONGEST - 1 - "/vm/".len() - 64 - "/vmci.sock".len());
        assert!(Paths::new(Path::new(&fits)).unwrap().vmci(&name).is_ok());
        let error = Paths::new(Path::new(&(fits + "d"))).unwrap().vmci(&name).unwrap_err().to_string();
        for word in ["107", "108", "--runtime-dir"] {
            assert!(error.contains(word), "{error}");
        }
    }
}
