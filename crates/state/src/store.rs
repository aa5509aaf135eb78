//! Who holds file descriptors while no daemon runs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Holds descriptors by name for the next daemon. A name that is put again is replaced. Failures are
/// the store's to report and to repair: whoever puts goes on.
pub trait Store: Send + Sync {
    fn put(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()>;

    fn remove(&self, name: &str);

    /// Removes every name that begins with `prefix`.
    fn remove_all(&self, prefix: &str);
}

/// Nothing is held: a daemon without a successor, and tests.
#[derive(Debug, Default)]
pub struct NoStore;

impl Store for NoStore {
    fn put(&self, _name: &str, _fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _name: &str) {}

    fn remove_all(&self, _prefix: &str) {}
}

/// A store in which all names begin alike: one device's part of it.
#[derive(Clone)]
pub struct Scope {
    store: Arc<dyn Store>,
    prefix: String,
}

impl Scope {
    pub fn new(store: Arc<dyn Store>, prefix: &str) -> Scope {
        Scope { store, prefix: format!("{prefix}/") }
    }

    /// A scope of nothing.
    pub fn none() -> Scope {
        Scope::new(Arc::new(NoStore), "none")
    }

    pub fn put(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.store.put(&format!("{}{name}", self.prefix), fd)
    }

    pub fn remove(&self, name: &str) {
        self.store.remove(&format!("{}{name}", self.prefix));
    }

    pub fn remove_all(&self, prefix: &str) {
        self.store.remove_all(&format!("{}{prefix}", self.prefix));
    }
}

/// What a predecessor left: descriptors by name.
#[derive(Debug, Default)]
pub struct Found(pub BTreeMap<String, OwnedFd>);

impl Found {
    pub fn take(&mut self, name: &str) -> Option<OwnedFd> {
        self.0.remove(name)
    }

    /// What lies below `prefix` and a slash, without both.
    pub fn scope(&mut self, prefix: &str) -> Found {
        let prefix = format!("{prefix}/");
        let names: Vec<String> = self.0.keys().filter(|name| name.starts_with(&prefix)).cloned().collect();
        let taken = names.into_iter().filter_map(|name| {
            let fd = self.0.remove(&name)?;
            Some((name[prefix.len()..].to_owned(), fd))
        });
        Found(taken.collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
