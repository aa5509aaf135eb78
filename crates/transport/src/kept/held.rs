//! Descriptors that are held for the next daemon, by names that state what they are for.

use std::os::fd::{AsFd, OwnedFd};

use vmlane_state::{Found, Scope};

/// Holds a descriptor. One that cannot be held is lost only with this daemon.
pub fn hold(scope: &Scope, name: &str, fd: &OwnedFd) {
    if let Err(error) = scope.put(name, fd.as_fd()) {
        tracing::warn!(name, %error, "a descriptor cannot be held for the next daemon");
    }
}

/// A file that a previous daemon held, opened. `found` has names without their `s/`.
pub fn found_file<T, E: std::fmt::Display>(
    found: &mut Found,
    name: &str,
    open: impl FnOnce(OwnedFd) -> Result<T, E>,
) -> Option<T> {
    let opened = match found.take(name.trim_start_matches("s/")) {
        Some(file) => open(file).map_err(|error| error.to_string()),
        None => Err("it is not there".to_owned()),
    };
    opened.inspect_err(|error| tracing::warn!(name, error, "a file of a previous daemon is not used")).ok()
}

/// Holds descriptors that came with request `number` until it has been carried out, but for those that no
/// request can use: that one is refused in any case, and the process that holds descriptors must not have
/// them, since closing a file of a file system that does not answer takes for ever.
pub fn hold_inbound(scope: &Scope, number: u64, fds: &[OwnedFd], is_usable: impl Fn(&OwnedFd) -> bool) {
    for (place, fd) in fds.iter().enumerate().filter(|(_, fd)| is_usable(fd)) {
        hold(scope, &format!("s/in.{number}.{place}"), fd);
    }
}

/// A descriptor of a request that was not carried out: number of the request, place, descriptor.
pub type Inbound = (u64, u64, OwnedFd);

/// What was found of a session beside its own: files of the device, by name, and descriptors of requests, in
/// order.
pub fn sort(found: Found) -> (Found, Vec<Inbound>) {
    let (mut files, mut inbound) = (Found::default(), Vec::new());
    for (name, fd) in found.0 {
        if let Some(name) = name.strip_prefix("file.") {
            files.0.insert(name.to_owned(), fd);
        } else if let Some((number, place)) = name.strip_prefix("in.").and_then(|words| words.split_once('.'))
            && let (Ok(number), Ok(place)) = (number.parse(), place.parse())
        {
            inbound.push((number, place, fd));
        }
    }
    inbound.sort_by_key(|(number, place, _)| (*number, *place));
    (files, inbound)
}

/// A memory file's name while it is held for the next daemon states where it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryName {
    pub guest: u64,
    pub len: u64,
    pub offset: u64,
    pub writable: bool,
}

impl std::fmt::Display for MemoryName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let access = if self.writable { "rw" } else { "ro" };
        write!(f, "s/mem.{:x}.{:x}.{:x}.{access}", self.guest, self.len, self.offset)
    }
}

impl MemoryName {
    /// Understands a name without its `s/`.
    pub fn parse(name: &str) -> Option<MemoryName> {
        let mut words = name.strip_prefix("mem.")?.split('.');
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        let (guest, len, offset) = (number()?, number()?, number()?);
        Some(MemoryName { guest, len, offset, writable: words.next()? == "rw" })
    }
}
