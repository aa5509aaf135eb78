//! `vmlane uplink-helper`: opens what uplinks of the configuration lead to, for a daemon that may not do that any more.
//!
//! What the daemon says is a number: which `[[uplink]]` of the file. The helper reads the file itself, and only one that no
//! other user can have written. So a daemon that was taken over gains nothing by it that it was not given.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::kind::OpenError;
use super::messages::{Interface, Refusal, Reply, Request, Wish, receive, send};
use crate::config::{Config, UplinkConfig};
use crate::confine;

/// Characters of an answer that says why not: it has to fit into a packet.
const LONGEST: usize = 1000;

/// Serves the daemon behind standard input until it is gone.
pub fn serve(config: &Path) -> io::Result<()> {
    confine::keep_network_rights()?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let mut file = Configuration { path: config.to_owned(), read: None };
    while let Some((Request { number, index, wish }, _)) = receive(&socket)? {
        let (outcome, files) = match carry_out(&mut file, index, wish) {
            Ok((interface, files)) => (Ok(interface), files),
            Err(Refusal { text, missing }) => {
                let text = text.chars().take(LONGEST).collect();
                (Err(Refusal { text, missing }), Vec::new())
            }
        };
        let files: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
        send(&socket, &Reply { number, outcome }, &files)?;
    }
    Ok(())
}

/// The file, and its uplinks as they were when it was read last.
struct Configuration {
    path: PathBuf,
    read: Option<(Stamp, Vec<UplinkConfig>)>,
}

/// By what a file that has changed is known: device, inode, bytes, time of the last change.
type Stamp = (u64, u64, u64, i64, i64);

impl Configuration {
    /// The uplinks, if only root and this process's user can have written the file.
    fn uplinks(&mut self) -> Result<&[UplinkConfig], String> {
        let (mut file, stamp) = trusted(&self.path)?;
        if self.read.as_ref().is_none_or(|(read, _)| *read != stamp) {
            let mut text = String::new();
            file.read_to_string(&mut text).map_err(|cause| format!("{}: {cause}", self.path.display()))?;
            let config = Config::parse(&self.path, &text).map_err(|error| error.to_string())?;
            self.read = Some((stamp, config.uplinks));
        }
        Ok(self.read.as_ref().map(|(_, uplinks)| &uplinks[..]).unwrap_or_default())
    }
}

fn carry_out(
    file: &mut Configuration,
    index: usize,
    wish: Wish,
) -> Result<(Interface, Vec<OwnedFd>), Refusal> {
    let shown = file.path.display().to_string();
    let uplinks = file.uplinks()?;
    let uplink = uplinks
        .get(index)
        .ok_or_else(|| format!("{shown}: has only {} uplinks now; reload it again", uplinks.len()))?;
    let kind = &uplink.kind;
    let failed = |error: OpenError| Refusal { text: error.to_string(), missing: error.is_missing() };
    let (opened, files, seen) = match wish {
        Wish::Open | Wish::OpenIfThere => {
            let (facts, files) = kind.open_patiently(wish == Wish::Open).map_err(failed)?.pack();
            (Some(facts), files, None)
        }
        Wish::Look => (None, Vec::new(), kind.look().map_err(failed)?),
    };
    Ok((Interface { name: uplink.name.clone(), kind: kind.clone(), opened, seen }, files))
}

/// The file, open, if only root and this process's user can have written it.
fn trusted(path: &Path) -> Result<(File, Stamp), String> {
    let shown = path.display();
    let unreadable = |cause: io::Error| format!("{shown}: {cause}");
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != geteuid().as_raw() || mode & 0o022 != 0 {
        return Err(format!(
            "{shown} can be written by others than root (owner {owner}, mode {mode:04o}), so a running daemon attaches no \
             interface that it names; `chown root {shown}; chmod go-w {shown}`, or start the daemon again"
        ));
    }
    let stamp = (metadata.dev(), metadata.ino(), metadata.len(), metadata.ctime(), metadata.ctime_nsec());
    Ok((file, stamp))
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
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(20_001), None).unwrap();
            let refused = trusted(&path).unwrap_err();
            assert!(refused.contains("owner 20001") && refused.contains("chown root"), "{refused}");
        }
    }

    #[test]
    fn a_number_beyond_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlane.toml");
        fs::write(&path, "[[uplink]]\nname = \"lan\"\ntap = \"vmlane-none\"\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut file = Configuration { path: path.clone(), read: None };
        let refused = carry_out(&mut file, 1, Wish::Open).err().unwrap();
        assert!(refused.text.contains("only 1 uplinks"), "{refused:?}");
        fs::write(&path, "[[uplink]]\nname = \"lan\"\n").unwrap();
        let refused = carry_out(&mut file, 0, Wish::Look).err().unwrap();
        assert!(refused.text.contains("what the uplink leads to is missing"), "{refused:?}");
        fs::write(&path, "[[uplink]]\nname = \"lan\"\ninterface = \"vmlane-none\"\n").unwrap();
        let refused = carry_out(&mut file, 0, Wish::Open).err().unwrap();
        assert!(refused.missing && refused.text.contains("none of this name"), "{refused:?}");
    }
}
