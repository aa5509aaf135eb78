//! A PCI function that fails on request, whatever device it is.

use std::sync::Arc;

use vmlane_device::pci::{AccessError, CONFIG_REGION, Expected, IrqCounts, PciDevice, Region, Survives};
use vmlane_mem::MemoryMap;

use crate::trigger::Trigger;

/// Wraps a function: its next register access goes wrong once `trigger` is armed. The access is carried out
/// first, since a driver may spin for what it brings, and the fault is the session's to answer.
pub struct FaultyDevice {
    inner: Box<dyn PciDevice>,
    trigger: Arc<Trigger>,
}

impl FaultyDevice {
    /// Nothing fails until `trigger` is armed.
    pub fn new(inner: Box<dyn PciDevice>, trigger: Arc<Trigger>) -> FaultyDevice {
        FaultyDevice { inner, trigger }
    }
}

impl PciDevice for FaultyDevice {
    fn region(&self, index: usize) -> Region {
        self.inner.region(index)
    }

    fn irq_counts(&self) -> IrqCounts {
        self.inner.irq_counts()
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) -> Result<(), AccessError> {
        let read = self.inner.read(region, offset, data);
        if region != CONFIG_REGION {
            self.trigger.fire();
        }
        read
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8], posted: bool) -> Result<(), AccessError> {
        let written = self.inner.write(region, offset, data, posted);
        if region != CONFIG_REGION {
            self.trigger.fire();
        }
        written
    }

    fn memory(&mut self, map: &MemoryMap) {
        self.inner.memory(map);
    }

    fn unmap(&mut self, start: u64, len: u64) {
        self.inner.unmap(start, len);
    }

    fn irqs_changed(&mut self) {
        self.inner.irqs_changed();
    }

    fn reset(&mut self) {
        self.inner.reset();
    }

    fn begin(&mut self, number: u64) {
        self.inner.begin(number);
    }

    fn expected(&self) -> Expected {
        self.inner.expected()
    }

    fn survival(&mut self) -> Option<&mut dyn Survives> {
        self.inner.survival()
    }
}
