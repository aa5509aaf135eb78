//! Who claims which address: two machines that both answer for one take it from each other.

use std::collections::HashMap;
use std::net::IpAddr;

use serde::Serialize;

use super::frame::{Mac, Network};

/// Addresses that are remembered.
const MOST: usize = 4096;

#[derive(Default)]
pub struct Addresses {
    known: HashMap<(Network, IpAddr), Claimed>,
}

struct Claimed {
    /// Who claimed it last, and the other one of the two.
    last: Mac,
    other: Option<Mac>,
    /// How often the other one claimed it.
    changes: u32,
}

/// An address that two cards claim in turn.
#[derive(Clone, Debug, Serialize)]
pub struct Conflict {
    pub address: IpAddr,
    pub macs: [String; 2],
    pub changes: u32,
}

impl Addresses {
    pub fn claim(&mut self, network: Network, address: IpAddr, mac: Mac) {
        let key = (network, address);
        if self.known.len() >= MOST && !self.known.contains_key(&key) {
            return;
        }
        let claimed = self.known.entry(key).or_insert(Claimed { last: mac, other: None, changes: 0 });
        if claimed.last != mac && claimed.other.is_none_or(|other| other == mac) {
            claimed.other = Some(std::mem::replace(&mut claimed.last, mac));
            claimed.changes += 1;
        }
    }

    /// There and back again, twice: an address that moves to another card (failover, a new machine) moves
    /// once.
    pub fn finish(self) -> Vec<Conflict> {
        let conflict = |((_, address), claimed): ((Network, IpAddr), Claimed)| {
            let other = claimed.other.filter(|_| claimed.changes >= 3)?;
            let mut macs = [claimed.last, other].map(spelled);
            macs.sort();
            Some(Conflict { address, macs, changes: claimed.changes })
        };
        let mut conflicts: Vec<Conflict> = self.known.into_iter().filter_map(conflict).collect();
        conflicts.sort_by_key(|conflict| conflict.address);
        conflicts.truncate(16);
        conflicts
    }
}

pub fn spelled(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_moves_once_is_no_conflict() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let (one, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let found = |claims: &[Mac]| {
            let mut addresses = Addresses::default();
            claims.iter().for_each(|mac| addresses.claim(Network::default(), address, *mac));
            addresses.finish().len()
        };
        assert_eq!(found(&[one, one, one]), 0);
        assert_eq!(found(&[one, other, other]), 0);
        assert_eq!(found(&[one, other, one, other]), 1);
    }

    #[test]
    fn so_many_addresses_are_remembered_and_no_more() {
        let mut addresses = Addresses::default();
        for number in 0..2 * MOST as u32 {
            let address = std::net::Ipv4Addr::from(number).into();
            addresses.claim(Network::default(), address, [2, 0, 0, 0, 0, 1]);
        }
        assert_eq!(addresses.known.len(), MOST);
    }
}
