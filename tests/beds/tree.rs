//! The files of this repository.

use std::path::{Path, PathBuf};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository")
}

/// Where crates lie: what the product is made of, and its tools.
const GROUPS: [&str; 2] = ["crates", "tools"];

/// The folder of each crate, but of `tests` and `fuzz`.
pub fn crates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = (GROUPS.iter())
        .flat_map(|group| std::fs::read_dir(root().join(group)).expect("a folder of crates"))
        .map(|entry| entry.expect("an entry").path())
        .filter(|folder| folder.join("Cargo.toml").exists())
        .collect();
    found.sort();
    found
}

/// The folder of the crate of this name, where there is one.
pub fn crate_folder(name: &str) -> Option<PathBuf> {
    crates().into_iter().find(|folder| folder.ends_with(name))
}

/// The text of a file, by its path from the root.
pub fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below a folder that have this extension, in order.
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|its| its == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}
