//! A VM as some other system described it.

use std::fmt;

use vmlane_wire::ethernet::Mac;

use crate::image::{Image, is_outside};
use crate::network::{Network, Tagging};
use crate::text::has_escapes;

/// Cards that vmlane serves of a VM.
pub(crate) const MOST_NICS: usize = 64;

/// A VM as it was, in words of no one system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// As it was called.
    pub name: String,
    /// By which its guest, and licences in it, know the machine.
    pub uuid: Option<Uuid>,
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
    pub model: VsockModel,
    pub cid: Option<u32>,
    pub reach: Reach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VsockModel {
    Vmci,
    Virtio,
}

impl VsockModel {
    pub fn name(self) -> &'static str {
        match self {
            VsockModel::Vmci => "vmci",
            VsockModel::Virtio => "virtio",
        }
    }
}

/// What a VM reached by its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The host only: ESXi since 5.1 unless `vmci0.unrestricted` is TRUE, and Linux's vhost-vsock.
    Host,
    /// Other VMs, too.
    Vms,
}

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Where the description has it: `ethernet0`.
    pub place: String,
    pub model: NicModel,
    pub network: Network,
    /// As far as the description itself has it, and not the port group.
    pub tagging: Tagging,
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
    pub image: Option<Image>,
    pub cdrom: bool,
    /// The guest may not write to it. CD-ROMs have no need of it.
    pub readonly: bool,
}

/// A UUID, as RFC 9562 writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// 32 hexadecimal digits, with spaces and hyphens between them: VMware writes both.
    pub(crate) fn parse(text: &str) -> Option<Uuid> {
        let digits: Option<Vec<u8>> = text
            .chars()
            .filter(|letter| !" -{}".contains(*letter))
            .map(|letter| letter.to_digit(16).map(|digit| digit as u8))
            .collect();
        let bytes: Vec<u8> =
            digits?.chunks(2).map(|two| two.iter().fold(0, |byte, digit| (byte << 4) | digit)).collect();
        let odd = text.chars().filter(char::is_ascii_hexdigit).count() != 32;
        bytes.try_into().ok().filter(|_| !odd).map(Uuid)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, byte) in self.0.iter().enumerate() {
            let hyphen = if [4, 6, 8, 10].contains(&number) { "-" } else { "" };
            write!(f, "{hyphen}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Something that changes on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The key or element, with its value.
    pub what: String,
    /// What becomes of it, and what can be done.
    pub then: String,
}

/// Names that one note has, at most.
const MOST_NAMED: usize = 40;

/// Names one after another, as a note has them.
pub fn joined(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(MOST_NAMED).map(AsRef::as_ref).collect();
    let more = names.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &more
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

    /// A number of the description; if it is none that is wanted, there is a note.
    pub(crate) fn number<T: std::str::FromStr>(&mut self, what: &str, text: Option<&str>) -> Option<T> {
        let text = text?;
        let number = text.trim().parse().ok();
        if number.is_none() {
            self.note(format!("{what}: {text:?}"), "is no number that it can have; it is left out");
        }
        number
    }

    /// A UUID of the description; if it is none, there is a note.
    pub(crate) fn uuid_of(&mut self, what: &str, text: Option<&str>) -> Option<Uuid> {
        let text = text?;
        let uuid = Uuid::parse(text);
        if uuid.is_none() {
            self.note(format!("{what}: {text:?}"), "is no UUID; QEMU gets none");
        }
        uuid
    }

    /// What is to be noted of every VM, whichever reader it came from.
    pub(crate) fn common_notes(&self) -> Vec<Note> {
        let mut notes = Vec::new();
        let mut note = |what: String, then: &str| notes.push(Note { what, then: then.into() });
        if self.disks.iter().any(|disk| disk.bus == Bus::ParallelScsi) {
            note(
                "a parallel SCSI controller (LSI Logic or BusLogic)".into(),
                "becomes virtio-scsi: QEMU has none that guests' drivers for VMware's know; see that the guest's initramfs has virtio_scsi",
            );
        }
        if self.disks.iter().any(|disk| disk.bus == Bus::Ide) {
            note("IDE".into(), "becomes SATA: the machine q35 has no IDE");
        }
        let images = || self.disks.iter().filter_map(|disk| disk.image.as_ref());
        for file in images().map(|image| image.file.as_str()) {
            let what = format!("disk {file:?}");
            if file.contains("://") {
                note(
                    what,
                    "is not in a file of this host: download it first, and change its name in QEMU's words",
                );
            } else if is_datastore(file) {
                note(what, "names a datastore of VMware's: write the file's path here into QEMU's words");
            } else if is_outside(file) {
                note(
                    what,
                    "is outside of the description's folder: QEMU opens whatever has this name on the host; see that it is the VM's disk, and change the name if not",
                );
            }
        }
        let networks = self.nics.iter().flat_map(|nic| nic.network.texts());
        let files = images().map(|image| image.file.as_str());
        let mut odd: Vec<&str> = [self.name.as_str()].into_iter().chain(networks).chain(files).collect();
        odd.retain(|text| has_escapes(text));
        odd.sort_unstable();
        odd.dedup();
        for text in odd {
            note(
                format!("{text:?}"),
                "has bytes that are not of the encoding that the file names, written here by their numbers; give the name that was meant",
            );
        }
        notes
    }

    /// What becomes of a card of a model, by its name in VMware's files or in libvirt's. None: it
    /// is left out.
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
                    "is left out: vmlane has no such card, and what its guest has a driver for is not known",
                );
                None
            }
        }
    }
}

/// `[datastore1] web/web.vmdk`
fn is_datastore(file: &str) -> bool {
    file.starts_with('[') && file.contains("] ")
}

/// A MAC address that a card may have; else a note explains why it gets another one.
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

#[cfg(test)]
mod tests {
    use super::Uuid;

    #[test]
    fn uuids_are_those_of_both_systems() {
        for text in
            ["56 4d 00 00 00 00 00 00-00 00 00 00 00 00 00 01", "564d0000-0000-0000-0000-000000000001"]
        {
            assert_eq!(
                Uuid::parse(text).map(|uuid| uuid.to_string()).as_deref(),
                Some("564d0000-0000-0000-0000-000000000001")
            );
        }
        for text in
            ["", "56", "564d0000-0000-0000-0000-0000000000011", "564d0000-0000-0000-0000-00000000000g"]
        {
            assert_eq!(Uuid::parse(text), None, "{text}");
        }
    }
}
