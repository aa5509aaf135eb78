//! OVF envelopes, as VMware exports them (DMTF DSP0243; items are CIM_ResourceAllocationSettingData).

mod files;
mod items;
mod options;

use std::collections::BTreeMap;

use roxmltree::Node;

use crate::kind::Expected;
use crate::machine::{Bus, Machine};
use crate::xml::{attribute, first, note_others, parse, text, text_of};
use crate::{Error, MOST_MACHINES, vmx};

use files::Files;
use options::Deployment;

/// Disks and cards of one VM, at most.
const MOST_DEVICES: usize = 256;

/// Sections of an envelope, and of a VM, that are read or that change nothing for the guest.
const OF_ENVELOPE: &[&str] = &[
    "References",
    "DiskSection",
    "NetworkSection",
    "DeploymentOptionSection",
    "VirtualSystem",
    "VirtualSystemCollection",
    "Strings",
    "Info",
    "Name",
    "EulaSection",
    "AnnotationSection",
];
const OF_SYSTEM: &[&str] = &[
    "Info",
    "Name",
    "VirtualHardwareSection",
    "OperatingSystemSection",
    "EulaSection",
    "AnnotationSection",
    "SnapshotSection",
];
const OF_HARDWARE: &[&str] =
    &["Info", "System", "Item", "StorageItem", "EthernetPortItem", "Config", "ExtraConfig"];
const HINTS: &[(&str, &str)] = &[
    (
        "ProductSection",
        "the guest may read its properties from VMware's OVF environment; give them by cloud-init",
    ),
    ("PropertySection", "the guest may read them from VMware's OVF environment; give them by cloud-init"),
    ("InstallSection", "the VM wants to be started once before it is used"),
    ("StartupSection", "start the VMs in their order yourself"),
    ("SharedDiskSection", "disks were shared by several VMs; QEMU needs share-rw=on of their devices"),
    ("ScaleOutSection", "make as many VMs as are needed yourself"),
    ("Machine", "the part of VirtualBox's own description repeats the hardware"),
];

/// The VMs of an envelope, in its default configuration.
///
/// # Errors
/// It is no XML, or describes no VM.
pub fn ovf(source: impl AsRef<[u8]>) -> Result<Vec<Machine>, Error> {
    ovf_with(source, None)
}

/// The VMs of an envelope in one of its configurations; None: the default one.
///
/// # Errors
/// It is no XML, describes no VM, or has no such configuration.
pub fn ovf_with(source: impl AsRef<[u8]>, configuration: Option<&str>) -> Result<Vec<Machine>, Error> {
    let source = text_of(source.as_ref(), Expected::Ovf)?;
    let document = parse(&source)?;
    let root = document.root_element();
    if is_draft(root) {
        return Err(Error::kind(
            "an OVF 0.9 envelope, VMware's draft of 2007",
            "make it one of OVF 1 first: ovftool OLD.ovf NEW.ovf",
        ));
    }
    let deployment = Deployment::of(root, configuration)?;
    let files = Files::of(root);
    let systems: Vec<Node<'_, '_>> = root
        .descendants()
        .filter(|node| node.is_element() && node.tag_name().name() == "VirtualSystem")
        .collect();
    match systems.len() {
        0 => return Err(Error::NoMachine("it has no VirtualSystem")),
        count if count > MOST_MACHINES => return Err(Error::TooMany(count)),
        _ => {}
    }
    if let Some(guest) = systems.iter().find_map(|system| guest_of_arm(*system)) {
        return Err(Error::Architecture(guest.into()));
    }
    let machines = systems.into_iter().map(|system| machine(system, &files, &deployment));
    let mut machines: Vec<Machine> = machines.collect();
    if let Some(machine) = machines.first_mut() {
        deployment.note(machine);
        let collections =
            root.descendants().filter(|node| node.tag_name().name() == "VirtualSystemCollection");
        for of in [root].into_iter().chain(collections) {
            note_others(machine, "", of, &[OF_ENVELOPE], HINTS);
        }
    }
    Ok(machines)
}

/// Before 1.0, VMs were `<Content xsi:type="ovf:VirtualSystem_Type">`.
fn is_draft(root: Node<'_, '_>) -> bool {
    attribute(root, "version").is_some_and(|version| version.starts_with("0."))
        || first(root, "Content").is_some()
}

fn guest_of_arm<'a>(system: Node<'a, '_>) -> Option<&'a str> {
    let section = first(system, "OperatingSystemSection")?;
    let named = [attribute(section, "osType"), text(section, "OSType")];
    named.into_iter().flatten().find(|guest| vmx::is_of_arm(guest))
}

fn machine(system: Node<'_, '_>, files: &Files<'_>, deployment: &Deployment<'_>) -> Machine {
    let name = text(system, "Name").or(attribute(system, "id")).unwrap_or("vm").to_owned();
    let mut machine = Machine { name, ..Machine::default() };
    note_others(&mut machine, "", system, &[OF_SYSTEM], HINTS);
    let mut sections = system.children().filter(|node| node.tag_name().name() == "VirtualHardwareSection");
    let Some(hardware) = sections.next() else {
        machine.note("VirtualHardwareSection", "is missing: nothing is known of the VM but its name");
        return machine;
    };
    let more = sections.count();
    if more > 0 {
        machine.note(
            format!("VirtualHardwareSection ({})", more + 1),
            "there are several, for different hypervisors; the first one is taken",
        );
    }
    note_others(&mut machine, "VirtualHardwareSection: ", hardware, &[OF_HARDWARE], HINTS);
    let config = |key: &str| vmware(hardware, key);
    machine.uefi = config("firmware").is_some_and(|firmware| firmware.eq_ignore_ascii_case("efi"));
    if config("bootOptions.efiSecureBootEnabled").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        machine.note(
            "efiSecureBootEnabled",
            "is not carried over; give QEMU a firmware and variables with Secure Boot",
        );
    }
    configs(hardware, &mut machine);
    let unrestricted = config("vmci0.unrestricted").map(|value| value.eq_ignore_ascii_case("true"));
    let items = deployment.items(hardware, &mut machine);
    let controllers = items::controllers(&items);
    for item in items {
        if machine.nics.len() + machine.disks.len() >= MOST_DEVICES {
            machine.note(format!("more than {MOST_DEVICES} disks and cards"), "the rest is left out");
            break;
        }
        items::one(item, files, &controllers, &mut machine);
    }
    if machine.vsock.is_some() {
        let reach = vmx::reach(unrestricted, &mut machine);
        machine.vsock.iter_mut().for_each(|vsock| vsock.reach = reach);
    }
    machine
}

/// What hangs on a controller, by the controller's instance.
type Controllers<'a> = BTreeMap<&'a str, Bus>;

/// VMware's own `Config` elements.
fn vmware<'a>(of: Node<'a, '_>, key: &str) -> Option<&'a str> {
    let found = of.children().find(|node| is_config(*node) && attribute(*node, "key") == Some(key));
    attribute(found?, "value")
}

fn is_config(node: Node<'_, '_>) -> bool {
    ["Config", "ExtraConfig"].contains(&node.tag_name().name())
}

/// `Config` elements that are read, or that change nothing for the guest; by how they begin.
/// `ExtraConfig` has keys of `.vmx`.
const CONFIGS: &[&str] = &[
    "firmware",
    "bootOptions.",
    "slotInfo.",
    "vmci0.unrestricted",
    "connectable.",
    "wakeOnLanEnabled",
    "uptCompatibility",
    "cpuHot",
    "memoryHot",
    "memoryReservationLockedToMax",
    "nestedHVEnabled",
    "simultaneousThreads",
    "flags.",
    "powerOpInfo.",
    "tools.",
    "virtualICH7MPresent",
    "virtualSMCPresent",
    "useAutoDetect",
    "videoRamSizeInKB",
    "enable3DSupport",
    "use3dRenderer",
    "graphicsMemorySizeInKB",
    "numDisplays",
    "backing.writeThrough",
    "backing.thinProvisioned",
    "autoConnectDevices",
    "ehciEnabled",
];

/// Notes VMware's own elements that are not read.
fn configs(of: Node<'_, '_>, machine: &mut Machine) {
    for node in of.children().filter(|node| is_config(*node)) {
        let (Some(key), Some(value)) = (attribute(node, "key"), attribute(node, "value")) else { continue };
        let lower = key.to_ascii_lowercase();
        let is_known = CONFIGS.iter().any(|known| key.starts_with(known))
            || vmx::is_harmless(&lower, value)
            || value.is_empty()
            || lower.ends_with(".shares") && value.eq_ignore_ascii_case("normal")
            || lower.ends_with(".shares.level") && value.eq_ignore_ascii_case("normal");
        if !is_known {
            let then = vmx::hint(&lower).unwrap_or("is not carried over");
            machine.note(vmx::shown(key, value), then);
        }
    }
}
