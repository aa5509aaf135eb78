//! One end of a wire as the switch sees it, and what devices ask of the switch.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::filter::Filter;
use crate::frame::{RxFrame, TxFrame};
use crate::reason::{DropReason, PortStats};

/// Names a lent frame to its source: opaque to the switch, good until [`FramePort::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub u32);

/// What a port takes. May change at any time between two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxCapabilities {
    /// Bytes of the longest frame without tag that is no aggregate (MTU + 14).
    pub frame: usize,
    /// Bytes of the longest aggregate that its buffers hold.
    pub aggregate: usize,
    /// TCP super-frames over IPv4, over IPv6.
    pub tso4: bool,
    pub tso6: bool,
    /// UDP super-frames, of datagrams of one length (USO), over IPv4, over IPv6.
    pub uso4: bool,
    pub uso6: bool,
    /// An aggregate may arrive with a partial TCP checksum.
    pub partial_sum: bool,
    /// A single TCP or UDP frame may arrive with a partial checksum ([`RxFrame::partial_checksum`] set).
    pub partial_frame: bool,
}

/// Why a sink did not take a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No buffers now; later perhaps.
    Full,
    /// Never.
    Drop(DropReason),
}

/// One end of a wire: a guest's NIC, an uplink. One worker owns it; the party behind it changes its
/// rings at any time.
///
/// Source half: `fetch` lends frames in order, several at once; they may be finished in any order and
/// are completed towards the guest in ring order. Sink half: `deliver` copies a packet or refuses it.
/// Neither allocates, locks or makes a system call per frame (an uplink's system call apart).
pub trait FramePort: Send {
    /// Lends the next frame that waits, if any. A frame that makes no sense is counted, completed and
    /// skipped inside. None also when too many are lent.
    fn fetch(&mut self) -> Option<Token>;

    /// The frame behind a token.
    fn frame(&self, token: Token) -> TxFrame<'_>;

    /// The frame was copied or dropped; nobody looks at it any more.
    fn finish(&mut self, token: Token);

    /// What the port takes now.
    fn capabilities(&self) -> RxCapabilities;

    /// Which frames the party behind it wants.
    fn filter(&self) -> &Filter;

    /// Copies a packet into the party's buffers. All of a packet or nothing.
    fn deliver(&mut self, packet: &RxFrame<'_>) -> Result<(), Refusal>;

    /// A cheap fresh look: could a packet of ordinary size be delivered now?
    fn has_room(&mut self) -> bool;

    /// End of a batch: completions become visible, interrupts that are due are raised.
    fn flush(&mut self, now: Instant);

    /// Called every round, also when nothing moves: interrupts that became possible or due. Returns
    /// true if the party may do something soon that nobody announces (a masked vector with an event
    /// pending), so that the worker should look again within microseconds, not milliseconds.
    fn tick(&mut self, now: Instant) -> bool;

    /// The worker is about to sleep: ask the party to announce its next frame if it can. Returns true
    /// if a frame waits already.
    fn arm(&mut self) -> bool;

    /// The worker is awake again and looks by itself.
    fn disarm(&mut self) {}

    /// Have filter or wishes changed inside of [`Self::tick`]? Asked after each, and true once.
    fn changed(&mut self) -> bool {
        false
    }

    /// Picks up what its device changed (filter, features). Called by [`Frames::refresh`].
    fn refresh(&mut self) {}

    /// A fault of ours ended this port: its party is told, so that its driver starts anew. Nothing but the
    /// drop follows.
    fn fail(&mut self) {}

    /// A file that becomes readable when the party announces a frame, until [`Self::disarm`].
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// A file that becomes readable when a frame waits: for ports that the kernel serves.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A port of the switch, whether or not anything is attached to it. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u32);

/// What devices ask of whoever moves the frames. Each call returns when the worker has obeyed: after
/// `detach` nothing of the end is in use any more.
pub trait Frames: Send + Sync {
    /// Connects a port's end; one that was attached before is detached first. The end is dropped at
    /// once if the port is unknown (removed by the operator).
    fn attach(&self, port: PortId, end: Box<dyn FramePort>);

    /// Disconnects and drops a port's end. Frames that it lent or that wait for it are dropped.
    fn detach(&self, port: PortId);

    /// Has the end pick up changes.
    fn refresh(&self, port: PortId);

    /// The party behind the port announced something (a doorbell). Does not wait.
    fn kick(&self, port: PortId);

    /// The port's counters; an unknown port has counters of its own that nobody reads.
    fn stats(&self, port: PortId) -> Arc<PortStats>;
}
