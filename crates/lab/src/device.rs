//! The devices that a lab gives its guests, by the names of the command line.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// One `--device`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Device {
    /// vmlane's own VMCI device.
    Vmci,
    /// One of QEMU's network cards, to compare with.
    QemuNic { model: NicModel, backend: Backend },
}

/// QEMU's models of network cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NicModel {
    VirtioNet,
    Vmxnet3,
    E1000,
    E1000e,
}

/// What joins the cards of one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// QEMU to QEMU over a Unix socket; with other than two guests, through the lab's hub.
    Stream,
    /// TAP interfaces on a host bridge (root only).
    Tap,
}

const NICS: [(&str, NicModel, &str); 4] = [
    ("qemu-virtio-net", NicModel::VirtioNet, "virtio-net-pci"),
    ("qemu-vmxnet3", NicModel::Vmxnet3, "vmxnet3"),
    ("qemu-e1000", NicModel::E1000, "e1000"),
    ("qemu-e1000e", NicModel::E1000e, "e1000e"),
];

impl NicModel {
    /// The `-device` name.
    pub fn qemu_device(self) -> &'static str {
        NICS.iter().find(|(_, m, _)| *m == self).map_or("", |(.., device)| device)
    }

    fn name(self) -> &'static str {
        NICS.iter().find(|(_, m, _)| *m == self).map_or("", |(name, ..)| name)
    }
}

impl Device {
    /// What `--device` takes.
    pub fn valid() -> String {
        let nics = NICS.map(|(name, ..)| name).join(", ");
        format!("vmci, {nics} (a qemu- name may end in :tap for a host bridge)")
    }

    /// Whether the daemon serves it.
    pub fn is_ours(&self) -> bool {
        matches!(self, Device::Vmci)
    }
}

impl FromStr for Device {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, option) = text.split_once(':').map_or((text, None), |(n, o)| (n, Some(o)));
        if name == "vmci" && option.is_none() {
            return Ok(Device::Vmci);
        }
        let Some((_, model, _)) = NICS.into_iter().find(|(n, ..)| *n == name) else {
            bail!("device {text:?}: choose from {}", Device::valid());
        };
        let backend = match option {
            None => Backend::Stream,
            Some("tap") => Backend::Tap,
            Some(other) => bail!("device {text:?}: {other:?} is not an option of {name}; it takes :tap"),
        };
        Ok(Device::QemuNic { model, backend })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Vmci => write!(f, "vmci"),
            Device::QemuNic { model, backend: Backend::Stream } => write!(f, "{}", model.name()),
            Device::QemuNic { model, backend: Backend::Tap } => write!(f, "{}:tap", model.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["vmci", "qemu-virtio-net", "qemu-vmxnet3:tap", "qemu-e1000", "qemu-e1000e"] {
            assert_eq!(name.parse::<Device>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn errors_list_what_is_valid() {
        for bad in ["vmxnet4", "qemu-e1000:bridge", "vmci:x", ""] {
            let text = bad.parse::<Device>().unwrap_err().to_string();
            assert!(text.contains("tap"), "{text}");
        }
    }
}
