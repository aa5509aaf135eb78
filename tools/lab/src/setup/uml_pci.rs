//! A User Mode Linux that has a PCI bus, built here from Debian's sources: Debian's own package has none.
//!
//! Its bus is virtio, so that `vmlane daemon` can serve VMCI and VMXNET3 devices on it, to the drivers as
//! they are in Linux. It is for experiments: a build takes ten minutes of two processors, and one that was
//! interrupted goes on where it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt::{Fetch, Mirrors};
use super::packages::{Tool, everywhere};
use super::{Cache, Progress, Uml, digest, kernel, packages, remove_tree, root, run};
use crate::dirs;

/// Its name for `--kernel`.
pub const UML_PCI_KERNEL: &str = "7.2pci";
/// The virtio device number of a PCI function, of those that no device has: the kernel is built with it.
pub const PCI: u32 = 1234;

const SUITE: &str = "trixie";
const SOURCE: &str = "linux-source-7.2";

/// Changes when the contents of an artifact do.
const RECIPE: &str = "1";

/// What a build needs beside the tools of every set-up.
const TOOLS: [Tool; 6] = [
    everywhere("make", "make"),
    everywhere("gcc", "gcc"),
    everywhere("flex", "flex"),
    everywhere("bison", "bison"),
    everywhere("bc", "bc"),
    // Headers and libraries to link with.
    Tool { debian: "libc6-dev", arch: Some("glibc"), alpine: None, ..everywhere("ld", "glibc-devel") },
];

/// What differs from the default configuration of User Mode Linux: devices and file systems of a lab's guest,
/// and nothing else that takes long to build. All is built in but virtio's transport of vSockets, which would
/// take VMCI's place.
const CONFIG: &str = include_str!("uml_pci.config");

/// A driver that Linux does not offer to build for User Mode Linux, since that is no x86 by its name: it
/// becomes a module, of the same sources, unchanged.
struct Driver {
    /// In the sources.
    folder: &'static str,
    option: &'static str,
    module: &'static str,
}

/// Each may need those before it.
const DRIVERS: [Driver; 2] = [
    Driver { folder: "drivers/misc/vmw_vmci", option: "CONFIG_VMWARE_VMCI", module: "vmw_vmci.ko" },
    Driver {
        folder: "net/vmw_vsock",
        option: "CONFIG_VMWARE_VMCI_VSOCKETS",
        module: "vmw_vsock_vmci_transport.ko",
    },
];

impl Driver {
    /// Where it is built.
    fn dir(&self, build: &Path) -> PathBuf {
        build.with_file_name("drivers").join(self.folder)
    }
}

pub fn ensure_uml_pci(cache: &Cache, progress: &Progress<'_>) -> Result<Uml> {
    let name = format!("uml-pci-{}", digest(&[RECIPE, SUITE, SOURCE, &given()]));
    let work = cache.dir.join(format!(".build-{name}"));
    let dir = cache.artifact(&name, |dir| {
        packages::ensure(progress)?;
        packages::ensure_tools(&TOOLS, progress)?;
        let source = fetch(&work, progress)?;
        build(&source, &work.join("build"), progress)?;
        install(&source, &work.join("build"), dir).context("install User Mode Linux")?;
        remove_tree(&work)
    })?;
    Ok(Uml { version: UML_PCI_KERNEL.to_owned(), dir })
}

/// The kernel's sources; unpacked under another name until they are complete.
fn fetch(work: &Path, progress: &Progress<'_>) -> Result<PathBuf> {
    let source = work.join("source");
    if source.is_dir() {
        return Ok(source);
    }
    progress.report(&format!("fetching {SOURCE}"));
    let (tree, part) = (work.join("tree"), work.join("part"));
    remove_tree(&tree)?;
    remove_tree(&part)?;
    dirs::make(&part)?;
    let fetch =
        Fetch { step: "fetch a kernel's sources", suite: SUITE, backports: true, packages: &[SOURCE] };
    Mirrors::of_host()?.fetch(&fetch, &tree)?;
    let archive = tree.join(format!("usr/src/{SOURCE}.tar.xz"));
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--strip-components=1", "--file"]).arg(&archive).arg("--directory").arg(&part);
    run::tool("unpack a kernel's sources", &mut tar, "")?;
    fs::rename(&part, &source).with_context(|| source.display().to_string())?;
    remove_tree(&tree)?;
    Ok(source)
}

/// Everything that a guest needs, in `build` and, of the modules, in folders of their own beside it.
fn build(source: &Path, build: &Path, progress: &Progress<'_>) -> Result<()> {
    let make = |step: &str, words: &[String]| make(source, build, step, words);
    dirs::make(build)?;
    make("configure User Mode Linux", &["defconfig".into()])?;
    let config = build.join(".config");
    let given = given();
    fs::write(&config, fs::read_to_string(&config)? + &given)?;
    make("configure User Mode Linux", &["olddefconfig".into()])?;
    check_config(&fs::read_to_string(&config)?, &given)?;
    progress.report("building User Mode Linux with a PCI bus: this takes ten minutes or more, once");
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make("build User Mode Linux", &[format!("-j{jobs}"), "linux".into(), "modules".into()])?;
    let mut symbols = String::new();
    for driver in &DRIVERS {
        let dir = driver.dir(build);
        copy_files(&source.join(driver.folder), &dir)?;
        let words = [
            format!("M={}", dir.display()),
            format!("{}=m", driver.option),
            format!("KBUILD_EXTRA_SYMBOLS={}", symbols.trim()),
            "modules".into(),
        ];
        make("build the VMCI drivers", &words)?;
        symbols += &format!("{} ", dir.join("Module.symvers").display());
    }
    Ok(())
}

fn make(source: &Path, build: &Path, step: &str, words: &[String]) -> Result<()> {
    // Whatever else this machine does comes first.
    let mut command = Command::new("nice");
    command.args(["-n", "19", "make", "ARCH=um", "-s", "-C"]).arg(source);
    command.arg(format!("O={}", build.display())).args(words);
    run::tool(step, &mut command, "").map(drop)
}

/// The configuration that is asked for, beside the default.
fn given() -> String {
    format!("{CONFIG}CONFIG_UML_PCI_OVER_VIRTIO_DEVICE_ID={PCI}\n")
}

/// Is what was asked for in force? Options that do not exist, or lack what they depend on, disappear without
/// a word.
fn check_config(config: &str, given: &str) -> Result<()> {
    let asked = given.lines().filter(|line| line.starts_with("CONFIG_"));
    for line in asked {
        ensure!(
            config.lines().any(|other| other == line),
            "configure User Mode Linux: {SOURCE} does not take {line}; this vmlane knows sources of another kind"
        );
    }
    Ok(())
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    dirs::make(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Leaves the program and its modules in `dir`.
fn install(source: &Path, build: &Path, dir: &Path) -> Result<()> {
    fs::copy(build.join("linux"), dir.join("linux")).context("the program")?;
    fs::copy(build.join(".config"), dir.join("config")).context("its configuration")?;
    let release = fs::read_to_string(build.join("include/config/kernel.release")).context("its release")?;
    let release = release.trim();
    let base = build.with_file_name("kept");
    remove_tree(&base)?;
    let words = [format!("INSTALL_MOD_PATH={}", base.display()), "modules_install".into()];
    make(source, build, "install the modules", &words)?;
    let kept = base.join("lib/modules").join(release);
    let _ = fs::remove_file(kept.join("build")); // a link to this host's sources
    for driver in &DRIVERS {
        let to = kept.join("kernel").join(driver.folder);
        dirs::make(&to)?;
        fs::copy(driver.dir(build).join(driver.module), to.join(driver.module)).context(driver.module)?;
    }
    kernel::index_modules(&base, release)?;
    root::make_image(&base.join("lib/modules"), &dir.join("modules.img"), None)?;
    Ok(fs::write(dir.join("release"), release)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_was_dropped_is_named() {
        let given = "CONFIG_VMXNET3=y\n# CONFIG_SOUND is not set\n";
        check_config("CONFIG_A=y\nCONFIG_VMXNET3=y\n", given).unwrap();
        let error = check_config("# CONFIG_VMXNET3 is not set\n", given).unwrap_err().to_string();
        assert!(error.contains("does not take CONFIG_VMXNET3=y"), "{error}");
    }

    #[test]
    fn the_device_number_is_that_of_the_kernel() {
        assert!(super::given().ends_with("\nCONFIG_UML_PCI_OVER_VIRTIO_DEVICE_ID=1234\n"));
    }
}
