//! What the next daemon needs of a NIC, and how it continues with it: two files whose pages it maps again,
//! and two records (registers, configuration space). Positions in the rings are the port's
//! (`port/checkpoint.rs`).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use vmlane_mem::Window;
use vmlane_state::{Found, Journal, Reader, Unusable, Writer};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vmxnet3::regs::{BAR0_SIZE, LARGE_BAR0_SIZE};
use vmlane_wire::vmxnet3::shared::Coalesce;
use zerocopy::{FromBytes, IntoBytes};

use super::config::MAX_QUEUES;
use super::nic::{Nic, Registers};
use super::pci::config_space;
use super::profile::Profile;
use super::{port, rss};
use crate::pci::Checkpoint;

/// Kinds of the device's records.
const REGISTERS: u32 = 256;
const CONFIG: u32 = 257;
/// Names of the device's files: registers and interrupt masks of the whole BAR 0; positions in the rings of
/// all queues, receive queues up to twice as many.
const PAGE: &str = "bar0";
const RINGS: &str = "rings";
const POSITIONS: u64 = 4096;
const _: () = assert!(port::positions(3 * MAX_QUEUES as usize) <= POSITIONS as usize);

/// What is kept for the next daemon.
pub struct Kept {
    pub page: OwnedFd,
    positions: OwnedFd,
    /// As recorded last.
    registers: Vec<u8>,
    config: Vec<u8>,
}

impl Kept {
    /// Makes the files; they are mapped as a NIC's BAR 0 of so many bytes and its positions.
    pub fn new(bar0: u64) -> io::Result<(Arc<Window>, Arc<Window>, Kept)> {
        let (page, page_file) = Window::of_file("vmxnet3-bar0", bar0)?;
        let (positions, positions_file) = Window::of_file("vmxnet3-rings", POSITIONS)?;
        let (registers, config) = (Vec::new(), Vec::new());
        let kept = Kept { page: page_file, positions: positions_file, registers, config };
        Ok((Arc::new(page), Arc::new(positions), kept))
    }

    pub fn files(&self) -> Vec<(&'static str, OwnedFd)> {
        let files = [(PAGE, &self.page), (RINGS, &self.positions)];
        files.into_iter().filter_map(|(name, file)| Some((name, file.try_clone().ok()?))).collect()
    }

    /// Takes a previous daemon's files in place of those of `nic`.
    pub fn adopt(&mut self, nic: &mut Nic, files: &mut Found) {
        if let Some(file) = files.take(PAGE) {
            self.adopt_page(nic, file);
        }
        if let Some(file) = files.take(RINGS).filter(|file| holds(file, POSITIONS))
            && let Ok(positions) = Window::over_file(&file, POSITIONS)
        {
            nic.positions = Arc::new(positions);
            self.positions = file;
        } else {
            port::forget(&nic.positions);
        }
    }

    /// BAR 0 keeps the size that the VMM knows.
    fn adopt_page(&mut self, nic: &mut Nic, file: OwnedFd) {
        let size = [LARGE_BAR0_SIZE, BAR0_SIZE].into_iter().find(|&size| holds(&file, size));
        let page = size.and_then(|size| Window::over_file(&file, size).ok());
        let Some(page) = page else { return };
        if let Ok(space) = config_space(&nic.config, page.len() as u64) {
            nic.space = space;
        }
        nic.page = Arc::new(page);
        nic.vectors = Arc::new(nic.vectors.over(nic.page.clone()));
        self.page = file;
    }

    /// Stages what has changed since the last call.
    pub fn record(&mut self, nic: &Nic, log: &Journal) {
        let mut out = Writer::new();
        let regs = &nic.regs;
        out.option(regs.revision.map(u64::from)).u32(regs.shared_low).u64(regs.shared).u32(regs.result);
        out.u32(regs.mac_low).bytes(&regs.mac.0).u32(regs.granted).u32(regs.rss_fields);
        out.bytes(regs.coalesce.as_ref().map_or(&[], |scheme| scheme.as_bytes()));
        out.flag(nic.active.is_some());
        if self.registers != out.0 {
            log.stage((REGISTERS, 0, 0), &out.0);
            self.registers = out.0;
        }
        if self.config != nic.space.bytes() {
            log.stage((CONFIG, 0, 0), nic.space.bytes());
            self.config = nic.space.bytes().to_vec();
        }
    }
}

/// Continues from a previous daemon's records, if they are sound.
pub fn restore(nic: &mut Nic, checkpoint: &Checkpoint<'_>) -> Result<(), Unusable> {
    if let Some(bytes) = checkpoint.record(CONFIG) {
        nic.space.restore(bytes).ok_or(Unusable::Record { kind: CONFIG })?;
    }
    // No record: the device had not been used yet.
    let Some(bytes) = checkpoint.record(REGISTERS) else { return Ok(()) };
    let restored = registers(&mut Reader::new(bytes), nic.offered());
    let (regs, active) = restored.ok_or(Unusable::Record { kind: REGISTERS })?;
    nic.regs = regs;
    nic.config.handle.set_identity(nic.regs.revision, nic.regs.mac);
    if active && let Err(error) = nic.resume_activation() {
        // The driver was notified by an event, where that was possible; it resets the device then.
        tracing::warn!(mac = %nic.config.mac, error, "a previous daemon's activation is not continued");
    }
    Ok(())
}

/// The registers of a previous daemon; whether it was active. `offered`: the first capability word.
fn registers(from: &mut Reader<'_>, offered: u32) -> Option<(Registers, bool)> {
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
    // Whatever is offered to the next driver: this one has chosen already.
    let known = revision.is_none_or(|revision| (1..=Profile::NEWEST).contains(&revision));
    if !known || !mac.is_unicast() {
        return None;
    }
    let granted = granted & offered;
    let rss_fields = rss_fields & rss::ALL_FIELDS;
    let regs =
        Registers { revision, shared_low, shared, result, mac_low, mac, granted, rss_fields, coalesce };
    Some((regs, active))
}

/// Does a file have so many bytes?
fn holds(file: &OwnedFd, bytes: u64) -> bool {
    rustix::fs::fstat(file).is_ok_and(|state| u64::try_from(state.st_size).is_ok_and(|have| have >= bytes))
}
