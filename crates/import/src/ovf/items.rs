//! Items of a VM's hardware.

use roxmltree::Node;

use super::files::Files;
use super::{Controllers, configs, vmware};
use crate::machine::{Bus, Disk, Machine, Nic, Reach, Vsock, VsockModel, mac};
use crate::network::{Network, Tagging};
use crate::vmx;
use crate::xml::{all, note_others, text};

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

/// Elements of an item that are read, or that change nothing for the guest.
const KNOWN: &[&str] = &[
    "Address",
    "AddressOnParent",
    "AllocationUnits",
    "AutomaticAllocation",
    "AutomaticDeallocation",
    "Caption",
    "ChangeableType",
    "ConfigurationName",
    "Connection",
    "ConsumerVisibility",
    "Description",
    "ElementName",
    "Generation",
    "HostResource",
    "InstanceID",
    "InstanceId",
    "MappingBehavior",
    "OtherResourceType",
    "Parent",
    "PoolID",
    "ResourceSubType",
    "ResourceType",
    "VirtualQuantity",
    "VirtualQuantityUnits",
    "CoresPerSocket",
    "Config",
    "ExtraConfig",
];
/// What identifies the network of a card beside its connection (CIM_EthernetPortAllocationSettingData).
const OF_NETWORK: [&str; 8] = [
    "NetworkPortProfileID",
    "NetworkPortProfileIDType",
    "ManagerID",
    "VSITypeID",
    "VSITypeIDVersion",
    "DefaultPortVID",
    "PortVID",
    "AllowedToReceiveVLANs",
];
const HINTS: &[(&str, &str)] = &[
    ("Reservation", "give QEMU's process a control group with what it may have"),
    ("Limit", "give QEMU's process a control group with what it may have"),
    ("Weight", "give QEMU's process a control group with what it may have"),
    ("AllowedToTransmitVLANs", "give its port group vlan = [...] with them"),
    ("Promiscuous", "promiscuous of the port group decides"),
    ("SourceMACFilteringEnabled", "mac_changes and forged_transmits of the port group decide"),
];

fn kind(item: Node<'_, '_>) -> u32 {
    text(item, "ResourceType").and_then(|kind| kind.parse().ok()).unwrap_or_default()
}

/// Controllers by their instance: what hangs on them names that.
pub fn controllers<'a>(items: &[Node<'a, '_>]) -> Controllers<'a> {
    let mut controllers = Controllers::new();
    for item in items {
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
    controllers
}

fn scsi(sub: &str) -> Bus {
    match sub.to_ascii_lowercase().as_str() {
        "virtualscsi" => Bus::Pvscsi,
        "lsilogicsas" => Bus::LsiSas,
        _ => Bus::ParallelScsi,
    }
}

pub fn one(item: Node<'_, '_>, files: &Files<'_>, controllers: &Controllers<'_>, machine: &mut Machine) {
    let sub = text(item, "ResourceSubType").unwrap_or_default();
    let name = text(item, "ElementName").map_or_else(
        || format!("item {}", text(item, "InstanceID").unwrap_or("without InstanceID")),
        str::to_owned,
    );
    let place = format!("{name}: ");
    let is_card = kind(item) == resource::ETHERNET;
    note_others(machine, &place, item, &[KNOWN, if is_card { &OF_NETWORK } else { &[] }], HINTS);
    configs(item, machine);
    match kind(item) {
        resource::PROCESSOR => {
            machine.cpus = machine.number(&name, text(item, "VirtualQuantity")).filter(|count| *count > 0);
            if let Some(cores) = text(item, "CoresPerSocket").filter(|cores| *cores != "1") {
                machine.note(
                    format!("{name}: CoresPerSocket {cores}"),
                    "is not carried over; add cores= to -smp if the guest counts sockets",
                );
            }
        }
        resource::MEMORY => machine.memory_mib = memory(item, machine),
        resource::ETHERNET => ethernet(item, name, machine),
        resource::DISK | resource::CD | resource::DVD => disk(item, name, files, controllers, machine),
        resource::OTHER if sub.eq_ignore_ascii_case("vmware.vmci") => {
            // Which VMs it reaches is in the VM's own keys.
            machine.vsock = Some(Vsock { model: VsockModel::Vmci, cid: None, reach: Reach::Host });
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

fn disk(
    item: Node<'_, '_>,
    name: String,
    files: &Files<'_>,
    controllers: &Controllers<'_>,
    machine: &mut Machine,
) {
    let cdrom = kind(item) != resource::DISK;
    let parent = text(item, "Parent").and_then(|parent| controllers.get(parent));
    let bus = parent.copied().unwrap_or(Bus::Sata);
    let before = machine.notes.len();
    let image = text(item, "HostResource").and_then(|resource| files.image(&name, resource, cdrom, machine));
    if image.is_none() && !cdrom {
        // Unless it was noted already why it is left out.
        if machine.notes.len() == before {
            machine.note(
                name,
                "has no file in the envelope (an empty disk, or a file of the old host); it is left out",
            );
        }
        return;
    }
    machine.disks.push(Disk { bus, image, cdrom, readonly: false });
}

/// MiB. Units are `byte * 2^20`, or words of old exports.
fn memory(item: Node<'_, '_>, machine: &mut Machine) -> Option<u64> {
    let quantity: u64 = machine.number("memory", text(item, "VirtualQuantity"))?;
    let written = text(item, "AllocationUnits").unwrap_or("byte * 2^20");
    let Some(bytes) = unit(written) else {
        machine.note(format!("AllocationUnits {written:?}"), "is no unit that is known; set -m yourself");
        return None;
    };
    quantity.checked_mul(bytes).map(|bytes: u64| bytes >> 20)
}

fn unit(written: &str) -> Option<u64> {
    let unit = written.replace(' ', "").to_ascii_lowercase();
    Some(match unit.as_str() {
        "byte" | "bytes" => 1,
        "kilobytes" | "kb" => 1 << 10,
        "megabytes" | "mb" => 1 << 20,
        "gigabytes" | "gb" => 1 << 30,
        other => {
            let (base, power) = other.strip_prefix("byte*")?.split_once('^')?;
            base.parse::<u64>().ok()?.checked_pow(power.parse().ok()?)?
        }
    })
}

/// The connection, and all else that identifies the network.
fn network(item: Node<'_, '_>) -> Network {
    let connections: Vec<&str> =
        all(item, "Connection").filter_map(|node| node.text()).map(str::trim).collect();
    let connections =
        connections.into_iter().filter(|name| !name.is_empty()).map(|name| ("Connection", name));
    let more = OF_NETWORK.iter().filter_map(|name| Some((*name, text(item, name)?)));
    let given: Vec<(&str, &str)> = connections.chain(more).collect();
    match given.as_slice() {
        [("Connection", name)] => Network::PortGroup((*name).into()),
        words => {
            let words = words.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            Network::of(words, "the envelope names no network for this card")
        }
    }
}

fn ethernet(item: Node<'_, '_>, place: String, machine: &mut Machine) {
    let model = text(item, "ResourceSubType").unwrap_or("vlance");
    // There may be several, the preferred one first.
    let model = model.split_whitespace().next().unwrap_or("vlance");
    let Some(model) = machine.nic_model(&place, model) else { return };
    let mac = text(item, "Address").and_then(|text| mac(machine, &place, text));
    if text(item, "AutomaticAllocation").is_some_and(|value| ["false", "0"].contains(&value)) {
        let number = machine.nics.len();
        machine.note(
            format!("{place}: AutomaticAllocation"),
            format!("is false; set its link down with `vmlane link VM/nic{number} down`"),
        );
    }
    let number = machine.number("slotInfo.pciSlotNumber", vmware(item, "slotInfo.pciSlotNumber"));
    let slot = number.and_then(vmx::slot);
    let (network, tagging) = (network(item), Tagging::OfNetwork);
    machine.nics.push(Nic { place, model, network, tagging, mac, slot, mtu: None, queues: None });
}
