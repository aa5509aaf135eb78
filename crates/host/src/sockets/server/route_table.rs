//! What the thread knows of other hosts: what is configured, the helper's line, calls that wait for its answer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use vmlane_port::fair::SharedPlaces;
use vmlane_vsock::{Call, Claim};

use crate::sockets::Bounds;
use crate::sockets::left::LeftStream;
use crate::sockets::mail::Token;
use crate::sockets::route::{PeerShared, Routes};

/// A peer's number for its account, and what is shared of it.
pub type Known = (u32, Arc<PeerShared>);

/// What the thread knows of other hosts.
pub struct RouteTable {
    pub routes: Option<Arc<Routes>>,
    /// By name; numbers are never used again.
    pub peers: HashMap<String, Known>,
    pub by_id: HashMap<u32, Arc<PeerShared>>,
    pub line: Option<Token>,
    /// Messages that the line has no room for. Bounded by the calls that wait.
    pub backlog: VecDeque<Vec<u8>>,
    /// Calls that the helper has not answered, by number.
    pub asked: HashMap<u64, (Call, Arc<PeerShared>, u32)>,
    pub askers: SharedPlaces<u32>,
    /// What a peer says of a client that has connected to a program, by number of the call.
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
            backlog: VecDeque::new(),
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

    /// A call is answered, or given up.
    pub fn answered(&mut self, number: u64) -> Option<(Call, Arc<PeerShared>, u32)> {
        let asked = self.asked.remove(&number)?;
        self.askers.give_back(&asked.0.key.client.0);
        Some(asked)
    }

    /// What another host says of the client of this call, if it is of one.
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
