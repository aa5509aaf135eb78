//! Machines as vmlane's configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::esxi::{PortGroup, Vlan};
use crate::machine::{Machine, Nic, Note};
use crate::names::Names;

/// vmlane takes so many queues and no more.
const QUEUES: std::ops::RangeInclusive<u16> = 1..=32;
const MTUS: std::ops::RangeInclusive<u16> = 1280..=9190;
const MOST_NICS: usize = 10;
/// VLANs for networks of which nothing else is known.
const APART: std::ops::Range<u16> = 3001..4095;

/// What the description does not say.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The isolation group of all.
    pub group: Option<String>,
    /// The CID of the first VM with a vsock device; the others get the next ones. None: their own, or free ones from 3 on.
    pub cid: Option<u32>,
    /// The port groups of the old host.
    pub port_groups: Vec<PortGroup>,
}

/// vmlane's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub toml: String,
    /// The VMs' names in it, in the order of the machines; None: nothing of it is vmlane's, and it is left out.
    pub names: Vec<Option<String>>,
    /// What is otherwise than it was, those of the machines included.
    pub notes: Vec<Note>,
}

/// Writes the configuration of machines.
pub fn configuration(machines: &[Machine], options: &Options) -> Configuration {
    let mut writer = Writer {
        options,
        notes: Vec::new(),
        groups: Names::default(),
        known: BTreeMap::new(),
        toml: String::new(),
        cids: BTreeSet::new(),
    };
    writer.port_groups(machines.iter().flat_map(|machine| &machine.nics));
    // CIDs that VMs had are kept for them.
    if options.cid.is_none() {
        writer.cids.extend(machines.iter().filter_map(own_cid));
    }
    let mut names = Names::default();
    let mut taken = Vec::new();
    for machine in machines {
        let name = names.take(&machine.name, "vm");
        if name != machine.name {
            writer.note(format!("name {:?}", machine.name), format!("is {name:?} in vmlane"));
        }
        let is_served = machine.vsock.is_some() || !machine.nics.is_empty();
        if is_served {
            writer.vm(&name, machine);
        } else {
            writer.note(
                format!("vm {name:?}"),
                "is left out: with neither a card nor VMCI there is nothing to serve",
            );
        }
        writer.notes.extend(machine.notes.iter().map(|note| {
            let what = if machines.len() > 1 { format!("{name}: {}", note.what) } else { note.what.clone() };
            Note { what, then: note.then.clone() }
        }));
        taken.push(Some(name).filter(|_| is_served));
    }
    writer.switches();
    let Writer { toml, notes, .. } = writer;
    Configuration { toml, names: taken, notes }
}

/// CIDs of vmlane: those below are reserved, and guests take one above for a negative number.
const CIDS: std::ops::RangeInclusive<u32> = 3..=i32::MAX as u32;

/// A CID that a VM may keep.
fn own_cid(machine: &Machine) -> Option<u32> {
    machine.vsock?.cid.filter(|cid| CIDS.contains(cid))
}

struct Writer<'a> {
    options: &'a Options,
    notes: Vec<Note>,
    groups: Names,
    /// Port groups by the network and the VLAN that cards name.
    known: BTreeMap<(String, Option<u16>), String>,
    toml: String,
    cids: BTreeSet<u32>,
}

/// A string as TOML has it: JSON's escapes are TOML's.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(control));
            }
            plain => out.push(plain),
        }
    }
    out + "\""
}

impl Writer<'_> {
    fn note(&mut self, what: impl Into<String>, then: impl Into<String>) {
        self.notes.push(Note { what: what.into(), then: then.into() });
    }

    /// Writes the port groups of all cards, each once.
    fn port_groups<'n>(&mut self, nics: impl Iterator<Item = &'n Nic>) {
        let mut keys: Vec<(&str, Option<u16>)> = Vec::new();
        for nic in nics {
            let key = nic.network.as_deref().map(|network| (network, nic.vlan));
            keys.extend(key.filter(|key| !keys.contains(key)));
        }
        let told: Vec<Option<Vlan>> = keys.iter().map(|key| self.told(*key)).collect();
        let mut used: BTreeSet<u16> = told.iter().flatten().filter_map(|vlan| vlan.number()).collect();
        for (key, told) in keys.into_iter().zip(told) {
            // Networks that were different ones stay apart.
            let vlan = told.unwrap_or_else(|| {
                let free = [0].into_iter().chain(APART).find(|vlan| !used.contains(vlan)).unwrap_or(0);
                used.insert(free);
                self.note_chosen(key.0, free);
                if free == 0 { Vlan::None } else { Vlan::Tagged(free) }
            });
            self.port_group(key, vlan);
        }
    }

    /// The VLAN of a network, as far as it is known.
    fn told(&self, (network, vlan): (&str, Option<u16>)) -> Option<Vlan> {
        let listed = || self.options.port_groups.iter().find(|group| group.name == network);
        vlan.map(Vlan::Tagged).or_else(|| listed().map(|group| group.vlan))
    }

    fn note_chosen(&mut self, network: &str, vlan: u16) {
        let why = if self.options.port_groups.is_empty() {
            "its VLAN is not in this description: give --port-groups, or set vlan yourself"
        } else {
            "is none of the port groups that --port-groups lists: set vlan yourself"
        };
        let apart =
            if vlan == 0 { String::new() } else { format!(" ({vlan} keeps it apart from the others)") };
        self.note(format!("network {network:?}"), format!("{why}{apart}"));
    }

    fn port_group(&mut self, (network, vlan): (&str, Option<u16>), is: Vlan) {
        let wish = vlan.map_or_else(|| network.to_owned(), |vlan| format!("{network}-vlan{vlan}"));
        let name = self.groups.take(&wish, "network");
        let _ = writeln!(self.toml, "[[port_group]]\nname = {}", quoted(&name));
        if name != network {
            let _ = writeln!(self.toml, "# was {}", quoted(network));
        }
        let is = is.number().map_or_else(|| quoted("trunk"), |vlan| vlan.to_string());
        let _ = writeln!(self.toml, "vlan = {is}\n");
        self.known.insert((network.to_owned(), vlan), name);
    }

    fn cid(&mut self, machine: &Machine) -> u32 {
        if let (None, Some(own)) = (self.options.cid, own_cid(machine)) {
            return own;
        }
        let from = self.options.cid.unwrap_or(3).max(3);
        let free = (from..=*CIDS.end()).find(|cid| !self.cids.contains(cid)).unwrap_or(from);
        self.cids.insert(free);
        free
    }

    fn vm(&mut self, name: &str, machine: &Machine) {
        let _ = writeln!(self.toml, "[[vm]]\nname = {}", quoted(name));
        if let Some(group) = &self.options.group {
            let _ = writeln!(self.toml, "group = {}", quoted(group));
        }
        let kind = match machine.vsock {
            None => "none",
            Some(vsock) => {
                let cid = self.cid(machine);
                let _ = writeln!(self.toml, "cid = {cid}");
                if vsock.cid != Some(cid) {
                    let was = vsock.cid.map_or_else(|| "not told".into(), |cid| cid.to_string());
                    self.note(format!("{name}: CID"), format!("was {was}, and is {cid}"));
                }
                if vsock.vmci { "vmci" } else { "virtio" }
            }
        };
        let _ = writeln!(self.toml, "vsock = {}", quoted(kind));
        if machine.nics.len() > MOST_NICS {
            let count = machine.nics.len();
            self.note(
                format!("{name}: {count} cards"),
                format!("vmlane serves {MOST_NICS} of a VM; the others are left out"),
            );
        }
        if !machine.nics.is_empty() {
            let _ = writeln!(self.toml, "nic = [");
            for nic in machine.nics.iter().take(MOST_NICS) {
                let line = self.nic(name, nic);
                let _ = writeln!(self.toml, "  {{ {line} }},");
            }
            let _ = writeln!(self.toml, "]");
        }
        self.toml.push('\n');
    }

    fn nic(&mut self, vm: &str, nic: &Nic) -> String {
        let mut keys = vec![format!("model = {}", quoted(nic.model.name()))];
        let group = nic.network.clone().and_then(|network| self.known.get(&(network, nic.vlan)));
        keys.extend(group.map(|group| format!("port_group = {}", quoted(group))));
        keys.extend(nic.mac.map(|mac| format!("mac = {}", quoted(&mac.to_string()))));
        keys.extend(nic.slot.map(|slot| format!("slot = {slot}")));
        let mut number = |key: &str, value: Option<u16>, range: std::ops::RangeInclusive<u16>| match value {
            Some(value) if range.contains(&value) => keys.push(format!("{key} = {value}")),
            Some(value) => {
                let (low, high) = (range.start(), range.end());
                let what = format!("{vm}: {}: {key} = {value}", nic.place);
                self.notes.push(Note { what, then: format!("is left out: vmlane takes {low} to {high}") });
            }
            None => {}
        };
        number("mtu", nic.mtu, MTUS);
        number("queues", nic.queues, QUEUES);
        keys.join(", ")
    }

    /// Port groups of several switches are one network in vmlane if their VLANs are the same.
    fn switches(&mut self) {
        let used = self
            .options
            .port_groups
            .iter()
            .filter(|group| self.known.keys().any(|(network, _)| *network == group.name));
        let used: Vec<&PortGroup> = used.collect();
        let mut met = Vec::new();
        for (at, one) in used.iter().enumerate() {
            let meets = |other: &&&PortGroup| other.switch != one.switch && other.vlan == one.vlan;
            met.extend(used.iter().skip(at + 1).filter(meets).map(|other| (one, *other)));
        }
        for (one, other) in met {
            self.notes.push(Note {
                what: format!("port groups {:?} and {:?}", one.name, other.name),
                then: format!(
                    "were on different switches ({}, {}) with the same VLAN; in vmlane they are one network. Give one of them another vlan",
                    one.switch, other.switch
                ),
            });
        }
    }
}
