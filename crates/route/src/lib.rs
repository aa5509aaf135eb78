//! Streams between hosts: a helper without rights that carries them, one TLS connection for each other host.
//!
//! ```text
//!      VM --- daemon --ring-- helper ==TLS== helper --ring-- daemon --- VM
//! program --------ring------- helper ==TLS== helper -------ring-------- program
//! ```
//! The daemon treats another host's CIDs like those of its own VMs, and the helper like the program at the
//! other end: each stream is a ring in shared memory. A program of the host has a ring already, which the
//! daemon lets the helper have. The helper encrypts what it finds in a ring into the connection of the peer
//! that owns the CID, and puts what comes into the ring that its frame names. It holds no bytes of its own: a
//! peer sends no more than the ring has room for (`credit.rs`), so a stream whose reader is slow waits at its
//! writer, and no other stream notices.
//!
//! | file | what |
//! | --- | --- |
//! | `frame.rs` | what two helpers send each other, as bytes |
//! | `credit.rs` | how much a stream may send |
//! | `tls.rs`, `buffer.rs` | TLS between bytes and bytes; certificates and names |
//! | `stream.rs` | one stream between its ring and its frames |
//! | `ring.rs`, `far.rs`, `program.rs` | its ring, shared with the daemon or, without the daemon's worker, with a program |
//! | `link.rs` | the connection with one peer |
//! | `admission.rs` | which connections may begin a handshake |
//! | `daemon.rs` | the socket of the daemon |
//! | `helper.rs`, `helper/` | the one thread, which owns it all |
//! | `fingerprint.rs` | certificates that are pinned |
//! | `status.rs` | what an operator sees of each peer |
//! | `authority.rs` | certificates for those who have no authority of their own |
//! | `settings.rs` | the configuration |
//!
//! What the helper knows of a peer is the name that its certificate proves. Which CIDs that peer may speak
//! for, and whom it may reach, the daemon checks for each stream.
#![deny(clippy::disallowed_types)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod admission;
pub mod authority;
mod buffer;
mod credit;
mod daemon;
mod far;
mod fingerprint;
pub mod frame;
mod helper;
mod link;
mod program;
mod ring;
mod settings;
mod status;
mod stream;
mod tls;

pub use fingerprint::Fingerprint;
pub use helper::{Helper, StartError};
pub use settings::{Bounds, Files, PeerSettings, Settings};
pub use tls::{FilesError, Identity};
