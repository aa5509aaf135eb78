//! How much one end of a stream may send: what the other has room for, and no more. So a stream whose reader
//! is slow waits at its writer, and holds up no other.
//!
//! Room is the stream's ring, and a window behind it: memory of the helper's for what comes while the ring is
//! full. The ring alone would carry 256 KiB for each round trip of the network. So the window grows while a
//! stream uses it up within a round trip and its reader keeps up; then the memory is only promised. It
//! shrinks when the reader does not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_port::Budget;
use vmlane_wire::host::RING;

/// Room that is worth reporting to the peer, unless it waits for any.
const WORTH: u64 = 64 << 10;
/// A ring for each round trip that is no longer carries as much as a helper encrypts: a window would only
/// take what the reader is late for, and copy it once more.
const SHORT_WAY: Duration = Duration::from_micros(250);
/// Behind a ring of a stream, at most.
const MOST_WINDOW: usize = 8 << 20;

/// The memory behind the ring of one stream. Its reservations are given back when it is dropped.
pub struct Window {
    /// Of the peer, and of all peers.
    budgets: [Arc<Budget>; 2],
    reserved: usize,
    target: usize,
    /// What has come since then.
    since: Instant,
    came: usize,
}

impl Drop for Window {
    fn drop(&mut self) {
        self.release(0);
    }
}

impl Window {
    pub fn new(budgets: [Arc<Budget>; 2]) -> Window {
        Window { budgets, reserved: 0, target: 0, since: Instant::now(), came: 0 }
    }

    /// Bytes beyond the ring that may be reported to the peer.
    pub fn size(&self) -> usize {
        self.target
    }

    /// So many bytes have come. `kept`: so many wait behind the ring. `round`: a round trip of the network,
    /// if it is known.
    pub fn count(&mut self, len: usize, kept: usize, now: Instant, round: Option<Duration>) {
        self.came += len;
        let Some(round) = round.filter(|&round| now.saturating_duration_since(self.since) >= round) else {
            return;
        };
        let used_up = self.came * 2 >= RING as usize + self.target;
        // Once in a while only, as what came before predicts little.
        let idle = now.saturating_duration_since(self.since) > 4 * round;
        (self.since, self.came) = (now, 0);
        if kept > 0 {
            self.target /= 2;
        } else if used_up && !idle && round > SHORT_WAY {
            self.grow((2 * self.target + RING as usize).min(MOST_WINDOW));
        }
    }

    fn grow(&mut self, target: usize) {
        let more = target.saturating_sub(self.reserved);
        let [peers, all] = &self.budgets;
        if !peers.take(more) {
            return;
        }
        if !all.take(more) {
            peers.give_back(more);
            return;
        }
        self.reserved += more;
        self.target = target;
    }

    /// No more than `needed` beyond the ring can still come or is kept: what is reserved for more is given
    /// back.
    pub fn give_back_beyond(&mut self, needed: usize) {
        self.release(needed.max(self.target));
    }

    fn release(&mut self, keep: usize) {
        let less = self.reserved.saturating_sub(keep);
        if less > 0 {
            self.budgets.iter().for_each(|budget| budget.give_back(less));
            self.reserved -= less;
        }
    }
}

/// What a peer may send to us.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Bytes that it was allowed to send, and has not sent.
    open: u64,
}

impl Given {
    /// It has sent so many bytes. False: it may not have.
    pub fn take(&mut self, len: usize) -> bool {
        let left = self.open.checked_sub(len as u64);
        self.open = left.unwrap_or(self.open);
        left.is_some()
    }

    /// There is room for so many bytes now. How many more are to be reported to the peer, if any.
    pub fn give(&mut self, room: usize) -> Option<u32> {
        let more = (room as u64).saturating_sub(self.open);
        // Of much room, more at once.
        if more == 0 || (more < WORTH.max(room as u64 / 4) && self.open > 0) {
            return None;
        }
        self.open += more;
        u32::try_from(more).ok()
    }

    /// Bytes that may still come.
    pub fn open(&self) -> usize {
        self.open as usize
    }

    /// The peer can send nothing until more is reported to it.
    pub fn is_used_up(&self) -> bool {
        self.open == 0
    }
}

/// What we may send to a peer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Credit(u64);

impl Credit {
    /// No ring is as large; a peer that reports so much is wrong.
    const MOST: u64 = 1 << 31;

    /// The peer has room for so many bytes more. False: that cannot be.
    pub fn add(&mut self, bytes: u32) -> bool {
        let sum = self.0 + u64::from(bytes);
        let sound = sum <= Credit::MOST;
        self.0 = if sound { sum } else { self.0 };
        sound
    }

    /// Of `len` bytes, how many may be sent.
    pub fn of(&self, len: usize) -> usize {
        len.min(self.0 as usize)
    }

    /// So many were sent, which [`Self::of`] allowed.
    pub fn spend(&mut self, len: usize) {
        self.0 = self.0.saturating_sub(len as u64);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A writer, a reader and a ring between them: nothing is sent that has no room, and nothing gets
        /// stuck.
        #[test]
        fn a_ring_never_overflows_and_always_moves_on(steps in prop::collection::vec((0..200_000usize, 0..200_000usize), 1..200)) {
            let size = (256 << 10) - 1;
            let (mut given, mut credit, mut ring) = (Given::default(), Credit::default(), 0usize);
            let mut moved = 0u64;
            for (wants, reads) in steps {
                let sent = credit.of(wants);
                credit.spend(sent);
                prop_assert!(given.take(sent));
                ring += sent;
                prop_assert!(ring <= size);
                ring -= reads.min(ring);
                if let Some(more) = given.give(size - ring) {
                    prop_assert!(credit.add(more));
                }
                moved += sent as u64;
                // With room in the ring, the writer may always send something.
                prop_assert!(ring == size || credit.of(1) == 1);
            }
            let _ = moved;
        }
    }

    fn budgets(peer: usize, all: usize) -> [Arc<Budget>; 2] {
        [peer, all].map(|limit| Arc::new(Budget::new(limit)))
    }

    /// A stream that brings so much in each of some round trips, behind whose ring so much waits.
    fn rounds(window: &mut Window, now: &mut Instant, brings: usize, kept: usize, rounds: usize) {
        const ROUND: Duration = Duration::from_millis(10);
        for _ in 0..rounds {
            *now += ROUND;
            window.count(brings, kept, *now, Some(ROUND));
        }
    }

    #[test]
    fn a_window_grows_while_it_is_used_up_and_shrinks_with_a_slow_reader() {
        let budgets = budgets(64 << 20, 64 << 20);
        let mut window = Window::new(budgets.clone());
        let mut now = Instant::now();
        rounds(&mut window, &mut now, 10_000, 0, 100);
        assert_eq!(window.size(), 0, "the ring is enough for it");
        window.count(1 << 20, 0, now + Duration::from_millis(10), None);
        assert_eq!(window.size(), 0, "how long a round trip takes is not known");
        window.count(1 << 20, 0, now + Duration::from_millis(10), Some(SHORT_WAY));
        assert_eq!(window.size(), 0, "the ring carries more than a helper encrypts");
        rounds(&mut window, &mut now, 64 << 20, 0, 100);
        assert_eq!(window.size(), MOST_WINDOW);
        assert!(!budgets[0].take((64 << 20) - MOST_WINDOW + 1), "it is promised");
        rounds(&mut window, &mut now, 1 << 20, 1, 1);
        assert_eq!(window.size(), MOST_WINDOW / 2);
        window.give_back_beyond(0);
        assert!(budgets[1].take((64 << 20) - MOST_WINDOW / 2), "the other half is free again");
        budgets[1].give_back((64 << 20) - MOST_WINDOW / 2);
        drop(window);
        assert!(budgets.iter().all(|budget| budget.take(64 << 20)), "nothing stays reserved");
    }

    #[test]
    fn a_window_grows_once_half_of_the_ring_is_used_in_a_round_trip() {
        for (brings, grows) in [(RING as usize / 2, true), (RING as usize / 2 - 1, false)] {
            let mut window = Window::new(budgets(64 << 20, 64 << 20));
            rounds(&mut window, &mut Instant::now(), brings, 0, 1);
            assert_eq!(window.size() > 0, grows, "{brings} bytes");
        }
    }

    #[test]
    fn windows_of_a_peer_and_of_all_have_a_bound() {
        let all = Arc::new(Budget::new(2 * MOST_WINDOW));
        let peer = Arc::new(Budget::new(MOST_WINDOW));
        let mut now = Instant::now();
        let mut windows: Vec<Window> = (0..20).map(|_| Window::new([peer.clone(), all.clone()])).collect();
        windows.iter_mut().for_each(|window| rounds(window, &mut now, 64 << 20, 0, 20));
        let sum = |windows: &[Window]| windows.iter().map(Window::size).sum::<usize>();
        assert!(sum(&windows) <= MOST_WINDOW, "{}", sum(&windows));
        // Another peer has what is left of all.
        let other = Arc::new(Budget::new(64 << 20));
        let mut others: Vec<Window> = (0..20).map(|_| Window::new([other.clone(), all.clone()])).collect();
        others.iter_mut().for_each(|window| rounds(window, &mut now, 64 << 20, 0, 20));
        assert!(sum(&others) >= MOST_WINDOW / 2 && sum(&windows) + sum(&others) <= 2 * MOST_WINDOW);
        drop((windows, others));
        assert!(all.take(2 * MOST_WINDOW) && peer.take(MOST_WINDOW) && other.take(64 << 20));
    }

    #[test]
    fn small_rooms_are_reported_only_to_a_peer_that_waits() {
        let mut given = Given::default();
        assert_eq!(given.give(100_000), Some(100_000));
        assert!(given.take(60_000) && !given.is_used_up());
        assert_eq!(given.give(50_000), None, "10,000 more are not worth a frame");
        assert!(!given.take(40_001), "more than was reported to it");
        assert!(given.take(40_000) && given.is_used_up());
        assert_eq!(given.give(1), Some(1));
        let mut credit = Credit::default();
        assert!(credit.add(1 << 31) && !credit.add(1));
    }
}
