//! What the next daemon must know of the hypervisor: which records there are, when they are written, and how a
//! daemon restores a previous one's (`docs/survival.md`).
//!
//! Code that changes a table notes what it changed in [`Inner::dirty`]; before the fabric's lock is given
//! up, all of it is written as it is then, together with the number of the request that did it. So a
//! next daemon finds a request either done, with its result, or not begun.

use std::collections::{BTreeMap, HashMap, HashSet};

use vmlane_mem::MemoryMap;
use vmlane_state::{Journal, Key as RecordKey, Reader, Records, Writer};
use vmlane_wire::vmci::{CID_HOST, DatagramHeader, INVALID_ID, MAX_DATAGRAM};
use zerocopy::FromBytes;

use super::broker::{Pair, PairParts};
use super::fabric::{Caller, Context, Fabric, Inner};
use super::inbox::{Account, Charged};
use super::stream::{Connection, Key};

/// Kinds of records of the fabric.
const GENERATION: u32 = 1;
const CONTEXT: u32 = 2;
const DOORBELL: u32 = 3;
const WELL_KNOWN: u32 = 4;
const PAIR: u32 = 5;
pub const PAGES: u32 = 6;
pub const SPILL: u32 = 7;
pub const TOLD: u32 = 8;
const CONNECTION: u32 = 9;
const ITEM: u32 = 10;
const EXECUTED: u32 = 11;

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dirty {
    Context(u32),
    /// Context and resource.
    Doorbell(u32, u32),
    WellKnown(u32, u32),
    /// By its serial number.
    Pair(u64),
    Connection(Key),
    /// The request that a context had done last is of no interest any more.
    Executed(u32),
}

/// Key of what waits for `cid`.
pub fn item(cid: u32, number: u64) -> RecordKey {
    (ITEM, cid.into(), number)
}

/// Something that waits: of whom and charged to what, unless the device itself made it.
pub fn waiting(of: Charged, bytes: &[u8]) -> Vec<u8> {
    let mut out = Writer::new();
    let (account, from) = of.map_or((0, 0), |(account, from)| (1 + account as u8, from));
    out.u8(account).u32(from).bytes(bytes);
    out.0
}

fn parse_waiting(record: &[u8]) -> Option<(Charged, Box<[u8]>)> {
    let mut from = Reader::new(record);
    let (account, cid) = (from.u8()?, from.u32()?);
    let of = match account {
        0 => None,
        1 => Some((Account::Ordinary, cid)),
        2 => Some((Account::Control, cid)),
        _ => return None,
    };
    let bytes = from.bytes()?;
    from.end()?;
    // Its receiver finds the next one by what its header says.
    let (header, payload) = DatagramHeader::read_from_prefix(bytes).ok()?;
    let whole = header.payload_size() == payload.len() as u64 && bytes.len() <= MAX_DATAGRAM;
    (whole && header.dst().resource != INVALID_ID).then(|| (of, bytes.into()))
}

/// What one side's peer has left for it, which begins at index `tail`.
pub fn spill(tail: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Writer::new();
    out.u64(tail).bytes(bytes);
    out.0
}

/// The pages of one side: bytes of each, addresses.
pub fn pages(page_size: usize, list: &[u64]) -> Vec<u8> {
    let mut out = Writer::new();
    out.u32(page_size.trailing_zeros()).words(list.iter().copied());
    out.0
}

fn parse_pages(record: &[u8]) -> Option<(usize, Vec<u64>)> {
    let mut from = Reader::new(record);
    let (shift, list) = (from.u32()?, from.words()?);
    from.end()?;
    [12, 14, 16].contains(&shift).then(|| (1 << shift, list))
}

/// No machine has seen so many daemons, one after the other.
const MOST_DAEMONS: u64 = 1 << 22;

/// The first number of what waits in a daemon with so many before it: none is ever used again.
pub fn first_number(generation: u64) -> u64 {
    (generation + 1) << 40
}

fn address((cid, port): (u32, u32)) -> u64 {
    u64::from(cid) << 32 | u64::from(port)
}

fn socket_address(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl Inner {
    fn pair_by_serial(&self, serial: u64) -> Option<Vec<u8>> {
        let of = |pair: &&Pair| pair.serial == serial;
        let current = self.pairs.iter().find(|(_, pair)| of(pair));
        if let Some((handle, pair)) = current {
            return Some(pair.to_record(*handle, None));
        }
        let orphan = self.orphans.iter().find(|(_, pair)| of(pair));
        orphan.map(|((cid, handle), pair)| pair.to_record(*handle, Some(*cid)))
    }

    /// Stages `what` as it is now.
    fn stage(&self, log: &Journal, what: Dirty) {
        let put = |key, record: Option<Vec<u8>>| match record {
            Some(record) => log.stage(key, &record),
            None => log.stage_removal(key),
        };
        match what {
            Dirty::Context(cid) => {
                let known = |context: &&Context| {
                    context.ready || context.bitmap_at.is_some() || context.buffers_high != [0; 2]
                };
                let context = self.contexts.get(&cid).filter(known);
                let record = context.map(|context| {
                    let mut out = Writer::new();
                    let (addr, shift) = context.bitmap_at.unwrap_or_default();
                    out.flag(context.ready)
                        .flag(context.slow)
                        .option(context.bitmap_at.map(|_| addr))
                        .u32(shift)
                        .u32(context.buffers_high[0])
                        .u32(context.buffers_high[1]);
                    out.0
                });
                put((CONTEXT, cid.into(), 0), record);
            }
            Dirty::Doorbell(cid, resource) => {
                let index = self.contexts.get(&cid).and_then(|context| context.doorbells.get(&resource));
                let record = index.map(|index| (*index as u64).to_le_bytes().to_vec());
                put((DOORBELL, cid.into(), resource.into()), record);
            }
            Dirty::WellKnown(cid, resource) => {
                let owned = self.well_known.iter().any(|((_, id), owner)| (*id, *owner) == (resource, cid));
                put((WELL_KNOWN, cid.into(), resource.into()), owned.then(Vec::new));
            }
            Dirty::Pair(serial) => {
                let record = self.pair_by_serial(serial);
                if record.is_none() {
                    for (kind, side) in
                        [PAGES, SPILL, TOLD].into_iter().flat_map(|kind| [(kind, 0), (kind, 1)])
                    {
                        log.stage_removal((kind, serial, side));
                    }
                }
                put((PAIR, serial, 0), record);
            }
            Dirty::Connection(key) => {
                let record = self.connections.get(&key).map(Connection::to_record);
                put((CONNECTION, address(key.client), address(key.server)), record);
            }
            Dirty::Executed(cid) => put((EXECUTED, cid.into(), 0), None),
        }
    }
}

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
            let (cid, side) = (a as u32, (b & 1) as usize);
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
                SPILL => {
                    let mut from = Reader::new(&record);
                    let spill = from.u64().zip(from.bytes().map(<[u8]>::to_vec));
                    sorted.parts.entry(a).or_default().spill[side] = spill;
                }
                TOLD => sorted.parts.entry(a).or_default().told[side] = record.first().copied().unwrap_or(0),
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
pub enum FabricPast {
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
                PAIR | PAGES | SPILL | TOLD => drop(damage.pairs.insert(a)),
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

impl Fabric {
    /// Writes what has changed, before the lock is given up.
    pub(super) fn commit(&self, inner: &mut Inner) {
        let mut dirty = std::mem::take(&mut inner.dirty);
        if let Some(log) = &self.log {
            dirty.iter().for_each(|what| inner.stage(log, *what));
            log.commit();
        }
        dirty.clear();
        inner.dirty = dirty;
    }

    /// The same, and that `caller`'s request is done with `result`.
    pub(super) fn settle(&self, inner: &mut Inner, caller: Caller<'_>, result: i32) {
        if let Some(log) = self.log.as_ref().filter(|_| caller.request != 0) {
            let mut out = Writer::new();
            out.u64(caller.request).u32(result as u32);
            log.stage((EXECUTED, caller.cid.into(), 0), &out.0);
        }
        self.commit(inner);
    }

    /// The result of `caller`'s request, if a previous daemon has carried it out.
    pub(super) fn executed(&self, caller: Caller<'_>) -> Option<i32> {
        let inner = self.inner.lock();
        inner.executed.get(&caller.cid).filter(|(request, _)| *request == caller.request).map(|done| done.1)
    }

    /// Restores what a previous daemon recorded. `maps`: the memory of every guest that is there. Called
    /// once all VMs were added and have their devices, before any of them is served. A damaged record
    /// hurts the device or the stream that it was about.
    pub fn resume(&self, past: FabricPast, mut maps: HashMap<u32, MemoryMap>) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let (records, damage) = match past {
            FabricPast::Known { records, damaged } => {
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
            FabricPast::Lost => {
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
        for inbox in inner.contexts.values().filter_map(|context| context.inbox.as_ref()) {
            inbox.number_from(first);
        }
        self.resume_contexts(inner, &sorted, maps);
        self.resume_connections(inner, sorted.connections, maps);
        let mut parts = sorted.parts;
        for (serial, record) in sorted.pairs {
            inner.serial = inner.serial.max(serial);
            let parts = parts.remove(&serial).unwrap_or_default();
            inner.dirty.push(Dirty::Pair(serial));
            let Some(record) = Pair::from_record(serial, &record) else { continue };
            let connection = record.pair.connection;
            let sound = !damage.pairs.contains(&serial)
                && connection.is_none_or(|key| !damage.connections.contains(&key));
            if sound && self.resume_pair(inner, record, parts, maps) {
                continue;
            }
            // Its other end did not outlive the previous daemon: the remaining end is told.
            tracing::debug!(serial, "a queue pair of a previous daemon has ended");
            let Some(key) = connection else { continue };
            if let Some(connection) = inner.remove_connection(key) {
                inner.send_reset(connection.server_as_known(key), key.client);
                inner.send_reset(key.client, key.server);
            }
        }
        inner.end_damaged(&damage);
        for (cid, items) in sorted.items {
            let Some(inbox) = inner.contexts.get(&cid).and_then(|context| context.inbox.as_ref()) else {
                continue;
            };
            let known = items.iter().filter_map(|(number, record)| {
                let (of, bytes) = parse_waiting(record)?;
                Some((*number, of, bytes))
            });
            inbox.restore_first(known.filter(|_| maps.contains_key(&cid)).collect());
        }
        self.commit(inner);
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
    pub(super) fn take_lost(&self, cid: u32) -> bool {
        self.inner.lock().lost.remove(&cid)
    }

    fn resume_contexts(&self, inner: &mut Inner, sorted: &Sorted, maps: &HashMap<u32, MemoryMap>) {
        for (cid, record) in &sorted.contexts {
            let (Some(context), Some(map)) = (inner.contexts.get_mut(cid), maps.get(cid)) else { continue };
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
            if let Some(context) = inner.contexts.get_mut(&cid).filter(|_| maps.contains_key(&cid)) {
                context.doorbells.insert(resource, index);
            }
        }
        for &(cid, resource) in &sorted.well_known {
            if let Some(context) = inner.contexts.get(&cid).filter(|_| maps.contains_key(&cid)) {
                inner.well_known.insert((context.spec.group.clone(), resource), cid);
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
            let has_device = |cid| inner.contexts.get(&cid).is_some_and(|context| context.inbox.is_some());
            let mixed = !has_device(key.client.0) || !has_device(key.server.0);
            match Connection::from_record(&record).filter(|_| there) {
                // What an end that is no VMCI guest's knew of it is gone, however far it had come.
                Some(connection) if mixed => {
                    inner.send_reset(connection.server_as_known(key), key.client);
                    inner.send_reset(key.client, key.server);
                    inner.dirty.push(Dirty::Connection(key));
                }
                Some(connection) => {
                    if let Some(client) =
                        inner.contexts.get_mut(&key.client.0).filter(|_| connection.is_counted())
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
    /// Ends what damaged records described, and tells its ends.
    fn end_damaged(&mut self, damage: &Damage) {
        self.lost.extend(&damage.contexts);
        for &serial in &damage.pairs {
            self.serial = self.serial.max(serial);
            self.dirty.push(Dirty::Pair(serial));
        }
        for &key in &damage.connections {
            let forwards = self.contexts.get(&key.client.0).map(|context| context.spec.forwards.clone());
            let ways_in = forwards.unwrap_or_default().into_iter();
            let ways_in = ways_in.filter(|forward| (forward.to_cid, forward.to_port) == key.server);
            // The client may know the server by another address.
            for known_as in ways_in.map(|forward| (CID_HOST, forward.port)).chain([key.server]) {
                self.send_reset(known_as, key.client);
            }
            self.send_reset(key.client, key.server);
            self.dirty.push(Dirty::Connection(key));
        }
        if damage.pairs.is_empty() {
            return;
        }
        let pairs = self.pairs.values().chain(self.orphans.values());
        let whole: HashSet<Key> = pairs.filter_map(|pair| pair.connection).collect();
        let halves = self.connections.iter();
        let halves = halves.filter(|(key, connection)| connection.has_pair() && !whole.contains(*key));
        for key in halves.map(|(key, _)| *key).collect::<Vec<_>>() {
            if let Some(connection) = self.remove_connection(key) {
                self.send_reset(connection.server_as_known(key), key.client);
                self.send_reset(key.client, key.server);
            }
        }
    }
}
