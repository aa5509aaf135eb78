//! What other threads ask of a worker: commands in order; signals of a stream merged into one.

use std::sync::Arc;

use vmlane_port::wrap::StreamTap;
use vmlane_port::{Resumed, Shutdown, Side, StreamEnd};
use vmlane_worker::{Answer, CommandQueue, Shared};

/// Events of one stream that wait to be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals(u8);

impl Signals {
    /// Something may have changed in one of the rings.
    pub const KICK: Signals = Signals(1);

    /// `side` sends, or reads, no more.
    pub fn shutdown(side: Side, what: Shutdown) -> Signals {
        match what {
            Shutdown::Send => Signals(2 << side as u8),
            Shutdown::Receive => Signals(8 << side as u8),
        }
    }

    /// `side` reset the connection.
    pub fn reset(side: Side) -> Signals {
        Signals(32 << side as u8)
    }

    pub fn contains(self, other: Signals) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Stream numbers name a slot of the worker, and which stream it is there.
pub enum Command {
    Join {
        slot: usize,
        ends: [StreamEnd; 2],
    },
    Resume {
        slot: usize,
        stream: Box<Resumed>,
    },
    /// The signals are filled in when the worker takes the command.
    Signal {
        slot: usize,
        generation: u32,
        signals: Signals,
    },
    /// The taps of all streams from now on.
    Tap {
        taps: Vec<Arc<dyn StreamTap>>,
        answer: Answer,
    },
    Leave {
        slot: usize,
        side: Side,
        /// None: who asks is the worker's own thread, and does not wait.
        answer: Option<Answer>,
    },
    /// An end whose peer is with another worker, as it has to be: it is notified of a reset.
    TurnAway {
        end: StreamEnd,
    },
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// How often it was given out, so that a late caller cannot reach a newer stream.
    generation: u32,
    /// Those for which a command waits.
    signals: Signals,
}

/// The slots of one worker, as those who hold a stream's number know them.
#[derive(Default)]
pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

pub type Requests = CommandQueue<Command, Slots>;

/// `number` of a stream id: generation in the upper half, slot in the lower.
fn split(number: u64) -> (u32, usize) {
    ((number >> 32) as u32, (number & 0xffff_ffff) as usize)
}

impl Slots {
    /// Gives out a slot: its index, and the number of the stream that gets it.
    pub fn begin(&mut self) -> (usize, u64) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let generation = self.slots.get(at).map_or(0, |slot| slot.generation);
        (at, u64::from(generation) << 32 | at as u64)
    }

    /// The slot of stream `number`, if that is still there.
    pub fn of(&self, number: u64) -> Option<usize> {
        let (generation, at) = split(number);
        self.slots.get(at).filter(|slot| slot.generation == generation).map(|_| at)
    }

    /// Notes `signals` for stream `number`. Returns the command for the worker, unless one waits.
    pub fn signal(&mut self, number: u64, signals: Signals) -> Option<Command> {
        let (generation, at) = split(number);
        let slot = self.slots.get_mut(at).filter(|slot| slot.generation == generation)?;
        let waits = slot.signals != Signals::default();
        slot.signals.0 |= signals.0;
        (!waits).then_some(Command::Signal { slot: at, generation, signals: Signals::default() })
    }

    /// The worker gives a slot back; ids of its stream mean nothing from here on.
    pub fn free(&mut self, at: usize) {
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Slot { generation: slot.generation.wrapping_add(1), signals: Signals::default() };
            self.free.push(at);
        }
    }
}

impl Shared<Command> for Slots {
    fn taken(&mut self, commands: &mut [Command]) {
        for command in commands {
            if let Command::Signal { slot, generation, signals } = command
                && let Some(slot) = self.slots.get_mut(*slot).filter(|slot| slot.generation == *generation)
            {
                *signals = std::mem::take(&mut slot.signals);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(slots: &mut Slots, commands: Vec<Option<Command>>) -> Vec<u8> {
        let mut commands: Vec<Command> = commands.into_iter().flatten().collect();
        slots.taken(&mut commands);
        let signals = |command: &Command| match command {
            Command::Signal { signals, .. } => signals.0,
            _ => 0,
        };
        commands.iter().map(signals).collect()
    }

    #[test]
    fn signals_of_a_stream_wait_in_one_command() {
        let mut slots = Slots::default();
        let ((_, a), (_, b)) = (slots.begin(), slots.begin());
        let reset = Signals::reset(Side::B);
        let commands =
            [(a, Signals::KICK), (b, reset), (a, Signals::KICK), (a, reset)].map(|(n, s)| slots.signal(n, s));
        assert_eq!(taken(&mut slots, commands.into()), [1 | reset.0, reset.0]);
        let again = slots.signal(a, Signals::KICK);
        assert_eq!(taken(&mut slots, vec![again]), [1], "one that was taken is not merged with");
    }

    #[test]
    fn a_command_has_the_signals_that_were_asked_for_and_no_other() {
        let sends_no_more = Signals::shutdown(Side::A, Shutdown::Send);
        let both = Signals(Signals::KICK.0 | sends_no_more.0);
        assert!(both.contains(sends_no_more) && both.contains(Signals::KICK));
        assert!(!both.contains(Signals::reset(Side::A)) && !sends_no_more.contains(Signals::KICK));
    }

    #[test]
    fn all_signals_differ() {
        let mut all = vec![Signals::KICK];
        for side in Side::BOTH {
            all.extend([Signals::reset(side), Signals::shutdown(side, Shutdown::Send)]);
            all.push(Signals::shutdown(side, Shutdown::Receive));
        }
        let bits = all.iter().fold(0u8, |bits, signal| bits | signal.0);
        assert_eq!((bits.count_ones(), all.len()), (7, 7));
    }

    #[test]
    fn what_waits_for_an_old_stream_does_not_reach_a_new_one_in_its_slot() {
        let mut slots = Slots::default();
        let (at, old) = slots.begin();
        let stale = slots.signal(old, Signals::reset(Side::A));
        slots.free(at);
        let (_, new) = slots.begin();
        assert_eq!((slots.of(old), slots.of(new)), (None, Some(at)));
        assert!(slots.signal(old, Signals::KICK).is_none());
        let fresh = slots.signal(new, Signals::KICK);
        assert_eq!(taken(&mut slots, vec![stale, fresh]), [0, 1]);
    }
}
