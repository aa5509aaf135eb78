//! What the hypervisor knows: its VMs, queue pairs and connections, behind one lock.
//!
//! Plain tables and look-ups. What changes them lies in the files that say what a guest asked for, as more
//! methods of [`Hypervisor`] and [`Inner`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use vmlane_mem::Pages;
use vmlane_port::{Budget, StreamId, Streams};
use vmlane_state::Journal;
use vmlane_vsock::{Calls, Key, Remote, Router, Vm};
use vmlane_wire::vmci::Handle;

use super::connection::Connection;
use super::inbox::Inbox;
use super::pairs::Pairs;
use super::record::Dirty;
use super::spec::Limits;
use super::stats::{Refusal, VmciStats};
use super::well_known::WellKnown;

/// One VM's device as the hypervisor knows it; what is configured of the VM is in the router's table of VMs.
pub(super) struct Context {
    pub limits: Limits,
    pub stats: Arc<VmciStats>,
    pub budget: Arc<Budget>,
    pub inbox: Arc<Inbox>,
    /// The driver has enabled interrupts: it can be reached.
    pub ready: bool,
    /// Its datagrams go through byte ports: a handshake takes long.
    pub slow: bool,
    /// Bytes of RAM that its VMM has mapped.
    pub memory: u64,
    pub bitmap: Option<Pages>,
    /// Upper halves of the driver's buffers: for sending, for receiving. They outlive every reset.
    pub buffers_high: [u32; 2],
    /// Address of the bitmap's page, and its shift.
    pub bitmap_at: Option<(u64, u32)>,
    /// Doorbell resource to index in the bitmap.
    pub doorbells: HashMap<u32, usize>,
    pub pairs: usize,
    pub pair_bytes: u64,
    pub connections: usize,
}

impl Context {
    pub fn new(limits: Limits, inbox: Arc<Inbox>, stats: Arc<VmciStats>) -> Context {
        Context {
            budget: Arc::new(Budget::new(limits.spill_bytes)),
            limits,
            stats,
            inbox,
            ready: false,
            slow: false,
            memory: 0,
            bitmap: None,
            bitmap_at: None,
            buffers_high: [0; 2],
            doorbells: HashMap::new(),
            pairs: 0,
            pair_bytes: 0,
            connections: 0,
        }
    }

    /// It opens a connection.
    pub fn count_connect(&mut self) {
        self.connections += 1;
        self.stats.connects.inc();
    }

    /// Bytes that its queue pairs may have together.
    pub fn queue_pair_bytes(&self) -> u64 {
        self.limits.queue_pair_bytes(self.memory)
    }

    /// Its queue, if a driver is there to fetch from it.
    pub fn reachable_inbox(&self) -> Option<&Arc<Inbox>> {
        self.ready.then_some(&self.inbox)
    }
}

/// The other end of a joined pair, if it is an endpoint of another kind.
pub(super) struct RoutedPeer {
    pub cid: u32,
    pub handle: Handle,
    pub stream: StreamId,
}

pub(super) struct Inner {
    pub contexts: HashMap<u32, Context>,
    pub pairs: Pairs,
    pub connections: HashMap<Key, Connection>,
    /// Connections whose REQUEST waits its turn, in order; some may be gone meanwhile.
    pub waiting: VecDeque<Key>,
    pub well_known: WellKnown,
    /// Ends of joined pairs that belong to endpoints of other kinds, by the number of their connection.
    pub routed_peers: HashMap<u64, RoutedPeer>,
    /// The last resource id given to a pair that the device offers.
    pub last_resource: u32,
    /// Calls to make once the lock is free.
    pub after: Calls,
    /// Connections with endpoints of other kinds, and who may talk to whom.
    pub router: Arc<Router>,
    pub guest_ends: Arc<dyn Remote>,
    /// What has changed since the last commit.
    pub dirty: Vec<Dirty>,
    /// The last pair's.
    pub serial: u64,
    /// How many daemons came before.
    pub generation: u64,
    /// By context: the last request that a previous daemon completed, and its result.
    pub executed: HashMap<u32, (u64, i32)>,
    /// Contexts whose devices are reset: a previous daemon's records of them are of no use.
    pub lost: HashSet<u32>,
}

impl Inner {
    pub fn new(router: Arc<Router>, guest_ends: Arc<dyn Remote>) -> Inner {
        Inner {
            contexts: HashMap::new(),
            pairs: Pairs::default(),
            connections: HashMap::new(),
            waiting: VecDeque::new(),
            well_known: WellKnown::default(),
            routed_peers: HashMap::new(),
            last_resource: 0,
            after: Calls::default(),
            router,
            guest_ends,
            dirty: Vec::new(),
            serial: 0,
            generation: 0,
            executed: HashMap::new(),
            lost: HashSet::new(),
        }
    }

    /// Is there a VMCI device for `cid`?
    pub fn is_guest(&self, cid: u32) -> bool {
        self.contexts.contains_key(&cid)
    }

    pub fn context(&self, cid: u32) -> Result<&Context, Refusal> {
        self.contexts.get(&cid).ok_or(Refusal::Destination)
    }

    pub fn context_mut(&mut self, cid: u32) -> Result<&mut Context, Refusal> {
        self.contexts.get_mut(&cid).ok_or(Refusal::Destination)
    }

    /// May these two exchange anything at all?
    pub fn may_talk(&self, a: u32, b: u32) -> bool {
        self.router.vms().may_talk(a, b)
    }

    /// What is configured of a VM.
    pub fn vm(&self, cid: u32) -> Result<Arc<Vm>, Refusal> {
        self.router.vms().get(cid).ok_or(Refusal::Destination)
    }

    /// The queue of `to` if `from` may reach it and a driver is there.
    pub fn reach(&self, from: u32, to: u32) -> Result<&Arc<Inbox>, Refusal> {
        if !self.may_talk(from, to) {
            return Err(Refusal::Destination);
        }
        self.context(to)?.reachable_inbox().ok_or(Refusal::Destination)
    }
}

/// The VMs of one daemon. Shared by all sessions.
pub struct Hypervisor {
    pub(super) inner: Mutex<Inner>,
    pub(super) router: Arc<Router>,
    pub(super) streams: Arc<dyn Streams>,
    pub(super) me: Weak<Hypervisor>,
    /// For the next daemon, if there may be one.
    pub(super) log: Option<Arc<Journal>>,
}
