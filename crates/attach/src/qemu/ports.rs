//! Root ports of NICs: what guests name their cards after, and room for more of them than a bus has slots.
//!
//! The first NICs of a VM are on the bus of the machine, or, if they are given a slot, behind a port that
//! is a device of its own; QEMU chooses its place. Each NIC after those has a port that is a function of a
//! device, so that eight NICs take one slot of the bus. The place of such a device must be given, and is
//! one that neither QEMU's machines nor libvirt or Proxmox use.

use std::ops::RangeFrom;

use vmlane_config::{FIRST_NICS, VmConfig};

/// What a PCI device may have.
const FUNCTIONS: usize = 8;
/// Of the devices with such functions, on the bus `pcie.0`. QEMU and libvirt place others from 1 on;
/// Proxmox has its ports in 10, 11 and 1c, and controllers of the machine are in 1a to 1f.
const FIRST_DEVICE: usize = 0x12;

/// QEMU's chassis of the slots up to 255; each 256 more have one of their own, because QEMU compares the
/// lowest eight bits of slots in a chassis. Callers' own ports have other ones.
const CHASSIS: u16 = 202;

/// Where a NIC is plugged in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    slot: u16,
    /// Which of the functions it is; None: QEMU places it.
    function: Option<usize>,
}

/// The ports of the NICs that are put into one list of arguments. Their functions have no gaps: a guest
/// that does not find the first one of a device does not search for others.
#[derive(Debug)]
pub(super) struct Ports<'a> {
    vm: &'a VmConfig,
    functions: RangeFrom<usize>,
}

impl<'a> Ports<'a> {
    pub fn of(vm: &'a VmConfig) -> Ports<'a> {
        Ports { vm, functions: 0.. }
    }

    /// The port of a NIC that is put into the list now, if it has one.
    pub fn next(&mut self, number: usize) -> Option<Port> {
        let slot = self.vm.port_slot(number)?;
        let function = if number < FIRST_NICS { None } else { self.functions.next() };
        Some(Port { slot, function })
    }
}

impl Port {
    pub fn id(self) -> String {
        format!("vmlane-slot{}", self.slot)
    }

    /// Guests read the number in the port's capabilities (PCI Express, physical slot number), and Linux
    /// names a card after it: 192 is `ens192`.
    pub fn device(self) -> String {
        let Port { slot, function } = self;
        let port = format!("pcie-root-port,id={},chassis={},slot={slot}", self.id(), CHASSIS + (slot >> 8));
        let Some(function) = function else { return port };
        let (device, function) = (FIRST_DEVICE + function / FUNCTIONS, function % FUNCTIONS);
        // No NIC of ours has I/O BARs behind a port, and a PC has windows for sixteen ports at most.
        format!("{port},bus=pcie.0,addr={device:#x}.{function},multifunction=on,io-reserve=0")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use vmlane_config::{Config, MOST_NICS};

    use super::*;

    fn vm(nics: &[String]) -> VmConfig {
        let text = format!("[[vm]]\nname = \"web\"\nvsock = \"none\"\nnic = [{}]\n", nics.join(", "));
        Config::parse(Path::new("t.toml"), &text).unwrap().vms.remove(0)
    }

    fn ports(slots: &[Option<u16>], which: impl Fn(usize) -> bool) -> Vec<(usize, Port)> {
        let nic = |slot: &Option<u16>| match slot {
            Some(slot) => format!("{{ model = \"vmxnet3\", slot = {slot} }}"),
            None => "{ model = \"vmxnet3\" }".into(),
        };
        let vm = vm(&slots.iter().map(nic).collect::<Vec<_>>());
        let mut ports = Ports::of(&vm);
        let chosen = (0..slots.len()).filter(|number| which(*number));
        chosen.filter_map(|number| Some((number, ports.next(number)?))).collect()
    }

    /// The value of a key of a port's device.
    fn value(port: &Port, key: &str) -> Option<String> {
        let device = port.device();
        let value = device.split(',').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        value.map(str::to_owned)
    }

    /// QEMU compares a slot's lowest eight bits with the whole numbers of those that a chassis has already.
    fn assert_that_qemu_takes(ports: &[(usize, Port)]) {
        let mut there: Vec<(String, u16)> = Vec::new();
        let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
        for (number, port) in ports {
            let (chassis, slot) = (value(port, "chassis").unwrap(), port.slot);
            assert!((202..=233).contains(&chassis.parse::<u16>().unwrap()), "{chassis}");
            let clashes = |(other, taken): &(String, u16)| *other == chassis && taken & 255 == slot & 255;
            assert!(!there.iter().any(clashes), "NIC {number}: {chassis} {slot}");
            there.push((chassis, slot));
            assert!(ids.insert(port.id()), "NIC {number}: {}", port.id());
            let place = value(port, "addr");
            assert_eq!(place.is_some(), *number >= FIRST_NICS, "NIC {number}");
            assert_eq!(value(port, "multifunction").is_some(), place.is_some(), "NIC {number}");
            assert!(place.is_none_or(|place| places.insert(place)), "NIC {number}");
        }
        let expected: BTreeSet<_> =
            (0..places.len()).map(|at| format!("{:#x}.{}", 0x12 + at / 8, at % 8)).collect();
        assert_eq!(places, expected);
    }

    #[test]
    fn sixty_four_nics_are_in_places_of_their_own() {
        let none = [None; MOST_NICS];
        let unnumbered = ports(&none, |_| true);
        assert_eq!(unnumbered.len(), MOST_NICS - FIRST_NICS);
        assert_that_qemu_takes(&unnumbered);
        assert_eq!(value(&unnumbered[53].1, "addr").as_deref(), Some("0x18.5"));
        assert!(unnumbered.iter().all(|(number, port)| usize::from(port.slot) == *number));

        // As on ESXi, without its import's translation.
        let numbers =
            (0..MOST_NICS as u16).map(|at| Some(160 + 32 * (at % 4) + 1024 * (at / 4 % 8) + at / 32));
        let numbered = ports(&numbers.collect::<Vec<_>>(), |_| true);
        assert_eq!(numbered.len(), MOST_NICS);
        assert_that_qemu_takes(&numbered);
    }

    #[test]
    fn ports_of_some_nics_have_no_gaps() {
        let odd = ports(&[None; MOST_NICS], |number| number % 2 == 1);
        assert_eq!(odd.len(), 27);
        assert_that_qemu_takes(&odd);
    }

    #[test]
    fn a_slot_that_is_given_is_left_to_its_nic() {
        let mut slots = [None; 20];
        (slots[0], slots[1], slots[15]) = (Some(12), Some(76), Some(13));
        let ports = ports(&slots, |_| true);
        assert_that_qemu_takes(&ports);
        let slot = |number| ports.iter().find(|(other, _)| *other == number).unwrap().1.slot;
        assert_eq!([0, 1, 11, 12, 13, 14, 15].map(slot), [12, 76, 11, 140, 77, 14, 13]);
    }
}
