//! What the host itself brings to the VMs: its programs' sockets, and uplinks to its networks.
//!
//! `sockets` serves programs of the host at CID 2. `uplink` makes an interface of the host, or another
//! switch's vhost-user port, a port of the switch.

#![deny(clippy::disallowed_types)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod sockets;
pub mod uplink;
