//! Walks through every interleaving of writer, device, reader and deliveries, breadth first, so that
//! the first failure found is one of the shortest.

use std::fmt;

use super::broken::Rule;
use super::device::{At, Call, Device};
use super::guests::{At as Place, Guest, Habits};
use super::memory::Access;
use super::seen::Seen;
use super::world::{Message, World};

/// What must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No actor can do anything, and there are bytes that B has not got.
    Deadlock,
    /// No other actor can do anything, and the device neither moves a byte nor sleeps.
    Restless,
    /// An index announced what is not there.
    Order(&'static str),
    /// The engine ended the stream, or copied to a wrong place.
    Broken(String),
}

/// A failure and what led to it.
pub struct Found {
    pub failure: Failure,
    pub trace: Vec<String>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?} after {} steps:", self.failure, self.trace.len())?;
        self.trace.iter().enumerate().try_for_each(|(index, step)| writeln!(f, "{:4}. {step}", index + 1))
    }
}

/// One atomic step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Writer,
    Reader,
    Device(Option<Call>, Access),
    Deliver(Message),
}

/// No other actor can change what this access sees, or see what it changes, before the device continues.
fn undisturbed(world: &World, access: Access) -> bool {
    use Message::*;
    let a_rests = || world.writer.at.rests() && !world.has(&[ReadToA, WaitingReadToA]);
    let b_rests = || world.reader.at.rests() && !world.has(&[WroteToB, WaitingWriteToB]);
    match access {
        Access::LoadTailOfA | Access::StoreHeadForA(_) => a_rests(),
        Access::LoadHeadOfB | Access::StoreTailForB(_) => b_rests(),
        Access::TakeAWaits => a_rests() && !world.has(&[WaitingWriteFromA]),
        Access::TakeBWaits => b_rests() && !world.has(&[WaitingReadFromB]),
        Access::Notify(message) => !world.has(&[message]),
    }
}

/// One configuration being explored.
pub struct Explorer<'a> {
    pub device: &'a mut Device,
    pub habits: Habits,
}

impl Explorer<'_> {
    /// Number of states, or the first failure.
    pub fn run(&mut self) -> Result<usize, Found> {
        let mut seen = Seen::new(World::NEW.pack());
        let mut steps = Vec::new();
        let mut index = 0;
        while let Some(state) = seen.get(index) {
            let world = World::unpack(state);
            if let Err(failure) = self.steps(world, &mut steps).and_then(|()| self.judge(world, &steps)) {
                return Err(Found { failure, trace: self.trace(&seen.way_to(index)) });
            }
            steps.iter().for_each(|(_, next)| seen.insert(next.pack(), index));
            index += 1;
        }
        Ok(seen.len())
    }

    /// All steps that are possible, and where they lead.
    fn steps(&mut self, world: World, steps: &mut Vec<(Step, World)>) -> Result<(), Failure> {
        steps.clear();
        if let Some(only) = self.only(world)? {
            steps.push(only);
            return Ok(());
        }
        steps.extend(self.habits.write(world).map(|next| (Step::Writer, next)));
        steps.extend(self.habits.read(world).map(|next| (Step::Reader, next)));
        let on_way = Message::ALL.into_iter().filter(|&message| world.has(&[message]));
        for message in on_way {
            steps.extend(self.deliver(world, message).map(|next| (Step::Deliver(message), next)));
        }
        match self.device.at(world.device) {
            At::Asleep => {}
            At::Before(access) => steps.push((Step::Device(None, access), self.access(world, access)?)),
            At::Awake => {
                for call in Call::ALL {
                    let begun = World { device: self.device.begin(world.device, call), ..world };
                    if let At::Before(access) = self.device.at(begun.device) {
                        steps.push((Step::Device(Some(call), access), self.access(begun, access)?));
                    }
                }
            }
            At::Broken(reason) => return Err(Failure::Broken(self.device.reason(reason).into())),
        }
        Ok(())
    }

    /// A step that comes to the same in any order with whatever the others can do until then: no other
    /// order is tried. Between calls of the engine all are, so no actor is delayed for ever.
    fn only(&mut self, world: World) -> Result<Option<(Step, World)>, Failure> {
        let announces = |guest: &Guest, message| guest.at == Place::Announce && !world.has(&[message]);
        Ok(match self.device.at(world.device) {
            _ if announces(&world.writer, Message::WaitingWriteFromA) => {
                self.habits.write(world).map(|next| (Step::Writer, next))
            }
            _ if announces(&world.reader, Message::WaitingReadFromB) => {
                self.habits.read(world).map(|next| (Step::Reader, next))
            }
            At::Before(access) if undisturbed(&world, access) => {
                Some((Step::Device(None, access), self.access(world, access)?))
            }
            _ => None,
        })
    }

    fn deliver(&mut self, mut world: World, message: Message) -> Option<World> {
        match message {
            Message::WroteFromA | Message::ReadFromB => {
                // The worker checks its queue between calls.
                if matches!(self.device.at(world.device), At::Before(_)) {
                    return None;
                }
                world.device = self.device.kick(world.device);
                if self.device.make.breaks == Some(Rule::Forwarding) {
                    let wrote = message == Message::WroteFromA;
                    world.send(if wrote { Message::WroteToB } else { Message::ReadToA });
                }
            }
            // Noted by whatever thread receives the guest's notice, which then kicks the stream.
            Message::WaitingWriteFromA => {
                world.a_waits = true;
                world.send(Message::WroteFromA);
            }
            Message::WaitingReadFromB => {
                world.b_waits = true;
                world.send(Message::ReadFromB);
            }
            _ => return self.habits.receive(world, message),
        }
        world.receive(message);
        Some(world)
    }

    /// The device performs the access it stands before.
    fn access(&mut self, mut world: World, access: Access) -> Result<World, Failure> {
        let size = self.habits.size;
        let copied = self.device.copied(world.device);
        let beyond = |old: u8, new: u8| {
            let ahead = |index: u8| (index + size - old) % size;
            ahead(new) > ahead(copied % size)
        };
        let mut result = 0;
        match access {
            Access::LoadTailOfA => result = world.written % size,
            Access::LoadHeadOfB => result = world.read % size,
            Access::StoreTailForB(tail) if beyond(world.tail_b, tail) => {
                return Err(Failure::Order("a tail announces bytes that are not copied yet (M1)"));
            }
            Access::StoreTailForB(tail) => world.tail_b = tail,
            Access::StoreHeadForA(head) if beyond(world.head_a, head) => {
                return Err(Failure::Order("a head gives away bytes that are not copied yet (M1)"));
            }
            Access::StoreHeadForA(head) => world.head_a = head,
            Access::Notify(message) => world.send(message),
            Access::TakeAWaits => result = std::mem::take(&mut world.a_waits).into(),
            Access::TakeBWaits => result = std::mem::take(&mut world.b_waits).into(),
        }
        world.device = self.device.step(world.device, result);
        // Broken states count as nothing copied; they are reported when they are visited.
        let copied = self.device.copied(world.device);
        if copied > world.written {
            return Err(Failure::Order("bytes are copied that A has not written"));
        }
        if copied > world.read + size - 1 {
            return Err(Failure::Order("bytes are overwritten that B has not read"));
        }
        Ok(world)
    }

    /// Is this a state to be in?
    fn judge(&mut self, world: World, steps: &[(Step, World)]) -> Result<(), Failure> {
        if steps.is_empty() && world.read < self.habits.total {
            return Err(Failure::Deadlock);
        }
        let only_device = steps.iter().all(|(step, _)| matches!(step, Step::Device(..)));
        if only_device && self.device.at(world.device) == At::Awake && self.sleeps_not(world)? {
            return Err(Failure::Restless);
        }
        Ok(())
    }

    /// Left alone, the device tries to sleep, and afterwards everything is as it was.
    fn sleeps_not(&mut self, world: World) -> Result<bool, Failure> {
        let mut later = World { device: self.device.begin(world.device, Call::TrySleep), ..world };
        while let At::Before(access) = self.device.at(later.device) {
            later = self.access(later, access)?;
        }
        Ok(later == world)
    }

    fn trace(&mut self, way: &[u64]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut steps = Vec::new();
        for pair in way.windows(2) {
            let _ = self.steps(World::unpack(pair[0]), &mut steps);
            let step = steps.iter().find(|(_, next)| next.pack() == pair[1]);
            lines.extend(step.map(|&(step, next)| self.line(step, World::unpack(pair[0]), next)));
        }
        lines
    }

    fn line(&self, step: Step, before: World, after: World) -> String {
        let what = match step {
            Step::Writer => format!("A: {:?} -> {:?}", before.writer.at, after.writer.at),
            Step::Reader => format!("B: {:?} -> {:?}", before.reader.at, after.reader.at),
            Step::Device(None, access) => format!("device: {access:?}"),
            Step::Device(Some(call), access) => format!("device, {call:?}: {access:?}"),
            Step::Deliver(message) => format!("{message:?} arrives"),
        };
        let size = self.habits.size;
        let sent = Message::ALL.into_iter().filter(|&message| after.has(&[message]));
        let asleep = if self.device.at(after.device) == At::Asleep { ", device asleep" } else { "" };
        format!(
            "{what:48} TA {} HA {} TB {} HB {}  on the way {:?}{asleep}",
            after.written % size,
            after.head_a,
            after.tail_b,
            after.read % size,
            sent.collect::<Vec<_>>(),
        )
    }
}
