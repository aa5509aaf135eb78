//! A PCI function that fails on request, whatever device it is.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use vmlane_mem::MemoryMap;
use vmlane_port::wrap::Trigger;
use vmlane_state::{Found, Journal, Unusable};

use super::{AccessError, CONFIG_REGION, Checkpoint, IrqCounts, PciDevice, Region};

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

impl PciDevice for FaultyDevice {
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

    vmlane_port::forward! { inner;
        fn region(&self, index: usize) -> Region;
        fn irq_counts(&self) -> IrqCounts;
        fn memory(&mut self, map: &MemoryMap);
        fn unmap(&mut self, start: u64, len: u64);
        fn irqs_changed(&mut self);
        fn reset(&mut self);
        fn begin(&mut self, number: u64);
        fn files(&self) -> Vec<(&'static str, OwnedFd)>;
        fn adopt(&mut self, files: &mut Found);
        fn record(&mut self, log: &Journal);
        fn resume(&mut self, checkpoint: Checkpoint<'_>) -> Result<(), Unusable>;
        fn abandon(&mut self);
        fn spin_hint(&self) -> Duration;
    }
}
