//! One NIC's function: configuration space, registers, reset. Commands are in `command.rs`, what outlives the daemon
//! in `checkpoint.rs`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vmlane_mem::{MemoryMap, Window};
use vmlane_port::{Frames, PortId};
use vmlane_state::{Found, Journal, Unusable};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vmxnet3::regs::{BAR0_SIZE, Command, PageReg, Reg, capability, event};
use vmlane_wire::vmxnet3::shared::{Coalesce, DriverShared, at};

use crate::irq::Interrupts;
use crate::pci::config::ConfigSpace;
use crate::pci::{AccessError, CONFIG_REGION, Checkpoint, IrqCounts, PciDevice, Region};

use super::activate::{self, RefusedActivation};
use super::config::{CreateError, MAX_QUEUES, NicConfig};
use super::driver_config::DriverConfig;
use super::handle::Running;
use super::pci::{bar_size, config_space, in_range, msix_vectors};
use super::port;
use super::rss;
use super::stats::{self, NicStats};
use super::vectors::Vectors;

/// Registers and interrupt masks of the whole BAR 0.
const PAGE_NAME: &str = "vmxnet3-bar0";
/// Positions in the rings of all queues, receive queues up to twice as many.
const POSITIONS_NAME: &str = "vmxnet3-rings";
pub(super) const POSITIONS: u64 = 4096;
const _: () = assert!(port::positions(3 * MAX_QUEUES as usize) <= POSITIONS as usize);
/// Refused activations are logged no more often.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Register state: plain data, valid after every access.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    /// As the driver chose it; survives every reset, because a resumed driver does not choose again.
    pub revision: Option<u8>,
    pub shared_low: u32,
    /// Address of DriverShared as latched; 0: none.
    pub shared: u64,
    /// Result of the last command.
    pub result: u32,
    pub mac_low: u32,
    /// The address in force.
    pub mac: Mac,
    /// Granted of the first capability word.
    pub granted: u32,
    pub rss_fields: u32,
    /// The driver's scheme; None: it has set none.
    pub coalesce: Option<Coalesce>,
}

/// An activation.
#[derive(Debug)]
pub(super) struct Active {
    pub running: Running,
    /// The map in force when it began.
    pub memory: MemoryMap,
    /// Queue descriptors, transmit queues first.
    pub table: Window,
    pub config: DriverConfig,
    /// Offset in the shared area of the moderation level that counts.
    pub level: usize,
    /// By which its fields were read.
    pub revision: u8,
}

/// A VMXNET3 NIC. One session drives it; what is behind [`Frames`] moves its frames.
pub struct Vmxnet3Device {
    pub(super) nic: NicConfig,
    pub(super) frames: Arc<dyn Frames>,
    pub(super) port: PortId,
    pub(super) config: ConfigSpace,
    pub(super) memory: MemoryMap,
    /// BAR 0, whether or not the VMM maps it.
    pub(super) page: Arc<Window>,
    pub(super) page_file: OwnedFd,
    /// Where positions in the rings are stored for the next daemon.
    pub(super) positions: Arc<Window>,
    pub(super) positions_file: OwnedFd,
    /// As recorded last: registers, configuration space.
    pub(super) recorded: [Vec<u8>; 2],
    pub(super) vectors: Arc<Vectors>,
    pub(super) regs: Registers,
    pub(super) active: Option<Active>,
    /// Refusals are not logged before.
    quiet_until: Option<Instant>,
    posting_told: bool,
}

impl Vmxnet3Device {
    /// A NIC behind `port` of the switch.
    pub fn new(
        nic: NicConfig,
        frames: Arc<dyn Frames>,
        port: PortId,
        irqs: Arc<dyn Interrupts>,
    ) -> Result<Vmxnet3Device, CreateError> {
        if !nic.mac.is_unicast() {
            return Err(CreateError::Mac(nic.mac));
        }
        if !(1..=MAX_QUEUES).contains(&nic.max_queues) {
            return Err(CreateError::Queues(nic.max_queues));
        }
        let config = config_space(&nic)?;
        let (page, page_file) = Window::of_file(PAGE_NAME, BAR0_SIZE).map_err(CreateError::Page)?;
        let page = Arc::new(page);
        let (positions, positions_file) =
            Window::of_file(POSITIONS_NAME, POSITIONS).map_err(CreateError::Page)?;
        let regs = Registers {
            revision: None,
            shared_low: 0,
            shared: 0,
            result: 0,
            mac_low: 0,
            mac: nic.mac,
            granted: 0,
            rss_fields: rss::DEFAULT_FIELDS,
            coalesce: None,
        };
        nic.handle.set_identity(None, nic.mac);
        Ok(Vmxnet3Device {
            frames,
            port,
            config,
            memory: MemoryMap::default(),
            vectors: Arc::new(Vectors::new(page.clone(), irqs)),
            page,
            page_file,
            positions: Arc::new(positions),
            positions_file,
            recorded: Default::default(),
            regs,
            active: None,
            quiet_until: None,
            posting_told: false,
            nic,
        })
    }

    pub(super) fn stats(&self) -> &NicStats {
        &self.nic.handle.stats
    }

    /// The revision by which memory is read.
    pub(super) fn revision(&self) -> u8 {
        self.regs.revision.unwrap_or(self.nic.profile.revision())
    }

    /// Runs `act` on the shared area, if one is latched and in memory.
    pub(super) fn with_area<T>(&self, act: impl FnOnce(&Window) -> T) -> Option<T> {
        if let Some(active) = &self.active {
            return Some(act(&active.running.shared.area));
        }
        if self.regs.shared == 0 || !self.config.bus_master() {
            return None;
        }
        let area = activate::shared_area(&self.memory, self.regs.shared, size_of::<DriverShared>());
        area.ok().map(|area| act(&area))
    }

    /// Stops the data path. When this returns nothing touches guest memory but later commands.
    pub(super) fn quiesce(&mut self) {
        if self.active.is_none() {
            return;
        }
        self.stats().quiesces.inc();
        self.nic.handle.quiesced();
        self.frames.detach(self.port);
        self.vectors.quiesce();
        self.active = None;
    }

    /// Back to where a driver begins; what a driver sets once at its probe stays.
    pub(super) fn reset_driver_state(&mut self) {
        self.quiesce();
        self.vectors.reset();
        self.regs.shared_low = 0;
        self.regs.shared = 0;
        self.regs.rss_fields = rss::DEFAULT_FIELDS;
        self.regs.coalesce = None;
    }

    /// Logged at a limited rate: a driver may try for ever.
    pub(super) fn log_refusal(&mut self, refused: &RefusedActivation) {
        self.stats().refused_activations.inc();
        self.nic.handle.refused(*refused);
        let now = Instant::now();
        if self.quiet_until.is_none_or(|until| now >= until) {
            self.quiet_until = Some(now + LOG_EVERY);
            tracing::warn!(mac = %self.nic.mac, "activation refused: {refused}");
        }
    }

    fn read_register(&mut self, reg: Reg) -> u32 {
        let profile = self.nic.profile;
        match reg {
            Reg::Revision => (1 << profile.revision()) - 1,
            Reg::UptRevision => 1,
            Reg::SharedLow => self.regs.shared_low,
            Reg::SharedHigh => (self.regs.shared >> 32) as u32,
            Reg::Command => self.regs.result,
            Reg::MacLow => mac_words(self.regs.mac).0,
            Reg::MacHigh => mac_words(self.regs.mac).1,
            Reg::InterruptCause => self.vectors.acknowledge(),
            Reg::Events => self.with_area(|area| area.load_u32(at::EVENTS)).unwrap_or(0),
            // The offer, whatever was granted: a driver that is loaded again reads it again.
            Reg::Capability(0) => profile.capabilities(),
            Reg::PassThrough(0) if profile.revision() >= 7 => capability::ERROR,
            Reg::Capability(_) | Reg::PassThrough(_) => 0,
        }
    }

    fn write_register(&mut self, reg: Reg, value: u32, posted: bool) {
        match reg {
            Reg::Revision => self.choose_revision(value),
            Reg::UptRevision => {}
            Reg::SharedLow => {
                self.quiesce();
                self.regs.shared_low = value;
            }
            Reg::SharedHigh => {
                self.quiesce();
                self.regs.shared = u64::from(value) << 32 | u64::from(self.regs.shared_low);
            }
            Reg::Command => {
                if posted {
                    self.note_posting();
                }
                self.regs.result = self.command(value);
            }
            Reg::MacLow => self.regs.mac_low = value,
            Reg::MacHigh => self.set_mac(value),
            Reg::Events => {
                self.with_area(|area| area.clear_bits_u32(at::EVENTS, value));
            }
            Reg::Capability(0) => self.regs.granted = value & self.nic.profile.capabilities(),
            Reg::Capability(_) => {}
            Reg::PassThrough(_) | Reg::InterruptCause => self.stats().register_holes.inc(),
        }
    }

    /// A driver begins: whatever is active belongs to firmware or to a kernel that is gone.
    fn choose_revision(&mut self, bit: u32) {
        self.quiesce();
        let offered = (1 << self.nic.profile.revision()) - 1;
        if !bit.is_power_of_two() || bit & offered == 0 {
            self.stats().bad_values.inc();
            return;
        }
        self.regs.revision = Some(bit.trailing_zeros() as u8 + 1);
        self.nic.handle.set_identity(self.regs.revision, self.regs.mac);
    }

    /// The address stays in force until the function is reset.
    fn set_mac(&mut self, high: u32) {
        let [a, b, c, d] = self.regs.mac_low.to_le_bytes();
        let [e, f, ..] = high.to_le_bytes();
        let mac = Mac([a, b, c, d, e, f]);
        if !mac.is_unicast() {
            self.stats().bad_values.inc();
            return;
        }
        if self.regs.mac != mac {
            self.regs.mac = mac;
            self.nic.handle.set_identity(self.regs.revision, mac);
            self.publish();
        }
    }

    fn note_posting(&mut self) {
        self.stats().posted_commands.inc();
        if !std::mem::replace(&mut self.posting_told, true) {
            tracing::error!(
                mac = %self.nic.mac,
                "the VMM does not wait for commands: the guest will reuse memory that is still in use; \
                 start QEMU with x-no-posted-writes=on, or map BAR 0 (User Mode Linux, with uml_pci, never waits)"
            );
        }
    }

    /// Memory under an active NIC goes away: the driver is told to reset, in case it lives on.
    fn lose_memory(&mut self) {
        self.stats().lost_memory.inc();
        if let Some(active) = &self.active {
            let shared = &active.running.shared;
            self.frames.detach(self.port);
            shared.failed.store(true, Ordering::Release);
            stats::write_status(&active.table, shared);
            active.running.raise(event::TX_QUEUE | event::RX_QUEUE);
        }
        tracing::warn!(mac = %self.nic.mac, "memory taken away under an active NIC; it was stopped");
        self.quiesce();
    }

    /// Splits an access into words; false for one that has none.
    fn is_words(offset: u64, len: usize) -> bool {
        offset.is_multiple_of(4) && matches!(len, 4 | 8)
    }
}

/// MACL and MACH of an address.
pub(super) fn mac_words(Mac([a, b, c, d, e, f]): Mac) -> (u32, u32) {
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0]))
}

impl PciDevice for Vmxnet3Device {
    fn region(&self, index: usize) -> Region {
        let size = if index == CONFIG_REGION { self.config.size() } else { bar_size(index) };
        let mapped = index == 0 && !self.nic.trapped;
        let mmap = if mapped { self.page_file.try_clone().ok() } else { None };
        Region { size, readable: size > 0, writable: size > 0, mmap }
    }

    fn irq_counts(&self) -> IrqCounts {
        IrqCounts { intx: 1, msi: 1, msix: u32::from(msix_vectors(&self.nic)) }
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) -> Result<(), AccessError> {
        if region == CONFIG_REGION {
            return self.config.read(offset, data);
        }
        in_range(region, offset, data.len())?;
        data.fill(0);
        if self.is_out_of_service() {
            self.read_out_of_service(region, offset, data);
            return Ok(());
        }
        match region {
            0 => self.page.read(offset as usize, data),
            1 if Vmxnet3Device::is_words(offset, data.len()) => {
                let (words, _) = data.as_chunks_mut::<4>();
                for (at, word) in (offset..).step_by(4).zip(words) {
                    if let Some(reg) = Reg::at(at) {
                        *word = self.read_register(reg).to_le_bytes();
                    }
                }
            }
            1 => self.stats().register_holes.inc(),
            // The MSI-X table: the VMM keeps it to itself.
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8], posted: bool) -> Result<(), AccessError> {
        if region == CONFIG_REGION {
            self.config.write(offset, data)?;
            // Cleared on suspend, on kexec and by a driver's removal: its memory is not ours any more.
            if !self.config.bus_master() {
                self.quiesce();
            }
            return Ok(());
        }
        in_range(region, offset, data.len())?;
        if self.is_out_of_service() {
            self.write_out_of_service(region, offset, data);
            return Ok(());
        }
        if region == 2 {
            return Ok(());
        }
        if !Vmxnet3Device::is_words(offset, data.len()) {
            self.stats().register_holes.inc();
            return Ok(());
        }
        let (words, _) = data.as_chunks::<4>();
        for (at, word) in (offset..).step_by(4).zip(words) {
            let value = u32::from_le_bytes(*word);
            match (region, Reg::at(at)) {
                (0, _) => self.write_page(at, value),
                (_, Some(reg)) => self.write_register(reg, value, posted),
                (_, None) if at.is_multiple_of(8) => self.stats().register_holes.inc(),
                // The upper half of an 8-byte access.
                (_, None) => {}
            }
        }
        Ok(())
    }

    fn memory(&mut self, map: &MemoryMap) {
        self.memory = map.clone();
    }

    fn unmap(&mut self, start: u64, len: u64) {
        // Anything may lie anywhere: a NIC whose map loses a part is stopped.
        let touched = self.active.as_ref().is_some_and(|active| {
            let rest = active.memory.unmap(start, len);
            rest.map_or(true, |rest| rest.len() < active.memory.len())
        });
        if touched {
            self.lose_memory();
        }
    }

    fn files(&self) -> Vec<(&'static str, OwnedFd)> {
        self.checkpoint_files()
    }

    fn adopt(&mut self, files: &mut Found) {
        self.adopt_files(files);
    }

    fn record(&mut self, log: &Journal) {
        self.record_changes(log);
    }

    fn resume(&mut self, checkpoint: Checkpoint<'_>) -> Result<(), Unusable> {
        self.restore(&checkpoint)
    }

    fn begin(&mut self, _: u64) {}

    /// Its driver finds a device that is not activated, and resets it.
    fn abandon(&mut self) {
        self.reset();
    }

    fn spin_hint(&self) -> Duration {
        Duration::ZERO
    }

    fn irqs_changed(&mut self) {
        self.vectors.lines_changed();
    }

    fn reset(&mut self) {
        self.stats().function_resets.inc();
        self.config.reset();
        self.reset_driver_state();
        // Doorbells: masks are the vectors'.
        let doorbells = PageReg::TxProducer(0).offset() as usize..BAR0_SIZE as usize;
        doorbells.step_by(4).for_each(|at| self.page.store_u32(at, 0));
        self.regs.result = 0;
        self.regs.mac_low = 0;
        self.regs.mac = self.nic.mac;
        self.nic.handle.set_identity(self.regs.revision, self.regs.mac);
    }
}

impl Drop for Vmxnet3Device {
    /// The session ends, and with it the guest's memory.
    fn drop(&mut self) {
        self.quiesce();
    }
}

/// A command's revision must have been chosen for it to have a meaning.
pub(super) fn known(code: u32, revision: u8) -> Option<Command> {
    Command::from_code(code).filter(|command| command.since() <= revision)
}
