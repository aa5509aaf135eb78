//! The VMCI device, and the hypervisor that its guests call: datagrams, queue pairs, doorbells, stream
//! connections.
//!
//! | file | what |
//! | --- | --- |
//! | `device.rs` | one VM's PCI function: registers, the two datagram paths, reset |
//! | `dma.rs`, `ports.rs` | datagrams by DMA buffers (Linux 5.18 and later), by byte ports (older, others) |
//! | `spec.rs`, `caller.rs` | what a VM may use at most; the guest that makes a call |
//! | `tables.rs`, `contexts.rs`, `queue_pair.rs`, `connection.rs` | what the hypervisor knows: devices, queue pairs, connections; imported by what follows |
//! | `pairs.rs`, `well_known.rs` | two of its tables, with what keeps look-ups short |
//! | `ending.rs` | connections and queue pairs end, and take each other along |
//! | `sides.rs` | one value for each side of a pair or connection |
//! | `hypervisor.rs` | VMs come, change, are reset and go; datagrams between them |
//! | `hypercall.rs` | calls to the hypervisor |
//! | `queue_pair/` | queue pairs: create, attach, detach, the pages of an end |
//! | `routed.rs`, `other_ends.rs` | connections between a VMCI guest and an endpoint of another kind, which the router joins |
//! | `stream.rs`, `handshake.rs`, `pace.rs` | stream connections: control packets, what each state allows, how many at once |
//! | `inbox.rs`, `account.rs`, `notice.rs`, `notifier.rs`, `signals.rs` | what waits for a guest and whom it is charged to, and how the guest is notified of it |
//! | `record.rs`, `record/` | what is recorded for the next daemon: keys, when it is written, how it is restored |
//! | `views.rs`, `stats.rs` | what an operator may see |
//!
//! Locks: the hypervisor's one lock is held for look-ups and changes of tables, never while bytes are
//! copied, guest memory is translated or another thread is waited for. An inbox has its own.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod account;
mod caller;
mod connection;
mod contexts;
mod device;
mod dma;
mod ending;
mod handshake;
mod hypercall;
mod hypervisor;
mod inbox;
mod notice;
mod notifier;
mod other_ends;
mod pace;
mod pairs;
mod ports;
mod queue_pair;
mod record;
mod routed;
mod sides;
mod signals;
mod spec;
mod stats;
mod stream;
mod tables;
mod views;
mod well_known;

/// In the model of `tests/it/vmci/signals_model.rs` these are those of `loom`.
mod sync {
    pub use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
}

pub use caller::{Caller, PageFormat};
pub use device::{CreateError, VmciDevice};
pub use record::restore::HypervisorCheckpoint;
pub use spec::Limits;
pub use stats::VmciStats;
pub use tables::Hypervisor;
pub use views::{Bound, ConnectionView, VmView};
