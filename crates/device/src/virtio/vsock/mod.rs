//! virtio-vsock devices of VMs, and the packets between them.
//!
//! A packet goes from the sender's chain to the receiver's buffers with one copy. Credit is between the two
//! guests: what one announces, the other receives; the daemon only asks receivers for credit in time.
//! Between two such devices nothing holds payload, but of packets whose receiver has no buffers: these wait,
//! and delay no packet to another receiver. One that takes nothing for long loses its connections.
//!
//! | file | what |
//! | --- | --- |
//! | `device.rs` | a VM's device as its vhost-user session drives it |
//! | `events.rs` | the event queue: a driver that comes from elsewhere is notified of it |
//! | `port.rs`, `transmit.rs`, `receive.rs` | its running rings; packets out; packets in |
//! | `kept.rs` | what of it outlives the daemon |
//! | `table.rs` | who is connected to whom, so that a VM's end is notified |
//! | `repeats.rs` | RSTs of connections that are over |
//! | `credit.rs` | what is under way in a connection, and when its receiver is asked for credit |
//! | `route.rs`, `route/members.rs` | routes; the VMs that have some |
//! | `own_packets.rs` | packets that the daemon sends by itself; what captures see |
//! | `clients.rs` | who asks for connections, and is charged for them |
//! | `backlog.rs` | packets that wait for a receiver's buffers |
//! | `bridge.rs`, `lane.rs` | connections to VMCI guests and host programs; one of them as the end of a stream |
//! | `bridge/inbox.rs`, `bridge/links.rs` | what the router reports of a guest's connections; those connections |
//! | `worker.rs`, `vms.rs`, `stats.rs` | a worker, what it keeps of each VM, what it counts |
//! | `workers.rs` | all of them, and which one serves which VM |
//! | `views.rs` | what an operator may see |

mod backlog;
mod bridge;
mod clients;
mod credit;
mod device;
mod events;
mod kept;
mod lane;
mod own_packets;
mod port;
mod receive;
mod repeats;
mod route;
mod stats;
mod table;
mod transmit;
mod views;
mod vms;
mod worker;
mod workers;

pub use device::VsockDevice;
pub use kept::{hold_logs, recover_all};
pub use stats::{GuestStats, VsockStats};
pub use views::{ConnectionView, GuestView};
pub use worker::{Relay, Settings, VsockWorker};
pub use workers::{Home, VsockWorkers};

/// The worker's parts without its thread, to be turned by hand.
#[doc(hidden)]
pub mod parts {
    pub use super::bridge::{Bridge, GuestEndpoint, Inboxes, MAX_LINKS};
    pub use super::kept::{Kept, Transaction, redo};
    pub use super::port::Port;
    pub use super::receive::Shares;
    pub use super::route::Routes;
    pub use vmlane_worker::Parking;
}
