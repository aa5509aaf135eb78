//! Guest kernels: Debian's own, with the modules a lab can use and a small first root.

use std::fs;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::apt::{Fetch, Mirrors};
use super::{Cache, Progress, digest, packages, remove_tree, root, run};
use crate::cpio::Archive;
use crate::dirs;

/// Version, Debian release, from its backports.
pub const KERNELS: [(&str, &str, bool); 4] = [
    ("5.10", "bullseye", false),
    ("6.1", "bookworm", false),
    ("6.12", "trixie", false),
    ("7.2", "trixie", true),
];

/// The full kernel: Debian's cloud kernels lack vmxnet3 and vmw_vmci.
const PACKAGE: &str = "linux-image-amd64";

/// Changes when the contents of an artifact do.
const RECIPE: &str = "3";

/// Modules that the first root loads, when they are modules and not built in.
const FIRST: [&str; 7] = [
    "virtio_pci",
    "virtio_mmio",
    "virtio_blk",
    "virtio_console",
    "crc32c_generic",
    "crc32c_cryptoapi",
    "ext4",
];

/// Directories of modules that guests get, below `kernel/`.
const KEPT: [&str; 30] = [
    "arch/",
    "crypto/",
    "lib/",
    "net/",
    "drivers/block/virtio_blk",
    "drivers/char/hw_random/",
    "drivers/char/virtio_console",
    "drivers/firmware/qemu_fw_cfg",
    "drivers/iommu/iommufd/",
    "drivers/misc/vmw_vmci/",
    "drivers/net/bonding/",
    "drivers/net/ethernet/intel/e1000/",
    "drivers/net/ethernet/intel/e1000e/",
    "drivers/net/ethernet/intel/libeth/",
    "drivers/net/ipvlan/",
    "drivers/net/mdio",
    "drivers/net/team/",
    "drivers/net/vmxnet3/",
    "drivers/net/vxlan/",
    "drivers/pps/",
    "drivers/ptp/",
    "drivers/uio/",
    "drivers/vfio/",
    "drivers/vhost/",
    "drivers/virtio/",
    "fs/ext4/",
    "fs/jbd2/",
    "fs/mbcache",
    "fs/overlayfs/",
    "virt/lib/", // irqbypass, which vfio-pci needs
];

/// Parts of `net/` that no lab uses.
const DROPPED: [&str; 9] = [
    "net/wireless/",
    "net/mac80211/",
    "net/bluetooth/",
    "net/nfc/",
    "net/can/",
    "net/mac802154/",
    "net/ieee802154/",
    "net/batman-adv/",
    "net/ceph/",
];

/// One kernel in the cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kernel {
    pub version: String,
    pub dir: PathBuf,
}

impl Kernel {
    pub fn image(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// A file system with `RELEASE/`, to be mounted at `/usr/lib/modules`.
    pub fn modules(&self) -> PathBuf {
        self.dir.join("modules.img")
    }

    /// The first segment of the first root: modules, and the order to load them in.
    pub fn first_modules(&self) -> PathBuf {
        self.dir.join("first.cpio")
    }
}

/// The versions that `--kernel` takes.
pub fn versions() -> String {
    KERNELS.map(|(version, ..)| version).join(", ")
}

pub fn ensure(cache: &Cache, version: &str, progress: &Progress<'_>) -> Result<Kernel> {
    let Some((_, suite, backports)) = KERNELS.into_iter().find(|(v, ..)| *v == version) else {
        bail!("kernel {version:?}: choose one of {}", versions());
    };
    let name = format!("kernel-{version}-{}", digest(&[&[RECIPE][..], &KEPT, &FIRST].concat()));
    let dir = cache.artifact(&name, |dir| {
        packages::ensure(progress)?;
        progress.report(&format!("fetching kernel {version}"));
        let tree = dir.join("tree");
        let step = format!("fetch kernel {version}");
        let fetch = Fetch { step: &step, suite, backports, packages: &[PACKAGE] };
        Mirrors::of_host()?.fetch(&fetch, &tree)?;
        unpack(&tree, dir).with_context(|| format!("unpack kernel {version}"))?;
        remove_tree(&tree)
    })?;
    Ok(Kernel { version: version.to_owned(), dir })
}

/// Turns the unpacked package into `vmlinuz`, `modules.img` and `first.cpio`.
fn unpack(tree: &Path, dir: &Path) -> Result<()> {
    // Older packages have /lib/modules, newer ones /usr/lib/modules.
    let modules = ["usr/lib/modules", "lib/modules"].map(|p| tree.join(p));
    let (modules, release) = modules
        .iter()
        .find_map(|m| Some((m, fs::read_dir(m).ok()?.flatten().next()?.file_name())))
        .context("the kernel package has no modules directory")?;
    let release = release.to_string_lossy().into_owned();
    let source = modules.join(&release);
    let image = [tree.join(format!("boot/vmlinuz-{release}")), source.join("vmlinuz")]
        .into_iter()
        .find(|p| p.exists())
        .context("the kernel package has no vmlinuz")?;
    fs::copy(&image, dir.join("vmlinuz"))?;
    for config in [tree.join(format!("boot/config-{release}")), source.join("config")] {
        let _ = fs::copy(config, dir.join("config")); // for people who ask what was built in
    }

    let base = tree.join("kept");
    let kept = keep_modules(&source, &base, &release)?;
    write_first(&kept, &dir.join("first.cpio"))?;
    root::make_image(&base.join("lib/modules"), &dir.join("modules.img"), None)?;
    fs::write(dir.join("release"), release)?;
    Ok(())
}

/// Moves the wanted modules of a release below `base`, indexed; returns their directory.
pub(super) fn keep_modules(source: &Path, base: &Path, release: &str) -> Result<PathBuf> {
    let kept = base.join("lib/modules").join(release);
    copy_modules(source, &kept)?;
    index_modules(base, release)?;
    Ok(kept)
}

pub(super) fn index_modules(base: &Path, release: &str) -> Result<()> {
    let depmod = run::find("depmod").context("depmod is not installed (package kmod)")?;
    run::tool("index the modules", Command::new(depmod).arg("-b").arg(base).arg(release), "").map(drop)
}

/// Which modules are wanted, for the names of artifacts.
pub(super) fn recipe() -> String {
    [&KEPT[..], &DROPPED].concat().join(" ")
}

fn wanted(path: &str) -> bool {
    let top_net = path.strip_prefix("drivers/net/").is_some_and(|rest| !rest.contains('/'));
    (top_net || KEPT.iter().any(|k| path.starts_with(k))) && !DROPPED.iter().any(|d| path.starts_with(d))
}

/// Copies the wanted modules, uncompressed: busybox' insmod takes no .ko.xz.
fn copy_modules(source: &Path, target: &Path) -> Result<()> {
    let mut packed = Vec::new();
    let mut pending = vec![source.join("kernel")];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
                continue;
            }
            let inside = path.strip_prefix(source.join("kernel"))?.to_string_lossy().into_owned();
            if !wanted(&inside) {
                continue;
            }
            let to = target.join("kernel").join(&inside);
            dirs::make(to.parent().context("a module outside a directory")?)?;
            fs::rename(&path, &to)?;
            if to.extension().is_some_and(|e| e == "xz") {
                packed.push(to);
            }
        }
    }
    for name in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        let _ = fs::copy(source.join(name), target.join(name)); // absent in some releases
    }
    for chunk in packed.chunks(200) {
        run::tool("decompress modules", Command::new("xz").arg("-d").args(chunk), "")?;
    }
    Ok(())
}

/// Writes the first root's modules in loading order, as `/m/00.ko`, `/m/01.ko` ...
fn write_first(modules: &Path, out: &Path) -> Result<()> {
    let dep = fs::read_to_string(modules.join("modules.dep")).context("modules.dep")?;
    let mut order: Vec<&str> = Vec::new();
    for first in FIRST {
        let Some((path, needs)) =
            dep.lines().filter_map(|l| l.split_once(':')).find(|(path, _)| stem(path) == first)
        else {
            continue; // built in, or of another age
        };
        // modules.dep lists what to load last to first.
        for path in needs.split_whitespace().rev().chain([path]) {
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    let mut archive = Archive::new(BufWriter::new(fs::File::create(out)?));
    archive.directory("m")?;
    for (index, path) in order.iter().enumerate() {
        archive.file(&format!("m/{index:02}.ko"), 0o644, &fs::read(modules.join(path))?)?;
    }
    archive.finish()?;
    Ok(())
}

/// `kernel/fs/ext4/ext4.ko` is the module `ext4`; '-' and '_' are the same.
fn stem(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.split('.').next().unwrap_or(name).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subset_has_the_devices_and_no_radio() {
        for path in [
            "drivers/net/vmxnet3/vmxnet3.ko.xz",
            "drivers/misc/vmw_vmci/vmw_vmci.ko",
            "net/vmw_vsock/vmw_vsock_vmci_transport.ko",
            "drivers/net/tun.ko",
            "drivers/uio/uio_pci_generic.ko.xz",
            "drivers/vfio/pci/vfio-pci.ko.xz",
            "drivers/vfio/vfio_iommu_type1.ko",
            "virt/lib/irqbypass.ko",
            "fs/mbcache.ko",
        ] {
            assert!(wanted(path), "{path}");
        }
        for path in ["net/wireless/cfg80211.ko", "drivers/net/wireless/ath/ath.ko", "sound/x.ko"] {
            assert!(!wanted(path), "{path}");
        }
    }

    #[test]
    fn the_first_root_loads_what_a_module_needs_before_it() {
        let temp = tempfile::tempdir().unwrap();
        let module = |name: &str| fs::write(temp.path().join(name), name).unwrap();
        ["ext4.ko", "jbd2.ko", "crc16.ko", "virtio_blk.ko"].into_iter().for_each(module);
        let dep = "virtio_blk.ko:\next4.ko: jbd2.ko crc16.ko\njbd2.ko:\ncrc16.ko:\n";
        fs::write(temp.path().join("modules.dep"), dep).unwrap();
        let out = temp.path().join("first.cpio");
        write_first(temp.path(), &out).unwrap();
        let text = String::from_utf8_lossy(&fs::read(out).unwrap()).into_owned();
        let at = |needle: &str| text.find(needle).unwrap_or_else(|| panic!("{needle}"));
        assert!(at("virtio_blk.ko") < at("crc16.ko") && at("crc16.ko") < at("jbd2.ko"));
        assert!(at("jbd2.ko") < at("ext4.ko"));
    }
}
