//! The daemon dies between any two steps by which what it has done becomes valid: the next one delivers every
//! packet once.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use vmlane_guestsim::Pattern;
use vmlane_guestsim::vsock::{Bench, Guest, RING, vm};
use vmlane_wire::virtio_vsock::{HEADER, Header, kind, op};

use super::bench;

/// Where a log states how many entries are valid, and where they begin.
const COUNT: u64 = 16;
const ENTRIES: u64 = 24;
/// Longer packets make several steps of a round.
const PAYLOAD: u64 = 1500;

/// Of connections.
const PORTS: Range<u32> = 100..103;

/// A word of a device's file: the number of the file, the place, the value.
type Entry = (u64, u64, u64);

fn read(file: &OwnedFd, at: u64) -> u64 {
    let mut word = [0; 8];
    rustix::io::pread(file, &mut word, at).expect("a file in memory");
    u64::from_le_bytes(word)
}

fn write(file: &OwnedFd, at: u64, word: u64) {
    rustix::io::pwrite(file, &word.to_le_bytes(), at).expect("a file in memory");
}

/// Two guests, each of which sends bytes to the other.
struct World {
    bench: Option<Bench>,
    guests: [Guest; 2],
    /// Bytes sent and received, by their receiver and its port.
    sent: HashMap<(usize, u32), u64>,
    received: HashMap<(usize, u32), u64>,
    /// Payload bytes that a buffer holds.
    room: usize,
    /// Chains under way, by guest.
    sending: [usize; 2],
    /// Buffers there.
    buffers: [usize; 2],
    /// What words of files were last, and a source of chance.
    shadow: HashMap<(u64, u64), u64>,
    state: u64,
}

impl World {
    fn new(room: usize, seed: u64) -> World {
        let mut bench = bench();
        let mut guests = [3, 4].map(|cid| bench.guest(vm(cid), false));
        PORTS.for_each(|port| guests[0].packet(port, (4, port), kind::STREAM, op::REQUEST, &[]));
        World {
            bench: Some(bench),
            guests,
            sent: HashMap::new(),
            received: HashMap::new(),
            room,
            sending: [PORTS.count(), 0],
            buffers: [0; 2],
            shadow: HashMap::new(),
            state: seed,
        }
    }

    fn chance(&mut self, below: u64) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % below
    }

    fn send(&mut self, from: usize) {
        let (port, len) =
            (PORTS.start + self.chance(PORTS.count() as u64) as u32, self.chance(PAYLOAD) as usize);
        let sent = self.sent.entry((1 - from, port)).or_default();
        let payload = Pattern::new(port.into()).bytes(*sent, 1 + len);
        *sent += payload.len() as u64;
        let to = self.guests[1 - from].cid;
        self.guests[from].packet(port, (to, port), kind::STREAM, op::RW, &payload);
        self.sending[from] += 1;
    }

    /// Both guests do something.
    fn act(&mut self) {
        for guest in 0..2 {
            let room = usize::from(RING) - self.sending[guest];
            for _ in 0..self.chance(6).min(room as u64) {
                self.send(guest);
            }
            // Often too few.
            let room = usize::from(RING) - self.buffers[guest];
            let most = if self.room < 1000 { 60 } else { 9 };
            let count = self.chance(most).min(room as u64) as usize;
            self.guests[guest].post_buffers(count, HEADER + self.room);
            self.buffers[guest] += count;
        }
        let later = Duration::from_micros(self.chance(30_000));
        self.bench.iter_mut().for_each(|bench| bench.now += later);
    }

    fn poll(&mut self) {
        for guest in 0..2 {
            self.sending[guest] -= self.guests[guest].taken();
            for (header, payload) in self.guests[guest].received() {
                self.buffers[guest] -= 1;
                self.take(guest, &header, &payload);
            }
        }
    }

    fn take(&mut self, guest: usize, header: &Header, payload: &[u8]) {
        match header.op.get() {
            op::RW => {}
            op::CREDIT_REQUEST | op::REQUEST => return,
            other => panic!("{other} to guest {guest}: {header:?}"),
        }
        let received = self.received.entry((guest, header.dst_port.get())).or_default();
        Pattern::new(header.dst_port.get().into()).check(*received, payload);
        *received += payload.len() as u64;
    }

    /// The indices of the used rings of both guests.
    fn shown(&self) -> [u16; 4] {
        let [a, b] = &self.guests;
        [&a.rx, &a.tx, &b.rx, &b.tx].map(|ring| ring.device.load_u16(2))
    }

    fn show(&self, ring: usize, index: u16) {
        let [a, b] = &self.guests;
        [&a.rx, &a.tx, &b.rx, &b.tx][ring].device.store_u16(2, index);
    }

    /// A round, which ends in the middle of its last step if that can be cut; then the next daemon takes
    /// over. True if it could.
    fn cut(&mut self) -> bool {
        let before = self.shown();
        // A word that changes alone is in no log.
        for ((id, at), word) in &mut self.shadow {
            let guest = self.guests.iter().find(|guest| read(guest.kept.file(), 16) == *id);
            *word = read(guest.expect("the file of a guest").kept.file(), *at);
        }
        let mut bench = self.bench.take().expect("a daemon");
        let commits = bench.commits();
        bench.round();
        let steps = bench.commits() - commits;
        let after = self.shown();
        let log = &bench.log;
        let entries: Vec<Entry> = (0..1000)
            .map(|number| ENTRIES + 24 * number)
            .map(|at| (read(log, at), read(log, at + 8), read(log, at + 16)))
            .take_while(|entry| entry.0 != 0)
            .collect();
        // So that the next check finds the next one's alone.
        (0..entries.len() as u64).for_each(|number| write(log, ENTRIES + 24 * number, 0));
        let known = entries.iter().all(|(id, at, _)| self.shadow.contains_key(&(*id, *at)));
        let old: Vec<u64> =
            entries.iter().map(|(id, at, _)| self.shadow.get(&(*id, *at)).copied().unwrap_or(0)).collect();
        entries.iter().for_each(|&(id, at, value)| _ = self.shadow.insert((id, at), value));
        if steps != 1 || !known {
            self.bench = Some(bench);
            return false;
        }
        let remains = bench.die();
        let log = &remains.log;
        let (valid, until) = (self.chance(3) > 0, self.chance(1 + entries.len() as u64) as usize);
        // Not all of what the log states was stored; of rings, some were shown.
        for (&(id, at, _), old) in entries.iter().zip(old).skip(if valid { until } else { 0 }) {
            let guest = self.guests.iter().find(|guest| read(guest.kept.file(), 16) == id);
            let guest = guest.expect("the file of a guest");
            write(guest.kept.file(), at, old);
            if !valid {
                self.shadow.insert((id, at), old);
            }
        }
        let shown = if valid && until == entries.len() { self.chance(5) as usize } else { 0 };
        for ring in shown..4 {
            if before[ring] != after[ring] {
                self.show(ring, before[ring]);
            }
        }
        for (number, &(id, at, value)) in entries.iter().enumerate() {
            let entry = ENTRIES + 24 * number as u64;
            [(entry, id), (entry + 8, at), (entry + 16, value)]
                .into_iter()
                .for_each(|(at, word)| write(log, at, word));
        }
        write(log, COUNT, if valid { entries.len() as u64 } else { 0 });
        let [a, b] = &mut self.guests;
        self.bench = Some(remains.take_over([a, b]));
        true
    }
}

fn dies(room: usize, seed: u64, rounds: usize) -> usize {
    let mut world = World::new(room, seed);
    let mut cuts = 0;
    for _ in 0..rounds {
        world.act();
        cuts += usize::from(world.cut());
        world.poll();
    }
    for _ in 0..2000 {
        for guest in 0..2 {
            let missing = usize::from(RING) - world.buffers[guest];
            world.guests[guest].post_buffers(missing, HEADER + world.room);
            world.buffers[guest] += missing;
        }
        world.bench.iter_mut().for_each(|bench| _ = bench.round());
        world.poll();
    }
    assert_eq!(world.sent, world.received, "seed {seed}, {cuts} deaths");
    assert_eq!(world.sending, [0; 2]);
    cuts
}

#[test]
fn every_packet_is_delivered_once_wherever_the_daemon_dies() {
    // In small buffers packets are delivered in parts.
    let small = (0..20).map(|seed| dies(24, seed, 80));
    let cuts: usize = (20..40).map(|seed| dies(1024, seed, 300)).chain(small).sum();
    println!("{cuts} deaths");
    assert!(cuts > 2000, "{cuts} deaths");
}

/// Whatever its files hold, the next daemon serves its guests: at worst their connections end.
#[test]
fn damaged_files_stop_no_daemon() {
    // Ends of parts of a file, in bytes, and of a log: where most is; beyond them little is written.
    const PARTS: [u64; 5] = [64, 5 << 10, 1 << 20, 3 << 20, 20 << 20];
    for seed in 0..300 {
        let mut world = World::new(if seed % 2 == 0 { 1024 } else { 24 }, seed);
        for _ in 0..10 {
            world.act();
            world.bench.iter_mut().for_each(|bench| _ = bench.round());
            world.poll();
        }
        let remains = world.bench.take().expect("a daemon").die();
        for _ in 0..=world.chance(40) {
            let (which, part) = (world.chance(3) as usize, world.chance(5) as usize);
            let place = 24 + (world.chance(PARTS[part] - 24) & !7);
            let word = [0, 1, u64::MAX, 1 << 63, world.state][world.chance(5) as usize];
            let word = if world.chance(2) == 0 { word } else { world.state >> world.chance(64) };
            match world.guests.get(which) {
                Some(guest) => write(guest.kept.file(), place, word),
                None => write(&remains.log, COUNT + place - 24, word),
            }
        }
        let [a, b] = &mut world.guests;
        world.bench = Some(remains.take_over([a, b]));
        for _ in 0..10 {
            world.act();
            world.bench.iter_mut().for_each(|bench| _ = bench.round());
            for guest in 0..2 {
                world.sending[guest] -= world.guests[guest].taken();
                world.buffers[guest] -= world.guests[guest].received().len();
            }
        }
    }
}
