//! VMware's `.vmx`: lines of `key = "value"`.

mod keys;
mod network;
mod rest;

use crate::image::{Format, Image};
use crate::kind::{Expected, refuse_others};
use crate::machine::{Bus, Disk, MOST_NICS, Machine, Nic, Reach, Vsock, VsockModel, mac};
use crate::network::Tagging;
use crate::{Error, MOST_BYTES};
pub(crate) use rest::{hint, is_harmless, shown};

use keys::{Device, Keys};

/// Numbers of controllers and of devices on one: VMware has fewer.
const CONTROLLERS: u32 = 4;
const UNITS: u32 = 64;

/// The VM of a `.vmx` file.
///
/// # Errors
/// The file is not one.
pub fn vmx(source: impl AsRef<[u8]>) -> Result<Machine, Error> {
    let source = source.as_ref();
    if source.len() > MOST_BYTES {
        return Err(Error::TooLong(source.len()));
    }
    refuse_others(source, Expected::Vmx)?;
    let (keys, notes) = Keys::parse(source)?;
    if keys.get("config.version").is_none() && keys.get("displayName").is_none() {
        return Err(Error::NoMachine("neither config.version nor displayName is set"));
    }
    if let Some(guest) = keys.get("guestOS").filter(|guest| is_of_arm(guest)) {
        return Err(Error::Architecture(guest.into()));
    }
    let mut machine = Machine { notes, ..Machine::default() };
    machine.name = keys.get("displayName").unwrap_or("vm").to_owned();
    machine.memory_mib = keys.number("memSize", &mut machine);
    // Both are VMware's own defaults.
    machine.cpus = Some(keys.number("numvcpus", &mut machine).filter(|count| *count > 0).unwrap_or(1));
    machine.uefi = keys.get("firmware").is_some_and(|firmware| firmware.eq_ignore_ascii_case("efi"));
    machine.uuid = machine.uuid_of("uuid.bios", keys.get("uuid.bios"));
    if keys.read_flag("uefi.secureBoot.enabled", &mut machine) {
        machine.note(
            "uefi.secureBoot.enabled",
            "is not carried over; give QEMU a firmware and variables with Secure Boot",
        );
    }
    cards(&keys, &mut machine);
    disks(&keys, &mut machine);
    vmci(&keys, &mut machine);
    snapshots(&mut machine);
    rest::note(&keys, &mut machine);
    Ok(machine)
}

/// Is a guest of Arm's, by VMware's or VirtualBox's name of it: `arm-debian12-64`, `Debian12_arm64`?
pub(crate) fn is_of_arm(guest: &str) -> bool {
    let guest = guest.trim_start_matches('*').to_ascii_lowercase();
    guest.starts_with("arm") || guest.contains("_arm")
}

/// The number that guests name a card after, of VMware's number of its slot: function, bridge and
/// device in one.
pub(crate) fn slot(number: i64) -> Option<u16> {
    // Of the first function it is the number itself; the others come right behind it.
    let (place, function) = (number & 0x3ff, number >> 10);
    let named = u16::try_from(place + function).ok()?;
    (number > 0 && function < 8).then_some(named)
}

fn cards(keys: &Keys, machine: &mut Machine) {
    for number in 0..MOST_NICS {
        let place = format!("ethernet{number}");
        let Some(card) = keys.device(&place, machine) else { continue };
        // VMware's own default for guests that it does not know.
        let model = card.get("virtualDev").unwrap_or("vlance");
        let network = network::of(card);
        let address = address(card, machine);
        let number = card.number("pciSlotNumber", machine);
        let slot = number.and_then(slot);
        if let Some(number) = number.filter(|number| *number > 0 && slot.is_none()) {
            machine.note(
                format!("{} = {number}", card.key("pciSlotNumber")),
                "is no slot of VMware's; QEMU chooses one",
            );
        }
        let Some(model) = machine.nic_model(&place, model) else { continue };
        let mac = address.and_then(|text| mac(machine, &place, text));
        if address.is_none() {
            machine
                .note(format!("{place}: no MAC address"), "VMware had not given one yet; vmlane chooses one");
        }
        if card.flag("startConnected", machine) == Some(false) {
            machine.note(
                card.key("startConnected"),
                format!("is FALSE; set its link down with `vmlane link VM/nic{} down`", machine.nics.len()),
            );
        }
        let tagging = Tagging::OfNetwork;
        machine.nics.push(Nic { place, model, network, tagging, mac, slot, mtu: None, queues: None });
    }
}

/// The address in use: `addressType` names which of the two it is. A note names the other one.
fn address<'k>(card: Device<'k>, machine: &mut Machine) -> Option<&'k str> {
    let (fixed, generated) = (card.get("address"), card.get("generatedAddress"));
    let kind = card.get("addressType").map(str::to_ascii_lowercase);
    let (used, other) = match kind.as_deref() {
        Some("static") => (fixed, generated.map(|address| ("generatedAddress", address))),
        Some("generated" | "vpx") => (generated, fixed.map(|address| ("address", address))),
        other => {
            if let Some(kind) = other {
                machine.note(format!("{} = {kind:?}", card.key("addressType")), "is no type that is known");
            }
            // Without a type it is a generated one, if there is one.
            (generated.or(fixed), fixed.filter(|_| generated.is_some()).map(|address| ("address", address)))
        }
    };
    if let Some((name, address)) =
        other.filter(|(_, address)| used.is_none_or(|used| !used.eq_ignore_ascii_case(address)))
    {
        machine.note(
            format!("{} = {address:?}", card.key(name)),
            "is not the address in use, by addressType; it is left out",
        );
    }
    used
}

fn disks(keys: &Keys, machine: &mut Machine) {
    let kinds = [("scsi", Bus::ParallelScsi), ("nvme", Bus::Nvme), ("sata", Bus::Sata), ("ide", Bus::Ide)];
    for (kind, bus) in kinds {
        for number in 0..CONTROLLERS {
            let of = format!("{kind}{number}");
            let controller = keys.device(&of, machine);
            let bus = if kind == "scsi" { scsi(keys, &of) } else { bus };
            for unit in 0..UNITS {
                let place = format!("{of}:{unit}");
                if let Some(device) = keys.device(&place, machine) {
                    disk(device, bus, machine);
                    // IDE's controllers are there without being mentioned; others are not.
                    if controller.is_none() && kind != "ide" {
                        machine.note(
                            format!("{of}.present"),
                            format!("is not TRUE, and yet it has {place}; the disk comes along"),
                        );
                    }
                }
            }
        }
    }
}

fn disk(device: Device<'_>, bus: Bus, machine: &mut Machine) {
    let kind = device.get("deviceType").unwrap_or("disk").to_ascii_lowercase();
    let cdrom = kind.contains("cdrom");
    let named = device.get("fileName");
    match kind.as_str() {
        "disk" | "scsi-harddisk" | "ata-harddisk" | "cdrom-image" => {}
        _ if cdrom => {
            let drive = named
                .filter(|name| !["auto detect", "emptybackingstring"].contains(&&*name.to_ascii_lowercase()));
            if let Some(drive) = drive {
                machine.note(
                    format!("{} = {drive:?}", device.key("fileName")),
                    "is a drive of the old host; the VM gets an empty one",
                );
            }
        }
        _ => machine.note(
            format!("{} = {kind:?}", device.key("deviceType")),
            "is taken for a disk in a file; if it was one of the old host's, copy it into a file first",
        ),
    }
    // A drive of the host is none of the VM's.
    let file = named.filter(|_| !cdrom || kind == "cdrom-image");
    if file.is_none() && !cdrom {
        machine.note(device.key("fileName"), "is missing; the disk is left out");
        return;
    }
    let mode = device.get("mode").unwrap_or("persistent").to_ascii_lowercase();
    if mode.contains("nonpersistent") {
        machine.note(device.key("mode"), "is not carried over; QEMU's counterpart is snapshot=on of -drive");
    } else if !["persistent", "independent-persistent"].contains(&mode.as_str()) {
        machine.note(
            format!("{} = {mode:?}", device.key("mode")),
            "is not carried over; the guest writes to the disk",
        );
    }
    let format = if cdrom { Format::Raw } else { Format::Vmdk };
    let image = file.map(|file| Image { file: file.to_owned(), format });
    machine.disks.push(Disk { bus, image, cdrom, readonly: false });
}

fn scsi(keys: &Keys, controller: &str) -> Bus {
    match keys.get(&format!("{controller}.virtualDev")).map(str::to_ascii_lowercase).as_deref() {
        Some("pvscsi") => Bus::Pvscsi,
        Some("lsisas1068") => Bus::LsiSas,
        _ => Bus::ParallelScsi,
    }
}

fn vmci(keys: &Keys, machine: &mut Machine) {
    let Some(device) = keys.device("vmci0", machine) else { return };
    // The number is written with a sign.
    let cid = device.number::<i64>("id", machine).and_then(|number| {
        u32::try_from(number).ok().or_else(|| i32::try_from(number).ok().map(|signed| signed as u32))
    });
    let reach = reach(device.flag("unrestricted", machine), machine);
    machine.vsock = Some(Vsock { model: VsockModel::Vmci, cid, reach });
}

/// What VMCI reaches, by `vmci0.unrestricted`.
pub(crate) fn reach(unrestricted: Option<bool>, machine: &mut Machine) -> Reach {
    if unrestricted != Some(true) {
        return Reach::Host;
    }
    machine.note(
        "vmci0.unrestricted",
        "VMs talk to each other if they are in one group of vmlane's configuration and neither is restricted",
    );
    Reach::Vms
}

fn snapshots(machine: &mut Machine) {
    let files = machine.disks.iter().filter_map(|disk| disk.image.as_ref()).map(|image| image.file.clone());
    let snapshots: Vec<String> = files.filter(|file| is_snapshot(file)).collect();
    for file in snapshots {
        machine.note(
            format!("disk {file:?}"),
            "has the name of a snapshot's difference; consolidate the VM's snapshots in VMware before its disks are copied",
        );
    }
}

/// `disk-000001.vmdk`.
fn is_snapshot(file: &str) -> bool {
    let stem = file.strip_suffix(".vmdk").unwrap_or_default();
    stem.rsplit_once('-')
        .is_some_and(|(_, number)| number.len() == 6 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_slots_are_those_of_names() {
        for (number, named) in
            [(160, 160), (192, 192), (33, 33), (1184, 161), (1216, 193), (1280, 257), (2208, 162)]
        {
            assert_eq!(slot(number), Some(named), "{number}");
        }
        for number in [-1, 0, 8192, i64::MAX] {
            assert_eq!(slot(number), None, "{number}");
        }
    }

    #[test]
    fn guests_of_arm_are_known_by_their_names() {
        for (guest, is_of_arm) in
            [("arm-debian12-64", true), ("*arm64-other", true), ("Debian12_arm64", true), ("alarm-64", false)]
        {
            assert_eq!(super::is_of_arm(guest), is_of_arm, "{guest}");
        }
    }

    #[test]
    fn what_describes_no_vm_is_refused() {
        for text in ["", "a = \"1\"\n", "nonsense\n"] {
            assert!(vmx(text).unwrap_err().to_string().contains("describes no VM"), "{text}");
        }
    }
}
