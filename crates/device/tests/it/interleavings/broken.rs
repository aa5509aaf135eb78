//! Engines that break one rule each: ports around the real port, to show that the model notices.

use vmlane_port::queue_pair::{Notice, Protocol, QueueMemory, QueuePairPort};
use vmlane_port::wrap::StreamWrapper;
use vmlane_port::{Bytes, PortFault, StreamPort};

use super::memory::ModelMemory;

/// What a broken engine does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Against M1: announces a byte before it is copied.
    TailBeforeBytes,
    /// Against M2: never sends WROTE.
    NoWrote,
    /// Against M3: never sends READ.
    NoRead,
    /// Against M2 and M3: lets a store pass the load behind it.
    NoFence,
    /// Against M4 (a): decides to sleep by the tail it knew before its last store of the head.
    StaleTail,
    /// Against M4 (a) and M7: sleeps with a head that the writer does not know yet.
    LaggingHead,
    /// Against M4 (b): sleeps with the reader's ring one byte short of full.
    ShortOfFull,
    /// Against the two hops: passes the guests' notices on and makes none.
    Forwarding,
    /// Never finds that it may sleep.
    Restless,
    /// Against the older protocol: sleeps without saying so.
    Unannounced,
    /// Copies to the wrong place.
    WrongPlace,
}

/// What a device is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Make {
    pub size: u8,
    pub protocol: Protocol,
    /// Bytes per turn at most.
    pub quota: usize,
    pub breaks: Option<Rule>,
}

/// An end as the engine gets it: the real port, or a broken one around it.
pub struct ModelEnd {
    pub port: QueuePairPort<ModelMemory>,
    breaks: Option<Rule>,
}

impl ModelEnd {
    pub fn new(mut port: QueuePairPort<ModelMemory>, breaks: Option<Rule>) -> ModelEnd {
        port.memory.fences = breaks != Some(Rule::NoFence);
        port.memory.mute = match breaks {
            Some(Rule::Forwarding) => Notice::Wrote as u8 | Notice::Read as u8,
            Some(Rule::Unannounced) => Notice::WaitingRead as u8 | Notice::WaitingWrite as u8,
            _ => 0,
        };
        ModelEnd { port, breaks }
    }

    /// Without a rule to break the engine works on the real port itself.
    pub fn as_port(&mut self) -> &mut (dyn StreamPort + 'static) {
        if self.breaks.is_none() { &mut self.port } else { self }
    }

    /// Runs `action` without notices of this kind if `rule` is the one to break.
    fn silent<T>(&mut self, rule: Rule, notice: Notice, action: impl FnOnce(&mut Self) -> T) -> T {
        if self.breaks != Some(rule) {
            return action(self);
        }
        let mute = std::mem::replace(&mut self.port.memory.mute, notice as u8);
        let result = action(self);
        self.port.memory.mute = mute;
        result
    }
}

impl StreamWrapper for ModelEnd {
    fn inner(&self) -> &dyn StreamPort {
        &self.port
    }

    fn inner_mut(&mut self) -> &mut dyn StreamPort {
        &mut self.port
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        self.silent(Rule::NoRead, Notice::Read, |end| end.port.consume(len))
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        let known = self.port.reading.tail;
        match self.breaks {
            Some(Rule::StaleTail) => {
                self.port.publish_room()?;
                self.port.reading.tail = known;
                Ok(known == self.port.reading.cur)
            }
            Some(Rule::LaggingHead) => Ok(self.port.readable()? == 0),
            Some(Rule::Restless) => self.port.arm_readable().map(|_| false),
            _ => self.silent(Rule::NoRead, Notice::Read, |end| end.port.arm_readable()),
        }
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        let room = self.port.writable()?;
        Ok(if self.breaks == Some(Rule::ShortOfFull) { room.saturating_sub(1) } else { room })
    }

    fn fill(&mut self, from: Bytes<'_>, len: usize) -> Result<(), PortFault> {
        let mut sink = self.port.sink();
        let next = (sink.at + 1) % sink.size;
        match self.breaks {
            Some(Rule::TailBeforeBytes) => {
                self.port.memory.store_tail(next as u64);
                self.port.memory.drain();
            }
            Some(Rule::WrongPlace) => sink.at = next,
            _ => {}
        }
        from.copy_to(sink, len);
        self.silent(Rule::NoWrote, Notice::Wrote, |end| end.port.produce(len))
    }

    fn keep_free(&self) -> usize {
        if self.breaks == Some(Rule::ShortOfFull) { 0 } else { self.port.keep_free() }
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        match self.breaks {
            Some(Rule::ShortOfFull) => Ok(self.port.writable()? <= 1),
            _ => self.port.arm_writable(),
        }
    }
}
