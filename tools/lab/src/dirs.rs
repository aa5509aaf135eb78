//! Where the lab keeps things: the cache that outlives labs, and one short runtime directory a lab.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use vmlane_access::Trust;

/// `${XDG_CACHE_HOME:-~/.cache}/vmlane`.
pub fn cache() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()) {
        return Ok(PathBuf::from(dir).join("vmlane"));
    }
    let home = std::env::var_os("HOME")
        .context("neither XDG_CACHE_HOME nor HOME is set; set one, the cache of images goes there")?;
    Ok(PathBuf::from(home).join(".cache/vmlane"))
}

/// Makes the cache, of which programs and guests' files are taken: no other user can have put one there.
pub fn make_cache() -> Result<PathBuf> {
    let dir = cache()?;
    let made = Trust { link: true, ..Trust::default() }.make(&dir, 0o755);
    made.context(
        "the cache of programs and images has to be this user's: set XDG_CACHE_HOME to a directory of theirs",
    )?;
    Ok(dir)
}

/// `${XDG_RUNTIME_DIR:-/tmp}/vmlane-lab-UID`: short, because socket paths end at 107 bytes.
pub fn runtime() -> PathBuf {
    let base = std::env::var_os("XDG_RUNTIME_DIR")
        .filter(|v| !v.is_empty())
        .map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    base.join(format!("vmlane-lab-{}", rustix::process::getuid().as_raw()))
}

/// Whether there is a runtime directory. An error: another user has planted one, or can write to it.
pub fn has_runtime() -> Result<bool> {
    match Trust::default().open(&runtime()) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).context("the directory of labs"),
    }
}

/// The directory of the lab `name`.
pub fn lab(name: &str) -> Result<PathBuf> {
    check_name(name)?;
    has_runtime()?;
    let dir = runtime().join(name);
    // The longest path under it that must be a socket address is the daemon's "d/vm/a/vsock.sock".
    let length = dir.as_os_str().len() + "/d/vm/aa/vsock.sock".len();
    if length > 107 {
        bail!(
            "the lab directory {} is too long for Unix sockets ({length} bytes, 107 fit): \
             use a shorter lab name or XDG_RUNTIME_DIR",
            dir.display()
        );
    }
    Ok(dir)
}

/// Lab names become path parts and host names.
pub fn check_name(name: &str) -> Result<()> {
    let good = !name.is_empty()
        && name.len() <= 32
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        && !name.starts_with('-');
    if !good {
        bail!("lab name {name:?}: use 1 to 32 letters, digits, '-' or '_', not starting with '-'");
    }
    Ok(())
}

/// Makes the runtime directory, listed by this user alone (the daemon's user gets through), and refuses one
/// that another user planted.
pub fn make_runtime() -> Result<PathBuf> {
    let dir = runtime();
    let made = Trust::default().make(&dir, 0o711).context("the directory of labs")?;
    // One of an older version lets no other user through.
    made.set_permissions(fs::Permissions::from_mode(0o711))
        .with_context(|| format!("{}: setting its mode", dir.display()))?;
    Ok(dir)
}

/// Makes `dir` and its parents, below a directory that is trusted, or wherever the user wants results.
#[expect(clippy::disallowed_methods, reason = "what is in them is not trusted, or was judged above them")]
pub fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(check_name("demo-1").is_ok());
        for bad in ["", "-x", "a/b", "..", &"x".repeat(33)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
