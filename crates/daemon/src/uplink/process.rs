//! `vmlane uplink-helper`: opens what uplinks of the configuration lead to, for a daemon that may not do that
//! any more.
//!
//! What the daemon sends is a number: which `[[uplink]]` of the files. The helper reads the files itself, and
//! only those that no other user can have written: the main one, and those of `conf.d`. So a daemon that was
//! taken over gains nothing by it that it was not given. VMs that were added at run time are not read: the
//! daemon writes them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use vmlane_config::trusted::TrustedFiles;
use vmlane_config::{Config, UplinkConfig};
use vmlane_host::uplink::vhost_user::SocketName;

use super::kind::{Listening, OpenError, Opened, inspect, open_patiently};
use super::messages::{Interface, Refusal, Reply, Request, Wish, receive, send};

/// Characters of an answer with the reason why not: it has to fit into a packet.
const LONGEST: usize = 1000;

/// Serves the daemon behind standard input until it is gone.
pub fn serve(config: &Path) -> io::Result<()> {
    vmlane_confine::keep_network_rights()?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let mut file = Configuration::new(config);
    let mut made = Made::default();
    while let Some((Request { number, index, wish }, _)) = receive(&socket)? {
        let (outcome, files) = match carry_out(&mut file, &mut made, index, wish) {
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

/// The files, and their uplinks as they were when they were read last.
struct Configuration {
    files: TrustedFiles,
    uplinks: Vec<UplinkConfig>,
}

impl Configuration {
    fn new(path: &Path) -> Configuration {
        Configuration { files: TrustedFiles::new(path), uplinks: Vec::new() }
    }

    /// The uplinks, if only root and this process's user can have written the files.
    fn uplinks(&mut self) -> Result<&[UplinkConfig], String> {
        if let Some(read) = self.files.read_if_changed()? {
            // What is wrong is reported at each request.
            self.files.forget();
            self.uplinks = Config::uplinks(&read).map_err(|error| error.to_string())?;
            self.files.keep();
        }
        Ok(&self.uplinks)
    }
}

/// The sockets that this helper has made for other switches to connect to, by number. Their names end with
/// it.
#[derive(Default)]
struct Made {
    sockets: BTreeMap<usize, (SocketName, UplinkConfig)>,
    /// How many there have been.
    count: usize,
}

impl Made {
    fn add(&mut self, name: SocketName, uplink: &UplinkConfig) -> usize {
        // Where there is a new one, the one before had been given up.
        self.sockets.retain(|_, (other, _)| other.path != name.path);
        let number = self.count;
        self.count += 1;
        self.sockets.insert(number, (name, uplink.clone()));
        number
    }

    fn remove(&mut self, number: usize) -> Result<Interface, String> {
        let (socket, UplinkConfig { name, kind, .. }) =
            self.sockets.remove(&number).ok_or_else(|| format!("there is no socket number {number}"))?;
        socket.remove();
        Ok(Interface { name, kind, opened: None, seen: None })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.sockets.values().for_each(|(name, _)| name.remove());
    }
}

fn carry_out(
    file: &mut Configuration,
    made: &mut Made,
    index: usize,
    wish: Wish,
) -> Result<(Interface, Vec<OwnedFd>), Refusal> {
    if wish == Wish::Remove {
        return Ok((made.remove(index)?, Vec::new()));
    }
    let shown = file.files.path().display().to_string();
    let uplinks = file.uplinks()?;
    let uplink = uplinks
        .get(index)
        .ok_or_else(|| format!("{shown}: has only {} uplinks now; reload it again", uplinks.len()))?;
    let kind = &uplink.kind;
    let failed = |error: OpenError| Refusal { text: error.to_string(), missing: error.is_missing() };
    let (opened, files, seen) = match wish {
        Wish::Open | Wish::OpenIfThere => {
            let mut opened = open_patiently(kind, wish == Wish::Open).map_err(failed)?;
            if let Opened::Listening(Listening { name, of_helper, .. }) = &mut opened {
                *of_helper = Some(made.add(name.clone(), uplink));
            }
            let (facts, files) = opened.pack();
            (Some(facts), files, None)
        }
        Wish::Inspect | Wish::Remove => (None, Vec::new(), inspect(kind).map_err(failed)?),
    };
    Ok((Interface { name: uplink.name.clone(), kind: kind.clone(), opened, seen }, files))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn uplinks_are_counted_through_the_files_and_none_that_others_can_write_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlane.toml");
        let further = folder.path().join("conf.d");
        fs::create_dir(&further).unwrap();
        let uplink = |name: &str| format!("[[uplink]]\nname = \"{name}\"\ntap = \"vmlane-{name}\"\n");
        let write = |path: &Path, text: String| {
            fs::write(path, text).unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
        };
        // The rest of the files is not for the helper: this mirror would be wrong.
        write(
            &path,
            format!("{}[[mirror]]\nname = \"m\"\nfrom = [\"vm-added/nic0\"]\nto = \"a\"\n", uplink("a")),
        );
        write(&further.join("20.toml"), uplink("c"));
        write(&further.join("10.toml"), uplink("b"));
        fs::set_permissions(&further, Permissions::from_mode(0o755)).unwrap();
        let mut file = Configuration::new(&path);
        let names = |file: &mut Configuration| -> Vec<String> {
            file.uplinks().unwrap().iter().map(|uplink| uplink.name.clone()).collect()
        };
        assert_eq!(names(&mut file), ["a", "b", "c"]);
        fs::remove_file(further.join("10.toml")).unwrap();
        assert_eq!(names(&mut file), ["a", "c"], "a file that went is missed");
        for wrong in [further.join("20.toml"), further] {
            fs::set_permissions(&wrong, Permissions::from_mode(0o777)).unwrap();
            let refused = file.uplinks().unwrap_err();
            assert!(refused.contains("written to by others"), "{refused}");
            assert!(refused.contains(&format!("{} (owner ", wrong.display())), "{refused}");
            fs::set_permissions(&wrong, Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn a_number_beyond_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlane.toml");
        fs::write(&path, "[[uplink]]\nname = \"lan\"\ntap = \"vmlane-none\"\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut file = Configuration::new(&path);
        let refused = carry_out(&mut file, &mut Made::default(), 1, Wish::Open).err().unwrap();
        assert!(refused.text.contains("only 1 uplinks"), "{refused:?}");
        fs::write(&path, "[[uplink]]\nname = \"lan\"\n").unwrap();
        let refused = carry_out(&mut file, &mut Made::default(), 0, Wish::Inspect).err().unwrap();
        assert!(refused.text.contains("what the uplink leads to is missing"), "{refused:?}");
        fs::write(&path, "[[uplink]]\nname = \"lan\"\ninterface = \"vmlane-none\"\n").unwrap();
        let refused = carry_out(&mut file, &mut Made::default(), 0, Wish::Open).err().unwrap();
        assert!(refused.missing && refused.text.contains("none of this name"), "{refused:?}");
    }
    #[test]
    fn a_socket_that_the_file_names_is_made_and_removed_and_no_other_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlane.toml");
        let (first, second) = (folder.path().join("first.sock"), folder.path().join("second.sock"));
        let uplink = |name: &str, socket: &Path| {
            format!("[[uplink]]\nname = {name:?}\nvhost_user = {socket:?}\nrole = \"server\"\n")
        };
        fs::write(&path, uplink("first", &first) + &uplink("second", &second)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut file = Configuration::new(&path);
        let mut made = Made::default();
        let mut open = |made: &mut Made, index| {
            let (interface, files) = carry_out(&mut file, made, index, Wish::OpenIfThere).unwrap();
            let opened = Opened::unpack(&interface.kind, interface.opened.unwrap(), files).unwrap();
            let Opened::Listening(listening) = opened else { panic!("it does not listen") };
            assert!(listening.name.is_there());
            listening
        };
        let one = open(&mut made, 0);
        drop(one.socket);
        // Given up and made again: it is known once.
        let again = open(&mut made, 0);
        let other = open(&mut made, 1);
        assert_eq!(made.sockets.len(), 2);
        let remove = |made: &mut Made, number| made.remove(number);
        let refused = remove(&mut made, one.of_helper.unwrap()).unwrap_err();
        assert!(refused.contains("no socket number"), "{refused}");
        assert_eq!(remove(&mut made, again.of_helper.unwrap()).unwrap().name, "first");
        assert!(!first.exists() && second.exists());
        // The helper ends; a file that has the name by now stays.
        fs::remove_file(&second).unwrap();
        fs::write(&second, "").unwrap();
        drop((made, other.socket));
        assert!(second.exists());
    }
}
