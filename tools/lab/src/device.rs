//! The devices that a lab gives its guests, by the names of the command line.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// A device of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Device {
    /// vmlane's own VMCI device.
    Vmci,
    /// vmlane's own network card, on its switch.
    Vmxnet3(Vmxnet3),
    /// A virtio network card on vmlane's switch.
    VirtioNet(VirtioNet),
    /// vmlane's own virtio-vsock device.
    VirtioVsock,
    /// vhost-device-vsock of the rust-vmm project, to compare with: one process for all guests.
    VhostDeviceVsock,
    /// One of QEMU's network cards, to compare with.
    QemuNic { model: NicModel, backend: Backend },
    /// User Mode Linux's own network card, its vector device with the transport `tap`, to compare with.
    UmlVector,
}

/// One `--device`: the device, and the guest that alone gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFor {
    /// None: every guest gets one.
    pub guest: Option<String>,
    pub device: Device,
}

/// A card of vmlane's: the keys of `MODEL:key=value,...`, and what reads and shows them. What is not given is
/// the daemon's default.
macro_rules! card {
    ($name:ident, $model:literal, { $($(#[doc = $doc:literal])* $key:ident: $type:ty,)* }) => {
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[doc = $doc])* pub $key: Option<$type>,)*
        }

        impl $name {
            fn parse(text: &str, options: &str) -> Result<$name> {
                let mut nic = $name::default();
                for option in options.split(',').filter(|option| !option.is_empty()) {
                    let (key, value) = option.split_once('=').unwrap_or((option, ""));
                    let bad = || format!("device {text:?}: {key} = {value:?} is not valid");
                    match key {
                        $(stringify!($key) => {
                            let value = value.parse().ok().filter(|_| !value.is_empty());
                            nic.$key = Some(value.with_context(bad)?);
                        })*
                        _ => {
                            let keys = [$(stringify!($key)),*].join(", ");
                            bail!("device {text:?}: {} has no key {key:?}; it takes {keys}", $model)
                        }
                    }
                }
                Ok(nic)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let text = |key: &str, value: &dyn fmt::Display| format!("{key}={value}");
                let keys = [$(self.$key.as_ref().map(|value| text(stringify!($key), value))),*];
                let keys: Vec<String> = keys.into_iter().flatten().collect();
                write!(f, $model)?;
                if keys.is_empty() { Ok(()) } else { write!(f, ":{}", keys.join(",")) }
            }
        }
    };
}

card!(Vmxnet3, "vmxnet3", {
    profile: String,
    queues: u8,
    /// The MTU that guests set.
    mtu: u16,
    /// The VLAN that the switch puts the card into.
    vlan: u16,
    /// Doorbells are messages.
    trapped: bool,
});

card!(VirtioNet, "virtio-net", {
    /// Pairs of queues.
    queues: u8,
    /// The MTU that guests set.
    mtu: u16,
    /// The VLAN that the switch puts the card into.
    vlan: u16,
    /// Whether super-frames reach guests whole.
    lro: bool,
    /// Packed rings.
    packed: bool,
});

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

const UML_VECTOR: &str = "uml-vector";

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
        format!(
            "vmci, virtio-vsock, vmxnet3 (takes :profile=...,queues=N,mtu=N,vlan=N,trapped=true), virtio-net (takes \
             :queues=N,mtu=N,vlan=N,lro=false,packed=true), {nics} (a qemu- name may end in \
             :tap for a host bridge), vhost-device-vsock, {UML_VECTOR}"
        )
    }

    /// Whether the daemon serves it.
    pub fn is_ours(&self) -> bool {
        matches!(self, Device::Vmci | Device::VirtioVsock) || self.is_on_switch()
    }

    /// Whether it carries vsock; a guest has one such device.
    pub fn is_vsock(&self) -> bool {
        matches!(self, Device::Vmci | Device::VirtioVsock | Device::VhostDeviceVsock)
    }

    /// Whether it is a port of the daemon's switch.
    pub fn is_on_switch(&self) -> bool {
        matches!(self, Device::Vmxnet3(_) | Device::VirtioNet(_))
    }

    /// Whether it is a PCI function of the daemon's.
    pub fn is_pci(&self) -> bool {
        matches!(self, Device::Vmci | Device::Vmxnet3(_))
    }

    /// What joins a network card with the others of its network: vmlane's switch (none), or what the VMM
    /// joins by.
    pub fn joined_by(&self) -> Option<Backend> {
        match self {
            Device::QemuNic { backend, .. } => Some(*backend),
            Device::UmlVector => Some(Backend::Tap),
            _ => None,
        }
    }

    /// The VLAN that the switch puts the card into, if one was named.
    pub fn vlan(&self) -> Option<u16> {
        match self {
            Device::Vmxnet3(nic) => nic.vlan,
            Device::VirtioNet(nic) => nic.vlan,
            _ => None,
        }
    }

    /// Whether it is a network card.
    pub fn is_nic(&self) -> bool {
        !self.is_vsock()
    }
}

impl FromStr for Device {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, option) = text.split_once(':').map_or((text, None), |(n, o)| (n, Some(o)));
        if name == "vmci" && option.is_none() {
            return Ok(Device::Vmci);
        }
        if name == "virtio-vsock" && option.is_none() {
            return Ok(Device::VirtioVsock);
        }
        if name == "vhost-device-vsock" && option.is_none() {
            return Ok(Device::VhostDeviceVsock);
        }
        if name == "vmxnet3" {
            return Ok(Device::Vmxnet3(Vmxnet3::parse(text, option.unwrap_or_default())?));
        }
        if name == "virtio-net" {
            return Ok(Device::VirtioNet(VirtioNet::parse(text, option.unwrap_or_default())?));
        }
        if name == UML_VECTOR {
            ensure!(
                option.is_none(),
                "device {text:?}: {UML_VECTOR} takes no keys, and is on a host bridge without :tap"
            );
            return Ok(Device::UmlVector);
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

impl From<Device> for DeviceFor {
    fn from(device: Device) -> Self {
        Self { guest: None, device }
    }
}

impl FromStr for DeviceFor {
    type Err = anyhow::Error;

    /// `DEVICE` or `GUEST:DEVICE`. A guest's name is one or two letters, and no device has such a name, so
    /// the colon of `vmxnet3:mtu=9000` is not taken for that of a guest.
    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some((guest, device)) if is_guest_name(guest) => {
                let device = device.parse::<Device>().with_context(|| format!("for guest {guest}"))?;
                Ok(Self { guest: Some(guest.to_owned()), device })
            }
            Some((first, rest)) if rest.parse::<Device>().is_ok() => bail!(
                "device {text:?}: before the colon stands {first:?}, which is neither a guest (a, b ... aa, ab ...) nor a \
                 device with keys; write a:{rest} to give {rest} to guest a alone, or {rest} to give it to all"
            ),
            _ => Ok(text.parse::<Device>()?.into()),
        }
    }
}

impl fmt::Display for DeviceFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.guest {
            Some(guest) => write!(f, "{guest}:{}", self.device),
            None => write!(f, "{}", self.device),
        }
    }
}

/// Whether a guest may be called so.
fn is_guest_name(text: &str) -> bool {
    (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_lowercase())
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Vmci => write!(f, "vmci"),
            Device::VirtioVsock => write!(f, "virtio-vsock"),
            Device::VhostDeviceVsock => write!(f, "vhost-device-vsock"),
            Device::Vmxnet3(nic) => write!(f, "{nic}"),
            Device::VirtioNet(nic) => write!(f, "{nic}"),
            Device::QemuNic { model, backend: Backend::Stream } => write!(f, "{}", model.name()),
            Device::QemuNic { model, backend: Backend::Tap } => write!(f, "{}:tap", model.name()),
            Device::UmlVector => write!(f, "{UML_VECTOR}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in [
            "vmci",
            "vmxnet3",
            "virtio-vsock",
            "virtio-net",
            "virtio-net:queues=2,mtu=9000,vlan=10,lro=false,packed=true",
            "vmxnet3:profile=full,queues=4,mtu=9000,vlan=10,trapped=true",
            "qemu-virtio-net",
            "qemu-vmxnet3:tap",
            "qemu-e1000",
            "qemu-e1000e",
            "uml-vector",
        ] {
            assert_eq!(name.parse::<Device>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn a_device_may_be_for_one_guest() {
        for (text, guest, device) in [
            ("vmci", None, "vmci"),
            ("a:vmci", Some("a"), "vmci"),
            ("ab:virtio-vsock", Some("ab"), "virtio-vsock"),
            ("vmxnet3:mtu=9000", None, "vmxnet3:mtu=9000"),
            ("b:vmxnet3:mtu=9000,queues=2", Some("b"), "vmxnet3:queues=2,mtu=9000"),
            ("qemu-e1000:tap", None, "qemu-e1000:tap"),
            ("c:qemu-e1000:tap", Some("c"), "qemu-e1000:tap"),
            ("b:uml-vector", Some("b"), "uml-vector"),
        ] {
            let parsed: DeviceFor = text.parse().unwrap();
            assert_eq!(
                (parsed.guest.as_deref(), parsed.device.to_string().as_str()),
                (guest, device),
                "{text}"
            );
            assert_eq!(parsed.to_string().parse::<DeviceFor>().unwrap(), parsed);
        }
        for (bad, part) in [
            ("guest:vmci", "write a:vmci"),
            ("A:vmci", "write a:vmci"),
            ("1:virtio-net", "write a:virtio-net"),
            ("vmci:virtio-vsock", "write a:virtio-vsock"),
            ("a:vmxnet3:mtu=big", "mtu"),
            ("a:", "choose from"),
            (":vmci", "write a:vmci"),
            ("a:b:vmci", "choose from"),
        ] {
            let error = format!("{:#}", bad.parse::<DeviceFor>().unwrap_err());
            assert!(error.contains(part), "{bad}: {error}");
        }
    }

    #[test]
    fn errors_list_what_is_valid() {
        for bad in [
            "vmxnet4",
            "vmxnet3:speed=1",
            "vmxnet3:mtu=big",
            "qemu-e1000:bridge",
            "vmci:x",
            "",
            "uml-vector:mtu=9000",
        ] {
            let text = bad.parse::<Device>().unwrap_err().to_string();
            assert!(text.contains("tap") || text.contains("trapped") || text.contains("mtu"), "{text}");
        }
    }
}
