//! Which items of an envelope count: those of one configuration (DSP0243, 9.8), and none that are
//! bounds of a range.

use std::collections::BTreeSet;

use roxmltree::Node;

use crate::Error;
use crate::machine::Machine;
use crate::xml::{all, attribute, first, text};

/// The configuration that is taken.
#[derive(Debug)]
pub struct Deployment<'a> {
    chosen: Option<&'a str>,
    /// It was asked for; else it is the envelope's own default.
    is_asked: bool,
    declared: Vec<&'a str>,
}

impl<'a> Deployment<'a> {
    pub fn of<'i: 'a>(root: Node<'a, 'i>, wanted: Option<&str>) -> Result<Deployment<'a>, Error> {
        let section = first(root, "DeploymentOptionSection");
        let nodes: Vec<Node<'a, 'i>> =
            section.into_iter().flat_map(|section| all(section, "Configuration")).collect();
        let declared: Vec<&str> = nodes.iter().filter_map(|node| attribute(*node, "id")).collect();
        let is_default = |node: &&Node<'a, 'i>| {
            attribute(**node, "default").is_some_and(|value| ["true", "1"].contains(&value))
        };
        let chosen = match wanted {
            None => nodes.iter().find(is_default).or(nodes.first()).and_then(|node| attribute(*node, "id")),
            Some(wanted) => Some(*declared.iter().find(|id| **id == wanted).ok_or_else(|| {
                let declared = declared.iter().map(|id| format!("{id:?}")).collect();
                Error::NoConfiguration { wanted: wanted.into(), declared }
            })?),
        };
        Ok(Deployment { chosen, is_asked: wanted.is_some(), declared })
    }

    /// Which configuration it is, and which others there are.
    pub fn note(&self, machine: &mut Machine) {
        let Some(chosen) = self.chosen else { return };
        let others: Vec<String> =
            self.declared.iter().filter(|id| **id != chosen).map(|id| format!("{id:?}")).collect();
        if !others.is_empty() {
            let why = if self.is_asked { "is taken" } else { "is the default one, and is taken" };
            machine.note(
                format!("configuration {chosen:?}"),
                format!("{why}; the envelope also has {}: --configuration NAME", others.join(", ")),
            );
        }
    }

    /// The items of a VM's hardware that count, in the envelope's order.
    pub fn items<'i: 'a>(&self, hardware: Node<'a, 'i>, machine: &mut Machine) -> Vec<Node<'a, 'i>> {
        let mut items: Vec<(Node<'a, 'i>, bool)> = Vec::new();
        let (mut bounds, mut unknown) = (0_usize, Vec::new());
        for item in hardware.children() {
            if !["Item", "StorageItem", "EthernetPortItem"].contains(&item.tag_name().name()) {
                continue;
            }
            // The least and the most that a VM may be given; what it is given stands in an item without this.
            if attribute(item, "bound").is_some_and(|bound| bound != "normal") {
                bounds += 1;
                continue;
            }
            let of = attribute(item, "configuration").filter(|of| !of.trim().is_empty());
            let Some(of) = of else {
                items.push((item, false));
                continue;
            };
            let ids: Vec<&str> = of.split_whitespace().collect();
            if self.chosen.is_some_and(|chosen| ids.contains(&chosen)) {
                items.push((item, true));
            } else if ids.iter().all(|id| !self.declared.contains(id)) {
                unknown.push(of);
            }
        }
        if bounds > 0 {
            machine.note(
                format!("items with a bound ({bounds})"),
                "are not carried over: they limit the range that the VM may be given",
            );
        }
        unknown.sort_unstable();
        unknown.dedup();
        for of in unknown {
            machine.note(
                format!("items of the configuration {of:?}"),
                "are left out: the envelope declares no such configuration",
            );
        }
        // An item of the configuration takes the place of the general one of the same instance.
        let special: BTreeSet<&str> = items
            .iter()
            .filter(|(_, is_special)| *is_special)
            .filter_map(|(item, _)| text(*item, "InstanceID"))
            .collect();
        items.retain(|(item, is_special)| {
            *is_special || text(*item, "InstanceID").is_none_or(|id| !special.contains(id))
        });
        items.into_iter().map(|(item, _)| item).collect()
    }
}
