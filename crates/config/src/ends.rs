//! The ends of wires, once all NICs and uplinks are known.

use toml::Spanned;

use crate::notes::{Named, Notes};
use crate::ports::{Ports, listed};
use crate::raw::RawWire;
use crate::uplink::UplinkConfig;

/// What is at an end.
struct End<'c> {
    is_nic: bool,
    /// Its isolation group.
    group: &'c str,
}

/// Uplinks that may be ends.
fn uplinks<'c>(ports: &Ports<'c>) -> impl Iterator<Item = &'c UplinkConfig> {
    ports.uplinks.iter().filter(|uplink| !uplink.kind.is_direct())
}

fn find<'c>(name: &str, ports: &Ports<'c>) -> Option<End<'c>> {
    let nic = ports.nics().find(|(own, ..)| own == name);
    let nic = nic.map(|(_, vm, _)| End { is_nic: true, group: &vm.group });
    let uplink = || uplinks(ports).find(|uplink| uplink.name == name);
    nic.or_else(|| uplink().map(|uplink| End { is_nic: false, group: &uplink.group }))
}

/// The ends exist, and may be joined.
pub fn judge(raws: &[Spanned<RawWire>], ports: &Ports<'_>, notes: &mut Notes<'_>) {
    for raw in raws.iter().map(Spanned::get_ref) {
        let (Some(name), [one, other]) = (&raw.name, &raw.ends[..]) else { continue };
        let key = format!("wire {:?}", name.get_ref());
        let [first, second] = [one, other].map(|end| {
            let found = find(end.get_ref(), ports);
            let uncertain = [Named::Vm, Named::Uplink].into_iter().any(|kind| notes.is_uncertain(kind));
            if found.is_none() && !uncertain {
                let nics = ports.nics().map(|(name, ..)| name);
                let known = nics.chain(uplinks(ports).map(|uplink| uplink.name.clone()));
                let text = format!(
                    "{key}: ends: {:?} is no NIC and no uplink; name a NIC as VM/nicN, such as \"web/nic0\" ({})",
                    end.get_ref(),
                    listed(known)
                );
                notes.problem(end.span(), text);
            }
            found
        });
        let (Some(first), Some(second)) = (first, second) else { continue };
        let text = if !first.is_nic && !second.is_nic {
            format!("{key}: ends: both are uplinks; one of them must be a NIC, as VM/nicN")
        } else if first.group != second.group {
            format!(
                "{key}: ends: {:?} is in group {:?} and {:?} in group {:?}; no traffic crosses groups, put both into one",
                one.get_ref(),
                first.group,
                other.get_ref(),
                second.group
            )
        } else {
            continue;
        };
        notes.conflict(other.span(), &[one.span(), other.span()], text);
    }
}
