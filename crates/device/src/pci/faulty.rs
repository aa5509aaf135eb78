//! A PCI function that fails on request, whatever device it is.

use std::sync::Arc;
use std::time::Duration;

use vmlane_mem::MemoryMap;
use vmlane_port::wrap::Trigger;

use super::{AccessError, CONFIG_REGION, IrqCounts, PciDevice, Region, Survives};

vmlane_port::wrapper! {
    /// What wraps a function, and has a method of its own where it adds something.
    pub trait PciWrapper for dyn PciDevice;
    impl PciDevice {
        &mut self {
            fn read(region: usize, offset: u64, data: &mut [u8]) -> Result<(), AccessError>;
            fn write(region: usize, offset: u64, data: &[u8], posted: bool) -> Result<(), AccessError>;
            fn memory(map: &MemoryMap);
            fn unmap(start: u64, len: u64);
            fn irqs_changed();
            fn reset();
            fn begin(number: u64);
            fn survival() -> Option<&mut dyn Survives>;
        }
        &self {
            fn region(index: usize) -> Region;
            fn irq_counts() -> IrqCounts;
            fn spin_hint() -> Duration;
        }
    }
}

/// Wraps a function: its next register access goes wrong once `trigger` is armed. The access is carried out
/// first, since a driver may spin for what it brings, and the fault is the session's to answer.
pub struct FaultyDevice {
    inner: Box<dyn PciDevice>,
    trigger: Arc<Trigger>,
}

impl FaultyDevice {
    pub fn new(inner: Box<dyn PciDevice>, trigger: Arc<Trigger>) -> FaultyDevice {
        FaultyDevice { inner, trigger }
    }
}

impl PciWrapper for FaultyDevice {
    fn inner(&self) -> &dyn PciDevice {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn PciDevice {
        &mut *self.inner
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
}
