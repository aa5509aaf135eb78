//! How workers of streams behave.

use std::time::Duration;

use crate::joined;

/// How workers behave.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads. Every stream belongs to one of them.
    pub workers: u16,
    /// How long a stream is polled at most after its last byte before it is armed and left alone.
    pub spin: Duration,
    /// Never sleep: a core of its own is spent on latency.
    pub poll: bool,
    /// Bytes a stream moves per turn at most, so that one cannot hold the worker.
    pub quota: usize,
    /// Inspections of the safety net, a tenth of a second apart, before a notice counts as lost; more of them
    /// where guests' threads may stand still for longer. Guests that are slow to send have 30 at least.
    pub inspections: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let spin = Duration::from_micros(500);
        Settings { workers: 1, spin, poll: false, quota: 1 << 20, inspections: joined::INSPECTIONS }
    }
}
