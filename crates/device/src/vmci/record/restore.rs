//! How a daemon restores what a previous one recorded of the hypervisor (`docs/survival.md`).

use std::collections::{BTreeMap, HashMap, HashSet};

use vmlane_mem::MemoryMap;
use vmlane_port::Side;
use vmlane_state::{Key as RecordKey, Reader, Records};
use vmlane_vsock::Key;
use vmlane_wire::vmci::CID_HOST;

use super::{
    CONNECTION, CONTEXT, DOORBELL, Dirty, EXECUTED, GENERATION, ITEM, MOST_DAEMONS, NOTIFIED, OVERFLOW,
    PAGES, PAIR, PairParts, WELL_KNOWN, first_number, parse_pages, parse_waiting, socket_address,
};
use crate::vmci::connection::Connection;
use crate::vmci::queue_pair::Pair;
use crate::vmci::tables::{Hypervisor, Inner};

/// A previous daemon's records, by what they describe.
#[derive(Default)]
struct Sorted {
    generation: u64,
    contexts: Vec<(u32, Vec<u8>)>,
    doorbells: Vec<(u32, u32, usize)>,
    well_known: Vec<(u32, u32)>,
    pairs: BTreeMap<u64, Vec<u8>>,
    parts: HashMap<u64, PairParts>,
    connections: Vec<(Key, Vec<u8>)>,
    items: BTreeMap<u32, Vec<(u64, Vec<u8>)>>,
    executed: Vec<(u32, Vec<u8>)>,
}

impl Sorted {
    fn of(records: Records) -> Sorted {
        let mut sorted = Sorted::default();
        for ((kind, a, b), record) in records {
            let (cid, side) = (a as u32, if b & 1 == 0 { Side::A } else { Side::B });
            match kind {
                GENERATION if a < MOST_DAEMONS => sorted.generation = a,
                CONTEXT => sorted.contexts.push((cid, record)),
                DOORBELL => {
                    let index = Reader::new(&record).u64().unwrap_or(u64::MAX);
                    sorted.doorbells.push((cid, b as u32, index as usize));
                }
                WELL_KNOWN => sorted.well_known.push((cid, b as u32)),
                PAIR if a < u64::MAX / 2 => drop(sorted.pairs.insert(a, record)),
                PAGES => sorted.parts.entry(a).or_default().pages[side] = parse_pages(&record),
                OVERFLOW => {
                    let mut from = Reader::new(&record);
                    let overflow = from.u64().zip(from.bytes().map(<[u8]>::to_vec));
                    sorted.parts.entry(a).or_default().overflow[side] = overflow;
                }
                NOTIFIED => {
                    sorted.parts.entry(a).or_default().notified[side] = record.first().copied().unwrap_or(0)
                }
                CONNECTION => {
                    let key = Key { client: socket_address(a), server: socket_address(b) };
                    sorted.connections.push((key, record));
                }
                ITEM => sorted.items.entry(cid).or_default().push((b, record)),
                EXECUTED => sorted.executed.push((cid, record)),
                _ => tracing::warn!(kind, "a record of a kind that is not known"),
            }
        }
        sorted
    }
}

/// What a previous daemon left of the hypervisor.
#[derive(Debug)]
pub enum HypervisorCheckpoint {
    /// Its records, and the keys of those that are damaged.
    Known { records: Records, damaged: Vec<RecordKey> },
    /// Nothing, or nothing that can be read.
    Lost,
}

/// Whom damaged records hurt.
#[derive(Default)]
struct Damage {
    /// A damaged record's key is all that there was to it.
    generation: u64,
    contexts: HashSet<u32>,
    /// By serial number.
    pairs: HashSet<u64>,
    connections: HashSet<Key>,
}

impl Damage {
    fn of(keys: &[RecordKey]) -> Damage {
        let mut damage = Damage::default();
        for &(kind, a, b) in keys {
            match kind {
                CONTEXT | DOORBELL | WELL_KNOWN | ITEM | EXECUTED => drop(damage.contexts.insert(a as u32)),
                PAIR | PAGES | OVERFLOW | NOTIFIED => drop(damage.pairs.insert(a)),
                CONNECTION => {
                    let key = Key { client: socket_address(a), server: socket_address(b) };
                    damage.connections.insert(key);
                }
                GENERATION if a < MOST_DAEMONS => damage.generation = a,
                _ => {}
            }
        }
        damage
    }
}

impl Hypervisor {
    /// Restores what a previous daemon recorded. `maps`: the memory of every guest that is there. Called
    /// once all VMs were added and have their devices, before any of them is served. A damaged record
    /// hurts the device or the stream that it was about.
    pub fn resume(&self, checkpoint: HypervisorCheckpoint, mut maps: HashMap<u32, MemoryMap>) {
        let mut locked = self.inner.lock();
        let inner = &mut *locked;
        let (records, damage) = match checkpoint {
            HypervisorCheckpoint::Known { records, damaged } => {
                if let Some(log) = &self.log {
                    damaged.iter().for_each(|key| log.stage_removal(*key));
                }
                let damage = Damage::of(&damaged);
                if !damaged.is_empty() {
                    tracing::error!(
                        devices = damage.contexts.len(),
                        streams = damage.pairs.len() + damage.connections.len(),
                        "records of a previous daemon are damaged: these are reset, the rest continues"
                    );
                }
                (records, damage)
            }
            HypervisorCheckpoint::Lost => {
                (Records::new(), Damage { contexts: maps.keys().copied().collect(), ..Damage::default() })
            }
        };
        maps.retain(|cid, _| !damage.contexts.contains(cid));
        let (records, maps) = (self.without_lost(records, &damage), &maps);
        let mut sorted = Sorted::of(records);
        sorted.generation = sorted.generation.max(damage.generation);
        inner.generation = sorted.generation + 1;
        if let Some(log) = &self.log {
            log.stage_removal((GENERATION, sorted.generation, 0));
            log.stage((GENERATION, inner.generation, 0), &[]);
        }
        let first = first_number(inner.generation);
        for (_, context) in inner.contexts.iter() {
            context.inbox.number_from(first);
        }
        self.resume_contexts(inner, &sorted, maps);
        self.resume_connections(inner, sorted.connections, maps);
        let mut parts = sorted.parts;
        for (serial, record) in sorted.pairs {
            inner.pairs.skip_serial(serial);
            let parts = parts.remove(&serial).unwrap_or_default();
            inner.dirty.push(Dirty::Pair(serial));
            let Some(record) = Pair::from_record(serial, &record) else { continue };
            let connection = record.pair.connection;
            let sound = !damage.pairs.contains(&serial)
                && connection.is_none_or(|key| !damage.connections.contains(&key));
            if sound && self.resume_pair(inner, record, parts, maps) {
                continue;
            }
            // Its other end did not outlive the previous daemon: the remaining end is notified.
            tracing::debug!(serial, "a queue pair of a previous daemon has ended");
            connection.into_iter().for_each(|key| inner.end(key));
        }
        inner.end_damaged(&damage);
        inner.end_unjoined();
        for (cid, items) in sorted.items {
            let Some(inbox) = inner.contexts.get(cid).map(|context| &context.inbox) else {
                continue;
            };
            let known = items.iter().filter_map(|(number, record)| {
                let (of, bytes) = parse_waiting(record)?;
                Some((*number, of, bytes))
            });
            inbox.restore_first(known.filter(|_| maps.contains_key(&cid)).collect());
        }
        self.commit(inner);
        drop(locked);
        self.run_after();
    }

    /// Records except those of devices that are reset, which are removed.
    fn without_lost(&self, records: Records, damage: &Damage) -> Records {
        let of_lost = |(kind, a, _): RecordKey| {
            let of_one = matches!(kind, CONTEXT | DOORBELL | WELL_KNOWN | ITEM | EXECUTED);
            of_one && damage.contexts.contains(&(a as u32))
        };
        let (lost, rest): (Records, Records) = records.into_iter().partition(|(key, _)| of_lost(*key));
        if let Some(log) = &self.log {
            lost.iter().for_each(|(key, _)| log.stage_removal(*key));
        }
        rest
    }

    /// True, once, for a device whose records were lost: it is reset.
    pub(in crate::vmci) fn take_lost(&self, cid: u32) -> bool {
        self.inner.lock().lost.remove(&cid)
    }

    fn resume_contexts(&self, inner: &mut Inner, sorted: &Sorted, maps: &HashMap<u32, MemoryMap>) {
        for (cid, record) in &sorted.contexts {
            let (Some(context), Some(map)) = (inner.contexts.get_mut(*cid), maps.get(cid)) else { continue };
            let mut from = Reader::new(record);
            let known = (|| {
                let known = (from.flag()?, from.flag()?, from.option()?, from.u32()?);
                let high = [from.u32()?, from.u32()?];
                from.end().map(|()| (known, high))
            })();
            let Some(((ready, slow, bitmap, shift), high)) = known else { continue };
            (context.ready, context.slow, context.buffers_high) = (ready, slow, high);
            context.bitmap_at = bitmap.filter(|_| [12, 14, 16].contains(&shift)).map(|addr| (addr, shift));
            context.bitmap =
                context.bitmap_at.and_then(|(addr, shift)| map.pages([addr].into_iter(), shift).ok());
        }
        for &(cid, resource, index) in &sorted.doorbells {
            if let Some(context) = inner.contexts.get_mut(cid).filter(|_| maps.contains_key(&cid)) {
                context.doorbells.insert(resource, index);
            }
        }
        for &(cid, resource) in &sorted.well_known {
            if let Ok(vm) = inner.contexts.vm(cid)
                && maps.contains_key(&cid)
            {
                inner.well_known.take((&vm.group, cid), resource);
            }
        }
        for (cid, record) in &sorted.executed {
            let mut from = Reader::new(record);
            if let (Some(request), Some(result)) = (from.u64(), from.u32()) {
                inner.executed.insert(*cid, (request, result as i32));
            }
        }
    }

    fn resume_connections(
        &self,
        inner: &mut Inner,
        connections: Vec<(Key, Vec<u8>)>,
        maps: &HashMap<u32, MemoryMap>,
    ) {
        for (key, record) in connections {
            let there = maps.contains_key(&key.client.0) || maps.contains_key(&key.server.0);
            let routed = !inner.contexts.is_guest(key.client.0) || !inner.contexts.is_guest(key.server.0);
            match Connection::from_record(&record).filter(|_| there) {
                // What an endpoint of another kind knew of a handshake is gone.
                Some(connection) if routed && !connection.is_attached() => {
                    inner.contexts.send_reset(connection.server_as_known(key), key.client);
                    inner.contexts.send_reset(key.client, key.server);
                    inner.dirty.push(Dirty::Connection(key));
                }
                Some(connection) => {
                    if let Some(client) = inner.contexts.get_mut(key.client.0).filter(|_| connection.counted)
                    {
                        client.connections += 1;
                    }
                    if connection.is_waiting() {
                        inner.waiting.push_back(key);
                    }
                    inner.connections.insert(key, connection);
                }
                None => inner.dirty.push(Dirty::Connection(key)),
            }
        }
    }
}

impl Inner {
    /// Ends connections with endpoints of other kinds of whose pairs there is nothing.
    fn end_unjoined(&mut self) {
        let guests = |key: &Key| [key.client.0, key.server.0].iter().all(|cid| self.contexts.is_guest(*cid));
        let unjoined = |(key, connection): &(&Key, &Connection)| {
            connection.is_attached() && !connection.is_joined() && !guests(key)
        };
        let keys: Vec<Key> = self.connections.iter().filter(unjoined).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.end(key));
    }

    /// Ends a connection, and notifies both of its ends.
    fn end(&mut self, key: Key) {
        if let Some(connection) = self.remove_connection(key) {
            self.contexts.send_reset(connection.server_as_known(key), key.client);
            self.contexts.send_reset(key.client, key.server);
        }
    }

    /// Ends what damaged records described, and notifies its ends.
    fn end_damaged(&mut self, damage: &Damage) {
        self.lost.extend(&damage.contexts);
        for &serial in &damage.pairs {
            self.pairs.skip_serial(serial);
            self.dirty.push(Dirty::Pair(serial));
        }
        for &key in &damage.connections {
            let client = self.contexts.vm(key.client.0).ok();
            let ways_in = client.iter().flat_map(|vm| &vm.forwards);
            let ways_in = ways_in.filter(|forward| (forward.to_cid, forward.to_port) == key.server);
            // The client may know the server by another address.
            for known_as in ways_in.map(|forward| (CID_HOST, forward.port)).chain([key.server]) {
                self.contexts.send_reset(known_as, key.client);
            }
            self.contexts.send_reset(key.client, key.server);
            self.dirty.push(Dirty::Connection(key));
        }
        if damage.pairs.is_empty() {
            return;
        }
        let whole: HashSet<Key> = self.pairs.iter().filter_map(|(_, pair)| pair.connection).collect();
        let halves = self.connections.iter();
        let halves = halves.filter(|(key, connection)| connection.handle.is_some() && !whole.contains(*key));
        let keys: Vec<Key> = halves.map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.end(key));
    }
}
