//! Whose turn it is: streams that have more to do, sockets at which more connections wait. Within a round of
//! the thread, one user's or VM's streams move so many bytes; beyond, they wait for the next one, and others
//! are served.

use std::collections::HashMap;

use vmlane_port::Distinct;

use crate::sockets::client::Account;
use crate::sockets::inbox::Token;

/// Bytes that one user's or VM's streams may move in a round, which the last turn may exceed.
const ROUND: usize = 4 << 20;
/// What a turn costs beside its bytes.
const TURN: usize = 2 << 10;
/// What a connection costs: memory for its rings is made and mapped.
pub const CONNECT: usize = 128 << 10;

/// See the module's text.
#[derive(Default)]
pub struct Turns {
    ready: Distinct<Token>,
    /// What each has used of its part of the round.
    spent: HashMap<Account, usize>,
    /// Sockets at which more connections may wait.
    listening: Distinct<Token>,
    /// A connection could not be accepted at some socket.
    retry: bool,
}

impl Turns {
    pub fn begin_round(&mut self) {
        self.spent.clear();
    }

    /// Has it had its part of the round?
    pub fn is_over(&self, account: Account) -> bool {
        self.spent.get(&account).is_some_and(|&spent| spent >= ROUND)
    }

    /// It has moved so many bytes in a turn.
    pub fn charge(&mut self, account: Account, bytes: usize) {
        *self.spent.entry(account).or_default() += bytes + TURN;
    }

    /// A stream has more to do.
    pub fn again(&mut self, token: Token) {
        self.ready.push(token);
    }

    /// Streams that have more to do.
    pub fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// The one that has waited longest.
    pub fn next(&mut self) -> Option<Token> {
        self.ready.pop()
    }

    /// More connections wait at this socket.
    pub fn accept_more(&mut self, token: Token) {
        self.listening.push(token);
    }

    /// A connection could not be accepted: all sockets are checked again soon.
    pub fn retry(&mut self) {
        self.retry = true;
    }

    /// Is a failed accept to be tried again?
    pub fn retries(&self) -> bool {
        self.retry
    }

    /// Is there anything to do at once?
    pub fn is_busy(&self) -> bool {
        !self.ready.is_empty() || !self.listening.is_empty()
    }

    /// The sockets to check: of `all`, those at which connections wait.
    pub fn take_listening(&mut self, all: impl Iterator<Item = Token>) -> Vec<Token> {
        let some = std::iter::from_fn(|| self.listening.pop()).collect();
        if std::mem::take(&mut self.retry) { all.collect() } else { some }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_has_had_its_part_waits_for_the_next_round_and_others_do_not() {
        let mut turns = Turns::default();
        let (greedy, other) = (Account::Vm(3), Account::User(3));
        let mut served = 0;
        while !turns.is_over(greedy) {
            turns.charge(greedy, 1 << 20);
            served += 1;
        }
        assert_eq!(served, 4);
        assert!(!turns.is_over(other));
        turns.begin_round();
        assert!(!turns.is_over(greedy));
        let small = (0..).take_while(|_| {
            turns.charge(greedy, 0);
            !turns.is_over(greedy)
        });
        assert_eq!(small.count(), ROUND / TURN - 1, "turns without bytes cost something");
    }

    #[test]
    fn a_stream_waits_once_and_sockets_are_checked_again() {
        let mut turns = Turns::default();
        assert!(!turns.is_busy());
        [7, 8, 7].into_iter().for_each(|token| turns.again(token));
        assert_eq!(turns.waiting(), 2);
        assert_eq!(turns.next(), Some(7));
        turns.again(7);
        assert_eq!([turns.next(), turns.next(), turns.next()], [Some(8), Some(7), None]);
        // An event of its own may come while it is served.
        [1, 1].into_iter().for_each(|token| turns.accept_more(token));
        assert!(turns.is_busy());
        assert_eq!(turns.take_listening([1, 2].into_iter()), [1]);
        assert!(!turns.is_busy() && !turns.retries());
        turns.retry();
        assert!(turns.retries());
        assert_eq!(turns.take_listening([1, 2].into_iter()), [1, 2]);
        assert!(turns.take_listening([1, 2].into_iter()).is_empty());
    }
}
