//! What a guest keeps of a stream socket. Source: `vmci_transport.c`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vmlane_wire::vmci::Handle;
use vmlane_wire::vmci_stream::{SHUTDOWN_RECEIVE, SHUTDOWN_SEND};

use vmlane_port::queue_pair::Protocol;

use super::notify::Notify;
use super::queues::Queues;
use super::ram::Placement;

/// Peer's (CID, port), own port.
pub(super) type Key = ((u32, u32), u32);

/// What goes wrong with a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// ECONNRESET while connecting.
    #[error("connection refused")]
    Refused,
    /// EPIPE: the peer reads no more.
    #[error("the peer reads no more")]
    Closed,
    /// EPROTO.
    #[error("a packet out of turn")]
    Protocol,
    #[error("the device answered {0}")]
    Device(i32),
    #[error("timed out waiting for {0}")]
    TimedOut(&'static str),
}

/// Connections that wait for `accept`.
pub(super) struct Backlog {
    pub established: Mutex<VecDeque<Arc<Socket>>>,
    pub placement: Placement,
}

/// How far a socket has come.
#[derive(Clone)]
pub(super) enum Phase {
    Requested { protocol: Protocol, placement: Placement },
    Offered,
    Pending { size: u64, protocol: Protocol, backlog: Arc<Backlog> },
    Established,
    Failed(SocketError),
}

pub(super) struct State {
    pub phase: Phase,
    pub pair: Option<(Queues, Notify)>,
    /// SHUTDOWN bits of the peer; both after it has gone.
    pub peer_shutdown: u64,
    /// SHUTDOWN bits of this end.
    pub shutdown: u64,
    pub resets: u64,
}

/// What the guest keeps of a connection.
pub(super) struct Socket {
    pub key: Key,
    pub state: Mutex<State>,
    /// Wake-ups of readers and of writers so far.
    pub reader_wakes: AtomicU64,
    pub writer_wakes: AtomicU64,
    /// Readers sleep until this many bytes are there.
    pub low_water: AtomicU64,
}

impl Socket {
    pub fn new(key: Key, phase: Phase) -> Socket {
        let state = State { phase, pair: None, peer_shutdown: 0, shutdown: 0, resets: 0 };
        Socket {
            key,
            state: Mutex::new(state),
            reader_wakes: AtomicU64::new(0),
            writer_wakes: AtomicU64::new(0),
            low_water: AtomicU64::new(1),
        }
    }

    pub fn phase(&self) -> Phase {
        self.state.lock().phase.clone()
    }

    pub fn set_phase(&self, phase: Phase) {
        self.state.lock().phase = phase;
    }

    pub fn set_queues(&self, queues: Queues, protocol: Protocol, phase: Phase) {
        let mut state = self.state.lock();
        let notify = Notify::new(protocol, queues.consume_size);
        state.pair = Some((queues, notify));
        state.phase = phase;
    }

    /// Connecting is over, one way or the other.
    pub fn settled(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Established | Phase::Failed(_))
    }

    /// A QP_PEER_DETACH event, perhaps for this socket.
    pub fn peer_detached(&self, handle: Handle) {
        let mut state = self.state.lock();
        if state.pair.as_ref().is_none_or(|(queues, _)| queues.handle != handle) {
            return;
        }
        state.peer_shutdown = SHUTDOWN_SEND | SHUTDOWN_RECEIVE;
        if matches!(state.phase, Phase::Offered) {
            state.phase = Phase::Failed(SocketError::Refused);
        }
        drop(state);
        self.wake_all();
    }

    pub fn wake_all(&self) {
        self.reader_wakes.fetch_add(1, Ordering::SeqCst);
        self.writer_wakes.fetch_add(1, Ordering::SeqCst);
    }
}
