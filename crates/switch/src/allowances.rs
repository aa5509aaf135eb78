//! What each owner may still send in a round, and what is taken off its next ones.
//!
//! A round costs what the owners cost that have something to do in it or are in debt, not what there are.

use crate::place_of;

/// What the ports of one owner may still send in this round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    pub frames: u32,
    pub bytes: usize,
}

/// One owner's.
#[derive(Clone, Copy, Default)]
struct Account {
    /// What is left of the round of this number.
    left: Allowance,
    round: u64,
    /// Work in bytes that is taken off its next rounds.
    debt: usize,
    /// The same for changes of its ports. They are paid for last, and keep it from further changes only.
    change_debt: usize,
}

impl Account {
    fn is_in_debt(&self) -> bool {
        self.debt > 0 || self.change_debt > 0
    }

    /// What is left of `share` when debts are paid as far as it goes.
    fn pay(&mut self, share: Allowance) -> Allowance {
        let mut bytes = share.bytes;
        for debt in [&mut self.debt, &mut self.change_debt] {
            let paid = bytes.min(*debt);
            *debt -= paid;
            bytes -= paid;
        }
        Allowance { frames: if bytes == 0 { 0 } else { share.frames }, bytes }
    }
}

/// All owners', by number.
#[derive(Default)]
pub struct Allowances {
    accounts: Vec<Account>,
    /// Those in debt.
    in_debt: Vec<u16>,
    round: u64,
    /// An owner's share of a round.
    share: Allowance,
}

impl Allowances {
    /// There is an owner of this number.
    pub fn add(&mut self, owner: u16) {
        place_of(&mut self.accounts, owner);
    }

    /// A round begins: every owner may send so much, less its debts.
    pub fn begin_round(&mut self, share: Allowance) {
        self.round += 1;
        self.share = share;
        let (accounts, round) = (&mut self.accounts, self.round);
        self.in_debt.retain(|&owner| {
            let Some(account) = accounts.get_mut(usize::from(owner)) else { return false };
            (account.left, account.round) = (account.pay(share), round);
            account.is_in_debt()
        });
    }

    /// What an owner may still send.
    #[inline]
    pub fn left(&self, owner: u16) -> Allowance {
        match self.accounts.get(usize::from(owner)) {
            Some(account) if account.round == self.round => account.left,
            Some(_) => self.share,
            None => Allowance::default(),
        }
    }

    #[inline]
    pub fn set_left(&mut self, owner: u16, left: Allowance) {
        if let Some(account) = self.accounts.get_mut(usize::from(owner)) {
            (account.left, account.round) = (left, self.round);
        }
    }

    /// The rings of an owner's ports have caused work beside what it sends.
    #[inline]
    pub fn charge(&mut self, owner: u16, cost: usize) {
        self.add_debt(owner, cost, |account| &mut account.debt);
    }

    fn add_debt(&mut self, owner: u16, cost: usize, which: impl Fn(&mut Account) -> &mut usize) {
        let Some(account) = self.accounts.get_mut(usize::from(owner)).filter(|_| cost > 0) else { return };
        if !account.is_in_debt() {
            self.in_debt.push(owner);
        }
        let debt = which(account);
        *debt = debt.saturating_add(cost);
    }

    /// Does an owner wait until what it has caused is paid for?
    pub fn any_in_debt(&self) -> bool {
        !self.in_debt.is_empty()
    }

    /// An owner's port is to be changed at such a cost. False: what it has caused is not paid for yet.
    pub fn charge_change(&mut self, owner: u16, cost: usize) -> bool {
        // Before the first round nothing has a share, and nothing waits.
        let Some(account) = self.accounts.get(usize::from(owner)).filter(|_| self.round > 0) else {
            return true;
        };
        let may = account.change_debt.saturating_add(account.debt) <= self.share.bytes;
        if may {
            self.add_debt(owner, cost, |account| &mut account.change_debt);
        }
        may
    }

    /// Has an owner caused more of that than a round's share pays for?
    #[inline]
    pub fn is_over(&self, owner: u16) -> bool {
        self.accounts.get(usize::from(owner)).is_some_and(|account| account.debt > self.share.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: Allowance = Allowance { frames: 64, bytes: 1000 };

    fn of_three() -> Allowances {
        let mut all = Allowances::default();
        all.add(2);
        all.begin_round(SHARE);
        all
    }

    #[test]
    fn every_owner_has_its_share_anew_in_each_round() {
        let mut all = of_three();
        all.set_left(1, Allowance { frames: 1, bytes: 10 });
        assert_eq!([0, 1].map(|owner| all.left(owner).bytes), [1000, 10]);
        assert_eq!(all.left(3), Allowance::default(), "there is none of this number");
        all.begin_round(SHARE);
        assert_eq!(all.left(1), SHARE);
    }

    #[test]
    fn debts_are_taken_off_the_next_rounds_of_who_has_them_and_of_no_one_else() {
        let mut all = of_three();
        all.charge(1, 0);
        assert!(!all.any_in_debt());
        all.charge(1, 1500);
        assert!(all.is_over(1) && !all.is_over(0) && all.any_in_debt());
        all.begin_round(SHARE);
        assert_eq!((all.left(1), all.left(0)), (Allowance::default(), SHARE));
        assert!(!all.is_over(1), "500 are less than a share");
        all.begin_round(SHARE);
        assert_eq!(all.left(1), Allowance { frames: 64, bytes: 500 });
        assert!(!all.any_in_debt());
        all.begin_round(SHARE);
        assert_eq!(all.left(1), SHARE);
    }

    #[test]
    fn changes_before_the_first_round_cost_nothing() {
        let mut all = Allowances::default();
        all.add(0);
        assert!((0..3).all(|_| all.charge_change(0, 1 << 20)) && !all.any_in_debt());
    }

    #[test]
    fn changes_are_paid_for_last_and_wait_while_there_is_more_to_pay_than_a_share() {
        let mut all = of_three();
        assert!(all.charge_change(0, 1001) && !all.charge_change(0, 1));
        assert!(!all.is_over(0), "it may send");
        all.charge(0, 900);
        all.begin_round(SHARE);
        assert!(all.charge_change(0, 0), "100 of the changes are paid for");
        assert_eq!(all.left(0), Allowance::default());
        all.begin_round(SHARE);
        assert_eq!(all.left(0).bytes, 99);
        assert!(!all.any_in_debt());
    }
}
