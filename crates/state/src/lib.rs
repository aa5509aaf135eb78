//! What outlives the daemon: state as records in shared files, and the store that holds those files.
//!
//! `docs/survival.md` is the contract that devices and ports follow.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod bytes;
mod journal;
mod mapping;
mod secret;
mod shared_file;
mod store;
mod unusable;

pub use bytes::{Reader, Writer};
pub use journal::{Journal, Key, Records};
pub use mapping::Mapping;
pub use secret::share_secret;
pub use shared_file::open_file;
pub use store::{Found, NoStore, Scope, Store};
pub use unusable::Unusable;

/// Of all layouts in shared files together: a daemon that knows another one refuses to take over. Where a
/// file states which it has is the same in all of them.
pub const LAYOUT: u32 = 6;
