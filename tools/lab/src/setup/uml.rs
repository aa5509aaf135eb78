//! User Mode Linux: a kernel that is a program of this host, with its modules.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::apt::{Fetch, Mirrors};
use super::{Cache, Progress, digest, kernel, packages, remove_tree, root};
use crate::elf;

/// The kernel of guests under User Mode Linux that need no PCI bus: Debian's package of this version. Earlier
/// ones have no `seccomp=on` (6.16).
pub const UML_KERNEL: &str = "7.2um1";

const SUITE: &str = "forky";
const PACKAGE: &str = "user-mode-linux";

/// Changes when the contents of an artifact do.
const RECIPE: &str = "1";

/// Where the program finds its loader, seen from [`Uml::dir`].
const LIBRARIES: &str = "lib64";
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

/// User Mode Linux in the cache. It is to be started in `dir`, with `env`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Uml {
    /// Its name for `--kernel`.
    pub version: String,
    pub dir: PathBuf,
}

impl Uml {
    /// The program, from [`Uml::dir`]. On a restart it starts this again.
    pub fn program(&self) -> &'static str {
        "./linux"
    }

    /// For the program and not for the process that starts it: these are not the host's libraries.
    pub fn env(&self) -> (String, String) {
        ("LD_LIBRARY_PATH".to_owned(), LIBRARIES.to_owned())
    }

    pub fn image(&self) -> PathBuf {
        self.dir.join("linux")
    }

    /// A file system with `RELEASE/`, to be mounted at `/usr/lib/modules`.
    pub fn modules(&self) -> PathBuf {
        self.dir.join("modules.img")
    }
}

pub fn ensure_uml(cache: &Cache, progress: &Progress<'_>) -> Result<Uml> {
    let name = format!("uml-{}", digest(&[RECIPE, SUITE, PACKAGE, UML_KERNEL, &kernel::recipe()]));
    let dir = cache.artifact(&name, |dir| {
        packages::ensure(progress)?;
        progress.report("fetching User Mode Linux");
        let tree = dir.join("tree");
        let fetch =
            Fetch { step: "fetch User Mode Linux", suite: SUITE, backports: false, packages: &[PACKAGE] };
        Mirrors::of_host()?.fetch(&fetch, &tree)?;
        unpack(&tree, dir).context("unpack User Mode Linux")?;
        remove_tree(&tree)
    })?;
    Ok(Uml { version: UML_KERNEL.to_owned(), dir })
}

/// Turns the unpacked packages into `linux` with the loader and the library it needs, and `modules.img`.
fn unpack(tree: &Path, dir: &Path) -> Result<()> {
    let program = fs::read(tree.join("usr/bin/linux.uml")).context("usr/bin/linux.uml")?;
    // Its address space is laid out after where its loader puts it, so that the loader must be started by the
    // kernel and cannot be given the program's name, as with QEMU.
    fs::write(dir.join("linux"), elf::with_loader(program, LOADER)?)?;
    fs::set_permissions(dir.join("linux"), fs::Permissions::from_mode(0o755))?;
    fs::create_dir(dir.join(LIBRARIES))?;
    fs::copy(tree.join("usr/lib64/ld-linux-x86-64.so.2"), dir.join(LOADER)).context("its loader")?;
    let library = tree.join("usr/lib/x86_64-linux-gnu/libc.so.6");
    fs::copy(library, dir.join(LIBRARIES).join("libc.so.6")).context("its C library")?;
    let uml = Uml { version: UML_KERNEL.to_owned(), dir: dir.to_owned() };
    let (key, value) = uml.env();
    let output = Command::new(uml.program()).arg("--version").env(key, value).current_dir(dir).output();
    let output = output.context("cannot run User Mode Linux")?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let wanted = UML_KERNEL.split("um").next().unwrap_or_default();
    let is_wanted = version.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    ensure!(is_wanted, "the mirror's {SUITE} has User Mode Linux {version:?} and not {wanted}");

    let modules = tree.join("usr/lib/uml/modules");
    let release = fs::read_dir(&modules).context("its modules")?.flatten().next();
    let Some(release) = release else { bail!("the package has no modules") };
    let release = release.file_name().to_string_lossy().into_owned();
    let base = tree.join("kept");
    kernel::keep_modules(&modules.join(&release), &base, &release)?;
    root::make_image(&base.join("lib/modules"), &uml.modules(), None)?;
    Ok(fs::write(dir.join("release"), release)?)
}
