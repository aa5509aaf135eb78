//! A TAP interface as an uplink: frames to and from the host's network stack, super-frames whole.
//!
//! Each frame is one `readv` or `writev`, with a `virtio_net_hdr` (virtio 1.2, section 5.1.6) in front
//! that describes checksums and segments still to be made. What the host sends is read into memory of the
//! port's own; what guests send goes straight from their memory to the kernel.

mod interface;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{
    DropReason, Filter, FrameInFlight, FramePort, FramePortInfo, FramesInFlight, HEAD, MAX_FRAME, MAX_HEAD,
    Needs, PortCounts, PortStats, Refused, RxCapabilities, RxFrame, Sign, Ticked, Token, TxFrame,
    VnetHeader as Header, WakeUp, deliver_each,
};
use vmlane_wire::ethernet::{HEADER, TAG, ether_type};

pub use self::interface::{TapError, is_up, mtu, set_up};
use super::flow::{ADDRESSES, queue_of};

/// Frames of the host that may be in flight at once.
const LOOKAHEAD: usize = 128;
/// Bytes of memory for each: the longest frame, in whole pages.
const ROOM: usize = MAX_FRAME.next_multiple_of(4096);
/// Bytes of the longest super-frame: what an IPv4 length can express, behind an Ethernet header.
const AGGREGATE: usize = HEADER + u16::MAX as usize;
/// Frames that are left out in one poll, at most.
const MAX_SKIPS: usize = 64;

/// Which interface, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// Up to 15 bytes. Made if there is none (and we may).
    pub name: String,
    /// How many queues, 1 to [`TapOptions::MOST_QUEUES`], of an interface made for several (`ip tuntap add
    /// ... multi_queue`); None: an interface with its one queue. The kernel keeps a flow in one queue: the
    /// one that its frames were last sent through.
    pub queues: Option<u16>,
}

impl TapOptions {
    pub const MOST_QUEUES: u16 = 16;
}

/// An attached TAP interface.
pub struct Tap {
    name: String,
    /// One file a queue.
    queues: Vec<OwnedFd>,
    /// Readable when one of `queues` is.
    any: OwnedFd,
    /// The queue that is polled first, so that each gets its turn.
    next: usize,
    /// The queue that last had no room.
    full: usize,
    /// Bytes of the longest packet, set by who sees it change.
    mtu: Arc<AtomicUsize>,
    /// What is behind it takes super-frames and partial checksums, set by who knows.
    whole: Arc<AtomicBool>,
    capabilities: RxCapabilities,
    filter: Filter,
    in_flight: FramesInFlight,
    stats: Arc<PortStats>,
    /// Header, tag and edited first bytes of a frame on its way out.
    out: [u8; Header::SIZE + TAG + MAX_HEAD],
    /// A frame that leaves complete, where that is wanted, and its head while that is completed.
    complete: Spans,
}

/// The files of an interface's queues, and its MTU.
#[derive(Debug)]
pub struct TapFiles {
    /// One a queue.
    pub queues: Vec<OwnedFd>,
    /// Bytes of the longest packet, without its Ethernet header.
    pub mtu: usize,
}

impl TapFiles {
    /// Attaches to the interface. Bringing it up, giving it an address or a bridge is the operator's. A
    /// daemon that is confined may not do that; it is handed the files.
    pub fn open(options: &TapOptions) -> Result<TapFiles, TapError> {
        let number = options.queues.unwrap_or(1).clamp(1, TapOptions::MOST_QUEUES);
        let queues = (0..number).map(|_| interface::attach(options)).collect::<Result<Vec<_>, _>>()?;
        Ok(TapFiles { queues, mtu: interface::mtu(&options.name)? })
    }
}

impl Tap {
    /// The port of an interface whose files are open.
    pub fn new(options: &TapOptions, files: TapFiles, stats: Arc<PortStats>) -> Result<Tap, TapError> {
        let TapFiles { queues, mtu } = files;
        let any = one_of(&queues)
            .map_err(|error| TapError::Memory { name: options.name.clone(), source: error.into() })?;
        let memory = |source| TapError::Memory { name: options.name.clone(), source };
        let len = ((LOOKAHEAD + 1) * ROOM) as u64;
        let fd = memfd("tap", len).map_err(memory)?;
        let map = MemoryMap::default()
            .map(MapRequest { guest: 0, len, offset: 0, fd, writable: true })
            .map_err(|error| memory(io::Error::other(error)))?;
        Ok(Tap {
            name: options.name.clone(),
            queues,
            any,
            next: 0,
            full: 0,
            mtu: Arc::new(AtomicUsize::new(mtu)),
            whole: Arc::new(AtomicBool::new(true)),
            capabilities: capabilities(mtu, true),
            filter: Filter::open(),
            in_flight: FramesInFlight::new(map.clone(), true, LOOKAHEAD),
            stats,
            out: [0; Header::SIZE + TAG + MAX_HEAD],
            complete: Spans::new(map, true),
        })
    }

    /// The interface's MTU as the port takes it to be. It picks up another one with its next
    /// [`FramePort::refresh`]: by itself, a confined daemon cannot ask for it.
    pub fn mtu(&self) -> Arc<AtomicUsize> {
        self.mtu.clone()
    }

    /// Does what is behind the interface take super-frames, and frames whose checksums are to be completed?
    /// True at first, as the host's network stack does. The port picks up a change with its next
    /// [`FramePort::refresh`].
    pub fn whole(&self) -> Arc<AtomicBool> {
        self.whole.clone()
    }

    /// A file by which to see that the interface is gone ([`is_gone`]).
    pub fn watch(&self) -> Result<OwnedFd, TapError> {
        let queue = self.queues.first().ok_or_else(|| io::ErrorKind::NotFound.into());
        queue.and_then(OwnedFd::try_clone).map_err(|source| TapError::Setting {
            name: self.name.clone(),
            what: "another descriptor",
            source,
        })
    }

    /// Reads one frame into a slot. None: none waits.
    fn read(&mut self, number: u16) -> Option<Result<(), DropReason>> {
        let (frame, ()) = self.in_flight.get_mut(number)?;
        frame.spans.clear();
        if frame.spans.push(u64::from(number) * ROOM as u64, ROOM).is_err() {
            return None;
        }
        let mut header = [0; Header::SIZE];
        let count = self.queues.len();
        // An interface that is down or gone has no frames.
        let (at, bytes) = (self.next..self.next + count).find_map(|at| {
            let queue = self.queues.get(at % count)?;
            frame.spans.read_from(queue, &mut header, 0).ok().map(|bytes| (at, bytes))
        })?;
        self.next = (at + 1) % count;
        Some(
            bytes
                .checked_sub(Header::SIZE)
                .ok_or(DropReason::BadLength)
                .and_then(|len| fill(frame, &header, len)),
        )
    }

    /// The slot of the next frame of the host.
    fn fetch_one(&mut self) -> Option<u16> {
        let number = self.in_flight.take()?;
        for _ in 0..MAX_SKIPS {
            match self.read(number) {
                Some(Ok(())) => return Some(number),
                Some(Err(reason)) => PortCounts::drop(&self.stats, reason),
                None => break,
            }
        }
        self.in_flight.give_back(number);
        None
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a head has an Ethernet header at least and `MAX_HEAD` bytes at most; `queue` is below the count"
    )]
    fn deliver_one(&mut self, frame: &RxFrame<'_>) -> Result<(), DropReason> {
        if !self.capabilities.partial_frame {
            return self.deliver_complete(frame);
        }
        let tag = frame.tag.map(|tag| {
            let ([a, b], [c, d]) = (ether_type::VLAN.to_be_bytes(), tag.0.to_be_bytes());
            [a, b, c, d]
        });
        let shift = if tag.is_some() { TAG } else { 0 };
        self.out[..Header::SIZE].copy_from_slice(&Header::of(frame, shift as u16).to_bytes());
        let head = &mut self.out[Header::SIZE..];
        let len = frame.head.len();
        head[..ADDRESSES].copy_from_slice(&frame.head[..ADDRESSES]);
        head[ADDRESSES..ADDRESSES + shift].copy_from_slice(tag.as_ref().map_or(&[][..], |tag| &tag[..]));
        head[ADDRESSES + shift..len + shift].copy_from_slice(&frame.head[ADDRESSES..]);
        let out = &self.out[..Header::SIZE + shift + len];
        let queue = queue_of(frame, self.queues.len());
        let written = frame.body.write_to(&self.queues[queue], out, frame.body_at, frame.body_len);
        self.written(queue, written)
    }

    /// The same with all that is in the frame, for what is behind the interface and reads no header in front
    /// of it.
    #[expect(clippy::indexing_slicing, reason = "`queue` is below the count")]
    fn deliver_complete(&mut self, frame: &RxFrame<'_>) -> Result<(), DropReason> {
        let len = frame.len() + if frame.tag.is_some() { TAG } else { 0 };
        if len > ROOM {
            return Err(DropReason::TooLong);
        }
        self.complete.set((LOOKAHEAD * ROOM) as u64, len).map_err(|_| DropReason::Uplink)?;
        frame.write(&self.complete, true);
        let queue = queue_of(frame, self.queues.len());
        let header = Header::default().to_bytes();
        let written = self.complete.write_to(&self.queues[queue], &header, 0, len);
        self.written(queue, written)
    }

    /// What came of a frame that was written to a queue.
    fn written(&mut self, queue: usize, written: io::Result<usize>) -> Result<(), DropReason> {
        match written {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.full = queue;
                Err(DropReason::NoBuffers)
            }
            Err(error) if has_no_link(&error) => Err(DropReason::UplinkDown),
            Err(_) => Err(DropReason::Uplink),
        }
    }
}

/// Did the kernel refuse a frame because the interface is down (`EIO`, of a TAP) or gone?
fn has_no_link(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::ENETDOWN | libc::EBADFD | libc::ENODEV | libc::ENXIO)
    )
}

/// Is the interface gone that this file was a queue of?
pub fn is_gone(queue: impl AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut files = [PollFd::new(&queue, PollFlags::empty())];
    // The kernel reports an error of a file that has no interface (drivers/net/tun.c, tun_chr_poll).
    poll(&mut files, Some(&at_once)).is_ok() && files[0].revents().contains(PollFlags::ERR)
}

/// A file that is readable when one of several is.
pub(super) fn one_of(files: &[OwnedFd]) -> rustix::io::Result<OwnedFd> {
    let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for file in files {
        epoll::add(&any, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(any)
}

fn fill(frame: &mut FrameInFlight, header: &[u8; Header::SIZE], len: usize) -> Result<(), DropReason> {
    if !(HEADER..=MAX_FRAME).contains(&len) {
        return Err(DropReason::BadLength);
    }
    frame.spans.shorten(ROOM - len);
    let header = Header::from_bytes(header);
    // A header with all its options: what an offload may speak of is found in it.
    frame.offload = header.offload(frame.keep_head(HEAD)).ok_or(DropReason::BadOffload)?;
    frame.verified = header.is_verified();
    Ok(())
}

fn capabilities(mtu: usize, whole: bool) -> RxCapabilities {
    RxCapabilities {
        frame: mtu + HEADER,
        aggregate: if whole { AGGREGATE } else { mtu + HEADER },
        tso4: whole,
        tso6: whole,
        partial_sum: whole,
        partial_frame: whole,
        verdicts: false,
        ..RxCapabilities::default()
    }
}

impl FramePort for Tap {
    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        let mut count = 0;
        for place in tokens {
            let Some(number) = self.fetch_one() else { break };
            *place = Token(number.into());
            count += 1;
        }
        count
    }

    fn frame(&self, token: Token) -> TxFrame<'_> {
        self.in_flight.frame(token.0 as u16)
    }

    fn finish(&mut self, tokens: &[Token]) {
        tokens.iter().for_each(|token| self.in_flight.give_back(token.0 as u16));
    }

    fn capabilities(&self) -> RxCapabilities {
        self.capabilities
    }

    fn filter(&self) -> &Filter {
        &self.filter
    }

    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        deliver_each(frames, |frame| self.deliver_one(frame))
    }

    #[expect(clippy::indexing_slicing, reason = "`full` is the number of a queue")]
    fn has_room(&mut self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut files = [PollFd::new(&self.queues[self.full], PollFlags::OUT)];
        poll(&mut files, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    fn flush(&mut self, _: Instant) {}

    fn tick(&mut self, _: Instant) -> Ticked {
        Ticked::default()
    }

    /// The interface's MTU may have changed, or what is behind it.
    fn refresh(&mut self) {
        self.capabilities =
            capabilities(self.mtu.load(Ordering::Relaxed), self.whole.load(Ordering::Relaxed));
    }

    fn fail(&mut self) {}

    fn info(&self) -> FramePortInfo {
        FramePortInfo { lookahead: LOOKAHEAD, ..FramePortInfo::default() }
    }
}

impl WakeUp for Tap {
    fn needs(&self) -> Needs {
        Needs::Announces
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.any.as_fd())
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn signs(&self, _: &mut Vec<Sign>) -> bool {
        false
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
