//! Receive-side scaling: the Toeplitz hash and the queue it leads to.

use vmlane_port::{Layers, Network, RxFrame, Transport};
use vmlane_wire::vmxnet3::desc::RssType;

use crate::vmxnet3::setup::Rss;

/// Input of the longest kind: two IPv6 addresses and two ports.
const MAX_INPUT: usize = 36;

/// A hash as a completion reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hash {
    pub kind: RssType,
    pub value: u32,
}

/// The hash with the guest's key and table.
#[derive(Debug)]
pub struct Toeplitz {
    /// For each half byte of the input, what each of its values contributes.
    tables: Box<[[u32; 16]; 2 * MAX_INPUT]>,
    rss: Rss,
}

impl Toeplitz {
    pub fn new(rss: Rss) -> Toeplitz {
        // The 32 bits of the key from `bit` on.
        let window = |bit: usize| {
            let bytes = rss.key.iter().skip(bit / 8).take(5);
            let bytes = bytes.fold(0u64, |word, &byte| word << 8 | u64::from(byte));
            (bytes >> (8 - bit % 8)) as u32
        };
        let mut tables = Box::new([[0; 16]; 2 * MAX_INPUT]);
        for (nibble, table) in tables.iter_mut().enumerate() {
            for (value, entry) in table.iter_mut().enumerate() {
                let set = (0..4).filter(|bit| value & 8 >> bit != 0);
                *entry = set.fold(0, |hash, bit| hash ^ window(4 * nibble + bit));
            }
        }
        Toeplitz { tables, rss }
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "four bits each, in tables of 16")]
    fn hash(&self, parts: [&[u8]; 2]) -> u32 {
        let input = parts.into_iter().flatten();
        let (tables, _) = self.tables.as_chunks::<2>();
        tables.iter().zip(input).fold(0, |hash, ([high, low], &byte)| {
            hash ^ high[usize::from(byte >> 4)] ^ low[usize::from(byte & 15)]
        })
    }

    /// The frame's hash and receive queue. Queue 0 for what is not hashed.
    #[inline]
    pub fn queue(&self, frame: &RxFrame<'_>) -> (usize, Hash) {
        let Some(hash) = self.of(frame) else { return (0, Hash::default()) };
        let at = hash.value as usize % self.rss.table.len().max(1);
        (self.rss.table.get(at).copied().unwrap_or(0).into(), hash)
    }

    fn of(&self, frame: &RxFrame<'_>) -> Option<Hash> {
        let Layers { network, transport, fragment, network_at, transport_at } = frame.layers;
        let rss = &self.rss;
        let (addresses, plain, plain_kind) = match network {
            Network::V4 => (12..20, rss.ipv4, RssType::V4),
            Network::V6 => (8..40, rss.ipv6, RssType::V6),
            Network::Other => return None,
        };
        let at = usize::from(network_at);
        let addresses = frame.head.get(at + addresses.start..at + addresses.end)?;
        let with_ports = match (network, transport) {
            _ if fragment => None,
            (Network::V4, Transport::Tcp) => rss.tcp4.then_some(RssType::Tcp4),
            (Network::V4, Transport::Udp) => rss.udp4.then_some(RssType::Udp4),
            (Network::V6, Transport::Tcp) => rss.tcp6.then_some(RssType::Tcp6),
            (Network::V6, Transport::Udp) => rss.udp6.then_some(RssType::Udp6),
            _ => None,
        };
        let at = usize::from(transport_at);
        if let (Some(kind), Some(ports)) = (with_ports, frame.head.get(at..at + 4)) {
            return Some(Hash { kind, value: self.hash([addresses, ports]) });
        }
        plain.then(|| Hash { kind: plain_kind, value: self.hash([addresses, &[]]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of Microsoft's verification suite ("Verifying the RSS Hash Calculation").
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn toeplitz() -> Toeplitz {
        Toeplitz::new(Rss {
            key: KEY,
            table: vec![0],
            ipv4: true,
            ipv6: true,
            tcp4: true,
            tcp6: true,
            udp4: false,
            udp6: false,
        })
    }

    #[test]
    fn the_published_vectors_of_ipv4() {
        // Source and its port, destination and its port, hash of addresses, hash with ports.
        let vectors = [
            ([66u8, 9, 149, 187], 2794u16, [161u8, 142, 100, 80], 1766u16, 0x323e8fc2, 0x51ccc178u32),
            ([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xd718262a, 0xc626b0ea),
            ([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024, 0xd2d0a5de, 0x5c2b394a),
            ([38, 27, 205, 30], 48228, [209, 142, 163, 6], 2217, 0x82989176, 0xafc7327f),
            ([153, 39, 163, 191], 44251, [202, 188, 127, 2], 1303, 0x5d1809c5, 0x10e828a2),
        ];
        for (source, source_port, target, target_port, plain, with_ports) in vectors {
            let addresses = [source, target].concat();
            let ports = [source_port.to_be_bytes(), target_port.to_be_bytes()].concat();
            assert_eq!(toeplitz().hash([&addresses, &[]]), plain);
            assert_eq!(toeplitz().hash([&addresses, &ports]), with_ports);
        }
    }

    #[test]
    fn the_published_vectors_of_ipv6() {
        let vectors = [
            ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc18cd5, 0x40207d3d),
            ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c461c, 0xdde51bbf),
            (
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                44251,
                "fe80::200:f8ff:fe21:67cf",
                38024,
                0x4b61e985,
                0x02d1feefu32,
            ),
        ];
        for (source, source_port, target, target_port, plain, with_ports) in vectors {
            let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
            let addresses = [octets(source), octets(target)].concat();
            let ports = [u16::to_be_bytes(source_port), u16::to_be_bytes(target_port)].concat();
            assert_eq!(toeplitz().hash([&addresses, &[]]), plain);
            assert_eq!(toeplitz().hash([&addresses, &ports]), with_ports);
        }
    }
}
