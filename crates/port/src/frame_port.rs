//! One end of a wire as the switch sees it, and what devices ask of the switch.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use vmlane_mem::Word;

use crate::filter::Filter;
use crate::frame::{RxFrame, TxFrame};
use crate::reason::{DropReason, PortStats};

/// What a port is known by as long as it is attached.
#[derive(Clone, Debug, Default)]
pub struct FramePortInfo {
    /// How many frames it describes at once, at most: of the queue that describes the fewest. The switch does
    /// not let one slow receiver hold so many of them that the guest could send nothing to others.
    pub lookahead: usize,
    /// What its guest is charged for beside its frames.
    pub overhead: Overhead,
}

/// Descriptors that a port has read in vain: of frames that were skipped, of pieces without bytes, of buffers
/// far smaller than frames need. The port counts them, and the switch charges the guest whose rings they are
/// in.
#[derive(Clone, Debug, Default)]
pub struct Overhead(Arc<AtomicUsize>);

impl Overhead {
    /// So many more were read.
    #[inline]
    pub fn add(&self, descriptors: usize) {
        if descriptors > 0 {
            self.0.fetch_add(descriptors, Ordering::Relaxed);
        }
    }

    /// Those since the last call.
    #[inline]
    pub fn take(&self) -> usize {
        if self.0.load(Ordering::Relaxed) == 0 { 0 } else { self.0.swap(0, Ordering::Relaxed) }
    }
}

/// What a tick found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// The guest may do something soon that it does not announce (a masked vector with an event pending), so
    /// that the worker should poll again within microseconds, not milliseconds.
    pub soon: bool,
    /// Filter or capabilities are other ones now.
    pub changed: bool,
    /// When it is to be ticked again at the latest: frames that it holds back are due then.
    pub due: Option<Instant>,
}

/// Names a frame in flight to its source: opaque to the switch, good until [`FramePort::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u32);

impl Token {
    /// Slot `slot` of queue `queue`, for a port of several queues; at most 65,536 of them.
    #[inline]
    pub fn of_slot(queue: usize, slot: u16) -> Token {
        Token((queue as u32) << 16 | u32::from(slot))
    }

    /// The queue and the slot of [`Self::of_slot`].
    #[inline]
    pub fn slot(self) -> (usize, u16) {
        ((self.0 >> 16) as usize, self.0 as u16)
    }
}

/// What a port can receive; nothing by default. May change at any time between two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RxCapabilities {
    /// Bytes of the longest frame without tags that is no aggregate (MTU + 14). A port takes frames with two
    /// tags in them beside [`RxFrame::tag`], as far as it has buffers for them.
    pub frame: usize,
    /// Bytes of the longest aggregate that its buffers hold.
    pub aggregate: usize,
    /// TCP super-frames over IPv4.
    pub tso4: bool,
    /// TCP super-frames over IPv6.
    pub tso6: bool,
    /// UDP super-frames, of datagrams of one length (USO), over IPv4.
    pub uso4: bool,
    /// The same over IPv6.
    pub uso6: bool,
    /// An aggregate may arrive with a partial TCP checksum.
    pub partial_sum: bool,
    /// A single TCP or UDP frame may arrive with a partial checksum ([`RxFrame::partial_checksum`] set).
    pub partial_frame: bool,
    /// Its guest believes that the checksum of a single TCP or UDP frame is right where it is reported so.
    pub verdicts: bool,
}

/// Frames that go over a port at once, at most.
pub const BURST: usize = 32;

/// A burst was not delivered to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which frame of the burst was refused. Those before it were delivered, those behind it were not
    /// examined.
    pub at: usize,
    /// Why. [`DropReason::NoBuffers`]: not now, later perhaps. Anything else: never.
    pub reason: DropReason,
}

/// [`FramePort::deliver`] where each frame is delivered for itself.
#[inline]
pub fn deliver_each(
    frames: &[RxFrame<'_>],
    mut deliver: impl FnMut(&RxFrame<'_>) -> Result<(), DropReason>,
) -> Result<(), Refused> {
    for (at, frame) in frames.iter().enumerate() {
        deliver(frame).map_err(|reason| Refused { at, reason })?;
    }
    Ok(())
}

/// One end of a wire: a guest's NIC, an uplink. One worker owns it; the guest behind it changes its rings at
/// any time. How a worker waits for a port is [`WakeUp`], apart from the calls that move frames.
///
/// A port is a source and a sink. The source half describes frames: their bytes stay where the sender left
/// them until each receiver has its copy. The sink half copies a frame or refuses it. Neither allocates,
/// locks or makes a system call per frame (an uplink's system call apart).
///
/// # Who calls what, and in which order
///
/// A device makes a port when its driver has set up its rings, and hands it over with [`Frames::attach`].
/// From then on one worker calls, and no one else:
///
/// | when | calls |
/// | --- | --- |
/// | at once | [`Self::info`] |
/// | then, and when the device returns [`Frames::refresh`] | [`Self::refresh`], [`Self::filter`], [`Self::capabilities`] |
/// | each round | [`Self::capabilities`] |
/// | its turn to send | [`Self::fetch`]; for each token [`Self::frame`], once or several times; [`Self::finish`] |
/// | a frame is for it | [`Self::deliver`]; if it returned [`DropReason::NoBuffers`], [`Self::has_room`] until that is true |
/// | the end of a turn in which it sent, received or finished anything | [`Self::flush`] |
/// | each round, also when nothing moves | [`Self::tick`]; [`Self::filter`] and [`Self::capabilities`] again if that returns true |
/// | before the worker sleeps | [`WakeUp::arm`]; if no port has a frame, the worker sleeps on the ports' files |
/// | after that sleep | [`WakeUp::disarm`] |
/// | a fault of ours ended the port | [`Self::fail`], then the drop |
/// | [`Frames::detach`] | the drop |
///
/// A token is good from the `fetch` that returned it until the `finish` that names it. Tokens may be finished
/// in any order and long after others were fetched; the port completes frames towards its guest in ring
/// order. A port that is dropped takes its tokens with it.
pub trait FramePort: WakeUp + Send + Any {
    /// Takes the next frames that wait: their tokens go to the front of `tokens`, their number is returned. A
    /// frame that is not valid is counted, completed and skipped inside. Fewer than asked for: no more wait,
    /// or too many are in flight.
    fn fetch(&mut self, tokens: &mut [Token]) -> usize;

    /// The frame behind a token.
    fn frame(&self, token: Token) -> TxFrame<'_>;

    /// These frames were copied or dropped; their bytes are not examined any more.
    fn finish(&mut self, tokens: &[Token]);

    /// What the port takes now.
    fn capabilities(&self) -> RxCapabilities;

    /// Which frames the guest behind it wants.
    fn filter(&self) -> &Filter;

    /// Copies frames into the guest's buffers, in order, until one is refused. All of a frame or nothing.
    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused>;

    /// A cheap fresh check: could a frame of ordinary size be delivered now?
    fn has_room(&mut self) -> bool;

    /// End of a turn: completions become visible, interrupts that are due are raised.
    fn flush(&mut self, now: Instant);

    /// Called every round, also when nothing moves: interrupts that became possible or due.
    fn tick(&mut self, now: Instant) -> Ticked;

    /// Picks up what its device changed (filter, features). Called by [`Frames::refresh`].
    fn refresh(&mut self);

    /// A fault of ours ended this port: its guest is notified, so that its driver starts anew. Only the drop
    /// follows.
    fn fail(&mut self);

    /// Asked when the port is attached.
    fn info(&self) -> FramePortInfo;
}

/// What a cheap poll of an armed port finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// Nothing is to be done before it announces something.
    Announces,
    /// Nothing is to be done now, but what comes is not announced.
    Nothing,
    /// It needs a turn, or only a turn can find out.
    Turn,
}

/// How a worker learns that a port has something to send, while it does not poll by itself. Control calls:
/// none is made while frames flow.
///
/// No method has a default, here and in [`FramePort`]: a port that wraps another one
/// ([`crate::wrap::FrameWrapper`]) would answer by it in place of that one.
pub trait WakeUp {
    /// The worker is about to sleep: ask the guest to announce its next frame if it can. Returns true if a
    /// frame waits already.
    fn arm(&mut self) -> bool;

    /// The worker is awake again and polls by itself.
    fn disarm(&mut self);

    /// While it is armed and has announced nothing: what a cheap poll finds, in place of a turn. It costs
    /// little, however many ports there are.
    fn needs(&self) -> Needs;

    /// The same for one whose cheap poll finds [`Needs::Nothing`], to be checked side by side with those of
    /// many others: as long as none of these signs has changed, nor anything else happens to it, a cheap poll
    /// would find the same. False: there are none. Noticed with a delay of some 100 ms is what they leave
    /// out, such as an interrupt of the device's own that its guest lets through now.
    fn signs(&self, into: &mut Vec<Sign>) -> bool;

    /// A file that becomes readable when the guest announces a frame, until [`Self::disarm`].
    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>>;

    /// A file that is readable while a frame waits: for ports that the kernel serves.
    fn readable_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A word of a guest's memory, and what is in it while its port needs no turn.
#[derive(Debug)]
pub struct Sign {
    word: Word,
    mask: u64,
    quiet: u64,
}

impl Sign {
    /// Of `word` only the bits of `mask` count; they are those of `quiet` for as long as nothing is to be
    /// done.
    pub fn new(word: Word, mask: u64, quiet: u64) -> Sign {
        Sign { word, mask, quiet: quiet & mask }
    }

    /// Is anything to be done?
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.word.load() & self.mask != self.quiet
    }
}

/// A port of the switch, whether or not anything is attached to it. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u32);

/// What devices ask of the switch. Each call returns when the worker has done it: after `detach` nothing of
/// the port is in use any more.
pub trait Frames: Send + Sync {
    /// Connects `end` to a port of the switch; one that was attached before is detached first. It is dropped
    /// at once if the port is unknown (removed by the operator).
    fn attach(&self, port: PortId, end: Box<dyn FramePort>);

    /// Disconnects and drops what is attached. Its frames in flight and those that wait for it are dropped.
    fn detach(&self, port: PortId);

    /// Has what is attached pick up changes.
    fn refresh(&self, port: PortId);

    /// The guest behind the port announced something (a doorbell). Does not wait.
    fn kick(&self, port: PortId);

    /// The network behind the port's uplinks is to learn where its address is: what is attached has come from
    /// elsewhere.
    fn announce(&self, port: PortId);

    /// The port's counters; those of an unknown port are not shown anywhere.
    fn stats(&self, port: PortId) -> Arc<PortStats>;
}
