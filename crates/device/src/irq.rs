//! Interrupts as a device sees them: vectors to raise; who delivers them is `transport`'s business.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

/// Which kind of interrupt the guest has switched on, and with how many usable vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqMode {
    /// Nothing is connected; raising is a no-op.
    Off,
    /// The one level-triggered line.
    Intx,
    /// Message-signalled, `vectors` of them connected.
    Msi { vectors: u16 },
    /// MSI-X, `vectors` of them connected.
    Msix { vectors: u16 },
}

/// The interrupt lines of one device. Shared with workers, so every method takes `&self`.
pub trait Interrupts: Send + Sync {
    /// The kind in force now.
    fn mode(&self) -> IrqMode;

    /// Raises `vector` (always 0 for INTx). Returns false if nothing is connected to it.
    fn raise(&self, vector: u16) -> bool;
}

/// Lines that lead nowhere: a device before its VMM has connected any.
#[derive(Debug, Default)]
pub struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn mode(&self) -> IrqMode {
        IrqMode::Off
    }

    fn raise(&self, _vector: u16) -> bool {
        false
    }
}
