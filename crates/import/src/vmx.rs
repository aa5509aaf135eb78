//! VMware's `.vmx`: lines of `key = "value"`.

use std::collections::BTreeMap;

use crate::machine::{Bus, Disk, Machine, Nic, Vsock, mac};
use crate::{Error, MOST_BYTES};

/// Lines of a file, at most.
const MOST_LINES: usize = 20_000;
/// Numbers of controllers and of devices on one: VMware has fewer.
const CONTROLLERS: u32 = 4;
const UNITS: u32 = 64;
const CARDS: u32 = 10;

/// What a file says: keys in lower case, as VMware compares them.
#[derive(Debug, Default)]
struct Keys(BTreeMap<String, String>);

impl Keys {
    fn parse(text: &str) -> Result<Keys, Error> {
        let mut keys: BTreeMap<String, (usize, String)> = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            if number > MOST_LINES {
                return Err(Error::line(number, format!("a file has {MOST_LINES} lines at most")));
            }
            let line = line.trim_start_matches('\u{feff}').trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                return Err(Error::line(number, format!("{line:?} is not of the form key = \"value\"")));
            };
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
            if key.is_empty() || key.contains(char::is_whitespace) {
                return Err(Error::line(number, format!("{key:?} is no key")));
            }
            let value = unquoted(value).ok_or_else(|| {
                Error::line(number, format!("{key}: {value} has a quotation mark without its other one"))
            })?;
            if let Some((first, _)) = keys.insert(key.clone(), (number, value)) {
                return Err(Error::line(number, format!("{key} is there twice: line {first} has it, too")));
            }
        }
        Ok(Keys(keys.into_iter().map(|(key, (_, value))| (key, value)).collect()))
    }

    /// A value that is not empty.
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(&key.to_ascii_lowercase()).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn number<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.get(key)?.parse().ok()
    }

    fn is_true(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1")
    }

    fn is_false(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| value.eq_ignore_ascii_case("false") || value == "0")
    }
}

/// A value without its quotation marks; `|22` in it is a character by its number.
fn unquoted(value: &str) -> Option<String> {
    let inner = match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"')?,
        None => value,
    };
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.as_bytes();
    while let [first, behind @ ..] = rest {
        let digits = behind.first_chunk::<2>().filter(|_| *first == b'|');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The VM of a `.vmx` file.
///
/// # Errors
/// The file is not one; the line is named.
pub fn vmx(text: &str) -> Result<Machine, Error> {
    if text.len() > MOST_BYTES {
        return Err(Error::TooLong(text.len()));
    }
    let keys = Keys::parse(text)?;
    if keys.get("config.version").is_none() && keys.get("displayName").is_none() {
        return Err(Error::NoMachine("neither config.version nor displayName is set"));
    }
    let mut machine = Machine {
        name: keys.get("displayName").unwrap_or("vm").to_owned(),
        memory_mib: keys.number("memSize"),
        // Both are VMware's own defaults.
        cpus: Some(keys.number("numvcpus").unwrap_or(1)),
        uefi: keys.get("firmware").is_some_and(|firmware| firmware.eq_ignore_ascii_case("efi")),
        ..Machine::default()
    };
    if keys.is_true("uefi.secureBoot.enabled") {
        machine.note(
            "uefi.secureBoot.enabled",
            "is not carried over; give QEMU a firmware and variables with Secure Boot",
        );
    }
    if keys.get("managedVM.autoAddVTPM").is_some() || keys.is_true("vtpm.present") {
        machine.note("vtpm.present", "is not carried over: its secrets do not leave VMware");
    }
    cards(&keys, &mut machine);
    disks(&keys, &mut machine);
    vmci(&keys, &mut machine);
    left_out(&keys, &mut machine);
    machine.note_controllers();
    Ok(machine)
}

/// The number that guests name a card after, of VMware's number of its slot: function, bridge and device in one.
pub(crate) fn slot(number: i64) -> Option<u16> {
    // Of the first function it is the number itself; the others come right behind it.
    let (place, function) = (number & 0x3ff, number >> 10);
    let named = u16::try_from(place + function).ok()?;
    (number > 0 && function < 8).then_some(named)
}

fn cards(keys: &Keys, machine: &mut Machine) {
    for number in 0..CARDS {
        let place = format!("ethernet{number}");
        let key = |name: &str| format!("{place}.{name}");
        if !keys.is_true(&key("present")) {
            continue;
        }
        // VMware's own default for guests that it does not know.
        let model = keys.get(&key("virtualDev")).unwrap_or("vlance");
        let Some(model) = machine.nic_model(&place, model) else { continue };
        let address = keys.get(&key("address")).or(keys.get(&key("generatedAddress")));
        let mac = address.and_then(|text| mac(machine, &place, text));
        if address.is_none() {
            machine
                .note(format!("{place}: no MAC address"), "VMware had not given one yet; vmlane chooses one");
        }
        if keys.is_false(&key("startConnected")) {
            machine.note(
                key("startConnected"),
                format!("is FALSE; set its link down with `vmlane link VM/nic{} down`", machine.nics.len()),
            );
        }
        let network = keys.get(&key("networkName")).or(keys.get(&key("vnet"))).map(str::to_owned);
        let network = network.or_else(|| match keys.get(&key("connectionType")).unwrap_or("bridged") {
            kind if kind.eq_ignore_ascii_case("custom") => None,
            kind => Some(kind.to_owned()),
        });
        let slot = keys.number(&key("pciSlotNumber")).and_then(slot);
        machine.nics.push(Nic { place, model, network, vlan: None, mac, slot, mtu: None, queues: None });
    }
}

fn disks(keys: &Keys, machine: &mut Machine) {
    let kinds = [("scsi", Bus::ParallelScsi), ("nvme", Bus::Nvme), ("sata", Bus::Sata), ("ide", Bus::Ide)];
    for (kind, bus) in kinds {
        for controller in 0..CONTROLLERS {
            let of = format!("{kind}{controller}");
            let bus = if kind == "scsi" { scsi(keys, &of) } else { bus };
            for unit in 0..UNITS {
                let place = format!("{of}:{unit}");
                let key = |name: &str| format!("{place}.{name}");
                if !keys.is_true(&key("present")) {
                    continue;
                }
                let device = keys.get(&key("deviceType")).unwrap_or("disk").to_ascii_lowercase();
                let cdrom = device.contains("cdrom");
                let named = keys.get(&key("fileName")).map(str::to_owned);
                // A drive of the host is none of the VM's.
                let file = named.filter(|_| !cdrom || device == "cdrom-image");
                if file.is_none() && !cdrom {
                    machine.note(key("fileName"), "is missing; the disk is left out");
                    continue;
                }
                if keys.get(&key("mode")).is_some_and(|mode| mode.contains("nonpersistent")) {
                    machine.note(
                        key("mode"),
                        "is not carried over; QEMU's counterpart is snapshot=on of -drive",
                    );
                }
                let format = (!cdrom).then(|| "vmdk".to_owned());
                machine.disks.push(Disk { bus, file, format, cdrom });
            }
        }
    }
}

fn scsi(keys: &Keys, controller: &str) -> Bus {
    match keys.get(&format!("{controller}.virtualDev")).map(str::to_ascii_lowercase).as_deref() {
        Some("pvscsi") => Bus::Pvscsi,
        Some("lsisas1068") => Bus::LsiSas,
        _ => Bus::ParallelScsi,
    }
}

fn vmci(keys: &Keys, machine: &mut Machine) {
    if !keys.is_true("vmci0.present") {
        return;
    }
    // The number is written with a sign.
    let id = keys.get("vmci0.id").and_then(|id| {
        let number: i64 = id.parse().ok()?;
        u32::try_from(number).ok().or_else(|| i32::try_from(number).ok().map(|signed| signed as u32))
    });
    machine.vsock = Some(Vsock { vmci: true, cid: id });
    if keys.is_true("vmci0.unrestricted") {
        machine.note(
            "vmci0.unrestricted",
            "VMs talk to each other if they are in one group of vmlane's configuration",
        );
    }
}

/// What is there and does not come along.
fn left_out(keys: &Keys, machine: &mut Machine) {
    let devices = [
        ("floppy0", "give QEMU a floppy if the guest needs one"),
        ("usb", "add -device qemu-xhci if the guest needs USB"),
        ("ehci", "add -device qemu-xhci if the guest needs USB"),
        ("usb_xhci", "add -device qemu-xhci if the guest needs USB"),
        ("sound", "add a sound card to QEMU's words if the guest needs one"),
        ("serial0", "add -serial to QEMU's words if the guest needs it"),
        ("serial1", "add -serial to QEMU's words if the guest needs it"),
        ("parallel0", "QEMU has no counterpart worth having"),
        ("pciPassthru0", "devices of the old host are given to QEMU by -device vfio-pci"),
    ];
    for (device, then) in devices {
        if keys.is_true(&format!("{device}.present")) {
            machine.note(format!("{device}.present"), format!("is not carried over; {then}"));
        }
    }
    let snapshots =
        machine.disks.iter().filter_map(|disk| disk.file.as_deref()).filter(|file| is_snapshot(file));
    let snapshots: Vec<String> = snapshots.map(str::to_owned).collect();
    for file in snapshots {
        machine.note(
            format!("disk {file:?}"),
            "looks like a snapshot's difference; consolidate the VM's snapshots in VMware before its disks are copied",
        );
    }
    if keys.get("encryption.keySafe").is_some() {
        machine.note("encryption.keySafe", "the VM is encrypted; decrypt it in VMware first");
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
    fn values_are_taken_out_of_their_quotation_marks() {
        for (text, value) in [
            ("\"a b\"", "a b"),
            ("TRUE", "TRUE"),
            ("\"a|22b|7Cc\"", "a\"b|c"),
            ("\"|\"", "|"),
            ("\"|2\"", "|2"),
        ] {
            assert_eq!(unquoted(text).as_deref(), Some(value), "{text}");
        }
        assert_eq!(unquoted("\"open"), None);
        assert_eq!(unquoted("\""), None);
    }

    #[test]
    fn faults_name_their_line() {
        let error = |text: &str| vmx(text).unwrap_err().to_string();
        assert_eq!(error("a = \"1\"\nnonsense"), "line 2: \"nonsense\" is not of the form key = \"value\"");
        assert_eq!(
            error("displayName = \"x\"\ndisplayname = \"y\""),
            "line 2: displayname is there twice: line 1 has it, too"
        );
        assert!(error("a = \"1\"").contains("describes no VM"));
        assert!(error("displayName = \"x").contains("line 1: displayname: \"x has a quotation mark"));
    }
}
