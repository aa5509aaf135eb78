//! Fuzz targets ([`TARGETS`]), and what they share: two or three VMs with real devices on one hypervisor,
//! driven by bytes; what a NIC's targets need is in `nic`.
//!
//! The engine turns inside the calls ([`Inline`]), so a run is a function of its input alone. libFuzzer makes
//! inputs (`bin/libfuzzer.rs`); each of those that are committed is run as a test (`tests/replay.rs`).

mod again;
mod domain;
mod forged;
mod heads;
mod nic;
mod segments;
mod switching;
mod targets;
mod uplink;
mod virtio;

pub use targets::{TARGETS, target};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vmlane_device::irq::{Interrupts, IrqMode};
use vmlane_device::pci::PciDevice;
use vmlane_device::vmci::{Hypervisor, Limits, VmciDevice};
use vmlane_mem::{MapRequest, MemoryMap, memfd};
use vmlane_stream::Inline;
use vmlane_vsock::{Forward, Router};
use vmlane_wire::vmci::{CONTROL_INT_ENABLE, MMIO_OFFSET, Reg};

/// Bytes of RAM of each VM: small, so that random addresses hit it.
const RAM: u64 = 1 << 20;

/// Reads an input piece by piece; zeros when it is used up.
struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn number<const N: usize>(&mut self) -> u64 {
        (0..N).fold(0, |value, index| value | u64::from(self.byte()) << (8 * index))
    }

    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An input as text: what of it is UTF-8, up to the first byte that is not.
fn text(data: &[u8]) -> &str {
    data.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

/// Interrupt lines that count.
#[derive(Default)]
struct Lines(AtomicU64);

impl Interrupts for Lines {
    fn mode(&self) -> IrqMode {
        IrqMode::Msix { vectors: 3 }
    }

    fn raise(&self, _vector: u16) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// One VM: its device and its RAM.
struct Vm {
    pub device: VmciDevice,
    pub memory: MemoryMap,
}

fn limits() -> Limits {
    Limits { queue_pairs: 8, doorbells: 8, ..Limits::default() }
}

/// VMs with CIDs 3, 4 (one group, 3 forwards port 5000 to 4's 7) and 5 (another group).
struct World {
    pub hypervisor: Arc<Hypervisor>,
    pub streams: Arc<Inline>,
    pub vms: Vec<Vm>,
}

impl World {
    pub fn new() -> World {
        let streams = Arc::new(Inline::default());
        let hypervisor = Hypervisor::new(Router::new(streams.clone()));
        let vms = [(3, "one"), (4, "one"), (5, "two")].map(|(cid, group)| {
            let forwards =
                if cid == 3 { vec![Forward { port: 5000, to_cid: 4, to_port: 7 }] } else { Vec::new() };
            let new = vmlane_vsock::Vm::new(format!("vm{cid}"), cid, group);
            let vm = vmlane_vsock::Vm { connections: 8, forwards, ..new };
            hypervisor.router().vms().add(vm).expect("distinct CIDs");
            let lines = Arc::new(Lines::default());
            let mut device = VmciDevice::new(hypervisor.clone(), (cid, limits()), lines).expect("known VM");
            let fd = memfd("fuzz", RAM).expect("memfd");
            let request = MapRequest { guest: 0, len: RAM, offset: 0, fd, writable: true };
            let memory = MemoryMap::default().map(request).expect("maps");
            device.memory(&memory);
            // Bus master and both decoders on.
            device.write(7, 4, &7u16.to_le_bytes(), false).expect("config space");
            Vm { device, memory }
        });
        World { hypervisor, streams, vms: vms.into() }
    }

    /// Another device for the VM with CID 3, instead of its own.
    pub fn device(&self, irqs: Arc<dyn Interrupts>) -> VmciDevice {
        self.hypervisor.remove(3);
        VmciDevice::new(self.hypervisor.clone(), (3, limits()), irqs).expect("a known VM")
    }

    /// Writes a register of VM `vm` through BAR 1.
    pub fn set(&mut self, vm: usize, reg: Reg, value: u32) {
        let _ = self.vms[vm].device.write(1, MMIO_OFFSET + reg.offset(), &value.to_le_bytes(), false);
    }

    /// Probes every VM as Linux does, so that datagrams flow.
    pub fn probe_all(&mut self) {
        for vm in 0..self.vms.len() {
            self.set(vm, Reg::Caps, 0x3c);
            self.set(vm, Reg::GuestPageShift, 12);
            self.set(vm, Reg::Imr, 7);
            self.set(vm, Reg::Control, CONTROL_INT_ENABLE);
        }
    }

    /// Nothing a guest does may leave more behind than its limits allow.
    pub fn check(&self) {
        for vm in self.hypervisor.vms() {
            assert!(vm.queue_pairs <= 8 && vm.connections <= 8 && vm.doorbells <= 8, "{vm:?}");
            assert!(vm.inbox_bytes <= Limits::default().inbox_bytes, "{vm:?}");
        }
    }
}
