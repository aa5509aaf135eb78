//! The accounts that datagrams waiting for a guest are charged to, and each sender's share of them.

use std::collections::HashMap;

/// What a datagram from another VM is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Datagram sockets and the like.
    Ordinary,
    /// Packets that set up connections: floods of the others cannot keep them out.
    Control,
}

/// Who sent a datagram and what it is charged to; None: the device itself.
pub type Charged = Option<(Account, u32)>;

/// Bytes that wait on one account.
#[derive(Default)]
pub struct Charges {
    pub bytes: usize,
    pub from: HashMap<u32, usize>,
}

impl Charges {
    /// Charges `len` bytes to `from` if its share allows. A share is as large as what is still free, so
    /// one sender gets half, two a third each, and the next sender finds room.
    pub fn take(&mut self, from: u32, len: usize, limit: usize, first_is_free: bool) -> bool {
        let own = self.from.get(&from).copied().unwrap_or(0);
        let free = limit.saturating_sub(self.bytes);
        if len > free || (own + len > free && !(own == 0 && first_is_free)) {
            return false;
        }
        self.restore(from, len);
        true
    }

    /// Bytes of a previous daemon's that wait: they were accepted once, so no limit applies.
    pub fn restore(&mut self, from: u32, len: usize) {
        self.bytes += len;
        *self.from.entry(from).or_default() += len;
    }

    pub fn give_back(&mut self, from: u32, len: usize) {
        self.bytes -= len;
        if let Some(own) = self.from.get_mut(&from) {
            *own -= len;
            if *own == 0 {
                self.from.remove(&from);
            }
        }
    }
}

/// All accounts of one guest.
#[derive(Default)]
pub struct Accounts {
    ordinary: Charges,
    control: Charges,
}

impl Accounts {
    pub fn of(&mut self, account: Account) -> &mut Charges {
        match account {
            Account::Ordinary => &mut self.ordinary,
            Account::Control => &mut self.control,
        }
    }

    /// Bytes that wait on all of them.
    pub fn bytes(&self) -> usize {
        self.ordinary.bytes + self.control.bytes
    }
}
