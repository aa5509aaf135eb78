//! What the next daemon needs of a NIC, and how it continues with it: two files whose pages it maps again, and two
//! records (registers, configuration space). Positions in the rings are the port's (`port/checkpoint.rs`).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vmlane_mem::Window;
use vmlane_state::{Found, Journal, Reader, Unusable, Writer};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vmxnet3::regs::BAR0_SIZE;
use vmlane_wire::vmxnet3::shared::Coalesce;
use zerocopy::{FromBytes, IntoBytes};

use super::device::{POSITIONS, Registers, Vmxnet3Device};
use super::{port, rss};
use crate::pci::Checkpoint;

/// Kinds of the device's records.
const REGISTERS: u32 = 256;
const CONFIG: u32 = 257;
/// Names of the device's files.
const PAGE: &str = "bar0";
const RINGS: &str = "rings";

impl Vmxnet3Device {
    pub(super) fn checkpoint_files(&self) -> Vec<(&'static str, OwnedFd)> {
        let files = [(PAGE, &self.page_file), (RINGS, &self.positions_file)];
        files.into_iter().filter_map(|(name, file)| Some((name, file.try_clone().ok()?))).collect()
    }

    pub(super) fn adopt_files(&mut self, files: &mut Found) {
        if let Some(file) = files.take(PAGE).filter(|file| holds(file, BAR0_SIZE))
            && let Ok(page) = Window::over_file(&file, BAR0_SIZE)
        {
            self.page = Arc::new(page);
            self.page_file = file;
            self.vectors = Arc::new(self.vectors.over(self.page.clone()));
        }
        if let Some(file) = files.take(RINGS).filter(|file| holds(file, POSITIONS))
            && let Ok(positions) = Window::over_file(&file, POSITIONS)
        {
            self.positions = Arc::new(positions);
            self.positions_file = file;
        } else {
            port::forget(&self.positions);
        }
    }

    /// Stages what has changed since the last call.
    pub(super) fn record_changes(&mut self, log: &Journal) {
        let mut out = Writer::new();
        let regs = &self.regs;
        out.option(regs.revision.map(u64::from)).u32(regs.shared_low).u64(regs.shared).u32(regs.result);
        out.u32(regs.mac_low).bytes(&regs.mac.0).u32(regs.granted).u32(regs.rss_fields);
        out.bytes(regs.coalesce.as_ref().map_or(&[], |scheme| scheme.as_bytes()));
        out.flag(self.active.is_some());
        let [registers, config] = &mut self.recorded;
        if *registers != out.0 {
            log.stage((REGISTERS, 0, 0), &out.0);
            *registers = out.0;
        }
        if config != self.config.bytes() {
            log.stage((CONFIG, 0, 0), self.config.bytes());
            *config = self.config.bytes().to_vec();
        }
    }

    /// Continues from a previous daemon's records, if they are sound.
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint<'_>) -> Result<(), Unusable> {
        if let Some(bytes) = checkpoint.record(CONFIG) {
            self.config.restore(bytes).ok_or(Unusable::Record { kind: CONFIG })?;
        }
        // No record: the device had not been used yet.
        let Some(bytes) = checkpoint.record(REGISTERS) else { return Ok(()) };
        let mut from = Reader::new(bytes);
        let active = self.restore_registers(&mut from).ok_or(Unusable::Record { kind: REGISTERS })?;
        self.nic.handle.set_identity(self.regs.revision, self.regs.mac);
        if active && let Err(error) = self.resume_activation() {
            // The driver was told by an event, where that was possible; it resets the device then.
            tracing::warn!(mac = %self.nic.mac, error, "a previous daemon's activation is not continued");
        }
        Ok(())
    }

    /// The registers of a previous daemon; whether it was active.
    fn restore_registers(&mut self, from: &mut Reader<'_>) -> Option<bool> {
        let revision = from.option()?.map(|revision| revision as u8);
        let (shared_low, shared, result) = (from.u32()?, from.u64()?, from.u32()?);
        let (mac_low, mac) = (from.u32()?, Mac(from.bytes()?.try_into().ok()?));
        let (granted, rss_fields) = (from.u32()?, from.u32()?);
        let coalesce = match from.bytes()? {
            [] => None,
            bytes => Some(Coalesce::read_from_bytes(bytes).ok()?),
        };
        let active = from.flag()?;
        from.end()?;
        let known = revision.is_none_or(|revision| (1..=self.nic.profile.revision()).contains(&revision));
        if !known || !mac.is_unicast() {
            return None;
        }
        self.regs = Registers {
            revision,
            shared_low,
            shared,
            result,
            mac_low,
            mac,
            granted: granted & self.nic.profile.capabilities(),
            rss_fields: rss_fields & rss::ALL_FIELDS,
            coalesce,
        };
        Some(active)
    }
}

/// Does a file have so many bytes?
fn holds(file: &OwnedFd, bytes: u64) -> bool {
    rustix::fs::fstat(file).is_ok_and(|state| u64::try_from(state.st_size).is_ok_and(|have| have >= bytes))
}
