//! OVF envelopes, as VMware exports them (DMTF DSP0243; items are CIM_ResourceAllocationSettingData).

use std::collections::BTreeMap;

use roxmltree::Node;

use crate::machine::{Bus, Disk, Machine, Nic, Vsock, mac};
use crate::xml::{all, attribute, first, parse, text};
use crate::{Error, MOST_MACHINES, vmx};

/// Disks and cards of one VM, at most.
const MOST_DEVICES: usize = 256;

/// `rasd:ResourceType`.
mod resource {
    pub const OTHER: u32 = 1;
    pub const PROCESSOR: u32 = 3;
    pub const MEMORY: u32 = 4;
    pub const IDE: u32 = 5;
    pub const SCSI: u32 = 6;
    pub const ETHERNET: u32 = 10;
    pub const FLOPPY: u32 = 14;
    pub const CD: u32 = 15;
    pub const DVD: u32 = 16;
    pub const DISK: u32 = 17;
    pub const STORAGE: u32 = 20;
    pub const USB: u32 = 23;
    pub const GRAPHICS: u32 = 24;
}

/// The VMs of an envelope.
///
/// # Errors
/// It is no XML, or describes no VM.
pub fn ovf(source: &str) -> Result<Vec<Machine>, Error> {
    let document = parse(source)?;
    let root = document.root_element();
    if root.tag_name().name() != "Envelope" {
        return Err(Error::NoMachine("its outermost element is not Envelope"));
    }
    let files = Files::of(root);
    let systems: Vec<Node<'_, '_>> = root
        .descendants()
        .filter(|node| node.is_element() && node.tag_name().name() == "VirtualSystem")
        .collect();
    match systems.len() {
        0 => Err(Error::NoMachine("it has no VirtualSystem")),
        count if count > MOST_MACHINES => Err(Error::TooMany(count)),
        _ => Ok(systems.into_iter().map(|system| machine(system, &files)).collect()),
    }
}

/// The files of disks.
struct Files<'a> {
    /// By disk: the file's number.
    disks: BTreeMap<&'a str, Option<&'a str>>,
    files: BTreeMap<&'a str, &'a str>,
}

impl<'a> Files<'a> {
    fn of<'i: 'a>(root: Node<'a, 'i>) -> Files<'a> {
        let pairs = |section, element: &'static str, name| {
            let elements = first(root, section).into_iter().flat_map(move |section| all(section, element));
            elements.filter_map(move |node| Some((attribute(node, name)?, node)))
        };
        let files =
            pairs("References", "File", "id").filter_map(|(id, file)| Some((id, attribute(file, "href")?)));
        let disks = pairs("DiskSection", "Disk", "diskId").map(|(id, disk)| (id, attribute(disk, "fileRef")));
        Files { disks: disks.collect(), files: files.collect() }
    }

    /// `ovf:/disk/vmdisk1`, or `ovf:/file/file1`.
    fn find(&self, resource: &str) -> Option<String> {
        let path = resource.strip_prefix("ovf:").unwrap_or(resource);
        let file = match path.strip_prefix("/disk/") {
            Some(disk) => self.disks.get(disk).copied().flatten()?,
            None => path.strip_prefix("/file/")?,
        };
        self.files.get(file).map(|href| (*href).to_owned())
    }
}

fn machine(system: Node<'_, '_>, files: &Files<'_>) -> Machine {
    let name = text(system, "Name").or(attribute(system, "id")).unwrap_or("vm").to_owned();
    let mut machine = Machine { name, ..Machine::default() };
    let Some(hardware) = first(system, "VirtualHardwareSection") else {
        machine.note("VirtualHardwareSection", "is missing: nothing is known of the VM but its name");
        return machine;
    };
    let config = |key: &str| vmware(hardware, key);
    machine.uefi = config("firmware").is_some_and(|firmware| firmware.eq_ignore_ascii_case("efi"));
    if config("bootOptions.efiSecureBootEnabled").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        machine.note(
            "efiSecureBootEnabled",
            "is not carried over; give QEMU a firmware and variables with Secure Boot",
        );
    }
    let items: Vec<Node<'_, '_>> = hardware
        .children()
        .filter(|node| ["Item", "StorageItem", "EthernetPortItem"].contains(&node.tag_name().name()))
        .collect();
    // Controllers by their instance: what hangs on them names that.
    let mut controllers: BTreeMap<&str, Bus> = BTreeMap::new();
    for item in &items {
        let sub = text(*item, "ResourceSubType").unwrap_or_default();
        let bus = match kind(*item) {
            resource::IDE => Bus::Ide,
            resource::SCSI => scsi(sub),
            resource::STORAGE if sub.to_ascii_lowercase().contains("nvme") => Bus::Nvme,
            resource::STORAGE => Bus::Sata,
            _ => continue,
        };
        if let Some(id) = text(*item, "InstanceID") {
            controllers.insert(id, bus);
        }
    }
    for item in items {
        if machine.nics.len() + machine.disks.len() >= MOST_DEVICES {
            machine.note(format!("more than {MOST_DEVICES} disks and cards"), "the rest is left out");
            break;
        }
        one(item, files, &controllers, &mut machine);
    }
    machine.note_controllers();
    machine
}

/// VMware's own `Config` elements.
fn vmware<'a>(of: Node<'a, '_>, key: &str) -> Option<&'a str> {
    let found = of.children().find(|node| {
        ["Config", "ExtraConfig"].contains(&node.tag_name().name()) && attribute(*node, "key") == Some(key)
    });
    attribute(found?, "value")
}

fn kind(item: Node<'_, '_>) -> u32 {
    text(item, "ResourceType").and_then(|kind| kind.parse().ok()).unwrap_or_default()
}

fn scsi(sub: &str) -> Bus {
    match sub.to_ascii_lowercase().as_str() {
        "virtualscsi" => Bus::Pvscsi,
        "lsilogicsas" => Bus::LsiSas,
        _ => Bus::ParallelScsi,
    }
}

fn one(item: Node<'_, '_>, files: &Files<'_>, controllers: &BTreeMap<&str, Bus>, machine: &mut Machine) {
    let sub = text(item, "ResourceSubType").unwrap_or_default();
    let name = text(item, "ElementName").unwrap_or("an item").to_owned();
    match kind(item) {
        resource::PROCESSOR => {
            machine.cpus = text(item, "VirtualQuantity").and_then(|count| count.parse().ok())
        }
        resource::MEMORY => machine.memory_mib = memory(item, machine),
        resource::ETHERNET => ethernet(item, name, machine),
        resource::DISK | resource::CD | resource::DVD => {
            let cdrom = kind(item) != resource::DISK;
            let parent = text(item, "Parent").and_then(|parent| controllers.get(parent));
            let bus = parent.copied().unwrap_or(Bus::Sata);
            let file = text(item, "HostResource").and_then(|resource| files.find(resource));
            if file.is_none() && !cdrom {
                machine.note(
                    name,
                    "has no file in the envelope (an empty disk, or a file of the old host); it is left out",
                );
                return;
            }
            let format = (!cdrom).then(|| "vmdk".to_owned());
            machine.disks.push(Disk { bus, file, format, cdrom });
        }
        resource::OTHER if sub.eq_ignore_ascii_case("vmware.vmci") => {
            machine.vsock = Some(Vsock { vmci: true, cid: None });
        }
        resource::OTHER | resource::FLOPPY | resource::USB => {
            let of = if sub.is_empty() { String::new() } else { format!(" ({sub})") };
            machine.note(format!("{name}{of}"), "is not carried over");
        }
        // Those are QEMU's affair.
        resource::IDE | resource::SCSI | resource::STORAGE | resource::GRAPHICS => {}
        other => machine.note(format!("{name} (resource type {other})"), "is not carried over"),
    }
}

/// MiB. Units are `byte * 2^20`, or words of old exports.
fn memory(item: Node<'_, '_>, machine: &mut Machine) -> Option<u64> {
    let quantity: u64 = text(item, "VirtualQuantity")?.parse().ok()?;
    let unit = text(item, "AllocationUnits").unwrap_or("byte * 2^20").replace(' ', "").to_ascii_lowercase();
    let bytes = match unit.as_str() {
        "byte*2^20" | "megabytes" | "mb" => 1 << 20,
        "byte*2^30" | "gigabytes" | "gb" => 1 << 30,
        "byte*2^10" | "kilobytes" | "kb" => 1 << 10,
        "byte" | "bytes" => 1,
        _ => {
            machine.note(format!("AllocationUnits {unit:?}"), "is no unit that is known; set -m yourself");
            return None;
        }
    };
    quantity.checked_mul(bytes).map(|bytes: u64| bytes >> 20)
}

fn ethernet(item: Node<'_, '_>, place: String, machine: &mut Machine) {
    let model = text(item, "ResourceSubType").unwrap_or("vlance");
    // There may be several, the preferred one first.
    let model = model.split_whitespace().next().unwrap_or("vlance");
    let Some(model) = machine.nic_model(&place, model) else { return };
    let mac = text(item, "Address").and_then(|text| mac(machine, &place, text));
    if text(item, "AutomaticAllocation") == Some("false") {
        let number = machine.nics.len();
        machine.note(
            format!("{place}: AutomaticAllocation"),
            format!("is false; set its link down with `vmlane link VM/nic{number} down`"),
        );
    }
    let slot =
        vmware(item, "slotInfo.pciSlotNumber").and_then(|number| number.parse().ok()).and_then(vmx::slot);
    let network = text(item, "Connection").map(str::to_owned);
    machine.nics.push(Nic { place, model, network, vlan: None, mac, slot, mtu: None, queues: None });
}
