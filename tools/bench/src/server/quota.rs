//! What all clients together may hold: clients, sessions and memory, given back when their holder drops.

use std::sync::{Arc, Mutex, PoisonError};

/// What all clients together may hold at most.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    pub clients: u64,
    pub sessions: u64,
    /// Bytes of messages and of socket buffers.
    pub memory: u64,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits { clients: 64, sessions: 1024, memory: 512 << 20 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Use {
    clients: u64,
    sessions: u64,
    memory: u64,
}

#[derive(Default)]
pub struct Quota {
    limits: ServerLimits,
    used: Arc<Mutex<Use>>,
}

/// A share of the quota.
pub struct Share {
    used: Arc<Mutex<Use>>,
    share: Use,
}

impl Quota {
    pub fn new(limits: ServerLimits) -> Quota {
        Quota { limits, used: Arc::default() }
    }

    /// A share for one client; none when there are too many.
    pub fn client(&self) -> Option<Share> {
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
        let limits = self.limits;
        if after.clients > limits.clients || after.sessions > limits.sessions || after.memory > limits.memory
        {
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
        let limits = ServerLimits { clients: 3, ..ServerLimits::default() };
        let quota = Quota::new(limits);
        let seats: Vec<_> = (0..3).map(|_| quota.client().unwrap()).collect();
        assert!(quota.client().is_none());
        drop(seats);
        let all = quota.test(limits.sessions, limits.memory).unwrap();
        assert!(quota.test(1, 0).is_none() && quota.test(0, 1).is_none());
        assert!(quota.test(u64::MAX, 0).is_none() && quota.test(0, u64::MAX).is_none());
        drop(all);
        assert_eq!(*quota.used.lock().unwrap(), Use::default());
    }
}
