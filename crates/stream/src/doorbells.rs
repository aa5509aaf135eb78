//! The doorbells of a worker's streams: files by which programs of the host announce bytes and room.

use std::time::{Duration, Instant};

use vmlane_port::Side;
use vmlane_worker::{Doorbells, WakeFds};

use crate::joined::JoinedStream;

/// How often they are polled while the worker is awake: that is a system call.
const POLL: Duration = Duration::from_micros(20);
/// The same for each that rang the last time: programs that ring all the time take a part of the worker, not
/// all of it.
const EACH: Duration = Duration::from_micros(4);

/// Those that are watched. One is reported once for each time that it rings.
pub struct StreamDoorbells {
    /// None: there was no file to spare.
    files: Option<Doorbells>,
    watched: usize,
    /// When they are polled next.
    due: Instant,
}

/// What a doorbell is known by: its stream's slot, and the end.
fn number(slot: usize, side: Side) -> u64 {
    (slot as u64) << 1 | side as u64
}

impl StreamDoorbells {
    pub fn new(now: Instant) -> StreamDoorbells {
        let files = Doorbells::new();
        if let Err(error) = &files {
            tracing::warn!(%error, "no file for doorbells; streams of host programs are polled every millisecond");
        }
        StreamDoorbells { files: files.ok(), watched: 0, due: now }
    }

    /// Watches those of a new stream. A stream of one that cannot be watched is polled.
    #[expect(clippy::indexing_slicing, reason = "an array of two, indexed by a side")]
    pub fn watch(&mut self, slot: usize, stream: &mut JoinedStream) {
        for side in Side::BOTH {
            let Some(file) = stream.doorbell(side) else { continue };
            let added = self.files.as_ref().map(|files| files.add_once(file, number(slot, side)));
            if let Some(Ok(())) = added {
                self.watched += 1;
                stream.watched[side as usize] = true;
            } else {
                stream.be_polled();
            }
        }
    }

    /// Forgets that of one end, if it has one: its file is about to be closed, or has become something else.
    #[expect(clippy::indexing_slicing, reason = "an array of two, indexed by a side")]
    pub fn forget(&mut self, stream: &mut JoinedStream, side: Side) {
        if !std::mem::take(&mut stream.watched[side as usize]) {
            return;
        }
        self.watched -= 1;
        if let (Some(file), Some(files)) = (stream.doorbell(side), &self.files) {
            files.remove(file);
        }
    }

    /// Is it time to poll them?
    #[inline]
    pub fn are_due(&self, now: Instant) -> bool {
        self.watched > 0 && now >= self.due
    }

    /// Those that have rung go to `into`, by slot and end.
    pub fn poll(&mut self, now: Instant, into: &mut Vec<(usize, Side)>) {
        into.clear();
        if let Some(files) = &self.files {
            files.poll(|number| {
                let side = if number & 1 == 0 { Side::A } else { Side::B };
                into.push(((number >> 1) as usize, side));
            });
        }
        self.due = now + POLL.max(EACH * into.len() as u32);
    }

    /// What wakes the worker.
    pub fn wake_fds<'a>(&'a self, fds: &mut WakeFds<'a>) {
        if let Some(files) = self.files.as_ref().filter(|_| self.watched > 0) {
            fds.doorbell(std::os::fd::AsFd::as_fd(files));
        }
    }
}
