//! Host set-up: QEMU, kernels and the guests' root image, fetched once into the cache.
//!
//! Each artifact is one directory in the cache whose name carries a digest of its recipe. It is
//! made under a temporary name and renamed when complete, so what exists is whole; a lock file
//! keeps two set-ups from doing the work twice.

mod accel;
mod apt;
pub mod dpdk;
mod kernel;
mod packages;
mod qemu;
mod root;
mod run;
mod system;
mod tsc;
mod uml;
mod uml_pci;
pub mod varlinkctl;
pub mod vhost_device_vsock;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use vmlane_access::Trust;

pub use accel::Accel;
pub use kernel::{KERNELS, Kernel};
pub use qemu::{Qemu, RELEASES as QEMU_RELEASES};
pub use root::Root;
pub use uml::{UML_KERNEL, Uml};
pub use uml_pci::{PCI, UML_PCI_KERNEL};

/// The kernels of guests under User Mode Linux, without and with a PCI bus.
pub const UML_KERNELS: [&str; 2] = [UML_KERNEL, UML_PCI_KERNEL];

use crate::dirs;

/// What a lab needs from the host, with every path resolved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Assets {
    /// None in a lab without guests in QEMU.
    pub qemu: Option<Qemu>,
    pub accel: Accel,
    pub root: Root,
    /// Of guests in QEMU.
    pub kernels: Vec<Kernel>,
    /// Of guests under User Mode Linux.
    #[serde(default)]
    pub uml: Vec<Uml>,
    /// The host's time-stamp counter, when it is known.
    pub tsc_khz: Option<u32>,
    /// Only for labs with that device.
    #[serde(default)]
    pub vhost_device_vsock: Option<PathBuf>,
}

impl Assets {
    pub fn qemu(&self) -> Result<&Qemu> {
        self.qemu.as_ref().context("no QEMU was set up")
    }

    pub fn uml(&self, version: &str) -> Result<&Uml> {
        let found = self.uml.iter().find(|uml| uml.version == version);
        found.with_context(|| format!("User Mode Linux {version} was not set up"))
    }

    /// QEMU's version; empty without one.
    pub fn qemu_version(&self) -> &str {
        self.qemu.as_ref().map_or("", |qemu| &qemu.version)
    }

    pub fn kernel(&self, version: &str) -> Result<&Kernel> {
        self.kernels
            .iter()
            .find(|k| k.version == version)
            .with_context(|| format!("kernel {version} was not set up"))
    }
}

/// Progress lines of the set-up; none for work that was cached.
pub struct Progress<'a>(pub &'a dyn Fn(&str));

impl Progress<'_> {
    fn report(&self, line: &str) {
        (self.0)(line);
    }
}

/// Makes sure that everything for `kernels` is in the cache; quick when it is. `release` is an older QEMU's.
/// Those of User Mode Linux alone need no QEMU.
pub fn ensure(kernels: &[String], release: Option<&str>, progress: &Progress<'_>) -> Result<Assets> {
    let cache = Cache::open()?;
    let root = root::ensure(&cache, progress)?;
    let mut uml: Vec<Uml> = Vec::new();
    let mut list: Vec<Kernel> = Vec::new();
    for version in kernels {
        if is_uml(version) {
            if !uml.iter().any(|known| known.version == *version) {
                uml.push(ensure_uml(&cache, version, progress)?);
            }
        } else if !list.iter().any(|k| k.version == *version) {
            list.push(kernel::ensure(&cache, version, progress)?);
        }
    }
    let Some(probe) = list.first() else {
        ensure!(!uml.is_empty(), "no kernel was asked for");
        return Ok(Assets {
            qemu: None,
            accel: Accel::Native,
            root,
            kernels: list,
            uml,
            tsc_khz: None,
            vhost_device_vsock: None,
        });
    };
    let qemu = qemu::ensure(&cache, release, progress)?;
    let accel = accel::choose(&cache, &qemu, probe, &root, progress)?;
    Ok(Assets {
        qemu: Some(qemu),
        accel,
        root,
        kernels: list,
        uml,
        tsc_khz: tsc::khz(),
        vhost_device_vsock: None,
    })
}

/// A QEMU that has vfio-user devices, alone.
pub fn qemu(progress: &Progress<'_>) -> Result<Qemu> {
    qemu::ensure(&Cache::open()?, None, progress)
}

/// Whether a kernel is a program of this host.
pub fn is_uml(version: &str) -> bool {
    UML_KERNELS.contains(&version)
}

fn ensure_uml(cache: &Cache, version: &str, progress: &Progress<'_>) -> Result<Uml> {
    if version == UML_PCI_KERNEL {
        uml_pci::ensure_uml_pci(cache, progress)
    } else {
        uml::ensure_uml(cache, progress)
    }
}

/// The cache directory.
pub(crate) struct Cache {
    dir: PathBuf,
}

impl Cache {
    fn open() -> Result<Self> {
        Ok(Self { dir: dirs::make_cache()? })
    }

    /// The path of the artifact `name`; `make` fills a fresh directory when it does not exist yet.
    fn artifact(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let path = self.dir.join(name);
        if is_made(&path)? {
            return Ok(path);
        }
        let _lock = self.lock()?;
        if is_made(&path)? {
            return Ok(path); // another set-up made it while this one waited
        }
        let temp = self.dir.join(format!(".part-{name}"));
        remove_tree(&temp)?; // left by a set-up that was killed: by the lock, no process uses it
        Trust::default().make(&temp, 0o755)?;
        let done = make(&temp).and_then(|()| {
            fs::rename(&temp, &path).with_context(|| format!("cannot name {}", path.display()))
        });
        if done.is_err() {
            let _ = remove_tree(&temp);
        }
        done?;
        Ok(path)
    }

    fn lock(&self) -> Result<File> {
        let path = self.dir.join(".lock");
        let file =
            File::create(&path).with_context(|| format!("cannot open the set-up lock {}", path.display()))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }
}

/// Programs of it run: what others could have changed is an error.
fn is_made(artifact: &Path) -> Result<bool> {
    match Trust::default().open(artifact) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Eight hex digits that change when a recipe does (FNV-1a: this names, it protects nothing).
fn digest(parts: &[&str]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.iter().flat_map(|p| p.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{:08x}", (hash >> 32) as u32 ^ hash as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_is_made_once_and_never_half() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache { dir: temp.path().to_path_buf() };
        assert!(cache.artifact("x", |_| anyhow::bail!("no network")).is_err());
        assert!(!temp.path().join("x").exists());
        assert!(!temp.path().join(".part-x").exists());
        let path = cache.artifact("x", |dir| Ok(fs::write(dir.join("f"), "1")?)).unwrap();
        assert_eq!(fs::read_to_string(path.join("f")).unwrap(), "1");
        cache.artifact("x", |_| panic!("made twice")).unwrap();
    }

    #[test]
    fn an_artifact_that_others_can_write_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache { dir: temp.path().to_path_buf() };
        let path = cache.artifact("x", |_| Ok(())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let error = cache.artifact("x", |_| panic!("made twice")).unwrap_err().to_string();
        assert!(error.contains("mode 0777") && error.contains("chmod go-w"), "{error}");
    }

    #[test]
    fn a_digest_follows_the_recipe() {
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
        assert_ne!(digest(&["a", "b"]), digest(&["ab"]));
    }
}
