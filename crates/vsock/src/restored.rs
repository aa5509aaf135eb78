//! Connections of a previous daemon: each device restores its end, and one of them joins both again.
//!
//! ```text
//! Router::restore                one device has an end
//! Router::take_restored, rejoin  the other one has one of the same connection
//! Router::end_restored           what is left has no other end
//! ```

use std::sync::Arc;

use vmlane_port::{Resumed, StreamEnd, StreamId};

use crate::address::Key;
use crate::connection::{Failed, Role, State};
use crate::registry::{Call, Remote, RestoredEnd};
use crate::router::{Calls, Connection, Router, Todo};

impl Router {
    /// The end `role` of a connection of a previous daemon is there. Its peer is joined with it, or
    /// [`Remote::failed`] is called in [`Router::end_restored`].
    pub fn restore(&self, key: Key, role: Role, end: RestoredEnd) -> Call {
        let mut tables = self.tables.lock();
        tables.last += 1;
        let number = tables.last;
        tables.restored.insert((key, role), (number, end));
        Call { key, number, role }
    }

    /// That end, for its peer, if both may talk.
    pub fn take_restored(&self, key: Key, role: Role) -> Option<(Call, RestoredEnd)> {
        let mut tables = self.tables.lock();
        let known = self.vms.known();
        known.may_talk(key.client.0, key.server.0).then_some(())?;
        let (number, end) = tables.restored.remove(&(key, role))?;
        Some((Call { key, number, role }, end))
    }

    /// Joins both ends of a connection again: `restored`, which the call is of, and `peer`. Returns the
    /// peer's call, the stream, and what follows. None: nothing answers for the server; the connection has
    /// failed for the restored end.
    pub fn rejoin(
        &self,
        (call, restored): (Call, RestoredEnd),
        (peer, peer_remote): (StreamEnd, Arc<dyn Remote>),
    ) -> (Option<(Call, StreamId)>, Calls) {
        let RestoredEnd { end, remote, announced, .. } = restored;
        let mut tables = self.tables.lock();
        let server = tables.endpoint(call.key.server.0, &self.vms.known()).cloned();
        let Some(server) = server else {
            return (None, Calls::of(vec![Todo::Failed(remote, call, Failed::Absent)]));
        };
        let (ends, remotes) = match call.role {
            Role::Client => ([end, peer], [remote.clone(), peer_remote]),
            Role::Server => ([peer, end], [peer_remote, remote.clone()]),
        };
        let ends = ends.map(Some);
        let stream =
            self.streams.resume(Resumed { ends, left: Default::default(), marks: Default::default() });
        let (state, remotes) = (State::Joined { stream }, remotes.map(Some));
        tables.connections.insert(call.number, Connection { state, server, remotes });
        let side = call.role.side();
        let mut todo = vec![Todo::Joined(remote, call, stream, side)];
        todo.extend(announced.into_iter().map(|what| Todo::Shutdown(stream, side, what)));
        (Some((call.of(call.role.other()), stream)), Calls::of(todo))
    }

    /// No other end comes any more: what waits for one has failed.
    pub fn end_restored(&self) {
        let left = std::mem::take(&mut self.tables.lock().restored);
        for ((key, role), (number, end)) in left {
            end.remote.failed(Call { key, number, role }, Failed::Gone);
        }
    }
}
