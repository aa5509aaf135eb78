//! The files of the configuration as helpers with rights read them: only if no other user can have written
//! them. So a daemon that was taken over cannot change what they do. VMs that were added at run time are not
//! read: the daemon writes them.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vmlane_access::Trust;

use crate::sources::{self, MOST_BYTES, Source, SourceKind, Sources};

/// By what a file that has changed is known: device, inode, bytes, time of the last change.
type Stamp = (u64, u64, u64, i64, i64);

/// The main file and those of `conf.d`, as they were when they were read last.
#[derive(Debug)]
pub struct TrustedFiles {
    path: PathBuf,
    seen: Vec<Stamp>,
    known: Option<Vec<Stamp>>,
}

impl TrustedFiles {
    pub fn new(path: &Path) -> TrustedFiles {
        TrustedFiles { path: path.to_owned(), seen: Vec::new(), known: None }
    }

    /// The main file's.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Their texts; None: they are as [`TrustedFiles::keep`] found them.
    pub fn read_if_changed(&mut self) -> Result<Option<Sources>, String> {
        let paths = sources::files(&self.path, &TRUST).map_err(|error| refused(&error))?;
        let files: Vec<(File, Stamp)> = paths.iter().map(|path| trusted(path)).collect::<Result<_, _>>()?;
        self.seen = files.iter().map(|(_, stamp)| *stamp).collect();
        if self.known.as_ref() == Some(&self.seen) {
            return Ok(None);
        }
        let mut read = Sources::default();
        for (path, (file, _)) in paths.into_iter().zip(files) {
            let text = sources::read_from(file, MOST_BYTES);
            let text = text.map_err(|cause| format!("{}: {cause}", path.display()))?;
            read.0.push(Source { path, text, kind: SourceKind::Whole });
        }
        Ok(Some(read))
    }

    /// What was read last is of use: it is read again once it has changed.
    pub fn keep(&mut self) {
        self.known = Some(std::mem::take(&mut self.seen));
    }

    /// They are read again whether they have changed or not.
    pub fn forget(&mut self) {
        self.known = None;
    }
}

const TRUST: Trust<'_> = Trust { owners: &[], private: false, link: true };

/// The file, open, if only root and this process's user can have written it.
fn trusted(path: &Path) -> Result<(File, Stamp), String> {
    let file = TRUST.open_file(path).map_err(|error| refused(&error))?;
    let metadata = file.metadata().map_err(|cause| format!("{}: {cause}", path.display()))?;
    let stamp = (metadata.dev(), metadata.ino(), metadata.len(), metadata.ctime(), metadata.ctime_nsec());
    Ok((file, stamp))
}

fn refused(error: &dyn std::error::Error) -> String {
    format!(
        "{error}; until then a running daemon attaches no interface that its files name, but one that is started again does"
    )
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_others_can_write_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlane.toml");
        fs::write(&path, "").unwrap();
        let mode = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        trusted(&path).unwrap();
        for others in [0o664, 0o646] {
            mode(others);
            let refused = trusted(&path).unwrap_err();
            assert!(refused.contains(&format!("mode {others:04o}")), "{refused}");
        }
        mode(0o644);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(20_001), None).unwrap();
            let refused = trusted(&path).unwrap_err();
            assert!(refused.contains("user 20001") && refused.contains("chown 0 "), "{refused}");
        }
    }

    #[test]
    fn files_are_read_again_once_they_have_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlane.toml");
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        };
        write("[daemon]\n");
        let mut files = TrustedFiles::new(&path);
        assert_eq!(files.read_if_changed().unwrap().unwrap().0.len(), 1);
        assert!(files.read_if_changed().unwrap().is_some(), "it was not confirmed as read");
        files.keep();
        assert!(files.read_if_changed().unwrap().is_none());
        write("[daemon]\nworkers = 2\n");
        assert!(files.read_if_changed().unwrap().is_some());
        files.keep();
        files.forget();
        assert!(files.read_if_changed().unwrap().is_some());
    }
}
