//! Commands. Each is done when the write of its code returns: drivers reuse memory right afterwards.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use vmlane_mem::Window;
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vmxnet3::regs::{Command, DEVICE_ID, event, link};
use vmlane_wire::vmxnet3::shared::{BlockRef, Coalesce, at};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::activate::{self, Checked, RefusedActivation, Rules};
use super::driver_config::DriverConfig;
use super::handle::Running;
use super::nic::{Active, Nic};
use super::port::NicPort;
use super::rss;
use super::setup::{Setup, Shared};
use super::stats;

/// Results of commands that answer with success or not.
const DONE: u32 = 0;
const REFUSED: u32 = 1;
/// The device's own revision, for drivers that ask.
const DEVICE_REVISION: u32 = 1;
/// Adaptive rings are switched off.
const NO_ADAPTIVE_RINGS: u32 = 1;
/// Bytes of a slot of the transmit data ring. A larger one would save translations, but kernels from 6.5
/// on, built with checks of copies (Debian's are), warn at each boot about a copy into more than 128.
const TX_DATA_SLOT: u32 = 128;

/// A command's revision must have been chosen for it to have a meaning.
pub fn known(code: u32, revision: u8) -> Option<Command> {
    Command::from_code(code).filter(|command| command.since() <= revision)
}

/// MACL and MACH of an address.
pub fn mac_words(Mac([a, b, c, d, e, f]): Mac) -> (u32, u32) {
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0]))
}

/// Where in its rings an activation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    FirstDescriptor,
    /// Where a previous daemon stopped.
    Checkpoint,
}

impl Nic {
    /// Executes a command and returns its result.
    pub fn command(&mut self, code: u32) -> u32 {
        self.stats().commands.inc();
        let Some(command) = known(code, self.revision()) else {
            // Drivers send some that were never published, and want to see 0.
            self.stats().unknown_commands.inc();
            return DONE;
        };
        tracing::trace!(mac = %self.config.mac, ?command);
        match command {
            Command::Activate => self.activate(),
            Command::Quiesce => {
                self.quiesce();
                DONE
            }
            Command::Reset => {
                self.stats().resets.inc();
                self.reset_driver_state();
                DONE
            }
            Command::UpdateRxMode
            | Command::UpdateMacFilters
            | Command::UpdateVlanFilters
            | Command::UpdateRss
            | Command::UpdateModeration
            | Command::UpdateFeatures => {
                self.update(command);
                DONE
            }
            Command::SetCoalesce => {
                self.set_coalesce();
                DONE
            }
            Command::SetRssFields => {
                self.set_rss_fields();
                DONE
            }
            // Wake-up patterns: there is no way to wake a guest. Memory regions and buffer sizes are hints.
            Command::UpdateWakeUp | Command::RegisterMemory | Command::SetRingBufferSize => DONE,
            Command::LoadPlugin => REFUSED,
            get => self.get(get),
        }
    }

    fn get(&mut self, command: Command) -> u32 {
        let profile = self.config.profile;
        match command {
            Command::GetQueueStatus => self.with_table(stats::write_status),
            Command::GetStats => {
                self.stats().stats_reads.inc();
                self.with_table(stats::write_statistics)
            }
            Command::GetLink => link(self.config.handle.is_link_up(), profile.link_speed()),
            Command::GetPermanentMacLow => mac_words(self.config.mac).0,
            Command::GetPermanentMacHigh => mac_words(self.config.mac).1,
            Command::GetDeviceIdLow => u32::from(DEVICE_ID),
            Command::GetDeviceIdHigh => DEVICE_REVISION,
            Command::GetInterruptConfig => profile.interrupt_type(),
            Command::GetAdaptiveRing => NO_ADAPTIVE_RINGS,
            Command::GetTxDataSize => TX_DATA_SLOT,
            Command::GetCoalesce => self.get_coalesce(),
            Command::GetRssFields => self.regs.rss_fields,
            Command::GetMaxQueues => {
                u32::from(self.config.max_queues) << 8 | u32::from(self.config.max_queues)
            }
            Command::GetMaxCapabilities => self.offered(),
            Command::GetCapabilities => self.regs.granted,
            _ => DONE,
        }
    }

    fn with_table(&self, write: impl FnOnce(&Window, &Shared)) -> u32 {
        if let Some(active) = &self.active {
            write(&active.table, &active.running.shared);
        }
        DONE
    }

    fn activate(&mut self) -> u32 {
        // A driver that activates twice wants what is in memory now.
        self.quiesce();
        match self.try_activate(Position::FirstDescriptor) {
            Ok(()) => DONE,
            Err(refused) => {
                self.log_refusal(&refused);
                REFUSED
            }
        }
    }

    /// Continues a previous daemon's activation, from what is in memory and where it was in the rings.
    pub fn resume_activation(&mut self) -> Result<(), String> {
        self.try_activate(Position::Checkpoint).map_err(|refused| refused.to_string())?;
        if self.active.is_none() {
            return Err("positions in the rings are not known".into());
        }
        // What was raised may not have arrived.
        self.vectors.raise_all();
        Ok(())
    }

    fn try_activate(&mut self, position: Position) -> Result<(), RefusedActivation> {
        if !self.space.bus_master() {
            return Err(RefusedActivation::NotBusMaster);
        }
        let (revision, chosen) = (self.revision(), self.regs.revision.is_some());
        let rules = Rules { revision, chosen, max_queues: self.config.max_queues };
        let memory = self.memory.clone();
        let checked = activate::check(&memory, self.regs.shared, &rules)?;
        let Checked { area, table, driver, interrupts, mtu, tx, rx } = checked;
        let first = rx.first().map_or(0, |queue| usize::from(queue.vector));
        let level = interrupts.levels + first;
        let config = DriverConfig::new(&memory, &driver, activate::byte(&area, level));
        let live = config.live(&self.context(revision, rx.len()));
        let shared = Arc::new(Shared {
            live: Mutex::new(live),
            tx_stats: tx.iter().map(|_| Default::default()).collect(),
            rx_stats: rx.iter().map(|_| Default::default()).collect(),
            tx_errors: tx.iter().map(|_| Default::default()).collect(),
            rx_errors: rx.iter().map(|_| Default::default()).collect(),
            area,
            vectors: self.vectors.clone(),
            event_vector: interrupts.event,
            failed: AtomicBool::new(false),
        });
        // Some drivers preset `stopped`; it is the device's to set.
        stats::write_status(&table, &shared);
        self.vectors.arm(interrupts.count, interrupts.auto_mask);
        let running = Running { shared: shared.clone(), control: interrupts.control };
        let doorbell = self.doorbell(revision, tx.len() as u8);
        self.config.handle.activated(running.clone(), mtu);
        let setup = Setup {
            revision,
            memory: memory.clone(),
            mtu: mtu.min(self.config.mtu),
            max_rx_sg: driver.max_rx_sg.get(),
            rx_depth: self.config.profile.rx_depth(),
            tx,
            rx,
            shared,
            doorbell: doorbell.clone(),
            positions: self.positions.clone(),
        };
        let stats = self.frames.stats(self.port);
        let port = match position {
            Position::FirstDescriptor => {
                doorbell.iter().for_each(|doorbell| doorbell.clear_mapped());
                NicPort::new(setup, stats)
            }
            Position::Checkpoint => match NicPort::restored(setup, stats) {
                Some(port) => port,
                None => {
                    running.raise(event::TX_QUEUE | event::RX_QUEUE);
                    self.config.handle.quiesced();
                    self.vectors.quiesce();
                    return Ok(());
                }
            },
        };
        self.active = Some(Active { running, memory, table, config, level, revision, doorbell });
        self.stats().activations.inc();
        tracing::debug!(mac = %self.config.mac, revision, mtu, view = ?self.config.handle.view(), "active");
        self.frames.attach(self.port, Box::new(port));
        Ok(())
    }

    /// Re-reads what the command speaks of. Nothing to do before activation, which reads everything.
    fn update(&mut self, command: Command) {
        let Some(active) = &mut self.active else { return };
        let driver = activate::snapshot(&active.running.shared.area);
        let (memory, config) = (&active.memory, &mut active.config);
        let mut found = true;
        match command {
            Command::UpdateRxMode => config.update_rx_mode(&driver),
            Command::UpdateMacFilters => found = config.update_multicast(memory, &driver),
            Command::UpdateVlanFilters => config.update_vlans(&driver),
            Command::UpdateRss => config.update_rss(memory, &driver),
            Command::UpdateFeatures => config.update_features(&driver),
            _ => config.level = activate::byte(&active.running.shared.area, active.level),
        }
        if !found {
            self.stats().bad_addresses.inc();
        }
        self.publish();
    }

    /// Arguments of a command; they are there only while it runs.
    fn arguments(&self) -> Option<[u8; 16]> {
        self.with_area(|area| {
            let mut arguments = [0; 16];
            area.read(at::COMMAND_INFO, &mut arguments);
            arguments
        })
    }

    /// The block that the arguments point to, if it has room for a scheme.
    fn coalesce_block(&self) -> Option<BlockRef> {
        let block = BlockRef::read_from_bytes(&self.arguments()?).ok()?;
        (block.len.get() as usize >= size_of::<Coalesce>()).then_some(block)
    }

    fn set_coalesce(&mut self) {
        let Some(block) = self.coalesce_block() else { return };
        let mut scheme = Coalesce::new_zeroed();
        if self.memory.read(block.addr.get(), scheme.as_mut_bytes()).is_err() {
            self.stats().bad_addresses.inc();
            return;
        }
        self.regs.coalesce = Some(scheme);
        self.publish();
    }

    /// A driver that was given nothing shows moderation as switched off.
    fn get_coalesce(&self) -> u32 {
        let Some(block) = self.coalesce_block() else { return DONE };
        let scheme = self.regs.coalesce.unwrap_or(Coalesce::new(Coalesce::ADAPTIVE, [0; 3]));
        if self.memory.write(block.addr.get(), scheme.as_bytes()).is_err() {
            self.stats().bad_addresses.inc();
        }
        DONE
    }

    /// The supported part of what is asked for: drivers read back what they got.
    fn set_rss_fields(&mut self) {
        let Some([a, b, c, d, ..]) = self.arguments() else { return };
        self.regs.rss_fields = u32::from_le_bytes([a, b, c, d]) & rss::ALL_FIELDS;
        self.publish();
    }
}
