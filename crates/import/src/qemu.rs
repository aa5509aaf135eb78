//! What QEMU needs beside vmlane's devices: processors, firmware, disks. Memory is in vmlane's own words.

use crate::machine::{Bus, Disk, Machine};

/// A value within a QEMU option: commas are doubled.
fn option(value: &str) -> String {
    value.replace(',', ",,")
}

/// QEMU's words for a machine; `vmlane qemu-args` has the others. Each is one argument, not quoted for any shell.
pub fn words(machine: &Machine) -> Vec<String> {
    let mut words: Vec<String> = vec!["-machine".into(), "q35".into()];
    if let Some(cpus) = machine.cpus {
        words.extend(["-smp".into(), cpus.to_string()]);
    }
    if machine.uefi {
        // Debian's package ovmf; the variables are the VM's own, a copy of OVMF_VARS_4M.fd.
        let code = "if=pflash,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd";
        words.extend(["-drive".into(), code.into()]);
        let variables = format!("if=pflash,format=raw,file={}", option(&format!("{}_VARS.fd", machine.name)));
        words.extend(["-drive".into(), variables]);
    }
    let mut controllers: Vec<Bus> = Vec::new();
    for (number, disk) in machine.disks.iter().enumerate() {
        if let Some(controller) = controller(disk.bus).filter(|_| !controllers.contains(&disk.bus)) {
            controllers.push(disk.bus);
            words.extend(["-device".into(), controller.into()]);
        }
        words.extend(drive(number, disk));
    }
    words
}

/// The controller that a disk's bus needs, with an id; None: the machine has it, or the disk is its own.
fn controller(bus: Bus) -> Option<&'static str> {
    match bus {
        Bus::Pvscsi => Some("pvscsi,id=pvscsi"),
        Bus::LsiSas => Some("mptsas1068,id=lsisas"),
        // QEMU's parallel LSI controller is another one than VMware's.
        Bus::ParallelScsi | Bus::VirtioScsi => Some("virtio-scsi-pci,id=scsi"),
        Bus::VirtioBlk | Bus::Sata | Bus::Ide | Bus::Nvme => None,
    }
}

fn drive(number: usize, disk: &Disk) -> [String; 4] {
    let id = format!("disk{number}");
    let mut drive = format!("if=none,id={id}");
    if let Some(file) = &disk.file {
        drive += &format!(",file={}", option(file));
    }
    if let Some(format) = &disk.format {
        drive += &format!(",format={}", option(format));
    }
    if disk.cdrom {
        drive += ",media=cdrom";
    }
    let scsi = if disk.cdrom { "scsi-cd" } else { "scsi-hd" };
    let ide = if disk.cdrom { "ide-cd" } else { "ide-hd" };
    let device = match disk.bus {
        Bus::Pvscsi => format!("{scsi},bus=pvscsi.0,drive={id}"),
        Bus::LsiSas => format!("{scsi},bus=lsisas.0,drive={id}"),
        Bus::ParallelScsi | Bus::VirtioScsi => format!("{scsi},bus=scsi.0,drive={id}"),
        Bus::VirtioBlk => format!("virtio-blk-pci,drive={id}"),
        // q35 has six SATA ports, and no IDE.
        Bus::Sata | Bus::Ide => format!("{ide},drive={id}"),
        Bus::Nvme => format!("nvme,serial={id},drive={id}"),
    };
    ["-drive".into(), drive, "-device".into(), device]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_names_stay_part_of_them() {
        let disk = Disk {
            place: "scsi0:0".into(),
            bus: Bus::Pvscsi,
            file: Some("a,b c.vmdk".into()),
            format: Some("vmdk".into()),
            cdrom: false,
        };
        let machine = Machine { name: "x".into(), disks: vec![disk.clone(), disk], ..Machine::default() };
        let words = words(&machine);
        assert!(words.contains(&"if=none,id=disk0,file=a,,b c.vmdk,format=vmdk".to_owned()), "{words:?}");
        assert_eq!(words.iter().filter(|word| word.starts_with("pvscsi,")).count(), 1);
    }
}
