//! One VM of a test: memory, interrupts and a device of this process.

use std::sync::Arc;

use parking_lot::Mutex;

use vmlane_device::pci::PciDevice;
use vmlane_device::vmci::{Hypervisor, Limits, VmciDevice};
use vmlane_vsock::Vm;

use super::driver::{Driver, Path};
use super::guest::Guest;
use super::lines::Lines;
use super::ram::Ram;
use super::registers::Direct;

/// A VM with a VMCI device as configured.
#[derive(Clone, Debug)]
pub struct VmSpec {
    pub vm: Vm,
    pub limits: Limits,
}

impl VmSpec {
    /// The VM is known, and has its device.
    pub fn device(&self, hypervisor: &Arc<Hypervisor>, lines: Arc<Lines>) -> VmciDevice {
        hypervisor.router().vms().add(self.vm.clone()).expect("a context id that is free");
        VmciDevice::new(hypervisor.clone(), (self.vm.cid, self.limits), lines).expect("a device")
    }
}

/// A VM's configuration as tests want it: everyone in one group, default limits.
pub fn vm(cid: u32) -> VmSpec {
    VmSpec { vm: Vm::new(format!("vm-{cid}"), cid, "test"), limits: Limits::default() }
}

/// The same with something of its policy changed.
pub fn vm_with(cid: u32, change: impl FnOnce(&mut Vm)) -> VmSpec {
    let mut spec = vm(cid);
    change(&mut spec.vm);
    spec
}

/// A VM that is switched on; no driver is loaded yet.
pub struct Machine {
    pub cid: u32,
    pub hypervisor: Arc<Hypervisor>,
    pub ram: Arc<Ram>,
    pub lines: Arc<Lines>,
    pub device: Arc<Mutex<VmciDevice>>,
}

impl Machine {
    /// Makes the VM known, with 64 MiB of memory and three MSI-X vectors.
    pub fn new(hypervisor: &Arc<Hypervisor>, spec: VmSpec) -> Machine {
        Machine::with(hypervisor, spec, 64 << 20, Lines::msix())
    }

    pub fn with(hypervisor: &Arc<Hypervisor>, spec: VmSpec, memory: u64, lines: Arc<Lines>) -> Machine {
        let cid = spec.vm.cid;
        let ram = Arc::new(Ram::new(memory));
        let mut device = spec.device(hypervisor, lines.clone());
        device.memory(&ram.device_map());
        Machine { cid, hypervisor: hypervisor.clone(), ram, lines, device: Arc::new(Mutex::new(device)) }
    }

    /// Register access.
    pub fn registers(&self) -> Direct {
        Direct::new(self.device.clone())
    }

    /// Loads the driver.
    pub fn probe(&self, path: Path) -> Driver {
        let registers = Box::new(self.registers());
        Driver::probe(registers, self.ram.clone(), self.lines.clone(), path).expect("a probe that succeeds")
    }

    /// Loads the driver and stream sockets.
    pub fn boot(&self, path: Path) -> Arc<Guest> {
        Guest::new(self.probe(path))
    }
}
