//! The server's clients: by token, counted by user and by process, each with its deadline.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use vmlane_access::Peer;
use vmlane_port::fair::SharedPlaces;

use crate::sockets::Bounds;
use crate::sockets::client::{Account, Client, State};
use crate::sockets::inbox::Token;

/// All clients. The counts and the deadlines always agree with the clients.
pub struct Clients {
    by_token: HashMap<Token, Client>,
    /// By user and process: those of another PID namespace may have no number here.
    of_process: HashMap<(u32, i32), usize>,
    /// By user, or by VM.
    accounts: SharedPlaces<Account>,
    /// Streams of other hosts, by host.
    peers: SharedPlaces<Account>,
    /// Clients whose request has not arrived, by user.
    unasked: SharedPlaces<u32>,
    deadlines: BTreeSet<(Instant, Token)>,
}

impl Clients {
    /// Room for so many, and for so many of them whose request has not arrived. One user or VM cannot use
    /// either up.
    pub fn new(bounds: &Bounds) -> Clients {
        Clients {
            by_token: HashMap::new(),
            of_process: HashMap::new(),
            accounts: SharedPlaces::new(bounds.clients),
            peers: SharedPlaces::new(bounds.routed),
            unasked: SharedPlaces::new(bounds.unasked),
            deadlines: BTreeSet::new(),
        }
    }

    /// May this user, or VM, have another one?
    pub fn has_room(&self, account: Account) -> bool {
        self.places(account).has_room(&account)
    }

    fn places(&self, account: Account) -> &SharedPlaces<Account> {
        if matches!(account, Account::Peer(_)) { &self.peers } else { &self.accounts }
    }

    fn places_mut(&mut self, account: Account) -> &mut SharedPlaces<Account> {
        if matches!(account, Account::Peer(_)) { &mut self.peers } else { &mut self.accounts }
    }

    /// How many it has.
    pub fn of(&self, account: Account) -> usize {
        self.places(account).of(&account)
    }

    /// Which they are.
    pub fn tokens_of(&self, account: Account) -> Vec<Token> {
        self.by_token
            .iter()
            .filter(|(_, client)| client.account == account)
            .map(|(&token, _)| token)
            .collect()
    }

    /// May the user have another one whose request has not arrived?
    pub fn may_ask(&self, uid: u32) -> bool {
        self.unasked.has_room(&uid)
    }

    pub fn tokens(&self) -> Vec<Token> {
        self.by_token.keys().copied().collect()
    }

    /// How many clients a process has.
    pub fn of_process(&self, peer: &Peer) -> usize {
        self.of_process.get(&(peer.uid, peer.pid)).copied().unwrap_or(0)
    }

    pub fn get(&self, token: Token) -> Option<&Client> {
        self.by_token.get(&token)
    }

    /// What is counted changes by [`Self::set_state`] and [`Self::set_deadline`] only.
    pub fn get_mut(&mut self, token: Token) -> Option<&mut Client> {
        self.by_token.get_mut(&token)
    }

    pub fn insert(&mut self, token: Token, client: Client) {
        if client.account.is_user() {
            *self.of_process.entry((client.peer.uid, client.peer.pid)).or_default() += 1;
        }
        // There is room: `has_room` and `may_ask` were asked.
        self.places_mut(client.account).take(client.account);
        if client.state.is_asking() {
            self.unasked.take(client.peer.uid);
        }
        self.deadlines.extend(client.deadline.map(|deadline| (deadline, token)));
        self.by_token.insert(token, client);
    }

    pub fn remove(&mut self, token: Token) -> Option<Client> {
        let client = self.by_token.remove(&token)?;
        self.places_mut(client.account).give_back(&client.account);
        if client.state.is_asking() {
            self.unasked.give_back(&client.peer.uid);
        }
        if let Some(deadline) = client.deadline {
            self.deadlines.remove(&(deadline, token));
        }
        if client.account.is_user() {
            self.leaves_process((client.peer.uid, client.peer.pid));
        }
        Some(client)
    }

    fn leaves_process(&mut self, process: (u32, i32)) {
        if let Some(count) = self.of_process.get_mut(&process) {
            *count -= 1;
            if *count == 0 {
                self.of_process.remove(&process);
            }
        }
    }

    /// A user's client takes a place of `account`, which is no user, from here on. False if there is none.
    pub fn set_account(&mut self, token: Token, account: Account) -> bool {
        let Some(client) = self.by_token.get_mut(&token).filter(|client| client.account.is_user()) else {
            return false;
        };
        let process = (client.peer.uid, client.peer.pid);
        let places = if matches!(account, Account::Peer(_)) { &mut self.peers } else { &mut self.accounts };
        if !places.take(account) {
            return false;
        }
        let before = std::mem::replace(&mut client.account, account);
        self.accounts.give_back(&before);
        self.leaves_process(process);
        true
    }

    /// Changes a client's state. Returns the one before.
    pub fn set_state(&mut self, token: Token, state: State) -> Option<State> {
        let client = self.by_token.get_mut(&token)?;
        if client.state.is_asking() {
            self.unasked.give_back(&client.peer.uid);
        }
        if state.is_asking() {
            self.unasked.take(client.peer.uid);
        }
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

    /// It has come so far, and has until `deadline` to come further.
    pub fn becomes(&mut self, token: Token, state: State, deadline: Option<Instant>) {
        self.set_state(token, state);
        self.set_deadline(token, deadline);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::sockets::client::Dialect;
    use rustix::event::EventfdFlags;

    fn asking(uid: u32) -> Client {
        let socket = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("a file");
        let state = State::Asking { dialect: Dialect::Native, bytes: Vec::new() };
        let peer = Arc::new(Peer { pid: 1, uid, gid: uid, groups: Vec::new() });
        let account = Account::User(uid);
        Client { socket: Arc::new(socket), peer, account, state, deadline: None, waker: None }
    }

    #[test]
    fn one_user_fills_its_part_and_another_is_served() {
        let mut clients = Clients::new(&Bounds { clients: 64, unasked: 16, ..Bounds::default() });
        let fill = |clients: &mut Clients, uid: u32, from: Token| {
            (from..from + 100)
                .filter(|&token| {
                    let may = clients.has_room(Account::User(uid)) && clients.may_ask(uid);
                    if may {
                        clients.insert(token, asking(uid));
                    }
                    may
                })
                .count()
        };
        assert_eq!(fill(&mut clients, 1000, 0), 8);
        assert_eq!(fill(&mut clients, 1001, 1000), 4);
        for token in clients.tokens() {
            clients.set_state(token, State::Listening { port: 1, ring: false });
        }
        assert_eq!(fill(&mut clients, 1000, 2000), 8, "they have asked");
        clients.tokens().into_iter().for_each(|token| drop(clients.remove(token)));
        assert_eq!((clients.accounts.used(), clients.unasked.used()), (0, 0));
    }
}
