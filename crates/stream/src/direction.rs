//! One direction of a stream: bytes from one end's ring into the other's, and when it may sleep.
//!
//! Between calls everything here is plain data; the ends' shared indices are touched only through
//! their ports. `device/tests/it/interleavings` runs this very code against every interleaving of a small
//! model and fails when one of the rules M1 to M4 is broken.

use vmlane_port::{Bytes, End, PortFault, StreamPort};

/// Why a direction sleeps, and therefore what wakes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sleep {
    /// Nothing to move, and the writer sees an empty ring: its next byte sends a notice.
    Empty,
    /// The reader's ring is exactly full: its next read sends a notice.
    Full,
    /// Nothing will ever move again, or there is no end to take it.
    Over,
}

/// Which end's fault it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Faulty {
    Source(PortFault),
    Sink(PortFault),
}

/// What an end left behind that its peer had no room for, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    pub kept: usize,
    /// Beyond what its budget allowed.
    pub lost: usize,
}

/// Where bytes come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Source {
    /// The end's own ring.
    Ring,
    /// What the end left behind when it went; `at` bytes of it are delivered.
    Overflow { bytes: Vec<u8>, at: usize },
}

/// One direction. `marks` are ends to announce once `moved` has reached their position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Direction {
    source: Source,
    sleep: Option<Sleep>,
    /// Bytes lay there for which there was no room, when it was last tried.
    stuck: bool,
    moved: u64,
    marks: Vec<(u64, End)>,
}

impl Default for Direction {
    fn default() -> Self {
        Direction { source: Source::Ring, sleep: None, stuck: false, moved: 0, marks: Vec::new() }
    }
}

/// How far a step fills the sink's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filling {
    /// Leaves what the sink wants to stay free while the stream is awake (rule M7).
    KeepFree,
    /// To the last byte.
    Full,
}

/// The two ends of a direction; `None` for one that has left.
type Ends<'a> = (Option<&'a mut (dyn StreamPort + 'static)>, Option<&'a mut (dyn StreamPort + 'static)>);

impl Direction {
    /// One whose source has left, with `bytes` still to be delivered.
    pub fn of_overflow(bytes: Vec<u8>) -> Direction {
        Direction { source: Source::Overflow { bytes, at: 0 }, ..Direction::default() }
    }

    /// Bytes moved so far.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Does it wait for room, by its last try?
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }

    pub fn sleep(&self) -> Option<Sleep> {
        self.sleep
    }

    /// Bytes of the overflow that are not delivered yet.
    pub fn overflow(&self) -> usize {
        match &self.source {
            Source::Ring => 0,
            Source::Overflow { bytes, at } => bytes.len() - at,
        }
    }

    /// Moves what fits, at most `quota` bytes, leaving the sink a little room (rule M7). A direction
    /// that finds work is awake afterwards; one that sleeps and finds none sleeps on.
    pub fn turn(&mut self, ends: Ends<'_>, quota: usize) -> Result<usize, Faulty> {
        let (from, Some(to)) = ends else {
            self.sleep = Some(Sleep::Over);
            return Ok(0);
        };
        let moved = self.step(from, to, quota, Filling::KeepFree)?;
        if moved > 0 {
            self.sleep = None;
        }
        Ok(moved)
    }

    /// Makes the direction poll again: something may have changed.
    pub fn wake(&mut self) {
        self.sleep = None;
    }

    /// Tries to sleep by rule M4. True if it may; false if there is more to do.
    pub fn try_sleep(&mut self, ends: Ends<'_>, quota: usize) -> Result<bool, Faulty> {
        let (mut from, Some(to)) = ends else {
            self.sleep = Some(Sleep::Over);
            return Ok(true);
        };
        // To the last byte: only a reader that saw a full ring announces that it made room.
        self.step(from.as_deref_mut(), to, quota, Filling::Full)?;
        to.renotify_reader().map_err(Faulty::Sink)?;
        self.sleep = match (&self.source, from) {
            (Source::Ring, Some(from)) => {
                if from.arm_readable().map_err(Faulty::Source)? {
                    Some(Sleep::Empty)
                } else if to.arm_writable().map_err(Faulty::Sink)? {
                    Some(Sleep::Full)
                } else {
                    None
                }
            }
            (Source::Ring, None) => Some(Sleep::Over),
            (Source::Overflow { bytes, at }, _) if *at == bytes.len() => Some(Sleep::Over),
            (Source::Overflow { .. }, _) => to.arm_writable().map_err(Faulty::Sink)?.then_some(Sleep::Full),
        };
        Ok(self.sleep.is_some())
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "`at` and what is left behind it are within the overflow")]
    fn step(
        &mut self,
        from: Option<&mut (dyn StreamPort + 'static)>,
        to: &mut dyn StreamPort,
        quota: usize,
        filling: Filling,
    ) -> Result<usize, Faulty> {
        let len = match (&mut self.source, from) {
            (Source::Ring, Some(from)) => {
                let readable = from.readable().map_err(Faulty::Source)?.min(quota);
                let len = if readable == 0 { 0 } else { fit(to, readable, filling)? };
                self.stuck = len < readable;
                if len > 0 {
                    // M1: bytes first, then the tail that announces them; the source's room last.
                    to.fill(from.source(), len).map_err(Faulty::Sink)?;
                    from.consume(len).map_err(Faulty::Source)?;
                }
                len
            }
            (Source::Ring, None) => 0,
            (Source::Overflow { bytes, at }, _) => {
                let rest = (bytes.len() - *at).min(quota);
                let len = if rest == 0 { 0 } else { fit(to, rest, filling)? };
                if len > 0 {
                    to.fill(Bytes::Private(&bytes[*at..]), len).map_err(Faulty::Sink)?;
                    *at += len;
                }
                len
            }
        };
        self.moved += len as u64;
        self.announce(to);
        Ok(len)
    }

    /// Tells the sink of every end whose bytes it has.
    fn announce(&mut self, to: &mut dyn StreamPort) {
        if self.marks.is_empty() {
            return;
        }
        let moved = self.moved;
        self.marks.retain(|&(position, end)| {
            if position <= moved {
                to.end(end);
            }
            position > moved
        });
    }

    /// Announces `end` behind everything the source has written up to now.
    pub fn mark(&mut self, from: Option<&mut (dyn StreamPort + 'static)>, end: End) -> Result<(), Faulty> {
        let pending = match (&self.source, from) {
            (Source::Ring, Some(from)) => from.readable().map_err(Faulty::Source)?,
            (Source::Ring, None) => 0,
            (Source::Overflow { .. }, _) => self.overflow(),
        };
        if !self.marks.iter().any(|&(_, pending_end)| pending_end == end) {
            self.marks.push((self.moved + pending as u64, end));
        }
        self.sleep = None;
        Ok(())
    }

    /// The source's end leaves: what its ring holds now moves on, the rest of it is kept here. `allow`
    /// decides whether that many bytes may be kept; if not they are lost with their sender. The port is
    /// not used after this. Bounded by the ring: an end that keeps writing after it left is not waited for.
    pub fn source_leaves(
        &mut self,
        from: &mut (dyn StreamPort + 'static),
        to: Option<&mut (dyn StreamPort + 'static)>,
        allow: impl FnOnce(usize) -> bool,
    ) -> Result<Left, Faulty> {
        let Some(to) = to else {
            self.source = Source::Overflow { bytes: Vec::new(), at: 0 };
            return Ok(Left::default());
        };
        let mut rest = from.readable().map_err(Faulty::Source)?;
        while rest > 0 {
            match self.step(Some(from), to, rest, Filling::Full)? {
                0 => break,
                moved => rest -= moved,
            }
        }
        let kept = if rest > 0 && allow(rest) { rest } else { 0 };
        let mut bytes = vec![0; kept];
        from.source().read(0, &mut bytes);
        // Noted before the source counts them as taken: a daemon that dies in between finds them twice, not
        // nowhere.
        if kept > 0
            && let Some(survival) = to.survival()
        {
            survival.keep(&bytes);
        }
        from.consume(kept).map_err(Faulty::Source)?;
        self.source = Source::Overflow { bytes, at: 0 };
        if kept > 0 {
            // No one will read what the peer writes from here on, however long it takes to read this.
            to.end(End::Refused);
        }
        self.mark(None, End::Detached)?;
        self.announce(to);
        Ok(Left { kept, lost: rest - kept })
    }

    /// Gives up what is kept: no one is left to read it. Returns the number of bytes.
    pub fn drop_overflow(&mut self) -> usize {
        let dropped = self.overflow();
        self.source = Source::Overflow { bytes: Vec::new(), at: 0 };
        self.marks.clear();
        dropped
    }

    /// For the safety net: is there something this direction could move right now?
    pub fn has_work(&self, ends: Ends<'_>) -> Result<bool, Faulty> {
        let (from, Some(to)) = ends else { return Ok(false) };
        let readable = match (&self.source, from) {
            (Source::Ring, Some(from)) => from.readable().map_err(Faulty::Source)?,
            (Source::Ring, None) => 0,
            (Source::Overflow { .. }, _) => self.overflow(),
        };
        Ok(readable > 0 && to.writable().map_err(Faulty::Sink)? > 0)
    }
}

/// How many of `wanted` bytes go into the sink.
#[inline]
fn fit(to: &mut dyn StreamPort, wanted: usize, filling: Filling) -> Result<usize, Faulty> {
    let room = to.writable().map_err(Faulty::Sink)?;
    Ok(match filling {
        _ if wanted < room => wanted,
        Filling::KeepFree => room.saturating_sub(to.keep_free()),
        Filling::Full => room,
    })
}
