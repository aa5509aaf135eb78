//! One NIC's function: regions, registers. What it does is the NIC's (`nic.rs`, `command.rs`), what outlives
//! the daemon is in `checkpoint.rs`.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vmlane_mem::MemoryMap;
use vmlane_port::{Frames, PortId};
use vmlane_state::{Found, Journal, Unusable};
use vmlane_wire::vmxnet3::regs::{BAR0_SIZE, Reg, capability};
use vmlane_wire::vmxnet3::shared::at;

use super::checkpoint::{self, Kept};
use super::command::mac_words;
use super::config::{CreateError, MAX_QUEUES, NicConfig};
use super::nic::{Nic, Registers};
use super::out_of_service;
use super::pci::{config_space, msix_vectors};
use super::vectors::Vectors;
use crate::irq::Interrupts;
use crate::pci::{
    AccessError, CONFIG_REGION, Checkpoint, Expected, IrqCounts, Mapping, PciDevice, Region, Survives,
};

/// A VMXNET3 NIC. One session drives it; what is behind [`Frames`] moves its frames.
pub struct Vmxnet3Device {
    nic: Nic,
    kept: Kept,
    posting_logged: bool,
}

impl Vmxnet3Device {
    /// A NIC behind `port` of the switch.
    pub fn new(
        config: NicConfig,
        frames: Arc<dyn Frames>,
        port: PortId,
        irqs: Arc<dyn Interrupts>,
    ) -> Result<Vmxnet3Device, CreateError> {
        if !config.mac.is_unicast() {
            return Err(CreateError::Mac(config.mac));
        }
        if !(1..=MAX_QUEUES).contains(&config.max_queues) {
            return Err(CreateError::Queues(config.max_queues));
        }
        let bar0 = config.profile.bar0_size();
        let space = config_space(&config, bar0)?;
        let (page, positions, kept) = Kept::new(bar0).map_err(CreateError::Page)?;
        config.handle.set_identity(None, config.mac);
        let nic = Nic {
            frames,
            port,
            space,
            memory: MemoryMap::default(),
            vectors: Arc::new(Vectors::new(page.clone(), irqs)),
            page,
            positions,
            regs: Registers::new(config.mac),
            active: None,
            quiet_until: None,
            config,
        };
        Ok(Vmxnet3Device { nic, kept, posting_logged: false })
    }

    fn read_register(&mut self, reg: Reg) -> u32 {
        let profile = self.nic.config.profile;
        match reg {
            Reg::Revision => (1 << profile.revision()) - 1,
            Reg::UptRevision => 1,
            Reg::SharedLow => self.nic.regs.shared_low,
            Reg::SharedHigh => (self.nic.regs.shared >> 32) as u32,
            Reg::Command => self.nic.regs.result,
            Reg::MacLow => mac_words(self.nic.regs.mac).0,
            Reg::MacHigh => mac_words(self.nic.regs.mac).1,
            Reg::InterruptCause => self.nic.vectors.acknowledge(),
            Reg::Events => self.nic.with_area(|area| area.load_u32(at::EVENTS)).unwrap_or(0),
            // The offer, whatever was granted: a driver that is loaded again reads it again.
            Reg::Capability(0) => self.nic.offered(),
            Reg::PassThrough(0) if profile.revision() >= 7 => capability::ERROR,
            Reg::Capability(_) | Reg::PassThrough(_) => 0,
        }
    }

    fn write_register(&mut self, reg: Reg, value: u32, posted: bool) {
        match reg {
            Reg::Revision => self.nic.choose_revision(value),
            Reg::UptRevision => {}
            Reg::SharedLow => {
                self.nic.quiesce();
                self.nic.regs.shared_low = value;
            }
            Reg::SharedHigh => {
                self.nic.quiesce();
                self.nic.regs.shared = u64::from(value) << 32 | u64::from(self.nic.regs.shared_low);
            }
            Reg::Command => {
                if posted {
                    self.note_posting();
                }
                self.nic.regs.result = self.nic.command(value);
            }
            Reg::MacLow => self.nic.regs.mac_low = value,
            Reg::MacHigh => self.nic.set_mac(value),
            Reg::Events => {
                self.nic.with_area(|area| area.clear_bits_u32(at::EVENTS, value));
            }
            Reg::Capability(0) => self.nic.regs.granted = value & self.nic.offered(),
            Reg::Capability(_) => {}
            Reg::PassThrough(_) | Reg::InterruptCause => self.nic.stats().register_holes.inc(),
        }
    }

    fn note_posting(&mut self) {
        self.nic.stats().posted_commands.inc();
        if !std::mem::replace(&mut self.posting_logged, true) {
            tracing::error!(
                mac = %self.nic.config.mac,
                "the VMM does not wait for commands: the guest will reuse memory that is still in use; \
                 start QEMU with x-no-posted-writes=on, or map BAR 0 (User Mode Linux, with uml_pci, never waits)"
            );
        }
    }

    /// Splits an access into words; false for one that has none.
    fn is_words(offset: u64, len: usize) -> bool {
        offset.is_multiple_of(4) && matches!(len, 4 | 8)
    }
}

impl PciDevice for Vmxnet3Device {
    fn region(&self, index: usize) -> Region {
        let size = if index == CONFIG_REGION { self.nic.space.size() } else { self.nic.bar_size(index) };
        let mapped = index == 0 && !self.nic.config.trapped;
        let file = if mapped { self.kept.page.try_clone().ok() } else { None };
        // The second page, where there is one, stays trapped.
        let mmap = file.map(|file| Mapping { file, len: BAR0_SIZE });
        Region { size, readable: size > 0, writable: size > 0, mmap }
    }

    fn irq_counts(&self) -> IrqCounts {
        IrqCounts { intx: 1, msi: 1, msix: u32::from(msix_vectors(&self.nic.config)) }
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) -> Result<(), AccessError> {
        if region == CONFIG_REGION {
            return self.nic.space.read(offset, data);
        }
        self.nic.in_range(region, offset, data.len())?;
        data.fill(0);
        if self.nic.apply_quarantine() {
            out_of_service::read(&self.nic.regs, region, offset, data);
            return Ok(());
        }
        match region {
            0 => self.nic.page.read(offset as usize, data),
            1 if Vmxnet3Device::is_words(offset, data.len()) => {
                let (words, _) = data.as_chunks_mut::<4>();
                for (at, word) in (offset..).step_by(4).zip(words) {
                    if let Some(reg) = Reg::at(at) {
                        *word = self.read_register(reg).to_le_bytes();
                    }
                }
            }
            1 => self.nic.stats().register_holes.inc(),
            // The MSI-X table: the VMM keeps it to itself.
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8], posted: bool) -> Result<(), AccessError> {
        if region == CONFIG_REGION {
            self.nic.space.write(offset, data)?;
            // Cleared on suspend, on kexec and by a driver's removal: its memory is not ours any more.
            if !self.nic.space.bus_master() {
                self.nic.quiesce();
            }
            return Ok(());
        }
        self.nic.in_range(region, offset, data.len())?;
        if self.nic.apply_quarantine() {
            let revision = self.nic.revision();
            out_of_service::write(&mut self.nic.regs, revision, region, offset, data);
            return Ok(());
        }
        if region == 2 {
            return Ok(());
        }
        if !Vmxnet3Device::is_words(offset, data.len()) {
            self.nic.stats().register_holes.inc();
            return Ok(());
        }
        let (words, _) = data.as_chunks::<4>();
        for (at, word) in (offset..).step_by(4).zip(words) {
            let value = u32::from_le_bytes(*word);
            match (region, Reg::at(at)) {
                (0, _) => self.nic.write_page(at, value),
                (_, Some(reg)) => self.write_register(reg, value, posted),
                (_, None) if at.is_multiple_of(8) => self.nic.stats().register_holes.inc(),
                // The upper half of an 8-byte access.
                (_, None) => {}
            }
        }
        Ok(())
    }

    fn memory(&mut self, map: &MemoryMap) {
        self.nic.memory = map.clone();
    }

    fn unmap(&mut self, start: u64, len: u64) {
        self.nic.unmap(start, len);
    }

    fn irqs_changed(&mut self) {
        self.nic.vectors.lines_changed();
    }

    fn reset(&mut self) {
        self.nic.reset();
    }

    fn begin(&mut self, _: u64) {}

    fn expected(&self) -> Expected {
        Expected::default()
    }

    fn survival(&mut self) -> Option<&mut dyn Survives> {
        Some(self)
    }
}

impl Survives for Vmxnet3Device {
    fn files(&self) -> Vec<(&'static str, OwnedFd)> {
        self.kept.files()
    }

    fn adopt(&mut self, files: &mut Found) {
        self.kept.adopt(&mut self.nic, files);
    }

    fn record(&mut self, log: &Journal) {
        self.kept.record(&self.nic, log);
    }

    fn resume(&mut self, checkpoint: Checkpoint<'_>) -> Result<(), Unusable> {
        checkpoint::restore(&mut self.nic, &checkpoint)
    }

    /// Its driver finds a device that is not activated, and resets it.
    fn abandon(&mut self) {
        self.nic.reset();
    }
}
