//! Which frames and which streams of a point are recorded.

use vmlane_wire::ethernet::{HEADER, Mac, TAG, ether_type};

use crate::bpf::{Packet, Program};
use crate::seen::Seen;

const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6_HEADER: usize = 40;

/// What must be true of a frame or a stream; what is None is not asked. VLAN, address and program are asked
/// of frames only, a CID of streams only, a port of both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The VLAN that its tag names, or that frames without a tag belong to at its point.
    pub vlan: Option<u16>,
    /// Its source or destination address.
    pub mac: Option<Mac>,
    /// The CID of either end of a stream.
    pub cid: Option<u32>,
    /// The port of either end: TCP, UDP or of a stream.
    pub port: Option<u32>,
    /// It wants a part of the frame.
    pub program: Option<Program>,
}

impl Filter {
    /// How many bytes of a frame are to be recorded at most; None: it is not. `untagged`: the VLAN of frames
    /// without a tag.
    pub(crate) fn of_frame(&self, frame: &Seen<'_>, untagged: u16) -> Option<usize> {
        let rejected = self.vlan.is_some_and(|vlan| vlan_of(frame).unwrap_or(untagged) != vlan)
            || self.mac.is_some_and(|mac| !has_address(frame, mac))
            || self.port.is_some_and(|port| !ports_of(frame).is_some_and(|ports| ports.contains(&port)));
        if rejected {
            return None;
        }
        match &self.program {
            None => Some(usize::MAX),
            Some(program) => Some(program.run(frame) as usize).filter(|&kept| kept > 0),
        }
    }

    /// Is a stream between these two (CID, port) recorded?
    pub fn of_stream(&self, ends: [(u32, u32); 2]) -> bool {
        self.cid.is_none_or(|cid| ends.iter().any(|end| end.0 == cid))
            && self.port.is_none_or(|port| ends.iter().any(|end| end.1 == port))
    }
}

fn vlan_of(frame: &Seen<'_>) -> Option<u16> {
    let tagged = frame.half(HEADER - 2) == Some(ether_type::VLAN);
    // A tag for priority names no VLAN.
    frame.half(HEADER).filter(|_| tagged).map(|tag| tag & 0xfff).filter(|&vlan| vlan != 0)
}

fn has_address(frame: &Seen<'_>, mac: Mac) -> bool {
    let mut addresses = [0; 12];
    if frame.len() < addresses.len() {
        return false;
    }
    frame.copy(0, &mut addresses);
    let [a, b, c, d, e, f, from @ ..] = addresses;
    [[a, b, c, d, e, f], from].contains(&mac.0)
}

/// Source and destination port of a TCP segment or UDP datagram that is no later fragment.
fn ports_of(frame: &Seen<'_>) -> Option<[u32; 2]> {
    let mut at = HEADER;
    let mut kind = frame.half(at - 2)?;
    if kind == ether_type::VLAN {
        at += TAG;
        kind = frame.half(at - 2)?;
    }
    let byte = |at: usize| {
        let mut byte = [0];
        (at < frame.len()).then(|| frame.copy(at, &mut byte)).map(|()| byte)
    };
    let (protocol, ports) = match kind {
        ether_type::IPV4 => {
            let [first] = byte(at)?;
            if frame.half(at + 6)? & 0x1fff != 0 {
                return None;
            }
            (byte(at + 9)?, at + usize::from(first & 0xf) * 4)
        }
        ether_type::IPV6 => (byte(at + 6)?, at + IPV6_HEADER),
        _ => return None,
    };
    matches!(protocol, [TCP | UDP]).then_some(())?;
    Some([frame.half(ports)?.into(), frame.half(ports + 2)?.into()])
}
