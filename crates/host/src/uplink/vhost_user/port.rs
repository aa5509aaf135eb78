//! The rings of a connection as a [`FramePort`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use vmlane_port::{
    DropReason, Filter, FramePort, FramePortInfo, Needs, PortStats, Refused, RxCapabilities, RxFrame, Sign,
    Ticked, Token, TxFrame, WakeUp, deliver_each,
};
use vmlane_transport::{EventFd, EventFdOwner};
use vmlane_wire::ethernet::{HEADER, TAG};
use vmlane_wire::virtio::net_feature;

use super::incoming::{Incoming, LOOKAHEAD};
use super::memory::Memory;
use super::outgoing::{Outgoing, Rules};
use super::ring::{Broken, Ring};

/// Bytes of the longest super-frame: what an IPv4 length can express, behind an Ethernet header.
const AGGREGATE: usize = HEADER + u16::MAX as usize;
/// Frames delivered before they are made visible, at most: the peer may work on the first ones while others
/// arrive.
const VISIBLE: u32 = 32;

/// How a connection's port reports that it cannot go on.
#[derive(Debug)]
pub struct Link {
    /// Readable from then on. No other process has it.
    wake: OwnedFd,
    broken: OnceLock<Broken>,
}

impl Link {
    pub fn new() -> io::Result<Link> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Link { wake, broken: OnceLock::new() })
    }

    /// Why the port cannot go on.
    pub fn broken(&self) -> Option<Broken> {
        self.broken.get().copied()
    }

    #[cold]
    fn fail(&self, broken: Broken) {
        if self.broken.set(broken).is_ok() {
            // The counter of an event fd that is used once is not full.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The event fds of a connection's rings, by ring. The peer has them, too, so they are never read, and raised
/// with care.
#[derive(Debug)]
pub struct Lines {
    pub kicks: [EventFd; 2],
    pub calls: [OwnedFd; 2],
    /// Readable after a call of the first ring, until it was polled.
    doorbell: OwnedFd,
}

impl Lines {
    pub fn new(owner: &Arc<EventFdOwner>) -> io::Result<Lines> {
        let event_fd = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let kick = || EventFd::new(event_fd()?, owner).map_err(io::Error::other);
        let (kicks, calls) = ([kick()?, kick()?], [event_fd()?, event_fd()?]);
        let doorbell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let [calls_of_incoming, _] = &calls;
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&doorbell, calls_of_incoming, epoll::EventData::new_u64(0), events)?;
        Ok(Lines { kicks, calls, doorbell })
    }

    fn clear(&self) {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::<epoll::Event>::with_capacity(1);
        // An error leaves it readable, which costs a vain poll.
        let _ = epoll::wait(&self.doorbell, spare_capacity(&mut events), Some(&at_once));
    }
}

/// What one worker owns while the connection lasts.
pub struct VhostUserPort {
    incoming: Incoming,
    outgoing: Outgoing,
    capabilities: RxCapabilities,
    filter: Filter,
    lines: Lines,
    link: Arc<Link>,
    stats: Arc<PortStats>,
    broken: bool,
    /// Frames delivered since they were last made visible.
    hidden: u32,
}

impl VhostUserPort {
    /// The port of a connection that has agreed on `features`, for packets of at most `mtu` bytes. No peer
    /// may have seen `memory` before.
    pub fn new(
        memory: &Memory,
        (features, mtu): (u64, u16),
        lines: Lines,
        link: Arc<Link>,
        stats: Arc<PortStats>,
    ) -> io::Result<VhostUserPort> {
        let [incoming, outgoing] = &memory.places;
        let ring = |place| {
            let (areas, buffers) = memory.areas(place).map_err(io::Error::other)?;
            Ok::<_, io::Error>((Ring::new(areas, &buffers), buffers))
        };
        let capabilities = capabilities(features, mtu);
        let RxCapabilities { frame, tso4, tso6, uso4, partial_frame, .. } = capabilities;
        let rules =
            Rules { frame: frame + 2 * TAG, checksum: partial_frame, aggregates: tso4 || tso6 || uso4 };
        let (ring_in, buffers_in) = ring(incoming)?;
        let (ring_out, buffers_out) = ring(outgoing)?;
        let mut port = VhostUserPort {
            incoming: Incoming::new(ring_in, buffers_in, &memory.map, features),
            outgoing: Outgoing::new(ring_out, buffers_out, &memory.map, rules),
            capabilities,
            filter: Filter::open(),
            lines,
            link,
            stats,
            broken: false,
            hidden: 0,
        };
        // The kicks that this may cause wait in their event fds.
        port.publish();
        Ok(port)
    }

    /// What the peer is to be given.
    pub fn lines(&self) -> &Lines {
        &self.lines
    }

    #[cold]
    fn broke(&mut self, broken: Broken) {
        self.broken = true;
        self.link.fail(broken);
    }

    fn publish(&mut self) {
        self.hidden = 0;
        let [kick_of_incoming, kick_of_outgoing] = &self.lines.kicks;
        if self.incoming.ring.publish() {
            kick_of_incoming.raise();
        }
        if self.outgoing.ring.publish() {
            kick_of_outgoing.raise();
        }
    }

    #[inline]
    fn deliver_one(&mut self, frame: &RxFrame<'_>) -> Result<(), DropReason> {
        if self.broken {
            return Err(DropReason::Uplink);
        }
        match self.outgoing.deliver(frame) {
            Ok(delivered) => delivered?,
            Err(broken) => {
                self.broke(broken);
                return Err(DropReason::Uplink);
            }
        }
        self.hidden += 1;
        if self.hidden == VISIBLE {
            self.publish();
        }
        Ok(())
    }
}

/// What the peer takes.
fn capabilities(features: u64, mtu: u16) -> RxCapabilities {
    use net_feature::{CSUM, HOST_TSO4, HOST_TSO6, HOST_USO};
    let checksum = features & CSUM != 0;
    let has = |feature: u64| checksum && features & feature != 0;
    RxCapabilities {
        frame: usize::from(mtu) + HEADER,
        aggregate: AGGREGATE,
        tso4: has(HOST_TSO4),
        tso6: has(HOST_TSO6),
        uso4: has(HOST_USO),
        uso6: has(HOST_USO),
        partial_sum: checksum,
        partial_frame: checksum,
        verdicts: false,
    }
}

impl FramePort for VhostUserPort {
    #[inline]
    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        if self.broken {
            return 0;
        }
        let mut count = 0;
        for place in tokens {
            match self.incoming.fetch(&self.stats) {
                Ok(Some(slot)) => *place = Token(slot),
                Ok(None) => break,
                Err(broken) => {
                    self.broke(broken);
                    break;
                }
            }
            count += 1;
        }
        count
    }

    #[inline]
    fn frame(&self, token: Token) -> TxFrame<'_> {
        self.incoming.frame(token.0)
    }

    #[inline]
    fn finish(&mut self, tokens: &[Token]) {
        tokens.iter().for_each(|token| self.incoming.finish(token.0));
    }

    #[inline]
    fn capabilities(&self) -> RxCapabilities {
        self.capabilities
    }

    #[inline]
    fn filter(&self) -> &Filter {
        &self.filter
    }

    #[inline]
    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        deliver_each(frames, |frame| self.deliver_one(frame))
    }

    fn has_room(&mut self) -> bool {
        if self.broken {
            // What waits is refused, and dropped.
            return true;
        }
        self.outgoing.reclaim_room().unwrap_or_else(|broken| {
            self.broke(broken);
            true
        })
    }

    fn flush(&mut self, _: Instant) {
        self.publish();
    }

    fn tick(&mut self, _: Instant) -> Ticked {
        // Buffers of frames that were left out.
        if self.incoming.ring.is_unpublished() {
            self.publish();
        }
        Ticked::default()
    }

    fn fail(&mut self) {
        self.broke(Broken::Fault);
    }

    fn refresh(&mut self) {}

    fn info(&self) -> FramePortInfo {
        let lookahead = LOOKAHEAD;
        FramePortInfo { lookahead, overhead: self.incoming.overhead.clone() }
    }
}

impl WakeUp for VhostUserPort {
    fn arm(&mut self) -> bool {
        self.incoming.ring.listen();
        // The peer stores a used index and then loads what we asked for: one of the two loads sees the
        // other's store.
        fence(Ordering::SeqCst);
        !self.broken && self.incoming.ring.is_used()
    }

    fn disarm(&mut self) {
        self.incoming.ring.quiet();
        self.lines.clear();
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.lines.doorbell.as_fd())
    }

    fn needs(&self) -> Needs {
        if self.incoming.ring.is_unpublished() { Needs::Turn } else { Needs::Announces }
    }

    fn signs(&self, _: &mut Vec<Sign>) -> bool {
        false
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
