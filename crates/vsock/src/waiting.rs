//! Calls that wait for the thread that serves their endpoint.

use std::collections::BTreeMap;

use vmlane_port::fair::SharedPlaces;

use crate::address::Cid;
use crate::registry::{Call, ConnectError};

/// Requests of clients in the order in which they came. Their number is bounded, and one client cannot use it
/// up. One that its client withdraws leaves nothing behind.
pub struct WaitingCalls {
    /// By number: a later call has a higher one.
    calls: BTreeMap<u64, Call>,
    clients: SharedPlaces<Cid>,
}

impl WaitingCalls {
    /// None wait yet; `most` may.
    pub fn new(most: usize) -> WaitingCalls {
        WaitingCalls { calls: BTreeMap::new(), clients: SharedPlaces::new(most) }
    }

    /// A call waits from here on, unless its client has as many waiting as there are places left.
    pub fn push(&mut self, call: Call) -> Result<(), ConnectError> {
        if !self.clients.take(call.key.client.0) {
            return Err(ConnectError::Busy);
        }
        self.calls.insert(call.number, call);
        Ok(())
    }

    /// The client has given up. False if the call does not wait here: the server knows of it already.
    pub fn withdraw(&mut self, call: Call) -> bool {
        let waited = self.calls.remove(&call.number).is_some();
        if waited {
            self.clients.give_back(&call.key.client.0);
        }
        waited
    }

    /// The one that has waited longest; it waits no longer.
    pub fn pop(&mut self) -> Option<Call> {
        self.pop_if(|_| true)
    }

    /// The one that has waited longest of those that `may` be taken; it waits no longer.
    pub fn pop_if(&mut self, mut may: impl FnMut(&Call) -> bool) -> Option<Call> {
        let call = *self.calls.values().find(|call| may(call))?;
        self.withdraw(call);
        Some(call)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Does none wait?
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Key;
    use crate::connection::Role;

    fn call(client: Cid, number: u64) -> Call {
        Call { key: Key { client: (client, 1000), server: (9, 22) }, number, role: Role::Server }
    }

    #[test]
    fn a_client_that_opens_and_gives_up_again_and_again_leaves_nothing() {
        let mut waiting = WaitingCalls::new(8);
        for number in 0..1000 {
            assert_eq!(waiting.push(call(3, number)), Ok(()));
            assert!(waiting.withdraw(call(3, number)) && !waiting.withdraw(call(3, number)));
        }
        assert!(waiting.is_empty() && waiting.pop().is_none());
    }

    #[test]
    fn one_client_leaves_places_for_others_and_order_is_kept() {
        let mut waiting = WaitingCalls::new(8);
        let taken = (0..100).filter(|&number| waiting.push(call(3, number)).is_ok()).count();
        assert_eq!(taken, 4);
        assert_eq!(waiting.push(call(3, 100)), Err(ConnectError::Busy));
        assert_eq!(waiting.push(call(4, 101)), Ok(()));
        let order: Vec<u64> = std::iter::from_fn(|| waiting.pop()).map(|call| call.number).collect();
        assert_eq!(order, [0, 1, 2, 3, 101]);
        assert_eq!(waiting.push(call(3, 102)), Ok(()));
    }
}
