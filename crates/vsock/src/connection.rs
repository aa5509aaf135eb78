//! What a connection allows, and when: one total function from a state and an event to the next state and
//! what is to be done.
//!
//! ```text
//! client          server            state afterwards
//! open       -->                    Requested
//!            <--  Accept, Attach    Joining if the client has brought its end, else Accepted
//! Supply     -->                    Joining
//!                                   Joining: the router joins both ends and sends Started
//!                                   Attached after Attach, until Confirm or the server's first act; else Joined
//! Close, Reset, Left of one end     Left
//! the same of the other             Over
//! ```
//! What an end does does not depend on how far the other one's handshake has come: before both are joined it
//! waits in [`Early`], and happens right after, behind the bytes that the end has brought.

use vmlane_port::{Shutdown, Side, StreamId};

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The one that connects.
    Client,
    /// The one that listens.
    Server,
}

impl Role {
    /// The end of the stream that it is.
    pub fn side(self) -> Side {
        match self {
            Role::Client => Side::A,
            Role::Server => Side::B,
        }
    }

    /// The one whose end of the stream that is.
    pub fn of(side: Side) -> Role {
        match side {
            Side::A => Role::Client,
            Side::B => Role::Server,
        }
    }

    /// The one at the other end.
    pub fn other(self) -> Role {
        match self {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        }
    }
}

/// Why a connection did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failed {
    /// The other end refused.
    Refused,
    /// The other end went away or stopped in the middle.
    Gone,
    /// Nothing answers for the other end now.
    Absent,
}

/// What an end did before both were joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Early {
    receive: bool,
    send: bool,
    reset: bool,
    closed: bool,
}

impl Early {
    fn shutdown(mut self, what: Shutdown) -> Early {
        match what {
            Shutdown::Receive => self.receive = true,
            Shutdown::Send => self.send = true,
        }
        self
    }

    fn ends(self, how: Ending) -> Early {
        Early { closed: true, reset: self.reset || how == Ending::Reset, ..self }
    }

    /// The end has closed, and waits only for its bytes to be taken.
    pub fn is_closed(self) -> bool {
        self.closed
    }
}

/// How far a connection has come. `E`: an end of a stream that is not joined yet.
#[derive(Debug, PartialEq, Eq)]
pub enum State<E> {
    /// The server's endpoint has been asked. The client's end, if it has brought one.
    Requested { client: Option<E>, early: Early },
    /// The server has accepted; the client's end is still to come. What each has done meanwhile.
    Accepted { server: E, client: Early, early: Early },
    /// Both ends are there and are being joined. `certain`: the client may be notified.
    Joining { client: Early, server: Early, certain: bool },
    /// Bytes move; the server may still turn out to have failed, so the client has not been notified.
    Attached { stream: StreamId },
    /// Bytes move, and both know.
    Joined { stream: StreamId },
    /// One end has left.
    Left { stream: StreamId, who: Role },
    /// Nothing is left of it.
    Over,
}

/// What happens to a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<E> {
    /// The server accepts, with its end.
    Accept(E),
    /// The server has brought its end and may still fail; [`Event::Confirm`] is to come.
    Attach(E),
    /// The server that has attached is certain.
    Confirm,
    /// The client brings its end: the server has accepted.
    Supply(E),
    /// The router has joined both ends.
    Started(StreamId),
    /// An end sends, or receives, no more.
    Shutdown(Role, Shutdown),
    /// An end closes: what it has sent still arrives.
    Close(Role),
    /// An end resets the connection: its peer is notified of it behind the bytes sent so far.
    Reset(Role),
    /// An end gives up, for this reason; if both are joined already it closes.
    Withdraw(Role, Failed),
    /// A joined end has been taken off the stream by its own endpoint.
    Left(Role),
}

/// What is to be done, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<E> {
    /// Nothing: the event was out of turn.
    Ignore,
    /// Join the client's and the server's end; [`Event::Started`] follows.
    Join(Box<[E; 2]>),
    /// The client is notified that it was accepted, and brings its end.
    Accepted,
    /// An end is notified that bytes move.
    NotifyJoined(Role, StreamId),
    /// An end is notified that nothing comes of it.
    NotifyFailed(Role, Failed),
    /// An end is notified that its peer has left the stream.
    NotifyLeft(Role),
    /// The stream is notified of what an end announced.
    Shutdown(StreamId, Role, Shutdown),
    /// The stream is reset by an end.
    Reset(StreamId, Role),
    /// An end leaves the stream, after its bytes have been taken.
    Leave(StreamId, Role),
}

/// How an end finishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Close,
    Reset,
    Withdraw(Failed),
    /// Its endpoint has taken it off the stream already.
    Left,
}

impl<E> Event<E> {
    fn ending(&self) -> Option<(Role, Ending)> {
        match *self {
            Event::Close(role) => Some((role, Ending::Close)),
            Event::Reset(role) => Some((role, Ending::Reset)),
            Event::Withdraw(role, why) => Some((role, Ending::Withdraw(why))),
            Event::Left(role) => Some((role, Ending::Left)),
            _ => None,
        }
    }
}

/// A state and what is to be done on the way to it.
pub type Next<E> = (State<E>, Vec<Action<E>>);

impl<E> State<E> {
    /// A connection that a client asks for.
    pub fn new(client: Option<E>) -> State<E> {
        State::Requested { client, early: Early::default() }
    }

    /// The stream, once both ends are joined.
    pub fn stream(&self) -> Option<StreamId> {
        match self {
            State::Attached { stream } | State::Joined { stream } | State::Left { stream, .. } => {
                Some(*stream)
            }
            State::Requested { .. } | State::Accepted { .. } | State::Joining { .. } | State::Over => None,
        }
    }

    /// The server has accepted and closed, and the client does not know yet.
    pub fn is_closed_early(&self) -> bool {
        matches!(self, State::Accepted { early, .. } if early.is_closed())
    }

    /// What `event` leads to. Out of turn it changes nothing.
    pub fn on(self, event: Event<E>) -> Next<E> {
        match self {
            State::Requested { client, early } => requested(client, early, event),
            State::Accepted { server, client, early } => accepted(server, client, early, event),
            State::Joining { client, server, certain } => joining(client, server, certain, event),
            State::Attached { stream } => attached(stream, event),
            State::Joined { stream } => joined(stream, event),
            State::Left { stream, who } => left(stream, who, event),
            State::Over => (State::Over, vec![Action::Ignore]),
        }
    }
}

fn ignored<E>(state: State<E>) -> Next<E> {
    (state, vec![Action::Ignore])
}

/// The other end is gone before there was a stream: `role` is notified.
fn failed<E>(role: Role, why: Failed) -> Next<E> {
    (State::Over, vec![Action::NotifyFailed(role, why)])
}

fn requested<E>(client: Option<E>, early: Early, event: Event<E>) -> Next<E> {
    match (client, event) {
        (Some(client), Event::Accept(server)) => join([client, server], early, Early::default(), true),
        (Some(client), Event::Attach(server)) => join([client, server], early, Early::default(), false),
        (None, Event::Accept(server)) => {
            (State::Accepted { server, client: early, early: Early::default() }, vec![Action::Accepted])
        }
        (client, Event::Shutdown(Role::Client, what)) => {
            (State::Requested { client, early: early.shutdown(what) }, Vec::new())
        }
        (client, event) => match event.ending() {
            // Whatever it sent is for a server that has not answered.
            Some((Role::Client, Ending::Withdraw(why))) => failed(Role::Server, why),
            Some((Role::Client, Ending::Close | Ending::Reset)) => failed(Role::Server, Failed::Gone),
            Some((Role::Server, Ending::Withdraw(why))) => failed(Role::Client, why),
            Some((Role::Server, Ending::Close | Ending::Reset)) => failed(Role::Client, Failed::Refused),
            Some((_, Ending::Left)) | None => ignored(State::Requested { client, early }),
        },
    }
}

fn join<E>(ends: [E; 2], client: Early, server: Early, certain: bool) -> Next<E> {
    (State::Joining { client, server, certain }, vec![Action::Join(Box::new(ends))])
}

fn accepted<E>(server: E, client: Early, early: Early, event: Event<E>) -> Next<E> {
    match event {
        Event::Supply(end) => join([end, server], client, early, true),
        Event::Shutdown(Role::Client, what) => {
            (State::Accepted { server, client: client.shutdown(what), early }, Vec::new())
        }
        Event::Shutdown(Role::Server, what) => {
            (State::Accepted { server, client, early: early.shutdown(what) }, Vec::new())
        }
        event => match event.ending() {
            Some((Role::Server, how @ (Ending::Close | Ending::Reset))) => {
                (State::Accepted { server, client, early: early.ends(how) }, Vec::new())
            }
            Some((Role::Server, Ending::Withdraw(why))) => failed(Role::Client, why),
            Some((Role::Client, Ending::Left)) | Some((Role::Server, Ending::Left)) | None => {
                ignored(State::Accepted { server, client, early })
            }
            // One that has closed is notified of nothing more.
            Some((Role::Client, _)) if early.closed => (State::Over, Vec::new()),
            Some((Role::Client, Ending::Withdraw(why))) => failed(Role::Server, why),
            Some((Role::Client, Ending::Close | Ending::Reset)) => failed(Role::Server, Failed::Gone),
        },
    }
}

fn joining<E>(client: Early, server: Early, certain: bool, event: Event<E>) -> Next<E> {
    let Event::Started(stream) = event else { return ignored(State::Joining { client, server, certain }) };
    let mut actions = Vec::new();
    if certain {
        actions.push(Action::NotifyJoined(Role::Client, stream));
    }
    if !server.closed {
        actions.push(Action::NotifyJoined(Role::Server, stream));
    }
    for (role, early) in [(Role::Client, client), (Role::Server, server)] {
        if early.receive {
            actions.push(Action::Shutdown(stream, role, Shutdown::Receive));
        }
        if early.send {
            actions.push(Action::Shutdown(stream, role, Shutdown::Send));
        }
    }
    match (server.closed, certain) {
        (true, _) => {
            let how = if server.reset { Ending::Reset } else { Ending::Close };
            actions.extend(leave(stream, Role::Server, how));
            (State::Left { stream, who: Role::Server }, actions)
        }
        (false, true) => (State::Joined { stream }, actions),
        (false, false) => (State::Attached { stream }, actions),
    }
}

/// `role` leaves the stream.
fn leave<E>(stream: StreamId, role: Role, how: Ending) -> Vec<Action<E>> {
    let mut actions = Vec::new();
    if how == Ending::Reset {
        actions.push(Action::Reset(stream, role));
    }
    if how != Ending::Left {
        actions.push(Action::NotifyLeft(role.other()));
        actions.push(Action::Leave(stream, role));
    }
    actions
}

fn attached<E>(stream: StreamId, event: Event<E>) -> Next<E> {
    let notified = || vec![Action::NotifyJoined(Role::Client, stream)];
    match event {
        Event::Confirm => (State::Joined { stream }, notified()),
        Event::Shutdown(role, what) => {
            let act = Action::Shutdown(stream, role, what);
            match role {
                // A server that acts is certain.
                Role::Server => (State::Joined { stream }, notified().into_iter().chain([act]).collect()),
                Role::Client => (State::Attached { stream }, vec![act]),
            }
        }
        event => match event.ending() {
            Some((Role::Server, how)) => {
                let actions = notified().into_iter().chain(leave(stream, Role::Server, how)).collect();
                (State::Left { stream, who: Role::Server }, actions)
            }
            Some((Role::Client, how)) => {
                (State::Left { stream, who: Role::Client }, leave(stream, Role::Client, how))
            }
            None => ignored(State::Attached { stream }),
        },
    }
}

fn joined<E>(stream: StreamId, event: Event<E>) -> Next<E> {
    match event {
        Event::Shutdown(role, what) => (State::Joined { stream }, vec![Action::Shutdown(stream, role, what)]),
        event => match event.ending() {
            Some((who, how)) => (State::Left { stream, who }, leave(stream, who, how)),
            None => ignored(State::Joined { stream }),
        },
    }
}

fn left<E>(stream: StreamId, who: Role, event: Event<E>) -> Next<E> {
    match event {
        Event::Shutdown(role, what) if role != who => {
            (State::Left { stream, who }, vec![Action::Shutdown(stream, role, what)])
        }
        event => match event.ending() {
            Some((role, how)) if role != who => (State::Over, leave(stream, role, how)),
            _ => ignored(State::Left { stream, who }),
        },
    }
}

#[cfg(test)]
mod tests;
