//! What QEMU needs beside vmlane's devices: processors, firmware, disks. Memory is in vmlane's own words.

use crate::image::{Format, Image};
use crate::machine::{Bus, Disk, Machine};

/// A value within a QEMU option: commas are doubled.
fn option(value: &str) -> String {
    value.replace(',', ",,")
}

/// A file within a QEMU option. A name with a colon in front of any slash would be a protocol
/// (`nbd:`, `fat:`, `json:`), and a stranger's description could so give its guest what is on the
/// host.
fn file(name: &str) -> String {
    let is_protocol = name.split('/').next().is_some_and(|first| first.contains(':'));
    option(&if is_protocol { format!("./{name}") } else { name.to_owned() })
}

/// SATA ports of q35, and of each controller that is added.
const PORTS: usize = 6;

/// QEMU's words for a machine that is called `name` in vmlane's configuration; `vmlane attach`
/// has the others. Each is one argument, not quoted for any shell.
pub fn words(name: &str, machine: &Machine) -> Vec<String> {
    let mut words: Vec<String> = vec!["-machine".into(), "q35".into()];
    if let Some(cpus) = machine.cpus {
        words.extend(["-smp".into(), cpus.to_string()]);
    }
    if let Some(uuid) = machine.uuid {
        words.extend(["-uuid".into(), uuid.to_string()]);
    }
    if machine.uefi {
        // Debian's package ovmf; the variables are the VM's own, a copy of OVMF_VARS_4M.fd.
        let flash = |file: &str| image(&Image { file: file.into(), format: Format::Raw });
        let code = flash("/usr/share/OVMF/OVMF_CODE_4M.fd");
        words.extend(["-drive".into(), format!("if=pflash,readonly=on,{code}")]);
        words.extend(["-drive".into(), format!("if=pflash,{}", flash(&format!("{name}_VARS.fd")))]);
    }
    let (mut controllers, mut on_sata): (Vec<String>, usize) = (Vec::new(), 0);
    for (number, disk) in machine.disks.iter().enumerate() {
        let (controller, device) = device(disk, &format!("disk{number}"), &mut on_sata);
        if let Some(controller) = controller.filter(|controller| !controllers.contains(controller)) {
            words.extend(["-device".into(), controller.clone()]);
            controllers.push(controller);
        }
        words.extend(["-drive".into(), drive(number, disk), "-device".into(), device]);
    }
    words
}

/// The only place that names a file to QEMU: never without its format.
fn image(image: &Image) -> String {
    format!("file={},format={}", file(&image.file), image.format.name())
}

fn drive(number: usize, disk: &Disk) -> String {
    let mut drive = format!("if=none,id=disk{number}");
    if let Some(of) = &disk.image {
        drive += &format!(",{}", image(of));
    }
    if disk.cdrom {
        drive += ",media=cdrom";
    }
    if disk.readonly {
        drive += ",readonly=on";
    }
    drive
}

/// The controller that a disk hangs on, unless the machine has it or the disk is its own; and the
/// disk. `on_sata`: disks that have SATA ports.
fn device(disk: &Disk, id: &str, on_sata: &mut usize) -> (Option<String>, String) {
    let kind = if disk.cdrom { "cd" } else { "hd" };
    let scsi = |controller: &str, bus: &str| {
        (Some(format!("{controller},id={bus}")), format!("scsi-{kind},bus={bus}.0,drive={id}"))
    };
    match disk.bus {
        Bus::Pvscsi => scsi("pvscsi", "pvscsi"),
        Bus::LsiSas => scsi("mptsas1068", "lsisas"),
        // QEMU's parallel LSI controller is another one than VMware's.
        Bus::ParallelScsi | Bus::VirtioScsi => scsi("virtio-scsi-pci", "scsi"),
        Bus::VirtioBlk => (None, format!("virtio-blk-pci,drive={id}")),
        Bus::Nvme => (None, format!("nvme,serial={id},drive={id}")),
        // q35 has no IDE.
        Bus::Sata | Bus::Ide => {
            let (number, port) = (*on_sata / PORTS, *on_sata % PORTS);
            *on_sata += 1;
            let more = (number > 0).then(|| format!("ich9-ahci,id=sata{number}"));
            let bus = if number > 0 { format!("sata{number}") } else { "ide".into() };
            (more, format!("ide-{kind},bus={bus}.{port},drive={id}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(bus: Bus, file: &str) -> Disk {
        let image = Some(Image { file: file.into(), format: Format::Vmdk });
        Disk { bus, image, cdrom: false, readonly: false }
    }

    fn of(disks: Vec<Disk>) -> Vec<String> {
        words("x", &Machine { name: "../x".into(), uefi: true, disks, ..Machine::default() })
    }

    #[test]
    fn names_of_files_are_names_of_files() {
        let words = of(vec![
            disk(Bus::Pvscsi, "a,b c.vmdk"),
            disk(Bus::Pvscsi, "fat:rw:/"),
            disk(Bus::Pvscsi, "/a:b"),
        ]);
        for (number, file) in ["a,,b c.vmdk", "./fat:rw:/", "/a:b"].iter().enumerate() {
            let drive = format!("if=none,id=disk{number},file={file},format=vmdk");
            assert!(words.contains(&drive), "{drive} is not in {words:?}");
        }
        assert_eq!(words.iter().filter(|word| word.starts_with("pvscsi,")).count(), 1);
        assert!(words.contains(&"if=pflash,file=x_VARS.fd,format=raw".into()), "{words:?}");
    }

    #[test]
    fn no_file_goes_to_qemu_without_its_format() {
        let iso = Disk { cdrom: true, ..disk(Bus::Sata, "a.iso") };
        let raw = Image { file: "b".into(), format: Format::Raw };
        let kept = Disk { image: Some(raw), readonly: true, ..disk(Bus::Pvscsi, "") };
        let empty = Disk { image: None, ..iso.clone() };
        let words = of(vec![iso, kept, empty]);
        let drives: Vec<&String> = words.iter().filter(|word| word.starts_with("if=")).collect();
        assert_eq!(drives.len(), 5);
        for drive in drives {
            assert_eq!(drive.contains("file="), drive.contains("format="), "{drive}");
        }
        assert!(words.contains(&"if=none,id=disk1,file=b,format=raw,readonly=on".into()), "{words:?}");
        // Nothing else in this crate writes such words.
        let source = include_str!("qemu.rs").split("#[cfg(test)]").next().unwrap();
        assert_eq!(source.matches("file={").count(), 1);
        assert_eq!(source.matches("format={").count(), 1);
    }

    #[test]
    fn each_sata_disk_has_a_port() {
        let words = of((0..14).map(|_| disk(Bus::Sata, "a.vmdk")).collect());
        let buses = ["ide.0", "ide.5", "sata1.0", "sata1.5", "sata2.1"];
        for bus in buses {
            assert_eq!(
                words.iter().filter(|word| word.starts_with(&format!("ide-hd,bus={bus},"))).count(),
                1,
                "{bus}"
            );
        }
        let more: Vec<&String> = words.iter().filter(|word| word.starts_with("ich9-ahci,")).collect();
        assert_eq!(more, ["ich9-ahci,id=sata1", "ich9-ahci,id=sata2"]);
    }
}
