//! What a lab should be: guests, kernels, devices; and the names and addresses that follow.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::device::{Device, DeviceFor};
use crate::dirs;
use crate::machine::{self, Machine};
use crate::setup::{KERNELS, UML_KERNEL};

/// The kernel of guests unless another one is requested.
pub const DEFAULT_KERNEL: &str = "6.12";

/// Guests are named by letters: a to z, aa, ab ... Their addresses end at 253.
pub const MOST_GUESTS: usize = 128;

/// A lab to be. `LabSpec::new(name)` has the defaults; set the fields that matter.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// The first network of vmlane's own reaches a test host in a network namespace.
    #[serde(default)]
    pub uplink: bool,
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
        Self {
            name: name.to_owned(),
            guests: 2,
            kernels: Vec::new(),
            cpus: 1,
            mem_mib: 512,
            devices: Vec::new(),
            groups: Vec::new(),
            forwards: Vec::new(),
            uplink: false,
            daemon_config: None,
            append: String::new(),
            boot_seconds: 180,
            accelerator: None,
            machines: Vec::new(),
            cpu: None,
            qemu: None,
        }
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
            ours || (self.forwards.is_empty() && self.groups.is_empty() && self.daemon_config.is_none()),
            "groups, forwards and a daemon configuration need a device of vmlane's own: add --device vmci or vmxnet3"
        );
        ensure!(
            !self.uplink || self.devices.iter().any(|given| given.device.is_on_switch()),
            "an uplink is a port of vmlane's switch: add --device vmxnet3"
        );
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

    /// The networks of the lab: what the guests have as their first card, their second, and so on.
    pub fn networks(&self) -> Vec<Vec<Device>> {
        let mut networks: Vec<Vec<Device>> = Vec::new();
        for guest in self.guests() {
            for (net, card) in guest.devices.into_iter().filter(Device::is_nic).enumerate() {
                if networks.len() == net {
                    networks.push(Vec::new());
                }
                networks[net].push(card);
            }
        }
        networks
    }

    fn check_machines(&self) -> Result<()> {
        for kernel in &self.kernels {
            if kernel != UML_KERNEL && !KERNELS.iter().any(|(v, ..)| v == kernel) {
                let valid = KERNELS.map(|(v, ..)| v).join(", ");
                bail!("kernel {kernel:?}: choose from {valid}, or {UML_KERNEL} under --machine uml");
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
                    guest.kernel != UML_KERNEL,
                    "guest {name} with kernel {UML_KERNEL}: it is a program, User Mode Linux, and no kernel for \
                     QEMU: add --machine uml"
                );
                continue;
            }
            // One kernel for all is that of the guests in QEMU.
            ensure!(
                asked.as_ref().is_none_or(|asked| asked == UML_KERNEL)
                    || self.kernels.len() == 1 && self.has_qemu(),
                "guest {name} under User Mode Linux with kernel {:?}: it has {UML_KERNEL} only; leave --kernel away",
                asked.unwrap_or_default()
            );
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
        let kernel = || pick(&self.kernels, index).unwrap_or_else(|| DEFAULT_KERNEL.into());
        let vsock = devices.iter().any(Device::is_vsock);
        let nics = devices.iter().filter(|device| device.is_nic());
        GuestSpec {
            name,
            number,
            machine,
            kernel: if machine.is_qemu() { kernel() } else { UML_KERNEL.into() },
            group: pick(&self.groups, index),
            cid: vsock.then_some(number + 2),
            nics: (0..).zip(nics).map(|(net, device)| nic(net, number, machine, device)).collect(),
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

/// Card `net` of guest `number`: each card of a guest has a subnet of its own.
fn nic(net: u32, number: u32, machine: Machine, device: &Device) -> Nic {
    let mtu = match device {
        Device::Vmxnet3(nic) => nic.mtu,
        Device::VirtioNet(nic) => nic.mtu,
        _ => None,
    };
    Nic {
        device: device.to_string(),
        mac: format!("52:54:00:77:{net:02x}:{number:02x}"),
        ipv4: format!("10.{}.0.{number}/24", 77 + net),
        ipv6: format!("fd{}::{number}/64", 77 + net),
        // Under User Mode Linux the guest reads the largest MTU that the card carries, which QEMU keeps to itself.
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
mod tests {
    use super::*;

    #[test]
    fn names_cids_and_addresses_follow_the_order() {
        let spec = LabSpec::new("t")
            .device("vmci")
            .and_then(|s| s.device("qemu-e1000"))
            .and_then(|s| s.device("qemu-virtio-net"))
            .unwrap();
        let guests = spec.guests();
        assert_eq!(guests[1].name, "b");
        assert_eq!(guests[1].cid, Some(4));
        assert_eq!(guests[1].nics[0].ipv4, "10.77.0.2/24");
        assert_eq!(guests[1].nics[0].ipv6, "fd77::2/64");
        assert_eq!(guests[1].nics[1].ipv4, "10.78.0.2/24");
        assert_ne!(guests[0].nics[0].mac, guests[1].nics[0].mac);
    }

    #[test]
    fn names_go_on_after_z() {
        let name = |index| guest_name(index);
        assert_eq!([0, 25, 26, 27, 51, 52].map(name), ["a", "z", "aa", "ab", "az", "ba"]);
        let spec = LabSpec { guests: MOST_GUESTS, ..LabSpec::new("t") };
        let mut names: Vec<String> = spec.guests().into_iter().map(|guest| guest.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), MOST_GUESTS);
    }

    #[test]
    fn lists_are_for_one_or_for_all() {
        let mut spec = LabSpec::new("t");
        spec.kernels = vec!["5.10".into(), "7.2".into()];
        spec.check().unwrap();
        assert_eq!(spec.guests()[1].kernel, "7.2");
        spec.guests = 3;
        assert!(spec.check().unwrap_err().to_string().contains("one for each of the 3"));
        spec.kernels = vec!["4.19".into()];
        assert!(spec.check().unwrap_err().to_string().contains("5.10, 6.1, 6.12, 7.2"));
    }

    #[test]
    fn a_guest_under_user_mode_linux_is_as_it_can_be() {
        let mut spec = LabSpec::new("t").device("virtio-net").and_then(|s| s.device("virtio-vsock")).unwrap();
        spec.machines = vec![Machine::Uml];
        spec.check().unwrap();
        assert_eq!(spec.kernels_used(), [UML_KERNEL]);
        let why = |change: &dyn Fn(&mut LabSpec)| {
            let mut changed = spec.clone();
            change(&mut changed);
            changed.check().unwrap_err().to_string()
        };
        assert!(why(&|spec| spec.cpus = 2).contains("no SMP"));
        assert!(why(&|spec| spec.kernels = vec!["6.12".into()]).contains("leave --kernel away"));
        assert!(why(&|spec| spec.qemu = Some("7.2".into())).contains("leave --qemu away"));
        assert!(why(&|spec| spec.devices = vec!["vmci".parse().unwrap()]).contains("virtio-vsock"));
        assert!(
            why(&|spec| (spec.machines, spec.kernels) = (vec![], vec![UML_KERNEL.into()]))
                .contains("add --machine uml")
        );
        assert!(why(&|spec| spec.machines = vec![Machine::Uml; 3]).contains("one for each of the 2"));
    }

    #[test]
    fn beside_qemu_user_mode_linux_has_what_speaks_with_it() {
        let mut spec = LabSpec::new("t").device("vmci").and_then(|s| s.device("vmxnet3:mtu=9000")).unwrap();
        spec.machines = vec![Machine::Q35, Machine::Uml];
        spec.kernels = vec!["7.2".into()];
        spec.check().unwrap();
        let guests = spec.guests();
        let kernels: Vec<&str> = guests.iter().map(|guest| guest.kernel.as_str()).collect();
        assert_eq!(kernels, ["7.2", UML_KERNEL]);
        let asked: Vec<Device> = spec.devices.iter().map(|given| given.device.clone()).collect();
        assert_eq!(guests[0].devices, asked);
        assert_eq!(guests[1].devices[0], Device::VirtioVsock);
        assert_eq!((guests[1].nics[0].device.as_str(), guests[1].cid), ("virtio-net:mtu=9000", Some(4)));
        assert_eq!(guests[1].nics[0].mtu, Some(9000));
    }

    #[test]
    fn a_device_for_one_guest_is_that_guests_alone() {
        let mut spec = LabSpec::new("t");
        for device in ["a:vmci", "b:virtio-vsock", "vmxnet3", "b:virtio-net", "a:vmxnet3:mtu=9000"] {
            spec = spec.device(device).unwrap();
        }
        spec.check().unwrap();
        let devices = |guest: &GuestSpec| guest.devices.iter().map(Device::to_string).collect::<Vec<_>>();
        let guests = spec.guests();
        assert_eq!(devices(&guests[0]), ["vmci", "vmxnet3", "vmxnet3:mtu=9000"]);
        assert_eq!(devices(&guests[1]), ["virtio-vsock", "vmxnet3", "virtio-net"]);
        // The second card of either is in the second network.
        let second = |guest: &GuestSpec| guest.nics[1].ipv4.clone();
        assert_eq!((second(&guests[0]), second(&guests[1])), ("10.78.0.1/24".into(), "10.78.0.2/24".into()));
        assert_eq!((guests[0].cid, guests[1].cid), (Some(3), Some(4)));

        let why = |devices: &[&str]| {
            let mut spec = LabSpec::new("t");
            spec.devices = devices.iter().map(|text| text.parse().unwrap()).collect();
            spec.check().unwrap_err().to_string()
        };
        assert!(why(&["c:vmci"]).contains("no guest \"c\"; it has a, b"));
        assert!(why(&["vmci", "a:virtio-vsock"]).contains("guest a was given 2"));
        assert!(why(&["a:vmxnet3:vlan=10", "b:virtio-net"]).contains("card 0 of every guest"));
        assert!(why(&["a:vmxnet3", "b:qemu-e1000"]).contains("same switch"));
        // Named, a device is not exchanged for what a machine has instead.
        let mut mixed = LabSpec::new("t").device("b:vmci").unwrap();
        mixed.machines = vec![Machine::Q35, Machine::Uml];
        assert!(mixed.check().unwrap_err().to_string().contains("needs a QEMU"));
    }

    #[test]
    fn a_processor_is_qemus() {
        let mut spec = LabSpec::new("t").device("virtio-net").unwrap();
        for (cpu, good) in
            [("max", true), ("Haswell-v4,-avx2", true), ("", false), ("-x", false), ("a b", false)]
        {
            spec.cpu = Some(cpu.into());
            assert_eq!(spec.check().is_ok(), good, "{cpu:?}");
        }
        (spec.machines, spec.cpu) = (vec![Machine::Uml], Some("max".into()));
        assert!(spec.check().unwrap_err().to_string().contains("leave --cpu away"));
    }

    #[test]
    fn forwards() {
        let forward: Forward = "a:5000=b:6000".parse().unwrap();
        assert_eq!((forward.port, forward.to.as_str(), forward.to_port), (5000, "b", 6000));
        assert!("a=b".parse::<Forward>().is_err());
        let mut spec = LabSpec::new("t").device("vmci").unwrap();
        spec.forwards = vec!["a:1=z:1".parse().unwrap()];
        assert!(spec.check().unwrap_err().to_string().contains("no guest \"z\""));
    }
}
