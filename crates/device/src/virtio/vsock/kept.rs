//! What of a VM's virtio-vsock device outlives the daemon: words and blocks of bytes in a shared file.
//!
//! A word changes in a [`Transaction`] alone, so that all words of all devices of a worker, and the rings
//! that their guests see, are of one moment whenever the daemon dies. A block of bytes is written while no
//! word refers to it.
//!
//! | file | what |
//! | --- | --- |
//! | `transaction.rs` | what a worker has done and no guest has seen yet |
//! | `book.rs` | the connections of one device |
//! | `replies.rs` | packets of the daemon that wait for buffers |
//! | `area.rs` | where bytes lie that wait for a receiver |
//! | `lanes.rs` | connections with VMCI guests and programs: counts, bytes that wait |

mod area;
mod book;
mod lanes;
mod replies;
mod transaction;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_mem::Window;
use vmlane_state::{Found, LAYOUT, Scope, Store, Unusable};
use vmlane_wire::virtio::MAX_RING;

use crate::virtio::queue::{Queue, Record, record_bytes};

use self::lanes::Places;

pub use self::area::{Area, Block, Stored};
pub use self::book::{Book, Entry};
pub use self::lanes::{Place, Word};
pub use self::replies::Replies;
pub use self::transaction::{Shown, Transaction, Words, redo};

const MAGIC: u64 = u64::from_le_bytes(*b"vmlanevs");

/// How the names end by which these files are held, and the scope of the names of workers' logs.
const STATE: &str = ".vsock/s/file.state";
const LOGS: &str = "vsock";

/// Offsets. The file is sparse.
mod at {
    use super::{RINGS, area, book, lanes, record_bytes, replies};
    use vmlane_wire::virtio::MAX_RING;

    pub const MAGIC: usize = 0;
    pub const LAYOUT: usize = 8;
    /// A number of the file's own, by which transactions name it.
    pub const ID: usize = 16;
    /// How far the guest's first packet that is not completed has come.
    pub const PART: usize = 24;
    pub const REPLIES: usize = 4096;
    pub const TABLE: usize = REPLIES + replies::BYTES;
    pub const LINKS: usize = TABLE + book::BYTES;
    pub const AREA: usize = LINKS + book::BYTES;
    pub const RECORDS: usize = AREA + area::BYTES;
    pub const LANES: usize = (RECORDS + RINGS * record_bytes(MAX_RING)).next_multiple_of(64);
    /// Of all words.
    pub const END: usize = LANES + lanes::WORDS;
    pub const LANE_BYTES: usize = END.next_multiple_of(4096);
}
/// Rings with a record: receive and transmit.
const RINGS: usize = 2;
const LEN: u64 = (at::LANE_BYTES + lanes::BYTES) as u64;

/// Which connections a book is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With other virtio-vsock guests.
    Table,
    /// With all others.
    Links,
}

/// One device's file, for the time of one session.
#[derive(Debug)]
pub struct Kept {
    window: Arc<Window>,
    id: u64,
    file: OwnedFd,
    places: Mutex<Places>,
}

/// How far a packet has come that its guest has sent and that is not completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Payload bytes that are delivered.
    pub done: usize,
    /// What it reports of its connection was noted.
    pub passed: bool,
}

impl Kept {
    /// For a new session.
    pub fn create() -> io::Result<Arc<Kept>> {
        let (window, file) = Window::of_file("vmlane-vsock", LEN)?;
        let id = RandomState::new().build_hasher().finish();
        window.store_u32(at::LAYOUT, LAYOUT);
        window.store_u64(at::ID, id);
        window.store_u64(at::MAGIC, MAGIC);
        Ok(Arc::new(Kept { window: Arc::new(window), id, file, places: Mutex::default() }))
    }

    /// What a previous daemon left. Each word is checked when it is read.
    pub fn open(file: OwnedFd) -> Result<Arc<Kept>, Unusable> {
        let have = rustix::fs::fstat(&file).map_err(io::Error::from)?.st_size as u64;
        if have < LEN {
            return Err(Unusable::Short { have, need: LEN });
        }
        let window = Window::over_file(&file, LEN)?;
        if window.load_u64(at::MAGIC) != MAGIC {
            return Err(Unusable::Magic);
        }
        match window.load_u32(at::LAYOUT) {
            LAYOUT => {}
            have => return Err(Unusable::Layout { have }),
        }
        let id = window.load_u64(at::ID);
        Ok(Arc::new(Kept { window: Arc::new(window), id, file, places: Mutex::default() }))
    }

    /// To be held for the next daemon.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Where positions of a ring of `size` descriptors are noted; none for the event queue.
    pub fn record(&self, ring: usize, size: u16) -> Option<Record> {
        let at = at::RECORDS + ring * record_bytes(MAX_RING);
        (ring < RINGS && size <= MAX_RING).then(|| Record::of_ours(&self.window, at))
    }

    pub fn part(&self) -> Part {
        let word = self.window.load_u64(at::PART);
        Part { done: word as u32 as usize, passed: word >> 63 != 0 }
    }

    pub fn note_part(&self, words: &mut Words, part: Part) {
        let word = part.done as u64 | u64::from(part.passed) << 63;
        if self.window.load_u64(at::PART) != word {
            words.set(self, at::PART, word);
        }
    }

    /// What the record of `ring` holds once its completions are shown.
    pub fn note_ring(&self, words: &mut Words, ring: &Queue) {
        if let Some((at, word)) = ring.unshown() {
            words.set_by_ring(self, at, word);
        }
    }
}

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
