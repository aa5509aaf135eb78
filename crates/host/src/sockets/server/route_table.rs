//! What the thread knows of other hosts: what is configured, the helper's line, calls that wait for its
//! answer.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use vmlane_port::Bounded;
use vmlane_port::fair::SharedPlaces;
use vmlane_vsock::{Call, Claim};
use vmlane_wire::route::{Op, Record};

use super::rings::Half;
use crate::sockets::Bounds;
use crate::sockets::client::Account;
use crate::sockets::inbox::Token;
use crate::sockets::left::LeftStream;
use crate::sockets::route::{PeerShared, Routes};

/// A peer's number for its account, and what is shared of it.
pub type Known = (u32, Arc<PeerShared>);

/// Bytes of calls that the line has no room for. A helper that reads its line has none waiting.
const BACKLOG: usize = 1 << 20;

/// A call that the helper has not answered.
pub struct AskedCall {
    pub call: Call,
    pub peer: Arc<PeerShared>,
    /// The peer's number.
    pub id: u32,
    /// The helper knows of it.
    sent: bool,
}

/// What the thread knows of other hosts.
pub struct RouteTable {
    pub routes: Option<Arc<Routes>>,
    /// By name; numbers are never used again.
    pub peers: HashMap<String, Known>,
    pub by_id: HashMap<u32, Arc<PeerShared>>,
    pub line: Option<Token>,
    /// Messages of calls that the line has no room for, by number. Each is of a call in `asked`.
    backlog: Bounded<(u64, Vec<u8>)>,
    /// Calls that were given up, of which the helper knows and has not been notified. Each keeps its client's
    /// place until then.
    given_up: Bounded<Call>,
    /// Calls that the helper has not answered, by number.
    asked: HashMap<u64, AskedCall>,
    askers: SharedPlaces<u32>,
    /// What a peer claims of a client that has connected to a program, by number of the call.
    pub claims: HashMap<u64, Claim>,
    /// Groups on behalf of which a program connects, by number of the call.
    pub sources: HashMap<u64, Vec<String>>,
    /// The helper can have programs' rings.
    pub shares: bool,
    /// Streams whose bytes are the helper's to move, by number of the call, as long as both ends are there.
    pub left: HashMap<u64, LeftStream>,
}

impl RouteTable {
    pub fn new(bounds: &Bounds) -> RouteTable {
        RouteTable {
            routes: None,
            peers: HashMap::new(),
            by_id: HashMap::new(),
            line: None,
            backlog: Bounded::new(BACKLOG),
            given_up: Bounded::new(bounds.calls),
            asked: HashMap::new(),
            askers: SharedPlaces::new(bounds.calls),
            claims: HashMap::new(),
            sources: HashMap::new(),
            shares: false,
            left: HashMap::new(),
        }
    }

    /// Whose processes may be the helper.
    pub fn helper(&self) -> Option<vmlane_access::Owner> {
        self.routes.as_ref().and_then(|routes| routes.owner)
    }

    /// A call waits for the helper from here on, which `message` asks. False: there is no room for it.
    pub fn ask(&mut self, call: Call, (id, peer): Known, message: Vec<u8>) -> bool {
        if !self.backlog.has_room(message.len()) || !self.askers.take(call.key.client.0) {
            return false;
        }
        self.asked.insert(call.number, AskedCall { call, peer, id, sent: false });
        self.backlog.push_weighing(message.len(), (call.number, message)).is_ok()
    }

    /// Numbers of the calls to the peer of this number that the helper has not answered; None: to any.
    pub fn asked_of(&self, id: Option<u32>) -> Vec<u64> {
        let of_peer = |asked: &&AskedCall| id.is_none_or(|id| asked.id == id);
        self.asked.values().filter(of_peer).map(|asked| asked.call.number).collect()
    }

    /// A call is answered.
    pub fn answered(&mut self, number: u64) -> Option<AskedCall> {
        let asked = self.remove(number)?;
        self.askers.give_back(&asked.call.key.client.0);
        Some(asked)
    }

    /// A call's client has given up: the helper is to be notified, if it knows of it.
    pub fn give_up(&mut self, number: u64) -> Option<AskedCall> {
        let asked = self.remove(number)?;
        if !asked.sent || self.given_up.push(asked.call).is_err() {
            self.askers.give_back(&asked.call.key.client.0);
        }
        Some(asked)
    }

    fn remove(&mut self, number: u64) -> Option<AskedCall> {
        let asked = self.asked.remove(&number)?;
        if !asked.sent {
            self.backlog.retain(|&(waiting, _)| waiting != number);
        }
        Some(asked)
    }

    /// What is to be sent over the line next.
    pub fn to_send(&self) -> Option<Cow<'_, [u8]>> {
        match self.given_up.front() {
            Some(call) => {
                let message = Record::message(Op::GivenUp, call.number, Default::default(), 0, "");
                Some(Cow::Owned(message))
            }
            None => self.backlog.front().map(|(_, message)| Cow::Borrowed(message.as_slice())),
        }
    }

    /// It was sent.
    pub fn sent(&mut self) {
        if let Some(call) = self.given_up.pop() {
            self.askers.give_back(&call.key.client.0);
        } else if let Some((number, _)) = self.backlog.pop()
            && let Some(asked) = self.asked.get_mut(&number)
        {
            asked.sent = true;
        }
    }

    /// The line is gone, and with it what the helper knew. Calls that it has not answered are left to
    /// [`Self::answered`].
    pub fn line_ends(&mut self) {
        self.backlog.clear();
        while let Some(call) = self.given_up.pop() {
            self.askers.give_back(&call.key.client.0);
        }
    }

    /// What is shared of the peer whose streams have this account.
    pub fn peer(&self, account: Account) -> Option<&PeerShared> {
        let Account::Peer(id) = account else { return None };
        self.by_id.get(&id).map(|shared| &**shared)
    }

    /// A program's connect is asked for on behalf of these groups, if it is to another host.
    pub fn remember(&mut self, call: Call, groups: Vec<String>) {
        if self.routes.as_ref().is_some_and(|routes| routes.owner_of(call.key.server.0).is_some()) {
            self.sources.insert(call.number, groups);
        }
    }

    /// The other half of a stream that was begun so. The call is refused if that cannot be (`able`).
    pub fn other_half(
        &mut self,
        call: Call,
        able: bool,
        half: impl FnOnce(&mut LeftStream) -> io::Result<Half>,
    ) -> Option<Result<Half, Errno>> {
        let left = self.left.get_mut(&call.number)?;
        Some(if able { half(left).map_err(|_| Errno::NOBUFS) } else { Err(Errno::PROTO) })
    }

    /// The ring's memory, for the program.
    pub fn memory_of(&self, call: Call) -> Option<OwnedFd> {
        self.left.get(&call.number)?.memory.as_ref()?.try_clone().ok()
    }

    /// What another host claims of the client of this call, if it is of one.
    pub fn claim(&mut self, call: Call) -> Option<Claim> {
        self.claims.remove(&call.number)
    }

    /// A client's connect is over, one way or the other.
    pub fn forget(&mut self, call: Call) {
        self.claims.remove(&call.number);
        self.sources.remove(&call.number);
        self.left.remove(&call.number);
    }
}

/// What a peer's groups and its client's have in common.
pub fn common(groups: &[String], of_client: &[String]) -> Vec<String> {
    of_client.iter().filter(|group| groups.contains(group)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use vmlane_vsock::{Key, Role};

    use super::*;

    fn call(client: u32, number: u64) -> Call {
        Call { key: Key { client: (client, 1000), server: (2000, 80) }, number, role: Role::Server }
    }

    fn table(calls: usize) -> RouteTable {
        RouteTable::new(&Bounds { calls, ..Bounds::default() })
    }

    fn known() -> Known {
        (1, Arc::default())
    }

    fn op(table: &RouteTable) -> Option<Op> {
        table.to_send().and_then(|message| Record::parse(&message).map(|(_, op, _)| op))
    }

    fn ask(table: &mut RouteTable, client: u32, number: u64) -> bool {
        let message = Record::message(Op::Call, number, Default::default(), 0, &"g".repeat(7000));
        table.ask(call(client, number), known(), message)
    }

    #[test]
    fn calls_that_are_given_up_leave_nothing_while_the_helper_does_not_read() {
        let mut table = table(4096);
        for number in 0..100_000 {
            assert!(ask(&mut table, 3, number));
            assert!(table.give_up(number).is_some() && table.give_up(number).is_none());
        }
        assert!(table.to_send().is_none() && table.asked.is_empty());
        let taken = (0..4096).filter(|&number| ask(&mut table, 3, number)).count();
        assert_eq!(taken, BACKLOG / 7040, "bytes have a bound, too");
        table.answered(0);
        assert!(ask(&mut table, 4, 5000), "there is room for another client's");
    }

    #[test]
    fn a_call_that_the_helper_knows_keeps_its_place_until_the_helper_is_notified() {
        let mut table = table(4);
        assert!(ask(&mut table, 3, 1) && ask(&mut table, 3, 2) && !ask(&mut table, 3, 3));
        table.sent();
        table.sent();
        assert!(table.give_up(1).is_some() && table.give_up(2).is_some());
        assert!(!ask(&mut table, 3, 4), "both places are taken");
        assert!(ask(&mut table, 4, 5), "another client has one");
        assert_eq!(op(&table), Some(Op::GivenUp));
        table.sent();
        assert!(ask(&mut table, 3, 6));
        table.sent();
        assert_eq!(op(&table), Some(Op::Call));
        table.line_ends();
        assert_eq!(table.asked_of(Some(1)).len(), 2);
        assert!(table.asked_of(None).into_iter().all(|number| table.answered(number).is_some()));
        assert_eq!((table.askers.used(), op(&table)), (0, None));
    }
}
