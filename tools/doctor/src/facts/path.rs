//! How this end reaches the other one.

use std::net::IpAddr;

use if_addrs::IfAddr;
use serde::{Deserialize, Serialize};

use crate::sys;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// Its name is that of the interface that has the local address.
    pub interface: String,
    pub local: IpAddr,
    pub peer: IpAddr,
    /// Whether the peer is in the interface's own network, so that no router is between the two.
    pub on_link: bool,
    /// What the kernel believes is the MTU of the whole path.
    pub mtu: Option<u32>,
}

impl Path {
    pub fn find(local: IpAddr, peer: IpAddr) -> Option<Path> {
        let all = if_addrs::get_if_addrs().ok()?;
        let ours = all.iter().find(|interface| interface.ip() == local)?;
        let prefix = match &ours.addr {
            IfAddr::V4(v4) => v4.prefixlen,
            IfAddr::V6(v6) => v6.prefixlen,
        };
        Some(Path {
            interface: ours.name.clone(),
            local,
            peer,
            on_link: shares_prefix(local, peer, prefix),
            mtu: sys::path_mtu(peer).ok(),
        })
    }
}

fn shares_prefix(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
    let (differing, width) = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (u128::from(u32::from(one) ^ u32::from(other)), 32_u32),
        (IpAddr::V6(one), IpAddr::V6(other)) => (u128::from(one) ^ u128::from(other), 128),
        _ => return false,
    };
    let host_bits = width.saturating_sub(prefix.into());
    differing.checked_shr(host_bits).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_the_prefix() {
        for (one, other, prefix, shared) in [
            ("10.77.0.1", "10.77.0.2", 24, true),
            ("10.77.0.1", "10.77.1.2", 24, false),
            ("10.77.0.1", "10.77.1.2", 0, true),
            ("10.77.0.1", "10.77.0.1", 32, true),
            ("10.77.0.1", "10.77.0.2", 32, false),
            ("fd77::1", "fd77::2", 64, true),
            ("fd77::1", "fd78::2", 64, false),
            ("fd77::1", "fd78::2", 0, true),
            ("10.77.0.1", "fd78::2", 0, false),
        ] {
            assert_eq!(
                shares_prefix(one.parse().unwrap(), other.parse().unwrap(), prefix),
                shared,
                "{one} {other}/{prefix}"
            );
        }
    }
}
