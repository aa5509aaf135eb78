//! How a driver reaches its device's registers: directly in this process, or through a transport.

use std::sync::Arc;

use parking_lot::Mutex;

use vmlane_device::pci::PciDevice;
use vmlane_device::vmci::VmciDevice;

/// Register accesses of one guest. A transport's test client is the other implementation.
pub trait Registers: Send {
    fn read32(&mut self, region: usize, offset: u64) -> u32;

    fn write32(&mut self, region: usize, offset: u64, value: u32);

    /// A write that the vCPU does not wait for.
    fn post32(&mut self, region: usize, offset: u64, value: u32);

    /// `rep outsb`: every byte to the same register. Elsewhere: one access of several bytes.
    fn write_bytes(&mut self, region: usize, offset: u64, bytes: &[u8]);

    /// `rep insb`.
    fn read_bytes(&mut self, region: usize, offset: u64, bytes: &mut [u8]);
}

/// A device of this process.
#[derive(Clone)]
pub struct Direct {
    device: Arc<Mutex<VmciDevice>>,
}

impl Direct {
    pub fn new(device: Arc<Mutex<VmciDevice>>) -> Direct {
        Direct { device }
    }

    fn write(&self, region: usize, offset: u64, data: &[u8], posted: bool) {
        self.device.lock().write(region, offset, data, posted).expect("a register inside its region");
    }
}

impl Registers for Direct {
    fn read32(&mut self, region: usize, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.read_bytes(region, offset, &mut data);
        u32::from_le_bytes(data)
    }

    fn write32(&mut self, region: usize, offset: u64, value: u32) {
        self.write(region, offset, &value.to_le_bytes(), false);
    }

    fn post32(&mut self, region: usize, offset: u64, value: u32) {
        self.write(region, offset, &value.to_le_bytes(), true);
    }

    fn write_bytes(&mut self, region: usize, offset: u64, bytes: &[u8]) {
        self.write(region, offset, bytes, false);
    }

    fn read_bytes(&mut self, region: usize, offset: u64, bytes: &mut [u8]) {
        self.device.lock().read(region, offset, bytes).expect("a register inside its region");
    }
}
