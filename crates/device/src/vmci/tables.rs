//! What the hypervisor knows: its VMs, queue pairs and connections, behind one lock.
//!
//! Each table has its own file. What a guest's call does to several of them lies in the files that say what
//! it asked for, as more methods of [`Hypervisor`]; what several of these share, how connections and pairs
//! end, in `ending.rs`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use vmlane_port::Streams;
use vmlane_state::Journal;
use vmlane_vsock::{Key, Remote, Router};

use super::connection::Connection;
use super::contexts::Contexts;
use super::other_ends::OtherEnds;
use super::pairs::Pairs;
use super::record::Dirty;
use super::well_known::WellKnown;

pub(super) struct Inner {
    pub contexts: Contexts,
    pub pairs: Pairs,
    pub connections: HashMap<Key, Connection>,
    /// Connections whose REQUEST waits its turn, in order; some may be gone meanwhile.
    pub waiting: VecDeque<Key>,
    pub well_known: WellKnown,
    pub others: OtherEnds,
    /// What has changed since the last commit.
    pub dirty: Vec<Dirty>,
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
            contexts: Contexts::new(router.vms().clone()),
            pairs: Pairs::default(),
            connections: HashMap::new(),
            waiting: VecDeque::new(),
            well_known: WellKnown::default(),
            others: OtherEnds::new(router, guest_ends),
            dirty: Vec::new(),
            generation: 0,
            executed: HashMap::new(),
            lost: HashSet::new(),
        }
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
