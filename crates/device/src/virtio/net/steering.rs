//! The receive queue of a flow: the one whose twin the guest last sent the flow's frames from
//! (virtio 1.2, section 5.1.6.5.5: automatic receive steering).

use vmlane_port::Network;

/// Flows that are distinguished.
const BUCKETS: usize = 1024;

/// By flow, the queue pair that its guest uses for it.
#[derive(Debug)]
pub struct Steering {
    pairs: Option<Box<[u16; BUCKETS]>>,
}

/// The same number for both directions of a TCP or UDP flow; None for what has no ports.
#[inline]
fn bucket(head: &[u8]) -> Option<usize> {
    const V4: u16 = 0x0800;
    const V6: u16 = 0x86dd;
    let kind = u16::from_be_bytes([*head.get(12)?, *head.get(13)?]);
    let (network, addresses, ports, protocol) = match kind {
        V4 => {
            let length = usize::from(*head.get(14)? & 0xf) * 4;
            let fragment = u16::from_be_bytes([*head.get(20)?, *head.get(21)?]) & 0x3fff != 0;
            if fragment {
                return None;
            }
            (Network::V4, head.get(26..34)?, 14 + length, *head.get(23)?)
        }
        V6 => (Network::V6, head.get(22..54)?, 54, *head.get(20)?),
        _ => return None,
    };
    if !matches!(protocol, 6 | 17) {
        return None;
    }
    let (&[a, b, c, d], _) = head.get(ports..)?.split_first_chunk::<4>()?;
    let half = if network == Network::V4 { 4 } else { 16 };
    let fold = |bytes: &[u8]| {
        let (words, _) = bytes.as_chunks::<4>();
        words.iter().fold(0u32, |sum, word| sum.rotate_left(5) ^ u32::from_le_bytes(*word))
    };
    let (source, target) = addresses.split_at_checked(half)?;
    let ends = fold(source) ^ fold(target);
    let ports = u32::from(u16::from_be_bytes([a, b]) ^ u16::from_be_bytes([c, d]));
    let mixed = (ends ^ ports.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    Some((mixed >> 16) as usize % BUCKETS)
}

impl Steering {
    pub fn new(pairs: usize) -> Steering {
        Steering { pairs: (pairs > 1).then(|| Box::new([0; BUCKETS])) }
    }

    /// The guest sent this frame from queue pair `pair`.
    #[inline]
    pub fn sent(&mut self, head: &[u8], pair: usize) {
        if let Some(pairs) = &mut self.pairs
            && let Some(bucket) = bucket(head).and_then(|bucket| pairs.get_mut(bucket))
        {
            *bucket = pair as u16;
        }
    }

    /// Only the first `pairs` pairs of queues are in use.
    pub fn limit(&mut self, pairs: usize) {
        for pair in self.pairs.iter_mut().flat_map(|pairs| pairs.iter_mut()) {
            if usize::from(*pair) >= pairs {
                *pair = 0;
            }
        }
    }

    /// Where a frame to the guest goes.
    #[inline]
    pub fn pair(&self, head: &[u8]) -> usize {
        let Some(pairs) = &self.pairs else { return 0 };
        bucket(head).and_then(|bucket| pairs.get(bucket)).map_or(0, |&pair| pair.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(from: (u8, u16), to: (u8, u16)) -> Vec<u8> {
        let mut head = vec![0; 54];
        (head[12], head[14], head[23]) = (8, 0x45, 6);
        (head[29], head[33]) = (from.0, to.0);
        head[34..36].copy_from_slice(&from.1.to_be_bytes());
        head[36..38].copy_from_slice(&to.1.to_be_bytes());
        head
    }

    #[test]
    fn a_flow_comes_back_where_it_was_sent_from() {
        let mut steering = Steering::new(4);
        let (there, back) = (frame((1, 5000), (2, 80)), frame((2, 80), (1, 5000)));
        assert_eq!(steering.pair(&back), 0);
        steering.sent(&there, 3);
        assert_eq!(steering.pair(&back), 3);
        for short in 0..54 {
            steering.sent(&there[..short], 1);
        }
        assert_eq!(steering.pair(&back), 1, "the head with both ports is enough");
    }
}
