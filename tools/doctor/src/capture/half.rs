//! One direction of a connection while its packets are read: which data is under way, and what became of it.
//!
//! Sequence numbers are counted on from the first that was seen, so that they do not wrap. Nothing here grows
//! with the connection: where a list is full, its oldest entry is forgotten.

use std::collections::VecDeque;

use super::frame::Segment;
use super::way::{Opening, Seen};

/// Entries of a list of things under way.
const MOST: usize = 32;
/// Nothing moved for so long: a retransmission after that was a time-out's (RFC 6298; at least 200 ms in
/// Linux). At the receiver's end a fast one comes a round trip later than what asked for it.
const TIMEOUT: i64 = 180_000_000;
/// An acknowledgement that comes so late was delayed (40 ms in Linux, 200 ms in Windows, 500 ms at most by
/// RFC 9293).
const DELAYED: std::ops::Range<i64> = 35_000_000..600_000_000;
/// Data that follows an acknowledgement so closely had waited for it.
const WAITED: i64 = 5_000_000;
/// A frame that comes later than the one after it, but not by more than this, was overtaken.
const OVERTAKEN: i64 = 3_000_000;

#[derive(Default)]
pub struct Half {
    pub opening: Option<Opening>,
    pub seen: Seen,
    known: bool,
    /// Behind the last byte that was sent, and that was acknowledged.
    next: i64,
    acknowledged: i64,
    /// The window that the receiver has announced, in bytes if its scale is known.
    window: Option<u64>,
    announced_window: u16,
    zero_since: Option<i64>,
    duplicate_acks: u32,
    selective: bool,
    /// Until this is acknowledged, what is sent again belongs to one loss, which a time-out may have found.
    recovery: i64,
    by_timeout: bool,
    last_sent: Option<Last>,
    /// When data, or an acknowledgement of some, was seen last.
    last_moved: i64,
    timed: Option<(i64, i64)>,
    largest: Option<(i64, i64)>,
    super_frames: VecDeque<SuperFrame>,
    holes: VecDeque<Hole>,
    recent: VecDeque<Recent>,
    stuck: Option<(i64, u32, u32)>,
    /// Behind what was sent again last.
    resent: i64,
    /// A small segment alone under way and when its acknowledgement is due, and how late one came.
    alone: Option<(i64, i64)>,
    late: Option<(i64, i64)>,
    reported_mtu: Option<(u32, i64)>,
}

struct Last {
    time: i64,
    segments: u64,
    /// Whether there was room for more.
    open: bool,
    /// Whether it filled the window, while that was as large as ever.
    full: bool,
}

struct SuperFrame {
    start: i64,
    end: i64,
    /// How far it was sent again.
    resent: Option<i64>,
}

struct Hole {
    start: i64,
    end: i64,
    since: i64,
    id: u16,
}

struct Recent {
    start: i64,
    bytes: u32,
    id: u16,
}

/// What both directions know of the connection.
#[derive(Clone, Copy)]
pub struct Terms {
    pub mss: Option<u32>,
    pub round_trip: Option<i64>,
}

impl Half {
    fn place(&self, sequence: u32) -> i64 {
        let ahead = sequence.wrapping_sub(self.next as u32).cast_signed();
        self.next.saturating_add(i64::from(ahead))
    }

    fn begin(&mut self, sequence: u32) {
        if !self.known {
            self.known = true;
            self.next = i64::from(sequence);
            self.acknowledged = self.next;
        }
    }

    pub fn open(&mut self, segment: &Segment) {
        let options = segment.options;
        self.opening = Some(Opening {
            mss: options.mss,
            window_scale: options.scale,
            sack: options.sack_permitted,
            answers: segment.flags.ack,
        });
        self.begin(segment.sequence.wrapping_add(1));
    }

    /// A router's word on what may be sent.
    pub fn reported_mtu(&mut self, mtu: u32, time: i64) {
        self.reported_mtu = Some((mtu, time));
        self.seen.reported_mtu = Some(mtu);
    }

    /// Data from this end.
    pub fn sends(&mut self, segment: &Segment, terms: Terms) {
        self.begin(segment.sequence);
        let start = self.place(segment.sequence);
        let end = start + i64::from(segment.payload);
        if segment.payload > 0 {
            // A probe of a window or of a connection's life repeats the last byte.
            let is_probe = segment.payload <= 1 && end <= self.next;
            if !is_probe {
                self.data(segment, start, end, terms);
            }
        }
        if segment.flags.fin {
            self.next = self.next.max(end + 1);
        }
    }

    fn data(&mut self, segment: &Segment, start: i64, end: i64, terms: Terms) {
        let seen = &mut self.seen;
        if seen.frames == 0 {
            seen.first = segment.time;
        }
        seen.last = seen.last.max(segment.time);
        seen.frames += 1;
        seen.bytes += u64::from(segment.payload);
        let segments = u64::from(segment.payload.div_ceil(terms.mss.unwrap_or(u32::MAX).max(1)));
        seen.segments += segments;
        let recent = Recent { start, bytes: segment.payload, id: segment.id };
        let is_again = start < self.next;
        if is_again {
            self.old(segment, start, end, segments, terms);
        }
        if end > self.next {
            if start > self.next {
                push(
                    &mut self.holes,
                    Hole { start: self.next, end: start, since: segment.time, id: segment.id },
                );
            }
            self.next = end;
            if !is_again {
                self.fresh(segment, start, end, segments, terms);
            }
        }
        if self.recent.len() >= 8 {
            self.recent.pop_front();
        }
        self.recent.push_back(recent);
        self.last_moved = segment.time;
    }

    fn fresh(&mut self, segment: &Segment, start: i64, end: i64, segments: u64, terms: Terms) {
        let now = segment.time;
        let seen = &mut self.seen;
        let in_flight = u64::try_from(end - self.acknowledged).unwrap_or(0);
        seen.most_in_flight = seen.most_in_flight.max(in_flight);
        let mss = terms.mss;
        let (mut open, mut full) = (false, false);
        if let Some(window) = self.window.filter(|window| *window > 0) {
            let room = window.saturating_sub(in_flight);
            if room < u64::from(mss.unwrap_or(1448)) {
                seen.window_full += 1;
                full = window >= seen.window_most / 10 * 9;
            }
            open = in_flight <= window / 2;
        }
        if let Some(last) = &self.last_sent {
            let gap = u64::try_from(now.saturating_sub(last.time)).unwrap_or(0);
            if last.full {
                seen.window_wait += gap;
            }
            if last.open {
                seen.gaps.add(gap / last.segments.max(1));
            }
        }
        // A segment that is not full ends what there was to send.
        let is_full = mss.is_none_or(|mss| segment.payload >= mss / 10 * 9);
        self.last_sent = Some(Last { time: now, segments, open: open && is_full, full });
        if self.timed.is_none() {
            self.timed = Some((end, now));
        }
        if i64::from(seen.largest_acknowledged) < end - start
            && self.largest.is_none_or(|(from, to)| end - start > to - from)
        {
            self.largest = Some((start, end));
        }
        if mss.is_some_and(|mss| segment.payload > mss) {
            seen.super_frames += 1;
            seen.largest_super_frame = seen.largest_super_frame.max(segment.packet);
            push(&mut self.super_frames, SuperFrame { start, end, resent: None });
        }
        if let Some((_, waited)) = self.late.take_if(|(at, _)| now.saturating_sub(*at) <= WAITED) {
            seen.held_back += 1;
            seen.held_back_time += waited.unsigned_abs();
        }
        self.late = None;
        let is_alone = mss.is_some_and(|mss| segment.payload < mss) && start == self.acknowledged;
        // The acknowledgement takes a round trip anyway.
        self.alone = is_alone.then_some((end, now.saturating_add(terms.round_trip.unwrap_or(0))));
    }

    /// Data before the end of what was sent: overtaken, doubled, or sent again.
    fn old(&mut self, segment: &Segment, start: i64, end: i64, segments: u64, terms: Terms) {
        let now = segment.time;
        if self.fills(segment, start, end, segments, terms) {
            return;
        }
        let is_same = |recent: &Recent| {
            segment.id != 0 && (recent.start, recent.bytes, recent.id) == (start, segment.payload, segment.id)
        };
        if self.recent.iter().any(is_same) {
            self.seen.duplicates += 1;
            return;
        }
        self.seen.again.bytes += u64::from(segment.payload);
        if self.timed.is_some_and(|(timed, _)| start < timed) {
            self.timed = None;
        }
        if end <= self.acknowledged {
            self.seen.again.spurious += segments;
            return;
        }
        let is_reported = self.duplicate_acks >= 3 || self.selective;
        self.sent_again(now, start, segments, TIMEOUT, is_reported);
        self.lost(now, start, end);
        self.stands_still(segment, start);
        if let Some(frame) =
            self.super_frames.iter_mut().find(|frame| frame.start <= start && start < frame.end)
        {
            if start == frame.start && frame.resent.is_none() {
                self.seen.super_frames_lost += 1;
                frame.resent = Some(end);
            } else if let Some(resent) = &mut frame.resent {
                *resent = (*resent).max(end);
            }
        }
        self.largest.take_if(|(from, to)| start < *to && end > *from && end - start < *to - *from);
        let is_single = terms.mss.is_none_or(|mss| segment.payload <= mss);
        let above = |(mtu, at): (u32, i64)| segment.packet > mtu && now.saturating_sub(at) > OVERTAKEN;
        if is_single && self.reported_mtu.is_some_and(above) {
            self.seen.ignored_mtu += 1;
        }
        if let Some(last) = &mut self.last_sent {
            last.time = now;
            (last.open, last.full) = (false, false);
        }
    }

    /// Whether the segment fills a hole: then it was overtaken, or lost before it came to where the capture
    /// was made.
    fn fills(&mut self, segment: &Segment, start: i64, end: i64, segments: u64, terms: Terms) -> bool {
        let Some(at) = self.holes.iter().position(|hole| start < hole.end && end > hole.start) else {
            return false;
        };
        let Some(hole) = self.holes.remove(at) else { return false };
        if hole.start < start {
            push(&mut self.holes, Hole { end: start, ..hole });
        }
        if end < hole.end {
            push(&mut self.holes, Hole { start: end, ..hole });
        }
        let age = segment.time.saturating_sub(hole.since);
        let soon = terms.round_trip.map_or(OVERTAKEN, |trip| OVERTAKEN.min(trip / 2));
        // Linux counts the packets of a connection: the one that was overtaken has the smaller number.
        let is_earlier = match segment.id {
            0 => age <= soon,
            id => age <= soon.max(100_000) && hole.id.wrapping_sub(id) < 0x8000 && hole.id != id,
        };
        if is_earlier {
            self.seen.overtaken += 1;
            return true;
        }
        self.seen.again.bytes += u64::from(segment.payload);
        self.lost(segment.time, start, end);
        let timeout = TIMEOUT.saturating_add(terms.round_trip.unwrap_or(0));
        self.sent_again(segment.time, start, segments, timeout, true);
        true
    }

    /// By what the sender knew that it had to send again: the age of a loss means nothing while others are
    /// mended.
    fn sent_again(&mut self, now: i64, start: i64, segments: u64, timeout: i64, is_reported: bool) {
        let idle = now.saturating_sub(self.last_moved);
        let recovers = start < self.recovery;
        let again = &mut self.seen.again;
        let by_timeout = idle >= timeout || recovers && self.by_timeout;
        if !by_timeout && !is_reported && !recovers {
            again.probe += segments;
            return;
        }
        *(if by_timeout { &mut again.timeout } else { &mut again.fast }) += segments;
        (self.recovery, self.by_timeout) = (self.recovery.max(self.next), by_timeout);
    }

    fn lost(&mut self, now: i64, start: i64, end: i64) {
        self.seen.rate.lost(now);
        self.seen.again.runs += u64::from(start != self.resent);
        self.resent = end;
    }

    /// The first segment that is not acknowledged, again and again.
    fn stands_still(&mut self, segment: &Segment, start: i64) {
        if start > self.acknowledged {
            return;
        }
        let times = match self.stuck {
            Some((at, bytes, times)) if (at, bytes) == (start, segment.payload) => times.saturating_add(1),
            _ => 1,
        };
        self.stuck = Some((start, segment.payload, times));
        if times > self.seen.stuck_times && segment.payload > self.seen.largest_acknowledged {
            (self.seen.stuck_times, self.seen.stuck_bytes) = (times, segment.payload);
        }
    }

    /// The other end acknowledges what this one sent, and announces its window.
    pub fn note_acknowledgement(&mut self, segment: &Segment, scale: Option<u8>) {
        let now = segment.time;
        self.begin(segment.acknowledged);
        let to = self.place(segment.acknowledged);
        if to > self.next {
            self.seen.missed += (to - self.next).unsigned_abs();
            self.next = to;
        }
        if to > self.acknowledged {
            self.advances(segment, to);
        } else if to == self.acknowledged
            && segment.payload == 0
            && self.next > self.acknowledged
            && segment.window == self.announced_window
            && !segment.flags.fin
        {
            self.duplicate_acks = self.duplicate_acks.saturating_add(1);
            self.last_moved = now;
        }
        self.selective_blocks(segment, to);
        self.announced_window = segment.window;
        if !segment.flags.syn {
            self.window = scale.map(|scale| u64::from(segment.window) << scale);
        }
        if let Some(window) = self.window {
            let seen = &mut self.seen;
            seen.window_least = if seen.window_most == 0 { window } else { seen.window_least.min(window) };
            seen.window_most = seen.window_most.max(window);
            // A window that shrinks is a receiver that does not read, and no small window.
            if let Some(last) = self.last_sent.as_mut().filter(|_| window < seen.window_most / 10 * 9) {
                last.full = false;
            }
        }
        // In an opening it means that the answering end has no room yet, in an end that nothing is expected.
        let flags = segment.flags;
        let is_closed = segment.window == 0 && !flags.syn && !flags.rst && !flags.fin;
        match (is_closed, self.zero_since) {
            (true, None) => {
                self.zero_since = Some(now);
                self.seen.zero_windows += 1;
            }
            (false, Some(since)) => {
                self.zero_since = None;
                self.seen.zero_window_time += now.saturating_sub(since).unsigned_abs();
            }
            _ => {}
        }
    }

    fn advances(&mut self, segment: &Segment, to: i64) {
        let now = segment.time;
        let seen = &mut self.seen;
        let bytes = (to - self.acknowledged).unsigned_abs();
        if seen.frames > 0 {
            seen.delivered += bytes;
            seen.last = seen.last.max(now);
            seen.rate.delivered(now, bytes);
        }
        self.acknowledged = to;
        self.last_moved = now;
        (self.duplicate_acks, self.selective) = (0, false);
        if let Some((_, sent)) = self.timed.take_if(|(end, _)| *end <= to) {
            seen.round_trips.add(now.saturating_sub(sent).unsigned_abs());
        }
        if let Some((start, end)) = self.largest.take_if(|(_, end)| *end <= to) {
            seen.largest_acknowledged = u32::try_from(end - start).unwrap_or(u32::MAX);
            if seen.largest_acknowledged >= seen.stuck_bytes {
                (seen.stuck_bytes, seen.stuck_times) = (0, 0);
            }
        }
        // Of a frame that was sent again in part, more has arrived than was sent again: it was not lost as a
        // whole.
        for frame in self.super_frames.iter().filter(|frame| frame.start < to) {
            if frame.resent.is_some_and(|resent| to > resent) {
                seen.super_frames_lost = seen.super_frames_lost.saturating_sub(1);
            }
        }
        self.super_frames.retain(|frame| {
            frame.start >= to || frame.resent.is_some_and(|resent| resent >= to && frame.end > to)
        });
        // What fills no hole was not recorded.
        for hole in self.holes.iter().filter(|hole| hole.end <= to) {
            seen.missed += (hole.end - hole.start).unsigned_abs();
        }
        self.holes.retain(|hole| hole.end > to);
        if let Some((end, due)) = self.alone.take_if(|(end, _)| *end <= to) {
            let waited = now.saturating_sub(due);
            // With data it is an answer, not a mere acknowledgement.
            if end == to && segment.payload == 0 && DELAYED.contains(&waited) {
                self.late = Some((now, waited));
            }
        }
    }

    /// A block below the acknowledgement, or inside the next block, reports data that came twice (RFC 2883).
    fn selective_blocks(&mut self, segment: &Segment, to: i64) {
        let [Some((start, end)), second] = segment.options.sacks else { return };
        let (start, end) = (self.place(start), self.place(end));
        let inside =
            second.is_some_and(|(from, until)| self.place(from) <= start && end <= self.place(until));
        if end <= to || inside {
            // It had been counted as lost when it was sent again.
            let again = &mut self.seen.again;
            let guessed = [&mut again.probe, &mut again.fast, &mut again.timeout];
            if let Some(count) = guessed.into_iter().find(|count| **count > 0) {
                *count -= 1;
                again.spurious += 1;
            }
        } else {
            self.selective = true;
            self.last_moved = segment.time;
        }
    }

    /// What is under way when the capture ends.
    pub fn finish(mut self, now: i64) -> (Option<Opening>, Seen) {
        if let Some(since) = self.zero_since {
            self.seen.zero_window_time += now.saturating_sub(since).unsigned_abs();
        }
        (self.opening, self.seen)
    }
}

fn push<T>(list: &mut VecDeque<T>, entry: T) {
    if list.len() >= MOST {
        list.pop_front();
    }
    list.push_back(entry);
}
