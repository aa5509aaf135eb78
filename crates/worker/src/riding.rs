//! Engines on the thread of another engine's worker: their ports use what that thread alone may touch.
//!
//! Both queues of commands have the thread's parking. The engine that has the thread passes on what its
//! worker asks of it: commands ([`Engine::notified`]), rounds, files, sleep.

use std::sync::Arc;
use std::time::Instant;

use crate::command_queue::CommandQueue;
use crate::contain::contained;
use crate::engine::{Engine, Event, Rounds};
use crate::heartbeat::Heartbeat;
use crate::waiting::Parking;
use crate::worker::Closes;

/// An engine that rides, whatever its commands are.
pub trait Rider: Send {
    /// Carries out the commands that wait.
    fn run_commands(&mut self);

    /// What it does beside its commands.
    fn rounds(&self) -> &dyn Rounds;

    /// The same, to be asked for it.
    fn rounds_mut(&mut self) -> &mut dyn Rounds;
}

/// One that is to ride: what the worker that it rides with is made with.
pub struct Ride {
    /// The engine's place among its like, which also names its ports.
    pub number: u16,
    /// To be that of the worker's own queue of commands, too.
    pub parking: Arc<Parking>,
    /// To be the worker's.
    pub heartbeat: Arc<Heartbeat>,
    /// To be run there.
    pub engine: Box<dyn Rider>,
}

/// An engine that rides, and its commands. Dropping it answers all callers.
pub struct Riding<E: Engine> {
    engine: E,
    /// Emptied and used again.
    commands: Vec<E::Command>,
    requests: Closes<E>,
}

impl<E: Engine> Riding<E> {
    /// One that takes its commands from `requests`, whose parking is that of the worker that it rides with.
    pub fn new(engine: E, requests: Arc<CommandQueue<E::Command, E::Shared>>) -> Riding<E> {
        Riding { engine, commands: Vec::new(), requests: Closes(requests) }
    }
}

impl<E: Engine + Send> Rider for Riding<E>
where
    E::Command: Send,
    E::Shared: Send,
{
    fn run_commands(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        // Only the worker itself can be asked to stop.
        let _ = self.requests.0.take(&mut commands);
        for command in commands.drain(..) {
            if contained(|| self.engine.run_command(command, Instant::now())).is_none() {
                self.engine.count(Event::Panic);
                let _ = contained(|| self.engine.recover());
            }
        }
        self.commands = commands;
    }

    fn rounds(&self) -> &dyn Rounds {
        &self.engine
    }

    fn rounds_mut(&mut self) -> &mut dyn Rounds {
        &mut self.engine
    }
}
