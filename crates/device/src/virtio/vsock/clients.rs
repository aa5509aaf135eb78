//! Who asks guests for connections, and is charged for what that costs the worker: VMs of every kind, the
//! host, peers.

use std::collections::HashMap;

use vmlane_worker::{Account, Meter, Work};

/// Clients with an account. With more of them all begin anew.
const MOST: usize = 1024;

/// The accounts of those that ask, by CID. One that is served here as well has one account for both.
#[derive(Debug, Default)]
pub struct Clients(HashMap<u32, Account>);

impl Clients {
    /// Opens the account of `cid` if it has none. True if it may have the worker do more in this round.
    pub fn admit(&mut self, cid: u32, meter: &mut Meter<u32>) -> bool {
        let known = self.0.contains_key(&cid);
        let account = self.account(cid, meter);
        // One that is new has had nothing yet.
        !known || !meter.is_over(account)
    }

    /// The worker does so much for `cid`.
    pub fn charge(&mut self, cid: u32, meter: &mut Meter<u32>, work: Work) {
        let account = self.account(cid, meter);
        meter.charge(account, work);
    }

    fn account(&mut self, cid: u32, meter: &mut Meter<u32>) -> Account {
        if self.0.len() >= MOST && !self.0.contains_key(&cid) {
            self.0.drain().for_each(|(_, account)| meter.close(account));
        }
        *self.0.entry(cid).or_insert_with(|| meter.open(cid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_is_served_as_well_has_one_account() {
        let (mut clients, mut meter) = (Clients::default(), Meter::default());
        let served = meter.open(7);
        assert_eq!(clients.account(7, &mut meter), served);
        assert_ne!(clients.account(8, &mut meter), served);
        assert_eq!(clients.account(8, &mut meter), clients.account(8, &mut meter));
    }

    #[test]
    fn any_number_of_clients_have_so_many_accounts() {
        let (mut clients, mut meter) = (Clients::default(), Meter::default());
        let served = meter.open(0);
        for cid in 0..5 * MOST as u32 {
            clients.account(cid, &mut meter);
        }
        assert!(clients.0.len() <= MOST);
        // That of a VM that is served stays its own.
        meter.refill(100);
        meter.charge(served, Work { bytes: 200, ..Work::default() });
        let account = clients.account(0, &mut meter);
        assert!(meter.is_over(account));
    }
}
