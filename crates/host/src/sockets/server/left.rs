//! Streams between a program and another host whose bytes do not pass the daemon: how program and helper get
//! to know each other, and how they part.

use std::os::fd::AsFd;

use vmlane_vsock::Call;
use vmlane_wire::host::{Reply, SWITCH};
use vmlane_wire::vmci::CID_HOST;
use zerocopy::IntoBytes;

use super::Server;
use crate::sockets::client::State;
use crate::sockets::inbox::Token;
use crate::sockets::left::Left;
use crate::sockets::socket::{self, Io};

/// Reads of a helper's line at a time.
const READS: usize = 4;

impl Server {
    /// Does a program with a ring of its own listen there?
    pub(super) fn listens_with_ring(&self, port: u32) -> bool {
        let listener = self.ports.listeners.get(&port).and_then(|&token| self.clients.get(token));
        listener.is_some_and(|client| matches!(client.state, State::Listening { ring: true, .. }))
    }

    /// One of the two is joined, and if it is the program, was notified. Once both are, the helper gets the
    /// ring: it may signal from then on.
    pub(super) fn introduce(&mut self, call: Call, program: bool) {
        let Some(left) = self.routes.left.get_mut(&call.number) else { return };
        left.notified |= program;
        left.joined |= !program;
        if !(left.notified && left.joined) {
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

    /// A program whose helper has gone has signalled: all that counts is that it leaves its ring
    /// to the daemon.
    pub(super) fn orphan_signals(&self, token: Token) {
        if let Some(waker) = self.clients.get(token).and_then(|client| client.waker.as_ref()) {
            waker.take_orphans_signals();
        }
    }
}
