//! Which VLANs a port carries.

use std::ops::RangeInclusive;

use toml::{Spanned, Value};

use crate::notes::Notes;

/// Tags.
pub const VLANS: RangeInclusive<u16> = 1..=4094;

/// Which VLANs a port group carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vlan {
    /// None: frames travel untagged (external switch tagging).
    Untagged,
    /// The switch tags (virtual switch tagging).
    Access(u16),
    /// The guest tags (virtual guest tagging), with one of these.
    Trunk(Vec<u16>),
    TrunkAll,
}

pub fn judge(key: &str, spanned: &Spanned<Value>, notes: &mut Notes<'_>) -> Vlan {
    let tag = |value: &Value| u16::try_from(value.as_integer()?).ok().filter(|tag| VLANS.contains(tag));
    let good = match spanned.get_ref() {
        Value::Integer(0) => Some(Vlan::Untagged),
        Value::Integer(_) => tag(spanned.get_ref()).map(Vlan::Access),
        Value::String(word) if word == "trunk" => Some(Vlan::TrunkAll),
        Value::Array(list) if !list.is_empty() => {
            list.iter().map(tag).collect::<Option<_>>().map(Vlan::Trunk)
        }
        _ => None,
    };
    good.unwrap_or_else(|| {
        let text = format!(
            "{key}: vlan = {}; use 0 (untagged), a number from 1 to 4094 (the switch tags), \"trunk\" or a \
             list such as [10, 20] (the guest tags)",
            spanned.get_ref()
        );
        notes.problem(spanned.span(), text);
        Vlan::Untagged
    })
}
