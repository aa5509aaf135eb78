//! What an operator may see of the fabric: copies, taken under the lock.

use std::sync::Arc;

use super::fabric::Fabric;
use super::stats::VmciStats;
use super::stream::SocketAddress;

/// One VM.
#[derive(Clone, Debug)]
pub struct VmView {
    pub name: String,
    pub cid: u32,
    pub group: String,
    /// Its driver is there.
    pub ready: bool,
    pub queue_pairs: usize,
    pub queue_pair_bytes: u64,
    /// Connections it opened.
    pub connections: usize,
    pub doorbells: usize,
    /// Datagrams waiting for it, in bytes.
    pub inbox_bytes: usize,
    /// Packets of the device itself waiting for it.
    pub packets_waiting: usize,
    /// Bytes it may still leave behind.
    pub spill_left: usize,
    pub stats: Arc<VmciStats>,
}

/// One stream connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    pub client: SocketAddress,
    pub server: SocketAddress,
    pub state: &'static str,
}

impl Fabric {
    /// All VMs, by CID.
    pub fn vms(&self) -> Vec<VmView> {
        let inner = self.inner.lock();
        let mut vms: Vec<VmView> = inner
            .contexts
            .values()
            .map(|context| VmView {
                name: context.spec.name.clone(),
                cid: context.spec.cid,
                group: context.spec.group.clone(),
                ready: context.ready,
                queue_pairs: context.pairs,
                queue_pair_bytes: context.pair_bytes,
                connections: context.connections,
                doorbells: context.doorbells.len(),
                inbox_bytes: context.inbox.as_ref().map_or(0, |inbox| inbox.bytes()),
                packets_waiting: context.inbox.as_ref().map_or(0, |inbox| inbox.own()),
                spill_left: context.budget.left(),
                stats: context.stats.clone(),
            })
            .collect();
        vms.sort_by_key(|vm| vm.cid);
        vms
    }

    /// All tracked connections, by their clients' addresses.
    pub fn connections(&self) -> Vec<ConnectionView> {
        let inner = self.inner.lock();
        let mut connections: Vec<ConnectionView> = inner
            .connections
            .iter()
            .map(|(key, connection)| ConnectionView {
                client: key.client,
                server: key.server,
                state: connection.state().name(),
            })
            .collect();
        connections.sort_by_key(|connection| (connection.client, connection.server));
        connections
    }
}
