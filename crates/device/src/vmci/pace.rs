//! Handshakes with guests that send byte by byte go a few at a time.
//!
//! Before Linux 5.18 a VMCI driver moves each byte of a datagram through a port, which takes a
//! hundred microseconds under emulation, and a server's kernel gives a connection up that is in the
//! making for a second. Many handshakes at once would all be slow, and all be given up; a few at a
//! time all succeed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use vmlane_vsock::{Key, Role};

use super::connection::Connection;
use super::record::Dirty;
use super::tables::Inner;

/// Handshakes of one slow guest that are under way at once.
const AT_ONCE: usize = 3;
/// A handshake that has not moved for this long delays no other: its server has given it up by then.
const TIMEOUT: Duration = Duration::from_secs(1);

/// REQUESTs that wait, of all guests together; beyond, they are passed on at once. A check of all of
/// them must stay cheap, because any guest's packet may be the reason for one.
const MOST_WAITING: usize = 256;

/// How many handshakes each slow guest has under way.
struct UnderWay(HashMap<u32, usize>);

impl UnderWay {
    fn is_full(&self, key: Key) -> bool {
        [key.client.0, key.server.0].iter().any(|cid| self.0.get(cid).is_some_and(|&count| count >= AT_ONCE))
    }

    fn add(&mut self, key: Key) {
        for cid in [key.client.0, key.server.0] {
            if let Some(count) = self.0.get_mut(&cid) {
                *count += 1;
            }
        }
    }
}

impl Inner {
    fn under_way(&self, now: Instant) -> UnderWay {
        let slow = self.contexts.iter().filter(|(_, context)| context.slow);
        let mut under_way = UnderWay(slow.map(|(cid, _)| (cid, 0)).collect());
        for (&key, _) in self.connections.iter().filter(|(_, one)| one.is_in_the_making(now, TIMEOUT)) {
            under_way.add(key);
        }
        under_way
    }

    /// Whether the REQUEST of a new connection has to wait; if so it has its place in the queue now.
    pub(super) fn queue_up(&mut self, key: Key, now: Instant) -> bool {
        let slow = |cid: u32| self.contexts.get(cid).is_some_and(|context| context.slow);
        if !slow(key.client.0) && !slow(key.server.0) || !self.under_way(now).is_full(key) {
            return false;
        }
        // A client's port may be in the queue from before.
        if self.waiting.contains(&key) {
            return true;
        }
        let room = self.waiting.len() < MOST_WAITING;
        if room {
            self.waiting.push_back(key);
        }
        room
    }

    /// Passes on REQUESTs whose turn has come, in order.
    pub(super) fn pass_on_waiting(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            return;
        }
        let mut under_way = self.under_way(now);
        for _ in 0..self.waiting.len() {
            let Some(key) = self.waiting.pop_front() else { return };
            let waits = self.connections.get(&key).is_some_and(Connection::is_waiting);
            if waits && under_way.is_full(key) {
                self.waiting.push_back(key);
            } else if waits {
                under_way.add(key);
                self.pass_on(key, now);
            }
        }
    }

    fn pass_on(&mut self, key: Key, now: Instant) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let server = connection.server_as_known(key);
        let Some(request) = connection.release(now) else { return };
        self.dirty.push(Dirty::Connection(key));
        let connection = self.connections.get(&key);
        let sent =
            connection.is_some_and(|one| self.contexts.forward(key, one, Role::Client, request).is_ok());
        if !sent {
            // The program was given success for its packet: it learns like this that it led nowhere.
            self.remove_connection(key);
            self.contexts.send_reset(server, key.client);
        }
    }
}
