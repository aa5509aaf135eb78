//! Guest memory: shared files mapped into this process, guest addresses translated, bytes copied.
//!
//! The only crate where guest bytes meet `unsafe`. Everything behind these types may change at any
//! moment: a guest (or another thread of the VMM) writes while we read. So nothing here hands out a
//! reference into guest memory; bytes are copied out, indices are loaded as atomics, and every
//! pointer stays inside a mapping that the holder keeps alive.

mod address_space;
mod bulk;
mod file;
mod huge;
mod map;
mod pages;
mod region;
mod shared;
mod sigbus;
mod spans;
mod sum;
mod sync;
mod window;
mod word;

pub use address_space::ADDRESS_SPACE;
pub use file::{FileError, may_hold_guest_memory, memfd};
pub use huge::{HugeError, HugePages};
pub use map::{Fault, MAX_REGIONS, MapError, MapRequest, MemoryMap};
pub use pages::{Pages, copy};
pub use shared::{Atomics, Shared};
pub use sigbus::poisonings;
pub use spans::{CACHE_LINE, Spans, copy_spans, copy_spans_summed, lines_ahead};
pub use sum::Sum;
pub use window::{Window, prefetch_value, prefetch_value_write};
pub use word::Word;

/// Installs the handler that survives memory files cut short, and asks about a file, which the first mappings
/// would do otherwise. For programs that give up the system calls that this needs.
pub fn prepare() {
    sigbus::prepare();
    file::prepare();
}

#[cfg(test)]
mod tests;
