//! What outlives a daemon: descriptors, held while none runs by a process of our own (why not by systemd:
//! docs/decisions/0018-keeper-service.md).
//!
//! | file | what |
//! | --- | --- |
//! | `process.rs` | `vmlane keeper`: all of that process |
//! | `protocol.rs` | the messages of daemon and keeper |
//! | `client.rs` | the daemon's side; gets another keeper when one dies |
//! | `takeover.rs` | whether this program knows the state that another daemon keeps |
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod client;
mod process;
mod protocol;
pub mod takeover;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vmlane_state::{Found, NoStore, Store};

pub use client::{Keeper, Origin, Sessions, find, reach, sessions};
pub use process::serve;

/// The keeper's socket in the runtime directory.
pub fn socket(runtime: &Path) -> PathBuf {
    runtime.join("keeper.sock")
}

/// A store, what a previous daemon left in it, and how to end it for good.
pub struct Held {
    pub store: Arc<dyn Store>,
    pub found: Found,
    pub keeper: Option<Arc<Keeper>>,
}

/// Connects to the process that holds descriptors for a daemon of this runtime directory. A daemon that finds
/// none serves nevertheless, but its state ends with it. `reached`: the keeper that was there, if one was.
/// `origin`: who starts another one.
pub fn connect(runtime: &Path, reached: Option<OwnedFd>, origin: Origin) -> Held {
    match Keeper::connect(&socket(runtime), reached, origin) {
        Ok((keeper, found)) => Held { store: keeper.clone(), found, keeper: Some(keeper) },
        Err(error) => {
            tracing::error!(%error, "no keeper: VMs will notice if this daemon ends");
            Held { store: Arc::new(NoStore), found: Found::default(), keeper: None }
        }
    }
}

/// Why there is no keeper.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error("{path}: {what}: {cause}")]
    Host { path: PathBuf, what: &'static str, cause: io::Error },
}
