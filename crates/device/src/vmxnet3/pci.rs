//! The device as PCI sees it: configuration space, BARs, vectors.

use vmlane_wire::vmxnet3::regs::{
    BAR1_SIZE, BAR2_SIZE, CLASS, DEVICE_ID, EXTENDED_VECTORS, PBA_OFFSET, REVISION_ID, VECTORS, VENDOR_ID,
};

use super::config::NicConfig;
use super::nic::Nic;
use crate::pci::AccessError;
use crate::pci::config::{Bar, ConfigError, ConfigSpace, Msix};

/// Queues up to which 25 interrupt indices are enough.
const PLAIN_QUEUES: u8 = 8;

pub(super) fn msix_vectors(nic: &NicConfig) -> u16 {
    match nic.profile.has_msix() {
        false => 0,
        true if nic.max_queues > PLAIN_QUEUES => u16::from(EXTENDED_VECTORS),
        true => u16::from(VECTORS),
    }
}

/// With a BAR 0 of so many bytes.
pub(super) fn config_space(nic: &NicConfig, bar0: u64) -> Result<ConfigSpace, ConfigError> {
    let builder = ConfigSpace::builder(VENDOR_ID, DEVICE_ID)
        .class(CLASS)
        .revision(REVISION_ID)
        .subsystem(VENDOR_ID, DEVICE_ID)
        .interrupt_pin(1)
        .bar(0, Bar::Mem32 { size: bar0 as u32 })
        .bar(1, Bar::Mem32 { size: BAR1_SIZE as u32 })
        .bar(2, Bar::Mem32 { size: BAR2_SIZE as u32 })
        .msi(0x84);
    match msix_vectors(nic) {
        0 => builder.build(),
        vectors => builder.msix(0x9c, Msix { vectors, table: (2, 0), pba: (2, PBA_OFFSET) }).build(),
    }
}

impl Nic {
    /// Bytes of a BAR. BAR 0 is as large as when the session began.
    pub(super) fn bar_size(&self, region: usize) -> u64 {
        match region {
            0 => self.page.len() as u64,
            1 => BAR1_SIZE,
            2 => BAR2_SIZE,
            _ => 0,
        }
    }

    pub(super) fn in_range(&self, region: usize, offset: u64, len: usize) -> Result<(), AccessError> {
        let end = offset.checked_add(len as u64);
        if end.is_some_and(|end| end <= self.bar_size(region)) {
            return Ok(());
        }
        Err(AccessError::OutOfRange { region: region as u32, offset, len })
    }
}
