//! What an operator may see of VMs with hybrid sockets.

use std::collections::HashMap;
use std::sync::Arc;

use vmlane_vsock::{KnownVms, SocketAddress};

use super::hybrid::HybridStats;
use super::inbox::Token;

/// What an operator may see of one VM.
#[derive(Clone, Debug)]
pub struct HybridView {
    /// Its address.
    pub cid: u32,
    /// Connections that its guest opened.
    pub opened: usize,
    /// All of its connections: they count against what it may have.
    pub connections: usize,
    /// What it may have.
    pub limit: usize,
    /// Counters.
    pub stats: Arc<HybridStats>,
}

/// One connection with such a VM at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HybridConnection {
    /// Whose place it takes.
    pub vm: u32,
    /// The end that connected. A guest's own port is not known: the VMM does not report it.
    pub client: SocketAddress,
    /// The end that listened.
    pub server: SocketAddress,
    /// The server has accepted.
    pub established: bool,
}

impl HybridConnection {
    /// As VMCI connections' states are called.
    pub fn state(&self) -> &'static str {
        if self.established { "established" } else { "requested" }
    }
}

/// What the thread that serves them shows of all VMs.
#[derive(Default)]
pub struct Shown {
    vms: HashMap<u32, Arc<HybridStats>>,
    connections: HashMap<Token, HybridConnection>,
}

impl Shown {
    pub fn set(&mut self, cid: u32, stats: &Arc<HybridStats>) {
        self.vms.insert(cid, stats.clone());
    }

    pub fn remove(&mut self, cid: u32) {
        self.vms.remove(&cid);
    }

    pub fn connects(&mut self, token: Token, connection: HybridConnection) {
        self.connections.insert(token, connection);
    }

    /// The connection of this client is joined.
    pub fn joined(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.established = true;
        }
    }

    pub fn ends(&mut self, token: Token) {
        self.connections.remove(&token);
    }

    pub fn connections(&self) -> Vec<HybridConnection> {
        self.connections.values().copied().collect()
    }

    pub fn views(&self, known: &KnownVms) -> Vec<HybridView> {
        let view = |(&cid, stats): (&u32, &Arc<HybridStats>)| {
            let own = || self.connections.values().filter(|connection| connection.vm == cid);
            HybridView {
                cid,
                opened: own().filter(|connection| connection.client.0 == cid).count(),
                connections: own().count(),
                limit: known.get(cid).map_or(0, |vm| vm.connections),
                stats: stats.clone(),
            }
        };
        self.vms.iter().map(view).collect()
    }
}
