//! One VM of a test: memory, interrupts and a device of this process.

use std::sync::Arc;

use parking_lot::Mutex;

use vmlane_device::pci::PciDevice;
use vmlane_device::vmci::{Hypervisor, Limits, VmSpec, VmciDevice};
use vmlane_vsock::{DEFAULT_CONNECTIONS, Vm};

use super::driver::{Driver, Path};
use super::guest::Guest;
use super::lines::Lines;
use super::ram::Ram;
use super::registers::Direct;

/// A VM's configuration as tests want it: everyone in one group, default limits.
pub fn vm(cid: u32) -> VmSpec {
    VmSpec {
        name: format!("vm-{cid}"),
        vm: Vm {
            cid,
            group: "test".into(),
            restricted: false,
            trusted: false,
            connections: DEFAULT_CONNECTIONS,
            forwards: Vec::new(),
            parent: None,
        },
        limits: Limits::default(),
    }
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
    /// Adds the VM to the hypervisor, with 64 MiB of memory and three MSI-X vectors.
    pub fn new(hypervisor: &Arc<Hypervisor>, spec: VmSpec) -> Machine {
        Machine::with(hypervisor, spec, 64 << 20, Lines::msix())
    }

    pub fn with(hypervisor: &Arc<Hypervisor>, spec: VmSpec, memory: u64, lines: Arc<Lines>) -> Machine {
        let cid = spec.vm.cid;
        hypervisor.add_vm(spec).expect("a context id that is free");
        let ram = Arc::new(Ram::new(memory));
        let mut device = VmciDevice::new(hypervisor.clone(), cid, lines.clone()).expect("a device");
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
