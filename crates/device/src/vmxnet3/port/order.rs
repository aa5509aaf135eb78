//! Frames in ring order, from the first that is not completed on: finished in any order, completed
//! in theirs.

/// A frame that was taken from the ring: its last descriptor, and two flags. One word, since a load of what
/// was stored in parts just before waits for all stores before them, those to guests' memory too.
#[derive(Clone, Copy, Debug, Default)]
struct Taken(u32);

impl Taken {
    const WANTS_COMPLETION: u32 = 1 << 16;
    const FINISHED: u32 = 1 << 17;
}

/// As many frames as a ring has descriptors, at most. Frames are numbered from the first ever.
#[derive(Debug)]
pub struct Order {
    /// A power of two of them; frame n is at n modulo their number.
    taken: Box<[Taken]>,
    most: u64,
    first: u64,
    next: u64,
}

impl Order {
    pub fn new(ring: u16) -> Order {
        let taken = vec![Taken::default(); usize::from(ring).next_power_of_two()].into_boxed_slice();
        Order { taken, most: ring.into(), first: 0, next: 0 }
    }

    /// Packets that it holds at most.
    pub fn most(&self) -> usize {
        self.most as usize
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.next - self.first >= self.most
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "masked by the length, a power of two")]
    fn at(&mut self, number: u64) -> &mut Taken {
        let mask = self.taken.len() - 1;
        &mut self.taken[number as usize & mask]
    }

    /// Adds a frame whose last descriptor is `end`; its number. There is room.
    #[inline]
    pub fn push(&mut self, end: u16, wants_completion: bool) -> u64 {
        let number = self.next;
        let wants = if wants_completion { Taken::WANTS_COMPLETION } else { 0 };
        *self.at(number) = Taken(u32::from(end) | wants);
        self.next += 1;
        number
    }

    #[inline]
    pub fn finish(&mut self, number: u64) {
        self.at(number).0 |= Taken::FINISHED;
    }

    /// Takes the first frame, if it is finished: its last descriptor, and whether a completion is
    /// wanted.
    #[inline]
    pub fn pop_finished(&mut self) -> Option<(u16, bool)> {
        if self.first == self.next {
            return None;
        }
        let Taken(word) = *self.at(self.first);
        if word & Taken::FINISHED == 0 {
            return None;
        }
        self.first += 1;
        Some((word as u16, word & Taken::WANTS_COMPLETION != 0))
    }
}
