//! Checksum offload that is switched off.

use crate::facts::Interface;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "checksum-offload", examine };

/// What it costs.
const SENT: &str = "sent bytes are read once more, and segmentation offload is off with it";
const RECEIVED: &str = "received bytes are read once more, and merging is off with it";
const TX: [&str; 3] = ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];

/// Whether the sender computes the checksums that its card could.
pub fn is_tx_off(card: &Interface) -> bool {
    let known: Vec<_> = TX.iter().filter_map(|name| card.feature(name)).collect();
    known.iter().any(|feature| feature.changeable && !feature.on) && !known.iter().any(|feature| feature.on)
}

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (end, _, card) in evidence.interfaces() {
        // The E1000's own default is off; the card itself is the finding then.
        let rx_off = card.driver != "e1000" && card.is_off("rx-checksum");
        let both = [
            (is_tx_off(card), "tx", 0.6, "TransmitChecksumOffload", SENT),
            (rx_off, "rx", 0.5, "ReceiveChecksumOffload", RECEIVED),
        ];
        for (_, short, share, networkd, effect) in both.into_iter().filter(|(is_off, ..)| *is_off) {
            let what = format!("{short} checksum offload is off on {} of {}.", card.name, evidence.name(end));
            let seen = format!("ethtool -k {}: {short}-checksumming off, not fixed", card.name);
            let remedy = Remedy::offload(&card.name, short, true, networkd, "ChecksumOffload");
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
    fn both_directions_are_seen() {
        let mut evidence = testing::healthy();
        for name in ["tx-checksum-ip-generic", "rx-checksum"] {
            let features = &mut testing::card(&mut evidence).features;
            features.insert(name.to_owned(), Feature { on: false, changeable: true });
        }
        assert_eq!(examine(&evidence).len(), 2);
        let features = &mut testing::card(&mut evidence).features;
        features.insert("tx-checksum-ipv4".to_owned(), Feature { on: true, changeable: true });
        assert_eq!(examine(&evidence).len(), 1, "another kind of it is on");
    }
}
