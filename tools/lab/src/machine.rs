//! What a lab's guests run in, and which devices that one cannot have.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::device::{Backend, Device, NicModel, VirtioNet};
use crate::setup::QEMU_RELEASES;

/// `--machine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Machine {
    /// A PC with PCI Express.
    #[default]
    Q35,
    /// virtio-mmio devices, described by ACPI, and no PCI.
    Microvm,
    /// User Mode Linux: no QEMU, one processor, vmlane's own devices over vhost-user and its own network
    /// card.
    Uml,
}

impl Machine {
    pub const ALL: [Machine; 3] = [Machine::Q35, Machine::Microvm, Machine::Uml];

    pub fn name(self) -> &'static str {
        match self {
            Machine::Q35 => "q35",
            Machine::Microvm => "microvm",
            Machine::Uml => "uml",
        }
    }

    /// QEMU's name of a virtio device, such as `virtio-blk`.
    pub fn virtio(self, kind: &str) -> String {
        match self {
            Machine::Q35 => format!("{kind}-pci"),
            Machine::Microvm | Machine::Uml => format!("{kind}-device"),
        }
    }

    /// Whether it is a QEMU.
    pub fn is_qemu(self) -> bool {
        self != Machine::Uml
    }

    /// What stands for `device` in a guest of this machine beside guests of others: where Debian's User Mode
    /// Linux has no PCI bus, the virtio device that joins the same switch and the same CIDs.
    pub fn counterpart(self, device: &Device) -> Device {
        match (self, device) {
            (Machine::Uml, Device::Vmci) => Device::VirtioVsock,
            (Machine::Uml, Device::Vmxnet3(nic)) => {
                Device::VirtioNet(VirtioNet { mtu: nic.mtu, vlan: nic.vlan, ..VirtioNet::default() })
            }
            _ => device.clone(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Machine {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|machine| machine.name() == text);
        found.ok_or_else(|| anyhow::anyhow!("machine {text:?}: choose from q35, microvm, uml"))
    }
}

/// Refuses what `machine` and the QEMU release `qemu` do not have.
///
/// # Errors
/// Name the device and what to do.
pub fn check(machine: Machine, qemu: Option<&str>, devices: &[Device]) -> Result<()> {
    if let Some(release) = qemu {
        ensure!(
            QEMU_RELEASES.iter().any(|(known, _)| *known == release),
            "QEMU {release:?}: choose from {}, or leave --qemu away for one of 10.1 or later",
            QEMU_RELEASES.map(|(known, _)| known).join(", ")
        );
    }
    for device in devices {
        if machine == Machine::Microvm && needs_pci(device) {
            bail!(
                "device {device} is a PCI device, and a microvm has no PCI: leave --machine microvm away, or choose \
                 from virtio-net, virtio-vsock, qemu-virtio-net"
            );
        }
        if machine == Machine::Uml && !device.is_ours() && *device != Device::UmlVector {
            bail!(
                "device {device} needs a QEMU; User Mode Linux has vmlane's own devices and its own network card: leave \
                 --machine uml away, or choose from virtio-net, virtio-vsock, vmxnet3, vmci, uml-vector"
            );
        }
        if machine.is_qemu() && *device == Device::UmlVector {
            bail!(
                "device {device} is User Mode Linux's own network card, and {machine} is a machine of QEMU: add --machine \
                 uml, or choose qemu-virtio-net:tap, which is on a host bridge, too"
            );
        }
        let Some(release) = qemu.filter(|_| machine.is_qemu()) else { continue };
        match device {
            Device::Vmci | Device::Vmxnet3(_) => bail!(
                "device {device} is served over vfio-user, which needs QEMU >= 10.1: leave --qemu {release} away, or \
                 choose from virtio-net, virtio-vsock"
            ),
            Device::QemuNic { backend: Backend::Stream, .. } => bail!(
                "device {device} is joined by a socket that QEMU tries again and again, which needs QEMU >= 9.2: \
                 leave --qemu {release} away, or join by a bridge, {device}:tap"
            ),
            Device::QemuNic { backend: Backend::Tap, .. }
            | Device::VirtioNet(_)
            | Device::VirtioVsock
            | Device::VhostDeviceVsock
            | Device::UmlVector => {}
        }
    }
    Ok(())
}

fn needs_pci(device: &Device) -> bool {
    match device {
        Device::Vmci | Device::Vmxnet3(_) => true,
        Device::QemuNic { model, .. } => *model != NicModel::VirtioNet,
        Device::VirtioNet(_) | Device::VirtioVsock | Device::VhostDeviceVsock | Device::UmlVector => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(machine: Machine, qemu: Option<&str>, device: &str) -> Option<String> {
        let devices = [device.parse::<Device>().unwrap()];
        check(machine, qemu, &devices).err().map(|error| error.to_string())
    }

    #[test]
    fn a_microvm_has_virtio_only() {
        for device in ["vmci", "vmxnet3", "qemu-vmxnet3", "qemu-e1000", "qemu-e1000e:tap"] {
            let why = why(Machine::Microvm, None, device).unwrap();
            assert!(why.contains("no PCI") && why.contains("virtio-vsock"), "{why}");
        }
        for device in ["virtio-net:queues=2", "virtio-vsock", "qemu-virtio-net"] {
            assert_eq!(why(Machine::Microvm, None, device), None);
        }
    }

    #[test]
    fn an_old_qemu_has_no_vfio_user() {
        for device in ["vmci", "vmxnet3:queues=2"] {
            let why = why(Machine::Q35, Some("7.2"), device).unwrap();
            assert!(why.contains("needs QEMU >= 10.1") && why.contains("--qemu 7.2"), "{why}");
        }
        let socket = why(Machine::Q35, Some("7.2"), "qemu-e1000").unwrap();
        assert!(socket.contains("qemu-e1000:tap"), "{socket}");
        for device in ["virtio-net", "virtio-vsock", "qemu-e1000:tap"] {
            assert_eq!(why(Machine::Q35, Some("7.2"), device), None);
        }
        assert!(why(Machine::Q35, Some("6.0"), "virtio-net").unwrap().contains("7.2"));
    }

    #[test]
    fn names_come_back() {
        for machine in Machine::ALL {
            assert_eq!(machine.name().parse::<Machine>().unwrap(), machine);
        }
        assert!("pc".parse::<Machine>().unwrap_err().to_string().contains("q35, microvm, uml"));
    }

    #[test]
    fn user_mode_linux_has_vhost_user_and_its_own_card() {
        for device in ["vhost-device-vsock", "qemu-virtio-net", "qemu-e1000:tap"] {
            let why = why(Machine::Uml, None, device).unwrap();
            assert!(why.contains("virtio-net, virtio-vsock") && why.contains(device), "{why}");
        }
        for device in ["virtio-net:mtu=9000", "virtio-vsock", "vmci", "vmxnet3:profile=full", "uml-vector"] {
            assert_eq!(why(Machine::Uml, None, device), None);
        }
        for machine in [Machine::Q35, Machine::Microvm] {
            let why = why(machine, None, "uml-vector").unwrap();
            assert!(why.contains("--machine uml") && why.contains(machine.name()), "{why}");
            assert!(why.contains("qemu-virtio-net:tap"), "{why}");
        }
        let beside = |device: &str| Machine::Uml.counterpart(&device.parse().unwrap()).to_string();
        assert_eq!(beside("vmxnet3:profile=full,queues=4,mtu=9000,vlan=7"), "virtio-net:mtu=9000,vlan=7");
        assert_eq!(beside("vmci"), "virtio-vsock");
    }
}
