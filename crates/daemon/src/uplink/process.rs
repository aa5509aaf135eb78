//! `vmlane uplink-helper`: attaches interfaces that the configuration names, for a daemon that may not do that any more.
//!
//! What the daemon says is a number: which `[[uplink]]` of the file. The helper reads the file itself, and only one that no
//! other user can have written. So a daemon that was taken over gains no interface by it that it was not given.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use vmlane_host::uplink::{TapError, TapFiles, TapOptions};

use super::messages::{Opened, Reply, Request, receive, send};
use super::why;
use crate::config::Config;
use crate::confine;

/// How long an interface may be in use: the port that had it goes in its own time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Serves the daemon behind standard input until it is gone.
pub fn serve(config: &Path) -> io::Result<()> {
    confine::keep_network_rights()?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    while let Some((Request { number, index }, _)) = receive(&socket)? {
        let (outcome, queues) = match open(config, index) {
            Ok((opened, queues)) => (Ok(opened), queues),
            Err(refused) => (Err(refused), Vec::new()),
        };
        let queues: Vec<_> = queues.iter().map(OwnedFd::as_fd).collect();
        send(&socket, &Reply { number, outcome }, &queues)?;
    }
    Ok(())
}

fn open(path: &Path, index: usize) -> Result<(Opened, Vec<OwnedFd>), String> {
    let text = read(path)?;
    let config = Config::parse(path, &text).map_err(|error| error.to_string())?;
    let uplink = config.uplinks.get(index).ok_or_else(|| {
        format!("{}: has only {} uplinks now; reload it again", path.display(), config.uplinks.len())
    })?;
    let options = TapOptions { name: uplink.tap.clone(), queues: uplink.queues };
    let deadline = Instant::now() + PATIENCE;
    let TapFiles { queues, mtu } = loop {
        match TapFiles::open(&options) {
            Err(TapError::Busy { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => break opened.map_err(|error| format!("{error}{}", why(&error)))?,
        }
    };
    let opened = Opened { name: uplink.name.clone(), tap: options.name, queues: options.queues, mtu };
    Ok((opened, queues))
}

/// The configuration, if only root and this process's user can have written it.
fn read(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let unreadable = |cause: io::Error| format!("{shown}: {cause}");
    let mut file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != geteuid().as_raw() || mode & 0o022 != 0 {
        return Err(format!(
            "{shown} can be written by others than root (owner {owner}, mode {mode:04o}), so a running daemon attaches no \
             interface that it names; `chown root {shown}; chmod go-w {shown}`, or start the daemon again"
        ));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
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
        assert_eq!(read(&path).as_deref(), Ok(""));
        for others in [0o664, 0o646] {
            mode(others);
            let refused = read(&path).unwrap_err();
            assert!(refused.contains(&format!("mode {others:04o}")), "{refused}");
        }
        mode(0o644);
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(20_001), None).unwrap();
            let refused = read(&path).unwrap_err();
            assert!(refused.contains("owner 20001") && refused.contains("chown root"), "{refused}");
        }
    }

    #[test]
    fn a_number_beyond_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlane.toml");
        fs::write(&path, "[[uplink]]\nname = \"lan\"\ntap = \"vmlane-none\"\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let refused = open(&path, 1).err().unwrap();
        assert!(refused.contains("only 1 uplinks"), "{refused}");
        fs::write(&path, "[[uplink]]\nname = \"lan\"\n").unwrap();
        let refused = open(&path, 0).err().unwrap();
        assert!(refused.contains("tap is missing"), "{refused}");
    }
}
