//! Who answers for a CID, and what is reported to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vmlane_port::{Shutdown, Side, StreamEnd, StreamId};

use crate::address::{Cid, HOST, Key, SockPort, SocketAddress};
use crate::connection::{Failed, Role};

/// One end of a connection, for its endpoint to name it by: the addresses, and a number that is never used
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// Both addresses.
    pub key: Key,
    /// Tells it from others of the same addresses.
    pub number: u64,
    /// Which of the two ends.
    pub role: Role,
}

impl Call {
    /// The CID of this end.
    pub fn cid(&self) -> Cid {
        match self.role {
            Role::Client => self.key.client.0,
            Role::Server => self.key.server.0,
        }
    }

    pub(crate) fn of(self, role: Role) -> Call {
        Call { role, ..self }
    }
}

/// Why a connection cannot be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// There is no such VM, it may not be reached from here, or nothing answers for it.
    #[error("no VM with this CID can be reached: none is configured, or its driver is not loaded")]
    Unreachable,
    /// There is such a connection.
    #[error("the two addresses are connected already")]
    InUse,
    /// The VM does not fetch what is sent to it.
    #[error("the VM does not fetch its packets")]
    Busy,
}

/// Why a datagram was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// There is no such receiver for this sender.
    #[error("no VM or program with this address can be reached")]
    Unreachable,
    /// No port of this number takes datagrams.
    #[error("this port takes no datagrams")]
    Port,
    /// It is larger than a datagram may be.
    #[error("the datagram is too large")]
    TooLarge,
    /// The receiver does not read.
    #[error("the receiver has no room")]
    Full,
}

/// What answers for one CID. Called without the router's lock, from any thread; must return soon.
pub trait Endpoint: Send + Sync {
    /// A connection to `call.key.server` is wanted. Answered with [`crate::Router::accept`] or
    /// [`crate::Router::close`], now or later. `size`: the ring that the client asks for in bytes, if it
    /// does.
    fn requested(&self, call: Call, size: Option<u64>) -> Result<(), ConnectError>;

    /// The client has given up before it was answered.
    fn given_up(&self, call: Call) {
        let _ = call;
    }

    /// A datagram for `port`; the sender may talk to this CID.
    fn datagram(&self, from: SocketAddress, port: SockPort, payload: &[u8]) -> Result<(), DatagramError> {
        let _ = (from, port, payload);
        Err(DatagramError::Port)
    }
}

/// What is notified of one end of one connection. Called without the router's lock, from any thread; must
/// return soon.
pub trait Remote: Send + Sync {
    /// The server has accepted a client that has brought no end yet: it does so now.
    fn accepted(&self, call: Call) {
        let _ = call;
    }

    /// Bytes move. `stream` and `side` are this end, for [`vmlane_port::Streams`].
    fn joined(&self, call: Call, stream: StreamId, side: Side);

    /// Nothing comes of it. Not called after [`Self::joined`], whose port is notified of ends.
    fn failed(&self, call: Call, why: Failed);

    /// The peer has left the joined stream; its bytes may still be on their way.
    fn peer_left(&self, call: Call) {
        let _ = call;
    }
}

/// An end of a joined connection that outlived a daemon, though its bytes lie in no ring that its peer's
/// began together with.
pub struct RestoredEnd {
    /// Its end of the stream.
    pub end: StreamEnd,
    /// What is notified of it.
    pub remote: Arc<dyn Remote>,
    /// Where it stands.
    pub counts: Arc<dyn Counts>,
    /// What it has announced of its future.
    pub announced: Vec<Shutdown>,
}

/// Where such an end stands, in bytes since the connection began.
pub trait Counts: Send + Sync {
    /// How many of its peer's bytes it has.
    fn sent(&self) -> u64;

    /// Its peer has this end's bytes in a ring of `size` bytes, up to index `tail`. False: this cannot be.
    fn resume(&self, tail: u64, size: u64) -> bool;
}

/// Endpoints by CID.
#[derive(Default)]
pub(crate) struct Registry {
    endpoints: HashMap<Cid, Arc<dyn Endpoint>>,
}

/// Whether something answers for the host, to be read without a lock.
#[derive(Default)]
pub(crate) struct HostPresence(AtomicBool);

impl HostPresence {
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Registry {
    pub fn set(&mut self, cid: Cid, endpoint: Option<Arc<dyn Endpoint>>, host: &HostPresence) {
        if cid == HOST {
            host.0.store(endpoint.is_some(), Ordering::Release);
        }
        match endpoint {
            Some(endpoint) => drop(self.endpoints.insert(cid, endpoint)),
            None => drop(self.endpoints.remove(&cid)),
        }
    }

    pub fn get(&self, cid: Cid) -> Option<&Arc<dyn Endpoint>> {
        self.endpoints.get(&cid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Endpoint for Nothing {
        fn requested(&self, _: Call, _: Option<u64>) -> Result<(), ConnectError> {
            Ok(())
        }
    }

    #[test]
    fn the_host_is_there_while_something_answers_for_it() {
        let (mut registry, host) = (Registry::default(), HostPresence::default());
        registry.set(3, Some(Arc::new(Nothing)), &host);
        assert!(!host.get() && registry.get(3).is_some());
        registry.set(HOST, Some(Arc::new(Nothing)), &host);
        assert!(host.get());
        registry.set(3, None, &host);
        assert!(host.get() && registry.get(3).is_none());
        registry.set(HOST, None, &host);
        assert!(!host.get());
    }
}
