//! Streams between a program and another host whose bytes do not pass the daemon: how program and helper get to know each other, and
//! how they part.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::Shutdown as Shut;
use vmlane_port::StreamEnd;
use vmlane_vsock::Call;
use vmlane_wire::host::{Reply, SWITCH, ended};
use vmlane_wire::vmci::CID_HOST;
use zerocopy::IntoBytes;

use super::Server;
use crate::sockets::client::{Account, Ring, State};
use crate::sockets::left::{Left, LeftEnd, LeftStream};
use crate::sockets::mail::{StreamWaker, Token};
use crate::sockets::socket::{self, Io};
use crate::sockets::stream::{Kind, Stream};

/// Reads of a helper's line at a time.
const READS: usize = 4;

/// A stream's end, what reaches its process, and its ring.
pub type Half = (StreamEnd, Arc<StreamWaker>, Ring);

impl Server {
    /// Does a program with a ring of its own listen there?
    pub(super) fn listens_with_ring(&self, port: u32) -> bool {
        let listener = self.listeners.get(&port).and_then(|&token| self.clients.get(token));
        listener.is_some_and(|client| matches!(client.state, State::Listening { ring: true, .. }))
    }

    /// The program's end of such a stream.
    pub(super) fn programs_half(
        &mut self,
        left: &mut LeftStream,
        token: Token,
        account: Account,
        socket: &Arc<OwnedFd>,
    ) -> std::io::Result<Half> {
        let waker = Arc::new(StreamWaker::new(token, self.mailbox.clone(), Some(socket.clone())));
        let port = Box::new(LeftEnd::of_program(&left.map, waker.clone())?);
        left.program = Some(token);
        let end = StreamEnd { port, budget: self.budget(account), slow: false };
        Ok((end, waker, Ring::Left(left.map.clone())))
    }

    /// The helper's.
    pub(super) fn helpers_half(
        &mut self,
        left: &mut LeftStream,
        token: Token,
        account: Account,
        line: &Arc<OwnedFd>,
    ) -> std::io::Result<Half> {
        let waker = Arc::new(StreamWaker::new(token, self.mailbox.clone(), None));
        let port = Box::new(LeftEnd::of_helper(&left.map, line.clone())?);
        left.helper = Some(token);
        let end = StreamEnd { port, budget: self.budget(account), slow: false };
        Ok((end, waker, Ring::Helpers(left.map.clone())))
    }

    /// The other half of a stream that was begun so. The call is refused if that cannot be (`able`).
    pub(super) fn other_half(
        &mut self,
        call: Call,
        able: bool,
        half: impl FnOnce(&mut Server, &mut LeftStream) -> std::io::Result<Half>,
    ) -> Option<Result<Half, Errno>> {
        let mut left = self.routes.left.remove(&call.number)?;
        let made = if able { half(self, &mut left).map_err(|_| Errno::NOBUFS) } else { Err(Errno::PROTO) };
        self.routes.left.insert(call.number, left);
        Some(made)
    }

    /// The ring's memory, for the program.
    pub(super) fn memory_of(&self, call: Call) -> Option<OwnedFd> {
        self.routes.left.get(&call.number)?.memory.as_ref()?.try_clone().ok()
    }

    /// One of the two is joined, and if it is the program, was told so. Once both are, the helper gets the ring: it may signal from
    /// then on.
    pub(super) fn introduce(&mut self, call: Call, program: bool) {
        let Some(left) = self.routes.left.get_mut(&call.number) else { return };
        left.told |= program;
        left.joined |= !program;
        if !(left.told && left.joined) {
            return;
        }
        let (Some(memory), Some(program), Some(helper)) = (left.memory.take(), left.program, left.helper)
        else {
            return;
        };
        let socket_of = |token| self.clients.get(token).map(|client| client.socket.clone());
        let (Some(signals), Some(line)) = (socket_of(program), socket_of(helper)) else { return };
        let reply = Reply::new(0, CID_HOST, 0);
        let files = [memory.as_fd(), signals.as_fd()];
        if socket::write_with(&*line, reply.as_bytes(), &files) != Io::Done(reply.as_bytes().len()) {
            return self.reset(helper);
        }
        if let Some(Left { line: known, .. }) = self.left_of(program) {
            *known = Some(line);
        }
    }

    fn left_of(&mut self, token: Token) -> Option<&mut Left> {
        match &mut self.clients.get_mut(token)?.state {
            State::Streaming(stream) => stream.left.as_mut(),
            _ => None,
        }
    }

    /// One of the two is gone; `stream` is what it had.
    pub(super) fn half_ends(&mut self, stream: &Stream) {
        let helpers = matches!(stream.kind, Kind::Helpers(_));
        if !helpers && stream.left.is_none() {
            return;
        }
        let Some(left) = self.routes.left.remove(&stream.call.number) else { return };
        if !helpers {
            // A helper that has not heard of the program never will.
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
        if matches!(&client.state, State::Streaming(stream) if matches!(stream.kind, Kind::Left(_))) {
            let wanted = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
            let _ = epoll::modify(&self.epoll, &*client.socket, epoll::EventData::new_u64(program), wanted);
        } else {
            self.turns.again(program);
        }
    }

    /// The program is to hear of a reset, whether or not the helper agrees.
    pub(super) fn reset_program(&mut self, helper: Token) {
        let Some(State::Streaming(stream)) = self.clients.get(helper).map(|client| &client.state) else {
            return;
        };
        let Kind::Helpers(map) = &stream.kind else { return };
        let left = self.routes.left.get(&stream.call.number);
        let Some(client) = left.and_then(|left| self.clients.get(left.program?)) else { return };
        if let Some(waker) = &client.waker {
            crate::sockets::left::reset(map, waker);
            if !waker.has_switched() {
                // Not both ways: the program's own end is still to be heard of.
                socket::shut(&*client.socket, Shut::Write);
            }
        }
    }

    /// Has the helper said that the peer is done, and put all that it sent into the ring?
    pub(super) fn is_done(kind: &Kind) -> bool {
        matches!(kind, Kind::Helpers(map) if map.ended() & ended::DETACHED != 0)
    }

    /// Something on a helper's line: of a program that has left its ring to the daemon.
    pub(super) fn helper_signals(&mut self, token: Token, hung_up: bool) {
        let Some(client) = self.clients.get(token) else { return };
        let State::Streaming(stream) = &client.state else { return };
        let program = self.routes.left.get(&stream.call.number).and_then(|left| left.program);
        let mut bytes = [0; 1024];
        let (mut any, mut switches) = (false, false);
        for _ in 0..READS {
            let Io::Done(len) = socket::read(&*client.socket, &mut bytes) else { break };
            any = true;
            switches |= bytes.get(..len).unwrap_or_default().contains(&SWITCH);
        }
        if let Some(program) = program.filter(|_| any) {
            if switches
                && let Some(waker) = self.clients.get(program).and_then(|client| client.waker.as_ref())
            {
                waker.switch();
            }
            self.turn(program);
        }
        if hung_up {
            self.leaves(token);
        }
    }

    /// A program whose helper has gone has signalled: all that is to be heard of is that it leaves its ring to the daemon.
    pub(super) fn orphan_signals(&self, token: Token) {
        if let Some(waker) = self.clients.get(token).and_then(|client| client.waker.as_ref()) {
            waker.take_orphans_signals();
        }
    }
}
