//! What of a VM's virtio-vsock device outlives the daemon: words and blocks of bytes in a shared file.
//!
//! A word changes in a [`Transaction`] alone, so that all words of all devices of a worker, and the rings
//! that their guests see, are of one moment whenever the daemon dies. A block of bytes is written while no
//! word refers to it.
//!
//! | file | what |
//! | --- | --- |
//! | `layout.rs`, `file.rs` | where what lies in a file; the file |
//! | `transaction.rs` | what a worker has done and no guest has seen yet |
//! | `book.rs` | the connections of one device |
//! | `replies.rs` | packets of the daemon that wait for buffers |
//! | `area.rs` | where bytes lie that wait for a receiver |
//! | `lanes.rs` | connections with VMCI guests and programs: counts, bytes that wait |

mod area;
mod book;
mod file;
mod lanes;
mod layout;
mod replies;
mod transaction;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use vmlane_state::{Found, Scope, Store, Unusable};

pub use self::area::{Area, Block, Stored};
pub use self::book::{Book, Entry, Kind, Known};
pub use self::file::{Kept, Part};
pub use self::lanes::{Place, Word};
pub use self::replies::Replies;
pub use self::transaction::{Shown, Transaction, Words, redo};

/// How the names end by which these files are held, and the scope of the names of workers' logs.
const STATE: &str = ".vsock/s/file.state";
const LOGS: &str = "vsock";

/// Finishes what a previous daemon's workers had begun to make valid: `found` is all that it has left. Before
/// any device is there. If that is not possible no device has its state any more. Returns how many workers
/// there were.
pub fn recover_all(found: &mut Found) -> usize {
    let logs = found.scope(LOGS).0;
    let count = logs.len();
    let states = || found.0.iter().filter(|(name, _)| name.ends_with(STATE));
    let devices: Vec<Arc<Kept>> =
        states().filter_map(|(_, file)| Kept::open(file.try_clone().ok()?).ok()).collect();
    let all = |logs: BTreeMap<_, _>| logs.values().try_for_each(|log| redo(log, &devices));
    let missing = || Unusable::Missing("the workers' log".to_owned());
    let redone = if logs.is_empty() && !devices.is_empty() { Err(missing()) } else { all(logs) };
    if let Err(error) = redone {
        tracing::error!(%error, "the last step of a previous daemon's virtio-vsock devices is not known");
        found.0.retain(|name, _| !name.ends_with(STATE));
    }
    count
}

/// Has the logs of workers held for the next daemon, in place of those of the last one, which had `before`:
/// at any moment there is one.
pub fn hold_logs<'l>(
    store: &Arc<dyn Store>,
    logs: impl ExactSizeIterator<Item = &'l OwnedFd>,
    before: usize,
) -> io::Result<()> {
    let (scope, count) = (Scope::new(store.clone(), LOGS), logs.len());
    let name = |number: usize| format!("log.{number}");
    for (number, log) in logs.enumerate() {
        scope.put(&name(number), log.as_fd())?;
    }
    (count..before).for_each(|number| scope.remove(&name(number)));
    Ok(())
}
