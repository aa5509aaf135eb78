//! The VMCI device and the fabric between VMs.
//!
//! | file | what |
//! | --- | --- |
//! | `device.rs` | one VM's PCI function: registers, the two datagram paths, reset |
//! | `dma.rs`, `ports.rs` | datagrams by DMA buffers (Linux 5.18 and later), by byte ports (older, others) |
//! | `fabric.rs` | all VMs: contexts, who may talk to whom, datagrams, doorbells, events |
//! | `hypercall.rs` | calls to the hypervisor |
//! | `broker.rs` | queue pairs: create, attach, detach |
//! | `mixed.rs` | connections between a VMCI guest and what is none: host programs, VMs with another kind of vsock |
//! | `stream.rs`, `handshake.rs` | stream connections: control packets, what each state allows |
//! | `queue_pair.rs` | one guest's end of a queue pair as a stream port |
//! | `shared.rs` | the same over memory that a process of the host shares |
//! | `inbox.rs`, `notices.rs`, `signals.rs` | what waits for a guest, and how it hears of it |
//!
//! Locks: the fabric's one lock is held for look-ups and changes of tables, never while bytes are
//! copied, guest memory is translated or another thread is waited for. An inbox has its own.

mod broker;
mod device;
mod dma;
mod fabric;
mod handshake;
mod hypercall;
mod inbox;
mod mixed;
mod notices;
mod pace;
mod ports;
mod queue_pair;
mod record;
mod shared;
mod signals;
mod stats;
mod stream;
mod views;

pub use device::{CreateError, VmciDevice};
pub use fabric::{AddError, Caller, Fabric, Limits, PageFormat, VmSpec};
pub use notices::{Notice, Protocol};
pub use queue_pair::{QueueMemory, QueuePairPort};
pub use record::FabricPast;
pub use shared::{SharedMap, SharedRing, Waits, Waker};
pub use stats::VmciStats;
pub use views::{Bound, ConnectionView, VmView};
