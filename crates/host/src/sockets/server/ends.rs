//! A client gets its place, and gives it back with all that it had; what ends with it ends here, too.

use std::sync::atomic::Ordering;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::Shutdown as Shut;
use vmlane_vsock::Failed;
use vmlane_wire::host::{ANNOUNCED_CLOSE, Reply, ended};

use super::Server;
use crate::sockets::client::{Account, Client, Dialect, State};
use crate::sockets::inbox::Token;
use crate::sockets::left::Left;
use crate::sockets::route::PeerReport;
use crate::sockets::socket;
use crate::sockets::stream::{Stream, StreamKind};

impl Server {
    /// Gives a client a place, if there is one.
    pub(super) fn admit(&mut self, client: Client) -> Option<Token> {
        let token = self.poller.token();
        self.admit_as(token, client).then_some(token)
    }

    /// The same with a token that others know already.
    pub(super) fn admit_as(&mut self, token: Token, client: Client) -> bool {
        let of_process = self.clients.of_process(&client.peer);
        let of_process = if client.account.is_user() { of_process } else { 0 };
        if !self.clients.has_room(client.account) || of_process >= self.bounds.of_process {
            tracing::debug!(pid = client.peer.pid, "a host program has too many sockets");
            return false;
        }
        let wanted = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let watched = self.poller.add(&client.socket, token, wanted).is_ok();
        if watched {
            self.clients.insert(token, client);
        }
        watched
    }

    /// The client goes, with all it had.
    pub(super) fn close(&mut self, token: Token) {
        let Some(client) = self.clients.remove(token) else { return };
        self.poller.remove(&client.socket);
        if !client.account.is_user() {
            self.hybrids.ends(token);
            if let Some(peer) = self.routes.peer(client.account) {
                peer.streams.fetch_sub(1, Ordering::Relaxed);
            }
        }
        match client.state {
            State::Asking { .. } | State::Changing => {}
            State::Asked(call) => self.hybrids.over(&self.router, call, Failed::Gone),
            State::Connecting(opening, ..) => {
                self.routes.forget(opening.call);
                self.router.close(opening.call);
            }
            State::Line(socket) => {
                self.poller.remove(&socket);
                self.line_ends();
            }
            // The process has never had it.
            State::Accepting(opening, _) => self.router.withdraw(opening.call),
            State::Streaming(stream) => {
                self.router.close(stream.call);
                self.half_ends(&stream);
            }
            State::Listening { port, .. } => {
                self.ports.listeners.remove(&port);
            }
            State::Datagrams { port, socket } => {
                self.poller.remove(&socket);
                self.ports.datagrams.lock().remove(&port);
            }
        }
    }

    /// The client gets the reason, and is closed.
    pub(super) fn fail(&mut self, token: Token, errno: Errno) {
        if let Some(client) = self.clients.get(token)
            && let State::Connecting(_, Dialect::Forward(cid, _), _) = &client.state
        {
            self.hybrids.count(Some(*cid), |stats| stats.connects_refused.inc());
        }
        if let Some(client) = self.clients.get(token)
            && let State::Connecting(_, Dialect::Route, _) = &client.state
            && let Some(peer) = self.routes.peer(client.account)
        {
            peer.stats.opens_refused.inc();
        }
        if let Some(client) = self.clients.get(token)
            && matches!(
                client.state,
                State::Asking { dialect: Dialect::Native | Dialect::Route, .. }
                    | State::Connecting(_, Dialect::Native | Dialect::Route, _)
            )
        {
            client.reply(Reply::new(errno.raw_os_error(), 0, 0), None);
        }
        self.close(token);
    }

    /// The process has left bytes unread: its peer gets a reset.
    pub(super) fn reset(&mut self, token: Token) {
        self.reset_program(token);
        if let Some(client) = self.clients.get(token)
            && let State::Streaming(stream) = &client.state
        {
            self.router.reset(stream.call);
        }
        self.close(token);
    }

    /// A joined stream's process has gone. A helper that has not announced its end was cut off, and so are
    /// its peers.
    pub(super) fn leaves(&mut self, token: Token) {
        let Some(client) = self.clients.get(token) else { return };
        let announced = match &client.state {
            State::Streaming(stream) => match &stream.kind {
                StreamKind::Ring { map, .. } => map.announced(),
                // It has put all that its peer sent into the ring.
                StreamKind::Helpers(map) if map.ended() & ended::DETACHED != 0 => ANNOUNCED_CLOSE,
                StreamKind::Plain(_) | StreamKind::Left(_) | StreamKind::Helpers(_) => 0,
            },
            _ => 0,
        };
        let cut_off = matches!(client.account, Account::Peer(_)) && announced & ANNOUNCED_CLOSE == 0;
        if cut_off { self.reset(token) } else { self.close(token) }
    }

    pub(super) fn left_of(&mut self, token: Token) -> Option<&mut Left> {
        match &mut self.clients.get_mut(token)?.state {
            State::Streaming(stream) => stream.left.as_mut(),
            _ => None,
        }
    }

    /// One of the two is gone; `stream` is what it had.
    fn half_ends(&mut self, stream: &Stream) {
        let helpers = matches!(stream.kind, StreamKind::Helpers(_));
        if !helpers && stream.left.is_none() {
            return;
        }
        let Some(left) = self.routes.left.remove(&stream.call.number) else { return };
        if !helpers {
            // A helper that was not notified of the program never will be.
            if let (Some(helper), Some(_)) = (left.helper, left.memory) {
                self.reset(helper);
            }
            return;
        }
        let Some(program) = left.program else { return };
        if let Some(Left { line, .. }) = self.left_of(program) {
            *line = None;
        }
        // Its signals have no other reader now.
        let Some(client) = self.clients.get(program) else { return };
        if matches!(&client.state, State::Streaming(stream) if matches!(stream.kind, StreamKind::Left(_))) {
            let wanted = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
            let _ = self.poller.change(&client.socket, program, wanted);
        } else {
            self.turns.again(program);
        }
    }

    /// The program gets a reset, whether or not the helper agrees.
    fn reset_program(&mut self, helper: Token) {
        let Some(State::Streaming(stream)) = self.clients.get(helper).map(|client| &client.state) else {
            return;
        };
        let StreamKind::Helpers(map) = &stream.kind else { return };
        let left = self.routes.left.get(&stream.call.number);
        let Some(client) = left.and_then(|left| self.clients.get(left.program?)) else { return };
        if let Some(waker) = &client.waker {
            crate::sockets::left::reset(map, waker);
            if !waker.has_switched() {
                // Not both ways: the program's own end is still to come.
                socket::shut(&*client.socket, Shut::Write);
            }
        }
    }

    pub(super) fn call_fails(&mut self, number: u64, why: Failed) {
        if let Some(asked) = self.routes.answered(number) {
            asked.peer.stats.calls_refused.inc();
            self.router.refuse(asked.call, why);
        }
    }

    /// The line is gone: nothing can be asked for until there is another one. Streams end as their
    /// connections do.
    fn line_ends(&mut self) {
        tracing::warn!("the helper for streams between hosts is gone");
        self.routes.line = None;
        self.routes.line_ends();
        for (_, shared) in self.routes.peers.values() {
            shared.up.store(false, Ordering::Release);
            *shared.report.lock() = PeerReport::default();
        }
        let numbers = self.routes.asked_of(None);
        numbers.into_iter().for_each(|number| self.call_fails(number, Failed::Gone));
    }
}
