//! A stream: two ends, two directions, and how they come apart.

#![expect(clippy::indexing_slicing, reason = "arrays of two, indexed by a side")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_port::wrap::{CapturedStream, StreamEvent, StreamTap, wall_clock};
use vmlane_port::{Budget, End, Shutdown, Side, StreamEnd, StreamPort};

use vmlane_worker::{Account, Watch};

use crate::direction::{Direction, Faulty, Left, Sleep};

/// How soon a stream that sleeps for a full ring is inspected, and how rarely in the end.
const FIRST_INSPECTION: Duration = Duration::from_millis(1);
const LAST_INSPECTION: Duration = Duration::from_millis(100);

/// Bytes that went one way, and none the other, after which a stream is left alone for a nap before it is
/// armed.
const WORTH_NAP: u64 = 4 << 10;

/// Inspections of the safety net, a tenth of a second apart, after which a notice is lost, those not counted
/// between which its sender made no request of any kind: a guest that others keep from running, or that
/// is being reset, may stand still between its store and its notice for as long as it likes. The same
/// where an end sends its notices byte by byte, or is a program whose requests are not counted.
pub const INSPECTIONS: u32 = 10;
const SLOW_INSPECTIONS: u32 = 30;
/// Inspections after which bytes are taken from one that made no request either.
const STILL_INSPECTIONS: u32 = 100;

/// While bytes go one way, the other way is polled once in so many turns and one; a turn counts once
/// more for every `LONG` bytes, so that an answer waits for a few microseconds at most.
const UNPOLLED: usize = 4;
const LONG: usize = 8 << 10;

/// What a turn of a stream did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Bytes moved.
    Moved(usize),
    /// Nothing to do at the moment.
    Idle,
}

/// A fault of one end ended the stream.
#[derive(Debug)]
pub struct Broken {
    pub side: Side,
    pub fault: vmlane_port::PortFault,
}

/// Two joined ends. Owned by one worker.
pub struct JoinedStream {
    ends: [Option<StreamEnd>; 2],
    /// `directions[Side::A]` carries what A wrote.
    directions: [Direction; 2],
    /// Whose quota has the bytes kept of an end that has left, and how many; given back when they are
    /// delivered or dropped.
    charged: [Option<(Arc<Budget>, usize)>; 2],
    /// False if an end never announces anything: then the stream is polled.
    announces: bool,
    /// Whether the worker polls it, and when bytes last moved.
    pub watch: Watch,
    /// The worker's account that its turns are charged to.
    pub account: Account,
    /// The worker has it on its list of streams that fell asleep while an end deferred something.
    pub deferring: bool,
    /// The ends whose doorbells its worker watches.
    pub watched: [bool; 2],
    stall_check: Option<StallCheck>,
    /// Inspections without progress that make a notice count as lost.
    pub inspections: u32,
    sleeps: u64,
    /// Asleep: when to inspect it, and how long after the last time.
    next_inspection: Option<Instant>,
    backoff: Duration,
    /// It has not been inspected since it fell asleep.
    again: bool,
    /// Bytes moved when the stream last fell asleep.
    moved_at_sleep: u64,
    /// It is left alone until then; what had moved each way when that was last asked.
    naps_until: Option<Instant>,
    moved_at_nap: [u64; 2],
    /// The way that bytes went last.
    way: Side,
    /// Turns since the other way was polled, long ones counted for several.
    unpolled: usize,
}

/// The safety net found something left undone.
#[derive(Clone, Copy)]
struct StallCheck {
    /// What the stream had done by then: bytes moved, and sleeps.
    progress: [u64; 2],
    /// Inspections since, and those of them that found that the end that has a notice due had made a request.
    inspections: u32,
    active: u32,
    /// Requests of both ends at the last inspection.
    requests: [Option<u64>; 2],
}

type PortRef<'a> = Option<&'a mut (dyn StreamPort + 'static)>;

fn pair(ends: &mut [Option<StreamEnd>; 2], from: Side) -> (PortRef<'_>, PortRef<'_>) {
    let [a, b] = ends;
    let a = a.as_mut().map(|end| &mut *end.port);
    let b = b.as_mut().map(|end| &mut *end.port);
    if from == Side::A { (a, b) } else { (b, a) }
}

fn broken(from: Side, faulty: Faulty) -> Broken {
    match faulty {
        Faulty::Source(fault) => Broken { side: from, fault },
        Faulty::Sink(fault) => Broken { side: from.other(), fault },
    }
}

/// Requests that an end's other side has made, if they are counted.
fn requests(end: &mut StreamEnd) -> Option<u64> {
    end.port.notifications()?.requests()
}

fn refund(charge: &mut Option<(Arc<Budget>, usize)>) {
    if let Some((budget, bytes)) = charge.take() {
        budget.give_back(bytes);
    }
}

impl JoinedStream {
    pub fn new(ends: [StreamEnd; 2], now: Instant) -> JoinedStream {
        JoinedStream::resumed(ends.map(Some), Default::default(), now)
    }

    /// A previous daemon's stream; [`JoinedStream::restore_marks`] comes next.
    pub fn resumed(
        mut ends: [Option<StreamEnd>; 2],
        left: [(Vec<u8>, Option<Arc<Budget>>); 2],
        now: Instant,
    ) -> JoinedStream {
        let announces = ends.iter().flatten().all(|end| end.port.info().announces);
        let slow = ends.iter_mut().flatten().any(|end| end.slow || requests(end).is_none());
        let mut directions: [Direction; 2] = Default::default();
        let mut charged = [None, None];
        for (from, (bytes, budget)) in left.into_iter().enumerate().filter(|(from, _)| ends[*from].is_none())
        {
            // A budget that has become smaller meanwhile loses no bytes.
            let kept = bytes.len();
            charged[from] =
                budget.filter(|budget| kept > 0 && budget.take(kept)).map(|budget| (budget, kept));
            directions[from] = Direction::of_overflow(bytes);
        }
        JoinedStream {
            ends,
            directions,
            charged,
            announces,
            watch: Watch::new(false, now),
            account: Account::default(),
            deferring: false,
            watched: [false; 2],
            stall_check: None,
            inspections: if slow { SLOW_INSPECTIONS } else { INSPECTIONS },
            sleeps: 0,
            next_inspection: None,
            backoff: FIRST_INSPECTION,
            again: false,
            moved_at_sleep: 0,
            naps_until: None,
            moved_at_nap: [0; 2],
            way: Side::A,
            unpolled: 0,
        }
    }

    /// Puts the marks of a previous daemon's stream back behind its bytes and wakes both ends.
    pub fn restore_marks(&mut self, marks: [Vec<End>; 2]) -> Result<(), Broken> {
        for (side, marks) in Side::BOTH.into_iter().zip(marks) {
            for end in marks {
                self.mark(side, end)?;
            }
        }
        self.notify_both();
        Ok(())
    }

    pub fn announces(&self) -> bool {
        self.announces
    }

    /// What the ends announce does not arrive: the stream is polled.
    pub fn be_polled(&mut self) {
        self.announces = false;
    }

    /// The file by which the end of `side` announces something.
    pub fn doorbell(&self, side: Side) -> Option<BorrowedFd<'_>> {
        self.ends[side as usize].as_ref()?.port.info().doorbell
    }

    /// It has rung. False: it is not to be watched any more.
    pub fn answer_doorbell(&mut self, side: Side) -> bool {
        let notifications = self.ends[side as usize].as_mut().and_then(|end| end.port.notifications());
        notifications.is_some_and(|notifications| notifications.answer_doorbell())
    }

    /// Bytes moved, both directions.
    pub fn moved(&self) -> u64 {
        self.directions.iter().map(Direction::moved).sum()
    }

    /// One turn of each direction; while bytes go one way only, the other one has its turn less often.
    pub fn turn(&mut self, quota: usize) -> Result<Turn, Broken> {
        let way = self.way;
        let moved = self.turn_one(way, quota)?;
        if moved > 0 && self.unpolled < UNPOLLED {
            self.unpolled += 1 + moved / LONG;
            return Ok(Turn::Moved(moved));
        }
        let back = self.turn_one(way.other(), quota)?;
        self.unpolled = if moved > 0 && back > 0 { UNPOLLED } else { 0 };
        if moved == 0 && back > 0 {
            self.way = way.other();
        }
        Ok(if moved + back > 0 { Turn::Moved(moved + back) } else { Turn::Idle })
    }

    #[inline]
    fn turn_one(&mut self, from: Side, quota: usize) -> Result<usize, Broken> {
        let ends = pair(&mut self.ends, from);
        let direction = &mut self.directions[from as usize];
        let moved = direction.turn(ends, quota).map_err(|faulty| broken(from, faulty))?;
        let charged = &mut self.charged[from as usize];
        if charged.is_some() && direction.overflow() == 0 {
            refund(charged);
        }
        Ok(moved)
    }

    /// Makes both directions poll again.
    pub fn wake(&mut self) {
        self.directions.iter_mut().for_each(Direction::wake);
    }

    /// Bytes have moved.
    pub fn moves(&mut self, now: Instant) {
        self.watch.busy = now;
        self.naps_until = None;
    }

    /// Idle while the core is contended: is it left alone for `length`, to be polled then without having been
    /// armed? Once for so many bytes one way ([`WORTH_NAP`]): more will come. What is answered is not kept
    /// waiting.
    pub fn try_nap(&mut self, now: Instant, length: Duration) -> bool {
        if self.naps_until.is_none() {
            let moved = [0, 1].map(|from: usize| self.directions[from].moved());
            let before = std::mem::replace(&mut self.moved_at_nap, moved);
            let [there, back] = [0, 1].map(|from: usize| moved[from] - before[from]);
            let stuck = self.directions.iter().any(Direction::is_stuck);
            if there.max(back) < WORTH_NAP || there.min(back) > 0 || stuck {
                return false;
            }
            self.naps_until = Some(now + length);
        }
        self.is_napping(now)
    }

    /// Is it not to be polled yet?
    pub fn is_napping(&self, now: Instant) -> bool {
        self.naps_until.is_some_and(|until| now < until)
    }

    /// How much the place holds that bytes last came from.
    pub fn ring_size(&self) -> usize {
        self.ends[self.way as usize].as_ref().map_or(0, |end| end.port.source().most())
    }

    /// Tries to put both directions to sleep. True if the stream may be left alone until it is kicked, or
    /// until [`JoinedStream::next_inspection`], once it has delivered what it defers
    /// ([`JoinedStream::flush_deferred`]).
    pub fn try_sleep(&mut self, quota: usize, now: Instant) -> Result<bool, Broken> {
        let mut asleep = true;
        for from in Side::BOTH {
            let ends = pair(&mut self.ends, from);
            asleep &= self.directions[from as usize]
                .try_sleep(ends, quota)
                .map_err(|faulty| broken(from, faulty))?;
        }
        self.sleeps += u64::from(asleep);
        let moved = self.moved();
        if asleep && std::mem::replace(&mut self.moved_at_sleep, moved) != moved {
            self.backoff = FIRST_INSPECTION;
        }
        // A guest may announce nothing although it was in time: on one CPU, Linux' barriers order nothing for
        // other CPUs, so its store of an index may become visible after it has checked whether the device
        // sleeps. It is visible a moment later.
        self.again = asleep;
        let wait = if self.is_full() { self.backoff } else { FIRST_INSPECTION };
        self.next_inspection = asleep.then(|| now + wait);
        Ok(asleep)
    }

    /// Both ends send what they deferred, as far as its time has come. True if none of it is left. Called
    /// after the last bytes have moved: those may have been announced late, too.
    pub fn flush_deferred(&mut self) -> Result<bool, Broken> {
        let mut all = true;
        for end in self.ends.iter_mut().flatten() {
            all &= !end.port.notifications().is_some_and(|notifications| notifications.flush_deferred());
        }
        Ok(all)
    }

    /// When a sleeping stream wants to be inspected before either end announces anything. A reader that
    /// found its ring full announces room only when it has made much of it (Linux: its notify window).
    /// Two programs that read little and then block in a write wait for each other's reader then, and
    /// only the stream can see that both rings have room.
    pub fn next_inspection(&self) -> Option<Instant> {
        self.next_inspection
    }

    fn is_full(&self) -> bool {
        self.directions.iter().any(|direction| direction.sleep() == Some(Sleep::Full))
    }

    /// There was nothing to do: it is inspected again, but less soon; for bytes that became visible late,
    /// once is enough.
    pub fn back_off(&mut self, now: Instant) {
        self.again = false;
        if !self.is_full() {
            self.next_inspection = None;
            return;
        }
        self.backoff = (self.backoff * 2).min(LAST_INSPECTION);
        self.next_inspection = Some(now + self.backoff);
    }

    /// Wakes readers that wait for more than one notice announced.
    pub fn renotify_reader(&mut self) -> Result<(), Broken> {
        for side in Side::BOTH {
            if let Some(end) = &mut self.ends[side as usize] {
                end.port.renotify_reader().map_err(|fault| Broken { side, fault })?;
            }
        }
        Ok(())
    }

    /// `side` announced that it sends or receives no more.
    pub fn shutdown(&mut self, side: Side, what: Shutdown) -> Result<(), Broken> {
        match what {
            Shutdown::Send => self.mark(side, End::Finished),
            Shutdown::Receive => {
                if let Some(peer) = &mut self.ends[side.other() as usize] {
                    peer.port.end(End::Refused);
                }
                Ok(())
            }
        }
    }

    /// Has `taps`, and no others, examine what both ends send. Only streams whose addresses an end knows are
    /// examined.
    pub fn set_taps(&mut self, taps: &[Arc<dyn StreamTap>]) {
        let known = [0, 1].map(|end| self.ends[end].as_ref().and_then(|end| end.port.info().address));
        let addresses = [
            known[0].or(known[1].map(|peer| peer.reversed())),
            known[1].or(known[0].map(|peer| peer.reversed())),
        ];
        for (place, address) in self.ends.iter_mut().zip(addresses) {
            let Some(end) = place.take() else { continue };
            let port = CapturedStream::wrap(CapturedStream::unwrap(end.port), taps, address);
            *place = Some(StreamEnd { port, ..end });
        }
    }

    /// Tells the taps of a stream that it is new.
    pub fn report_begin(&self, taps: &[Arc<dyn StreamTap>]) {
        let address = self.ends[0].as_ref().and_then(|end| end.port.info().address);
        if let Some(address) = address {
            let now = wall_clock();
            taps.iter().for_each(|tap| tap.event(address, StreamEvent::Begins, now));
        }
    }

    /// `side` reset the connection.
    pub fn reset(&mut self, side: Side) -> Result<(), Broken> {
        self.mark(side, End::Reset)
    }

    fn mark(&mut self, side: Side, end: End) -> Result<(), Broken> {
        let (from, _) = pair(&mut self.ends, side);
        self.directions[side as usize].mark(from, end).map_err(|faulty| broken(side, faulty))
    }

    /// `side` leaves: its bytes are taken, its port is dropped. Returns what its peer had no room for
    /// yet, or why the bytes could not be taken.
    pub fn leave(&mut self, side: Side) -> Result<Left, Broken> {
        let Some(mut end) = self.ends[side as usize].take() else { return Ok(Left::default()) };
        let peer = self.ends[side.other() as usize].as_mut().map(|peer| &mut *peer.port);
        let budget = end.budget.clone();
        let direction = &mut self.directions[side as usize];
        let left = direction.source_leaves(&mut *end.port, peer, |bytes| budget.take(bytes));
        // What the peer had on the way to the leaver has no reader any more.
        self.directions[side.other() as usize].drop_overflow();
        refund(&mut self.charged[side.other() as usize]);
        self.wake();
        let left = left.map_err(|faulty| broken(side, faulty))?;
        self.charged[side as usize] = Some((budget, left.kept));
        Ok(left)
    }

    /// True once both ends have left.
    pub fn is_over(&self) -> bool {
        self.ends.iter().all(Option::is_none)
    }

    /// Ends the stream because of a fault: an end that is left is notified that its peer is gone.
    pub fn break_up(&mut self) {
        for end in self.ends.iter_mut().filter_map(Option::as_mut) {
            end.port.end(End::Detached);
        }
        self.ends = [None, None];
        self.charged.iter_mut().for_each(refund);
    }

    /// The safety net inspects a sleeping stream. See `docs/devices/vmci.md`: ten inspections (more for
    /// guests that are slow to send) with work left undone, no progress between them and other requests of
    /// the end that should have announced it mean a lost notice.
    pub fn inspect(&mut self) -> Result<Inspection, Broken> {
        if self.again {
            for side in Side::BOTH {
                let end = self.ends[side as usize].as_mut();
                if let Some(notifications) = end.and_then(|end| end.port.notifications()) {
                    notifications.notify_late().map_err(|fault| Broken { side, fault })?;
                }
            }
        }
        let mut refill = false;
        let mut stuck = [false; 2];
        for from in Side::BOTH {
            let direction = &self.directions[from as usize];
            let sleep = direction.sleep();
            let work =
                direction.has_work(pair(&mut self.ends, from)).map_err(|faulty| broken(from, faulty))?;
            match sleep {
                Some(Sleep::Full) => refill |= work,
                _ => stuck[from as usize] = work,
            }
        }
        let requests = self.ends.each_mut().map(|end| end.as_mut().and_then(requests));
        let progress = [self.moved(), self.sleeps];
        let before = self.stall_check.take().filter(|before| before.progress == progress);
        if stuck != [false; 2] {
            let active = |before: &StallCheck| {
                (0..2).any(|end| {
                    stuck[end] && (requests[end].is_none() || requests[end] != before.requests[end])
                })
            };
            self.stall_check = Some(StallCheck {
                progress,
                inspections: before.map_or(0, |before| before.inspections) + 1,
                active: before.map_or(0, |before| before.active + u32::from(active(&before))),
                requests,
            });
        }
        Ok(match self.stall_check {
            Some(StallCheck { active, .. }) if active >= self.inspections => Inspection::LostNotice,
            Some(StallCheck { inspections, .. }) if inspections >= STILL_INSPECTIONS => Inspection::Still,
            _ if refill || (self.again && stuck != [false; 2]) => Inspection::Refill,
            _ => Inspection::Quiet,
        })
    }

    /// Repairs after a lost notice: both ends poll again.
    pub fn notify_both(&mut self) {
        for notifications in self.ends.iter_mut().flatten().filter_map(|end| end.port.notifications()) {
            notifications.notify_both();
        }
        self.wake();
    }
}

/// What the safety net found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspection {
    Quiet,
    /// A slow reader has made some room, or a writer's bytes have become visible just after the stream fell
    /// asleep: moving them now is useful, nothing was lost.
    Refill,
    /// Work was left undone although its sender went on: a notice got lost.
    LostNotice,
    /// Work was left undone by a sender that has done nothing since: a VM that is paused, starved, or
    /// about to be reset. Its bytes are taken without a notice.
    Still,
}

#[cfg(test)]
mod tests;
