//! `[[port_group]]`: what ports of the switch have in common.

use std::ops::RangeInclusive;

use toml::Spanned;
use vmlane_switch::{Policy, Traffic};

use crate::notes::{Named, Notes};
use crate::raw::RawPortGroup;
use crate::traffic;
use crate::vlan::{self, Vlan};

/// Where NICs are that name no port group, and uplinks that name no group.
pub const DEFAULT: &str = "default";
/// The largest MTU of a guest, or of an uplink's other end.
pub const MTUS: RangeInclusive<i64> = 1280..=9190;

/// One `[[port_group]]`: what ports of the switch have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroupConfig {
    pub name: String,
    pub vlan: Vlan,
    pub policy: Policy,
    /// Of each of its ports.
    pub traffic: Traffic,
}

pub fn judge(raws: &[Spanned<RawPortGroup>], notes: &mut Notes<'_>) -> Vec<PortGroupConfig> {
    let mut groups: Vec<PortGroupConfig> = Vec::new();
    for (index, spanned) in raws.iter().enumerate() {
        let raw = spanned.get_ref();
        let Some(name) = notes.name_of(Named::PortGroup, index, spanned.span(), &raw.name) else { continue };
        if groups.iter().any(|other| other.name == *name.get_ref()) {
            let text = format!("port_group: name = {:?} is taken by another one; rename one", name.get_ref());
            notes.conflict(name.span(), &[name.span()], text);
        }
        let key = format!("port_group {:?}", name.get_ref());
        groups.push(PortGroupConfig {
            name: name.get_ref().clone(),
            vlan: raw.vlan.as_ref().map_or(Vlan::Untagged, |vlan| vlan::judge(&key, vlan, notes)),
            policy: policy(Policy::default(), raw.promiscuous, raw.mac_changes, raw.forged_transmits),
            traffic: traffic::of_group(&key, raw, notes),
        });
    }
    if !groups.iter().any(|group| group.name == DEFAULT) {
        groups.push(PortGroupConfig {
            name: DEFAULT.into(),
            vlan: Vlan::Untagged,
            policy: Policy::default(),
            traffic: Traffic::default(),
        });
    }
    groups
}

/// `base` where nothing is configured.
pub fn policy(
    base: Policy,
    promiscuous: Option<bool>,
    mac_changes: Option<bool>,
    forged: Option<bool>,
) -> Policy {
    Policy {
        promiscuous: promiscuous.unwrap_or(base.promiscuous),
        mac_changes: mac_changes.unwrap_or(base.mac_changes),
        forged_transmits: forged.unwrap_or(base.forged_transmits),
    }
}
