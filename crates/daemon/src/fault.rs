//! A device that can be made to panic, to test that nobody but its own guest notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmlane_device::pci::{AccessError, IrqCounts, PciDevice, Region};
use vmlane_mem::MemoryMap;

/// Wraps a device; used only with `fault_injection` in the configuration.
pub struct Faulty<D> {
    pub device: D,
    /// Set: the next register access panics, once.
    pub trap: Arc<AtomicBool>,
}

impl<D> Faulty<D> {
    fn spring(&self) {
        if self.trap.swap(false, Ordering::AcqRel) {
            panic!("asked for by `vmlane debug panic`");
        }
    }
}

impl<D: PciDevice> PciDevice for Faulty<D> {
    fn region(&self, index: usize) -> Region {
        self.device.region(index)
    }

    fn irq_counts(&self) -> IrqCounts {
        self.device.irq_counts()
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) -> Result<(), AccessError> {
        self.spring();
        self.device.read(region, offset, data)
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8], posted: bool) -> Result<(), AccessError> {
        self.spring();
        self.device.write(region, offset, data, posted)
    }

    fn memory(&mut self, map: &MemoryMap) {
        self.device.memory(map);
    }

    fn unmap(&mut self, start: u64, len: u64) {
        self.device.unmap(start, len);
    }

    fn irqs_changed(&mut self) {
        self.device.irqs_changed();
    }

    fn reset(&mut self) {
        self.device.reset();
    }

    fn spin_hint(&self) -> Duration {
        self.device.spin_hint()
    }
}
