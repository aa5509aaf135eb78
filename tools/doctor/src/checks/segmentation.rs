//! Segmentation offload that is switched off.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "segmentation-offload", examine };

const FEATURES: [(&str, &str, &str, &str, f64); 3] = [
    ("tx-tcp-segmentation", "tso", "TCPSegmentationOffload", "Lso", 0.5),
    ("tx-generic-segmentation", "gso", "GenericSegmentationOffload", "Uso", 0.3),
    ("tx-scatter-gather", "sg", "ScatterGather", "Lso", 0.55),
];

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    // Without checksum offload there can be none of these: that is the finding then.
    for (end, _, card) in evidence.interfaces().filter(|(.., card)| !super::checksum::is_tx_off(card)) {
        for (name, short, networkd, windows, share) in FEATURES {
            // Without scatter-gather the other two are off with it.
            if !card.is_off(name) || (name != "tx-scatter-gather" && card.is_off("tx-scatter-gather")) {
                continue;
            }
            let what = format!("{name} is off on {} of {}.", card.name, evidence.name(end));
            let effect = "up to 45 times as many passes through the sender's stack for the same data";
            let seen = format!("ethtool -k {}: {name} off, not fixed", card.name);
            let remedy = Remedy::offload(&card.name, short, true, networkd, windows);
            let finding = CHECK.slow(what, Cost::estimated(share, effect)).at(end);
            found.push(finding.evidence(seen).remedy(remedy));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Feature;
    use crate::testing;

    #[test]
    fn what_is_off_and_could_be_on_is_found() {
        let mut evidence = testing::healthy();
        let features = &mut testing::card(&mut evidence).features;
        features.insert("tx-tcp-segmentation".to_owned(), Feature { on: false, changeable: true });
        assert_eq!(examine(&evidence)[0].remedies[0].temporary[0].join(" "), "ethtool -K eth0 tso on");
        let features = &mut testing::card(&mut evidence).features;
        features.insert("tx-tcp-segmentation".to_owned(), Feature { on: false, changeable: false });
        assert!(examine(&evidence).is_empty(), "the card has none");
    }
}
