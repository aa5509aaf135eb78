//! A VM as some other system described it.

use std::fmt;

use vmlane_wire::ethernet::Mac;

/// A VM as it was, in words of no one system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// As it was called.
    pub name: String,
    pub memory_mib: Option<u64>,
    pub cpus: Option<u32>,
    /// It boots by UEFI, not by a BIOS.
    pub uefi: bool,
    pub nics: Vec<Nic>,
    pub disks: Vec<Disk>,
    /// It had a VMCI device, or a vsock.
    pub vsock: Option<Vsock>,
    /// What is not carried over, or otherwise than it was.
    pub notes: Vec<Note>,
}

/// The device for sockets between VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vsock {
    /// VMware's; else virtio's.
    pub vmci: bool,
    pub cid: Option<u32>,
}

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Where the description has it: `ethernet0`.
    pub place: String,
    pub model: NicModel,
    /// The port group, network or bridge that it was in.
    pub network: Option<String>,
    /// Told by the description itself, and not by the port group.
    pub vlan: Option<u16>,
    pub mac: Option<Mac>,
    /// Of the PCI slot that guests name it after: 192 is `ens192`.
    pub slot: Option<u16>,
    pub mtu: Option<u16>,
    pub queues: Option<u16>,
}

/// What vmlane makes of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicModel {
    Vmxnet3,
    VirtioNet,
}

impl NicModel {
    pub fn name(self) -> &'static str {
        match self {
            NicModel::Vmxnet3 => "vmxnet3",
            NicModel::VirtioNet => "virtio-net",
        }
    }
}

/// What a disk hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    Pvscsi,
    LsiSas,
    /// LSI Logic's parallel controller, or BusLogic's.
    ParallelScsi,
    VirtioScsi,
    VirtioBlk,
    Sata,
    Ide,
    Nvme,
}

/// A disk, or a drive for disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    pub bus: Bus,
    /// None: an empty drive.
    pub file: Option<String>,
    /// As QEMU names it: `vmdk`, `qcow2`, `raw`; None: to be found out.
    pub format: Option<String>,
    pub cdrom: bool,
}

/// Something that changes on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The key or element, with its value.
    pub what: String,
    /// What becomes of it, and what can be done.
    pub then: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.then)
    }
}

impl Machine {
    pub(crate) fn note(&mut self, what: impl Into<String>, then: impl Into<String>) {
        self.notes.push(Note { what: what.into(), then: then.into() });
    }

    /// Tells what becomes of controllers that QEMU has no counterpart of.
    pub(crate) fn note_controllers(&mut self) {
        if self.disks.iter().any(|disk| disk.bus == Bus::ParallelScsi) {
            self.note(
                "a parallel SCSI controller (LSI Logic or BusLogic)",
                "becomes virtio-scsi: QEMU has none that guests' drivers for VMware's know; see that the guest's initramfs has virtio_scsi",
            );
        }
        if self.disks.iter().any(|disk| disk.bus == Bus::Ide) {
            self.note("IDE", "becomes SATA: the machine q35 has no IDE");
        }
    }

    /// What becomes of a card of a model, by its name in VMware's files or in libvirt's. None: it is left out.
    pub(crate) fn nic_model(&mut self, place: &str, model: &str) -> Option<NicModel> {
        let what = format!("{place}: model {model:?}");
        match model.to_ascii_lowercase().as_str() {
            "vmxnet3" => Some(NicModel::Vmxnet3),
            "virtio"
            | "virtio-net"
            | "virtio-net-pci"
            | "virtio-transitional"
            | "virtio-non-transitional" => Some(NicModel::VirtioNet),
            "vmxnet" | "vmxnet2" => {
                self.note(what, "becomes vmxnet3; the guest needs its driver, which Linux has since 2.6.32, Windows with VMware's tools");
                Some(NicModel::Vmxnet3)
            }
            "e1000" | "e1000e" | "vlance" | "flexible" | "pcnet" | "pcnet32" | "rtl8139" | "ne2k_pci"
            | "i82559c" => {
                self.note(
                    what,
                    "becomes vmxnet3, which vmlane serves; the guest needs its driver and may give the card another name",
                );
                Some(NicModel::Vmxnet3)
            }
            _ => {
                self.note(
                    what,
                    "is left out: vmlane has no such card, and nothing tells what its guest has a driver for",
                );
                None
            }
        }
    }
}

/// A MAC address that a card may have; else a note says why it gets another one.
pub(crate) fn mac(machine: &mut Machine, place: &str, text: &str) -> Option<Mac> {
    let hex = text.replace('-', ":");
    match hex.parse::<Mac>() {
        Ok(mac) if mac.is_unicast() && mac != Mac::default() => Some(mac),
        _ => {
            machine.note(
                format!("{place}: MAC address {text:?}"),
                "is none that a card can have; vmlane chooses one",
            );
            None
        }
    }
}
