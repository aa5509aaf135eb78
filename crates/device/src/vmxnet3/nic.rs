//! A NIC's state, and what ends or changes an activation. Registers and regions are the function's
//! (`device.rs`), commands are in `command.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vmlane_mem::{MemoryMap, Window};
use vmlane_port::{Frames, PortId};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vmxnet3::regs::{LARGE_BAR0_SIZE, PageReg, capability, event};
use vmlane_wire::vmxnet3::shared::{Coalesce, DriverShared};

use super::activate::{self, RefusedActivation};
use super::config::NicConfig;
use super::doorbell::Doorbell;
use super::driver_config::{Context, DriverConfig};
use super::handle::Running;
use super::rss;
use super::stats::{self, NicStats};
use super::vectors::Vectors;
use crate::pci::config::ConfigSpace;

/// Refused activations are logged no more often.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Register state: plain data, valid after every access.
#[derive(Clone, Debug)]
pub struct Registers {
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

impl Registers {
    /// As no driver has written to them.
    pub fn new(mac: Mac) -> Registers {
        Registers {
            revision: None,
            shared_low: 0,
            shared: 0,
            result: 0,
            mac_low: 0,
            mac,
            granted: 0,
            rss_fields: rss::DEFAULT_FIELDS,
            coalesce: None,
        }
    }
}

/// An activation.
#[derive(Debug)]
pub struct Active {
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
    /// None: its driver's doorbells reach no one.
    pub doorbell: Option<Arc<Doorbell>>,
}

/// A NIC behind a port of the switch.
pub struct Nic {
    pub config: NicConfig,
    pub frames: Arc<dyn Frames>,
    pub port: PortId,
    /// Its configuration space.
    pub space: ConfigSpace,
    pub memory: MemoryMap,
    /// BAR 0, whether or not the VMM maps it.
    pub page: Arc<Window>,
    /// Where positions in the rings are stored for the next daemon.
    pub positions: Arc<Window>,
    pub vectors: Arc<Vectors>,
    pub regs: Registers,
    pub active: Option<Active>,
    /// Refusals are not logged before.
    pub quiet_until: Option<Instant>,
}

impl Nic {
    pub fn stats(&self) -> &NicStats {
        &self.config.handle.stats
    }

    /// The first capability word. A session that began with a small BAR 0 keeps it.
    pub fn offered(&self) -> u32 {
        let small = self.bar_size(0) < LARGE_BAR0_SIZE;
        self.config.profile.capabilities() & if small { !capability::LARGE_BAR } else { !0 }
    }

    /// The doorbell of an activation by `revision` with so many transmit queues. None: its driver rings where
    /// no one is notified.
    pub fn doorbell(&self, revision: u8, queues: u8) -> Option<Arc<Doorbell>> {
        let announces = revision >= 7 && self.regs.granted & capability::LARGE_BAR != 0;
        // Without a file the worker polls, as for other drivers.
        announces.then(|| Doorbell::new(self.page.clone(), queues).ok().map(Arc::new)).flatten()
    }

    /// The revision by which memory is read.
    pub fn revision(&self) -> u8 {
        self.regs.revision.unwrap_or(self.config.profile.revision())
    }

    /// Runs `act` on the shared area, if one is latched and in memory.
    pub fn with_area<T>(&self, act: impl FnOnce(&Window) -> T) -> Option<T> {
        if let Some(active) = &self.active {
            return Some(act(&active.running.shared.area));
        }
        if self.regs.shared == 0 || !self.space.bus_master() {
            return None;
        }
        let area = activate::shared_area(&self.memory, self.regs.shared, size_of::<DriverShared>());
        area.ok().map(|area| act(&area))
    }

    /// Stops the data path. When this returns nothing touches guest memory but later commands.
    pub fn quiesce(&mut self) {
        if self.active.is_none() {
            return;
        }
        self.stats().quiesces.inc();
        self.config.handle.quiesced();
        self.frames.detach(self.port);
        self.vectors.quiesce();
        self.active = None;
    }

    /// Back to where a driver begins; what a driver sets once at its probe stays.
    pub fn reset_driver_state(&mut self) {
        self.quiesce();
        self.vectors.reset();
        self.regs.shared_low = 0;
        self.regs.shared = 0;
        self.regs.rss_fields = rss::DEFAULT_FIELDS;
        self.regs.coalesce = None;
    }

    /// Function reset.
    pub fn reset(&mut self) {
        self.stats().function_resets.inc();
        self.space.reset();
        self.reset_driver_state();
        // Doorbells: masks are the vectors'.
        let doorbells = PageReg::TxProducer(0).offset() as usize..self.page.len();
        doorbells.step_by(4).for_each(|at| self.page.store_u32(at, 0));
        self.regs.result = 0;
        self.regs.mac_low = 0;
        self.regs.mac = self.config.mac;
        self.config.handle.set_identity(self.regs.revision, self.regs.mac);
    }

    /// Takes an active NIC out of service that the operator, or the daemon itself, does not want to run. True
    /// while it does nothing.
    pub fn apply_quarantine(&mut self) -> bool {
        let out = self.config.handle.is_quarantined();
        if out && self.active.is_some() {
            self.quiesce();
            self.regs.result = 0;
        }
        out
    }

    /// Logged at a limited rate: a driver may try for ever.
    pub fn log_refusal(&mut self, refused: &RefusedActivation) {
        self.stats().refused_activations.inc();
        self.config.handle.refused(*refused);
        let now = Instant::now();
        if self.quiet_until.is_none_or(|until| now >= until) {
            self.quiet_until = Some(now + LOG_EVERY);
            tracing::warn!(mac = %self.config.mac, "activation refused: {refused}");
        }
    }

    /// A driver begins: whatever is active belongs to firmware or to a kernel that is gone.
    pub fn choose_revision(&mut self, bit: u32) {
        self.quiesce();
        let offered = (1 << self.config.profile.revision()) - 1;
        if !bit.is_power_of_two() || bit & offered == 0 {
            self.stats().bad_values.inc();
            return;
        }
        self.regs.revision = Some(bit.trailing_zeros() as u8 + 1);
        // Another driver may ring elsewhere.
        self.regs.granted = 0;
        self.config.handle.set_identity(self.regs.revision, self.regs.mac);
    }

    /// The address stays in force until the function is reset.
    pub fn set_mac(&mut self, high: u32) {
        let [a, b, c, d] = self.regs.mac_low.to_le_bytes();
        let [e, f, ..] = high.to_le_bytes();
        let mac = Mac([a, b, c, d, e, f]);
        if !mac.is_unicast() {
            self.stats().bad_values.inc();
            return;
        }
        if self.regs.mac != mac {
            self.regs.mac = mac;
            self.config.handle.set_identity(self.regs.revision, mac);
            self.publish();
        }
    }

    /// BAR 0 where the VMM traps it: the same words that a guest reaches directly where it is mapped.
    /// Harmless while the NIC is not active.
    pub fn write_page(&self, offset: u64, value: u32) {
        let Some(reg) = PageReg::at(offset) else {
            self.stats().register_holes.inc();
            return;
        };
        self.stats().trapped_writes.inc();
        self.page.store_u32(offset as usize, value);
        let Some(active) = &self.active else { return };
        match (reg, &active.doorbell) {
            (PageReg::LargeTxProducer(_), Some(doorbell)) => return doorbell.ring(),
            (PageReg::Mask(_), _) => {
                self.vectors.fire_pending(active.running.control_word());
            }
            _ => {}
        }
        self.frames.kick(self.port);
    }

    /// Anything may lie anywhere: a NIC whose map loses a part is stopped, and its driver notified to reset,
    /// in case it lives on.
    pub fn unmap(&mut self, start: u64, len: u64) {
        let loses = |active: &&Active| {
            let rest = active.memory.unmap(start, len);
            rest.map_or(true, |rest| rest.len() < active.memory.len())
        };
        let Some(active) = self.active.as_ref().filter(loses) else { return };
        self.stats().lost_memory.inc();
        let shared = &active.running.shared;
        self.frames.detach(self.port);
        shared.failed.store(true, Ordering::Release);
        stats::write_status(&active.table, shared);
        active.running.raise(event::TX_QUEUE | event::RX_QUEUE);
        tracing::warn!(mac = %self.config.mac, "memory taken away under an active NIC; it was stopped");
        self.quiesce();
    }

    /// Has the data path pick up what changed; returns when it has.
    pub fn publish(&self) {
        let Some(active) = &self.active else { return };
        let shared = &active.running.shared;
        let live = active.config.live(&self.context(active.revision, shared.rx_stats.len()));
        *shared.live.lock() = live;
        self.stats().updates.inc();
        self.frames.refresh(self.port);
    }

    /// By which a driver's configuration is read.
    pub fn context(&self, revision: u8, queues: usize) -> Context {
        Context {
            profile: self.config.profile,
            revision,
            mac: self.regs.mac,
            queues,
            rss_fields: self.regs.rss_fields,
            coalesce: self.regs.coalesce,
        }
    }
}

impl Drop for Nic {
    /// The session ends, and with it the guest's memory.
    fn drop(&mut self) {
        self.quiesce();
    }
}
