//! What one VM may use at most: `[limits]`, and `limits` of a VM.

use std::ops::RangeInclusive;

use toml::Spanned;
use vmlane_device::vmci;
use vmlane_vsock::DEFAULT_CONNECTIONS;

use crate::notes::Notes;
use crate::raw::{RawLimits, Size};

/// Bytes of address space that are shared out: while a VMM replaces the memory of a device, both the old
/// one and the new one are mapped.
pub const SHARED_OUT: u64 = vmlane_mem::ADDRESS_SPACE / 2;
/// Linux accepts datagrams of this many bytes; an inbox must hold one and more.
const SMALLEST_INBOX: u64 = 128 << 10;
const MANY: u64 = 1 << 16;

/// What one VM may use at most: the table `limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Stream connections at once, with either kind of device.
    pub connections: usize,
    /// What only a VMCI device has.
    pub vmci: vmci::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: DEFAULT_CONNECTIONS, vmci: vmci::Limits::default() }
    }
}

/// The limits of a VM's connections, and of its memory: `base` and `memory` where `raw` has no key.
pub fn judge(
    table: &str,
    raw: &RawLimits,
    (base, memory): (Limits, Option<u64>),
    notes: &mut Notes<'_>,
) -> (Limits, Option<u64>) {
    let mut limit = |key: &str, value: &Option<Spanned<Size>>, base: u64, range: RangeInclusive<u64>| {
        notes.size(table, key, value, range).unwrap_or(base)
    };
    let memory = match &raw.memory {
        Some(_) => Some(limit("memory", &raw.memory, 1 << 20, 1 << 20..=SHARED_OUT)),
        None => memory,
    };
    let connections = limit("connections", &raw.connections, base.connections as u64, 1..=MANY) as usize;
    let base = base.vmci;
    let queue_pair_bytes = match &raw.queue_pair_bytes {
        Some(_) => Some(limit("queue_pair_bytes", &raw.queue_pair_bytes, 4096, 4096..=1 << 40)),
        None => base.queue_pair_bytes,
    };
    let mut count = |key: &str, value, base: usize, range| limit(key, value, base as u64, range) as usize;
    let vmci = vmci::Limits {
        queue_pairs: count("queue_pairs", &raw.queue_pairs, base.queue_pairs, 1..=MANY),
        queue_pair_bytes,
        doorbells: count("doorbells", &raw.doorbells, base.doorbells, 0..=MANY),
        inbox_bytes: count("inbox_bytes", &raw.inbox_bytes, base.inbox_bytes, SMALLEST_INBOX..=1 << 30),
        overflow_bytes: count("overflow_bytes", &raw.overflow_bytes, base.overflow_bytes, 0..=1 << 40),
    };
    (Limits { connections, vmci }, memory)
}
