//! The PCI function as a transport drives it.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod config;

use std::os::fd::OwnedFd;
use std::time::Duration;

use vmlane_mem::MemoryMap;
use vmlane_state::{Found, Journal, Records, Unusable};

/// Number of PCI regions a function has: BAR 0 to 5, the ROM, the configuration space.
pub const REGIONS: usize = 8;
/// Region number of the configuration space.
pub const CONFIG_REGION: usize = 7;

/// One region (BAR, ROM or configuration space) as announced to the VMM. Size 0: absent.
#[derive(Debug, Default)]
pub struct Region {
    /// Bytes.
    pub size: u64,
    pub readable: bool,
    pub writable: bool,
    /// What the VMM may map instead of trapping accesses.
    pub mmap: Option<Mapping>,
}

/// The part of a region that a VMM may map: its first bytes.
#[derive(Debug)]
pub struct Mapping {
    /// Where they lie, from its beginning on.
    pub file: OwnedFd,
    /// Bytes: whole pages, at most the region's.
    pub len: u64,
}

/// How many vectors of each kind the function offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqCounts {
    pub intx: u32,
    pub msi: u32,
    pub msix: u32,
}

/// A register access that the device cannot carry out: answered with an error, never fatal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error("region {region} has no {len} bytes at {offset:#x}")]
    OutOfRange { region: u32, offset: u64, len: usize },
}

/// What the session's thread polls for in place of sleeping: a driver waits for each answer, and to wake the
/// thread costs it more than the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The next access comes within this time, as a rule; zero: nothing is known of it.
    pub within: Duration,
    /// It comes in any case. Otherwise it is polled for only if the one before came in time.
    pub certain: bool,
    /// The driver's handler of vector 0 makes an access, and this is how long it takes to do so; zero: it
    /// need not make one.
    pub after_vector_0: Duration,
}

/// What a previous daemon left of a device.
pub struct Checkpoint<'a> {
    pub records: &'a Records,
}

impl Checkpoint<'_> {
    /// The record of a kind that there is one of.
    pub fn record(&self, kind: u32) -> Option<&[u8]> {
        self.records.iter().find(|(key, _)| key.0 == kind).map(|(_, record)| &record[..])
    }
}

/// A PCI function. One session thread calls it; nothing here may block on another VM. No method has a
/// default: a function that wraps another one (`faults::FaultyDevice`) would answer by it in place of that
/// one.
pub trait PciDevice: Send {
    /// The regions, in the order of [`REGIONS`]. Called whenever the VMM asks.
    fn region(&self, index: usize) -> Region;

    /// The vectors offered.
    fn irq_counts(&self) -> IrqCounts;

    /// Reads `data.len()` bytes at `offset` of `region` (configuration space included).
    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) -> Result<(), AccessError>;

    /// Writes. `posted` is true when the VMM asked for no reply, so the vCPU has already gone on.
    fn write(&mut self, region: usize, offset: u64, data: &[u8], posted: bool) -> Result<(), AccessError>;

    /// The guest's memory is now `map` (a region was added, or [`Self::unmap`] has returned).
    fn memory(&mut self, map: &MemoryMap);

    /// Guest addresses `[start, start + len)` are about to go away. When this returns nothing, no
    /// worker either, touches them any more.
    fn unmap(&mut self, start: u64, len: u64);

    /// The interrupt set-up changed (vectors connected, disconnected, or INTx unmasked): raise again
    /// whatever is still pending.
    fn irqs_changed(&mut self);

    /// Function reset: everything but identity (MAC, CID) and the memory map is forgotten. The VMM
    /// does not announce its memory again after a reset.
    fn reset(&mut self);

    /// Request `number` begins; numbers grow. One that a previous daemon may have carried out comes again
    /// with the number it had.
    fn begin(&mut self, number: u64);

    /// Which access comes next. Asked for after each one.
    fn expected(&self) -> Expected;

    /// Of a function that the next daemon can continue.
    fn survival(&mut self) -> Option<&mut dyn Survives>;
}

/// How a function outlives the daemon: its files and its records.
pub trait Survives {
    /// Files that the next daemon needs, by name. Asked for when a session begins.
    fn files(&self) -> Vec<(&'static str, OwnedFd)>;

    /// Uses the files of a previous daemon, by the names of [`Survives::files`]. Comes before
    /// [`Survives::resume`] or [`Survives::abandon`].
    fn adopt(&mut self, files: &mut Found);

    /// Stages what the next daemon must know and has changed since the last call; the caller commits. Keys
    /// of kinds below 256 are the caller's.
    fn record(&mut self, log: &Journal);

    /// Continues where a device of the same kind stopped in a previous daemon, with its records. Memory and
    /// interrupts are as they were. An error leaves the device reset.
    fn resume(&mut self, checkpoint: Checkpoint<'_>) -> Result<(), Unusable>;

    /// A previous daemon's state is of no use: start from reset, with the memory there is. A driver that can
    /// be notified is.
    fn abandon(&mut self);
}
