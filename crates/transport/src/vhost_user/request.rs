//! One front end's requests, carried out on one device.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vmlane_device::virtio::log::DirtyLog;
use vmlane_device::virtio::queue::{Record, recover};
use vmlane_device::virtio::vhost::{Setup, VhostDevice};
use vmlane_mem::MemoryMap;
use vmlane_wire::vhost_user::{
    ConfigSpace, InflightArea, LogBase, MAX_CONFIG, MAX_FDS, MemoryRegion, MemoryTable, NO_FD, OneRegion,
    RING_INDEX, RingAddress, RingState, protocol, request,
};
use vmlane_wire::virtio::{MAX_RING, feature};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::RequestError;
use super::inbox::Message;
use super::lines::{Line, RingLines};
use super::memory::{MAX_SLOTS, Memory};
use super::rings::Ring;
use super::shared::{self, Inflight};
use crate::handle::MemoryWatch;
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
    /// Nothing, unless the front end wants to hear that it was done.
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

pub struct Requests<'d> {
    device: &'d mut dyn VhostDevice,
    lines: Arc<RingLines>,
    stats: Arc<SessionStats>,
    watch: Arc<MemoryWatch>,
    features: u64,
    protocol: u64,
    status: u8,
    memory: Memory,
    rings: Vec<Ring>,
    inflight: Option<Inflight>,
    log: Option<DirtyLog>,
    /// Where a back end may ask the front end. Nothing is asked; but its end tells User Mode Linux, which does
    /// not listen to its other socket, that the daemon is gone.
    questions: Option<OwnedFd>,
}

impl<'d> Requests<'d> {
    pub fn new(
        device: &'d mut dyn VhostDevice,
        lines: Arc<RingLines>,
        stats: Arc<SessionStats>,
        watch: Arc<MemoryWatch>,
    ) -> Requests<'d> {
        let rings = (0..device.queues()).map(|_| Ring::default()).collect();
        Requests {
            device,
            lines,
            stats,
            watch,
            features: 0,
            protocol: 0,
            status: 0,
            memory: Memory::default(),
            rings,
            inflight: None,
            log: None,
            questions: None,
        }
    }

    /// Was this protocol feature negotiated?
    pub fn agreed(&self, feature: u64) -> bool {
        self.protocol & feature != 0
    }

    pub fn memory_lost(&self) -> bool {
        memory_lost(&self.memory.map, self.inflight.as_ref(), self.log.as_ref())
    }

    /// Other memory is in force; the device hears of it afterwards.
    fn note_memory(&self) {
        self.stats.memory.note(&self.memory.map);
        let (map, inflight, log) = (self.memory.map.clone(), self.inflight.clone(), self.log.clone());
        self.watch.set(move || memory_lost(&map, inflight.as_ref(), log.as_ref()));
    }

    pub fn stop(&mut self) {
        self.device.stop();
    }

    /// The front end is gone.
    pub fn leave(&mut self) {
        self.device.stop();
        self.device.gone();
        self.lines.reset();
        self.memory = Memory::default();
        (self.inflight, self.log, self.questions) = (None, None, None);
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
                self.protocol = subset("protocol features", u64_of(payload)?, PROTOCOL)?;
                Ok(Answer::Done)
            }
            request::GET_QUEUE_NUM => number(self.device.queues().into()),
            request::NET_SET_MTU => {
                let mtu = u64_of(payload)?;
                let good = u16::try_from(mtu).is_ok_and(|mtu| self.change(|this| this.device.set_mtu(mtu)));
                if good { Ok(Answer::Done) } else { Err(RequestError::Field { name: "MTU", value: mtu }) }
            }
            request::SEND_RARP => {
                // It names an address. What is announced is the one that the switch has for the port: a VMM has no say in that.
                u64_of(payload)?;
                self.device.announce();
                Ok(Answer::Done)
            }
            request::SET_BACKEND_REQ_FD => {
                self.questions = Some(only(fds)?);
                Ok(Answer::Done)
            }
            request::GET_CONFIG => self.get_config(payload),
            request::SET_LOG_BASE => self.set_log(payload, fds),
            // No answer is needed: the front end reads the bitmap when it wants to know.
            request::SET_LOG_FD => Ok(Answer::Done),
            request::GET_INFLIGHT_FD => self.get_inflight(payload),
            request::SET_INFLIGHT_FD => self.set_inflight(payload, fds),
            request::SET_STATUS => {
                self.status = u64_of(payload)? as u8;
                Ok(Answer::Done)
            }
            request::GET_STATUS => number(self.status.into()),
            code => Err(RequestError::Unknown(code)),
        }
    }

    /// Stops the device, makes a change, and runs what can run then.
    fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        self.device.stop();
        let result = change(self);
        self.note_memory();
        let log = self.log.as_ref().filter(|_| self.features & feature::LOG_ALL != 0);
        let mut rings = Vec::with_capacity(self.rings.len());
        for (number, ring) in self.rings.iter_mut().enumerate() {
            let record = self.inflight.as_ref().and_then(|inflight| inflight.record(number, ring.size));
            let setup = ring.setup(&self.memory, record, log.cloned());
            if let Some(setup) = setup.as_ref().filter(|_| std::mem::take(&mut ring.recovers))
                && let Some(position) = recover(setup, self.features, &self.memory.map)
            {
                ring.set_position(position);
            }
            rings.push(setup);
        }
        let memory = self.memory.map.clone();
        self.device.run(Setup { features: self.features, memory, rings, resumed: false });
        result
    }

    fn set_features(&mut self, features: u64) -> Result<Answer, RequestError> {
        let offered = self.device.features() | OFFERED;
        let features = subset("features", features, offered)?;
        self.change(|this| {
            this.features = features;
            if features & feature::PROTOCOL_FEATURES == 0 {
                // Without protocol features there is no SET_VRING_ENABLE: rings run as they are started.
                this.rings.iter_mut().for_each(|ring| ring.enabled = true);
            }
        });
        Ok(Answer::Done)
    }

    fn reset(&mut self) -> Result<Answer, RequestError> {
        self.stats.counts.resets.inc();
        self.device.stop();
        self.status = 0;
        self.records().for_each(|record| record.forget());
        for ring in &mut self.rings {
            (ring.started, ring.enabled) = (false, false);
            ring.set_position(0);
        }
        Ok(Answer::Done)
    }

    /// What is noted of chains in flight, of all rings.
    fn records(&self) -> impl Iterator<Item = Record> {
        let rings = self.rings.iter().enumerate();
        rings.filter_map(|(number, ring)| self.inflight.as_ref()?.record(number, ring.size))
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
        for fd in fds {
            let (region, behind) = fixed::<MemoryRegion>(rest)?;
            rest = behind;
            self.stats.counts.dma_maps.inc();
            memory = memory.with(region, fd, &self.stats.memory)?;
        }
        self.change(|this| this.memory = memory);
        Ok(Answer::Done)
    }

    fn add_memory(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, RequestError> {
        let (one, _) = fixed::<OneRegion>(payload)?;
        let fd = only(fds)?;
        self.stats.counts.dma_maps.inc();
        let memory = self.memory.with(&one.region, fd, &self.stats.memory)?;
        self.change(|this| this.memory = memory);
        Ok(Answer::Done)
    }

    fn remove_memory(&mut self, payload: &[u8]) -> Result<Answer, RequestError> {
        let (one, _) = fixed::<OneRegion>(payload)?;
        self.stats.counts.dma_unmaps.inc();
        let memory = self.memory.without(&one.region);
        let guest = one.region.guest.get();
        let memory = memory.ok_or(RequestError::Field { name: "memory region", value: guest })?;
        self.change(|this| this.memory = memory);
        Ok(Answer::Done)
    }

    fn ring(&self, index: u32) -> Result<usize, RequestError> {
        let found = (index as usize) < self.rings.len();
        found.then_some(index as usize).ok_or(RequestError::Field { name: "ring", value: index.into() })
    }

    /// A ring that does not run: it is stopped, or only disabled. A driver of User Mode Linux that is loaded anew sets up rings
    /// that the one before it has disabled and nothing more (`vu_del_vqs` in arch/um/drivers/virtio_uml.c).
    #[expect(clippy::indexing_slicing, reason = "`ring` has checked the index")]
    fn idle_ring(&mut self, index: u32) -> Result<&mut Ring, RequestError> {
        let index = self.ring(index)?;
        let ring = &mut self.rings[index];
        if ring.may_run() { Err(RequestError::Running(index)) } else { Ok(ring) }
    }

    fn set_size(&mut self, state: &RingState) -> Result<Answer, RequestError> {
        let ring = self.idle_ring(state.index.get())?;
        let size = state.number.get();
        let fits = (1..=u32::from(MAX_RING)).contains(&size);
        if !fits {
            return Err(RequestError::Field { name: "ring size", value: size.into() });
        }
        ring.size = size as u16;
        Ok(Answer::Done)
    }

    #[expect(clippy::indexing_slicing, reason = "`ring` has checked the index")]
    fn set_address(&mut self, address: &RingAddress) -> Result<Answer, RequestError> {
        let index = self.ring(address.index.get())?;
        // A front end repeats this for a running ring when dirty pages are to be logged.
        self.change(|this| this.rings[index].address = Some(*address));
        Ok(Answer::Done)
    }

    fn set_base(&mut self, state: &RingState) -> Result<Answer, RequestError> {
        let ring = self.idle_ring(state.index.get())?;
        ring.set_position(state.number.get());
        ring.recovers = true;
        Ok(Answer::Done)
    }

    #[expect(clippy::indexing_slicing, reason = "`ring` has checked the index")]
    fn get_base(&mut self, state: &RingState) -> Result<Answer, RequestError> {
        let index = self.ring(state.index.get())?;
        self.change(|this| this.rings[index].started = false);
        self.lines.set(Line::Kick, index, None)?;
        // Stopped in order: the front end knows the position from here on.
        let size = self.rings[index].size;
        if let Some(record) = self.inflight.as_ref().and_then(|inflight| inflight.record(index, size)) {
            record.forget();
        }
        let number = self.rings[index].position.load(std::sync::atomic::Ordering::Acquire);
        let answer = RingState { index: state.index, number: number.into() };
        Ok(Answer::Payload(answer.as_bytes().to_vec()))
    }

    #[expect(clippy::indexing_slicing, reason = "`ring` has checked the index")]
    fn enable(&mut self, state: &RingState) -> Result<Answer, RequestError> {
        let index = self.ring(state.index.get())?;
        let enabled = state.number.get() != 0;
        if self.rings[index].enabled != enabled {
            self.change(|this| this.rings[index].enabled = enabled);
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
        self.lines.set(line, index, fds.pop())?;
        if line == Line::Kick && !self.rings[index].started {
            self.change(|this| (this.rings[index].started, this.rings[index].recovers) = (true, true));
        }
        Ok(Answer::Done)
    }

    fn set_log(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, RequestError> {
        let (base, _) = fixed::<LogBase>(payload)?;
        let fd = only(fds)?;
        let log = shared::log(base, &fd)?;
        self.change(|this| this.log = Some(log));
        number(0)
    }

    fn get_inflight(&mut self, payload: &[u8]) -> Result<Answer, RequestError> {
        let (area, padding) = fixed::<InflightArea>(payload)?;
        let (answer, file) = Inflight::create(area, self.rings.len())?;
        // Front ends differ in whether they pad it, and want what they sent.
        let mut bytes = answer.as_bytes().to_vec();
        bytes.resize(bytes.len() + padding.len().min(4), 0);
        Ok(Answer::File(bytes, file))
    }

    fn set_inflight(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, RequestError> {
        let (area, _) = fixed::<InflightArea>(payload)?;
        let fd = only(fds)?;
        let inflight = Inflight::open(area, &fd, self.rings.len())?;
        self.change(|this| this.inflight = Some(inflight));
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

fn memory_lost(map: &MemoryMap, inflight: Option<&Inflight>, log: Option<&DirtyLog>) -> bool {
    map.poisoned() || inflight.is_some_and(Inflight::poisoned) || log.is_some_and(DirtyLog::poisoned)
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
