//! The work meter: what each owner's ports and streams cause is charged to it, and who is over its share of a
//! round waits.
//!
//! An engine opens an account for each owner, refills all of them when a round begins, charges the owner
//! whose ring caused the work, and leaves out who [`Meter::is_over`] its share.

/// Work of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes copied.
    pub bytes: usize,
    /// Descriptors walked.
    pub descriptors: usize,
    /// Turns that moved something.
    pub turns: usize,
    /// Looks that found nothing.
    pub polls: usize,
    /// Times that tables or queues were built anew.
    pub rebuilds: usize,
}

/// What work other than copying costs, in bytes copied.
const DESCRIPTOR: usize = 96;
const TURN: usize = 2048;
const POLL: usize = 512;
const REBUILD: usize = 64 << 10;

impl Work {
    /// A turn that moved so many bytes.
    pub fn turn(bytes: usize) -> Work {
        Work { bytes, turns: 1, ..Work::default() }
    }

    /// A poll that found nothing.
    pub fn poll() -> Work {
        Work { polls: 1, ..Work::default() }
    }

    /// In bytes copied.
    #[inline]
    pub const fn cost(&self) -> usize {
        self.bytes
            + self.descriptors * DESCRIPTOR
            + self.turns * TURN
            + self.polls * POLL
            + self.rebuilds * REBUILD
    }
}

/// Names an owner's account to its meter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account(usize);

#[derive(Debug)]
struct Entry<K> {
    owner: K,
    /// Ports or streams that are charged to it; the account is given away when there are none.
    users: usize,
    /// What may still be done in this round; below zero: more was done than was due, and is taken off later.
    left: isize,
    /// That is less than a whole share, perhaps: it is on the list of those.
    spent: bool,
}

/// The accounts of one worker.
#[derive(Debug)]
pub struct Meter<K> {
    accounts: Vec<Entry<K>>,
    /// Accounts with less than a whole share: what a refill costs grows with the work, not with the owners.
    spent: Vec<usize>,
    quota: isize,
}

impl<K> Default for Meter<K> {
    fn default() -> Self {
        Meter { accounts: Vec::new(), spent: Vec::new(), quota: 0 }
    }
}

impl<K: PartialEq> Meter<K> {
    /// The account of `owner`, for one port or stream more.
    pub fn open(&mut self, owner: K) -> Account {
        let known = self.accounts.iter().position(|entry| entry.users > 0 && entry.owner == owner);
        let free = || self.accounts.iter().position(|entry| entry.users == 0);
        let at = known.or_else(free).unwrap_or(self.accounts.len());
        match self.accounts.get_mut(at) {
            Some(entry) if entry.users > 0 => entry.users += 1,
            Some(entry) => (entry.owner, entry.users, entry.left) = (owner, 1, 0),
            None => self.accounts.push(Entry { owner, users: 1, left: 0, spent: false }),
        }
        self.note(at);
        Account(at)
    }

    /// One port or stream less.
    pub fn close(&mut self, account: Account) {
        if let Some(entry) = self.accounts.get_mut(account.0) {
            entry.users = entry.users.saturating_sub(1);
        }
    }
}

impl<K> Meter<K> {
    /// A round begins: every owner may cause work that costs `quota`, less what was too much before.
    #[inline]
    pub fn refill(&mut self, quota: usize) {
        let quota = quota as isize;
        if std::mem::replace(&mut self.quota, quota) != quota {
            (0..self.accounts.len()).for_each(|at| self.note(at));
        }
        let accounts = &mut self.accounts;
        self.spent.retain(|&at| {
            let Some(entry) = accounts.get_mut(at) else { return false };
            entry.left = entry.left.saturating_add(quota).min(quota);
            entry.spent = entry.left < quota;
            entry.spent
        });
    }

    /// An account has less than a whole share, perhaps.
    #[inline]
    fn note(&mut self, at: usize) {
        if let Some(entry) = self.accounts.get_mut(at)
            && !entry.spent
        {
            entry.spent = true;
            self.spent.push(at);
        }
    }

    /// Has the owner had its share of this round?
    #[inline]
    pub fn is_over(&self, account: Account) -> bool {
        self.accounts.get(account.0).is_some_and(|entry| entry.left <= 0)
    }

    /// The owner's ring caused this.
    #[inline]
    pub fn charge(&mut self, account: Account, work: Work) {
        if let Some(entry) = self.accounts.get_mut(account.0) {
            entry.left = entry.left.saturating_sub(work.cost() as isize);
        }
        self.note(account.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(bytes: usize) -> Work {
        Work { bytes, ..Work::default() }
    }

    #[test]
    fn an_owner_has_one_account() {
        let mut meter = Meter::default();
        assert_eq!(["a", "b", "a"].map(|owner| meter.open(owner).0), [0, 1, 0]);
        meter.close(Account(0));
        meter.close(Account(0));
        assert_eq!(meter.open("c"), Account(0), "an account that is not used is given away");
        assert_eq!(meter.open("a"), Account(2));
    }

    #[test]
    fn what_is_too_much_is_taken_off_the_next_rounds() {
        let mut meter = Meter::default();
        let (a, b) = (meter.open("a"), meter.open("b"));
        meter.refill(100);
        meter.charge(a, bytes(250));
        assert_eq!([a, b].map(|account| meter.is_over(account)), [true, false]);
        meter.refill(100);
        assert!(meter.is_over(a), "50 are still due");
        meter.refill(100);
        assert!(!meter.is_over(a));
        meter.refill(100);
        meter.charge(a, bytes(100));
        assert!(meter.is_over(a), "nothing is saved up");
    }

    #[test]
    fn a_share_of_another_size_is_for_all() {
        let mut meter = Meter::default();
        let (a, b) = (meter.open("a"), meter.open("b"));
        meter.refill(100);
        meter.refill(100);
        meter.refill(10);
        meter.charge(a, bytes(10));
        assert_eq!([a, b].map(|account| meter.is_over(account)), [true, false]);
        meter.charge(b, bytes(10));
        assert!(meter.is_over(b), "what was left of a larger share is not kept");
        meter.refill(100);
        assert_eq!([a, b].map(|account| meter.is_over(account)), [false, false]);
    }

    #[test]
    fn every_kind_of_work_costs() {
        let work = Work { bytes: 1, descriptors: 1, turns: 1, polls: 1, rebuilds: 1 };
        assert_eq!(work.cost(), 1 + DESCRIPTOR + TURN + POLL + REBUILD);
        assert_eq!((Work::turn(5).cost(), Work::poll().cost()), (5 + TURN, POLL));
    }
}
