//! Joined streams have their turns.

use rustix::event::epoll::EventFlags;
use vmlane_wire::host::SWITCH;

use super::Server;
use crate::sockets::client::State;
use crate::sockets::inbox::Token;
use crate::sockets::socket::{self, Io};
use crate::sockets::stream::Turn;

impl Server {
    pub(super) fn turn(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let State::Streaming(stream) = &mut client.state else { return };
        let account = client.account;
        if self.turns.is_over(account) {
            return self.turns.again(token);
        }
        let switched = client.waker.as_ref().is_some_and(|waker| waker.has_switched());
        let (turn, moved) = stream.turn(&self.router, &client.socket, switched, &mut self.buffer);
        self.turns.charge(account, moved.up + moved.down);
        self.hybrids.moved(account, moved);
        match turn {
            Turn::Waits => {}
            Turn::Again => self.turns.again(token),
            Turn::Over => self.leaves(token),
            Turn::Reset => self.reset(token),
            Turn::Switch => self.switch(token),
        }
    }

    /// The process uses its ring no more: the socket carries the stream from here on.
    fn switch(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let State::Streaming(stream) = &mut client.state else { return };
        if let Some(waker) = &client.waker {
            waker.stop_signals();
        }
        let switched = stream.switch().is_ok() && socket::write(&*client.socket, &[SWITCH]) == Io::Done(1);
        self.watch_bytes(token, true);
        if switched { self.turns.again(token) } else { self.close(token) }
    }

    /// Does its socket carry the stream? One that carries signals is read by the stream's worker, and only
    /// its end is of interest here.
    pub(super) fn watch_bytes(&self, token: Token, bytes: bool) {
        let Some(client) = self.clients.get(token) else { return };
        let of_bytes = if bytes { EventFlags::IN | EventFlags::OUT } else { EventFlags::empty() };
        let wanted = of_bytes | EventFlags::RDHUP | EventFlags::ET;
        if let Err(error) = self.poller.change(&client.socket, token, wanted) {
            tracing::warn!(%error, "a host program cannot be polled");
        }
    }
}
