//! Disks that are at hand beside their description: what they name, QEMU opens with them.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use vmlane_import::{Machine, Note, is_outside, joined, references};

/// Files of one disk that are examined, at most.
const MOST_FILES: usize = 256;

/// Notes what the disks of a description name outside of its folder.
pub fn note(description: &Path, machine: &mut Machine) {
    let folder = match description.parent() {
        _ if description == Path::new("-") => None,
        Some(parent) if parent == Path::new("") => Some(Path::new(".")),
        parent => parent,
    };
    let images = machine.disks.iter().filter_map(|disk| disk.image.as_ref());
    let disks: BTreeSet<String> =
        images.filter(|image| image.format.may_name_files()).map(|image| image.file.clone()).collect();
    let mut unseen = Vec::new();
    for disk in disks {
        let Some(folder) = folder else {
            unseen.push(format!("{disk:?}"));
            continue;
        };
        let examined = Examined::of(folder, &disk);
        unseen.extend(examined.unseen.iter().map(|file| format!("{file:?}")));
        machine.notes.extend(examined.outside.into_iter().map(|found| Note {
            what: format!("disk {disk:?} {found}"),
            then: "that is outside of the description's folder: QEMU would give the guest what is there; do not start the VM with this disk unless that is meant".into(),
        }));
    }
    if !unseen.is_empty() {
        machine.notes.push(Note {
            what: format!("files of disks that could not be examined: {}", joined(&unseen)),
            then: "see that they are there, and that they name no files outside of their folder, before QEMU opens them (qemu-img info --backing-chain)".into(),
        });
    }
}

/// A disk, and all the files that it names.
#[derive(Default)]
struct Examined {
    /// What leads out of the folder: names, and links.
    outside: Vec<String>,
    unseen: Vec<PathBuf>,
}

impl Examined {
    fn of(folder: &Path, disk: &str) -> Examined {
        let mut examined = Examined::default();
        let first = folder.join(disk);
        // That the disk itself is elsewhere has its own note; its files are to be beside it then.
        let home = if is_outside(disk) { first.parent() } else { Some(folder) };
        let home = home.and_then(|home| home.canonicalize().ok());
        let mut seen = BTreeSet::from([first.clone()]);
        let mut open = vec![first];
        while let Some(file) = open.pop() {
            let Some((real, names)) = names(&file) else {
                examined.unseen.push(file);
                continue;
            };
            if home.as_ref().is_none_or(|home| !real.starts_with(home)) {
                examined.outside.push(format!("has {file:?}, which is {real:?}"));
            }
            for name in names {
                // Names are seen from the folder of the file that has them.
                let beside = file.with_file_name(&name);
                if is_outside(&name) {
                    examined.outside.push(format!("names {name:?}"));
                } else if seen.len() == MOST_FILES {
                    examined.unseen.push(beside);
                    return examined;
                } else if seen.insert(beside.clone()) {
                    open.push(beside);
                }
            }
        }
        examined
    }
}

/// Where a file really is, and what it names. None: it is not there, or cannot be read.
fn names(path: &Path) -> Option<(PathBuf, Vec<String>)> {
    let real = path.canonicalize().ok()?;
    // What is no file may wait for ever, or be read for ever.
    if !real.metadata().ok()?.is_file() {
        return None;
    }
    let names = references(&mut File::open(&real).ok()?).ok()?;
    Some((real, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_names_a_file_of_the_host_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let descriptor = |extent: &str| {
            format!(
                "# Disk DescriptorFile\nversion=1\ncreateType=\"monolithicFlat\"\nRW 63 FLAT \"{extent}\" 0\n"
            )
        };
        write("good.vmdk", &descriptor("good-flat.vmdk"));
        write("bad.vmdk", &descriptor("/etc/shadow"));
        write("child.vmdk", &(descriptor("child-flat.vmdk") + "parentFileNameHint=\"bad.vmdk\"\n"));
        write("up.vmdk", &descriptor("../../x"));
        write("good-flat.vmdk", "");
        write("child-flat.vmdk", "");
        let elsewhere = tempfile::tempdir().unwrap();
        let secret = elsewhere.path().join("secret");
        std::fs::write(&secret, "").unwrap();
        std::os::unix::fs::symlink(&secret, folder.path().join("link-flat.vmdk")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("sub")).unwrap();
        write("folder.vmdk", &descriptor("sub/secret"));
        write("link.vmdk", &descriptor("link-flat.vmdk"));
        let mut lines = String::from("config.version = \"8\"\nscsi0.present = \"TRUE\"\n");
        for (unit, disk) in ["good", "bad", "child", "up", "link", "folder", "gone"].iter().enumerate() {
            lines += &format!("scsi0:{unit}.present = \"TRUE\"\nscsi0:{unit}.fileName = \"{disk}.vmdk\"\n");
        }
        let mut machine = vmlane_import::vmx(&lines).unwrap();
        machine.notes.clear();
        note(&folder.path().join("t.vmx"), &mut machine);
        let notes: Vec<String> = machine.notes.iter().map(ToString::to_string).collect();
        let expected = [
            "\"bad.vmdk\" names \"/etc/shadow\"",
            "\"child.vmdk\" names \"/etc/shadow\"",
            "sub/secret\", which is \"",
            "link-flat.vmdk\", which is \"",
            "\"up.vmdk\" names \"../../x\"",
            "could not be examined: \"",
        ];
        assert_eq!(notes.len(), expected.len(), "{notes:#?}");
        for (note, part) in notes.iter().zip(expected) {
            assert!(note.contains(part), "{part}: {note}");
        }
        assert!(notes[5].contains("gone.vmdk"), "{notes:#?}");
        // Of standard input, nothing is beside it.
        machine.notes.clear();
        note(Path::new("-"), &mut machine);
        assert_eq!(machine.notes.len(), 1);
    }
}
