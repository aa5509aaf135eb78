//! Who holds file descriptors while no daemon runs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Holds descriptors by name for the next daemon. A name that is put again is replaced. Failures are
/// the store's to report and to repair: the caller continues.
pub trait Store: Send + Sync {
    fn put(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()>;

    fn remove(&self, name: &str);

    /// Removes every name that begins with `prefix`.
    fn remove_all(&self, prefix: &str);

    /// From now on, names that begin with `prefix` are held without a daemon for at most so long; None: as
    /// long as it takes.
    fn hold(&self, _prefix: &str, _at_most: Option<Duration>) {}

    /// Before this daemon none came in that time: names of a previous one that begin with `prefix` were
    /// dropped.
    fn was_dropped(&self, _prefix: &str) -> bool {
        false
    }
}

/// Nothing is held: for a daemon that is not restarted, and for tests.
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

/// What a previous daemon left: descriptors by name.
#[derive(Debug, Default)]
pub struct Found(pub BTreeMap<String, OwnedFd>);

impl Found {
    pub fn take(&mut self, name: &str) -> Option<OwnedFd> {
        self.0.remove(name)
    }

    /// What lies below `prefix` and a slash, without both.
    pub fn scope(&mut self, prefix: &str) -> Found {
        self.take_all(&format!("{prefix}/"))
    }

    /// What begins with `prefix`, without it.
    pub fn take_all(&mut self, prefix: &str) -> Found {
        let mut taken = BTreeMap::new();
        for (name, fd) in std::mem::take(&mut self.0) {
            match name.strip_prefix(prefix) {
                Some(rest) => taken.insert(rest.to_owned(), fd),
                None => self.0.insert(name, fd),
            };
        }
        Found(taken)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct Shelf(Mutex<Vec<String>>);

    impl Store for Shelf {
        fn put(&self, name: &str, _: BorrowedFd<'_>) -> io::Result<()> {
            self.0.lock().push(name.to_owned());
            Ok(())
        }

        fn remove(&self, name: &str) {
            self.0.lock().retain(|held| held != name);
        }

        fn remove_all(&self, prefix: &str) {
            self.0.lock().retain(|held| !held.starts_with(prefix));
        }
    }

    #[test]
    fn a_scope_reaches_its_own_names_alone() {
        let file = vmlane_mem::memfd("any", 1).unwrap();
        let shelf = Arc::new(Shelf::default());
        let [one, other] = ["vm1", "vm10"].map(|name| Scope::new(shelf.clone(), name));
        for scope in [&one, &other] {
            for name in ["s/sock", "s/log", "listen"] {
                scope.put(name, file.as_fd()).unwrap();
            }
        }
        one.remove("listen");
        one.remove_all("s/");
        one.remove_all("");
        assert_eq!(*shelf.0.lock(), ["vm10/s/sock", "vm10/s/log", "vm10/listen"]);
        Scope::none().put("x", file.as_fd()).unwrap();
        Scope::none().remove("x");
        Scope::none().remove_all("");
    }

    #[test]
    fn what_is_found_is_taken_once_and_by_whole_names() {
        let file = || vmlane_mem::memfd("any", 1).unwrap();
        let names = ["vm1/a", "vm1/s/b", "vm10/a", "vm1", "fabric.log"];
        let mut found = Found(names.into_iter().map(|name| (name.to_owned(), file())).collect());
        assert!(found.take("fabric.log").is_some() && found.take("fabric.log").is_none());
        let mut own = found.scope("vm1");
        assert_eq!(own.0.keys().collect::<Vec<_>>(), ["a", "s/b"]);
        assert_eq!(own.scope("s").0.len(), 1);
        assert!(own.take("a").is_some() && own.is_empty());
        assert_eq!(found.0.keys().collect::<Vec<_>>(), ["vm1", "vm10/a"]);
    }
}
