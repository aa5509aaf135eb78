//! Network interfaces: who drives them and how they are set.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::files;
use crate::sys::{Ethtool, Numbers};

/// Interfaces that are reported; a container host may have thousands.
const MOST: usize = 24;
/// Interrupts of an interface that are reported.
const MOST_INTERRUPTS: usize = 64;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    pub name: String,
    pub driver: String,
    pub driver_version: String,
    /// The bus address, such as 0000:00:04.0.
    pub bus: String,
    /// Whether the driver's module was not built with this kernel.
    pub is_foreign_module: bool,
    /// PCI vendor and device, where it is on that bus.
    pub pci: Option<(String, String)>,
    /// "vlan", "vxlan", "bridge" ... for those that are no card.
    pub kind: Option<String>,
    pub mac: String,
    pub mtu: u32,
    pub is_up: bool,
    /// As the driver reports it; a label in a VM.
    pub speed_mbit: Option<i64>,
    pub addresses: Vec<IpAddr>,
    /// Those that matter for speed, by the kernel's names.
    pub features: BTreeMap<String, Feature>,
    pub rings: Option<Rings>,
    /// Queues in use, and the most that there can be.
    pub queues: Option<(u32, u32)>,
    /// How received frames are spread over them.
    pub spread: Option<Spread>,
    pub coalescing: Option<Coalescing>,
    pub interrupts: Vec<Interrupt>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    pub on: bool,
    pub changeable: bool,
}

/// Descriptors of each ring, and the most that there can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rings {
    pub rx: u32,
    pub rx_max: u32,
    pub tx: u32,
    pub tx_max: u32,
}

/// The table by which the card spreads frames (RSS): its entries, and the queues that any of them leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    pub entries: u32,
    pub queues: u32,
}

impl Spread {
    /// None where there is no table.
    fn of(table: &[u32]) -> Option<Spread> {
        let queues: BTreeSet<u32> = table.iter().copied().collect();
        let spread = Spread { entries: table.len() as u32, queues: queues.len() as u32 };
        (!table.is_empty()).then_some(spread)
    }
}

/// How long, and for how many frames, an interrupt may wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalescing {
    pub rx_us: u32,
    pub rx_frames: u32,
    pub tx_us: u32,
    pub tx_frames: u32,
    pub adaptive_rx: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Interrupt {
    pub number: u32,
    pub name: String,
    /// Where it may be delivered, as a list of CPUs.
    pub may: String,
    /// Where it is delivered.
    pub goes: String,
}

impl Interface {
    pub fn feature(&self, name: &str) -> Option<Feature> {
        self.features.get(name).copied()
    }

    /// Whether this is off and may be switched on.
    pub fn is_off(&self, feature: &str) -> bool {
        self.feature(feature).is_some_and(|feature| !feature.on && feature.changeable)
    }

    /// Whether this is on and may be switched off.
    pub fn is_on(&self, feature: &str) -> bool {
        self.feature(feature).is_some_and(|feature| feature.on && feature.changeable)
    }

    /// Whether it is a card, virtual or not: what is joined to a bus.
    pub fn is_card(&self) -> bool {
        !self.bus.is_empty() && !self.driver.is_empty() && self.kind.is_none()
    }
}

const FEATURES: [&str; 18] = [
    "rx-checksum",
    "rx-gro",
    "rx-gro-hw",
    "rx-hashing",
    "rx-lro",
    "tx-checksum-ipv4",
    "tx-checksum-ip-generic",
    "tx-checksum-ipv6",
    "tx-generic-segmentation",
    "tx-scatter-gather",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
    "tx-udp_tnl-csum-segmentation",
    "tx-udp_tnl-segmentation",
    "rx-udp_tunnel-port-offload",
    "tx-gre-segmentation",
];

pub fn read() -> Vec<Interface> {
    let mut addresses: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for interface in if_addrs::get_if_addrs().unwrap_or_default() {
        let ip = interface.ip();
        addresses.entry(interface.name).or_default().push(ip);
    }
    let mut names = files::names("/sys/class/net", 4096);
    // Those with addresses first: on a host of many containers the list ends before all are named.
    names.sort_by_key(|name| !addresses.contains_key(name));
    names.truncate(MOST);
    let ethtool = Ethtool::open().ok();
    let interrupts = files::text("/proc/interrupts").unwrap_or_default();
    let read = |name: String| {
        let mut interface = one(&name, ethtool.as_ref(), &interrupts);
        interface.addresses = addresses.get(&name).cloned().unwrap_or_default();
        interface
    };
    names.into_iter().map(read).collect()
}

fn one(name: &str, ethtool: Option<&Ethtool>, interrupts: &str) -> Interface {
    let at = |file: &str| format!("/sys/class/net/{name}/{file}");
    let uevent = files::text(at("uevent")).unwrap_or_default();
    let mut interface = Interface {
        name: name.to_owned(),
        mac: files::line(at("address")).unwrap_or_default(),
        mtu: files::number(at("mtu")).unwrap_or(0),
        is_up: files::line(at("operstate")).is_some_and(|state| matches!(state.as_str(), "up" | "unknown")),
        speed_mbit: files::number(at("speed")),
        kind: uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE=")).map(str::to_owned),
        driver: files::link(at("device/driver")).unwrap_or_default(),
        interrupts: interrupts_of(name, interrupts),
        pci: pci(name),
        ..Interface::default()
    };
    if let Some(ethtool) = ethtool {
        ask(&mut interface, ethtool);
    }
    // The taint 'O': the module was built outside of this kernel's tree.
    let taints = files::line(at("device/driver/module/taint")).unwrap_or_default();
    interface.is_foreign_module = taints.contains('O');
    interface
}

fn ask(interface: &mut Interface, ethtool: &Ethtool) {
    let name = interface.name.clone();
    if let Ok([driver, version, _, bus]) = ethtool.driver(&name) {
        // A virtio card's driver in /sys is the same; of an interface without a device only ethtool knows it.
        if interface.driver.is_empty() {
            interface.driver = driver;
        }
        (interface.driver_version, interface.bus) = (version, bus);
    }
    let features = ethtool.features(&name).unwrap_or_default();
    let known = features.into_iter().filter(|feature| FEATURES.contains(&feature.name.as_str()));
    let state = |feature: crate::sys::Feature| Feature { on: feature.on, changeable: feature.changeable };
    interface.features = known.map(|feature| (feature.name.clone(), state(feature))).collect();
    let words = |which| ethtool.words(&name, which).ok();
    interface.rings = words(Numbers::Rings).map(|words| Rings {
        rx: words[5],
        rx_max: words[1],
        tx: words[8],
        tx_max: words[4],
    });
    // struct ethtool_channels: maxima of rx, tx, other and combined, then the same in use.
    interface.queues = words(Numbers::Channels).map(|words| (words[8].max(words[5]), words[4].max(words[1])));
    interface.spread = ethtool.indirection(&name).ok().and_then(|table| Spread::of(&table));
    interface.coalescing = words(Numbers::Coalescing).map(|words| Coalescing {
        rx_us: words[1],
        rx_frames: words[2],
        tx_us: words[5],
        tx_frames: words[6],
        adaptive_rx: words[10] != 0,
    });
}

/// The folder of the PCI device: that of the interface's device, or of the one above a virtio device.
fn pci(name: &str) -> Option<(String, String)> {
    ["device", "device/.."].iter().find_map(|device| {
        let at = |file: &str| files::line(format!("/sys/class/net/{name}/{device}/{file}"));
        at("class")?; // a virtio device has a vendor and a device, but no class
        Some((at("vendor")?, at("device")?))
    })
}

fn interrupts_of(name: &str, table: &str) -> Vec<Interrupt> {
    let numbers = ["device/msi_irqs", "device/../msi_irqs"].iter().map(|folder| {
        let names = files::names(format!("/sys/class/net/{name}/{folder}"), MOST_INTERRUPTS);
        names.iter().filter_map(|number| number.parse::<u32>().ok()).collect::<Vec<_>>()
    });
    let mut numbers = numbers.into_iter().find(|numbers| !numbers.is_empty()).unwrap_or_default();
    numbers.sort_unstable();
    let interrupt = |number: u32| {
        let at = |file: &str| files::line(format!("/proc/irq/{number}/{file}"));
        let line = table.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{number}:")))?;
        let name = line.split_whitespace().last()?.to_owned();
        Some(Interrupt {
            number,
            name,
            may: at("smp_affinity_list").unwrap_or_default(),
            goes: at("effective_affinity_list").unwrap_or_default(),
        })
    };
    numbers.into_iter().filter_map(interrupt).collect()
}

/// What the interface's kernel part and its driver have counted.
pub fn counters(name: &str) -> BTreeMap<String, u64> {
    let folder = format!("/sys/class/net/{name}/statistics");
    let kernel = files::names(&folder, 64).into_iter();
    let kernel = kernel.filter_map(|file| Some((file.clone(), files::number(format!("{folder}/{file}"))?)));
    let mut counters: BTreeMap<String, u64> = kernel.collect();
    let driver = Ethtool::open().and_then(|ethtool| ethtool.statistics(name)).unwrap_or_default();
    // vmxnet3 names a counter of each queue alike, behind a line with the queue's number.
    for (name, value) in driver.into_iter().take(1024) {
        let sum = counters.entry(format!("driver.{}", name.trim())).or_default();
        *sum = sum.saturating_add(value);
    }
    counters
}
