//! What all clients together may hold: places, sessions and memory, given back when their holder drops.

use std::sync::{Arc, Mutex, PoisonError};

/// What all clients together may hold at most.
#[derive(Clone, Copy, Debug)]
pub struct House {
    pub clients: u64,
    pub sessions: u64,
    /// Bytes of messages and of socket buffers.
    pub memory: u64,
}

impl Default for House {
    fn default() -> Self {
        House { clients: 64, sessions: 1024, memory: 512 << 20 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Use {
    clients: u64,
    sessions: u64,
    memory: u64,
}

#[derive(Default)]
pub struct Budget {
    house: House,
    used: Arc<Mutex<Use>>,
}

/// A share of the budget.
pub struct Share {
    used: Arc<Mutex<Use>>,
    share: Use,
}

impl Budget {
    pub fn new(house: House) -> Budget {
        Budget { house, used: Arc::default() }
    }

    /// A place for one client; none when the house is full.
    pub fn seat(&self) -> Option<Share> {
        self.take(Use { clients: 1, ..Use::default() })
    }

    pub fn test(&self, sessions: u64, memory: u64) -> Option<Share> {
        self.take(Use { sessions, memory, ..Use::default() })
    }

    fn take(&self, share: Use) -> Option<Share> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let after = Use {
            clients: used.clients + share.clients,
            sessions: used.sessions.checked_add(share.sessions)?,
            memory: used.memory.checked_add(share.memory)?,
        };
        let house = self.house;
        if after.clients > house.clients || after.sessions > house.sessions || after.memory > house.memory {
            return None;
        }
        *used = after;
        Some(Share { used: self.used.clone(), share })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.clients -= self.share.clients;
        used.sessions -= self.share.sessions;
        used.memory -= self.share.memory;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_back() {
        let house = House { clients: 3, ..House::default() };
        let budget = Budget::new(house);
        let seats: Vec<_> = (0..3).map(|_| budget.seat().unwrap()).collect();
        assert!(budget.seat().is_none());
        drop(seats);
        let all = budget.test(house.sessions, house.memory).unwrap();
        assert!(budget.test(1, 0).is_none() && budget.test(0, 1).is_none());
        assert!(budget.test(u64::MAX, 0).is_none() && budget.test(0, u64::MAX).is_none());
        drop(all);
        assert_eq!(*budget.used.lock().unwrap(), Use::default());
    }
}
