//! The server's clients: by token, counted by process, each with its deadline.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use crate::sockets::client::{Client, State};
use crate::sockets::mail::Token;

/// All clients. The counts and the deadlines always agree with the clients.
#[derive(Default)]
pub struct Clients {
    by_token: HashMap<Token, Client>,
    of_process: HashMap<i32, usize>,
    /// Clients whose request has not arrived.
    unasked: usize,
    deadlines: BTreeSet<(Instant, Token)>,
}

impl Clients {
    pub fn len(&self) -> usize {
        self.by_token.len()
    }

    pub fn tokens(&self) -> Vec<Token> {
        self.by_token.keys().copied().collect()
    }

    pub fn unasked(&self) -> usize {
        self.unasked
    }

    /// How many clients a process has.
    pub fn of_process(&self, pid: i32) -> usize {
        self.of_process.get(&pid).copied().unwrap_or(0)
    }

    pub fn get(&self, token: Token) -> Option<&Client> {
        self.by_token.get(&token)
    }

    /// What is counted changes by [`Self::set_state`] and [`Self::set_deadline`] only.
    pub fn get_mut(&mut self, token: Token) -> Option<&mut Client> {
        self.by_token.get_mut(&token)
    }

    pub fn insert(&mut self, token: Token, client: Client) {
        *self.of_process.entry(client.peer.pid).or_default() += 1;
        self.unasked += usize::from(client.state.is_asking());
        self.deadlines.extend(client.deadline.map(|deadline| (deadline, token)));
        self.by_token.insert(token, client);
    }

    pub fn remove(&mut self, token: Token) -> Option<Client> {
        let client = self.by_token.remove(&token)?;
        self.unasked -= usize::from(client.state.is_asking());
        if let Some(deadline) = client.deadline {
            self.deadlines.remove(&(deadline, token));
        }
        if let Some(count) = self.of_process.get_mut(&client.peer.pid) {
            *count -= 1;
            if *count == 0 {
                self.of_process.remove(&client.peer.pid);
            }
        }
        Some(client)
    }

    /// Changes a client's state. Returns the one before.
    pub fn set_state(&mut self, token: Token, state: State) -> Option<State> {
        let client = self.by_token.get_mut(&token)?;
        self.unasked += usize::from(state.is_asking());
        self.unasked -= usize::from(client.state.is_asking());
        Some(std::mem::replace(&mut client.state, state))
    }

    /// The state has changed in time, or begins to be waited for.
    pub fn set_deadline(&mut self, token: Token, deadline: Option<Instant>) {
        let Some(client) = self.by_token.get_mut(&token) else { return };
        if let Some(old) = std::mem::replace(&mut client.deadline, deadline) {
            self.deadlines.remove(&(old, token));
        }
        self.deadlines.extend(deadline.map(|deadline| (deadline, token)));
    }

    pub fn first_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// A client whose deadline has passed; its deadline is forgotten.
    pub fn expired(&mut self, now: Instant) -> Option<Token> {
        let &(deadline, token) = self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        self.deadlines.pop_first();
        Some(token)
    }
}
