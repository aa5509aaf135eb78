//! One front end's requests, carried out on one device.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlane_device::virtio::log::DirtyLog;
use vmlane_device::virtio::queue::{Record, recover};
use vmlane_device::virtio::vhost::{Lines as _, RingSetup, Setup, VhostDevice};
use vmlane_state::Scope;
use vmlane_wire::vhost_user::{
    ConfigSpace, InflightArea, LogBase, MAX_CONFIG, MAX_FDS, MemoryRegion, MemoryTable, NO_FD, OneRegion,
    RING_INDEX, RingAddress, RingState, protocol, request,
};
use vmlane_wire::virtio::{MAX_RING, feature};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::agreed::{Agreed, inflight_name, log_name};
use super::error::RequestError;
use super::inbox::Message;
use super::lines::{Line, RingLines, is_usable};
use super::memory::{MAX_SLOTS, Memory};
use super::shared::{self, Inflight};
use crate::handle::MemoryWatch;
use crate::kept::hold;
use crate::stats::SessionStats;

/// Protocol features on offer.
const PROTOCOL: u64 = protocol::MULTI_QUEUE
    | protocol::LOG_SHMFD
    | protocol::INFLIGHT_SHMFD
    | protocol::RARP
    | protocol::REPLY_ACK
    | protocol::NET_MTU
    | protocol::BACKEND_REQ
    | protocol::CONFIG
    | protocol::RESET_DEVICE
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::STATUS;

/// What a request that succeeded is answered with.
pub enum Answer {
    /// Nothing, unless the front end wants to be notified that it was done.
    Done,
    Payload(Vec<u8>),
    /// With a descriptor.
    File(Vec<u8>, OwnedFd),
}

/// Feature bits that sessions offer beside a device's.
const OFFERED: u64 = feature::PROTOCOL_FEATURES | feature::LOG_ALL;

/// Bytes of the answer that a request always gets.
pub fn answer_len(code: u32) -> Option<usize> {
    match code {
        request::GET_FEATURES
        | request::GET_PROTOCOL_FEATURES
        | request::GET_QUEUE_NUM
        | request::GET_MAX_MEM_SLOTS
        | request::GET_STATUS => Some(8),
        request::GET_INFLIGHT_FD => Some(size_of::<InflightArea>() + 4),
        request::GET_VRING_BASE => Some(size_of::<RingState>()),
        _ => None,
    }
}

pub fn answers_with_config(code: u32) -> bool {
    code == request::GET_CONFIG
}

/// Has all of it been on offer here, too?
pub fn check_offered(agreed: &Agreed, device: &dyn VhostDevice) -> Result<(), RequestError> {
    subset("features", agreed.features, device.features() | OFFERED)?;
    subset("protocol features", agreed.protocol, PROTOCOL).map(drop)
}

pub struct Requests<'d> {
    device: &'d mut dyn VhostDevice,
    lines: Arc<RingLines>,
    stats: Arc<SessionStats>,
    watch: Arc<MemoryWatch>,
    /// Where descriptors are held for the next daemon.
    scope: Scope,
    pub agreed: Agreed,
    /// Where a back end may ask the front end. Nothing is asked; but its end notifies User Mode Linux, which
    /// does not listen to its other socket, that the daemon is gone.
    questions: Option<OwnedFd>,
    /// The session is a previous daemon's, and no ring runs yet.
    waits: bool,
    /// All rings that were started ran in a previous daemon, and none has run here.
    resumed: bool,
}

impl<'d> Requests<'d> {
    pub fn new(
        device: &'d mut dyn VhostDevice,
        lines: Arc<RingLines>,
        stats: Arc<SessionStats>,
        watch: Arc<MemoryWatch>,
        scope: Scope,
    ) -> Requests<'d> {
        let agreed = Agreed::new(device.queues());
        let questions = None;
        Requests { device, lines, stats, watch, scope, agreed, questions, waits: false, resumed: false }
    }

    /// Continues a previous daemon's session. No ring runs before [`Requests::go`].
    pub fn resume(&mut self, agreed: Agreed, questions: Option<OwnedFd>) {
        (self.agreed, self.questions, self.waits) = (agreed, questions, true);
        let mut started = self.agreed.rings.iter().filter(|ring| ring.started);
        self.resumed = started.all(|ring| !ring.recovers);
        // All that have been reset, or never ran, are at their start.
        let positions = self.agreed.rings.iter().map(|ring| ring.position.load(Ordering::Acquire));
        let has_run = positions.into_iter().any(|position| position as u16 & 0x7fff != 0);
        self.stats.has_run.store(has_run, Ordering::Relaxed);
        self.note_memory();
    }

    /// Finds out how far a previous daemon's device came: requests may ask for it, or stop a ring, before any
    /// runs. `anew`: there are no records of it. A split ring shows it itself; a packed one does not, and
    /// breaks.
    pub fn recover(&mut self, anew: bool) {
        let packed = self.agreed.features & feature::PACKED != 0;
        for setup in self.setups().into_iter().flatten().filter(|_| anew) {
            let mut used = [0; 2];
            let read = self.agreed.memory.map.read(setup.device.saturating_add(2), &mut used);
            let known = read.is_ok() && !packed;
            let position = if known { u16::from_le_bytes(used).into() } else { u32::MAX };
            setup.position.store(position, Ordering::Release);
        }
    }

    /// True until [`Requests::go`], in a session of a previous daemon.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Rings may run from now on. All guests are called once, for a call may have been lost with the previous
    /// daemon.
    pub fn go(&mut self) {
        self.waits = false;
        self.change(|_| ());
        (0..self.agreed.rings.len()).for_each(|ring| self.lines.call(ring));
    }

    /// Was this protocol feature negotiated?
    pub fn agreed(&self, feature: u64) -> bool {
        self.agreed.protocol & feature != 0
    }

    pub fn memory_lost(&self) -> bool {
        self.agreed.memory_lost()
    }

    /// Other memory is in force; the device is notified of it afterwards.
    fn note_memory(&self) {
        self.stats.memory.note(&self.agreed.memory.map);
        self.watch.set(self.agreed.watch());
    }

    pub fn stop(&mut self) {
        self.device.stop();
    }

    /// The front end is gone.
    pub fn leave(&mut self) {
        self.device.stop();
        self.device.gone();
        self.lines.reset();
        (self.agreed, self.questions) = (Agreed::default(), None);
        self.stats.has_run.store(false, Ordering::Relaxed);
        self.note_memory();
    }

    pub fn handle(&mut self, message: Message) -> Result<Answer, RequestError> {
        let Message { header, payload, fds, .. } = message;
        let payload = &payload[..];
        match header.request.get() {
            request::GET_FEATURES => number(self.device.features() | OFFERED),
            request::SET_FEATURES => self.set_features(u64_of(payload)?),
            request::SET_OWNER => Ok(Answer::Done),
            request::RESET_OWNER | request::RESET_DEVICE => self.reset(),
            request::SET_MEM_TABLE => self.set_memory(payload, fds),
            request::ADD_MEM_REG => self.add_memory(payload, fds),
            request::REM_MEM_REG => self.remove_memory(payload),
            request::GET_MAX_MEM_SLOTS => number(MAX_SLOTS as u64),
            request::SET_VRING_NUM => self.set_size(fixed(payload)?.0),
            request::SET_VRING_ADDR => self.set_address(fixed(payload)?.0),
            request::SET_VRING_BASE => self.set_base(fixed(payload)?.0),
            request::GET_VRING_BASE => self.get_base(fixed(payload)?.0),
            request::SET_VRING_ENABLE => self.enable(fixed(payload)?.0),
            request::SET_VRING_KICK => self.set_line(Line::Kick, payload, fds),
            request::SET_VRING_CALL => self.set_line(Line::Call, payload, fds),
            request::SET_VRING_ERR => self.set_line(Line::Error, payload, fds),
            request::GET_PROTOCOL_FEATURES => number(PROTOCOL),
            request::SET_PROTOCOL_FEATURES => {
                self.agreed.protocol = subset("protocol features", u64_of(payload)?, PROTOCOL)?;
                Ok(Answer::Done)
            }
            request::GET_QUEUE_NUM => number(self.device.queues().into()),
            request::NET_SET_MTU => {
                let mtu = u64_of(payload)?;
                let good = u16::try_from(mtu).is_ok_and(|mtu| self.change(|this| this.device.set_mtu(mtu)));
                if good { Ok(Answer::Done) } else { Err(RequestError::Field { name: "MTU", value: mtu }) }
            }
            request::SEND_RARP => {
                // It names an address. What is announced is the one that the switch has for the port: a VMM
                // does not decide that.
                u64_of(payload)?;
                self.device.announce();
                Ok(Answer::Done)
            }
            request::SET_BACKEND_REQ_FD => {
                let fd = only(fds)?;
                if is_usable(&fd) {
                    hold(&self.scope, "s/back", &fd);
                }
                self.questions = Some(fd);
                Ok(Answer::Done)
            }
            request::GET_CONFIG => self.get_config(payload),
            request::SET_LOG_BASE => self.set_log(payload, fds),
            // No answer is needed: the front end reads the bitmap when it wants to know.
            request::SET_LOG_FD => Ok(Answer::Done),
            request::GET_INFLIGHT_FD => self.get_inflight(payload),
            request::SET_INFLIGHT_FD => self.set_inflight(payload, fds),
            request::SET_STATUS => {
                self.agreed.status = u64_of(payload)? as u8;
                Ok(Answer::Done)
            }
            request::GET_STATUS => number(self.agreed.status.into()),
            code => Err(RequestError::Unknown(code)),
        }
    }

    /// Stops the device, makes a change, and runs what can run then.
    fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        self.device.stop();
        let result = change(self);
        self.note_memory();
        if !self.waits {
            let rings = self.setups();
            let (features, memory) = (self.agreed.features, self.agreed.memory.map.clone());
            let resumed = std::mem::take(&mut self.resumed);
            if rings.iter().any(Option::is_some) {
                self.stats.has_run.store(true, Ordering::Relaxed);
            }
            self.device.run(Setup { features, memory, rings, resumed });
        }
        result
    }

    /// The rings that can run, each where it continues.
    fn setups(&mut self) -> Vec<Option<RingSetup>> {
        let features = self.agreed.features;
        let log = self.agreed.log().filter(|_| features & feature::LOG_ALL != 0).cloned();
        (0..self.agreed.rings.len()).map(|number| self.setup(number, log.clone())).collect()
    }

    #[expect(clippy::indexing_slicing, reason = "the caller counts the rings")]
    fn setup(&mut self, number: usize, log: Option<DirtyLog>) -> Option<RingSetup> {
        let record = self.record(number);
        let Agreed { features, memory, rings, .. } = &mut self.agreed;
        let ring = &mut rings[number];
        let setup = ring.setup(memory, record, log)?;
        let recovers = std::mem::take(&mut ring.recovers) | std::mem::take(&mut ring.continues);
        if recovers && let Some(position) = recover(&setup, *features, &memory.map) {
            ring.set_position(position);
        }
        Some(setup)
    }

    /// Where the positions of a ring are noted: by the device itself, or else in memory of the front end.
    fn record(&mut self, ring: usize) -> Option<Record> {
        let own = self.own_record(ring);
        own.or_else(|| self.agreed.record(ring, self.agreed.rings.get(ring)?.size))
    }

    fn own_record(&mut self, ring: usize) -> Option<Record> {
        let size = self.agreed.rings.get(ring)?.size;
        self.device.survival()?.record(ring, size).filter(|_| size > 0)
    }

    fn set_features(&mut self, features: u64) -> Result<Answer, RequestError> {
        let offered = self.device.features() | OFFERED;
        let features = subset("features", features, offered)?;
        self.change(|this| {
            this.agreed.features = features;
            if features & feature::PROTOCOL_FEATURES == 0 {
                // Without protocol features there is no SET_VRING_ENABLE: rings run as they are started.
                this.agreed.rings.iter_mut().for_each(|ring| ring.enabled = true);
            }
        });
        Ok(Answer::Done)
    }

    fn reset(&mut self) -> Result<Answer, RequestError> {
        self.stats.counts.resets.inc();
        self.stats.has_run.store(false, Ordering::Relaxed);
        self.device.stop();
        self.agreed.status = 0;
        self.resumed = false;
        (0..self.agreed.rings.len()).filter_map(|ring| self.record(ring)).for_each(|record| record.forget());
        for ring in &mut self.agreed.rings {
            (ring.started, ring.enabled) = (false, false);
            ring.set_position(0);
        }
        Ok(Answer::Done)
    }

    fn set_memory(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, RequestError> {
        let (table, rest) = fixed::<MemoryTable>(payload)?;
        let regions = table.regions.get() as usize;
        if regions > MAX_FDS {
            return Err(RequestError::Field { name: "number of memory regions", value: regions as u64 });
        }
        if fds.len() != regions {
            return Err(RequestError::Descriptors { have: fds.len(), need: regions });
        }
        let mut rest = rest;
        let mut memory = Memory::default();
        let kept: Vec<_> = fds.iter().map(OwnedFd::try_clone).collect();
        for fd in fds {
            let (region, behind) = fixed::<MemoryRegion>(rest)?;
            rest = behind;
            self.stats.counts.dma_maps.inc();
            memory = memory.with(region, fd, &self.stats.memory)?;
        }
        memory.names().zip(kept).for_each(|(name, fd)| self.hold(&name, fd));
        self.change(|this| this.agreed.memory = memory);
        Ok(Answer::Done)
    }

    fn add_memory(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, RequestError> {
        let (one, _) = fixed::<OneRegion>(payload)?;
        let fd = only(fds)?;
        self.stats.counts.dma_maps.inc();
        let kept = fd.try_clone();
        let memory = self.agreed.memory.with(&one.region, fd, &self.stats.memory)?;
        memory.names().last().into_iter().zip([kept]).for_each(|(name, fd)| self.hold(&name, fd));
        self.change(|this| this.agreed.memory = memory);
        Ok(Answer::Done)
    }

    fn remove_memory(&mut self, payload: &[u8]) -> Result<Answer, RequestError> {
        let (one, _) = fixed::<OneRegion>(payload)?;
        self.stats.counts.dma_unmaps.inc();
        let memory = self.agreed.memory.without(&one.region);
        let guest = one.region.guest.get();
        let memory = memory.ok_or(RequestError::Field { name: "memory region", value: guest })?;
        self.change(|this| this.agreed.memory = memory);
        Ok(Answer::Done)
    }

    fn ring(&self, index: u32) -> Result<usize, RequestError> {
        let found = (index as usize) < self.agreed.rings.len();
        found.then_some(index as usize).ok_or(RequestError::Field { name: "ring", value: index.into() })
    }

    /// A ring that does not run: it is stopped, or only disabled. A driver of User Mode Linux that is loaded
    /// anew sets up rings that the one before it has disabled and nothing more (`vu_del_vqs` in
    /// arch/um/drivers/virtio_uml.c).
    #[expect(clippy::indexing_slicing, reason = "`ring` has checked the index")]
    fn idle_ring(&self, index: u32) -> Result<usize, RequestError> {
        let index = self.ring(index)?;
        if self.agreed.rings[index].may_run() { Err(RequestError::Running(index)) } else { Ok(index) }
    }

    #[expect(clippy::indexing_slicing, reason = "`ring` has checked the index")]
    fn set_size(&mut self, state: &RingState) -> Result<Answer, RequestError> {
        let index = self.idle_ring(state.index.get())?;
        let size = state.number.get();
        let fits = (1..=u32::from(MAX_RING)).contains(&size);
        if !fits {
            return Err(RequestError::Field { name: "ring size", value: size.into() });
        }
        self.agreed.rings[index].size = size as u16;
        Ok(Answer::Done)
    }

    #[expect(clippy::indexing_slicing, reason = "`ring` has checked the index")]
    fn set_address(&mut self, address: &RingAddress) -> Result<Answer, RequestError> {
        let index = self.ring(address.index.get())?;
        // A front end repeats this for a running ring when dirty pages are to be logged.
        self.change(|this| this.agreed.rings[index].address = Some(*address));
        Ok(Answer::Done)
    }

    #[expect(clippy::indexing_slicing, reason = "`ring` has checked the index")]
    fn set_base(&mut self, state: &RingState) -> Result<Answer, RequestError> {
        let index = self.idle_ring(state.index.get())?;
        // The ring begins anew where the front end sets it: what the device has noted of it is over. The
        // front end's own record may be newer than what it sets.
        self.own_record(index).into_iter().for_each(|record| record.forget());
        self.resumed = false;
        let ring = &mut self.agreed.rings[index];
        ring.set_position(state.number.get());
        ring.recovers = true;
        Ok(Answer::Done)
    }

    #[expect(clippy::indexing_slicing, reason = "`ring` has checked the index")]
    fn get_base(&mut self, state: &RingState) -> Result<Answer, RequestError> {
        let index = self.ring(state.index.get())?;
        self.change(|this| this.agreed.rings[index].started = false);
        self.replace_line(Line::Kick, index, None)?;
        // Stopped in order: the front end knows the position from here on. A record of the device's own
        // stays: this may have to be answered again.
        if self.own_record(index).is_none() {
            self.record(index).into_iter().for_each(|record| record.forget());
        }
        let number = self.agreed.rings[index].position.load(Ordering::Acquire);
        let answer = RingState { index: state.index, number: number.into() };
        Ok(Answer::Payload(answer.as_bytes().to_vec()))
    }

    #[expect(clippy::indexing_slicing, reason = "`ring` has checked the index")]
    fn enable(&mut self, state: &RingState) -> Result<Answer, RequestError> {
        let index = self.ring(state.index.get())?;
        let enabled = state.number.get() != 0;
        if self.agreed.rings[index].enabled != enabled {
            self.change(|this| this.agreed.rings[index].enabled = enabled);
        }
        Ok(Answer::Done)
    }

    #[expect(clippy::indexing_slicing, reason = "`ring` has checked the index")]
    fn set_line(
        &mut self,
        line: Line,
        payload: &[u8],
        mut fds: Vec<OwnedFd>,
    ) -> Result<Answer, RequestError> {
        let word = u64_of(payload)?;
        let index = self.ring((word & RING_INDEX) as u32)?;
        let need = usize::from(word & NO_FD == 0);
        if fds.len() != need {
            return Err(RequestError::Descriptors { have: fds.len(), need });
        }
        self.replace_line(line, index, fds.pop())?;
        if line == Line::Kick && !self.agreed.rings[index].started {
            self.change(|this| {
                let ring = &mut this.agreed.rings[index];
                (ring.started, ring.recovers) = (true, true);
            });
        }
        Ok(Answer::Done)
    }

    fn replace_line(&self, line: Line, ring: usize, fd: Option<OwnedFd>) -> Result<(), RequestError> {
        let name = line.name(ring);
        let kept = fd.as_ref().map(OwnedFd::try_clone);
        self.lines.set(line, ring, fd)?;
        match kept {
            Some(fd) => self.hold(&name, fd),
            None => self.scope.remove(&name),
        }
        Ok(())
    }

    /// Holds what has been taken into use for the next daemon.
    fn hold(&self, name: &str, fd: io::Result<OwnedFd>) {
        match fd {
            Ok(fd) => hold(&self.scope, name, &fd),
            Err(error) => tracing::warn!(name, %error, "a descriptor cannot be held for the next daemon"),
        }
    }

    fn set_log(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, RequestError> {
        let (base, _) = fixed::<LogBase>(payload)?;
        let fd = only(fds)?;
        let log = shared::log(base, &fd)?;
        hold(&self.scope, &log_name(base), &fd);
        self.change(|this| this.agreed.log = Some((*base, log)));
        number(0)
    }

    fn get_inflight(&mut self, payload: &[u8]) -> Result<Answer, RequestError> {
        let (area, padding) = fixed::<InflightArea>(payload)?;
        let (answer, file) = Inflight::create(area, self.agreed.rings.len())?;
        // Front ends differ in whether they pad it, and want what they sent.
        let mut bytes = answer.as_bytes().to_vec();
        bytes.resize(bytes.len() + padding.len().min(4), 0);
        Ok(Answer::File(bytes, file))
    }

    fn set_inflight(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, RequestError> {
        let (area, _) = fixed::<InflightArea>(payload)?;
        let fd = only(fds)?;
        let inflight = Inflight::open(area, &fd, self.agreed.rings.len())?;
        hold(&self.scope, &inflight_name(area), &fd);
        self.change(|this| this.agreed.inflight = Some((*area, inflight)));
        Ok(Answer::Done)
    }

    #[expect(clippy::indexing_slicing, reason = "offset and size were checked against MAX_CONFIG")]
    fn get_config(&mut self, payload: &[u8]) -> Result<Answer, RequestError> {
        let (space, rest) = fixed::<ConfigSpace>(payload)?;
        let (offset, size) = (space.offset.get() as usize, space.size.get() as usize);
        let inside = size <= MAX_CONFIG && offset <= MAX_CONFIG - size && rest.len() == size;
        if !inside {
            return Err(RequestError::Field { name: "configuration space", value: size as u64 });
        }
        // What the device does not have reads as zeros.
        let mut config = self.device.config();
        config.resize(MAX_CONFIG, 0);
        let mut answer = space.as_bytes().to_vec();
        answer.extend_from_slice(&config[offset..offset + size]);
        Ok(Answer::Payload(answer))
    }
}

fn number(value: u64) -> Result<Answer, RequestError> {
    Ok(Answer::Payload(value.as_bytes().to_vec()))
}

/// The one descriptor that came along.
fn only(mut fds: Vec<OwnedFd>) -> Result<OwnedFd, RequestError> {
    let have = fds.len();
    match (fds.pop(), have) {
        (Some(fd), 1) => Ok(fd),
        _ => Err(RequestError::Descriptors { have, need: 1 }),
    }
}

fn subset(name: &'static str, value: u64, offered: u64) -> Result<u64, RequestError> {
    if value & !offered == 0 { Ok(value) } else { Err(RequestError::Field { name, value: value & !offered }) }
}

fn u64_of(payload: &[u8]) -> Result<u64, RequestError> {
    let bytes = payload.first_chunk::<8>().ok_or(RequestError::Payload { have: payload.len(), need: 8 })?;
    Ok(u64::from_le_bytes(*bytes))
}

/// The layout that a payload begins with, and what follows it.
fn fixed<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    payload: &[u8],
) -> Result<(&T, &[u8]), RequestError> {
    T::ref_from_prefix(payload)
        .map_err(|_| RequestError::Payload { have: payload.len(), need: size_of::<T>() })
}
