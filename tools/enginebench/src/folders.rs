//! Folders of benchmarks.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// One of its own, which the user of a daemon gets through. Its creator removes it.
pub fn temporary() -> io::Result<PathBuf> {
    let mut folder = tempfile::Builder::new();
    folder.prefix("vmlane-enginebench-").permissions(Permissions::from_mode(0o755));
    Ok(folder.tempdir()?.keep())
}

/// Below such a one, or wherever results are wanted.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing in it is trusted, or the folder above is the benchmark's own"
)]
pub fn make(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)
}
