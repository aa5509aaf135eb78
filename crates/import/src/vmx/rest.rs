//! What of a `.vmx` file no reader took. Two closed lists have what may be left out without a
//! word, and what can be done about the rest; everything else is noted.

use std::collections::BTreeSet;

use super::keys::{Keys, flag};
use crate::machine::{Machine, joined};

/// Keys that change nothing for the guest or for the VMs that it reaches: how VMware shows, logs, names,
/// stops and moves a VM. `*` is any text, `#` a number. With a value, they do so at that value
/// only.
const HARMLESS: &[(&str, Option<&str>)] = &[
    // The file itself, and files beside it.
    (".encoding", None),
    ("config.version", None),
    ("virtualhw.*", None),
    ("displayname", None),
    ("annotation", None),
    ("guestos", None),
    ("guestos.*", None),
    ("guestosaltname", None),
    ("guestinfo.detailed.data", None),
    ("nvram", None),
    ("extendedconfigfile", None),
    ("vmxstats.*", None),
    ("checkpoint.vmstate.readonly", Some("false")),
    ("inventory.*", None),
    ("policy.*", None),
    ("template", None),
    ("tagsdata", None),
    // Names by which VMware knows the VM.
    ("vc.uuid", None),
    ("uuid.location", None),
    ("uuid.action", None),
    ("vm.genid*", None),
    ("vm.createdate", None),
    ("migrate.*", None),
    ("migration.*", None),
    ("vmotion.*", None),
    // Its console and its tools.
    ("tools.*", None),
    ("toolscripts.*", None),
    ("toolsinstallmanager.*", None),
    ("svga.*", None),
    ("mks.*", None),
    ("gui.*", None),
    ("unity.*", None),
    ("isolation.*", None),
    ("remotedisplay.*", None),
    ("log.*", None),
    ("logging", None),
    ("hint.*", None),
    ("msg.*", None),
    ("answer.*", None),
    ("easyinstall.*", None),
    // How it starts and stops.
    ("powertype.*", None),
    ("softpoweroff", None),
    ("cleanshutdown", None),
    ("autostart*", None),
    ("snapshot.*", None),
    ("replay.*", None),
    ("bios.bootdelay", None),
    ("bios.bootretry.*", None),
    ("bios.bootorder", None),
    ("bios.hddorder", None),
    ("bios.bootdeviceclasses", None),
    ("bios.forcesetuponce", None),
    // How VMware runs it.
    ("monitor.*", None),
    ("monitor_control.*", None),
    ("priority.*", None),
    ("mainmem.*", None),
    ("memtrimrate", None),
    ("mem.hotadd", None),
    ("vcpu.hotadd", None),
    ("vcpu.hotremove", None),
    ("vhv.enable", None),
    ("numa.*", None),
    ("ulm.*", None),
    ("prefvmx.*", None),
    ("featmask.*", None),
    ("featurecompat.*", None),
    ("ctkenabled", None),
    ("chipset.*", None),
    ("cpuid.corespersocket", Some("1")),
    ("cpuid.corespersocket.cookie", None),
    ("disk.enableuuid", Some("false")),
    ("workingdir", Some(".")),
    ("sched.cpu.units", None),
    ("sched.cpu.affinity", Some("all")),
    ("sched.swap.*", None),
    ("sched.*.shares", Some("normal")),
    ("sched.*.min", Some("0")),
    ("sched.*.minsize", Some("0")),
    ("sched.*.max", Some("unlimited")),
    ("sched.*.max", Some("-1")),
    ("sched.*.throughputcap", Some("off")),
    ("sched.*.latencysensitivity", Some("normal")),
    ("sched.mem.pin", Some("false")),
    // What QEMU has of its own, or what hangs on a device that is noted.
    ("pcibridge#.*", None),
    ("hpet#.*", None),
    ("usb:#*", None),
    ("ehci:#*", None),
    ("usb_xhci:#*", None),
    ("*.pcislotnumber", None),
    ("*.present", Some("false")),
    ("*.autodetect", None),
    ("*.clientdevice", None),
    ("*.allowguestconnectioncontrol", None),
    // Of cards: the port of a switch, and what vmlane's cards have in any case.
    ("ethernet#.displayname", None),
    ("ethernet#.bsdname", None),
    ("ethernet#.features", None),
    ("ethernet#.dvs.portid", None),
    ("ethernet#.dvs.connectionid", None),
    ("ethernet#.generatedaddressoffset", None),
    ("ethernet#.wakeonpcktrcv", None),
    ("ethernet#.uptcompatibility", None),
    ("ethernet#.linkstatepropagation.enable", None),
    ("ethernet#.checkmacaddress", Some("true")),
    // Of controllers and disks.
    ("*.virtualdev", None),
    ("scsi#.saswwid", None),
    ("*.sharedbus", Some("none")),
    ("*.sharing", Some("none")),
    ("*.sharing", Some("sharing-none")),
    ("*.redo", None),
    ("*.ctkenabled", None),
    ("*.writethrough", None),
    ("*.startconnected", None),
    ("*.shares", Some("normal")),
    ("*.throughputcap", Some("off")),
];

/// What becomes of keys, or what can be done; the first that fits.
const HINTS: &[(&str, &str)] = &[
    (
        "checkpoint.vmstate",
        "the VM is suspended, and its memory does not come along: resume it and shut it down in VMware first",
    ),
    ("encryption.*", "the VM is encrypted; decrypt it in VMware first"),
    ("managedvm.autoaddvtpm", "is not carried over: its secrets do not leave VMware"),
    ("vtpm.*", "is not carried over: its secrets do not leave VMware"),
    (
        "vmci.filter*",
        "is not carried over: vmlane lets VMs of one group talk to each other unless they are restricted",
    ),
    ("vmci*", "is not carried over: give the VM restricted, trusted or a group of its own instead"),
    (
        "ethernet#.filter*",
        "is not carried over: nothing filters the card's frames now; port groups have policies of their own",
    ),
    (
        "ethernet#.checkmacaddress",
        "is not carried over: mac_changes and forged_transmits of the port group decide",
    ),
    ("ethernet#.nopromisc", "is not carried over: promiscuous of the port group decides"),
    ("ethernet#.*shares*", "is not carried over; give the card shares"),
    ("ethernet#.*limit*", "is not carried over; give the card a shape"),
    ("ethernet#.*bw*", "is not carried over; give the card a shape"),
    ("ethernet#.present", "is not carried over: vmlane serves 64 cards of a VM"),
    ("ethernet#.*", "is not carried over"),
    ("sched.*", "is not carried over; give QEMU's process a control group with what it may have"),
    (
        "*.sharedbus",
        "is not carried over: its disks were shared with other VMs; QEMU needs share-rw=on of their devices, and a cluster file system or reservations in the guests",
    ),
    (
        "*.sharing",
        "is not carried over: the disk was shared with other VMs; QEMU needs share-rw=on of its device, and a cluster file system in the guests",
    ),
    ("cpuid.corespersocket", "is not carried over; add cores= to -smp if the guest counts sockets"),
    ("disk.enableuuid", "is not carried over; give the disks serial= if the guest finds them by it"),
    ("workingdir", "is not carried over: names of files are seen from the folder of the description"),
    ("rtc.*", "is not carried over; QEMU has -rtc"),
    ("time.*", "is not carried over; QEMU has -rtc"),
    ("floppy#.*", "is not carried over; give QEMU a floppy if the guest needs one"),
    ("usb.*", "is not carried over; add -device qemu-xhci if the guest needs USB"),
    ("ehci.*", "is not carried over; add -device qemu-xhci if the guest needs USB"),
    ("usb_xhci.*", "is not carried over; add -device qemu-xhci if the guest needs USB"),
    ("sound.*", "is not carried over; add a sound card to QEMU's words if the guest needs one"),
    ("serial#.*", "is not carried over; add -serial to QEMU's words if the guest needs it"),
    ("parallel#.*", "is not carried over; QEMU has no counterpart worth having"),
    ("pcipassthru#.*", "is not carried over; devices of the old host are given to QEMU by -device vfio-pci"),
    ("sharedfolder#.*", "is not carried over; QEMU has -virtfs and virtiofsd for folders of the host"),
    ("vwdt.*", "is not carried over; QEMU has -device i6300esb"),
    (
        "guestinfo.*",
        "is not carried over: the guest reads it by VMware's tools; give it by cloud-init, or by -fw_cfg",
    ),
];
const OTHERWISE: &str = "is not carried over";
/// Letters of a value that a note shows, at most.
const SHOWN: usize = 80;

/// May this key be left out without a word? In lower case.
pub fn is_harmless(key: &str, value: &str) -> bool {
    let same = |wanted: &str| {
        value.eq_ignore_ascii_case(wanted) || flag(value).is_some() && flag(value) == flag(wanted)
    };
    HARMLESS.iter().any(|(pattern, wanted)| wanted.is_none_or(same) && matches(pattern, key))
}

/// What becomes of a key, in lower case.
pub fn hint(key: &str) -> Option<&'static str> {
    HINTS.iter().find(|(pattern, _)| matches(pattern, key)).map(|(_, then)| *then)
}

/// A key with its value, unless that is long or may be secret.
pub fn shown(key: &str, value: &str) -> String {
    let is_secret =
        key.starts_with("encryption.") || key.starts_with("guestinfo.") || key.contains("password");
    if is_secret || value.len() > SHOWN { key.to_owned() } else { format!("{key} = {value:?}") }
}

/// Does a key fit a pattern: `*` any text, `#` a number?
fn matches(pattern: &str, key: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => key.is_empty(),
        Some('*') => {
            let rest = rest.as_str();
            key.char_indices().any(|(at, _)| matches(rest, key.get(at..).unwrap_or_default()))
                || matches(rest, "")
        }
        Some('#') => {
            let behind = key.trim_start_matches(|letter: char| letter.is_ascii_digit());
            behind.len() < key.len() && matches(rest.as_str(), behind)
        }
        Some(letter) => key.strip_prefix(letter).is_some_and(|key| matches(rest.as_str(), key)),
    }
}

/// Notes everything that no reader asked for.
pub fn note(keys: &Keys, machine: &mut Machine) {
    let mut others = Vec::new();
    let mut devices = BTreeSet::new();
    for (key, written, value) in keys.not_asked().filter(|(key, _, value)| !is_harmless(key, value)) {
        let device = key.split('.').next().unwrap_or(key);
        let present = format!("{device}.present");
        let then = hint(key);
        if keys.is_used(device) {
            machine.note(shown(written, value), then.unwrap_or(OTHERWISE));
        } else if keys.peek(&present).and_then(flag) == Some(true) {
            // A device of which nothing came along is one note, whatever keys it has.
            if devices.insert(device) && !is_harmless(&present, "true") {
                let device = written.split('.').next().unwrap_or(device);
                machine.note(format!("{device}.present"), hint(&present).unwrap_or(OTHERWISE));
            }
        } else if is_device(device) {
            // It is not there.
        } else if let Some(then) = then {
            machine.note(shown(written, value), then);
        } else {
            others.push(written);
        }
    }
    if !others.is_empty() {
        machine.note(
            format!("keys that have no counterpart here ({})", others.len()),
            format!("are not carried over: {}", joined(&others)),
        );
    }
}

/// Devices that are there only if the file enables them.
fn is_device(device: &str) -> bool {
    let families = [
        "ethernet#",
        "scsi#",
        "scsi#:#",
        "sata#",
        "sata#:#",
        "nvme#",
        "nvme#:#",
        "ide#",
        "ide#:#",
        "floppy#",
        "usb",
        "ehci",
        "usb_xhci",
        "sound",
        "serial#",
        "parallel#",
        "pcipassthru#",
        "sharedfolder#",
        "vmci#",
        "vtpm",
        "vwdt",
    ];
    families.iter().any(|family| matches(family, device))
}

#[cfg(test)]
mod tests {
    use super::super::vmx;
    use super::*;

    fn notes(lines: &str) -> Vec<String> {
        let text = format!("config.version = \"8\"\ndisplayName = \"t\"\n{lines}");
        vmx(text).unwrap().notes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn patterns_stand_for_numbers_and_for_any_text() {
        for (pattern, key, fits) in [
            ("ethernet#.filter*", "ethernet0.filter4.name", true),
            ("ethernet#.filter*", "ethernet.filter4.name", false),
            ("ethernet#.filter*", "ethernet12.features", false),
            ("*.pcislotnumber", "usb_xhci.pcislotnumber", true),
            ("sched.*.shares", "sched.scsi0:0.shares", true),
            ("sched.*.shares", "sched.cpu.sharesx", false),
            ("nvram", "nvram", true),
            ("vm.genid*", "vm.genidx", true),
        ] {
            assert_eq!(matches(pattern, key), fits, "{pattern} {key}");
        }
        // Hints and harmless keys are in lower case, as keys are.
        let patterns =
            HARMLESS.iter().map(|(pattern, _)| pattern).chain(HINTS.iter().map(|(pattern, _)| pattern));
        for pattern in patterns {
            assert!(!pattern.contains(|letter: char| letter.is_ascii_uppercase()), "{pattern}");
        }
    }

    #[test]
    fn everything_of_a_device_is_noted_unless_it_is_harmless() {
        let card = "ethernet0.present = \"TRUE\"\nethernet0.virtualDev = \"vmxnet3\"\nethernet0.networkName = \"n\"\n\
                    ethernet0.address = \"00:50:56:00:00:01\"\n";
        assert_eq!(notes(card), [""; 0]);
        for (line, part) in [
            ("ethernet0.filter4.name = \"dvfilter-x\"", "nothing filters"),
            ("ethernet0.checkMACAddress = \"FALSE\"", "forged_transmits"),
            ("ethernet0.shares = \"high\"", "shares"),
            ("ethernet0.new.key = \"1\"", "is not carried over"),
            ("vmci.filter.enable = \"TRUE\"", "restricted"),
            ("sched.cpu.shares = \"high\"", "control group"),
            ("checkpoint.vmState = \"t.vmss\"", "suspended"),
            ("serial2.present = \"TRUE\"\nserial2.fileType = \"pipe\"", "serial2.present"),
            ("pciPassthru1.present = \"TRUE\"", "vfio-pci"),
            ("sharedFolder0.present = \"TRUE\"", "virtiofsd"),
            ("ethernet64.present = \"TRUE\"", "64 cards"),
            ("newThing0.present = \"TRUE\"", "newThing0.present"),
            ("a.new.key = \"1\"", "a.new.key"),
            ("ethernet1.present = \"perhaps\"", "neither TRUE nor FALSE"),
            ("memSize = \"lots\"", "no number"),
        ] {
            let notes = notes(&format!("{card}{line}\n"));
            assert!(notes.len() == 1 && notes[0].contains(part), "{line}: {notes:?}");
        }
        for line in [
            "sched.cpu.shares = \"normal\"",
            "floppy0.present = \"FALSE\"\nfloppy0.fileName = \"a\"",
            "serial0.fileType = \"pipe\"",
            "ethernet0.checkMACAddress = \"true\"",
            "ethernet0.dvs.portId = \"7\"",
            "pciBridge0.present = \"TRUE\"\npciBridge0.functions = \"8\"",
            "checkpoint.vmState = \"\"",
        ] {
            assert_eq!(notes(&format!("{card}{line}\n")), [""; 0], "{line}");
        }
    }
}
