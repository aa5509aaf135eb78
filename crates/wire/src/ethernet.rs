//! Ethernet addresses, EtherTypes and the 802.1Q tag.

use std::fmt;
use std::str::FromStr;

/// Bytes of a header without tags: destination, source, EtherType.
pub const HEADER: usize = 14;
/// Bytes of one 802.1Q tag.
pub const TAG: usize = 4;
/// The shortest frame, without its check sequence.
pub const MIN_FRAME: usize = 60;

/// EtherTypes the switch examines.
pub mod ether_type {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const RARP: u16 = 0x8035;
    pub const VLAN: u16 = 0x8100;
    pub const IPV6: u16 = 0x86dd;
    pub const QINQ: u16 = 0x88a8;
}

/// A 48-bit address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Group addresses, broadcast included.
    #[inline]
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    #[inline]
    pub fn is_broadcast(self) -> bool {
        self == Mac::BROADCAST
    }

    /// May a NIC have this address?
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMac(pub String);

impl fmt::Display for BadMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a MAC address; write six hexadecimal bytes such as 52:54:00:00:00:03", self.0)
    }
}

impl std::error::Error for BadMac {}

impl FromStr for Mac {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Mac, BadMac> {
        let bad = || BadMac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let digits = |part: &&str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            let part = parts.next().filter(digits).ok_or_else(bad)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Mac(bytes)) }
    }
}

/// The 16-bit tag control information: priority (3 bits), drop eligible (1), VLAN id (12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tci(pub u16);

impl Tci {
    /// VLAN id; 0 is a priority tag, which names no VLAN.
    #[inline]
    pub fn vlan(self) -> u16 {
        self.0 & 0xfff
    }

    /// The same priority in another VLAN.
    pub fn with_vlan(self, vlan: u16) -> Tci {
        Tci(self.0 & 0xf000 | vlan & 0xfff)
    }
}

#[cfg(test)]
mod tests {
    use super::Mac;

    #[test]
    fn addresses_are_read_and_written() {
        let mac: Mac = "52:54:00:aB:00:03".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:ab:00:03");
        assert!(mac.is_unicast() && !mac.is_multicast());
        for text in ["", "52:54:00:00:00", "52:54:00:00:00:03:04", "5g:54:00:00:00:03", "+1:54:00:00:00:03"] {
            assert!(text.parse::<Mac>().is_err(), "{text:?}");
        }
    }
}
