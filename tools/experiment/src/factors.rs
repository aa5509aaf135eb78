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

/// Makes of one line for each factor the struct with its value, the names, and what reads and shows the
/// values. A line has type, default, the value of a text and the text of a value.
macro_rules! factors {
    ($($(#[doc = $doc:literal])* $name:ident: $type:ty = $default:expr, |$text:ident| $read:expr, |$value:ident| $show:expr;)*) => {
        /// Names of factors, as plans and rows write them.
        pub const NAMES: &[&str] = &["device", "profile", "queues", $(stringify!($name)),*];

        /// One value of every factor, so a field for each; the defaults are what a plan may omit.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Factors {
            /// With its profile and its queues.
            pub device: Device,
            $($(#[doc = $doc])* pub $name: $type,)*
        }

        impl Default for Factors {
            fn default() -> Self {
                Factors { device: Device::Vmci, $($name: $default,)* }
            }
        }

        impl Factors {
            fn set_value(&mut self, name: &str, text: &str) -> Result<()> {
                match name {
                    $(stringify!($name) => self.$name = { let $text = text; $read },)*
                    _ => bail!("no such factor; there are {}", NAMES.join(", ")),
                }
                Ok(())
            }

            fn value_text(&self, name: &str) -> String {
                match name {
                    $(stringify!($name) => { let $value = &self.$name; $show })*
                    _ => String::new(),
                }
            }
        }
    };
}

factors! {
    kernel: String = DEFAULT_KERNEL.into(), |text| kernel(text)?, |it| it.clone();
    /// None leaves the choice to the lab.
    accelerator: Option<String> = None, |text| optional(text, |text| one_of(text, &["kvm", "tcg"]))?, |it| shown(it.as_ref());
    machine: Machine = Machine::default(), |text| text.parse()?, |it| it.to_string();
    /// An older release; none is one of 10.1 or later.
    qemu: Option<String> = None,
        |text| optional(text, |text| one_of(text, &QEMU_RELEASES.map(|(release, _)| release)))?, |it| shown(it.as_ref());
    guests: u32 = 2, |text| whole(text, 1, MOST_GUESTS as u32)?, |it| it.to_string();
    cpus: u32 = 1, |text| whole(text, 1, 64)?, |it| it.to_string();
    /// MiB a guest.
    memory: u32 = 512, |text| whole(text, 256, 1 << 20)?, |it| it.to_string();
    /// Only distinguishes labs: what is measured in a lab of its own for each number shows what a boot does
    /// to it.
    boot: u32 = 1, |text| whole(text, 1, 1000)?, |it| it.to_string();
    /// Threads that move streams and frames; None leaves that to the daemon.
    workers: Option<u32> = None, |text| optional(text, |text| whole(text, 1, MOST_WORKERS))?, |it| shown(it.as_ref());
    /// Cards of the device, in each guest; each has clients of its own.
    nics: u32 = 1, |text| whole(text, 1, MOST_NICS)?, |it| it.to_string();
    to: Peer = Peer::Guest, |text| named(text, &Peer::ALL)?, |it| it.name().to_owned();
    /// Of a lab with test hosts: each is a network of its own, and the cards are spread over them.
    uplinks: u32 = 1, |text| whole(text, 1, MOST_UPLINKS)?, |it| it.to_string();
    mtu: Option<u16> = None, |text| optional(text, |text| whole(text, 576, 9000))?, |it| shown(it.as_ref());
    /// What `ethtool -K` is given, as `tso=off,lro=off`.
    offloads: Vec<(String, String)> = Vec::new(),
        |text| optional(text, offloads)?.unwrap_or_default(), |it| offloads_name(it);
    /// The same for the test hosts' ends of the uplinks.
    host_offloads: Vec<(String, String)> = Vec::new(),
        |text| optional(text, offloads)?.unwrap_or_default(), |it| offloads_name(it);
    /// Whether the switch merges segments to super-frames; None leaves that to the daemon.
    coalesce: Option<bool> = None, |text| optional(text, is_on)?, |it| shown(it.as_ref());
    /// Descriptors of each ring.
    ring: Option<u32> = None, |text| optional(text, |text| whole(text, 32, 4096))?, |it| shown(it.as_ref());
    /// When a card's interrupts are held back; None leaves it as the driver begins.
    moderation: Option<Moderation> = None, |text| optional(text, str::parse)?, |it| shown(it.as_ref());
    /// Bits per second that each uplink carries.
    rate: Option<u64> = None, |text| optional(text, bits)?, |it| shown(it.map(rate_name));
    test: Test = Test::Stream, |text| named(text, &TESTS.map(|test| (test, test.name())))?, |it| it.name().to_owned();
    tool: Tool = Tool::Vmlane, |text| named(text, &Tool::ALL)?, |it| it.name().to_owned();
    /// Bytes of a send; for round trips of the request and of the response.
    message: u64 = 64 << 10, |text| bytes(text, MOST_MESSAGE)?, |it| size(*it);
    /// None leaves the kernel's default.
    buffer: Option<u64> = None, |text| optional(text, |text| bytes(text, MOST_BUFFER))?, |it| shown(it.map(size));
    /// Connections of each client.
    sessions: u32 = 1, |text| whole(text, 1, 256)?, |it| it.to_string();
    nodelay: bool = false, |text| is_on(text)?, |it| it.to_string();
    /// 4 or 6.
    ip: u8 = 4, |text| named(text, &[(4, "4"), (6, "6")])?, |it| it.to_string();
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
    const ALL: [(Peer, &str); 2] = [(Peer::Guest, "guest"), (Peer::Host, "host")];

    pub fn name(self) -> &'static str {
        if self == Peer::Guest { "guest" } else { "host" }
    }
}

/// One of several values, by its name.
fn named<T: Copy>(text: &str, known: &[(T, &str)]) -> Result<T> {
    let found = known.iter().find(|(_, name)| *name == text).map(|(value, _)| *value);
    let names = || known.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
    found.with_context(|| format!("{text:?}: choose from {}", names()))
}

fn one_of(text: &str, known: &[&str]) -> Result<String> {
    named(text, &known.iter().map(|name| (*name, *name)).collect::<Vec<_>>()).map(str::to_owned)
}

fn kernel(text: &str) -> Result<String> {
    one_of(text, &KERNELS.iter().map(|(version, ..)| *version).chain(UML_KERNELS).collect::<Vec<_>>())
}

fn is_on(text: &str) -> Result<bool> {
    named(text, &[(true, "true"), (false, "false")])
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

/// Whether the driver can set the moderation of interrupts: from revision 3 of VMXNET3 on.
fn is_moderated(device: &Device) -> bool {
    matches!(device, Device::Vmxnet3(nic) if nic.profile.as_deref() != Some("vmxnet2-class"))
}

/// `default`: nothing is set.
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
        match (name, &mut self.device) {
            ("device", device) => *device = text.parse()?,
            ("profile", Device::Vmxnet3(nic)) => {
                nic.profile = Some(one_of(text, &["vmxnet3", "vmxnet2-class", "full"])?);
            }
            ("profile", other) => bail!("{other} has none: it is a factor of vmlane's vmxnet3"),
            ("queues", Device::Vmxnet3(nic)) => nic.queues = Some(whole(text, 1, 16)?),
            ("queues", Device::VirtioNet(nic)) => nic.queues = Some(whole(text, 1, 16)?),
            ("queues", other) => {
                bail!("{other} has none: it is a factor of vmlane's vmxnet3 and virtio-net")
            }
            _ => self.set_value(name, text)?,
        }
        Ok(())
    }

    /// The value as plans and labels write it; empty for a factor that does not exist.
    pub fn text(&self, name: &str) -> String {
        match (name, &self.device) {
            ("device", device) => device.to_string(),
            ("profile", Device::Vmxnet3(nic)) => shown(nic.profile.as_ref()),
            ("queues", Device::Vmxnet3(nic)) => shown(nic.queues),
            ("queues", Device::VirtioNet(nic)) => shown(nic.queues),
            ("profile" | "queues", _) => "default".into(),
            _ => self.value_text(name),
        }
    }

    /// What distinguishes this combination from all others: every factor that is not at its default.
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
