//! What a worker does that found nothing to do: a pure function of its inputs and of what it has learned.

use std::time::{Duration, Instant};

use super::long_naps::LongNaps;
use super::ring_naps::RingNaps;
use super::window::Window;

/// Rounds that find nothing until the core is offered to others.
const SPINS: u32 = 32;
/// The shortest nap, and the first of the sleeps that become longer.
const NAP: Duration = Duration::from_micros(50);
/// So long after the last work, a contended worker naps before its ports are armed.
const NAPS_FOR: Duration = Duration::from_millis(20);
/// After a pause, what no one announces waits no longer than this part of it, beside the shortest nap: so a
/// single frame costs some seventy naps at most.
const PART: u32 = 16;
/// So long after the last work, the first frame of a port that announces nothing is not to be late by much.
const RECENT: Duration = Duration::from_millis(1500);
/// The longest sleep while a port announces nothing, then and later, and while all announce what they have.
const LONGEST_RECENT: Duration = Duration::from_micros(500);
const LONGEST: Duration = Duration::from_millis(5);
const LONGEST_ANNOUNCED: Duration = Duration::from_millis(200);
/// By how much sleeps grow while all ports announce what they have. The first one is short for drivers that
/// have no fence between their descriptor and the load that finds the worker asleep.
const GROWS_ANNOUNCED: u32 = 8;

/// So long before something is due the timer is set, which comes late; the worker spins for the rest.
const EARLY: Duration = Duration::from_micros(50);

/// What the ports of an idle engine can do by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// One of them is to be polled in the next round.
    Polled,
    /// Each may be left alone for the nap that [`Polling`] named: the rings that fill meanwhile hold so many
    /// bytes.
    Filling(u64),
    /// Something is due shortly that no one announces.
    Due,
    /// They are asked to announce what they have before a sleep, and some may not.
    Mixed {
        /// All of them will.
        announced: bool,
    },
    /// All announce what they have, once they are asked to. Something is due after so long at most.
    Armable(Option<Duration>),
    /// All were asked to already.
    Armed(Option<Duration>),
}

/// What an idle worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Polls again at once.
    Spin,
    /// Polls again when those have run that want its core.
    Yield,
    /// Polls again after so long; its ports were not asked to announce anything.
    Nap(Duration),
    /// Arms its ports, and sleeps until one announces something, or for so long at most.
    Sleep(Option<Duration>),
}

impl Decision {
    /// The same where something is due after `time`, to the microsecond.
    pub fn until(self, time: Duration) -> Decision {
        let limit = time.saturating_sub(EARLY);
        match self {
            Decision::Nap(_) | Decision::Sleep(_) if limit.is_zero() => Decision::Spin,
            Decision::Nap(length) => Decision::Nap(length.min(limit)),
            Decision::Sleep(length) => {
                Decision::Sleep(Some(length.map_or(limit, |length| length.min(limit))))
            }
            Decision::Spin | Decision::Yield => self,
        }
    }
}

/// What a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// As read for the last round.
    pub now: Instant,
    /// How long nothing has moved.
    pub idle: Duration,
    /// Rounds in a row that found nothing.
    pub rounds: u32,
    /// Bytes that the worker has moved so far.
    pub moved: u64,
    /// What it waits for.
    pub ports: Ports,
}

/// How ports are polled at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polling {
    /// How long a port is polled after it moved something.
    pub window: Duration,
    /// Others want the worker's core: guests that are to write or to read, most likely.
    pub contended: bool,
    /// How long a port's ring is left alone to fill.
    pub nap: Duration,
}

/// What a worker has learned about waiting. It reads no clock.
#[derive(Clone, Debug)]
pub struct Policy {
    window: Window,
    long_naps: LongNaps,
    ring_naps: RingNaps,
    /// The next sleep while a port announces nothing.
    backoff: Duration,
    /// Since when nothing has moved, if what comes next ends a gap.
    gap_began: Option<Instant>,
}

impl Policy {
    /// `spin`: the longest time that it spins and yields. A sleep costs as much as spinning for `sleep`.
    pub fn new(spin: Duration, sleep: Duration) -> Policy {
        let (long_naps, ring_naps) = (LongNaps::default(), RingNaps::default());
        Policy { window: Window::new(spin, sleep), long_naps, ring_naps, backoff: NAP, gap_began: None }
    }

    /// The clock was read: how ports are polled until it is read again.
    #[inline]
    pub fn clock(&mut self, now: Instant) -> Polling {
        let contended = self.window.is_contended(now);
        self.long_naps.clock(contended);
        Polling { window: self.window.of_ports(contended), contended, nap: self.ring_naps.length() }
    }

    /// Something moved, or was asked for, since the last round that found nothing; `moved` bytes in all.
    #[inline]
    pub fn became_idle(&mut self, moved: u64) {
        self.window.became_idle(moved);
        self.backoff = NAP;
    }

    /// A port or another thread has announced something.
    pub fn notified(&mut self) {
        self.backoff = NAP;
    }

    /// It has polled again after a pause or a nap, and nothing has moved.
    #[inline]
    pub fn resumed(&mut self, now: Instant) {
        self.window.resumed(now);
        self.ring_naps.found_nothing();
    }

    /// Nothing has moved since; None: what comes next was not waited for.
    #[inline]
    pub fn gap_begins(&mut self, at: Option<Instant>) {
        self.gap_began = at;
    }

    /// It has polled again and something moved.
    #[inline]
    pub fn found(&mut self, now: Instant) {
        self.window.resumed(now);
        if let Some(began) = self.gap_began.take() {
            self.window.found(now.saturating_duration_since(began));
        }
    }

    /// Is a long nap worth it after `moved` bytes, once it neither spins nor yields?
    pub fn naps_long(&self, moved: u64) -> bool {
        self.long_naps.next(moved).is_some()
    }

    /// Does it spin after `idle`, `rounds` rounds in a row, whatever its ports can do? As [`Self::decide`]
    /// would decide.
    #[inline]
    pub fn spins(&self, idle: Duration, rounds: u32) -> bool {
        rounds < SPINS && self.window.is_within(idle)
    }

    /// What to do now. Changes nothing.
    pub fn decide(&self, inputs: &Inputs) -> Decision {
        let Inputs { now, idle, rounds, moved, ports } = *inputs;
        let nap = || self.long_naps.next(moved).unwrap_or(NAP);
        match ports {
            _ if ports == Ports::Polled || self.window.is_open(now, idle, rounds >= SPINS) => {
                if rounds < SPINS { Decision::Spin } else { Decision::Yield }
            }
            Ports::Polled | Ports::Due => Decision::Nap(nap()),
            Ports::Filling(_) => Decision::Nap(self.ring_naps.length()),
            // Guests that wait for the core are not to announce what they send meanwhile.
            Ports::Mixed { .. } if idle < NAPS_FOR && self.window.is_contended(now) => {
                Decision::Nap(nap().max(idle / PART).min(LONGEST_RECENT))
            }
            Ports::Mixed { announced } => {
                Decision::Sleep(Some(self.backoff.max(idle / PART).min(longest(announced, idle))))
            }
            Ports::Armable(limit) => self.long_naps.next(moved).map_or(Decision::Sleep(limit), Decision::Nap),
            Ports::Armed(limit) => Decision::Sleep(limit),
        }
    }

    /// Spins once, or yields.
    pub fn pause(&mut self, decision: Decision, now: Instant) {
        if decision == Decision::Yield {
            self.window.yields(now);
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// It naps now.
    pub fn naps(&mut self, inputs: &Inputs) {
        self.long_naps.waits(inputs.now, inputs.moved);
        if let Ports::Filling(room) = inputs.ports {
            self.ring_naps.begin(inputs.now, inputs.moved, room);
        }
    }

    /// It sleeps now: its ports were armed, and nothing was found.
    pub fn sleeps(&mut self, inputs: &Inputs) {
        self.long_naps.waits(inputs.now, inputs.moved);
        if let Ports::Mixed { announced } = inputs.ports {
            let grows = if announced { GROWS_ANNOUNCED } else { 2 };
            self.backoff = (self.backoff * grows).min(longest(announced, inputs.idle));
        }
    }

    /// The first thing that moved after naps; `moved` bytes in all.
    pub fn napped(&mut self, now: Instant, moved: u64) {
        self.ring_naps.found(now, moved);
    }
}

/// The longest sleep while what comes is announced by all ports, or not by all, and nothing has for `idle`.
fn longest(announced: bool, idle: Duration) -> Duration {
    match announced {
        true => LONGEST_ANNOUNCED,
        false if idle < RECENT => LONGEST_RECENT,
        false => LONGEST,
    }
}

#[cfg(test)]
mod tests;
