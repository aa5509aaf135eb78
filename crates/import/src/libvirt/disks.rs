//! `<disk>`, and the controllers that disks hang on.

use std::collections::BTreeMap;

use roxmltree::Node;

use super::Of;
use crate::image::{Format, Image};
use crate::machine::{Bus, Disk, Machine};
use crate::xml::{all, attribute, first, note_others, of_first, text};

/// Elements of a disk that are read, or that change nothing for the guest.
const KNOWN: &[&str] = &[
    "driver",
    "source",
    "target",
    "alias",
    "address",
    "boot",
    "readonly",
    "geometry",
    "backingStore",
    "transient",
    "shareable",
    "serial",
    "wwn",
    "vendor",
    "product",
];
const HINTS: &[(&str, &str)] = &[
    ("encryption", "QEMU wants the secret by -object secret, and the disk by -blockdev"),
    ("auth", "give the disk to QEMU by -blockdev"),
    ("iotune", "QEMU has throttling.* of -drive"),
    ("mirror", "it was being copied; let the copy end first"),
    ("blockio", "QEMU has logical_block_size= and physical_block_size= of its device"),
];

/// The SCSI controllers of a domain, by their index.
#[derive(Debug)]
pub struct Controllers<'a> {
    scsi: BTreeMap<&'a str, &'a str>,
    of: Of,
}

impl<'a> Controllers<'a> {
    pub fn of<'i: 'a>(devices: Node<'a, 'i>, of: Of) -> Controllers<'a> {
        let scsi = all(devices, "controller").filter(|node| attribute(*node, "type") == Some("scsi"));
        let scsi = scsi
            .filter_map(|node| Some((attribute(node, "index").unwrap_or("0"), attribute(node, "model")?)));
        Controllers { scsi: scsi.collect(), of }
    }

    fn bus(&self, disk: Node<'_, '_>) -> Bus {
        match of_first(disk, "target", "bus").unwrap_or_default() {
            "virtio" => Bus::VirtioBlk,
            "scsi" => self.scsi(of_first(disk, "address", "controller").unwrap_or("0")),
            "ide" => Bus::Ide,
            "nvme" => Bus::Nvme,
            _ => Bus::Sata,
        }
    }

    fn scsi(&self, index: &str) -> Bus {
        match (self.scsi.get(index).copied(), self.of) {
            (Some("vmpvscsi"), _) => Bus::Pvscsi,
            (Some("lsisas1068" | "lsisas1078"), _) => Bus::LsiSas,
            (Some("lsilogic" | "buslogic"), _) | (None | Some("auto"), Of::Vmware) => Bus::ParallelScsi,
            _ => Bus::VirtioScsi,
        }
    }
}

pub fn read(disk: Node<'_, '_>, controllers: &Controllers<'_>, of: Of, machine: &mut Machine) {
    let place = of_first(disk, "target", "dev").unwrap_or("a disk").to_owned();
    let device = attribute(disk, "device").unwrap_or("disk");
    if !["disk", "cdrom"].contains(&device) {
        machine.note(format!("{place}: device {device:?}"), "is not carried over");
        return;
    }
    let cdrom = device == "cdrom";
    let source = first(disk, "source");
    let file = source.and_then(|source| attribute(source, "file").or(attribute(source, "dev")));
    let is_elsewhere =
        source.is_some_and(|source| source.has_children() || source.attributes().next().is_some());
    if file.is_none() && (!cdrom || is_elsewhere) {
        machine.note(
            format!("{place}: a disk of a pool or of the network"),
            "is left out; give it to QEMU by -blockdev",
        );
        return;
    }
    note_others(machine, &format!("{place}: "), disk, &[KNOWN], HINTS);
    details(disk, source, &place, machine);
    let image = match file {
        None => None,
        Some(file) => match format(disk, &place, cdrom, of, machine) {
            Some(format) => Some(Image { file: file.to_owned(), format }),
            None => return,
        },
    };
    let bus = controllers.bus(disk);
    let mut readonly = !cdrom && first(disk, "readonly").is_some();
    if readonly && matches!(bus, Bus::Sata | Bus::Ide) {
        machine.note(
            format!("{place}: <readonly>"),
            "is not carried over: QEMU has no read-only disks on SATA; give it another bus, or make its file read-only",
        );
        readonly = false;
    }
    machine.disks.push(Disk { bus, image, cdrom, readonly });
}

/// The format that libvirt gives to QEMU. None: the disk is left out, with the reason in a note.
fn format(disk: Node<'_, '_>, place: &str, cdrom: bool, of: Of, machine: &mut Machine) -> Option<Format> {
    let Some(named) = of_first(disk, "driver", "type") else {
        // Without one, libvirt takes disks for raw, and those of VMware's are VMware's.
        return Some(if of == Of::Vmware && !cdrom { Format::Vmdk } else { Format::Raw });
    };
    let format = Format::named(named);
    if format.is_none() {
        machine.note(
            format!("{place}: format {named:?}"),
            "is left out: it is none that QEMU should be given; convert the disk first",
        );
    }
    format
}

fn details(disk: Node<'_, '_>, source: Option<Node<'_, '_>>, place: &str, machine: &mut Machine) {
    let has = |element| first(disk, element).is_some();
    if has("shareable") {
        machine.note(
            format!("{place}: <shareable>"),
            "is not carried over: the disk was shared with other VMs; QEMU needs share-rw=on of its device, and a cluster file system in the guests",
        );
    }
    if has("transient") {
        machine.note(
            format!("{place}: <transient>"),
            "is not carried over; QEMU's counterpart is snapshot=on of -drive",
        );
    }
    for element in ["serial", "wwn", "vendor", "product"] {
        if let Some(value) = text(disk, element) {
            machine.note(
                format!("{place}: <{element}> {value:?}"),
                format!(
                    "is not carried over; add {element}= to its device if the guest finds the disk by it"
                ),
            );
        }
    }
    if first(disk, "backingStore").is_some_and(|store| first(store, "source").is_some()) {
        machine.note(
            format!("{place}: <backingStore>"),
            "QEMU follows the names that the image itself has; see that they are right here (qemu-img info)",
        );
    }
    if let Some(source) = source {
        note_others(
            machine,
            &format!("{place}: source: "),
            source,
            &[&["seclabel", "address"]],
            &[
                ("slices", "only a part of the file was the disk: QEMU has offset= and size= of -blockdev"),
                ("encryption", "QEMU wants the secret by -object secret, and the disk by -blockdev"),
            ],
        );
    }
}
