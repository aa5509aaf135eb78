//! What notifies the network of where an address is now: a reverse ARP request (RFC 903), as ESXi sends it.
//! Switches on its way learn the address; no host answers it.

use vmlane_wire::ethernet::{HEADER, MIN_FRAME, Mac, ether_type};

/// Ethernet, IPv4, lengths of their addresses, "request reverse".
const FIXED: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 3];

/// A frame from `mac` to all.
pub fn frame(mac: Mac) -> [u8; MIN_FRAME] {
    let mut frame = [0; MIN_FRAME];
    let addresses = HEADER + FIXED.len();
    let parts: [(usize, &[u8]); 6] = [
        (0, &Mac::BROADCAST.0),
        (6, &mac.0),
        (12, &ether_type::RARP.to_be_bytes()),
        (HEADER, &FIXED),
        // It asks for its own IP address: sender and target are the same.
        (addresses, &mac.0),
        (addresses + 10, &mac.0),
    ];
    for (at, bytes) in parts {
        if let Some(place) = frame.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_from_the_address_for_the_address() {
        let frame = frame(Mac([0x52, 0x54, 0, 1, 2, 3]));
        let head = [[0xff; 6], [0x52, 0x54, 0, 1, 2, 3]].concat();
        assert_eq!(frame[..12], head);
        assert_eq!(frame[12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        assert_eq!(frame[22..42], [&head[6..], &[0; 4], &head[6..], &[0; 4]].concat());
        assert_eq!(frame[42..], [0; 18]);
    }
}
