//! The disk of a VM as a user brings one: it boots by the BIOS, and has Debian's kernel with its virtio
//! drivers, a shell on the serial console, and socat. All is in one FAT file system, which needs no rights to
//! be made.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use vmlane_lab::cpio::Archive;
use vmlane_lab::setup::{Assets, Kernel};
use vmlane_tests::alone::output;

/// What the guest's drivers are called.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_net", "vmw_vsock_virtio_transport"];
const SYSLINUX: &str = "DEFAULT linux\nLABEL linux\nKERNEL vmlinuz\nINITRD initrd.gz\n\
                        APPEND console=ttyS0 quiet edd=off no_timer_check mitigations=off\n";

/// The first program: loads the drivers, and offers a shell whose prompt is the VM's name.
fn init(name: &str) -> String {
    format!(
        "#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
for m in /m/*.ko; do $b insmod $m; done
$b --install -s /bin
hostname {name}
export PATH=/bin:/usr/bin PS1='{name}$ '
while :; do setsid cttyhack sh; done
"
    )
}

/// Modules in the order in which they are loaded.
fn modules(kernel: &Kernel, folder: &Path) -> Vec<PathBuf> {
    let all = folder.join("modules");
    fs::create_dir(&all).expect("a folder");
    output(Command::new("debugfs").args(["-R", &format!("rdump / {}", all.display())]).arg(kernel.modules()));
    let mut release = fs::read_dir(&all).expect("modules").flatten().map(|entry| entry.path());
    let release = release.find(|path| path.join("modules.dep").exists()).expect("a release");
    let needs = fs::read_to_string(release.join("modules.dep")).expect("modules.dep");
    let mut order: Vec<PathBuf> = Vec::new();
    for wanted in MODULES {
        let is = |path: &str| {
            let name = Path::new(path).file_stem().unwrap_or_default().to_string_lossy().replace('-', "_");
            name == wanted
        };
        let line = needs.lines().filter_map(|line| line.split_once(':')).find(|(path, _)| is(path));
        // Some kernels have it built in. What a module needs is listed last to first.
        let Some((module, before)) = line else { continue };
        for path in before.split_whitespace().rev().chain([module]) {
            let path = release.join(path);
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    order
}

/// socat of a system and the libraries that it needs, by their paths there.
fn socat(system: &Path) -> BTreeSet<PathBuf> {
    let needs = output(Command::new("chroot").arg(system).args(["ldd", "/usr/bin/socat"]));
    let libraries = needs.split_whitespace().filter(|word| word.starts_with('/'));
    libraries.chain(["/usr/bin/socat"]).map(PathBuf::from).collect()
}

/// Makes the disk of the VM `name`, with programs of `system`.
pub fn make(disk: &Path, name: &str, assets: &Assets, kernel: &Kernel, system: &Path) {
    let work = tempfile::tempdir().expect("a folder");
    let mut archive = Archive::new(Vec::new());
    let programs = socat(system);
    let mut folders: BTreeSet<PathBuf> =
        ["bin", "dev", "proc", "sys", "m", "tmp"].into_iter().map(PathBuf::from).collect();
    for program in &programs {
        folders.extend(
            program.ancestors().skip(1).filter_map(|above| above.strip_prefix("/").ok()).map(PathBuf::from),
        );
    }
    for folder in folders.iter().filter(|folder| !folder.as_os_str().is_empty()) {
        archive.directory(&folder.display().to_string()).expect("an archive in memory");
    }
    archive.character_device("dev/console", 5, 1).expect("an archive in memory");
    let mut put = |path: &str, from: &Path| {
        let bytes = fs::read(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        archive.file(path, 0o755, &bytes).expect("an archive in memory");
    };
    put("bin/busybox", &assets.root.busybox());
    for (number, module) in modules(kernel, work.path()).iter().enumerate() {
        put(&format!("m/{number:02}.ko"), module);
    }
    for program in &programs {
        let inside = program.strip_prefix("/").expect("an absolute path");
        put(&inside.display().to_string(), &system.join(inside));
    }
    archive.file("init", 0o755, init(name).as_bytes()).expect("an archive in memory");
    let initrd = work.path().join("initrd");
    fs::write(&initrd, archive.finish().expect("an archive in memory")).expect("a file");
    // The BIOS reads slowly.
    output(Command::new("gzip").arg(&initrd));
    let initrd = work.path().join("initrd.gz");
    let settings = work.path().join("syslinux.cfg");
    fs::write(&settings, SYSLINUX).expect("a file");

    let size = |path: &Path| fs::metadata(path).expect("a file").len();
    let mebibytes = (size(&initrd) + size(&kernel.image())).div_ceil(1 << 20) + 8;
    let blocks = (mebibytes * 1024).to_string();
    output(Command::new("mkfs.vfat").args(["-F", "16", "-C"]).arg(disk).arg(blocks));
    output(Command::new("syslinux").arg("--install").arg(disk));
    let copy = |from: &Path, to: &str| output(Command::new("mcopy").arg("-i").arg(disk).arg(from).arg(to));
    copy(&kernel.image(), "::vmlinuz");
    copy(&initrd, "::initrd.gz");
    copy(&settings, "::syslinux.cfg");
}
