//! Counters that the next daemon continues.
//!
//! Each set is a page of a file of its own, which the keeper holds. Counting is a store into that page, so
//! there is nothing to be done when the daemon dies. The page names what it counts: a version that
//! counts more, or less, takes over what both know. Its contents are checked for what could do harm, and
//! nothing depends on it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use vmlane_mem::{Shared, Window};
use vmlane_state::{Found, Store};
use vmlane_stats::{Atomics, Counters, Kept};

use crate::host::Host;

const MAGIC: u64 = u64::from_le_bytes(*b"vmlanect");
const BYTES: u64 = 4096;
/// Sums of many such counts are still numbers.
const MOST: u64 = 1 << 59;

/// Offsets.
mod at {
    pub const MAGIC: usize = 0;
    /// Seconds since 1970.
    pub const SINCE: usize = 8;
    pub const COUNTS: usize = 16;
    /// A line for each of them; zeros follow.
    pub const NAMES: usize = 2048;
}

/// The set `name` of the device whose names begin with `scope`. They are dropped with the others of the
/// device.
pub fn of_device<C: Atomics + Counters>(host: &Host, found: &mut Found, scope: &str, name: &str) -> Kept<C> {
    let name = format!("{scope}/counters.{name}");
    kept(&*host.store, found.take(&name), &name)
}

/// Counters that are held by `name`, and continue those that a previous daemon has `left`. If its page is of
/// no use, they begin now.
pub fn kept<C: Atomics + Counters>(store: &dyn Store, left: Option<OwnedFd>, name: &str) -> Kept<C> {
    let new = Kept::<C>::default();
    let (since, left) = left.and_then(|file| read(&file)).unwrap_or((new.since(), HashMap::new()));
    let page = Window::of_file("vmlane-counters", BYTES);
    let counts = page.as_ref().map_or_else(|_| Shared::<C>::default(), |(page, _)| page.shared(at::COUNTS));
    let kept = Kept::new(counts, since);
    let mut names = String::new();
    for (name, counter) in kept.counters() {
        counter.add(left.get(name).copied().unwrap_or_default());
        names += &format!("{name}\n");
    }
    // It takes the place of the one before when it is complete.
    let held = page.and_then(|(page, file)| {
        page.store_u64(at::SINCE, since);
        page.write(at::NAMES, names.as_bytes());
        page.store_u64(at::MAGIC, MAGIC);
        store.put(name, file.as_fd())
    });
    if let Err(error) = held {
        tracing::warn!(name, %error, "what is counted from now on does not outlive this daemon");
    }
    kept
}

/// When what is counted there began, and what it has come to.
fn read(file: &OwnedFd) -> Option<(u64, HashMap<String, u64>)> {
    let len = rustix::fs::fstat(file).map_err(io::Error::from).ok()?.st_size;
    let page = Window::over_file(file, BYTES).ok().filter(|_| len as u64 >= BYTES)?;
    let mut names = vec![0; BYTES as usize - at::NAMES];
    page.read(at::NAMES, &mut names);
    let names = String::from_utf8(names).ok().filter(|_| page.load_u64(at::MAGIC) == MAGIC)?;
    let names = names.trim_end_matches('\0').lines();
    let places = (at::COUNTS..at::NAMES).step_by(8);
    let counts: HashMap<_, _> =
        names.zip(places).map(|(name, at)| (name.to_owned(), page.load_u64(at))).collect();
    counts.values().all(|count| *count <= MOST).then(|| (page.load_u64(at::SINCE), counts))
}

#[cfg(test)]
mod tests;
