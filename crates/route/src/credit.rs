//! How much one end of a stream may send: what the other has room for, and no more. So a stream whose reader is slow waits at its
//! writer, and holds up no other.

/// Room that makes it worth telling the peer of, unless it waits for any.
const WORTH: u64 = 64 << 10;

/// What a peer may send to us.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Bytes that it was told it may send, and has not sent.
    open: u64,
}

impl Given {
    /// It has sent so many bytes. False: it may not have.
    pub fn take(&mut self, len: usize) -> bool {
        let left = self.open.checked_sub(len as u64);
        self.open = left.unwrap_or(self.open);
        left.is_some()
    }

    /// There is room for so many bytes now. How many more the peer is to be told of, if any.
    pub fn give(&mut self, room: usize) -> Option<u32> {
        let more = (room as u64).saturating_sub(self.open);
        if more == 0 || (more < WORTH && self.open > 0) {
            return None;
        }
        self.open += more;
        u32::try_from(more).ok()
    }

    /// The peer can send nothing until it is told of more.
    pub fn is_used_up(&self) -> bool {
        self.open == 0
    }
}

/// What we may send to a peer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Credit(u64);

impl Credit {
    /// No ring is as large; a peer that says so is wrong.
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
        /// A writer, a reader and a ring between them: nothing is sent that has no room, and nothing gets stuck.
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

    #[test]
    fn small_rooms_are_told_to_a_peer_that_waits_only() {
        let mut given = Given::default();
        assert_eq!(given.give(100_000), Some(100_000));
        assert!(given.take(60_000) && !given.is_used_up());
        assert_eq!(given.give(50_000), None, "10,000 more are not worth a frame");
        assert!(!given.take(40_001), "more than it was told");
        assert!(given.take(40_000) && given.is_used_up());
        assert_eq!(given.give(1), Some(1));
        let mut credit = Credit::default();
        assert!(credit.add(1 << 31) && !credit.add(1));
    }
}
