//! libvirt's domains (formatdomain.html of libvirt), also those of its ESX and VMware drivers.

use roxmltree::Node;

use crate::Error;
use crate::machine::{Bus, Disk, Machine, Nic, Vsock, mac};
use crate::xml::{all, attribute, first, of_first, parse, text};

/// Devices of one VM, at most.
const MOST_DEVICES: usize = 256;

/// The VM of a domain.
///
/// # Errors
/// It is no XML, or no domain.
pub fn libvirt(source: &str) -> Result<Machine, Error> {
    let document = parse(source)?;
    let domain = document.root_element();
    if domain.tag_name().name() != "domain" {
        return Err(Error::NoMachine("its outermost element is not domain"));
    }
    let mut machine = Machine {
        name: text(domain, "name").unwrap_or("vm").to_owned(),
        cpus: text(domain, "vcpu").and_then(|count| count.parse().ok()),
        ..Machine::default()
    };
    machine.memory_mib = first(domain, "memory").and_then(|memory| {
        let quantity: u64 = memory.text()?.trim().parse().ok()?;
        let bytes = match attribute(memory, "unit").unwrap_or("KiB") {
            "b" | "bytes" => 1,
            "KB" => 1_000,
            "k" | "KiB" => 1 << 10,
            "MB" => 1_000_000,
            "M" | "MiB" => 1 << 20,
            "GB" => 1_000_000_000,
            "G" | "GiB" => 1 << 30,
            "T" | "TiB" => 1 << 40,
            _ => return None,
        };
        quantity.checked_mul(bytes).map(|bytes: u64| bytes >> 20)
    });
    if let Some(os) = first(domain, "os") {
        machine.uefi =
            attribute(os, "firmware") == Some("efi") || of_first(os, "loader", "type") == Some("pflash");
    }
    let Some(devices) = first(domain, "devices") else { return Ok(machine) };
    for interface in all(devices, "interface").take(MOST_DEVICES) {
        card(interface, &mut machine);
    }
    for disk in all(devices, "disk").take(MOST_DEVICES) {
        drive(disk, &mut machine);
    }
    if let Some(vsock) = first(devices, "vsock") {
        let cid = of_first(vsock, "cid", "address").and_then(|cid| cid.parse().ok());
        machine.vsock = Some(Vsock { vmci: false, cid });
    }
    for (element, then) in [
        ("hostdev", "give it to QEMU by -device vfio-pci"),
        ("tpm", "its secrets stay where they are"),
        ("filesystem", "give it to QEMU again"),
        ("redirdev", "give it to QEMU again"),
        ("shmem", "give it to QEMU again"),
    ] {
        let count = all(devices, element).count();
        if count > 0 {
            machine.note(format!("<{element}> ({count})"), format!("is not carried over; {then}"));
        }
    }
    machine.note_controllers();
    Ok(machine)
}

/// What an interface is joined to, by the attribute of its `<source>`.
fn network(interface: Node<'_, '_>) -> Option<String> {
    let source = first(interface, "source")?;
    let names = ["portgroup", "network", "bridge", "dev"];
    names.iter().find_map(|name| attribute(source, name)).map(str::to_owned)
}

fn card(interface: Node<'_, '_>, machine: &mut Machine) {
    let place = format!("interface {}", machine.nics.len());
    if attribute(interface, "type") == Some("hostdev") {
        machine.note(place, "is a device of the host; give it to QEMU by -device vfio-pci");
        return;
    }
    // libvirt's default on x86 is rtl8139; every tool says which it wants.
    let model = of_first(interface, "model", "type").unwrap_or("rtl8139");
    let Some(model) = machine.nic_model(&place, model) else { return };
    let mac = of_first(interface, "mac", "address").and_then(|text| mac(machine, &place, text));
    let tags: Vec<Node<'_, '_>> =
        first(interface, "vlan").into_iter().flat_map(|vlan| all(vlan, "tag")).collect();
    let vlan = match tags.as_slice() {
        [tag] => attribute(*tag, "id").and_then(|id| id.parse().ok()).filter(|id| (1..4095).contains(id)),
        [] => None,
        several => {
            let count = several.len();
            machine.note(
                format!("{place}: {count} VLANs"),
                "give its port group vlan = [...] with them: its guest tags frames",
            );
            None
        }
    };
    if of_first(interface, "link", "state") == Some("down") {
        let number = machine.nics.len();
        machine.note(
            format!("{place}: link"),
            format!("is down; set it down with `vmlane link VM/nic{number} down`"),
        );
    }
    for element in ["bandwidth", "filterref", "virtualport"] {
        if first(interface, element).is_some() {
            let then = if element == "bandwidth" {
                "give the NIC a shape"
            } else {
                "vmlane's port groups have policies of their own"
            };
            machine.note(format!("{place}: <{element}>"), format!("is not carried over; {then}"));
        }
    }
    let mtu = of_first(interface, "mtu", "size").and_then(|size| size.parse().ok());
    let queues = of_first(interface, "driver", "queues").and_then(|queues| queues.parse().ok());
    let network = network(interface);
    machine.nics.push(Nic { place, model, network, vlan, mac, slot: None, mtu, queues });
}

fn drive(disk: Node<'_, '_>, machine: &mut Machine) {
    let place = of_first(disk, "target", "dev").unwrap_or("a disk").to_owned();
    let device = attribute(disk, "device").unwrap_or("disk");
    if !["disk", "cdrom"].contains(&device) {
        machine.note(format!("{place}: device {device:?}"), "is not carried over");
        return;
    }
    let bus = match of_first(disk, "target", "bus").unwrap_or_default() {
        "virtio" => Bus::VirtioBlk,
        "scsi" => Bus::VirtioScsi,
        "ide" => Bus::Ide,
        "nvme" => Bus::Nvme,
        _ => Bus::Sata,
    };
    let source = first(disk, "source");
    let file =
        source.and_then(|source| attribute(source, "file").or(attribute(source, "dev"))).map(str::to_owned);
    let cdrom = device == "cdrom";
    if file.is_none() && !cdrom {
        machine.note(
            format!("{place}: a disk of a pool or of the network"),
            "is left out; give it to QEMU by -blockdev",
        );
        return;
    }
    let format = of_first(disk, "driver", "type").map(str::to_owned);
    machine.disks.push(Disk { bus, file, format, cdrom });
}
