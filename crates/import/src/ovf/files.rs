//! The files of an envelope's disks, with their formats.

use std::collections::BTreeMap;

use roxmltree::Node;

use crate::image::{Format, Image};
use crate::machine::Machine;
use crate::xml::{all, attribute, first};

/// Disks and files by their ids.
#[derive(Debug)]
pub struct Files<'a> {
    disks: BTreeMap<&'a str, Disk<'a>>,
    files: BTreeMap<&'a str, File<'a>>,
}

#[derive(Debug)]
struct Disk<'a> {
    file: Option<&'a str>,
    /// A URI, or words of it.
    format: Option<&'a str>,
    /// oVirt's exports have VMware's URI there whatever the file is, and this.
    volume: Option<&'a str>,
    parent: Option<&'a str>,
}

#[derive(Debug)]
struct File<'a> {
    href: &'a str,
    compression: Option<&'a str>,
    chunk: Option<&'a str>,
}

impl<'a> Files<'a> {
    pub fn of<'i: 'a>(root: Node<'a, 'i>) -> Files<'a> {
        let named = |section, element: &'static str, name| {
            let elements = first(root, section).into_iter().flat_map(move |section| all(section, element));
            elements.filter_map(move |node| Some((attribute(node, name)?, node)))
        };
        let file = |(id, node)| {
            let href = attribute(node, "href")?;
            let compression = attribute(node, "compression").filter(|name| !["", "identity"].contains(name));
            Some((id, File { href, compression, chunk: attribute(node, "chunkSize") }))
        };
        let disk = |(id, node)| {
            let [file, format, volume, parent] =
                ["fileRef", "format", "volume-format", "parentRef"].map(|name| attribute(node, name));
            (id, Disk { file, format, volume, parent })
        };
        Files {
            disks: named("DiskSection", "Disk", "diskId").map(disk).collect(),
            files: named("References", "File", "id").filter_map(file).collect(),
        }
    }

    /// The image of `ovf:/disk/vmdisk1`, or of `ovf:/file/file1`. None: there is none, and a note
    /// explains why if there is something.
    pub fn image(&self, place: &str, resource: &str, cdrom: bool, machine: &mut Machine) -> Option<Image> {
        let path = resource.strip_prefix("ovf:").unwrap_or(resource).trim_start_matches('/');
        let (disk, file) = match path.strip_prefix("disk/") {
            Some(id) => {
                let disk = self.disks.get(id)?;
                (Some(disk), disk.file?)
            }
            None => (None, path.strip_prefix("file/")?),
        };
        let file = self.files.get(file)?;
        if let Some(parent) = disk.and_then(|disk| disk.parent) {
            machine.note(
                format!("{place}: parentRef {parent:?}"),
                "is not carried over: the disk is a difference to another one; join them first",
            );
        }
        let href = file.on_disk(place, machine);
        let format = match disk {
            Some(disk) => disk.format(place, &href, machine)?,
            None if cdrom => Format::Raw,
            None => of_ending(place, &href, machine)?,
        };
        Some(Image { file: href, format })
    }
}

impl File<'_> {
    /// Its name once it is unpacked; notes describe what to do for that.
    fn on_disk(&self, place: &str, machine: &mut Machine) -> String {
        let mut name = self.href.to_owned();
        if let Some(size) = self.chunk {
            machine.note(
                format!("{place}: file {name:?} in chunks of {size} bytes"),
                format!("put them together first: cat {name}.0* > {name}"),
            );
        }
        if let Some(compression) = self.compression {
            let (ending, tool) = match compression.to_ascii_lowercase().as_str() {
                "gzip" => (".gz", "gunzip"),
                "bzip2" => (".bz2", "bunzip2"),
                "xz" => (".xz", "unxz"),
                _ => ("", "the program for it"),
            };
            let unpacked = name.strip_suffix(ending).unwrap_or(&name).to_owned();
            machine.note(
                format!("{place}: file {name:?} is compressed ({compression})"),
                format!("unpack it with {tool} first; QEMU's words name {unpacked:?}"),
            );
            name = unpacked;
        }
        name
    }
}

impl Disk<'_> {
    fn format(&self, place: &str, file: &str, machine: &mut Machine) -> Option<Format> {
        if let Some(volume) = self.volume {
            match volume.to_ascii_lowercase().as_str() {
                "raw" => return Some(Format::Raw),
                "cow" => return Some(Format::Qcow2),
                _ => machine.note(format!("{place}: volume-format {volume:?}"), "is none that is known"),
            }
        }
        let Some(uri) = self.format else { return of_ending(place, file, machine) };
        let lower = uri.to_ascii_lowercase();
        let known = [
            ("vmdk", Format::Vmdk),
            ("qcow", Format::Qcow2),
            ("vhdx", Format::Vhdx),
            ("vhd", Format::Vpc),
            // Microsoft's page on VHD, ISO 9660, and what IBM's exports have for raw images.
            ("linkid=137171", Format::Vpc),
            ("ecma-119", Format::Raw),
            ("wiki/byte", Format::Raw),
            ("raw", Format::Raw),
        ];
        let found = known.iter().find(|(part, _)| lower.contains(part));
        if let Some((_, format)) = found {
            return Some(*format);
        }
        machine.note(format!("{place}: format {uri:?}"), "is none that is known");
        of_ending(place, file, machine)
    }
}

/// By its name, where the envelope has nothing that is known.
fn of_ending(place: &str, file: &str, machine: &mut Machine) -> Option<Format> {
    let format = Format::of_ending(file);
    let then = match format {
        Some(format) => format!("is taken for {} by its name; see that it is", format.name()),
        None => "is left out: its format is not known; add it to QEMU's words with its format".into(),
    };
    machine.note(format!("{place}: file {file:?}"), then);
    format
}
