//! The factors of an experiment: their names in a plan, their values, and which combinations are invalid.

use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use vmlane_bench::Test;
use vmlane_bench::size::parse_size;

use crate::units::size;
use vmlane_lab::Device;
use vmlane_lab::device::{Backend, NicModel};
use vmlane_lab::machine::{self, Machine};
use vmlane_lab::setup::{KERNELS, QEMU_RELEASES, UML_KERNELS, UML_PCI_KERNEL, is_uml};
use vmlane_lab::spec::{DEFAULT_KERNEL, MOST_GUESTS, MOST_UPLINKS, MOST_WORKERS};

/// Names of factors, as plans and rows write them.
pub const NAMES: [&str; 29] = [
    "device",
    "profile",
    "queues",
    "kernel",
    "accelerator",
    "machine",
    "qemu",
    "guests",
    "cpus",
    "memory",
    "boot",
    "workers",
    "nics",
    "to",
    "uplinks",
    "mtu",
    "offloads",
    "host_offloads",
    "coalesce",
    "ring",
    "moderation",
    "rate",
    "test",
    "tool",
    "message",
    "buffer",
    "sessions",
    "nodelay",
    "ip",
];

/// The tests that a plan may ask for.
pub const TESTS: [Test; 5] = [Test::Stream, Test::Maerts, Test::Bidir, Test::Rr, Test::Crr];

/// The longest message and the largest buffer that bench takes.
const MOST_MESSAGE: u64 = 16 << 20;
const MOST_BUFFER: u64 = 1 << 30;
/// Cards of one guest: each takes a slot and, of ours, a share of the daemon's limits.
const MOST_NICS: u32 = 8;

/// Who answers the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// Guests in pairs: a to b, c to d.
    Guest,
    /// Every card of every guest to the test host behind its uplink.
    Host,
}

/// What measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    Vmlane,
    Netperf,
    Iperf3,
}

/// What `ethtool -C` asks of a VMXNET3 card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moderation {
    Off,
    /// Interrupts a second at most.
    Rate(u32),
}

/// One value of every factor, so a field for each; the defaults are what a plan need not say.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    pub device: Device,
    pub kernel: String,
    /// None leaves the choice to the lab.
    pub accelerator: Option<String>,
    pub machine: Machine,
    /// An older release; none is one of 10.1 or later.
    pub qemu: Option<String>,
    pub guests: u32,
    pub cpus: u32,
    /// MiB a guest.
    pub memory: u32,
    /// Only tells labs apart: what is measured in a lab of its own for each number shows what a boot does to it.
    pub boot: u32,
    /// Threads that move streams and frames; None leaves that to the daemon.
    pub workers: Option<u32>,
    /// Cards of the device, in each guest; each has clients of its own.
    pub nics: u32,
    pub to: Peer,
    /// Of a lab with test hosts: each is a network of its own, and the cards are spread over them.
    pub uplinks: u32,
    pub mtu: Option<u16>,
    /// What `ethtool -K` is given, as `tso=off,lro=off`.
    pub offloads: Vec<(String, String)>,
    /// The same for the test hosts' ends of the uplinks.
    pub host_offloads: Vec<(String, String)>,
    /// Whether the switch merges segments to super-frames; None leaves that to the daemon.
    pub coalesce: Option<bool>,
    /// Descriptors of each ring.
    pub ring: Option<u32>,
    /// When a card's interrupts are held back; None leaves it as the driver begins.
    pub moderation: Option<Moderation>,
    /// Bits per second that each uplink carries.
    pub rate: Option<u64>,
    pub test: Test,
    pub tool: Tool,
    /// Bytes of a send; for round trips of the request and of the response.
    pub message: u64,
    /// None leaves the kernel's default.
    pub buffer: Option<u64>,
    /// Connections of each client.
    pub sessions: u32,
    pub nodelay: bool,
    /// 4 or 6.
    pub ip: u8,
}

impl Default for Factors {
    fn default() -> Self {
        Factors {
            device: Device::Vmci,
            kernel: DEFAULT_KERNEL.into(),
            accelerator: None,
            machine: Machine::default(),
            qemu: None,
            guests: 2,
            cpus: 1,
            memory: 512,
            boot: 1,
            workers: None,
            nics: 1,
            to: Peer::Guest,
            uplinks: 1,
            mtu: None,
            offloads: Vec::new(),
            host_offloads: Vec::new(),
            coalesce: None,
            ring: None,
            moderation: None,
            rate: None,
            test: Test::Stream,
            tool: Tool::Vmlane,
            message: 64 << 10,
            buffer: None,
            sessions: 1,
            nodelay: false,
            ip: 4,
        }
    }
}

impl FromStr for Moderation {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Moderation> {
        // The driver counts microseconds from one interrupt to the next.
        if text == "off" { Ok(Moderation::Off) } else { Ok(Moderation::Rate(whole(text, 1000, 100_000)?)) }
    }
}

impl std::fmt::Display for Moderation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Moderation::Off => f.write_str("off"),
            Moderation::Rate(rate) => rate.fmt(f),
        }
    }
}

impl Tool {
    /// Whether the tool has such a test.
    fn knows(self, test: Test) -> bool {
        match self {
            Tool::Vmlane => true,
            Tool::Netperf => [Test::Stream, Test::Maerts, Test::Rr, Test::Crr].contains(&test),
            Tool::Iperf3 => [Test::Stream, Test::Maerts].contains(&test),
        }
    }

    const ALL: [(Tool, &str); 3] =
        [(Tool::Vmlane, "vmlane"), (Tool::Netperf, "netperf"), (Tool::Iperf3, "iperf3")];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(tool, _)| *tool == self).map_or("", |(_, name)| name)
    }
}

impl Peer {
    pub fn name(self) -> &'static str {
        if self == Peer::Guest { "guest" } else { "host" }
    }
}

/// A whole number within bounds.
fn whole<T: FromStr + PartialOrd + std::fmt::Display>(text: &str, least: T, most: T) -> Result<T> {
    let value = text.parse::<T>().ok().filter(|value| (&least..=&most).contains(&value));
    value.with_context(|| format!("{text:?} is no whole number from {least} to {most}"))
}

fn bytes(text: &str, most: u64) -> Result<u64> {
    let value = parse_size(text).map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!((1..=most).contains(&value), "{text:?}: from 1 byte to {}", size(most));
    Ok(value)
}

/// `1G`, `100M`: bits per second, in powers of 1000 as link speeds are.
fn bits(text: &str) -> Result<u64> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        Some(b'G') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    let value = digits.parse::<u64>().ok().and_then(|value| value.checked_mul(unit));
    let value = value.filter(|value| (1_000_000..=1_000_000_000_000).contains(value));
    value.with_context(|| format!("{text:?} is no rate from 1M to 1000G bit/s"))
}

fn rate_name(bits: u64) -> String {
    if bits.is_multiple_of(1_000_000_000) {
        format!("{}G", bits / 1_000_000_000)
    } else {
        format!("{}M", bits / 1_000_000)
    }
}

fn offloads(text: &str) -> Result<Vec<(String, String)>> {
    const KNOWN: [&str; 8] = ["tso", "gso", "gro", "lro", "tx", "rx", "sg", "rxhash"];
    let one = |pair: &str| -> Result<(String, String)> {
        let (name, state) = pair.split_once('=').unwrap_or((pair, ""));
        ensure!(
            KNOWN.contains(&name) && ["on", "off"].contains(&state),
            "{pair:?}: write NAME=on or NAME=off with NAME of {}",
            KNOWN.join(", ")
        );
        Ok((name.to_owned(), state.to_owned()))
    };
    text.split(',').map(one).collect()
}

fn offloads_name(offloads: &[(String, String)]) -> String {
    let pairs: Vec<String> = offloads.iter().map(|(name, state)| format!("{name}={state}")).collect();
    if pairs.is_empty() { "default".into() } else { pairs.join(",") }
}

/// Whether the driver may say when interrupts are held back: from revision 3 of VMXNET3 on.
fn is_moderated(device: &Device) -> bool {
    matches!(device, Device::Vmxnet3(nic) if nic.profile.as_deref() != Some("vmxnet2-class"))
}

/// `default` says that nothing is set.
fn optional<T>(text: &str, parse: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
    if text == "default" { Ok(None) } else { parse(text).map(Some) }
}

fn shown<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "default".into(), |value| value.to_string())
}

impl Factors {
    /// Sets one factor from its text.
    ///
    /// # Errors
    /// A factor that does not exist, a value that it does not take.
    pub fn set(&mut self, name: &str, text: &str) -> Result<()> {
        match name {
            "device" => self.device = text.parse()?,
            "profile" => {
                const PROFILES: [&str; 3] = ["vmxnet3", "vmxnet2-class", "full"];
                ensure!(PROFILES.contains(&text), "{text:?}: choose from {}", PROFILES.join(", "));
                match &mut self.device {
                    Device::Vmxnet3(nic) => nic.profile = Some(text.to_owned()),
                    other => bail!("{other} has none: it is a factor of vmlane's vmxnet3"),
                }
            }
            "queues" => match &mut self.device {
                Device::Vmxnet3(nic) => nic.queues = Some(whole(text, 1, 16)?),
                Device::VirtioNet(nic) => nic.queues = Some(whole(text, 1, 16)?),
                other => bail!("{other} has none: it is a factor of vmlane's vmxnet3 and virtio-net"),
            },
            "kernel" => {
                let known: Vec<&str> =
                    KERNELS.iter().map(|(version, ..)| *version).chain(UML_KERNELS).collect();
                ensure!(known.contains(&text), "{text:?}: choose from {}", known.join(", "));
                self.kernel = text.to_owned();
            }
            "accelerator" => {
                ensure!(["default", "kvm", "tcg"].contains(&text), "{text:?}: choose from default, kvm, tcg");
                self.accelerator = (text != "default").then(|| text.to_owned());
            }
            "machine" => self.machine = text.parse()?,
            "qemu" => {
                let known = QEMU_RELEASES.map(|(release, _)| release);
                let names = known.join(", ");
                ensure!(text == "default" || known.contains(&text), "{text:?}: choose from default, {names}");
                self.qemu = (text != "default").then(|| text.to_owned());
            }
            "guests" => self.guests = whole(text, 1, MOST_GUESTS as u32)?,
            "cpus" => self.cpus = whole(text, 1, 64)?,
            "memory" => self.memory = whole(text, 256, 1 << 20)?,
            "boot" => self.boot = whole(text, 1, 1000)?,
            "workers" => self.workers = optional(text, |text| whole(text, 1, MOST_WORKERS))?,
            "nics" => self.nics = whole(text, 1, MOST_NICS)?,
            "to" => {
                self.to = match text {
                    "guest" => Peer::Guest,
                    "host" => Peer::Host,
                    _ => bail!("{text:?}: choose from guest, host"),
                }
            }
            "uplinks" => self.uplinks = whole(text, 1, MOST_UPLINKS)?,
            "mtu" => self.mtu = optional(text, |text| whole(text, 576, 9000))?,
            "offloads" => self.offloads = optional(text, offloads)?.unwrap_or_default(),
            "host_offloads" => self.host_offloads = optional(text, offloads)?.unwrap_or_default(),
            "coalesce" => {
                let parse = |text: &str| {
                    text.parse().ok().with_context(|| format!("{text:?}: true, false or default"))
                };
                self.coalesce = optional(text, parse)?;
            }
            "ring" => self.ring = optional(text, |text| whole(text, 32, 4096))?,
            "moderation" => self.moderation = optional(text, str::parse)?,
            "rate" => self.rate = optional(text, bits)?,
            "test" => {
                let test = TESTS.into_iter().find(|test| test.name() == text);
                let names = TESTS.map(Test::name).join(", ");
                self.test = test.with_context(|| format!("{text:?}: choose from {names}"))?;
            }
            "tool" => {
                let found = Tool::ALL.iter().find(|(_, name)| *name == text);
                let names = Tool::ALL.map(|(_, name)| name).join(", ");
                self.tool = found.with_context(|| format!("{text:?}: choose from {names}"))?.0;
            }
            "message" => self.message = bytes(text, MOST_MESSAGE)?,
            "buffer" => self.buffer = optional(text, |text| bytes(text, MOST_BUFFER))?,
            "sessions" => self.sessions = whole(text, 1, 256)?,
            "nodelay" => {
                self.nodelay = text.parse().ok().with_context(|| format!("{text:?}: true or false"))?
            }
            "ip" => {
                self.ip = whole(text, 4, 6)?;
                ensure!(self.ip != 5, "5: choose from 4, 6");
            }
            _ => bail!("no such factor; there are {}", NAMES.join(", ")),
        }
        Ok(())
    }

    /// The value as plans and labels write it; empty for a factor that does not exist.
    pub fn text(&self, name: &str) -> String {
        let (profile, queues) = match &self.device {
            Device::Vmxnet3(nic) => (nic.profile.clone(), nic.queues),
            Device::VirtioNet(nic) => (None, nic.queues),
            _ => (None, None),
        };
        match name {
            "device" => self.device.to_string(),
            "profile" => shown(profile),
            "queues" => shown(queues),
            "kernel" => self.kernel.clone(),
            "accelerator" => shown(self.accelerator.clone()),
            "machine" => self.machine.to_string(),
            "qemu" => shown(self.qemu.clone()),
            "guests" => self.guests.to_string(),
            "cpus" => self.cpus.to_string(),
            "memory" => self.memory.to_string(),
            "boot" => self.boot.to_string(),
            "workers" => shown(self.workers),
            "nics" => self.nics.to_string(),
            "to" => self.to.name().to_owned(),
            "uplinks" => self.uplinks.to_string(),
            "mtu" => shown(self.mtu),
            "offloads" => offloads_name(&self.offloads),
            "host_offloads" => offloads_name(&self.host_offloads),
            "coalesce" => shown(self.coalesce),
            "ring" => shown(self.ring),
            "moderation" => shown(self.moderation),
            "rate" => shown(self.rate.map(rate_name)),
            "test" => self.test.name().to_owned(),
            "tool" => self.tool.name().to_owned(),
            "message" => size(self.message),
            "buffer" => shown(self.buffer.map(size)),
            "sessions" => self.sessions.to_string(),
            "nodelay" => self.nodelay.to_string(),
            "ip" => self.ip.to_string(),
            _ => String::new(),
        }
    }

    /// What tells this combination from all others: every factor that is not at its default.
    pub fn id(&self) -> String {
        let default = Factors::default();
        let differs = |name: &&&str| **name == "device" || self.text(name) != default.text(name);
        let pairs = NAMES.iter().filter(differs).filter(|name| !["profile", "queues"].contains(name));
        pairs.map(|name| format!("{name}={}", self.text(name))).collect::<Vec<_>>().join(" ")
    }

    /// The factor that makes the combination impossible, and why.
    pub fn impossible(&self) -> Option<(&'static str, String)> {
        let device = &self.device;
        let vsock = device.is_vsock();
        let e1000 = matches!(device, Device::QemuNic { model: NicModel::E1000 | NicModel::E1000e, .. });
        let card_only = [
            ("mtu", self.mtu.is_some()),
            ("offloads", !self.offloads.is_empty()),
            ("ring", self.ring.is_some()),
            ("nics", self.nics > 1),
            ("ip", self.ip == 6),
            ("nodelay", self.nodelay),
        ];
        if let Some((name, _)) = card_only.into_iter().find(|(_, set)| vsock && *set) {
            return Some((name, format!("{device} is no network card")));
        }
        if let Err(why) = machine::check(self.machine, self.qemu.as_deref(), std::slice::from_ref(device)) {
            return Some((if self.qemu.is_some() { "qemu" } else { "machine" }, why.to_string()));
        }
        let uml = self.machine == Machine::Uml;
        if uml != is_uml(&self.kernel) {
            let kernels = UML_KERNELS.join("\" or \"");
            return Some((
                "kernel",
                format!("machine = \"uml\" and kernel = \"{kernels}\" go together only"),
            ));
        }
        if uml && self.device.is_pci() && self.kernel != UML_PCI_KERNEL {
            return Some((
                "kernel",
                format!("{device} under User Mode Linux needs kernel = \"{UML_PCI_KERNEL}\""),
            ));
        }
        if uml && self.cpus > 1 {
            return Some(("cpus", "User Mode Linux has one processor".into()));
        }
        let host = self.to == Peer::Host;
        let why = match () {
            () if vsock && self.tool != Tool::Vmlane => {
                ("tool", format!("{} does not speak vsock", self.tool.name()))
            }
            () if host && !device.is_on_switch() && device.joined_by() != Some(Backend::Tap) => (
                "to",
                format!(
                    "the host is behind vmlane's switch or a bridge, and {device} is on neither; add :tap"
                ),
            ),
            () if host && *device == Device::UmlVector => {
                ("to", format!("the test host is in a network namespace, where {device} finds no bridge"))
            }
            () if host && !device.is_on_switch() && (self.uplinks > 1 || !self.host_offloads.is_empty()) => {
                ("uplinks", format!("uplinks are of vmlane's switch, and {device} is not on it"))
            }
            () if host && self.nics > self.uplinks => (
                "nics",
                format!("{} cards and uplinks = {}: each card has one of its own", self.nics, self.uplinks),
            ),
            () if host && self.tool != Tool::Vmlane => ("tool", "on the host only vmlane answers".into()),
            () if !host && self.guests % 2 == 1 => {
                ("guests", format!("{} guests do not make pairs", self.guests))
            }
            () if !host && (self.rate.is_some() || self.uplinks > 1 || !self.host_offloads.is_empty()) => {
                let name = match (self.rate, self.uplinks) {
                    (Some(_), _) => "rate",
                    (None, 1) => "host_offloads",
                    (None, _) => "uplinks",
                };
                (name, "it is of uplinks, and there are none; add to = \"host\"".into())
            }
            () if self.coalesce.is_some() && !device.is_on_switch() => {
                ("coalesce", format!("it is of vmlane's switch, and {device} is not on it"))
            }
            () if self.workers.is_some() && !device.is_ours() => {
                ("workers", format!("they are vmlane's, and {device} is not"))
            }
            () if self.moderation.is_some() && !is_moderated(device) => (
                "moderation",
                format!("{device} does not leave it to its driver: use vmxnet3 or its profile full"),
            ),
            () if self.ring.is_some() && e1000 => {
                ("ring", format!("{device} takes 80 to 4096 in steps of its own"))
            }
            () if self.ring.is_some() && *device == Device::UmlVector => {
                ("ring", format!("{device} has none that a guest may set"))
            }
            () if !self.tool.knows(self.test) => {
                ("test", format!("{} has no {}", self.tool.name(), self.test.name()))
            }
            () => return None,
        };
        Some(why)
    }
}

#[cfg(test)]
mod tests;
