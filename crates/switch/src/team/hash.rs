//! Numbers of senders for the policies that hash frames: the same for the same addresses in every run.

use vmlane_port::Network;
use vmlane_wire::ethernet::Mac;

use crate::ingress::Checked;

/// FNV-1a, folded: its lower bits depend on all bytes.
fn number(bytes: impl Iterator<Item = u8>) -> usize {
    let mix = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let sum = bytes.fold(0x811c_9dc5, mix);
    (sum ^ sum >> 16) as usize
}

/// Of an address.
pub fn of_mac(mac: Mac) -> usize {
    number(mac.0.into_iter())
}

/// Of the source and destination of an IP packet; of the source address of another frame.
pub fn of_packet(sent: &Checked<'_>) -> usize {
    let at = usize::from(sent.layers.network_at);
    let addresses = match sent.layers.network {
        Network::V4 => sent.frame.head.get(at + 12..at + 20),
        Network::V6 => sent.frame.head.get(at + 8..at + 40),
        Network::Other => None,
    };
    addresses.map_or_else(|| of_mac(sent.frame.source()), |addresses| number(addresses.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_differ_in_the_last_bits_are_spread() {
        let mut counts = [0; 4];
        (0..64).for_each(|last| counts[of_mac(Mac([0x52, 0x54, 0, 0, 0, last])) % 4] += 1);
        assert!(counts.iter().all(|count| (8..=24).contains(count)), "{counts:?}");
    }
}
