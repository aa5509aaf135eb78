//! libvirt's domains (formatdomain.html of libvirt), also those of its ESX and VMware drivers.

mod disks;
mod interface;

use roxmltree::Node;

use crate::Error;
use crate::kind::Expected;
use crate::machine::{Machine, Reach, Vsock, VsockModel};
use crate::xml::{all, attribute, first, note_others, of_first, parse, text, text_of};

/// Devices of one VM, at most.
const MOST_DEVICES: usize = 256;

/// Elements of a domain, and of its devices, that are read or that change nothing for the guest.
const OF_DOMAIN: &[&str] = &[
    "name",
    "uuid",
    "genid",
    "title",
    "description",
    "metadata",
    "memory",
    "currentMemory",
    "vcpu",
    "vcpus",
    "cpu",
    "os",
    "features",
    "clock",
    "on_poweroff",
    "on_reboot",
    "on_crash",
    "on_lockfailure",
    "pm",
    "devices",
    "seclabel",
    "resource",
    // What its ESX driver adds about the old host.
    "datacenterpath",
    "moref",
];
const OF_DEVICES: &[&str] = &[
    "emulator",
    "disk",
    "interface",
    "vsock",
    "controller",
    "input",
    "graphics",
    "video",
    "audio",
    "console",
    "hub",
    "memballoon",
];
const HINTS: &[(&str, &str)] = &[
    ("bootloader", "the VM was started by a program of the host"),
    ("commandline", "add its words to QEMU's if they are still needed"),
    ("cputune", "give QEMU's process a control group with what it may have"),
    ("memtune", "give QEMU's process a control group with what it may have"),
    ("blkiotune", "give QEMU's process a control group with what it may have"),
    ("sysinfo", "QEMU has -smbios"),
    ("maxMemory", "QEMU has maxmem= of -m"),
    ("memoryBacking", "vmlane's words share the memory; QEMU has memory-backend-memfd with hugetlb=on"),
    ("launchSecurity", "the memory of such a VM cannot be shared with vmlane"),
    ("hostdev", "give it to QEMU by -device vfio-pci"),
    ("tpm", "its secrets stay where they are"),
    ("serial", "add -serial to QEMU's words if the guest needs it"),
    ("parallel", "QEMU has no counterpart worth having"),
    ("channel", "add -device virtserialport to QEMU's words if the guest's agent needs it"),
    ("rng", "add -device virtio-rng-pci to QEMU's words"),
    ("watchdog", "add -device i6300esb to QEMU's words"),
    ("panic", "add -device pvpanic to QEMU's words"),
    ("sound", "add a sound card to QEMU's words if the guest needs one"),
    ("memory", "add -device pc-dimm, or give the VM all its memory by -m"),
    ("iommu", "add -device intel-iommu to QEMU's words"),
    ("filesystem", "give it to QEMU again"),
    ("redirdev", "give it to QEMU again"),
    ("shmem", "give it to QEMU again"),
    ("smartcard", "give it to QEMU again"),
    ("lease", "nothing else keeps a second host from starting the VM"),
];

/// What a reader of parts has to know of the domain as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// VMware's, described by libvirt's ESX or VMware driver.
    Vmware,
    Qemu,
}

/// The VM of a domain.
///
/// # Errors
/// It is no XML, no domain, or one that is no PC.
pub fn libvirt(source: impl AsRef<[u8]>) -> Result<Machine, Error> {
    let source = text_of(source.as_ref(), Expected::Libvirt)?;
    let document = parse(&source)?;
    let domain = document.root_element();
    let mut machine = Machine { name: text(domain, "name").unwrap_or("vm").to_owned(), ..Machine::default() };
    let of = kind(domain, &mut machine)?;
    machine.cpus = machine.number("vcpu", text(domain, "vcpu")).filter(|count| *count > 0);
    machine.uuid = machine.uuid_of("uuid", text(domain, "uuid"));
    machine.memory_mib = memory(domain, &mut machine);
    if let Some(os) = first(domain, "os") {
        boot(os, &mut machine);
    }
    whole(domain, &mut machine);
    note_others(&mut machine, "", domain, &[OF_DOMAIN], HINTS);
    let Some(devices) = first(domain, "devices") else { return Ok(machine) };
    note_others(&mut machine, "", devices, &[OF_DEVICES], HINTS);
    for (number, interface) in all(devices, "interface").take(MOST_DEVICES).enumerate() {
        interface::read(interface, number, of, &mut machine);
    }
    let controllers = disks::Controllers::of(devices, of);
    for disk in all(devices, "disk").take(MOST_DEVICES) {
        disks::read(disk, &controllers, of, &mut machine);
    }
    for element in ["interface", "disk"] {
        let count = all(devices, element).count();
        if count > MOST_DEVICES {
            machine.note(
                format!("<{element}> ({count})"),
                format!("those behind the first {MOST_DEVICES} are left out"),
            );
        }
    }
    if let Some(vsock) = first(devices, "vsock") {
        let cid = machine.number("vsock: cid", of_first(vsock, "cid", "address"));
        // Linux's vhost-vsock joins a VM to its host only.
        machine.vsock = Some(Vsock { model: VsockModel::Virtio, cid, reach: Reach::Host });
    }
    Ok(machine)
}

/// By what hypervisor and for what machine it was made. What is no PC, or no VM, is refused.
fn kind(domain: Node<'_, '_>, machine: &mut Machine) -> Result<Of, Error> {
    let kind = attribute(domain, "type").unwrap_or("kvm");
    let refuse = |what: String| Err(Error::OtherMachine(what));
    if ["lxc", "openvz", "vz", "uml", "test"].contains(&kind) {
        return refuse(format!("its domain type is {kind:?}, which has no PCI devices"));
    }
    if !["kvm", "qemu", "kqemu", "vmware", "hvf"].contains(&kind) {
        machine.note(
            format!("domain type {kind:?}"),
            "it ran under another hypervisor: see that its guest has drivers for the disks and cards here",
        );
    }
    if let Some(os) = first(domain, "os").and_then(|os| first(os, "type")) {
        let arch = attribute(os, "arch").unwrap_or("x86_64");
        if !["x86_64", "i686", "i386", "amd64"].contains(&arch) {
            return Err(Error::Architecture(arch.into()));
        }
        let guest = os.text().unwrap_or("hvm").trim();
        if guest != "hvm" {
            return refuse(format!(
                "its guest is of the kind {guest:?}, and not \"hvm\": it cannot run on a PC"
            ));
        }
        let model = attribute(os, "machine").unwrap_or("q35");
        if !model.contains("q35") {
            machine.note(
                format!("machine {model:?}"),
                "becomes q35: the addresses of PCI devices change, and names of interfaces with them",
            );
        }
    }
    Ok(if kind == "vmware" { Of::Vmware } else { Of::Qemu })
}

fn memory(domain: Node<'_, '_>, machine: &mut Machine) -> Option<u64> {
    let memory = first(domain, "memory")?;
    let quantity: u64 = machine.number("memory", memory.text())?;
    let unit = attribute(memory, "unit").unwrap_or("KiB");
    let bytes = match unit {
        "b" | "bytes" => 1,
        "KB" => 1_000,
        "k" | "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "M" | "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "G" | "GiB" => 1 << 30,
        "TB" => 1_000_000_000_000,
        "T" | "TiB" => 1 << 40,
        _ => {
            machine.note(format!("memory: unit {unit:?}"), "is no unit that is known; set -m yourself");
            return None;
        }
    };
    quantity.checked_mul(bytes).map(|bytes: u64| bytes >> 20)
}

/// Firmware, and what is started without it.
fn boot(os: Node<'_, '_>, machine: &mut Machine) {
    machine.uefi =
        attribute(os, "firmware") == Some("efi") || of_first(os, "loader", "type") == Some("pflash");
    if of_first(os, "loader", "secure") == Some("yes") {
        machine.note(
            "<loader> with Secure Boot",
            "is not carried over; give QEMU a firmware and variables with Secure Boot",
        );
    }
    let direct = [
        ("kernel", "-kernel"),
        ("initrd", "-initrd"),
        ("cmdline", "-append"),
        ("dtb", "-dtb"),
        ("shim", "-shim"),
    ];
    for (element, option) in direct {
        if let Some(value) = text(os, element) {
            machine.note(
                format!("<{element}> {value:?}"),
                format!("is not carried over: the VM was started from it, without a boot loader; add {option} to QEMU's words"),
            );
        }
    }
    let known =
        ["type", "loader", "nvram", "boot", "bootmenu", "bios", "firmware", "smbios", "kernel", "initrd"];
    note_others(
        machine,
        "os: ",
        os,
        &[&known, &["cmdline", "dtb", "shim"]],
        &[("acpi", "QEMU has -acpitable")],
    );
    if of_first(os, "smbios", "mode").is_some_and(|mode| mode != "emulate") {
        machine.note("<smbios>", "is not carried over; QEMU has -smbios");
    }
}

/// The processor, its features and the clock.
fn whole(domain: Node<'_, '_>, machine: &mut Machine) {
    if let Some(cpu) = first(domain, "cpu") {
        let mode = attribute(cpu, "mode").unwrap_or("custom");
        if !["host-passthrough", "host-model", "maximum"].contains(&mode) {
            let model = text(cpu, "model").unwrap_or("none");
            machine.note(format!("<cpu> {model:?}"), "becomes the host's own: -cpu host");
        }
        note_others(
            machine,
            "cpu: ",
            cpu,
            &[&["model", "vendor", "feature", "cache", "maxphysaddr"]],
            &[
                ("topology", "add sockets= and cores= to -smp if the guest counts them"),
                ("numa", "QEMU has -numa"),
            ],
        );
    }
    if let Some(features) = first(domain, "features") {
        let known = ["acpi", "apic", "pae", "vmport", "privnet", "viridian", "hap"];
        let hints = [
            (
                "hyperv",
                "guests with Windows want it: -cpu host,hv-relaxed,hv-vapic,hv-spinlocks=0x1fff,hv-time",
            ),
            ("smm", "Secure Boot wants it: -machine q35,smm=on"),
        ];
        note_others(machine, "features: ", features, &[&known], &hints);
    }
    if let Some(offset) = of_first(domain, "clock", "offset").filter(|offset| *offset != "utc") {
        machine.note(
            format!("<clock> {offset:?}"),
            "is not carried over; QEMU has -rtc base=localtime, and offsets by a date",
        );
    }
    if let Some(current) = vcpus_at_start(domain) {
        machine.note(format!("vcpu: current {current}"), "is not carried over: the guest gets all of them");
    }
}

fn vcpus_at_start<'a>(domain: Node<'a, '_>) -> Option<&'a str> {
    let vcpu = domain.children().find(|node| node.tag_name().name() == "vcpu")?;
    attribute(vcpu, "current").filter(|current| vcpu.text().is_none_or(|all| all.trim() != *current))
}
