//! What a capture shows of one direction of a connection: the data that one end sent, and how the other
//! acknowledged it.

use std::net::SocketAddr;

use serde::Serialize;

use super::histogram::Histogram;
use super::rate::Rate;

/// One direction of a connection, at one point.
#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// The file, and the interface where it has several.
    pub point: String,
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// Whether both ends' first segments are in the capture, and nothing of the connection was forgotten.
    pub is_whole: bool,
    /// The round trip of the handshake, in nanoseconds.
    pub handshake: Option<u64>,
    pub sender: Option<Opening>,
    pub receiver: Option<Opening>,
    #[serde(flatten)]
    pub seen: Seen,
}

/// What an end announces in its first segment.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Opening {
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack: bool,
    /// It answers the other end's, and so may not have what that lacks: a window scale, selective
    /// acknowledgements.
    pub answers: bool,
}

/// Numbers of one direction. Bytes are of data, times in nanoseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Seen {
    pub first: i64,
    pub last: i64,
    pub frames: u64,
    /// As they would be on the wire.
    pub segments: u64,
    /// All that passed, also what was sent again.
    pub bytes: u64,
    /// What was acknowledged.
    pub delivered: u64,
    pub again: Again,
    /// Frames that came twice, and that others overtook.
    pub duplicates: u64,
    pub overtaken: u64,
    /// Bytes that were acknowledged and are not in the capture.
    pub missed: u64,
    /// Frames larger than a segment, and those of them of which nothing arrived.
    pub super_frames: u64,
    pub super_frames_lost: u64,
    pub largest_super_frame: u32,
    /// The largest data of a frame that was acknowledged.
    pub largest_acknowledged: u32,
    /// A segment that was sent again and again, never acknowledged at this size.
    pub stuck_bytes: u32,
    pub stuck_times: u32,
    /// The MTU that a router reported, and packets above it that were sent again all the same.
    pub reported_mtu: Option<u32>,
    pub ignored_mtu: u64,
    /// The receiver's window: how large it was at most and at least, frames that filled it, and for how long
    /// the sender then waited while it was as large as ever.
    pub window_most: u64,
    pub window_least: u64,
    pub window_full: u64,
    pub window_wait: u64,
    pub zero_windows: u64,
    pub zero_window_time: u64,
    pub most_in_flight: u64,
    /// Small segments that were held back until the acknowledgement of the one before came late.
    pub held_back: u64,
    pub held_back_time: u64,
    #[serde(skip)]
    pub round_trips: Histogram,
    /// Between segments, while the receiver's window was open.
    #[serde(skip)]
    pub gaps: Histogram,
    #[serde(skip)]
    pub rate: Rate,
}

/// Segments that were sent again, by cause.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Again {
    pub bytes: u64,
    /// After duplicate or selective acknowledgements.
    pub fast: u64,
    /// After nothing had moved for as long as a time-out takes.
    pub timeout: u64,
    /// Soon after the last segment, to provoke an acknowledgement (tail loss probe, RFC 8985).
    pub probe: u64,
    /// Although they had arrived.
    pub spurious: u64,
    /// How many times something was sent again that did not follow what was sent again before.
    pub runs: u64,
}

impl Again {
    /// Those that were sent again because they were lost.
    pub fn lost(self) -> u64 {
        self.fast + self.timeout + self.probe
    }
}

impl Way {
    /// Bytes of data of a segment: what the ends agreed on.
    pub fn mss(&self) -> Option<u32> {
        let of = |opening: Option<Opening>| opening.and_then(|opening| opening.mss).map(u32::from);
        match (of(self.sender), of(self.receiver)) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    pub fn seconds(&self) -> f64 {
        self.seen.last.saturating_sub(self.seen.first) as f64 / 1e9
    }

    /// Bits per second that were acknowledged.
    pub fn bps(&self) -> f64 {
        if self.seconds() > 0.0 { self.seen.delivered as f64 * 8.0 / self.seconds() } else { 0.0 }
    }

    pub fn lost_share(&self) -> f64 {
        self.seen.again.lost() as f64 / self.seen.segments.max(1) as f64
    }

    /// The median and the shortest round trip of data, in nanoseconds.
    pub fn round_trip(&self) -> Option<(u64, u64)> {
        let times = &self.seen.round_trips;
        Some((times.at(0.5)?, times.least()?))
    }

    pub fn name(&self) -> String {
        format!("from {} to {}", self.from, self.to)
    }

    /// How much it matters that this one is remembered when there is no room for all.
    pub fn weight(&self) -> u64 {
        let seen = &self.seen;
        let odd = seen.again.lost() + seen.again.spurious + seen.zero_windows + seen.held_back;
        seen.bytes.saturating_add(odd.saturating_add(u64::from(seen.stuck_times)).saturating_mul(10_000))
    }
}
