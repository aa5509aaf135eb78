//! A card that imitates old hardware, or an old revision of a fast one.

use crate::facts::{Facts, Interface};
use crate::prelude::*;

pub const CHECK: Check = Check { name: "nic-model", examine };

/// Drivers of cards that VMMs imitate.
const IMITATIONS: [&str; 8] =
    ["e1000", "e1000e", "8139cp", "8139too", "pcnet32", "ne2k-pci", "tulip", "de4x5"];

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let found = evidence.interfaces().filter_map(|(end, facts, card)| {
        let name = evidence.name(end);
        let driver = format!("driver {} of {} (ethtool -i)", card.driver, card.name);
        let finding = if is_imitation(facts, card) {
            let what = format!(
                "The card {} of {name} is an imitation of old hardware ({}).",
                card.name, card.driver
            );
            let cost = Cost::estimated(0.8, "a half to nine tenths of the throughput, and much of the CPU");
            CHECK.slow(what, cost).evidence(driver).remedy(exchange())
        } else if card.driver == "vmxnet3" && card.coalescing.is_none() {
            let what = format!("The VMXNET3 card {} of {name} is of revision 1 or 2.", card.name);
            let missing = "moderation of interrupts, scaling of UDP and tunnel offloads are missing";
            let seen = "it does not answer ethtool -c, as cards from revision 3 on do";
            let finding = CHECK.slow(what, Cost::estimated(0.4, missing));
            finding.evidence(driver).evidence(seen).remedy(newer())
        } else {
            return None;
        };
        Some(finding.at(end))
    });
    found.collect()
}

fn is_imitation(facts: &Facts, card: &Interface) -> bool {
    // The 82574L is what VMMs imitate for e1000e; other cards of that driver are real, and may be passed
    // through.
    let e1000e = card.pci.as_ref().is_some_and(|(_, device)| device == "0x10d3");
    facts.machine.hypervisor.is_some()
        && IMITATIONS.contains(&card.driver.as_str())
        && (card.driver != "e1000e" || e1000e)
}

fn exchange() -> Remedy {
    Remedy::new("give the VM a VMXNET3 or virtio card (its driver is in Linux; in Windows install it first)")
        .lasting("VMware", "in the .vmx file: ethernet0.virtualDev = \"vmxnet3\"")
        .lasting("libvirt", "<interface> ... <model type='virtio'/>")
        .lasting("QEMU", "-device virtio-net-pci instead of -device e1000")
        .lasting("vmlane", "nic = [ { model = \"vmxnet3\" } ]")
}

fn newer() -> Remedy {
    Remedy::new("give the VM a newer card")
        .lasting("VMware", "upgrade the VM's hardware version to 13 or later")
        .lasting("QEMU", "its own vmxnet3 is of revision 1: use virtio-net-pci, or vmlane's VMXNET3")
        .lasting("vmlane", "in the VM's nic: a profile of revision 3 or later, or none")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn imitations_are_found_in_vms_only() {
        let mut evidence = testing::healthy();
        testing::card(&mut evidence).driver = "e1000".to_owned();
        assert!(examine(&evidence).is_empty(), "a real one");
        evidence.near.machine.hypervisor = Some("KVM".to_owned());
        assert!(examine(&evidence)[0].what.contains("imitation"));
        testing::card(&mut evidence).driver = "e1000e".to_owned();
        assert!(examine(&evidence).is_empty(), "a card of another kind, passed through");
        testing::card(&mut evidence).pci = Some(("0x8086".to_owned(), "0x10d3".to_owned()));
        assert_eq!(examine(&evidence).len(), 1);
    }

    #[test]
    fn a_vmxnet3_without_moderation_is_old() {
        let mut evidence = testing::healthy();
        testing::card(&mut evidence).coalescing = None;
        assert!(examine(&evidence)[0].what.contains("revision 1 or 2"));
    }
}
