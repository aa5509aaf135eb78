//! What a lab should be: guests, kernels, devices; and the names and addresses that follow.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::device::{Backend, Device, DeviceFor};
use crate::dirs;
use crate::machine::{self, Machine};
use crate::setup::{KERNELS, UML_KERNEL, UML_KERNELS, UML_PCI_KERNEL, is_uml};
use crate::test_host;

/// The kernel of guests unless another one is requested.
pub const DEFAULT_KERNEL: &str = "6.12";

/// Guests are named by letters: a to z, aa, ab ... Their addresses end at 253.
pub const MOST_GUESTS: usize = 128;

/// What the daemon takes.
pub const MOST_WORKERS: u32 = 256;

/// Uplinks of one lab, as in the paper of 2011.
pub const MOST_UPLINKS: u32 = 4;

/// A lab to be. `LabSpec::new(name)` has the defaults; set the fields that matter.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LabSpec {
    pub name: String,
    pub guests: usize,
    /// Empty for the default, one for all guests, or one a guest.
    pub kernels: Vec<String>,
    pub cpus: u32,
    pub mem_mib: u32,
    pub devices: Vec<DeviceFor>,
    /// Isolation groups: empty for the default, one for all, or one a guest.
    pub groups: Vec<String>,
    pub forwards: Vec<Forward>,
    /// So many networks of vmlane's own, the first ones, reach test hosts in network namespaces, each through
    /// an uplink of its own: 0 to [`MOST_UPLINKS`]. With two or more, the guests' cards are spread over these
    /// networks.
    #[serde(default)]
    pub uplinks: u32,
    /// Whether the switch merges segments to super-frames (software LRO); none leaves that to the daemon.
    #[serde(default)]
    pub coalesce: Option<bool>,
    /// The daemon's workers; none leaves that to it.
    #[serde(default)]
    pub workers: Option<u32>,
    /// A TOML file merged over the generated daemon configuration.
    pub daemon_config: Option<PathBuf>,
    /// More words for the guests' kernel command lines.
    pub append: String,
    /// How long all guests together may take to boot.
    pub boot_seconds: u64,
    /// `kvm` or `tcg`; none leaves the choice to the set-up.
    #[serde(default)]
    pub accelerator: Option<String>,
    /// What guests run in: empty for the default, one for all, or one a guest.
    #[serde(default)]
    pub machines: Vec<Machine>,
    /// QEMU's name of the processor, such as `max`; none leaves the choice to the accelerator.
    #[serde(default)]
    pub cpu: Option<String>,
    /// An older QEMU, such as `7.2`; none is one of 10.1 or later.
    #[serde(default)]
    pub qemu: Option<String>,
}

/// `GUEST:PORT=GUEST:PORT`: the first guest's connects to {CID 2, port} reach the second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    pub from: String,
    pub port: u32,
    pub to: String,
    pub to_port: u32,
}

/// One guest with everything decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSpec {
    pub name: String,
    /// 1 for guest a.
    pub number: u32,
    #[serde(default)]
    pub machine: Machine,
    pub kernel: String,
    /// What it has of the lab's devices, in their order.
    #[serde(default)]
    pub devices: Vec<Device>,
    pub group: Option<String>,
    pub cid: Option<u32>,
    pub nics: Vec<Nic>,
}

impl GuestSpec {
    /// Whether the daemon serves it.
    pub fn has_ours(&self) -> bool {
        self.devices.iter().any(Device::is_ours)
    }
}

/// One network card of one guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    pub device: String,
    /// 0 for the lab's first.
    #[serde(default)]
    pub network: u32,
    pub mac: String,
    /// With prefix length, as `ip address add` takes it.
    pub ipv4: String,
    pub ipv6: String,
    /// What the guest sets; none leaves the driver's default.
    #[serde(default)]
    pub mtu: Option<u16>,
}

impl LabSpec {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), guests: 2, cpus: 1, mem_mib: 512, boot_seconds: 180, ..Self::default() }
    }

    /// Adds a device by its command-line name.
    pub fn device(mut self, name: &str) -> Result<Self> {
        self.devices.push(name.parse()?);
        Ok(self)
    }

    pub fn has_daemon(&self) -> bool {
        self.devices.iter().any(|given| given.device.is_ours())
    }

    /// Checks everything that can be wrong before anything starts.
    pub fn check(&self) -> Result<()> {
        dirs::check_name(&self.name)?;
        let guests = self.guests;
        ensure!((1..=MOST_GUESTS).contains(&guests), "guests = {guests}: a lab has 1 to {MOST_GUESTS}");
        ensure!((1..=64).contains(&self.cpus), "cpus = {}: a guest has 1 to 64", self.cpus);
        ensure!(self.mem_mib >= 256, "mem = {} MiB: a guest needs 256 or more", self.mem_mib);
        per_guest("kernel", &self.kernels, guests)?;
        per_guest("group", &self.groups, guests)?;
        let machines: Vec<String> = self.machines.iter().map(Machine::to_string).collect();
        per_guest("machine", &machines, guests)?;
        self.check_machines()?;
        self.check_devices()?;
        let ours = self.has_daemon();
        ensure!(
            ours || (self.forwards.is_empty()
                && self.groups.is_empty()
                && self.daemon_config.is_none()
                && self.coalesce.is_none()
                && self.workers.is_none()),
            "groups, forwards, coalesce, workers and a daemon configuration need a device of vmlane's own: add --device vmci or vmxnet3"
        );
        self.check_uplinks()?;
        let names: Vec<String> = self.guests().into_iter().map(|g| g.name).collect();
        for forward in &self.forwards {
            for name in [&forward.from, &forward.to] {
                ensure!(
                    names.contains(name),
                    "forward {forward:?}: this lab has no guest {name:?}; it has {}",
                    names.join(", ")
                );
            }
        }
        if let Some(path) = &self.daemon_config {
            ensure!(path.is_file(), "daemon configuration {}: no such file", path.display());
        }
        Ok(())
    }

    fn check_uplinks(&self) -> Result<()> {
        let uplinks = self.uplinks;
        ensure!(uplinks <= MOST_UPLINKS, "uplinks = {uplinks}: a lab has {MOST_UPLINKS} at most");
        ensure!(
            uplinks == 0 || !self.devices.iter().any(|given| given.device == Device::UmlVector),
            "device uml-vector in a lab with an uplink: User Mode Linux opens its TAP interfaces each time that a card is set up, \
             and finds none in the test host's network namespace; leave one of the two away"
        );
        let leads_to_host = |given: &DeviceFor| {
            given.device.is_on_switch() || uplinks == 1 && given.device.joined_by() == Some(Backend::Tap)
        };
        ensure!(
            uplinks == 0 || self.devices.iter().any(leads_to_host),
            "an uplink is a port of vmlane's switch: add --device vmxnet3"
        );
        if uplinks < 2 {
            let first = self.networks().into_iter().next().and_then(|cards| cards.into_iter().next());
            let leads =
                uplinks == 0 || !self.has_switch() || first.as_ref().is_some_and(Device::is_on_switch);
            let first = first.map_or("none".into(), |first| first.to_string());
            ensure!(
                leads,
                "the uplink leads to the network of the first card, which is {first}: give vmlane's first"
            );
            return Ok(());
        }
        for guest in self.guests() {
            let mut cards = guest.devices.iter().filter(|device| device.is_nic());
            let (name, count) = (&guest.name, cards.clone().count());
            ensure!(
                count <= uplinks as usize,
                "guest {name} has {count} cards and the lab {uplinks} uplinks: each card has an uplink of its own"
            );
            if let Some(other) = cards.find(|card| !card.is_on_switch() || card.vlan().is_some()) {
                bail!(
                    "device {other} in a lab with {uplinks} uplinks: each uplink is a network of vmlane's switch, distinguished by \
                     VLANs of the lab's own; use vmxnet3 or virtio-net without a VLAN"
                );
            }
        }
        Ok(())
    }

    /// Whether there is an uplink of vmlane's own, and not only a bridge that leads to the test host.
    pub fn has_switch(&self) -> bool {
        self.devices.iter().any(|given| given.device.is_on_switch())
    }

    /// The networks in which test host number `host` has an address: those of its uplinks and, in a lab with
    /// one uplink, those of QEMU's cards that are on a bridge.
    pub fn host_networks(&self, host: u32) -> Vec<u32> {
        let mut networks: Vec<u32> = Vec::new();
        if self.has_switch() {
            networks.extend(test_host::uplinks_of(host, self.uplinks));
        }
        networks.extend(self.host_bridges());
        networks
    }

    /// The networks that are a bridge of the test host.
    pub fn host_bridges(&self) -> Vec<u32> {
        let networks = self.networks();
        let on_bridge = |cards: &[Device]| cards.first().and_then(Device::joined_by) == Some(Backend::Tap);
        let bridges = (0..).zip(&networks).filter(|(_, cards)| self.uplinks == 1 && on_bridge(cards));
        bridges.map(|(net, _)| net).collect()
    }

    /// The network of a card: those of one guest are in different ones.
    fn network_of(&self, guest: usize, card: usize) -> usize {
        if self.uplinks < 2 { card } else { (guest + card) % self.uplinks as usize }
    }

    fn check_devices(&self) -> Result<()> {
        let guests = self.guests();
        let names: Vec<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
        for given in &self.devices {
            let known = given.guest.as_deref().is_none_or(|guest| names.contains(&guest));
            ensure!(
                known,
                "device {given}: this lab has no guest {:?}; it has {}",
                given.guest.as_deref().unwrap_or_default(),
                names.join(", ")
            );
        }
        for guest in &guests {
            let vsock = guest.devices.iter().filter(|device| device.is_vsock()).count();
            ensure!(
                vsock <= 1,
                "devices vmci, virtio-vsock and vhost-device-vsock: a guest has one of them, once; guest {} was given \
                 {vsock}",
                guest.name
            );
        }
        for (net, cards) in self.networks().iter().enumerate() {
            let Some(first) = cards.first() else { continue };
            let differs =
                |device: &&Device| device.vlan() != first.vlan() || device.joined_by() != first.joined_by();
            if let Some(other) = cards.iter().find(differs) {
                bail!(
                    "devices {first} and {other}: card {net} of every guest is in one network, and these two cannot meet \
                     there; give all guests cards of the same switch and VLAN in the same order"
                );
            }
        }
        Ok(())
    }

    /// The networks of the lab, with their cards: what the guests have as their first card, their second, and
    /// so on; with several uplinks, what shares one.
    pub fn networks(&self) -> Vec<Vec<Device>> {
        let mut networks: Vec<Vec<Device>> = Vec::new();
        if self.uplinks > 1 {
            networks.resize(self.uplinks as usize, Vec::new());
        }
        for (index, guest) in self.guests().into_iter().enumerate() {
            for (card, device) in guest.devices.into_iter().filter(Device::is_nic).enumerate() {
                let net = self.network_of(index, card);
                if networks.len() <= net {
                    networks.resize(net + 1, Vec::new());
                }
                networks[net].push(device);
            }
        }
        networks
    }

    fn check_machines(&self) -> Result<()> {
        for kernel in &self.kernels {
            if !is_uml(kernel) && !KERNELS.iter().any(|(v, ..)| v == kernel) {
                let valid = KERNELS.map(|(v, ..)| v).join(", ");
                let uml = UML_KERNELS.join(" or ");
                bail!("kernel {kernel:?}: choose from {valid}, or {uml} under --machine uml");
            }
        }
        if let Some(cpu) = &self.cpu {
            // The rest is QEMU's to judge: it knows its models and their features.
            ensure!(
                !cpu.is_empty() && !cpu.starts_with('-') && !cpu.contains(char::is_whitespace),
                "cpu {cpu:?}: give a processor as QEMU's -cpu takes it, such as max or Haswell-v4,-avx2"
            );
        }
        for (index, guest) in self.guests().iter().enumerate() {
            machine::check(guest.machine, self.qemu.as_deref(), &guest.devices)?;
            let (name, asked) = (&guest.name, pick(&self.kernels, index));
            if guest.machine.is_qemu() {
                ensure!(
                    !is_uml(&guest.kernel),
                    "guest {name} with kernel {}: it is a program, User Mode Linux, and no kernel for QEMU: add \
                     --machine uml",
                    guest.kernel
                );
                continue;
            }
            // One kernel for all is that of the guests in QEMU.
            ensure!(
                asked.as_ref().is_none_or(|asked| is_uml(asked))
                    || self.kernels.len() == 1 && self.has_qemu(),
                "guest {name} under User Mode Linux with kernel {:?}: it has {} only; leave --kernel away",
                asked.unwrap_or_default(),
                UML_KERNELS.join(" or ")
            );
            if let Some(device) = guest.devices.iter().find(|device| device.is_pci()) {
                ensure!(
                    guest.kernel == UML_PCI_KERNEL,
                    "device {device} of guest {name}: kernel {} has no PCI bus; leave --kernel away, or choose \
                     {UML_PCI_KERNEL}",
                    guest.kernel
                );
            }
            ensure!(
                self.cpus == 1,
                "cpus = {}: guest {name} under User Mode Linux has one, as it knows no SMP: leave --cpus away",
                self.cpus
            );
            ensure!(
                self.cpu.is_none() || self.has_qemu(),
                "cpu {:?}: User Mode Linux has the host's processor; leave --cpu away",
                self.cpu.as_deref().unwrap_or_default()
            );
            ensure!(
                self.qemu.is_none() || self.has_qemu(),
                "QEMU {:?}: there is none under --machine uml; leave --qemu away",
                self.qemu.as_deref().unwrap_or_default()
            );
        }
        Ok(())
    }

    /// Whether any guest runs in QEMU.
    pub fn has_qemu(&self) -> bool {
        self.machines.is_empty() || self.machines.iter().any(|machine| machine.is_qemu())
    }

    /// Every guest, with its name, machine, kernel, devices, CID and addresses.
    pub fn guests(&self) -> Vec<GuestSpec> {
        (0..self.guests.min(MOST_GUESTS)).map(|index| self.guest(index)).collect()
    }

    fn guest(&self, index: usize) -> GuestSpec {
        let number = index as u32 + 1;
        let (name, machine) = (guest_name(index), pick(&self.machines, index).unwrap_or_default());
        let device = |given: &DeviceFor| match &given.guest {
            // What is given to one guest by name is meant as it is written; so is all in a lab without QEMU.
            Some(guest) => (*guest == name).then(|| given.device.clone()),
            None if self.has_qemu() => Some(machine.counterpart(&given.device)),
            None => Some(given.device.clone()),
        };
        let devices: Vec<Device> = self.devices.iter().filter_map(device).collect();
        let asked = pick(&self.kernels, index);
        let kernel = if machine.is_qemu() {
            asked.unwrap_or_else(|| DEFAULT_KERNEL.into())
        } else {
            let bus = if devices.iter().any(Device::is_pci) { UML_PCI_KERNEL } else { UML_KERNEL };
            asked.filter(|asked| is_uml(asked)).unwrap_or_else(|| bus.into())
        };
        let vsock = devices.iter().any(Device::is_vsock);
        let nics = devices.iter().filter(|device| device.is_nic()).enumerate();
        let nics =
            nics.map(|(card, device)| nic(self.network_of(index, card) as u32, number, machine, device));
        GuestSpec {
            name,
            number,
            machine,
            kernel,
            group: pick(&self.groups, index),
            cid: vsock.then_some(number + 2),
            nics: nics.collect(),
            devices,
        }
    }

    /// The kernels in use, each once.
    pub fn kernels_used(&self) -> Vec<String> {
        let mut kernels: Vec<String> = self.guests().into_iter().map(|g| g.kernel).collect();
        kernels.sort();
        kernels.dedup();
        kernels
    }
}

/// `a` to `z`, then `aa`, `ab` ...
fn guest_name(index: usize) -> String {
    let letter = char::from(b'a' + (index % 26) as u8);
    if index < 26 { letter.to_string() } else { format!("{}{letter}", guest_name(index / 26 - 1)) }
}

fn pick<T: Clone>(list: &[T], index: usize) -> Option<T> {
    if list.len() == 1 { list.first().cloned() } else { list.get(index).cloned() }
}

fn per_guest(key: &str, list: &[String], guests: usize) -> Result<()> {
    ensure!(
        list.len() <= 1 || list.len() == guests,
        "{key} = {:?}: give one for all guests, or one for each of the {guests}",
        list.join(",")
    );
    Ok(())
}

/// The card of guest `number` in network `net`: each network has a subnet of its own.
fn nic(net: u32, number: u32, machine: Machine, device: &Device) -> Nic {
    let mtu = match device {
        Device::Vmxnet3(nic) => nic.mtu,
        Device::VirtioNet(nic) => nic.mtu,
        _ => None,
    };
    Nic {
        device: device.to_string(),
        network: net,
        mac: format!("52:54:00:77:{net:02x}:{number:02x}"),
        ipv4: format!("10.{}.0.{number}/24", 77 + net),
        ipv6: format!("fd{:02}::{number}/64", (77 + net) % 100),
        // Under User Mode Linux the guest reads the largest MTU that the card carries, which QEMU keeps to
        // itself.
        mtu: mtu.or((machine == Machine::Uml).then_some(1500)),
    }
}

impl FromStr for Forward {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || -> Option<Self> {
            let (from, to) = text.split_once('=')?;
            let (from, port) = from.split_once(':')?;
            let (to, to_port) = to.split_once(':')?;
            Some(Self {
                from: from.to_owned(),
                port: port.parse().ok()?,
                to: to.to_owned(),
                to_port: to_port.parse().ok()?,
            })
        };
        parse().with_context(|| {
            format!("forward {text:?}: write it as GUEST:PORT=GUEST:PORT, such as a:5000=b:5000")
        })
    }
}

#[cfg(test)]
mod tests;
