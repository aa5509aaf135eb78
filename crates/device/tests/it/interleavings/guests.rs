//! The guests of the model: a writer and a reader in the steps of the Linux driver, and what both do
//! with the notices they get.
//!
//! A step is what cannot be divided: one load of a shared index with what follows from it privately,
//! or one store. A wake that arrives before a guest has queued itself for it is lost; one between
//! queueing and sleeping makes it check again. In the older protocol the socket lock keeps notices out
//! of everything but sleep and the gap between two system calls.

use vmlane_port::queue_pair::Protocol;

use super::world::{Message, World};

/// Where a guest is in its system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum At {
    Queue,
    Check,
    /// Older protocol: about to announce that it waits.
    Announce,
    Asleep,
    /// About to move bytes and its index.
    Move,
    /// About to compare indices and maybe notify.
    Notify,
    Done,
}

impl At {
    /// Moves only when it is woken, if at all.
    pub fn rests(self) -> bool {
        matches!(self, At::Asleep | At::Done)
    }
}

pub const PLACES: [At; 7] = [At::Queue, At::Check, At::Announce, At::Asleep, At::Move, At::Notify, At::Done];

/// One guest's private state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    pub at: At,
    /// Bytes just moved, while it is about to compare.
    pub len: u8,
    /// Woken since it queued itself.
    pub woken: bool,
    /// Older protocol: it has announced that it waits and got no answer yet.
    pub announced: bool,
    /// The reader: the other side waits for room. The writer (older protocol): it waits for bytes.
    pub peer_waits: bool,
}

impl Guest {
    pub const NEW: Guest = Guest { at: At::Queue, len: 0, woken: false, announced: false, peer_waits: false };

    fn wake(&mut self) {
        match self.at {
            At::Asleep => self.at = At::Queue,
            At::Check => self.woken = true,
            _ => {}
        }
    }

    /// It found what it waits for, or it did not.
    fn checked(&mut self, found: bool, protocol: Protocol) {
        let announce = protocol == Protocol::Pkt && !self.announced;
        self.at = match (found, self.woken) {
            (true, _) => At::Move,
            (false, true) => At::Queue,
            (false, false) if announce => At::Announce,
            (false, false) => At::Asleep,
        };
        self.woken = false;
    }

    fn moved(&mut self, len: u8, protocol: Protocol, all: bool) {
        (self.at, self.len) = (At::Notify, len);
        if protocol == Protocol::Pkt {
            self.len = 0;
            // Whether the peer waits cannot change under the lock.
            if !self.peer_waits {
                self.compared(all);
            }
        }
    }

    fn compared(&mut self, all: bool) {
        (self.at, self.len) = (if all { At::Done } else { At::Queue }, 0);
    }

    fn listens(&self, protocol: Protocol) -> bool {
        protocol == Protocol::Qstate || matches!(self.at, At::Queue | At::Asleep | At::Done)
    }
}

/// What the guests are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Habits {
    pub size: u8,
    pub protocol: Protocol,
    /// Bytes the writer has to send.
    pub total: u8,
    /// Bytes per write and per read at most.
    pub write: u8,
    pub read: u8,
    /// The reader sends READ once more than this is free.
    pub limit: u8,
}

impl Habits {
    fn used(&self, head: u8, tail: u8) -> u8 {
        (tail + self.size - head) % self.size
    }

    fn used_a(&self, world: &World) -> u8 {
        self.used(world.head_a, world.written % self.size)
    }

    fn used_b(&self, world: &World) -> u8 {
        self.used(world.read % self.size, world.tail_b)
    }

    /// The writer's next step, if it has one.
    pub fn write(&self, mut world: World) -> Option<World> {
        let used = self.used_a(&world);
        let room = self.size - 1 - used;
        let writer = &mut world.writer;
        match writer.at {
            At::Queue if self.protocol == Protocol::Qstate => writer.at = At::Check,
            At::Queue | At::Check => writer.checked(room > 0, self.protocol),
            At::Announce => {
                writer.announced = true;
                writer.at = At::Asleep;
                world.send(Message::WaitingWriteFromA);
            }
            At::Move => {
                let len = self.write.min(room).min(self.total - world.written);
                world.written += len;
                writer.moved(len, self.protocol, world.written == self.total);
            }
            At::Notify => {
                let notify = match self.protocol {
                    // It was empty before.
                    Protocol::Qstate => used == writer.len,
                    Protocol::Pkt => writer.peer_waits && used > 0,
                };
                writer.compared(world.written == self.total);
                if notify {
                    writer.peer_waits = false;
                    world.send(Message::WroteFromA);
                }
            }
            At::Asleep | At::Done => return None,
        }
        Some(world)
    }

    /// The reader's next step, if it has one.
    pub fn read(&self, mut world: World) -> Option<World> {
        let ready = self.used_b(&world);
        let reader = &mut world.reader;
        match reader.at {
            At::Queue if self.protocol == Protocol::Qstate => reader.at = At::Check,
            At::Queue | At::Check => reader.checked(ready > 0, self.protocol),
            At::Announce => {
                reader.announced = true;
                reader.at = At::Asleep;
                world.send(Message::WaitingReadFromB);
            }
            At::Move => {
                let len = self.read.min(ready);
                world.read += len;
                reader.moved(len, self.protocol, world.read == self.total);
            }
            At::Notify => {
                // It was full before.
                if self.protocol == Protocol::Qstate && self.size - 1 - ready == reader.len {
                    reader.peer_waits = true;
                }
                reader.compared(world.read == self.total);
                self.announce_room(&mut world);
            }
            At::Asleep | At::Done => return None,
        }
        Some(world)
    }

    /// The reader's test of its window.
    fn announce_room(&self, world: &mut World) {
        let free = self.size - 1 - self.used_b(world);
        if world.reader.peer_waits && free > self.limit {
            world.reader.peer_waits = false;
            world.send(Message::ReadFromB);
        }
    }

    /// A guest handles a notice of the device, if it may now.
    pub fn receive(&self, mut world: World, message: Message) -> Option<World> {
        let to_writer = matches!(message, Message::ReadToA | Message::WaitingReadToA);
        let guest = if to_writer { &mut world.writer } else { &mut world.reader };
        if !guest.listens(self.protocol) {
            return None;
        }
        match message {
            Message::ReadToA | Message::WroteToB => {
                guest.announced = false;
                guest.wake();
            }
            Message::WaitingReadToA => {
                guest.peer_waits = true;
                if self.used_a(&world) > 0 {
                    world.writer.peer_waits = false;
                    world.send(Message::WroteFromA);
                }
            }
            Message::WaitingWriteToB => {
                guest.peer_waits = true;
                self.announce_room(&mut world);
            }
            _ => unreachable!("{message:?} is for the device"),
        }
        world.receive(message);
        Some(world)
    }
}
