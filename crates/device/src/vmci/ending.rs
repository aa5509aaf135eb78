//! Connections and queue pairs end: one end after the other leaves, and the last one takes the pair with it;
//! a pair that is gone takes its connection along, and a connection that never came about the pair that was
//! offered on it.

use vmlane_port::{Side, StreamId};
use vmlane_vsock::{Event, Failed, Key};
use vmlane_wire::vmci::{Handle, VmciError};

use super::caller::Caller;
use super::connection::Connection;
use super::pairs::PairName;
use super::queue_pair::{Pair, PairState, Ranges};
use super::record::Dirty;
use super::stats::Refusal;
use super::tables::{Hypervisor, Inner};

impl Hypervisor {
    pub(super) fn queue_pair_detach(&self, caller: Caller<'_>, handle: Handle) -> Result<i32, Refusal> {
        let cid = caller.cid;
        let (leaving, dirty) = {
            let mut inner = self.inner.lock();
            let Some(pair) = inner.held(cid, handle) else {
                // A guest keeps a pair whose detach fails. One that a previous daemon could not pass on is
                // gone; what it was is no longer known.
                let lost = inner.generation > 1;
                return if lost { Ok(0) } else { Err(Refusal::QueuePair(VmciError::NotFound)) };
            };
            inner.apart(|inner| inner.detach(cid, pair))
        };
        // The guest frees the pages as soon as it sees the result: wait until no worker uses them.
        self.streams.leave(leaving.as_slice());
        // Recorded only now: a daemon that finds the end attached takes its bytes.
        let mut inner = self.inner.lock();
        inner.dirty.extend(dirty);
        self.commit_result(&mut inner, caller, 0);
        drop(inner);
        self.run_after();
        Ok(0)
    }
}

impl Inner {
    /// A connection is forgotten, and no longer counts.
    pub(super) fn remove_connection(&mut self, key: Key) -> Option<Connection> {
        self.remove_connection_as(key, Failed::Gone)
    }

    /// The same; an endpoint of another kind that waits for it is notified of `why`.
    pub(super) fn remove_connection_as(&mut self, key: Key, why: Failed) -> Option<Connection> {
        let connection = self.connections.remove(&key)?;
        self.give_up(&connection, why);
        self.dirty.push(Dirty::Connection(key));
        if let Some(client) = self.contexts.get_mut(key.client.0).filter(|_| connection.counted) {
            client.connections -= 1;
        }
        Some(connection)
    }

    /// The VM is removed; connections that its peers still hold outlive it.
    pub(super) fn disown_connections(&mut self, cid: u32) {
        for (key, connection) in self.connections.iter_mut().filter(|(key, _)| key.client.0 == cid) {
            connection.counted = false;
            self.dirty.push(Dirty::Connection(*key));
        }
    }

    /// A context is gone: the peers of its half-made connections are notified of it now, those of complete
    /// ones when the engine has delivered what there was.
    pub(super) fn forget_connections(&mut self, cid: u32) {
        let keys: Vec<Key> = self
            .connections
            .iter()
            .filter(|(key, connection)| {
                connection.stream.is_none() && (key.client.0 == cid || key.server.0 == cid)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            let Some(connection) = self.remove_connection(key) else { continue };
            if key.client.0 == cid {
                self.contexts.send_reset(key.client, key.server);
            } else {
                self.contexts.send_reset(connection.server_as_known(key), key.client);
            }
        }
    }

    /// A connection is forgotten before it was joined: its other end is notified of `why`.
    fn give_up(&mut self, connection: &Connection, why: Failed) {
        let Some(call) = connection.call.filter(|_| !connection.is_joined()) else { return };
        self.others.apply(call, Event::Withdraw(call.role, why));
        if let Some(handle) = connection.handle {
            self.forget_offered_pair(handle);
        }
    }

    /// The pair that `cid`, which is an end of it, means by `handle`: the one of that name, else the last
    /// that had it.
    fn held(&self, cid: u32, handle: Handle) -> Option<PairName> {
        if self.pairs.get(&handle).is_some_and(|pair| pair.side(cid).is_some()) {
            return Some(PairName::Current(handle));
        }
        self.pairs.orphans_of(cid, handle).next_back().map(|(name, _)| name)
    }

    /// A pair that the device offered and no guest attached to goes.
    fn forget_offered_pair(&mut self, handle: Handle) {
        let offered = self.pairs.get(&handle).filter(|pair| matches!(pair.state, PairState::Offered));
        if let Some(serial) = offered.map(|pair| pair.serial) {
            self.dirty.push(Dirty::Pair(serial));
            self.pairs.remove(PairName::Current(handle));
        }
    }

    /// `cid`, an endpoint of another kind, leaves the pair that `stream` belongs to; its name may mean a
    /// newer one by now. True if the guest has been reset meanwhile, so that its connection is left over.
    pub(super) fn detach_stream(&mut self, cid: u32, handle: Handle, stream: StreamId) -> bool {
        let is_stream =
            |pair: &Pair| matches!(&pair.state, PairState::Joined { stream: own, .. } if *own == stream);
        if self.pairs.get(&handle).is_some_and(is_stream) {
            self.detach(cid, PairName::Current(handle));
            return false;
        }
        let orphan =
            self.pairs.orphans_of(cid, handle).find(|(_, pair)| is_stream(pair)).map(|(name, _)| name);
        orphan.is_some_and(|orphan| self.pairs.remove(orphan).is_some())
    }

    /// The names of pairs that `cid`, which holds none any more, has created are free again.
    pub(super) fn orphan_pairs(&mut self, cid: u32) {
        for (handle, pair) in self.pairs.take_created_by(cid) {
            self.dirty.push(Dirty::Pair(pair.serial));
            if let Some(attacher) = pair.attacher {
                self.pairs.insert_orphan(attacher, handle, pair);
            }
        }
    }

    /// What `act` changes is recorded by the caller, later.
    pub(super) fn apart<T>(&mut self, act: impl FnOnce(&mut Inner) -> T) -> (T, Vec<Dirty>) {
        let before = std::mem::take(&mut self.dirty);
        let done = act(self);
        (done, std::mem::replace(&mut self.dirty, before))
    }

    /// Takes `cid` off the pair. Returns the stream end whose leaving must be awaited, if any.
    fn detach(&mut self, cid: u32, name: PairName) -> Option<(StreamId, Side)> {
        let handle = name.handle();
        let pair = self.pairs.named_mut(name)?;
        let side = pair.side(cid)?;
        let bytes = pair.bytes();
        let key = pair.connection;
        let serial = pair.serial;
        let call = pair.call.filter(|call| call.role.side() == side);
        let (leaving, over) = match &mut pair.state {
            PairState::Created(_) | PairState::Offered => (None, true),
            PairState::Joined { stream, gone } => {
                gone[side] = true;
                (Some((*stream, side)), gone.a && gone.b)
            }
        };
        self.dirty.push(Dirty::Pair(serial));
        if let Some(call) = call {
            self.others.apply(call, Event::Left(call.role));
        }
        // The key may name a newer connection by now, if the client has used its port again.
        let own = key.filter(|key| self.connections.get(key).is_some_and(|own| own.is_about(handle)));
        if over {
            self.pairs.remove(name);
            own.map(|key| self.remove_connection(key));
        } else if let Some(connection) = own.and_then(|key| self.connections.get_mut(&key)) {
            connection.left(side);
            self.dirty.extend(own.map(Dirty::Connection));
        }
        if let Some(context) = self.contexts.get_mut(cid) {
            // A VM with another kind of vsock is charged for none.
            context.pairs = context.pairs.saturating_sub(1);
            context.pair_bytes = context.pair_bytes.saturating_sub(bytes);
        }
        leaving
    }

    /// Takes `cid` off every pair whose pages of this VM lie in ranges that `which` picks.
    pub(super) fn detach_all(&mut self, cid: u32, which: impl Fn(&Ranges) -> bool) -> Vec<(StreamId, Side)> {
        let is_of = |pair: &Pair| pair.side(cid).is_some_and(|side| which(&pair.ranges[side]));
        let of_vm = self.pairs.of(cid).filter(|(_, pair)| is_of(pair));
        let names: Vec<PairName> = of_vm.map(|(name, _)| name).collect();
        names.into_iter().filter_map(|name| self.detach(cid, name)).collect()
    }
}
