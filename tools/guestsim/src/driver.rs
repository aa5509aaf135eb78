//! The driver `vmw_vmci`: probe, datagrams out, calls to the hypervisor. Source: `vmci_guest.c`.

use std::sync::Arc;
use std::time::Instant;

use vmlane_mem::Pages;
use vmlane_wire::pci::{command, offset};
use vmlane_wire::vmci::{
    CAPS_DATAGRAM, CAPS_DMA_DATAGRAM, CAPS_NOTIFICATIONS, CAPS_PPN64, CONTROL_INT_ENABLE, CONTROL_RESET,
    DMA_HEADER, DMA_INLINE, DmaHeader, Handle, MAX_DATAGRAM, MMIO_OFFSET, RawHandle, Reg, call, datagram,
};
use vmlane_wire::vmci_stream::{CONTROL_RESOURCE, ControlPacket};
use zerocopy::IntoBytes;

use vmlane_device::pci::CONFIG_REGION;

use super::TIMEOUT;
use super::lines::Lines;
use super::queues::{PairSpec, Queues};
use super::ram::{PAGE, Placement, Ram};
use super::registers::Registers;

/// How datagrams travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Linux 5.18 and later, MMIO and DMA buffers, each register write waited for.
    Dma,
    /// The same, register writes posted by the VMM.
    DmaPosted,
    /// Linux before 5.18: byte ports.
    Ports,
}

impl Path {
    pub const ALL: [Path; 3] = [Path::Dma, Path::DmaPosted, Path::Ports];
}

/// Why a probe failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step} gave {value:#x}")]
pub struct ProbeError {
    pub step: &'static str,
    pub value: i32,
}

/// A loaded driver.
pub struct Driver {
    pub(super) registers: Box<dyn Registers>,
    pub ram: Arc<Ram>,
    pub lines: Arc<Lines>,
    pub(super) path: Path,
    pub cid: u32,
    /// Capabilities in use.
    pub caps: u32,
    tx: DmaBuffer,
    pub(super) rx: DmaBuffer,
    bitmap: Vec<u64>,
}

/// A page for the header and its list, then room for the largest datagram.
pub(super) struct DmaBuffer {
    pub address: u64,
    pub pages: Pages,
    addresses: Vec<u64>,
}

impl DmaBuffer {
    fn new(ram: &Ram) -> DmaBuffer {
        let addresses = ram.alloc(1 + MAX_DATAGRAM / PAGE, Placement::Contiguous);
        DmaBuffer { address: addresses[0], pages: ram.pages(&addresses), addresses }
    }

    pub fn busy(&self) -> bool {
        self.pages.load_u64(0) as u32 != 0
    }

    /// Spins until `busy` has the wanted value, as Linux does with interrupts off.
    pub fn await_busy(&self, busy: bool) {
        let deadline = Instant::now() + TIMEOUT;
        while self.busy() != busy {
            assert!(Instant::now() < deadline, "the device never set busy to {busy}: the vCPU is lost");
            std::thread::yield_now();
        }
    }
}

impl Driver {
    /// Everything a driver does when it is loaded, in Linux's order.
    pub fn probe(
        registers: Box<dyn Registers>,
        ram: Arc<Ram>,
        lines: Arc<Lines>,
        path: Path,
    ) -> Result<Driver, ProbeError> {
        let known = CAPS_DATAGRAM | CAPS_NOTIFICATIONS | CAPS_PPN64 | CAPS_DMA_DATAGRAM;
        Driver::probe_with(registers, ram, lines, path, known)
    }

    /// A driver that knows the capabilities `known` only.
    pub fn probe_with(
        registers: Box<dyn Registers>,
        ram: Arc<Ram>,
        lines: Arc<Lines>,
        path: Path,
        known: u32,
    ) -> Result<Driver, ProbeError> {
        let (tx, rx) = (DmaBuffer::new(&ram), DmaBuffer::new(&ram));
        let mut driver = Driver { registers, ram, lines, path, cid: 0, caps: 0, tx, rx, bitmap: Vec::new() };
        driver.set_command(command::IO | command::MEMORY | command::BUS_MASTER);
        let offered = driver.read(Reg::Caps);
        if offered & CAPS_DATAGRAM == 0 {
            return Err(ProbeError { step: "CAPS", value: offered as i32 });
        }
        let wanted = if path == Path::Ports { known & !CAPS_DMA_DATAGRAM } else { known };
        driver.caps = offered & wanted;
        driver.write(Reg::Caps, driver.caps);
        if path != Path::Ports {
            driver.write(Reg::GuestPageShift, PAGE.trailing_zeros());
            driver.restore_addresses();
        }
        driver.expect("SET_NOTIFY_BITMAP", 0, Driver::register_bitmap)?;
        driver.expect("RESOURCES_QUERY", 1, |driver| {
            let query = [1u32, 0, 1].map(u32::to_le_bytes).concat();
            driver.call(call::RESOURCES_QUERY, &query)
        })?;
        driver.write(Reg::Imr, if path == Path::Ports { 3 } else { 7 });
        driver.write(Reg::Control, CONTROL_INT_ENABLE);
        driver.cid = driver.call(call::GET_CONTEXT_ID, &[]) as u32;
        Ok(driver)
    }

    /// Tells the device the upper halves of the buffers' addresses.
    pub fn restore_addresses(&mut self) {
        self.write(Reg::DataInHigh, (self.rx.address >> 32) as u32);
        self.write(Reg::DataOutHigh, (self.tx.address >> 32) as u32);
    }

    fn expect(
        &mut self,
        step: &'static str,
        wanted: i32,
        ask: impl FnOnce(&mut Driver) -> i32,
    ) -> Result<(), ProbeError> {
        let value = ask(self);
        if value == wanted { Ok(()) } else { Err(ProbeError { step, value }) }
    }

    fn register_bitmap(&mut self) -> i32 {
        if self.caps & CAPS_NOTIFICATIONS == 0 {
            return 0;
        }
        self.bitmap = self.ram.alloc(1, Placement::Scattered);
        let ppn = self.bitmap[0] / PAGE as u64;
        // A 32-bit number and four bytes of padding are the same.
        self.call(call::SET_NOTIFY_BITMAP, &ppn.to_le_bytes())
    }

    /// Unloads: the device is reset, then the memory freed.
    pub fn remove(mut self) {
        self.write(Reg::Control, CONTROL_RESET);
        self.ram.free(&self.tx.addresses);
        self.ram.free(&self.rx.addresses);
        self.ram.free(&self.bitmap);
    }

    /// Where the registers are on this path.
    fn place(&self, reg: Reg) -> (usize, u64) {
        if self.path == Path::Ports { (0, reg.offset()) } else { (1, MMIO_OFFSET + reg.offset()) }
    }

    pub fn read(&mut self, reg: Reg) -> u32 {
        let (region, offset) = self.place(reg);
        self.registers.read32(region, offset)
    }

    pub fn write(&mut self, reg: Reg, value: u32) {
        let (region, offset) = self.place(reg);
        match self.path {
            Path::DmaPosted => self.registers.post32(region, offset, value),
            _ => self.registers.write32(region, offset, value),
        }
    }

    /// The command register of the configuration space.
    pub fn set_command(&mut self, bits: u16) {
        self.registers.write_bytes(CONFIG_REGION, offset::COMMAND as u64, &bits.to_le_bytes());
    }

    /// Any register access at all.
    pub fn registers_mut(&mut self) -> &mut dyn Registers {
        &mut *self.registers
    }

    /// Sends one datagram, whatever it is. Returns what the caller in Linux gets to see.
    pub fn send(&mut self, bytes: &[u8]) -> i32 {
        if self.path == Path::Ports {
            self.registers.write_bytes(0, Reg::DataOut.offset(), bytes);
            return self.read(Reg::ResultLow) as i32;
        }
        if bytes.len() <= MAX_DATAGRAM {
            self.tx.pages.write(DMA_HEADER, bytes);
            let header = DmaHeader::new(1, DMA_INLINE, bytes.len() as u32);
            self.tx.pages.write(0, header.as_bytes());
            self.start_send();
            // The first read decides whether the header's result is examined, which does not happen then.
            self.read(Reg::ResultLow);
        }
        self.read(Reg::ResultLow) as i32
    }

    /// Makes the device examine the send buffer as it is, and waits for its answer.
    pub fn start_send(&mut self) {
        self.write(Reg::DataOutLow, self.tx.address as u32);
        self.tx.await_busy(false);
    }

    /// The send buffer, for what Linux would never put there.
    pub fn send_buffer(&self) -> (&Pages, u64) {
        (&self.tx.pages, self.tx.address)
    }

    /// Calls the hypervisor.
    pub fn call(&mut self, id: u32, payload: &[u8]) -> i32 {
        self.send(&datagram(Handle::new(0, id), Handle::INVALID, payload))
    }

    /// Sends a datagram from this VM's `resource`.
    pub fn send_to(&mut self, dst: Handle, resource: u32, payload: &[u8]) -> i32 {
        let src = Handle::new(self.cid, resource);
        self.send(&datagram(dst, src, payload))
    }

    /// Sends a stream control packet to the socket endpoint of `cid`.
    pub fn control(&mut self, cid: u32, packet: ControlPacket) -> i32 {
        self.send_to(Handle::new(cid, CONTROL_RESOURCE), CONTROL_RESOURCE, packet.as_bytes())
    }

    /// Creates or attaches a queue pair with memory of its own.
    pub fn alloc(&mut self, spec: &PairSpec, placement: Placement) -> Result<Queues, i32> {
        let queues = Queues::new(&self.ram, spec, placement);
        let payload = queues.alloc_call(spec, self.caps & CAPS_PPN64 != 0);
        match self.call(call::QUEUEPAIR_ALLOC, &payload) {
            result if result < 0 => {
                self.ram.free(&queues.addresses);
                Err(result)
            }
            _ => Ok(queues),
        }
    }

    /// Detaches, and frees the memory at once, as Linux does.
    pub fn detach(&mut self, queues: Queues) -> i32 {
        let result = self.call(call::QUEUEPAIR_DETACH, RawHandle::from(queues.handle).as_bytes());
        if result >= 0 {
            self.ram.free(&queues.addresses);
        }
        result
    }

    /// The interrupt handler of vector 1: indices of doorbells that rang, cleared.
    pub fn doorbells(&mut self) -> Vec<usize> {
        self.lines.take(1);
        let Some(&page) = self.bitmap.first() else { return Vec::new() };
        let mut bytes = [0; PAGE];
        self.ram.read(page, &mut bytes);
        let rung: Vec<usize> = (0..PAGE).filter(|index| bytes[*index] & 1 != 0).collect();
        for index in &rung {
            self.ram.write(page + *index as u64, &[0]);
        }
        rung
    }
}
