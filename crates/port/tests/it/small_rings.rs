//! Rings of a few bytes, exhausted: every state that they can reach, every index that the other side may
//! offer in it, every order in which a producer and a consumer take their steps, and every copy between two
//! of them.

use std::collections::HashSet;
use std::hash::Hash;

use vmlane_mem::{MapRequest, MemoryMap, Pages, memfd};
use vmlane_port::byte_ring::{Reading, Writing, advance, distance};
use vmlane_port::{RingSlice, transfer};

const SIZES: std::ops::RangeInclusive<u64> = 1..=8;

/// Visits every state that can be reached from `start`; `next` checks one and returns which follow it.
/// Returns how many.
fn exhaust<S: Clone + Eq + Hash>(start: S, mut next: impl FnMut(&S) -> Vec<S>) -> usize {
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some(state) = open.pop() {
        for state in next(&state) {
            if seen.insert(state.clone()) {
                open.push(state);
            }
        }
    }
    seen.len()
}

/// All that another side can put into a word, as far as it makes a difference.
fn offers(size: u64) -> impl Iterator<Item = u64> {
    (0..=2 * size).chain([u64::MAX - 1, u64::MAX, 1 << 63])
}

#[test]
fn a_reader_accepts_every_tail_that_keeps_the_ring_and_no_other() {
    for size in SIZES {
        // Its published index, bytes copied since, bytes accepted since.
        let states = exhaust((0, 0, 0), |&(base, copied, accepted)| {
            let at = |bytes| (base + bytes) % size;
            let reading =
                Reading { published: base, cur: at(copied), tail: at(accepted), ..Reading::new(size) };
            assert_eq!((reading.pending(), reading.room()), (accepted - copied, size - 1 - accepted));
            let mut next = vec![(at(copied), 0, accepted - copied)];
            if copied < accepted {
                assert_eq!(advance(reading.cur, 1, size), at(copied + 1));
                next.push((base, copied + 1, accepted));
            }
            for tail in offers(size) {
                let mut after = reading.clone();
                let more = (0..size - accepted).find(|more| at(accepted + more) == tail);
                match (after.accept(tail), more) {
                    (Ok(()), Some(more)) => {
                        assert_eq!(after, Reading { tail, ..reading.clone() });
                        next.push((base, copied, accepted + more));
                    }
                    (Err(_), None) => assert_eq!(after, reading, "{tail} was refused"),
                    (outcome, more) => panic!("{reading:?}, tail {tail}: {outcome:?}, but {more:?}"),
                }
            }
            next
        });
        assert_eq!(states as u64, size * size * (size + 1) / 2, "of {size} bytes");
    }
}

#[test]
fn a_writer_accepts_every_head_up_to_its_tail_and_no_other() {
    for size in SIZES {
        // The head, and bytes that were not read.
        let states = exhaust((0, 0), |&(head, used)| {
            let tail = (head + used) % size;
            let writing = Writing { head, tail, ..Writing::new(size) };
            assert_eq!((writing.used(), distance(head, tail, size)), (used, used));
            let mut next = Vec::new();
            if used < size - 1 {
                assert_eq!(advance(tail, 1, size), (head + used + 1) % size);
                next.push((head, used + 1));
            }
            for offer in offers(size) {
                let mut after = writing.clone();
                let read = (0..=used).find(|read| (head + read) % size == offer);
                match (after.accept(offer), read) {
                    (Ok(()), Some(read)) => {
                        assert_eq!(after, Writing { head: offer, ..writing.clone() });
                        next.push((offer, used - read));
                    }
                    (Err(_), None) => assert_eq!(after, writing, "{offer} was refused"),
                    (outcome, read) => panic!("{writing:?}, head {offer}: {outcome:?}, but {read:?}"),
                }
            }
            next
        });
        assert_eq!(states as u64, size * size, "of {size} bytes");
    }
}

/// A producer and a consumer that trust each other no further than they can check, and what lies between
/// them.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Pair {
    writing: Writing,
    reading: Reading,
    /// The words that both see.
    tail: u64,
    head: u64,
    bytes: Vec<u8>,
    /// A byte that is in its place and not published.
    placed: bool,
    written: u8,
    read: u8,
}

/// Bytes are numbered up to here and from the beginning again: more than a ring has.
const NUMBERS: u8 = 11;

impl Pair {
    fn new(size: u64) -> Pair {
        let (writing, reading) = (Writing::new(size), Reading::new(size));
        let bytes = vec![NUMBERS; size as usize];
        Pair { writing, reading, tail: 0, head: 0, bytes, placed: false, written: 0, read: 0 }
    }

    /// Every step that one of them can take now.
    fn steps(&self) -> Vec<Pair> {
        let size = self.writing.size;
        let mut next = Vec::new();
        let mut step = |take: &dyn Fn(&mut Pair)| {
            let mut pair = self.clone();
            take(&mut pair);
            next.push(pair);
        };
        step(&|pair| pair.writing.accept(pair.head).expect("the reader keeps the rules"));
        step(&|pair| pair.reading.accept(pair.tail).expect("the writer keeps the rules"));
        if !self.placed && self.writing.used() < size - 1 {
            step(&|pair| {
                pair.bytes[pair.writing.tail as usize] = pair.written;
                pair.placed = true;
            });
        }
        if self.placed {
            step(&|pair| {
                pair.writing.tail = advance(pair.writing.tail, 1, size);
                pair.tail = pair.writing.tail;
                pair.written = (pair.written + 1) % NUMBERS;
                pair.placed = false;
            });
        }
        if self.reading.pending() > 0 {
            step(&|pair| {
                assert_eq!(
                    pair.bytes[pair.reading.cur as usize], pair.read,
                    "a byte is lost, or comes twice"
                );
                pair.reading.cur = advance(pair.reading.cur, 1, size);
                pair.read = (pair.read + 1) % NUMBERS;
            });
        }
        step(&|pair| {
            pair.reading.published = pair.reading.cur;
            pair.head = pair.reading.cur;
        });
        next
    }
}

#[test]
fn bytes_arrive_once_and_in_order_in_every_order_of_steps() {
    for size in 1..=4 {
        let states = exhaust(Pair::new(size), Pair::steps);
        assert!(size == 1 || states > 100, "{states} states of {size} bytes");
    }
}

const PAGE: u64 = 4096;
/// Where the rings lie: across two pages.
const BASES: [usize; 2] = [PAGE as usize - 5, 3 * PAGE as usize - 3];

fn memory() -> Pages {
    let map = MemoryMap::default();
    let fd = memfd("rings", 4 * PAGE).unwrap();
    let map = map.map(MapRequest { guest: 0, len: 4 * PAGE, offset: 0, fd, writable: true }).unwrap();
    // In another order than they lie in the file.
    map.pages([2, 0, 3, 1].map(|page| page * PAGE).into_iter(), PAGE.trailing_zeros()).unwrap()
}

#[test]
fn a_copy_between_any_two_places_moves_its_bytes_and_touches_no_other() {
    let pages = memory();
    let slice =
        |ring: usize, (size, at): (usize, usize)| RingSlice { pages: &pages, base: BASES[ring], size, at };
    let places: Vec<(usize, usize)> = (1..=8).flat_map(|size| (0..size).map(move |at| (size, at))).collect();
    for &to in &places {
        for &from in &places {
            for len in 0..=to.0.min(from.0) {
                pages.write(BASES[0] - 1, &[200; 10]);
                pages.write(BASES[1], &[0, 1, 2, 3, 4, 5, 6, 7]);
                transfer(slice(0, to), slice(1, from), len);
                let mut want = [200; 10];
                for byte in 0..len {
                    want[1 + (to.1 + byte) % to.0] = ((from.1 + byte) % from.0) as u8;
                }
                let mut have = [0; 10];
                pages.read(BASES[0] - 1, &mut have);
                assert_eq!(have, want, "{len} bytes from {from:?} to {to:?}");
                let mut copy = vec![0; len];
                slice(0, to).read(&mut copy);
                let sent: Vec<u8> = (0..len).map(|byte| ((from.1 + byte) % from.0) as u8).collect();
                assert_eq!(copy, sent);
                pages.write(BASES[0] - 1, &[200; 10]);
                slice(0, to).write(&sent);
                pages.read(BASES[0] - 1, &mut have);
                assert_eq!(have, want);
            }
        }
    }
}
