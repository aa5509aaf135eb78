//! Wires that are worse than a cable: frames on their way to a port are late, lost, doubled, changed, or
//! overtaken by later ones.
//!
//! Each direction of a wire has a [`Line`] of its own, at the port of the receiver ([`ImpairedPort`]). A
//! frame that is not due yet waits in a bounded queue of copies, so its sender has its buffers back at once.
//! A port is wrapped only while its wire is impaired: others pay nothing.
//!
//! Frames keep their order, however much their delays differ: none is due before the one in front of it. The
//! exceptions are those that overtake others on request, which do not wait at all.

mod dice;
mod line;
mod port;
#[cfg(test)]
mod tests;

use std::time::Duration;

use vmlane_port::RxCapabilities;

pub use line::Line;
pub use port::ImpairedPort;

/// What happens to the frames of one direction of a wire. The default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// How long a frame is on its way.
    pub delay: Duration,
    /// By how much that differs at most, evenly spread around `delay`; not more than `delay`.
    pub jitter: Duration,
    /// Frames that are lost, of a million.
    pub loss: u32,
    /// How many are lost in a row, in the mean; 0 or 1: each for itself. Not more than `loss` leaves room
    /// for.
    pub loss_burst: u32,
    /// Frames that are not delayed, of a million.
    pub reorder: u32,
    /// Frames that arrive twice, of a million.
    pub duplicate: u32,
    /// Frames behind whose Ethernet header a bit is another one, of a million.
    pub corrupt: u32,
    /// Bits in a second; 0: any number.
    pub rate: u64,
}

impl Impairment {
    /// Does nothing happen?
    pub fn is_none(&self) -> bool {
        *self == Impairment { jitter: self.jitter, loss_burst: self.loss_burst, ..Impairment::default() }
    }

    /// What a port receives of its wire, where it could receive `all`. What happens to frames happens to each
    /// segment of a super-frame, and what was changed is to be noticed by its checksum.
    fn restrict(&self, all: RxCapabilities) -> RxCapabilities {
        let whole = [self.loss, self.reorder, self.duplicate, self.corrupt] == [0; 4];
        let sums = self.corrupt == 0;
        RxCapabilities {
            tso4: all.tso4 && whole,
            tso6: all.tso6 && whole,
            uso4: all.uso4 && whole,
            uso6: all.uso6 && whole,
            partial_sum: all.partial_sum && sums,
            partial_frame: all.partial_frame && sums,
            verdicts: all.verdicts && sums,
            ..all
        }
    }
}
