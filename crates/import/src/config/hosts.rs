//! The switches of all listed hosts, as one host has them.
//!
//! A distributed switch is one switch on all hosts. So is a standard switch of one name: in a cluster, a VM
//! finds its network by that name wherever it runs. But one without uplinks reaches its own host only, so
//! each stays a switch of its own.

use std::collections::BTreeMap;

use crate::esxi::{Host, Policies, PortGroup, Unknown, VirtualSwitch, Vlan};
use crate::machine::Note;
use crate::network::Switch;

/// A switch, of one host or of several.
#[derive(Debug)]
pub struct Merged<'a> {
    pub of: Switch,
    /// It is of this host alone, and another host has one of its name.
    pub only: Option<&'a str>,
    /// Its part on each host.
    pub parts: Vec<(&'a Host, &'a VirtualSwitch)>,
    pub groups: Vec<Group>,
}

/// A port group of it.
#[derive(Debug)]
pub struct Group {
    pub name: String,
    pub vlan: Result<Vlan, Unknown>,
    /// Its own, and its switch's where it has none.
    pub policies: Policies,
}

impl<'a> Merged<'a> {
    /// The part that decides where several hosts differ: the first one that leads out.
    pub fn first(&self) -> Option<(&'a Host, &'a VirtualSwitch)> {
        let leads_out = |(_, part): &&(&Host, &VirtualSwitch)| !uplinks(part).is_empty();
        self.parts.iter().find(leads_out).or(self.parts.first()).copied()
    }

    /// What it is called, if anything.
    pub fn wish(&self) -> String {
        let name = self.parts.iter().find_map(|(_, part)| part.name.clone());
        let name = name.unwrap_or_else(|| self.of.wish());
        self.only.map_or(name.clone(), |host| format!("{name}-{host}"))
    }

    /// The names of its hosts, for notes.
    pub fn hosts(&self) -> String {
        self.parts.iter().map(|(host, _)| host.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

pub fn uplinks(part: &VirtualSwitch) -> &[String] {
    part.uplinks.as_deref().unwrap_or_default()
}

/// All switches in the order of the listings, and port groups whose switch is not known.
pub fn merge<'a>(hosts: &'a [Host], notes: &mut Vec<Note>) -> (Vec<Merged<'a>>, Vec<Group>) {
    let mut merged: Vec<Merged<'a>> = Vec::new();
    let mut places: BTreeMap<(Switch, Option<usize>), usize> = BTreeMap::new();
    let mut loose: Vec<Group> = Vec::new();
    for (number, host) in hosts.iter().enumerate() {
        let mut of_host: BTreeMap<&Switch, usize> = BTreeMap::new();
        for part in &host.switches {
            let is_alone = hosts.len() > 1 && part.uplinks.as_ref().is_some_and(Vec::is_empty);
            let key = (part.of.clone(), is_alone.then_some(number));
            let at = *places.entry(key).or_insert_with(|| {
                let only = is_alone.then_some(host.name.as_str());
                merged.push(Merged { of: part.of.clone(), only, parts: Vec::new(), groups: Vec::new() });
                merged.len() - 1
            });
            of_host.insert(&part.of, at);
            if let Some(switch) = merged.get_mut(at) {
                switch.parts.push((host, part));
            }
        }
        let mut taken: BTreeMap<(usize, String), usize> = BTreeMap::new();
        for (at, switch) in merged.iter().enumerate() {
            taken.extend(
                switch.groups.iter().enumerate().map(|(group, found)| ((at, found.name.clone()), group)),
            );
        }
        for group in &host.port_groups {
            let at = group.switch.as_ref().and_then(|of| of_host.get(of)).copied();
            let switch = at.and_then(|at| merged.get_mut(at).map(|switch| (at, switch)));
            match switch {
                Some((at, switch)) => {
                    let known = taken.get(&(at, group.name.clone())).copied();
                    add(switch, known, host, group, notes);
                }
                None => loose.push(of_listing(group, None)),
            }
        }
    }
    (merged, loose)
}

fn of_listing(group: &PortGroup, of: Option<&VirtualSwitch>) -> Group {
    let policies = of.map_or_else(|| group.policies.clone(), |of| group.policies.or(&of.policies));
    Group { name: group.name.clone(), vlan: group.vlan.clone(), policies }
}

/// A port group of a host's switch, which other hosts may have, too.
fn add(switch: &mut Merged<'_>, known: Option<usize>, host: &Host, group: &PortGroup, notes: &mut Vec<Note>) {
    let part = switch.parts.iter().find(|(other, _)| std::ptr::eq(*other, host)).map(|(_, part)| *part);
    let found = of_listing(group, part);
    let Some(known) = known.and_then(|at| switch.groups.get_mut(at)) else {
        switch.groups.push(found);
        return;
    };
    // Distributed port groups are one by their ids, whatever a host lists of them.
    let is_missing = |vlan: &Result<Vlan, Unknown>| *vlan == Err(Unknown::Missing);
    match switch.of {
        Switch::Distributed(_) if is_missing(&found.vlan) => {}
        Switch::Distributed(_) if is_missing(&known.vlan) => known.vlan = found.vlan,
        _ if known.vlan != found.vlan => known.vlan = Err(Unknown::Several),
        _ => {}
    }
    // Of uplinks there is one order for all.
    let kept = |policies: &Policies| (policies.security, policies.shaping.clone());
    if kept(&known.policies) != kept(&found.policies) {
        notes.push(Note {
            what: format!("{}: port group {:?}", host.name, group.name),
            then: "has other security or shaping than on a host before it, whose is taken".into(),
        });
    }
}
