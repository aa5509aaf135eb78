//! Who may open a socket of the daemon, and what vmlane itself may open: [`Trust`] is the one way to a
//! directory whose contents are served, loaded or run.
//!
//! The daemon keeps the ownership of its sockets and their directories: who could write a directory could put
//! another socket there. Others are let in twice over. An entry in the file's access control list ([`acl`])
//! lets them connect at all, and the credentials of the process that connected ([`Peer`]) are compared with
//! the configuration ([`Owner`]): a list may be out of date, or have been changed by others.
//!
//! | file | what |
//! | --- | --- |
//! | `peer.rs` | credentials of a connected process: `SO_PEERCRED`, `SO_PEERGROUPS` |
//! | `owner.rs` | a user or a group of the host |
//! | `accounts.rs` | their names and numbers |
//! | `trust.rs` | directories and files that no other user can have made or changed |
//! | `acl.rs` | POSIX access control lists, as the kernel's extended attribute |

#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod accounts;
pub mod acl;
mod owner;
mod peer;
mod trust;

pub use accounts::{Accounts, OVERFLOW, User};
pub use owner::Owner;
pub use peer::Peer;
pub use trust::{Trust, TrustError};
