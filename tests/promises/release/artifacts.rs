//! The artifacts of `make release`: those of a directory that was named, or of a clone of this commit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use vmlane_tests::alone::{output, printed};
use vmlane_tests::tree::{files, root};

/// A directory with artifacts of one release.
pub struct Artifacts {
    pub folder: PathBuf,
}

impl Artifacts {
    /// Those in `VMLANE_RELEASE`, or else what a clone of this commit makes, once.
    pub fn get() -> Artifacts {
        if let Some(named) = Artifacts::named("VMLANE_RELEASE") {
            return named;
        }
        let commit = output(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()));
        let folder = root().join("out/release-of").join(commit.trim());
        let made = Artifacts { folder: folder.join("artifacts") };
        if made.folder.is_dir() {
            return made;
        }
        let _ = fs::remove_dir_all(&folder);
        let sources = clone(&folder.join("source"));
        let mut make = Command::new("make");
        let fresh = Artifacts::make(&sources, { make.arg("release"); make });
        fs::rename(&fresh.folder, &made.folder).expect("the artifacts in their place");
        fs::remove_dir_all(&sources).expect("the clone goes");
        made
    }

    /// Those of the release before: in `VMLANE_RELEASE_BEFORE`.
    pub fn before() -> Option<Artifacts> {
        Artifacts::named("VMLANE_RELEASE_BEFORE")
    }

    fn named(variable: &str) -> Option<Artifacts> {
        let folder = std::env::var_os(variable).filter(|folder| !folder.is_empty())?;
        Some(Artifacts { folder: folder.into() }.checked())
    }

    /// Has `make` make those of these sources.
    pub fn make(sources: &Path, mut make: Command) -> Artifacts {
        make.current_dir(sources).stdin(Stdio::null());
        for variable in ["CARGO_TARGET_DIR", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VMLANE_BIN", "SOURCE_DATE_EPOCH"] {
            make.env_remove(variable);
        }
        output(&mut make);
        Artifacts { folder: sources.join("out/release") }.checked()
    }

    fn checked(self) -> Artifacts {
        assert_eq!(self.wrong(), None, "{}", self.folder.display());
        self
    }

    /// What the checksums say against these files.
    pub fn wrong(&self) -> Option<String> {
        let sums = self.folder.join("SHA256SUMS");
        let mut sha256sum = Command::new("sha256sum");
        sha256sum.args(["--check", "--strict"]).arg(&sums).current_dir(&self.folder).stdin(Stdio::null());
        let output = sha256sum.output().expect("sha256sum");
        let named = fs::read_to_string(&sums).unwrap_or_default();
        let unnamed = |name: &String| name != "SHA256SUMS" && !named.contains(&format!("  {name}\n"));
        let unnamed: Vec<String> = super::files_of(&self.folder).into_iter().filter(unnamed).collect();
        match (output.status.success(), unnamed.is_empty()) {
            (true, true) => None,
            (true, false) => Some(format!("without a checksum: {unnamed:?}")),
            (false, _) => Some(printed(&output)),
        }
    }

    pub fn package(&self) -> PathBuf {
        self.one_of("deb")
    }

    pub fn tarball(&self) -> PathBuf {
        self.one_of("gz")
    }

    /// As the package's name has it: `vmlane_VERSION_amd64.deb`.
    pub fn version(&self) -> String {
        let name = self.package().file_name().map(|name| name.to_string_lossy().into_owned());
        name.and_then(|name| Some(name.split('_').nth(1)?.to_owned())).expect("a version")
    }

    fn one_of(&self, extension: &str) -> PathBuf {
        let mut found = files(&self.folder, extension);
        assert_eq!(found.len(), 1, "{}: files of {extension}: {found:?}", self.folder.display());
        found.remove(0)
    }
}

/// A clone of this repository at this commit.
pub fn clone(to: &Path) -> PathBuf {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to.parent().expect("a parent")).expect("a folder for the clone");
    output(Command::new("git").args(["clone", "--quiet", "--local"]).arg(root()).arg(to));
    to.to_owned()
}
