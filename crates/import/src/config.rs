//! Machines as vmlane's configuration.

mod hosts;
mod networks;
mod output;
mod switches;
mod team;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use vmlane_wire::ethernet::Mac;

use self::output::Output;
use crate::esxi::Host;
use crate::machine::{MOST_NICS, Machine, Nic, Note, Reach};
use crate::names::{Names, quoted};

/// vmlane takes so many queues and no more.
const QUEUES: std::ops::RangeInclusive<u16> = 1..=32;
const MTUS: std::ops::RangeInclusive<u16> = 1280..=9190;

/// What the description does not contain.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The isolation group of all.
    pub group: Option<String>,
    /// The CID of the first VM with a vsock device; the others get the next ones. None: their own,
    /// or free ones from 3 on.
    pub cid: Option<u32>,
    /// The networks of the old hosts.
    pub hosts: Vec<Host>,
}

/// vmlane's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub toml: String,
    /// The VMs' names in it, in the order of the machines; None: nothing of it is vmlane's, and it
    /// is left out.
    pub names: Vec<Option<String>>,
    /// What is otherwise than it was, those of the machines included.
    pub notes: Vec<Note>,
}

/// Writes the configuration of machines.
pub fn configuration(machines: &[Machine], options: &Options) -> Configuration {
    let mut taken = Names::default();
    let names: Vec<String> = machines.iter().map(|machine| taken.take(&machine.name, "vm")).collect();
    let mut out = Output::new();
    let groups = networks::write(machines, &names, &options.hosts, &mut out);
    let mut writer = Writer {
        options,
        out,
        cids: BTreeMap::new(),
        // CIDs that VMs had are kept for them.
        kept: machines.iter().filter_map(own_cid).filter(|_| options.cid.is_none()).collect(),
        macs: BTreeMap::new(),
    };
    let mut served = Vec::new();
    for ((machine, name), groups) in machines.iter().zip(names).zip(groups) {
        if name != machine.name {
            writer.out.note(format!("name {:?}", machine.name), format!("is {name:?} in vmlane"));
        }
        let is_served = writer.vm(&name, machine, &groups);
        writer.out.notes.extend(machine.notes.iter().cloned().chain(machine.common_notes()).map(|note| {
            let what = if machines.len() > 1 { format!("{name}: {}", note.what) } else { note.what };
            Note { what, then: note.then }
        }));
        served.push(Some(name).filter(|_| is_served));
    }
    let Output { toml, notes, .. } = writer.out;
    Configuration { toml, names: served, notes }
}

/// CIDs of vmlane: those below are reserved, and guests take one above for a negative number.
const CIDS: std::ops::RangeInclusive<u32> = 3..=i32::MAX as u32;

/// A CID that a VM may keep.
fn own_cid(machine: &Machine) -> Option<u32> {
    machine.vsock?.cid.filter(|cid| CIDS.contains(cid))
}

struct Writer<'a> {
    options: &'a Options,
    out: Output,
    /// Those that are given, and to which VM.
    cids: BTreeMap<u32, String>,
    /// Those that VMs had.
    kept: BTreeSet<u32>,
    /// Addresses, and the cards that have them.
    macs: BTreeMap<Mac, String>,
}

impl Writer<'_> {
    /// The VM's own CID if it is the first that has it, else one that no VM has or had.
    fn cid(&mut self, name: &str, machine: &Machine) -> u32 {
        if let (None, Some(own)) = (self.options.cid, own_cid(machine)) {
            if let Some(other) = self.cids.get(&own) {
                self.out.note(
                    format!("{name}: CID {own}"),
                    format!("is that of {other}, too; this VM gets another one"),
                );
            } else {
                self.cids.insert(own, name.to_owned());
                return own;
            }
        }
        let from = self.options.cid.unwrap_or(3).max(3);
        let is_free = |cid: &u32| !self.cids.contains_key(cid) && !self.kept.contains(cid);
        let free = (from..=*CIDS.end()).chain(*CIDS.start()..from).find(is_free).unwrap_or(from);
        self.cids.insert(free, name.to_owned());
        free
    }

    /// Writes a VM, whose cards are in these port groups, if there is something to serve.
    fn vm(&mut self, name: &str, machine: &Machine, groups: &[String]) -> bool {
        let cards = self.cards(name, machine, groups);
        if machine.vsock.is_none() && cards.is_empty() {
            self.out.note(
                format!("vm {name:?}"),
                "is left out: with neither a card nor VMCI there is nothing to serve",
            );
            return false;
        }
        let _ = writeln!(self.out.toml, "[[vm]]\nname = {}", quoted(name));
        if let Some(group) = &self.options.group {
            let _ = writeln!(self.out.toml, "group = {}", quoted(group));
        }
        let kind = match machine.vsock {
            None => "none",
            Some(vsock) => {
                let cid = self.cid(name, machine);
                let _ = writeln!(self.out.toml, "cid = {cid}");
                if vsock.cid != Some(cid) {
                    let was = vsock.cid.map_or_else(|| "not given".into(), |cid| cid.to_string());
                    self.out.note(format!("{name}: CID"), format!("was {was}, and is {cid}"));
                }
                vsock.model.name()
            }
        };
        let _ = writeln!(self.out.toml, "vsock = {}", quoted(kind));
        if machine.vsock.is_some_and(|vsock| vsock.reach == Reach::Host) {
            let _ = writeln!(self.out.toml, "restricted = true");
        }
        if !cards.is_empty() {
            let lines: String = cards.iter().map(|card| format!("  {{ {card} }},\n")).collect();
            let _ = writeln!(self.out.toml, "nic = [\n{lines}]");
        }
        self.out.toml.push('\n');
        true
    }

    /// The lines of a VM's cards, each in its port group.
    fn cards(&mut self, name: &str, machine: &Machine, groups: &[String]) -> Vec<String> {
        if machine.nics.len() > MOST_NICS {
            let count = machine.nics.len();
            self.out.note(
                format!("{name}: {count} cards"),
                format!("vmlane serves {MOST_NICS} of a VM; the others are left out"),
            );
        }
        let mut slots = BTreeMap::new();
        let cards = machine.nics.iter().zip(groups);
        cards.map(|(nic, group)| self.nic(name, nic, group, &mut slots)).collect()
    }

    fn nic(&mut self, vm: &str, nic: &Nic, group: &str, slots: &mut BTreeMap<u16, String>) -> String {
        let place = format!("{vm}: {}", nic.place);
        let mut keys = vec![format!("model = {}", quoted(nic.model.name()))];
        keys.push(format!("port_group = {}", quoted(group)));
        if let Some(mac) = nic.mac {
            match self.macs.get(&mac) {
                None => {
                    keys.push(format!("mac = {}", quoted(&mac.to_string())));
                    self.macs.insert(mac, place.clone());
                }
                Some(other) => {
                    let then = format!("is left out: {other} has it, too; vmlane chooses another one");
                    self.out.note(format!("{place}: MAC address {mac}"), then);
                }
            }
        }
        if let Some(slot) = nic.slot {
            match slots.get(&slot) {
                None => {
                    keys.push(format!("slot = {slot}"));
                    slots.insert(slot, nic.place.clone());
                }
                Some(other) => {
                    let then = format!("is left out: {other} is in it, too; QEMU chooses another one");
                    self.out.note(format!("{place}: slot {slot}"), then);
                }
            }
        }
        let mut number = |key: &str, value: Option<u16>, range: std::ops::RangeInclusive<u16>| match value {
            Some(value) if range.contains(&value) => keys.push(format!("{key} = {value}")),
            Some(value) => {
                let (low, high) = (range.start(), range.end());
                let what = format!("{place}: {key} = {value}");
                self.out.note(what, format!("is left out: vmlane takes {low} to {high}"));
            }
            None => {}
        };
        number("mtu", nic.mtu, MTUS);
        number("queues", nic.queues, QUEUES);
        keys.join(", ")
    }
}
