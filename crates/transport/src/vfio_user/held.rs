//! Descriptors that are held for the next daemon, by names that say what they are for.

use std::os::fd::{AsFd, OwnedFd};

use vmlane_state::Scope;

use crate::irq::IrqKind;

/// Holds a descriptor. One that cannot be held is lost only with this daemon.
pub fn hold(scope: &Scope, name: &str, fd: &OwnedFd) {
    if let Err(error) = scope.put(name, fd.as_fd()) {
        tracing::warn!(name, %error, "a descriptor cannot be held for the next daemon");
    }
}

/// The name of an interrupt's descriptor.
pub fn irq_name(kind: IrqKind, vector: usize) -> String {
    format!("s/irq.{}.{vector}", kind.name())
}

/// A memory file's name while it is held for the next daemon says where it is mapped.
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
