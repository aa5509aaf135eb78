//! Rings as the device walks them: commands by generation, completions with a generation.

use vmlane_port::Sign;
use vmlane_wire::vmxnet3::desc::{RX_GEN, RxCompletion, SIZE, TX_GEN};

use super::checkpoint;
use super::place::Place;
use crate::vmxnet3::setup::Ring;

/// How many descriptors ahead the CPU is asked to prefetch what they name.
const AHEAD: usize = 4;

/// A ring that the driver writes; a control word's bit `GENERATION` is the generation. Never written
/// here.
#[derive(Debug)]
pub struct CommandRing<const GENERATION: u32> {
    ring: Ring,
    /// The next descriptor to use.
    pub head: Place,
}

impl<const GENERATION: u32> CommandRing<GENERATION> {
    pub fn new(ring: Ring) -> CommandRing<GENERATION> {
        CommandRing { ring, head: Place::default() }
    }

    #[inline]
    pub fn size(&self) -> u16 {
        self.ring.size
    }

    /// The address and control word at `place`, if the driver has posted that position. The control
    /// word is loaded once, and first (acquire).
    #[inline]
    pub fn load(&self, place: Place) -> Option<(u64, u64)> {
        let index = usize::from(place.index);
        let control = self.ring.window.load_half(index, true);
        if (control >> GENERATION & 1 != 0) != place.generation() {
            return None;
        }
        Some((self.ring.window.load_half(index, false), control))
    }

    #[inline]
    pub fn is_posted(&self, place: Place) -> bool {
        let control = self.ring.window.load_half(usize::from(place.index), true);
        (control >> GENERATION & 1 != 0) == place.generation()
    }

    /// What shows that the driver has posted the position at `place`, which it has not yet.
    pub fn sign(&self, place: Place) -> Sign {
        let word = self.ring.window.word(usize::from(place.index) * SIZE + size_of::<u64>());
        Sign::new(word, 1 << GENERATION, u64::from(!place.generation()) << GENERATION)
    }

    #[inline]
    pub fn next(&self, place: Place) -> Place {
        place.next(self.ring.size)
    }

    /// The CPU fetches ahead: the descriptors after the next ones. Returns the address in one of the
    /// next, whether or not it is posted. (At the ring's end it does without.)
    #[inline]
    pub fn lookahead(&self) -> u64 {
        let index = usize::from(self.head.index);
        self.ring.window.prefetch((index + 2 * AHEAD) * SIZE);
        let near = if index + AHEAD < usize::from(self.ring.size) { index + AHEAD } else { 0 };
        self.ring.window.load_half(near, false)
    }

    /// The same for a ring of which a frame takes many.
    pub fn prefetch_far_ahead(&self) {
        let index = usize::from(self.head.index);
        (1..=4).for_each(|line| self.ring.window.prefetch((index + line * LINE) * SIZE));
    }

    /// Has the driver posted anew what was used at `place`? (So it has seen its completion.)
    pub fn is_reposted(&self, place: Place) -> bool {
        let again = Place { lap: place.lap.wrapping_add(1), ..place };
        self.head.is_behind(again) || self.is_posted(again)
    }
}

pub type TxCommands = CommandRing<TX_GEN>;
pub type RxCommands = CommandRing<RX_GEN>;

/// A ring that the device writes. Completions gather and are published together: each write takes the
/// cache line away from a driver that polls.
#[derive(Debug)]
pub struct CompletionRing {
    ring: Ring,
    /// Where the next completion goes.
    head: Place,
    /// Not written yet: the completions in front of `head`.
    gathered: Vec<[u64; 2]>,
}

/// Completions in a cache line.
const LINE: usize = 64 / SIZE;
/// Completions that gather at most, unless one frame has more.
const GATHERED: usize = 64;

impl CompletionRing {
    pub fn new(ring: Ring) -> CompletionRing {
        CompletionRing { ring, head: Place::default(), gathered: Vec::with_capacity(GATHERED) }
    }

    /// Continues at the previous daemon's position, or behind what it has shown since.
    pub fn restore(&mut self, head: Place, shown: impl FnMut(u64, u64)) {
        self.head = checkpoint::reconcile(&self.ring, head, shown);
    }

    pub fn size(&self) -> u16 {
        self.ring.size
    }

    /// The next completion's position.
    #[inline]
    pub fn head(&self) -> Place {
        self.head
    }

    #[inline]
    pub fn next(&self, place: Place) -> Place {
        place.next(self.ring.size)
    }

    /// Room for a frame's `count` completions. Their lines are about to be written.
    #[inline]
    pub fn make_room(&mut self, count: usize) {
        let index = usize::from(self.head.index);
        (1..=count.div_ceil(LINE))
            .for_each(|line| self.ring.window.prefetch_write((index + line * LINE) * SIZE));
        if self.gathered.len() >= GATHERED.min(self.ring.size.into()) {
            self.publish();
        }
    }

    /// Adds one. `words` makes it for a generation.
    #[inline]
    pub fn push(&mut self, words: impl FnOnce(bool) -> [u64; 2]) {
        self.gathered.push(words(self.head.generation()));
        self.head = self.head.next(self.ring.size);
    }

    /// Adds receive completions.
    #[inline]
    pub fn extend(&mut self, completions: impl Iterator<Item = RxCompletion>) {
        let (mut head, size) = (self.head, self.ring.size);
        self.gathered.extend(completions.map(|one| {
            let words = one.words(head.generation());
            head = head.next(size);
            words
        }));
        self.head = head;
    }

    /// Writes what has gathered, the last one first and each one's generation last: a driver sees all
    /// of it or nothing, so never a part of a frame.
    #[inline]
    pub fn publish(&mut self) {
        let mut index = usize::from(self.head.index);
        for &words in self.gathered.iter().rev() {
            index = if index == 0 { usize::from(self.ring.size) - 1 } else { index - 1 };
            self.ring.window.store_pair(index, words);
        }
        self.gathered.clear();
    }
}
