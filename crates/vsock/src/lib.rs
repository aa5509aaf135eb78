//! The CID space of one host: addresses, who may talk to whom, who answers for a CID, and stream connections.
//!
//! It knows no device and no packet. What speaks for a CID is an [`Endpoint`]: the VMCI device and
//! virtio-vsock for their guests, the host's sockets for its programs. Each translates what its side sends
//! into calls of the [`Router`], and what the router reports to it into packets of its side; so a pair of
//! kinds needs no code of its own.
//!
//! | file | what |
//! | --- | --- |
//! | `address.rs` | addresses, and the pair of them that names a connection |
//! | `vms.rs` | the one table of VMs and of other hosts' CIDs: groups, restricted and trusted VMs, forwards, who may talk to whom |
//! | `host_rules.rs` | which programs of the host may reach which VMs |
//! | `registry.rs` | what an endpoint is, and which one answers for a CID |
//! | `connection.rs` | what a connection allows and when: a pure function |
//! | `router.rs` | all connections; the only lock, beside that of captures |
//! | `restored.rs` | connections that outlived a daemon |
//! | `datagram_taps.rs` | captures of datagrams |
//! | `waiting.rs` | calls that wait for the thread that serves their endpoint |
//!
//! The order of calls, for a client C and a server S:
//!
//! ```text
//! C: Router::open       ->  S: Endpoint::requested
//! S: Router::accept     ->  C: Remote::accepted, if C has brought no end yet; then C: Event::Supply
//!                           both ends are joined
//!                       ->  C and S: Remote::joined
//! either: Router::shutdown, Router::reset, Router::close
//! ```
//!
//! A server whose acceptance can still fail once its end is known (a VMCI guest that has attached) uses
//! [`Event::Attach`], and [`Event::Confirm`] when it is certain.
#![deny(missing_docs)]
#![deny(clippy::disallowed_types)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod address;
mod connection;
mod datagram_taps;
mod host_rules;
mod registry;
mod restored;
mod router;
mod vms;
mod waiting;

pub use address::{Cid, HOST, Key, SockPort, SocketAddress};
pub use connection::{Event, Failed, Role};
pub use datagram_taps::Watch;
pub use host_rules::{FIRST_FREE_PORT, HostAccess, HostRules, Rule};
pub use registry::{Call, ConnectError, Counts, DatagramError, Endpoint, Remote, RestoredEnd};
pub use router::{Applied, Calls, Router};
pub use vms::{AddError, Claim, DEFAULT_CONNECTIONS, Forward, KnownVms, RemoteRange, Vm, VmReader, VmTable};
pub use waiting::WaitingCalls;
