//! One VM's VMCI function: registers, the two datagram paths, reset.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use vmlane_mem::MemoryMap;
use vmlane_state::{Found, Journal, Reader, Unusable, Writer};
use vmlane_wire::vmci::{
    BAR0_SIZE, BAR1_SIZE, CAPS_DATAGRAM, CAPS_DMA_DATAGRAM, CAPS_NOTIFICATIONS, CAPS_PPN64, CAUSE_DATAGRAM,
    CAUSE_DMA_DATAGRAM, CAUSE_NOTIFICATION, CONTROL_INT_DISABLE, CONTROL_INT_ENABLE, CONTROL_RESET,
    DEVICE_ID, MMIO_OFFSET, Reg, VENDOR_ID, VmciError,
};

use crate::irq::Interrupts;
use crate::pci::config::{Bar, ConfigSpace, Msix};
use crate::pci::{AccessError, CONFIG_REGION, Checkpoint, Expected, IrqCounts, PciDevice, Region, Survives};

use super::caller::{Caller, PageFormat};
use super::dma;
use super::hypercall;
use super::inbox::Inbox;
use super::ports::{Assembled, Assembler, Stream};
use super::spec::Limits;
use super::stats::VmciStats;
use super::tables::Hypervisor;

/// What the device offers.
const CAPS: u32 = CAPS_DATAGRAM | CAPS_NOTIFICATIONS | CAPS_PPN64 | CAPS_DMA_DATAGRAM;
/// One vector per cause; with fewer, Linux 5.18 and later can hang on a DMA receive.
const VECTORS: u16 = 3;
/// A driver reads RESULT_LOW twice after a send at most. Later reads belong to a send that the
/// driver refused by itself, and must not find the success of an earlier one.
const RESULT_READS: u8 = 2;
/// How long the next access of a datagram's is polled for: another byte's, its result's, the next one's.
const SOON: Duration = Duration::from_micros(150);
/// The same of a driver that is to fetch: vector 0 goes through its VMM and its kernel first.
const FETCH: Duration = Duration::from_micros(200);

/// Register state: plain data, valid after every access.
#[derive(Clone, Debug)]
struct Registers {
    /// CAPS as the driver wrote it; `None` before that.
    caps: Option<u32>,
    page_shift: u32,
    out_high: u32,
    in_high: u32,
    result: i32,
    result_reads: u8,
}

impl Registers {
    const fn new() -> Registers {
        Registers { caps: None, page_shift: 12, out_high: 0, in_high: 0, result: 0, result_reads: 0 }
    }
}

/// A VMCI device. One session drives it; workers reach its guest through the inbox.
pub struct VmciDevice {
    hypervisor: Arc<Hypervisor>,
    cid: u32,
    inbox: Arc<Inbox>,
    config: ConfigSpace,
    memory: MemoryMap,
    regs: Registers,
    assembler: Assembler,
    stream: Stream,
    /// Private copy of the datagram being sent.
    outgoing: Vec<u8>,
    /// The batch being delivered.
    batch: Vec<u8>,
    /// The last access sent or fetched a datagram, or a byte of one, or asked for the result.
    bursting: bool,
    /// Number of the request at hand.
    request: u64,
    /// As recorded last: registers and ports, configuration space.
    recorded: [Vec<u8>; 2],
    /// The last access found the device out of service.
    out_of_service: bool,
}

/// Kinds of the device's records.
const REGISTERS: u32 = 256;
const CONFIG: u32 = 257;

/// Why a device could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("no VM with CID {0} that lacks a VMCI device is known; add it first")]
    UnknownVm(u32),
    #[error(transparent)]
    Config(#[from] crate::pci::config::ConfigError),
}

impl VmciDevice {
    /// The device of the VM with context id `cid`, which must be in the router's table of VMs.
    pub fn new(
        hypervisor: Arc<Hypervisor>,
        vm: (u32, Limits),
        irqs: Arc<dyn Interrupts>,
    ) -> Result<VmciDevice, CreateError> {
        VmciDevice::counting(hypervisor, vm, irqs, VmciStats::default())
    }

    /// The same, which counts in `stats`.
    pub fn counting(
        hypervisor: Arc<Hypervisor>,
        (cid, limits): (u32, Limits),
        irqs: Arc<dyn Interrupts>,
        stats: VmciStats,
    ) -> Result<VmciDevice, CreateError> {
        let inbox = hypervisor.open(cid, limits, irqs, stats).ok_or(CreateError::UnknownVm(cid))?;
        let config = ConfigSpace::builder(VENDOR_ID, DEVICE_ID)
            .class(0x0008_8000)
            .revision(0x10)
            .subsystem(VENDOR_ID, DEVICE_ID)
            .interrupt_pin(1)
            .timing(6, 255)
            .bar(0, Bar::Io { size: BAR0_SIZE as u32 })
            .bar(1, Bar::Mem64 { size: BAR1_SIZE })
            .msi(0x40)
            .msix(0x58, Msix { vectors: VECTORS, table: (1, 0), pba: (1, 0x1000) })
            .build()?;
        Ok(VmciDevice {
            hypervisor,
            cid,
            inbox,
            config,
            memory: MemoryMap::default(),
            regs: Registers::new(),
            assembler: Assembler::default(),
            stream: Stream::default(),
            outgoing: Vec::new(),
            batch: Vec::new(),
            bursting: false,
            request: 0,
            recorded: Default::default(),
            out_of_service: false,
        })
    }

    /// The register file's offset of an access, if it falls into one.
    fn register(region: usize, offset: u64) -> Option<u64> {
        match region {
            0 => Some(offset),
            1 if (MMIO_OFFSET..MMIO_OFFSET + 0x10000).contains(&offset) => Some(offset - MMIO_OFFSET),
            _ => None,
        }
    }

    fn read_register(&mut self, reg: Reg) -> u32 {
        match reg {
            Reg::Status => u32::from(self.inbox.signals.asserted()),
            Reg::Icr => self.inbox.signals.acknowledge(),
            Reg::Imr => self.inbox.signals.mask(),
            // Always the whole offer: a driver that is loaded again reads it again.
            Reg::Caps => CAPS,
            Reg::ResultLow => {
                self.bursting = true;
                self.result() as u32
            }
            Reg::ResultHigh => (i64::from(self.regs.result) >> 32) as u32,
            Reg::GuestPageShift => self.regs.page_shift,
            Reg::Control
            | Reg::DataOut
            | Reg::DataIn
            | Reg::DataOutLow
            | Reg::DataOutHigh
            | Reg::DataInLow
            | Reg::DataInHigh => 0,
        }
    }

    fn result(&mut self) -> i32 {
        if self.assembler.is_interrupted() {
            // The result of half a datagram; an earlier one's success would mislead.
            self.regs.result_reads = 0;
        }
        self.assembler.reset();
        if self.regs.result_reads == 0 {
            return VmciError::InvalidArgs.code();
        }
        self.regs.result_reads -= 1;
        self.regs.result
    }

    fn write_register(&mut self, reg: Reg, value: u32, posted: bool) {
        match reg {
            Reg::Control => self.control(value),
            Reg::Imr => self.inbox.signals.set_mask(value),
            Reg::Caps => {
                // Written once per probe: whatever there was belongs to a kernel that is gone (kexec).
                self.reset_state();
                self.regs.caps = Some(value & CAPS);
            }
            Reg::DataOutHigh | Reg::DataInHigh => self.set_high(reg, value),
            Reg::DataOutLow => self.dma_send(u64::from(self.regs.out_high) << 32 | u64::from(value)),
            Reg::DataInLow => self.dma_receive(u64::from(self.regs.in_high) << 32 | u64::from(value), posted),
            Reg::GuestPageShift if [12, 14, 16].contains(&value) => self.regs.page_shift = value,
            _ => self.inbox.stats.register_holes.inc(),
        }
    }

    fn set_high(&mut self, reg: Reg, value: u32) {
        *if reg == Reg::DataOutHigh { &mut self.regs.out_high } else { &mut self.regs.in_high } = value;
        self.hypervisor.set_buffers_high(self.cid, [self.regs.out_high, self.regs.in_high]);
    }

    fn control(&mut self, value: u32) {
        if value & CONTROL_RESET != 0 {
            self.reset_state();
        }
        if value & CONTROL_INT_DISABLE != 0 {
            self.inbox.signals.set_enabled(false);
        }
        if value & CONTROL_INT_ENABLE != 0 {
            self.hypervisor.set_ready(self.cid, !self.acknowledged(CAPS_DMA_DATAGRAM));
            self.inbox.signals.set_enabled(true);
        }
    }

    fn acknowledged(&self, cap: u32) -> bool {
        self.regs.caps.is_some_and(|caps| caps & cap != 0)
    }

    /// Guest memory as far as the function may touch it now.
    fn reachable_memory(&self) -> MemoryMap {
        if self.config.bus_master() { self.memory.clone() } else { MemoryMap::default() }
    }

    fn send(&mut self, memory: &MemoryMap, datagram: &[u8]) -> i32 {
        let pages = PageFormat { shift: self.regs.page_shift, ppn64: self.acknowledged(CAPS_PPN64) };
        let result = self.hypervisor.send(
            Caller { cid: self.cid, memory, pages, stats: &self.inbox.stats, request: self.request },
            datagram,
        );
        let unknown = result == VmciError::NotFound.code();
        if unknown && self.is_forgotten(datagram) { 0 } else { result }
    }

    /// Whether a driver, whose device was reset under it, gives up a queue pair that went with the
    /// reset. Linux keeps a pair whose detach fails, and trips over it when the module is unloaded.
    fn is_forgotten(&self, datagram: &[u8]) -> bool {
        self.regs.caps.is_none() && hypercall::is_detach(datagram)
    }

    fn latch(&mut self, result: i32) {
        self.regs.result = result;
        self.regs.result_reads = RESULT_READS;
    }

    /// What the guest waits for from a write of `value` to `reg` on: held while the write is served.
    fn awaited(&self, reg: Option<Reg>, value: u32) -> Option<dma::Awaited> {
        let (request, high) = match reg? {
            Reg::DataOutLow => (dma::Request::Send, self.regs.out_high),
            Reg::DataInLow => (dma::Request::Receive, self.regs.in_high),
            _ => return None,
        };
        let addr = u64::from(high) << 32 | u64::from(value);
        Some(dma::Awaited { memory: self.memory.clone(), request, addr })
    }

    fn dma_send(&mut self, addr: u64) {
        self.bursting = true;
        let memory = self.memory.clone();
        let mut outgoing = std::mem::take(&mut self.outgoing);
        let result = if dma::fetch(&memory, addr, &mut outgoing).is_err() {
            self.inbox.stats.refused_address.inc();
            dma::BAD_BUFFER.code()
        } else if self.may_use_dma() {
            self.send(&memory, &outgoing)
        } else if self.is_forgotten(&outgoing) {
            0
        } else {
            dma::BAD_BUFFER.code()
        };
        self.outgoing = outgoing;
        self.latch(result);
        dma::finish_send(&memory, addr, result);
    }

    /// Requests are answered also when this is false, and carry nothing then: kexec takes the
    /// bus-master bit away while programs still send, and the vCPU spins for its answer.
    fn may_use_dma(&self) -> bool {
        self.acknowledged(CAPS_DMA_DATAGRAM) && self.config.bus_master()
    }

    fn dma_receive(&mut self, addr: u64, posted: bool) {
        self.bursting = true;
        self.inbox.fetching();
        let allowed = self.may_use_dma();
        let source = allowed.then_some((&*self.inbox, &*self.hypervisor));
        if dma::deliver(&self.memory, addr, source, &mut self.batch).is_err() || !allowed {
            self.inbox.stats.refused_address.inc();
        }
        dma::finish_receive(&self.memory, addr);
        if posted {
            // The guest did not wait for this access, so it may already sleep until vector 2.
            self.inbox.signals.raise(CAUSE_DMA_DATAGRAM);
            if self.regs.caps.is_none() {
                self.inbox.signals.wake_forgotten(CAUSE_DMA_DATAGRAM);
            }
        }
        self.inbox.fetched();
    }

    fn port_out(&mut self, data: &[u8]) {
        self.bursting = true;
        for byte in data {
            match self.assembler.push(*byte) {
                Assembled::More => {}
                Assembled::TooLarge => {
                    self.inbox.stats.refused_size.inc();
                    self.latch(VmciError::PayloadTooLarge.code());
                }
                Assembled::Datagram => {
                    let datagram = self.assembler.take();
                    let memory = self.reachable_memory();
                    let result = self.send(&memory, &datagram);
                    self.latch(result);
                    self.assembler.restart(datagram);
                }
            }
        }
    }

    fn port_in(&mut self, data: &mut [u8]) {
        self.bursting = true;
        data.fill_with(|| self.stream.next(&self.inbox));
    }

    fn restore(&mut self, from: &mut Reader<'_>) -> Option<()> {
        let caps = from.option()?.map(|caps| caps as u32 & CAPS);
        let (page_shift, out_high, in_high) = (from.u32()?, from.u32()?, from.u32()?);
        let (result, result_reads) = (from.u32()? as i32, from.u8()?);
        let (mask, enabled, taken) = (from.u32()?, from.flag()?, from.u64()?);
        let (assembler, stream) = (Assembler::from_record(from)?, Stream::from_record(from)?);
        from.end()?;
        if ![12, 14, 16].contains(&page_shift) {
            return None;
        }
        self.regs = Registers { caps, page_shift, out_high, in_high, result, result_reads };
        (self.assembler, self.stream) = (assembler, stream);
        self.inbox.drop_below(taken);
        self.inbox.signals.restore(mask, enabled);
        Some(())
    }

    /// True while the daemon keeps the device from doing anything.
    fn apply_quarantine(&mut self) -> bool {
        let out = self.inbox.is_quarantined();
        // What an access under way at that moment set up goes, too.
        if out && !self.out_of_service {
            self.reset_state();
        }
        self.out_of_service = out;
        out
    }

    /// Whatever a guest asks while the device is out of service, it is answered: its vCPU would wait for
    /// ever. A driver that probes finds a device without capabilities.
    fn write_out_of_service(&mut self, reg: Option<Reg>, value: u32) {
        match reg {
            Some(reg @ (Reg::DataOutHigh | Reg::DataInHigh)) => self.set_high(reg, value),
            Some(Reg::DataOutLow) => {
                let addr = u64::from(self.regs.out_high) << 32 | u64::from(value);
                dma::finish_send(&self.memory, addr, dma::OUT_OF_SERVICE.code());
            }
            Some(Reg::DataInLow) => {
                let addr = u64::from(self.regs.in_high) << 32 | u64::from(value);
                let _ = dma::deliver(&self.memory, addr, None, &mut self.batch);
                dma::finish_receive(&self.memory, addr);
                self.inbox.signals.wake_forgotten(CAUSE_DMA_DATAGRAM);
            }
            _ => {}
        }
    }

    fn read_out_of_service(&mut self, region: usize, offset: u64, data: &mut [u8]) {
        let result = i64::from(dma::OUT_OF_SERVICE.code());
        let word = match VmciDevice::register(region, offset).and_then(Reg::at) {
            Some(Reg::ResultLow) => result as u32,
            Some(Reg::ResultHigh) => (result >> 32) as u32,
            _ => 0,
        };
        if let Ok(data) = <&mut [u8; 4]>::try_from(data) {
            *data = word.to_le_bytes();
        }
    }

    /// Everything that belongs to the driver goes; the CID, the offer and the memory map stay.
    fn reset_state(&mut self) {
        self.inbox.stats.resets.inc();
        self.hypervisor.reset(self.cid);
        // A driver whose device was reset under it still sends, and it wrote these at its probe only.
        let Registers { out_high, in_high, .. } = self.regs;
        self.regs = Registers { out_high, in_high, ..Registers::new() };
        self.assembler.reset();
        self.stream.reset();
        self.bursting = false;
    }
}

impl PciDevice for VmciDevice {
    fn region(&self, index: usize) -> Region {
        let size = match index {
            0 => BAR0_SIZE,
            1 => BAR1_SIZE,
            CONFIG_REGION => self.config.size(),
            _ => 0,
        };
        Region { size, readable: size > 0, writable: size > 0, mmap: None }
    }

    fn irq_counts(&self) -> IrqCounts {
        IrqCounts { intx: 1, msi: 1, msix: u32::from(VECTORS) }
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) -> Result<(), AccessError> {
        if region == CONFIG_REGION {
            return self.config.read(offset, data);
        }
        self.bursting = false;
        data.fill(0);
        if self.apply_quarantine() {
            self.read_out_of_service(region, offset, data);
            return Ok(());
        }
        let Some(at) = VmciDevice::register(region, offset) else {
            // The MSI-X table and the rest of BAR 1: the VMM keeps the table to itself.
            return Ok(());
        };
        match Reg::at(at) {
            Some(Reg::DataIn) => self.port_in(data),
            Some(reg) if data.len() == 4 => data.copy_from_slice(&self.read_register(reg).to_le_bytes()),
            _ => self.inbox.stats.register_holes.inc(),
        }
        Ok(())
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8], posted: bool) -> Result<(), AccessError> {
        if region == CONFIG_REGION {
            let was_master = self.config.bus_master();
            self.config.write(offset, data)?;
            // Cleared on kexec and by a driver's removal: what it set up is not ours to touch any more.
            if was_master && !self.config.bus_master() {
                self.reset_state();
            }
            return Ok(());
        }
        let register = VmciDevice::register(region, offset);
        let reg = register.and_then(Reg::at);
        let word = <[u8; 4]>::try_from(data);
        self.bursting = false;
        if self.apply_quarantine() {
            self.write_out_of_service(reg, word.map(u32::from_le_bytes).unwrap_or_default());
            return Ok(());
        }
        let _awaited = self.awaited(reg, word.map(u32::from_le_bytes).unwrap_or_default());
        if register.is_none() {
            return Ok(());
        }
        match (reg, word) {
            (Some(Reg::DataOut), _) => self.port_out(data),
            (Some(reg), Ok(word)) => self.write_register(reg, u32::from_le_bytes(word), posted),
            _ => self.inbox.stats.register_holes.inc(),
        }
        Ok(())
    }

    fn memory(&mut self, map: &MemoryMap) {
        self.memory = map.clone();
        self.hypervisor.set_memory(self.cid, map.len());
    }

    fn unmap(&mut self, start: u64, len: u64) {
        self.hypervisor.unmap(self.cid, start, len);
    }

    fn irqs_changed(&mut self) {
        self.inbox.signals.lines_changed();
    }

    fn reset(&mut self) {
        self.config.reset();
        self.reset_state();
    }

    fn begin(&mut self, number: u64) {
        self.request = number;
        self.inbox.forget_consumed();
    }

    fn expected(&self) -> Expected {
        let within = if self.bursting { SOON } else { Duration::ZERO };
        // Older drivers, which read the result once, use ports.
        let by_dma = self.acknowledged(CAPS_DMA_DATAGRAM);
        let certain = self.bursting && by_dma && self.regs.result_reads > 0;
        let after_vector_0 = if by_dma { FETCH } else { Duration::ZERO };
        Expected { within, certain, after_vector_0 }
    }

    fn survival(&mut self) -> Option<&mut dyn Survives> {
        Some(self)
    }
}

impl Survives for VmciDevice {
    fn files(&self) -> Vec<(&'static str, OwnedFd)> {
        Vec::new()
    }

    fn adopt(&mut self, _: &mut Found) {}

    fn record(&mut self, log: &Journal) {
        let mut out = Writer(std::mem::take(&mut self.outgoing));
        out.0.clear();
        let Registers { caps, page_shift, out_high, in_high, result, result_reads } = &self.regs;
        out.option(caps.map(u64::from)).u32(*page_shift).u32(*out_high).u32(*in_high);
        out.u32(*result as u32).u8(*result_reads);
        let signals = &self.inbox.signals;
        out.u32(signals.mask()).flag(signals.is_enabled()).u64(self.inbox.taken());
        self.assembler.record(&mut out);
        self.stream.record(&mut out);
        let [registers, config] = &mut self.recorded;
        if *registers != out.0 {
            log.stage((REGISTERS, 0, 0), &out.0);
            registers.clone_from(&out.0);
        }
        if config != self.config.bytes() {
            log.stage((CONFIG, 0, 0), self.config.bytes());
            config.clear();
            config.extend_from_slice(self.config.bytes());
        }
        self.outgoing = out.0;
    }

    fn resume(&mut self, checkpoint: Checkpoint<'_>) -> Result<(), Unusable> {
        if self.hypervisor.take_lost(self.cid) {
            // Its driver will send requests nevertheless, and waits for answers where its buffers are.
            if let Some(high) = checkpoint.record(REGISTERS).and_then(buffers_high) {
                self.hypervisor.set_buffers_high(self.cid, high);
            }
            return Err(Unusable::Missing("what the hypervisor knew of this device".into()));
        }
        if let Some(bytes) = checkpoint.record(CONFIG) {
            self.config.restore(bytes).ok_or(Unusable::Record { kind: CONFIG })?;
        }
        // Nothing was asked of the device yet.
        let Some(bytes) = checkpoint.record(REGISTERS) else { return Ok(()) };
        let mut from = Reader::new(bytes);
        self.restore(&mut from).ok_or(Unusable::Record { kind: REGISTERS })?;
        // What was raised may not have arrived, and what waits was perhaps never announced.
        self.inbox.announce_again();
        self.inbox.signals.raise(CAUSE_NOTIFICATION);
        self.inbox.signals.raise(CAUSE_DMA_DATAGRAM);
        Ok(())
    }

    fn abandon(&mut self) {
        self.reset();
        [self.regs.out_high, self.regs.in_high] = self.hypervisor.buffers_high(self.cid);
    }
}

/// Of a record of registers, whatever else is in it.
fn buffers_high(record: &[u8]) -> Option<[u32; 2]> {
    let mut from = Reader::new(record);
    let (_caps, _shift) = (from.option()?, from.u32()?);
    Some([from.u32()?, from.u32()?])
}

/// Causes in the order of their vectors; the guest's drivers count on it.
const _: () = assert!(CAUSE_DATAGRAM == 1 && CAUSE_NOTIFICATION == 2 && CAUSE_DMA_DATAGRAM == 4);
