//! What the thread waits for: its inbox, the sockets at which clients connect, and theirs.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use crate::sockets::client::Dialect;
use crate::sockets::inbox::Token;

pub const INBOX: Token = 0;

/// A listening socket.
struct ListeningSocket {
    socket: OwnedFd,
    dialect: Dialect,
}

/// See the module's text. Tokens are never used again.
pub struct Poller {
    epoll: OwnedFd,
    listening: HashMap<Token, ListeningSocket>,
    last: Token,
}

impl Poller {
    pub fn new(inbox: &OwnedFd) -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let poller = Poller { epoll, listening: HashMap::new(), last: INBOX };
        poller.add(inbox, INBOX, EventFlags::IN)?;
        Ok(poller)
    }

    pub fn token(&mut self) -> Token {
        self.last += 1;
        self.last
    }

    /// Clients that speak so connect at `socket` from here on.
    pub fn listen(&mut self, socket: OwnedFd, dialect: Dialect) -> io::Result<()> {
        let token = self.token();
        self.add(&socket, token, EventFlags::IN | EventFlags::ET)?;
        self.listening.insert(token, ListeningSocket { socket, dialect });
        Ok(())
    }

    /// No longer at those sockets.
    pub fn close(&mut self, which: impl Fn(Dialect) -> bool) {
        self.listening.retain(|_, listening| !which(listening.dialect));
    }

    pub fn listening(&self, token: Token) -> Option<(&OwnedFd, Dialect)> {
        self.listening.get(&token).map(|listening| (&listening.socket, listening.dialect))
    }

    pub fn all_listening(&self) -> impl Iterator<Item = Token> {
        self.listening.keys().copied()
    }

    pub fn add(&self, file: &impl AsFd, token: Token, wanted: EventFlags) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, file, EventData::new_u64(token), wanted)
    }

    /// What is waited for changes; what there is already is an event once more.
    pub fn change(&self, file: &impl AsFd, token: Token, wanted: EventFlags) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, file, EventData::new_u64(token), wanted)
    }

    /// It is gone, or is waited for no more.
    pub fn remove(&self, file: &impl AsFd) {
        let _ = epoll::delete(&self.epoll, file);
    }

    pub fn wait<'s>(
        &self,
        space: &'s mut [MaybeUninit<Event>],
        timeout: Option<&Timespec>,
    ) -> rustix::io::Result<&'s mut [Event]> {
        Ok(epoll::wait(&self.epoll, space, timeout)?.0)
    }
}
