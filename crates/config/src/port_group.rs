//! `[[port_group]]`: what ports of the switch have in common.

use std::ops::RangeInclusive;

use toml::Spanned;
use vmlane_switch::{Policy, Traffic};

use crate::notes::{Named, Notes};
use crate::raw::RawPortGroup;
use crate::switch::{self, SwitchConfig, policy};
use crate::traffic;
use crate::vlan::{self, Vlan};

/// The isolation group of VMs and uplinks that name none.
pub const DEFAULT: &str = "default";
/// The largest MTU of a guest, or of an uplink's other end.
pub const MTUS: RangeInclusive<i64> = 1280..=9190;

/// One `[[port_group]]`: what ports of the switch have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroupConfig {
    pub name: String,
    pub switch: String,
    pub vlan: Vlan,
    pub policy: Policy,
    /// Of each of its ports.
    pub traffic: Traffic,
}

/// Those of the files, and one named as its switch for each switch: that of NICs which name none.
pub fn judge(
    raws: &[Spanned<RawPortGroup>],
    switches: &[SwitchConfig],
    notes: &mut Notes<'_>,
) -> Vec<PortGroupConfig> {
    let of_switch = |name: &str| switches.iter().find(|switch| switch.name == name);
    let mut groups: Vec<PortGroupConfig> = Vec::new();
    for (index, spanned) in raws.iter().enumerate() {
        let raw = spanned.get_ref();
        let Some(name) = notes.name_of(Named::PortGroup, index, spanned.span(), &raw.name) else { continue };
        if groups.iter().any(|other| other.name == *name.get_ref()) {
            let text = format!("port_group: name = {:?} is taken by another one; rename one", name.get_ref());
            notes.conflict(name.span(), &[name.span()], text);
        }
        let key = format!("port_group {:?}", name.get_ref());
        let switch = switch::of(&key, &raw.switch, switches, notes);
        if of_switch(name.get_ref()).is_some_and(|other| other.name != switch) {
            let text = format!(
                "{key}: NICs on switch {0:?} that name no port group are in the one of its name; add switch = {0:?}, or rename it",
                name.get_ref()
            );
            notes.conflict(name.span(), &[name.span()], text);
        }
        let base = of_switch(&switch).map(|switch| switch.policy).unwrap_or_default();
        groups.push(PortGroupConfig {
            name: name.get_ref().clone(),
            switch,
            vlan: raw.vlan.as_ref().map_or(Vlan::Untagged, |vlan| vlan::judge(&key, vlan, notes)),
            policy: policy(base, raw.promiscuous, raw.mac_changes, raw.forged_transmits),
            traffic: traffic::of_group(&key, raw, notes),
        });
    }
    for switch in switches {
        if !groups.iter().any(|group| group.name == switch.name) {
            groups.push(PortGroupConfig {
                name: switch.name.clone(),
                switch: switch.name.clone(),
                vlan: Vlan::Untagged,
                policy: switch.policy,
                traffic: Traffic::default(),
            });
        }
    }
    groups
}
