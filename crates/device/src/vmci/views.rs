//! What an operator may see of the hypervisor: copies, taken under the lock.

use std::sync::Arc;

use vmlane_vsock::SocketAddress;

use super::contexts::Context;
use super::stats::VmciStats;
use super::tables::Hypervisor;

/// One VM.
#[derive(Clone, Debug)]
pub struct VmView {
    pub cid: u32,
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
    pub overflow_left: usize,
    pub stats: Arc<VmciStats>,
    /// What it may use at most, and how often it wanted more.
    pub bounds: Vec<Bound>,
}

/// A bound of one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// As in the configuration.
    pub name: &'static str,
    pub used: u64,
    pub limit: u64,
    /// How often more was asked for.
    pub refused: u64,
}

/// `connections`: how many it may have.
fn bounds(context: &Context, connections: usize) -> Vec<Bound> {
    let (limits, stats) = (&context.limits, &context.stats);
    let overflow = limits.overflow_bytes.saturating_sub(context.budget.left());
    let rows = [
        ("queue_pairs", context.pairs as u64, limits.queue_pairs as u64, stats.over_queue_pairs.get()),
        (
            "queue_pair_bytes",
            context.pair_bytes,
            context.queue_pair_bytes(),
            stats.over_queue_pair_bytes.get(),
        ),
        ("connections", context.connections as u64, connections as u64, stats.over_connections.get()),
        ("doorbells", context.doorbells.len() as u64, limits.doorbells as u64, stats.over_doorbells.get()),
        ("inbox_bytes", context.inbox.bytes() as u64, limits.inbox_bytes as u64, stats.over_inbox.get()),
        ("overflow_bytes", overflow as u64, limits.overflow_bytes as u64, context.budget.refused()),
    ];
    rows.map(|(name, used, limit, refused)| Bound { name, used, limit, refused }).to_vec()
}

/// One stream connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    pub client: SocketAddress,
    pub server: SocketAddress,
    pub state: &'static str,
}

impl Hypervisor {
    /// Why a next daemon would not continue the VMs' streams; `None`: it would.
    pub fn survival_lost(&self) -> Option<String> {
        let Some(log) = &self.log else { return Some("there is no file for their records".into()) };
        let lost = log.lost_records();
        (lost > 0).then(|| format!("the file of their records is full, {lost} records did not fit"))
    }

    /// All VMs with a VMCI device, by CID.
    pub fn vms(&self) -> Vec<VmView> {
        let known = self.router.vms().known();
        let inner = self.inner.lock();
        let mut vms: Vec<VmView> = inner
            .contexts
            .iter()
            .map(|(cid, context)| VmView {
                cid,
                ready: context.ready,
                queue_pairs: context.pairs,
                queue_pair_bytes: context.pair_bytes,
                connections: context.connections,
                doorbells: context.doorbells.len(),
                inbox_bytes: context.inbox.bytes(),
                packets_waiting: context.inbox.own(),
                overflow_left: context.budget.left(),
                stats: context.stats.clone(),
                bounds: bounds(context, known.get(cid).map_or(0, |vm| vm.connections)),
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
                state: connection.state.name(),
            })
            .collect();
        connections.sort_by_key(|connection| (connection.client, connection.server));
        connections
    }
}
