//! One entry of the MSI-X table, as the PCI Local Bus Specification 3.0 has it.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of one entry of the MSI-X table.
pub(super) const MSIX_ENTRY: usize = 16;

/// One entry of the MSI-X table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct MsixEntry {
    pub(super) address: U64,
    pub(super) data: U32,
    control: U32,
}
const _: () = assert!(size_of::<MsixEntry>() == MSIX_ENTRY);

impl MsixEntry {
    /// As after a reset: masked.
    pub(super) const RESET: MsixEntry =
        MsixEntry { address: U64::ZERO, data: U32::ZERO, control: U32::new(1) };

    pub(super) fn is_masked(&self) -> bool {
        self.control.get() & 1 != 0
    }
}
