//! Captures of one end or of both, examined without the machines: what the packets show of a path.
//!
//! The order of the calls: `file` reads packets, `frame` decodes them, `connections` gives each segment to
//! its connection, whose two directions (`half`) make [`Way`]s of them. A capture of any size is read once,
//! in bounded memory.

mod addresses;
mod connections;
pub mod file;
mod frame;
mod half;
mod histogram;
mod rate;
mod tunnel;
mod unexamined;
mod way;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;

use addresses::Addresses;
pub use addresses::Conflict;
use connections::Connections;
pub use way::{Again, Opening, Seen, Way};

use file::{FileEnd, Packet};
use frame::{Frame, Point};
use unexamined::{Counts, Unexamined};

/// Captures that are compared with each other.
pub const MOST_FILES: usize = 16;
/// A frame of this share came twice: the capture was made on several interfaces at once.
const TWICE: f64 = 0.3;

/// A capture, and what was seen in it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Capture {
    pub file: String,
    pub packets: u64,
    /// As they were on the wire.
    pub bytes: u64,
    pub seconds: f64,
    pub connections: u64,
    /// Packets from which a conclusion could be drawn, and the others by what they are.
    pub examined: u64,
    pub not_examined: BTreeMap<String, u64>,
    /// Connections that were forgotten for want of room while they may have gone on.
    pub forgotten: u64,
    /// What the reader of a report must know of it.
    pub notes: Vec<String>,
    /// The directions of the connections that matter most.
    #[serde(skip)]
    pub ways: Vec<Way>,
    pub conflicts: Vec<Conflict>,
    /// A MAC address that both ends of a connection have, the ends, and in how many frames.
    pub same_mac: Option<(String, String, u64)>,
}

/// Reads all files. An error is a file that cannot be examined at all.
pub fn read(files: &[impl AsRef<Path>], progress: &dyn Fn(&str)) -> Result<Vec<Capture>, String> {
    if files.len() > MOST_FILES {
        return Err(format!("{} captures: at most {MOST_FILES} are compared", files.len()));
    }
    let mut captures = Vec::new();
    for path in files {
        let path = path.as_ref();
        progress(&format!("reading {}", path.display()));
        let name = path.display().to_string();
        captures.push(of(&name, |each| file::read(path, each))?);
    }
    Ok(captures)
}

/// The same of a file's bytes.
pub fn read_bytes(name: &str, bytes: &[u8]) -> Result<Capture, String> {
    of(name, |each| file::read_from(bytes, each))
}

fn of(
    name: &str,
    read: impl FnOnce(&mut dyn FnMut(Packet<'_>)) -> Result<FileEnd, String>,
) -> Result<Capture, String> {
    let mut reading = Reading::default();
    let end = read(&mut |packet| reading.packet(&packet))?;
    Ok(reading.finish(name, end))
}

#[derive(Default)]
struct Reading {
    connections: Connections,
    addresses: Addresses,
    packets: u64,
    bytes: u64,
    span: Option<(i64, i64)>,
    unexamined: Counts,
}

impl Reading {
    fn packet(&mut self, packet: &Packet<'_>) {
        self.packets += 1;
        self.bytes += u64::from(packet.length);
        let (first, last) = self.span.unwrap_or((packet.time, packet.time));
        self.span = Some((first.min(packet.time), last.max(packet.time)));
        match frame::decode(packet) {
            Frame::Tcp(segment) => self.connections.see(&segment),
            Frame::Claim { network, address, mac } => self.addresses.claim(network, address, mac),
            Frame::TooBig { point, from, to, mtu } => {
                self.connections.too_big(point, from, to, mtu, packet.time);
            }
            Frame::Unexamined(kind) => self.unexamined.add(kind, 1),
        }
    }

    fn finish(mut self, name: &str, end: FileEnd) -> Capture {
        let mut notes = Vec::new();
        if let Some(why) = end.early {
            notes.push(format!("the file ends early, {why}"));
        }
        self.packets += end.passed_over;
        self.unexamined.add(Unexamined::Timeless, end.passed_over);
        notes.extend(self.unexamined.notes());
        let (seen, forgotten) = (self.connections.seen, self.connections.forgotten);
        if forgotten > 0 {
            notes.push(format!(
                "{forgotten} of {seen} connections were put aside for want of room, the least recent first"
            ));
        }
        let same_mac = self.connections.same_mac.map(|(mac, from, to, frames)| {
            (addresses::spelled(mac), format!("{} and {}", from.ip(), to.ip()), frames)
        });
        let found = self.connections.finish();
        let interfaces: BTreeSet<u32> = found.iter().map(|(point, _)| point.interface).collect();
        let called = |Point { interface, in_tunnel }| {
            let of = if interfaces.len() > 1 { format!(", interface {interface}") } else { String::new() };
            format!("{name}{of}{}", if in_tunnel { ", in tunnels" } else { "" })
        };
        let ways: Vec<Way> =
            found.into_iter().map(|(point, way)| Way { point: called(point), ..way }).collect();
        notes.extend(of_ways(&ways));
        let span = self.span.map_or(0, |(first, last)| last.saturating_sub(first));
        Capture {
            file: name.to_owned(),
            packets: self.packets,
            bytes: self.bytes,
            seconds: span as f64 / 1e9,
            connections: seen,
            examined: self.packets.saturating_sub(self.unexamined.total()),
            not_examined: self.unexamined.by_name(),
            forgotten,
            notes,
            ways,
            conflicts: self.addresses.finish(),
            same_mac,
        }
    }
}

fn of_ways(ways: &[Way]) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(way) =
        ways.iter().max_by_key(|way| way.seen.largest_super_frame).filter(|way| way.seen.super_frames > 0)
    {
        notes.push(format!(
            "frames of up to {} bytes are larger than a segment of {}: the capturing machine hands them to its card whole (TSO) or gets \
             them merged (LRO, GRO); that is no fault",
            way.seen.largest_super_frame,
            way.mss().unwrap_or(0)
        ));
    }
    let missed: u64 = ways.iter().map(|way| way.seen.missed).sum();
    let delivered: u64 = ways.iter().map(|way| way.seen.delivered).sum();
    if missed > delivered / 1000 {
        notes.push(format!(
            "{missed} bytes were acknowledged and are not in the capture: it has lost packets itself"
        ));
    }
    if ways.iter().any(is_twice) {
        notes.push("most frames are in it twice: it was made on several interfaces at once".to_owned());
    }
    notes
}

/// Whether the capture, and not the network, doubled the frames.
pub fn is_twice(way: &Way) -> bool {
    way.seen.frames > 20 && way.seen.duplicates as f64 > TWICE * way.seen.frames as f64
}
