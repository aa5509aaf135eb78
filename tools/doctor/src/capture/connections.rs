//! The connections of a capture: at most so many at a time, the least recent forgotten first.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::frame::{Mac, Point, Segment};
use super::half::{Half, Terms};
use super::way::{Opening, Way};

/// Connections that are followed at a time, and how many of the least recent are forgotten at once for want
/// of room.
const MOST: usize = 4096;
const FORGOTTEN: usize = 1024;
/// Directions of connections that are kept, those that matter most.
const KEPT: usize = 512;

type Key = (Point, SocketAddr, SocketAddr);

#[derive(Default)]
pub struct Connections {
    now: HashMap<Key, Box<Connection>>,
    ended: Vec<(Point, Way)>,
    /// Connections that were seen, and that were forgotten to make room.
    pub seen: u64,
    pub forgotten: u64,
    /// Frames whose two ends have the same MAC address.
    pub same_mac: Option<(Mac, SocketAddr, SocketAddr, u64)>,
}

/// Of a connection's two ends: the one with the smaller address, or the other.
#[derive(Clone, Copy)]
enum Which {
    First,
    Second,
}

#[derive(Default)]
struct Connection {
    /// What the end with the smaller address sends, and the other.
    halves: [Half; 2],
    last: i64,
    /// When it was opened, when that was answered, and the round trip of both.
    opened: Option<i64>,
    answered: bool,
    handshake: Option<i64>,
}

impl Connections {
    pub fn see(&mut self, segment: &Segment) {
        if let Some((one, other)) = segment.macs {
            self.compare(one, other, segment);
        }
        let (key, which) = key(segment.point, segment.from, segment.to);
        if !self.now.contains_key(&key) {
            self.seen += 1;
            if self.now.len() >= MOST {
                self.forget();
            }
        }
        let connection = self.now.entry(key).or_default();
        // The same ports again: the connection before is over.
        let is_new = segment.flags.syn && !segment.flags.ack && connection.has_data();
        if is_new {
            let before = std::mem::take(&mut **connection);
            self.ended.extend(before.ways(key));
            self.seen += 1;
            self.trim();
        }
        if let Some(connection) = self.now.get_mut(&key) {
            connection.see(segment, which);
        }
    }

    pub fn too_big(&mut self, point: Point, from: SocketAddr, to: SocketAddr, mtu: u32, time: i64) {
        let (key, which) = key(point, from, to);
        if let Some(connection) = self.now.get_mut(&key) {
            connection.ends(which).0.reported_mtu(mtu, time);
        }
    }

    fn compare(&mut self, one: Mac, other: Mac, segment: &Segment) {
        // A group has no sender, and the loopback's frames have zeros.
        let [first, ..] = one;
        if one == other && one != [0; 6] && first & 1 == 0 && segment.from.ip() != segment.to.ip() {
            self.same_mac.get_or_insert((one, segment.from, segment.to, 0)).3 += 1;
        }
    }

    /// Many at once, so that a flood of connections does not search for the oldest one with each.
    fn forget(&mut self) {
        let mut ages: Vec<(i64, Key)> = self.now.iter().map(|(key, one)| (one.last, *key)).collect();
        ages.select_nth_unstable_by_key(FORGOTTEN, |(last, _)| *last);
        for (_, key) in ages.into_iter().take(FORGOTTEN) {
            if let Some(connection) = self.now.remove(&key) {
                self.forgotten += 1;
                self.ended.extend(connection.ways(key));
            }
        }
        self.trim();
    }

    fn trim(&mut self) {
        if self.ended.len() > 2 * KEPT {
            self.ended.sort_by_key(|(_, way)| std::cmp::Reverse(way.weight()));
            self.ended.truncate(KEPT);
        }
    }

    /// Everything, the weightiest first, each with its point.
    pub fn finish(mut self) -> Vec<(Point, Way)> {
        let rest = std::mem::take(&mut self.now);
        self.ended.extend(rest.into_iter().flat_map(|(key, connection)| connection.ways(key)));
        self.ended.sort_by_key(|(_, way)| (std::cmp::Reverse(way.weight()), way.from, way.to));
        self.ended.truncate(KEPT);
        self.ended
    }
}

/// The same for both directions, and which of the two this is.
fn key(point: Point, from: SocketAddr, to: SocketAddr) -> (Key, Which) {
    if from <= to { ((point, from, to), Which::First) } else { ((point, to, from), Which::Second) }
}

impl Connection {
    fn has_data(&self) -> bool {
        self.halves.iter().any(|half| half.seen.frames > 0)
    }

    /// What this end sends, and what the other one does.
    fn ends(&mut self, which: Which) -> (&mut Half, &mut Half) {
        let [first, second] = &mut self.halves;
        match which {
            Which::First => (first, second),
            Which::Second => (second, first),
        }
    }

    fn see(&mut self, segment: &Segment, which: Which) {
        self.last = self.last.max(segment.time);
        let flags = segment.flags;
        if flags.syn {
            match (flags.ack, self.opened) {
                (false, _) => (self.opened, self.answered) = (Some(segment.time), false),
                (true, Some(_)) => self.answered = true,
                _ => {}
            }
        } else if let Some(opened) = self.opened.take_if(|_| self.answered && flags.ack) {
            self.handshake = Some(segment.time.saturating_sub(opened).max(0));
        }
        let handshake = self.handshake;
        let (sender, receiver) = self.ends(which);
        if flags.syn {
            sender.open(segment);
        }
        let mss = |half: &Half| half.opening.and_then(|opening| opening.mss).map(u32::from);
        let agreed = match (mss(sender), mss(receiver)) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        if flags.ack {
            // A window's scale counts only if both ends know of it.
            let scale = match (sender.opening, receiver.opening) {
                (Some(one), Some(other)) => Some(
                    one.window_scale.and(other.window_scale).map_or(0, |_| one.window_scale.unwrap_or(0)),
                ),
                _ => None,
            };
            receiver.note_acknowledgement(segment, scale);
        }
        // What came with the first segment is rare and not examined; a reset's data is a text for people.
        if !flags.syn && !flags.rst {
            sender.sends(segment, Terms { mss: agreed.filter(|mss| *mss > 0), round_trip: handshake });
        }
    }

    /// Those directions in which data was sent.
    fn ways(self, (point, one, other): Key) -> impl Iterator<Item = (Point, Way)> {
        let (last, handshake) = (self.last, self.handshake.map(i64::unsigned_abs));
        let [first, second] = self.halves.map(|half| half.finish(last));
        let way = move |from, to, sender: Option<Opening>, receiver: Option<Opening>, seen| {
            let is_whole = sender.is_some() && receiver.is_some();
            Way { point: String::new(), from, to, is_whole, handshake, sender, receiver, seen }
        };
        let (here, there) = (first.0, second.0);
        [way(one, other, here, there, first.1), way(other, one, there, here, second.1)]
            .into_iter()
            .filter(|way| way.seen.frames > 0)
            .map(move |way| (point, way))
    }
}
